"""Drivers: what talks to hardware, one folder for each kind of it, each an implementation of ``ports.driver.Driver``.

Here: ``simulated`` (hardware that exists only as a folder on this machine), ``vipu`` (IPU pods, through their vendor's
command). A driver translates: its vendor's words into ours, its vendor's silence into *unavailable*. Drivers do not
know each other.

Not here: deciding what goes where (``core``), when to ask again (``controller``), which driver a pool has (``app``).
Start reading at ``simulated/driver.py``; every driver passes ``testing.driver_suite``.
"""
