"""The engine ``kubernetes``: runs as IPUJobs that we create, like any user's, in a cluster whose jobs have IPUs.

Here: ``engine`` (the port's implementation), ``submission`` (job file to IPUJob; pure), ``verdict`` (a run's status and
how it ended; pure), ``rundir`` (a run's files on the controller's disk), ``watching`` (the watches of the API server),
``output`` (Pods' logs, copied into these files as they are written), ``calls`` (logs and signals over the API server),
``fence`` (which controller may start a job) and ``settings``.

Not here: scheduling of IPUs. The operator claims for the IPUJob, as for every other. Start reading at ``submission``,
then ``verdict``.
"""
