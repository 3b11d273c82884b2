"""The interface to stock, unpatched Slurm, 22.05 and later.

Here: ``formats`` and ``fixed_width`` (Slurm's commands and what they print; pure), ``commands`` (running them),
``munge`` (authentication of messages) and ``host/`` (beside slurmctld and on the nodes: options, gate, agent, install,
doctor). The code inside Slurm's own processes is C and Lua: ``deploy/slurm/``.

Not here: placement and scheduling (``core``), the vendor's hardware (``drivers``), ownership of partitions
(``controller``). Start reading at ``host/nodes.py``, then ``deploy/slurm/moorings_spank.c``;
``docs/how-to/slurm-install.md`` is the site's guide.
"""
