"""A person's own runs on Slurm, as their ``moor`` submits, cancels and reports them.

Here: ``own_runs`` (the folder of a person's runs, and what is done with them), ``own_arrays`` (arrays of such runs),
``awaited_jobs`` (what they wait for) and ``run_jobs`` (jobs of runs in reports and listings). The submission itself is
the engine's (``slurm.engine``), used as the person and with a folder of theirs.

Not here: what the controller makes of reports (``slurm.engine.personal``). Start reading at ``own_runs``.
"""
