"""Moorings gives AI jobs a berth on accelerators: it ties the life of a partition to the life of a job.

The map of the folders, and who may import whom, is in ARCHITECTURE.md. Nothing is imported here, so that `moor` starts
fast. The version is written here and only here: asking the installed package for it would cost ten milliseconds.
"""

__version__ = "0.1.0"
