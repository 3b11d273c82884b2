"""What would happen: the queue simulated in virtual time, the estimated start of a claim, the effect of another policy.

Start reading at ``simulation``.
"""
