"""The engine ``slurm``: it submits each run as a batch job, like any user's, to a cluster with IPUs.

Here: ``engine`` (the port's implementation), ``submission`` (arguments and files for sbatch; pure), ``batch.sh`` and
``task.sh`` (the scripts on the nodes), ``run_folder`` (a run's folder, shared by controller and nodes), ``run_status``
(a run's state and its end; pure) and ``settings``.

Not here: scheduling of IPUs. The job asks with ``--ipus`` like any other, and Slurm and the agent do the rest. Jobs run
as the controller's own user, as with the local engine. Start reading at ``batch.sh``, then ``run_status``.
"""
