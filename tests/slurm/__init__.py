"""Slurm itself, started by the tests: ``cluster`` is the rig, ``conftest`` has the fixtures and how to use them."""
