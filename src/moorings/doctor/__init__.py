"""The frame of all doctors: ``moor doctor``, ``moor slurm doctor`` and the controller's look at itself.

Here: findings and their verdicts (``findings``), the table of all checks (``checks``), and running them within a time
(``threads``, ``tasks``).

Not here: the checks. They lie beside what they look at: ``cli.checks`` (a client), ``controller.findings``,
``app.host_checks`` (the controller's machine), ``pki.checks``, ``slurm.host.checks``. Start at ``findings.py``.
"""
