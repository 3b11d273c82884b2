"""What there is, as values: devices, topologies, pools, claims, partitions, projects, policy, and the inputs of a turn.

Also their states and what may follow which, reasons and errors, timestamps and sizes, and how values become plain data.

Not here: which devices are free (``placement``). Start reading at ``claims``, then ``partitions``.
"""
