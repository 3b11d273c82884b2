"""The engine ``kubernetes``: runs as IPUJobs that we create, like any user's, in a cluster whose jobs have IPUs.

Here: ``engine`` (the port's implementation), ``submission`` (job file to IPUJob; pure), ``run_status`` (a run's status
and how it ended; pure), ``submitter`` (creates and activates IPUJobs), ``attempt_control`` (stops and signals them),
``maintenance`` (time limits, finished IPUJobs), ``run_folder`` (a run's files on the controller's disk),
``run_informers`` (the watches of the API server), ``attempts`` (what the Pods show), ``output`` (Pods' logs, copied
into these files as they are written), ``kubernetes.kube.pod_streams`` (logs and signals over the API server), ``fence``
(which controller may start a job) and ``settings``. For ``moor``: ``kubectl`` (calls of a person's own; pure).

Not here: scheduling of IPUs. The operator claims for the IPUJob, as for every other. Start reading at ``submission``,
then ``run_status``.
"""
