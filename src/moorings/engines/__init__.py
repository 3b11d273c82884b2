"""What engines share, whoever runs the processes.

Here: ``rundir`` (a run's folder with a folder for each attempt, and how files are made in it), ``orders`` (what every
engine makes of an order, and how it says no), ``looks`` (waiting for news, and what looks in a row say together).

Not here: anything that one engine alone needs, and anything that runs a process: those live in ``local``, ``slurm`` and
``kubernetes``, which do not know each other. Start reading at ``rundir``.
"""
