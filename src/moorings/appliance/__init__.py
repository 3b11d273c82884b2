"""The library for a user's ``run.py``: wafer-scale jobs from a model, a params file and a command line.

Here: ``run`` (the entry for ``run.py``), ``program`` (its arguments), ``arguments``, ``params`` and ``workflow_config``
(input, checked before anything is queued), ``client`` and ``workflow`` (the jobs of one start), ``runner`` and
``job_follower`` (one job, from the queue to its end), ``job_spec`` (a job's specification), ``task`` (the program in a
job) and ``execution`` (the work itself; only this needs JAX).

Not here: the queue, systems, leases and states of jobs, which are the controller's. The client imports neither JAX nor
NumPy: it starts fast, and runs on machines without them. Start reading at ``entry.py``.
"""

from moorings.appliance.entry import run

__all__ = ["run"]
