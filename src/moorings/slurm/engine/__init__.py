"""The engine ``slurm``: each run is a batch job, like any user's, on a cluster with IPUs.

Here: ``engine`` (submits and looks after jobs as the user of its process), ``personal`` (follows jobs that people
submit themselves), ``submission`` (arguments and files for sbatch; pure), ``batch.sh`` and ``task.sh`` (the scripts on
the nodes), ``node_terminal`` (the terminal of the first task, there), ``beside`` with its scripts (steps beside the
tasks: commands, terminals, ports), ``run_folder`` (a run's folder, shared by submitter and nodes), ``run_status`` (a
run's state and its end; pure) and ``settings``.

Not here: scheduling of IPUs. The job asks with ``--ipus`` like any other, and Slurm and the agent do the rest. Start
reading at ``batch.sh``, then ``run_status``.
"""
