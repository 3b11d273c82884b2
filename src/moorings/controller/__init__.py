"""The use cases and the loops that keep what is wanted and what is there the same: load, decide, save, act.

Here: ``turns`` (joins the pure decisions of one turn), ``loop`` (runs turns, saves them, tells who waits),
``hardware`` and ``running`` (act on drivers and engines, and bring back what they say), ``service`` (what a caller can
ask for), ``views`` (what it is answered), ``keys`` (access keys).

Not here: what is decided (``core``, ``workloads``), HTTP (``api``), which implementation is used (``app``).
"""
