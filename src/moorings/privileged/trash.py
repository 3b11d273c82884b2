"""What forgotten attempts have left: emptied by a process that is the person, one at a time.

A person can leave folders that nobody may read, trees of any depth and files of their subordinate users, and can stop a
process that is theirs. So each remover has its time, what it cannot remove stays, and no question sees it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

from moorings.privileged.accounts import PersonAccount
from moorings.privileged.attempts import AttemptRecords, become, close_others
from moorings.privileged.peers import end_after
from moorings.privileged.spool import entry_uid

log = logging.getLogger("moorings.privileged")
REMOVE_S_MAX = 60
KILL_WAIT_S = 5  # a file system of the person's own can keep a process that was killed
_NO_GROUP = 65534
_LIMITS = {
    resource.RLIMIT_CPU: REMOVE_S_MAX,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_DATA: 1 << 30,
    resource.RLIMIT_CORE: 0,
}


class Trash:
    """The attempts to remove; the folder is root's alone, so nobody adds anything below it by its path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._stuck: set[str] = set()  # until the next daemon
        self._name, self._pid, self._until_s = "", 0, 0.0
        self._hanging: list[int] = []

    @property
    def is_working(self) -> bool:
        """Whether something is being removed."""
        return self._pid != 0

    def add(self, attempt: AttemptRecords) -> None:
        """Move an attempt here.

        Raises:
            OSError: that failed.
        """
        attempt.path.rename(self._folder / f"{attempt.cgroup}.{secrets.token_hex(4)}")

    def turn(self) -> None:
        """See how far the remover is, and start the next one; a crash of the daemon loses none."""
        self._hanging = [pid for pid in self._hanging if os.waitpid(pid, os.WNOHANG)[0] == 0]
        if self._pid:
            if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > self._until_s:
                    os.kill(self._pid, signal.SIGKILL)
                if time.monotonic() > self._until_s + KILL_WAIT_S:
                    log.warning("trash.stuck: %s: its remover hangs in the kernel", self._name)
                    self._stuck.add(self._name)
                    self._hanging, self._pid = [*self._hanging, self._pid], 0
                return
            self._pid = 0
            try:
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / self._name / "run").rmdir()
                shutil.rmtree(self._folder / self._name)
            except OSError as error:
                self._stuck.add(self._name)
                log.warning("trash.stuck: %s: %s", self._name, error)
        self._name = next((name for name in os.listdir(self._folder) if name not in self._stuck), "")  # noqa: PTH208
        if self._name:
            self._until_s = time.monotonic() + REMOVE_S_MAX
            try:
                self._pid = os.fork()
            except OSError:  # no process is left for it: at the next turn
                return
            if self._pid == 0:
                try:
                    _remove(self._folder / self._name / "run", entry_uid(self._name.partition(".")[0]))
                except Exception as error:
                    sys.stderr.write(f"{self._name}: {error!r}\n")
                finally:
                    os._exit(0)  # nothing of ours may run on in this process


def _remove(folder: Path, uid: int) -> None:
    """Empty a person's folder as the person (the account may be gone), in a process that was forked for it."""
    end_after(REMOVE_S_MAX)
    close_others()
    for what, most in _LIMITS.items():
        resource.setrlimit(what, (most, most))
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    become(PersonAccount("", uid, _NO_GROUP, "/", ""), [])
    os.fchmod(top, 0o700)
    os.fchdir(top)
    inside: list[str] = []  # names on the way to the working folder: a whole path may be too long for the kernel
    while True:
        with os.scandir() as entries:
            for each in entries:
                if each.is_dir(follow_symlinks=False):
                    with contextlib.suppress(PermissionError):  # another user's: it may be open, or empty
                        os.chmod(each.name, 0o700)  # noqa: PTH101 - relative to the working folder
                    os.chdir(each.name)
                    inside.append(each.name)
                    break
                os.unlink(each.name)  # noqa: PTH108 - as above
            else:
                if not inside:
                    return
                os.chdir("..")
                os.rmdir(inside.pop())  # noqa: PTH106 - as above
