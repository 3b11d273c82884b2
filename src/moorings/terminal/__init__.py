"""What programs at a user's terminal share: ``moor``, and a user's ``run.py`` on wafer-scale systems.

Here: the console and its text (``console``, ``text``), progress on stderr (``progress``), signals (``interrupts``),
errors and exit codes (``errors``), configuration and credentials (``configuration``), a client of the configured
controller (``context``), and following claims and runs (``following``, ``durations``).

Not here: command lines (``cli``, ``appliance.arguments``), HTTP (``client``), slow imports. Start at ``context.py``.
"""
