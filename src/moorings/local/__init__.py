"""The embedded engine: jobs as processes of this machine, without Slurm or Kubernetes.

Here: ``engine`` (the port's implementation, inside the controller), ``supervisor`` (one detached process a run, which
outlives the controller), ``course`` (what a supervisor does next; pure), ``tasks`` (starting one process of a job),
``settle`` (the end of a run whose supervisor has gone), ``rundir`` and ``records`` (the folder through which both
speak), ``processes`` (what ``/proc`` says), ``output`` (how much tasks write), ``logs`` (reading it).

Not here: who may start when (``controller``), what hardware a job gets (``drivers``), isolation of jobs from each
other: they run as the controller's own user. Start reading at ``rundir``, then ``supervisor``, then ``engine``;
``docs/explanation/local-engine.md`` says what is guaranteed when what is killed.
"""
