"""PAM's account check and limits for a process that is about to become a person (pam(3), limits.conf(5)).

The service is a file of our own, without pam_systemd: that would move the job out of its cgroup. An admin's file in
/etc/pam.d comes first. Without either PAM would take its service "other", which may allow everything: so there is one.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

SERVICE = "moorings"
SYSTEM_SERVICES = Path("/etc/pam.d")
OWN_SERVICES = Path(__file__).parent / "pam.d"
_SUCCESS, _CONVERSATION_ERROR, _SILENT = 0, 19, 0x8000

_Conversation = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _PamConv(ctypes.Structure):
    _fields_ = [("conv", _Conversation), ("appdata_ptr", ctypes.c_void_p)]


def find_services() -> Path:
    """The folder of the service's file."""
    return SYSTEM_SERVICES if (SYSTEM_SERVICES / SERVICE).exists() else OWN_SERVICES


def open_session(name: str, services: Path | None = None) -> None:
    """Check an account and set its limits on the calling process, which keeps them.

    Raises:
        OSError: there is no PAM, or it refuses.
    """
    pam = ctypes.CDLL("libpam.so.0")
    handle = ctypes.c_void_p()
    _keep.append(_PamConv(_Conversation(lambda *_: _CONVERSATION_ERROR), None))  # nobody is there to be asked
    pam.pam_strerror.restype = ctypes.c_char_p

    def check(what: str, status: int) -> None:
        if status != _SUCCESS:
            raise OSError(f"PAM, {what}: {pam.pam_strerror(handle, status).decode(errors='replace')}")

    conversation, folder = ctypes.byref(_keep[-1]), str(services or find_services()).encode()
    start = pam.pam_start_confdir  # Linux-PAM 1.4
    check("start", start(SERVICE.encode(), name.encode(), conversation, folder, ctypes.byref(handle)))
    check("account", pam.pam_acct_mgmt(handle, _SILENT))
    check("session", pam.pam_open_session(handle, _SILENT))


_keep: list[_PamConv] = []  # PAM calls it later
