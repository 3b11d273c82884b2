"""The embedded engine: jobs as processes of this machine, without Slurm or Kubernetes.

Here: ``engine`` (the port's implementation, inside the controller), ``supervisor`` (one detached process a run, which
outlives the controller), ``lifecycle`` (a supervisor's next action; pure), ``finalize`` (the end of a run after its
supervisor died), ``run_folder`` and ``records`` (the folder that controller and supervisor share), ``processes``
(``/proc``), ``output_limit`` (limits of tasks' output), ``cpu_time`` (what a job has used, by its cgroup).

Not here: when runs start (``controller``), the hardware of a job (``drivers``), isolation of jobs from each other: they
run as the controller's own user. Start reading at ``run_folder``, then ``supervisor``, then ``engine``;
``docs/explanation/local-engine.md`` has the guarantees after a kill of each part.
"""
