"""The use cases, and the loops that reconcile the desired state with the observed one: load, decide, save, act.

Here: ``turn`` (joins the pure decisions of one turn), ``loop`` (runs turns, saves them, answers callers),
``driver_manager`` and ``run_manager`` (act on drivers and engines, and return their results), ``service`` (the requests
of callers), ``views`` (the responses), ``keys`` (access keys).

Not here: what is decided (``core``, ``workloads``), HTTP (``api``), which implementation is used (``app``).
"""
