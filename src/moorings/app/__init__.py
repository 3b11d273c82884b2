"""The only place that picks implementations, reads clock, environment and randomness, and starts processes.

Here: ``settings``, ``clock`` (and ids), ``logs``, ``folders`` (the data folder and its lock), ``wiring`` (which driver,
engine and store), ``controller`` (``python -m moorings.app.controller``), ``docs`` (generated reference pages).

Not here: decisions, and direct access to outside systems.
"""
