"""The embedded engine: jobs as processes of this machine, without Slurm or Kubernetes.

Here: ``engine`` (the port's implementation, inside the controller), ``supervisor`` (one detached process a run, which
outlives the controller), ``course`` (a supervisor's next action; pure), ``tasks`` (starting one process of a job),
``settle`` (the end of a run after its supervisor died), ``rundir`` and ``records`` (the folder that controller and
supervisor share), ``processes`` (``/proc``), ``output`` (limits of tasks' output), ``logs`` (reading it).

Not here: when runs start (``controller``), the hardware of a job (``drivers``), isolation of jobs from each other: they
run as the controller's own user. Start reading at ``rundir``, then ``supervisor``, then ``engine``;
``docs/explanation/local-engine.md`` tells the guarantees after a kill of each part.
"""
