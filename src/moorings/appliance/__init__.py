"""What a user's ``run.py`` imports: wafer-scale jobs from a model, a params file and a command line.

Here: ``run`` (what ``run.py`` calls), ``program`` (what it hands over), ``arguments``, ``params`` and ``checks`` (what
is read, and refused before anything is queued), ``start`` and ``workflow`` (the jobs of one start), ``runner`` and
``following`` (one job, from the queue to its end), ``order`` (what a job is told), ``task`` (what runs in a job) and
``execution`` (how it does the work; alone in needing JAX).

Not here: the queue, systems, leases and states of jobs, which are the controller's. The client imports neither JAX nor
NumPy: it starts fast, and runs where they are not. Start reading at ``entry.py``.
"""

from moorings.appliance.entry import run

__all__ = ["run"]
