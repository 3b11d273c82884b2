"""Everything we say to Slurm, which stays as it is: stock, unpatched, 22.05 and later.

Here: ``formats`` and ``listings`` (Slurm's commands and what they print; pure), ``commands`` (running them), ``munge``
(who made a message) and ``host/`` (beside slurmctld and on the nodes: options, gate, agent, install, doctor). What
runs inside Slurm's own processes is not Python: ``deploy/slurm/``.

Not here: what fits where and who is next (``core``), vendor's hardware (``drivers``), who owns a partition
(``controller``). Start reading at ``host/nodes.py``, then ``deploy/slurm/moorings_spank.c``;
``docs/how-to/slurm-install.md`` says what a site does with it.
"""
