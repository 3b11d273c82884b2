"""The engine ``kubernetes``: a run as an IPUJob that we make, like any user's, in a cluster whose jobs have IPUs.

Here: ``engine`` (the port's implementation), ``submission`` (job file to IPUJob; pure), ``verdict`` (what is seen of a
run, and how it ended; pure), ``rundir`` (what is kept of a run on the controller's disk), ``watching`` (what the API
server tells), ``output`` (Pods' logs, copied there while they are written), ``calls`` (logs and signals over the API
server), ``fence`` (which controller may bring a job to life) and ``settings``.

Not here: who gets IPUs when. The operator claims for the IPUJob, as for everybody's. Start reading at ``submission``,
then ``verdict``.
"""
