"""Decisions about AI work: what a job asks for, how a run goes on; pure like ``core``.

Here: the job file (``jobs``), runs and their states (``runs``). Later: sweeps, pipelines, checkpoints.

Not here: starting processes (``local``, and later ``slurm`` and ``kubernetes``), saving (``store``), anything that
knows nothing of training (``core``).
"""
