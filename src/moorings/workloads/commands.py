"""How long a command may be. A file of its own: programs on nodes need these limits, and nothing else of jobs."""

from __future__ import annotations

COMMAND_ARGS_MAX = 4096
COMMAND_CHARS_MAX = 131_072
