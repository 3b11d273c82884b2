"""Munge credentials, which authenticate the agent and the nodes to each other and show that a message is fresh.

``libmunge.so.2`` is present wherever Slurm's ``auth/munge`` is. The command ``munge`` was refused: it costs two
processes a message, and a site need not have it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from moorings.core.model.errors import MooringsError

LIBRARY = "libmunge.so.2"
CREDENTIAL_BYTES_MAX = 1 << 20  # munged refuses a larger message

# munge.h: enum munge_opt and enum munge_err; stable in its ABI
_OPTION_SOCKET = 8
_OPTION_UID_RESTRICTION = 9
_SUCCESS = 0
_UNAVAILABLE = frozenset({1, 5, 6, 7})  # SNAFU, NO_MEMORY, SOCKET, TIMEOUT: munged or machine, not credential
_VOID = ctypes.c_void_p
_INT = ctypes.c_int
_UID = ctypes.c_uint32


@dataclass(frozen=True, slots=True)
class Credential:
    """The content of a credential.

    Attributes:
        payload: the message.
        uid: the effective user id of its maker, as seen by the munged of that machine.
    """

    payload: bytes
    uid: int


@dataclass(frozen=True, slots=True)
class Munge:
    """Encodes and decodes credentials, also from threads. Both calls block.

    They take milliseconds, and seconds while munged is down.

    Attributes:
        socket: munged's socket; empty: libmunge's own default.
        library: name for the loader; it searches ``LD_LIBRARY_PATH`` for a name without a folder.
    """

    socket: str = ""
    library: str = LIBRARY

    def encode(self, payload: bytes, *, for_uid: int | None = None) -> str:
        """Return a credential of ``payload``: one line of ASCII.

        Args:
            payload: the message.
            for_uid: the only user allowed to decode it; None: anyone with the site's key.

        Raises:
            MooringsError: ``munge.unavailable``; ``munge.invalid``: the payload is too large.
        """
        library = _load(self.library)
        context = self._context(library)
        text = _VOID()
        try:
            if for_uid is not None:
                library.munge_ctx_set(context, _INT(_OPTION_UID_RESTRICTION), _UID(for_uid))
            code = library.munge_encode(ctypes.byref(text), context, payload, len(payload))
            if code != _SUCCESS or not text.value:
                raise _failure(library, code)
            return ctypes.string_at(text.value).decode("ascii")
        finally:
            _free(text)
            library.munge_ctx_destroy(context)

    def decode(self, credential: str) -> Credential:
        """Return the content of ``credential``.

        Raises:
            MooringsError: ``munge.unavailable``; ``munge.invalid``: not a credential of this site, for another user,
                expired, or decoded before.
        """
        if "\0" in credential or not credential.isascii() or len(credential) > CREDENTIAL_BYTES_MAX:
            raise _invalid("it is no credential")
        library = _load(self.library)
        context = self._context(library)
        payload, length, uid, gid = _VOID(), _INT(), _UID(), _UID()
        try:
            code = library.munge_decode(
                credential.encode("ascii"),
                context,
                ctypes.byref(payload),
                ctypes.byref(length),
                ctypes.byref(uid),
                ctypes.byref(gid),
            )
            if code != _SUCCESS:  # munge also decodes an expired or replayed one: it is invalid here
                raise _failure(library, code)
            text = ctypes.string_at(payload.value, length.value) if payload.value else b""
            return Credential(text, uid.value)
        finally:
            _free(payload)
            library.munge_ctx_destroy(context)

    def _context(self, library: ctypes.CDLL) -> int:
        context = library.munge_ctx_create()
        if not context:
            raise _unavailable("no memory")
        if self.socket:
            library.munge_ctx_set(_VOID(context), _INT(_OPTION_SOCKET), self.socket.encode())
        return int(context)


@cache
def _load(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise _unavailable(f"{name} cannot be loaded: {error}") from error
    library.munge_ctx_create.restype = _VOID
    library.munge_ctx_create.argtypes = []
    library.munge_ctx_destroy.restype = None
    library.munge_ctx_destroy.argtypes = [_VOID]
    library.munge_ctx_set.argtypes = [_VOID, _INT]  # the rest is variadic
    library.munge_encode.argtypes = [_VOID, _VOID, ctypes.c_char_p, _INT]
    library.munge_decode.argtypes = [ctypes.c_char_p, _VOID, _VOID, _VOID, _VOID, _VOID]
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_strerror.argtypes = [_INT]
    return library


@cache
def _libc_free() -> ctypes._FuncPointer:
    function = ctypes.CDLL(None).free
    function.argtypes = [_VOID]
    function.restype = None
    return function


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        _libc_free()(pointer)


def _failure(library: ctypes.CDLL, code: int) -> MooringsError:
    words = (library.munge_strerror(code) or b"").decode("ascii", "replace")
    return _unavailable(words) if code in _UNAVAILABLE else _invalid(words)


def _unavailable(words: str) -> MooringsError:
    return MooringsError(
        "munge.unavailable",
        f"munge does not answer: {words}",
        hint="is munged running, and does it have the site's key? `munge -n | unmunge` shows it",
        retryable=True,
    )


def _invalid(words: str) -> MooringsError:
    return MooringsError(
        "munge.invalid",
        f"the munge credential is not valid: {words}",
        hint="expired and rewound ones come from clocks that differ; invalid ones from another key",
    )
