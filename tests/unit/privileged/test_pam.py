"""PAM checks an account and sets its limits, by a service that lets nobody log in."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.privileged.pam import OWN_SERVICES
from tests.waiting import patient

PROGRAM = """
import resource, sys
from pathlib import Path
from moorings.privileged.pam import open_session
open_session(sys.argv[1], Path(sys.argv[2]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def has_pam() -> bool:
    try:
        return bool(ctypes.CDLL("libpam.so.0").pam_start_confdir)
    except (OSError, AttributeError):
        return False


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root sets others' limits"),
    pytest.mark.skipif(not has_pam(), reason="there is no Linux-PAM 1.4 here"),
]


def opened(name: str, services: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, name, str(services)]
    return subprocess.run(words, capture_output=True, text=True, timeout=patient(30), check=False)


def test_our_own_service_sets_limits(tmp_path: Path) -> None:
    (tmp_path / "limits").write_text("* hard nofile 321\n* soft nofile 123\n")
    service = (OWN_SERVICES / "moorings").read_text()
    assert "pam_limits.so\n" in service
    (tmp_path / "moorings").write_text(service.replace("pam_limits.so\n", f"pam_limits.so conf={tmp_path}/limits\n"))
    assert opened("nobody", tmp_path).stdout == "123 321\n"


def test_an_account_that_pam_refuses_gets_no_job(tmp_path: Path) -> None:
    (tmp_path / "moorings").write_text("account required pam_deny.so\nsession required pam_permit.so\n")
    done = opened("nobody", tmp_path)
    assert (done.stdout, "PAM, account:" in done.stderr) == ("", True)
