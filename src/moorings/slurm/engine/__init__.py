"""The engine ``slurm``: a run as a batch job that we submit, like any user's, to a cluster whose jobs have IPUs.

Here: ``engine`` (the port's implementation), ``submission`` (what sbatch is told; pure), ``batch.sh`` and ``task.sh``
(what runs on the nodes), ``rundir`` (a run's folder, which controller and nodes share), ``verdict`` (what is seen of a
run, and how it ended; pure) and ``settings``.

Not here: who gets IPUs when. The job asks with ``--ipus`` like everybody's, Slurm and the agent do the rest. Jobs run
as the controller's own user, as with the local engine. Start reading at ``batch.sh``, then ``verdict``.
"""
