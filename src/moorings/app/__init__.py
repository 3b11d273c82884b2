"""The only place that picks implementations, reads clock, environment and randomness, and starts things.

Here: ``settings``, ``clock``, ``ids``, ``logs``, ``folders`` (the data folder and its lock), ``wiring`` (which driver,
engine and store), ``controller`` (``python -m moorings.app.controller``), ``docs`` (generated reference pages).

Not here: anything that decides, and anything that speaks to an outside system by itself.
"""
