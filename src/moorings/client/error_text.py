"""Why the operating system or a peer refused something, for people: no ``[Errno 2]``, no class names.

Separate from ``transport``, so that reading a file does not import HTTP and TLS.
"""

from __future__ import annotations


def format_cause(error: Exception) -> str:
    """The cause of an error, as the end of a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
