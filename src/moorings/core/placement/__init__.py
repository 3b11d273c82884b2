"""What is free and what is held: free maps, release times, and the fleet with its pending and its holding claims.

Not here: who is entitled to what (``guarantees``), which claim is next (``scheduling``). Start reading at ``free_map``,
then ``fleet``.
"""
