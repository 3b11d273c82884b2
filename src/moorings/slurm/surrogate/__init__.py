"""Shows work outside of Slurm as a step of the Slurm job that started it.

Here: ``detection`` (whether we are in a job and may make steps of it), ``step`` (srun's arguments and the placeholder's
replies; pure), ``placeholder.sh`` (runs in the step while the work runs), ``mirror`` (the port's implementation,
and the job's time limit for work without a step yet), ``command`` (a command of this machine as a step,
``moor slurm surrogate``).

Not here: the work. Slurm's accounting is never asked: slurmdbd may be down. Start reading at ``placeholder.sh``, then
``mirror``; ``docs/how-to/slurm-surrogates.md`` shows the user's view.
"""
