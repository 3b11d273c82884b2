"""Decisions on values: which block a claim gets, which claim is next, which state may follow which.

Here: devices, topologies and their blocks, free maps, claims, partitions, the queue, the turn that joins them.
Everything is a function from values and ``now`` to values; standard library only; no IO, no clock, no randomness.

Not here: anything that knows about training jobs (``workloads``), saves (``store``) or waits (``controller``).
Start reading at ``claims.py`` (requests), then ``queue.py`` (which claim gets what), then ``turn.py`` (all of a turn).
"""
