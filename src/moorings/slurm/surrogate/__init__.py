"""Shows work that runs outside of Slurm as a step of the Slurm job that it was started from.

Here: ``detection`` (whether we are in a job whose steps we may make), ``step`` (what srun is told and what the
placeholder answers; pure), ``placeholder.sh`` (what runs in the step, for as long as the work does), ``mirror`` (the
port's implementation), ``asking`` and ``limit`` (the job's time limit, for work that has no step yet), ``command`` (a
command of this machine as a step, ``moor slurm surrogate``).

Not here: the work. Slurm's accounting is never asked: slurmdbd may be down. Start reading at ``placeholder.sh``, then
``mirror``; ``docs/how-to/slurm-surrogates.md`` says what people see.
"""
