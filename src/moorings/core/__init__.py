"""Decisions on values: which block a claim gets, which claim is next, which state may follow which.

Five rooms, each imports only those before it: ``model`` (claims, partitions, devices), ``placement`` (what is free, the
fleet), ``guarantees`` (what projects are entitled to), ``scheduling`` (the queue and the turn), ``forecast``. Beside
them: ``reconcile`` (desired and observed partitions) and ``invariants`` (the laws as a check).
Everything is a function from values and ``now`` to values; standard library only; no IO, no clock, no randomness.

Not here: anything that knows about training jobs (``workloads``), saves (``store``) or waits (``controller``).
Start reading at ``model.claims`` (requests), then ``scheduling.schedule`` (which claim gets what), then
``scheduling.turn`` (all of a turn).
"""
