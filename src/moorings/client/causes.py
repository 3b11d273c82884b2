"""Why the operating system or a peer refused something, in words for a person: no ``[Errno 2]``, no class names.

Apart from ``transport``, because who only reads a file should not pay for HTTP and TLS.
"""

from __future__ import annotations


def format_cause(error: Exception) -> str:
    """What went wrong, as the end of a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
