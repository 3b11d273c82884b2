"""What this machine gives to its jobs: the settings, else what the kernel says of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from moorings.app.settings import Settings
from moorings.core.model.machine import MACHINE_CPUS, MACHINE_MEMORY


def read_machine(settings: Settings) -> Mapping[str, int]:
    """The CPUs and the bytes of memory that are given to jobs; 0: they are not counted."""
    cpus = settings.cpus if settings.cpus is not None else len(os.sched_getaffinity(0))
    memory = settings.memory_bytes
    if memory is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # MemTotal
    return {MACHINE_CPUS: cpus, MACHINE_MEMORY: memory}
