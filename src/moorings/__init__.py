"""Moorings gives AI jobs a berth on accelerators: it ties the life of a partition to the life of a job.

The map of the folders, and who may import whom, is in ARCHITECTURE.md. What programs use, as ``moorings.submit``, is
imported when it is first named, so that `moor` starts fast. The version is written here and only here: asking the
installed package for it would cost ten milliseconds.
"""

TYPE_CHECKING = False  # type checkers read it as true; `typing` itself would cost a fresh Python ten milliseconds

if TYPE_CHECKING:
    from moorings.core.model.errors import MooringsError
    from moorings.sdk.runs import Run, RunError, WaitTimeoutError
    from moorings.sdk.submitting import find_run, map_array, submit

__version__ = "0.1.0"

__all__ = ["MooringsError", "Run", "RunError", "WaitTimeoutError", "find_run", "map_array", "submit"]

_PLACES = {
    "MooringsError": "moorings.core.model.errors",
    "Run": "moorings.sdk.runs",
    "RunError": "moorings.sdk.runs",
    "WaitTimeoutError": "moorings.sdk.runs",
    "find_run": "moorings.sdk.submitting",
    "map_array": "moorings.sdk.submitting",
    "submit": "moorings.sdk.submitting",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'moorings' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(place), name)
