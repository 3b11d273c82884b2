"""IPUJobs by the hundred, a third of them deleted, while operators, proxy, API server and controller are killed."""
