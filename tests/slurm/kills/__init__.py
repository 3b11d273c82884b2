"""Jobs, cancels and kills at random moments, and a judge of what is left: with IPUs, and the same with plain jobs.

``story`` draws it all from a seed, ``acting`` plays it on a real cluster, ``judge`` decides from what was seen there;
``python -m tests.slurm.kills`` plays it with any counts, beside its control. What plain jobs lose too is Slurm's.
"""
