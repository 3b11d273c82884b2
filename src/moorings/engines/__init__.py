"""The shared part of all engines.

Here: ``run_folder`` (a run's folder, with a folder for each attempt), ``fence`` (only the latest leader starts runs),
``launch`` (what every engine derives from a submission, and its errors), ``logs`` (reads output while it is written),
``polling`` (waiting for news, and missed listings), ``scheduled`` (what engines with a scheduler of their own share),
``checkpoint_scan`` and ``checkpoint_watch`` (one look at a folder of checkpoints, and looks beside a job),
``processes`` (those of this machine), ``node_program`` (both of these for a node without Moorings), ``node_archive``
(such programs as one file), and ``terminal_server`` with ``terminal_sessions``, ``task_terminal``, ``channels`` and
``loopback`` (the terminal of task 0, and the socket by which its person reaches it).

Not here: parts that only one engine needs: they are in ``local``, ``slurm`` and ``kubernetes``, which do not know each
other. Start reading at ``run_folder``, then ``scheduled``.
"""
