"""The shared part of all engines.

Here: ``rundir`` (a run's folder with a folder for each attempt, and how files are written there), ``orders`` (what
every engine derives from a submission, and its errors), ``looks`` (waiting for news, and missed listings).

Not here: parts that only one engine needs, and parts that run a process: they are in ``local``, ``slurm`` and
``kubernetes``, which do not know each other. Start reading at ``rundir``.
"""
