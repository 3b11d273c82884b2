"""Drivers control hardware: one folder for each kind, each an implementation of ``ports.driver.Driver``.

Here: ``simulated`` (hardware that only exists as a folder on this machine), ``vipu`` (IPU pods, through their vendor's
command). A driver translates its vendor's words into ours, and its vendor's silence into *unavailable*. Drivers do not
know each other.

Not here: placement (``core``), retries (``controller``), the driver of each pool (``app``). Start reading at
``simulated/driver.py``; every driver passes ``testing.driver_suite``.
"""
