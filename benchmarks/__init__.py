"""Benchmarks: each prints our figure beside its anchor and its bound, from one run.

``make bench`` runs all; ``uv run python -m benchmarks NAME [--json]`` one. The last line of standard output is one JSON
object with ``name``, ``figures``, ``bounds`` and ``anchors`` (names hold their units).
"""
