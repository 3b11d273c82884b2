"""Which claim is next and what it gets: the pass over the queue, backfill, moves, and the turn with all its inputs.

Also why a claim waits, and what other schedulers may start. Start reading at ``schedule`` (one pass over the queue),
then ``turn`` (inputs in, changes and events out).
"""
