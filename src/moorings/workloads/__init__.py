"""Decisions about AI work: what a job requests, how a run proceeds; pure like ``core``.

Here: the job file (``jobs``), runs and their states (``runs``). Later: sweeps, pipelines, checkpoints.

Not here: starting processes (``local``, ``slurm``, ``kubernetes``), saving (``store``), anything that does not depend
on training (``core``).
"""
