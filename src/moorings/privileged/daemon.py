"""The root daemon: one thread, and nothing in it waits for a person, their files or a directory service.

Two sockets. On ``submit`` anybody hands in jobs, and takes back their own: each request is a process of its own, which
is killed when its time is up. On ``control`` one user, the controller, starts, asks and ends what was handed in. A
connection is one request, a JSON object up to the end of what is sent, and one answer. The kernel says who is connected
(SO_PEERCRED, unix(7)); nothing that is sent says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moorings.privileged.accounts import PersonAccount, find_account
from moorings.privileged.attempts import (
    GO,
    AttemptRecords,
    StartedProcess,
    boot_id,
    close_others,
    start_remover,
    start_supervisor,
    start_ticks,
)
from moorings.privileged.cgroups import CgroupTree, JobCgroup, parse_limits
from moorings.privileged.pam import open_session
from moorings.privileged.peers import peer_uid
from moorings.privileged.records import is_nearly_full
from moorings.privileged.refusals import Refused
from moorings.privileged.spool import JOB_BYTES_MAX, Spool, SpooledJob, check_entry, entry_uid

log = logging.getLogger("moorings.privileged")

Operation = Callable[[int, dict[str, Any]], dict[str, Any]]

REQUEST_BYTES_MAX = JOB_BYTES_MAX + (64 << 10)
PEOPLE_MAX, PEOPLE_MAX_USER = 64, 4  # requests of people at once
RECEIVE_S_MAX, PERSON_S_MAX = 2.0, 20  # for a request to arrive, and for one of a person to be served
LOOK_S = 0.05  # between two looks at a cgroup whose processes are being killed
ENTRIES_MAX = 1000  # of one question for their state
RECORDS = ("cancel", "yield")  # what a supervisor may be asked
SIGNALS = (signal.SIGTERM, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1))  # to a supervisor


@dataclass(slots=True)
class _Live:
    """An attempt that has not ended: a descriptor of its supervisor while that lives, then its code, if it is known."""

    folder: AttemptRecords
    descriptor: int | None = None
    process: StartedProcess | None = None
    code: int | None = None
    why: str = ""


class RootDaemon:
    """The daemon.

    Args:
        folder: its own, root's alone but for ``run`` of each attempt.
        cgroups: of the jobs.
        supervisor: the command of a supervisor; the attempt's folder is added.
        controller: uid and gid of who may control; what supervisors write is for that group to read.
        account_of: finds a person's account.
        open_session: PAM's part, in the process that becomes the person.
    """

    def __init__(
        self,
        folder: Path,
        cgroups: CgroupTree,
        supervisor: Sequence[str],
        controller: tuple[int, int],
        account_of: Callable[[int], PersonAccount] = find_account,
        open_session: Callable[[str], None] = open_session,
    ) -> None:
        self._jobs = folder / "jobs"
        self._jobs.mkdir(mode=0o711, exist_ok=True)
        self._spool = Spool(folder / "spool")
        self._cgroups, self._supervisor = cgroups, supervisor
        self._controller, self._account_of, self._open_session = controller, account_of, open_session
        self._selector = selectors.DefaultSelector()
        self._people: dict[int, int] = {}  # by the process that serves a request: its person
        self._live: dict[str, _Live] = {}  # by entry: of a job one attempt lives at a time
        self._removers: dict[int, AttemptRecords] = {}
        self._emptied: list[JobCgroup] = []  # not removed yet: the kernel may need a moment

    # -- serving -------------------------------------------------------------------------------------------------------

    def serve(self, submit: socket.socket, control: socket.socket, is_over: Callable[[], bool]) -> None:
        """Serve until that; jobs go on without this process."""
        self.recover()
        for listening, accept in ((submit, self._accept_person), (control, self._accept_controller)):
            listening.setblocking(False)
            self._selector.register(listening, selectors.EVENT_READ, accept)
        while not is_over():
            for key, _ in self._selector.select(LOOK_S if self._is_ending() else 1.0):
                key.data(key.fileobj)
            self._reap()
            self._end_what_is_empty()

    def _accept_person(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone, or there are no descriptors left
            connected, uid = _accept(listening)
            with connected:
                served = list(self._people.values())
                if len(served) >= PEOPLE_MAX or served.count(uid) >= PEOPLE_MAX_USER:
                    return
                pid = os.fork()
                if pid:
                    self._people[pid] = uid
                    return
                try:
                    close_others(connected.fileno())
                    signal.alarm(PERSON_S_MAX)
                    _serve(connected, uid, {"spool": self._add, "withdraw": self._withdraw}, RECEIVE_S_MAX)
                finally:
                    os._exit(0)

    def _accept_controller(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone
            connected, uid = _accept(listening)
            with connected:
                if uid in (0, self._controller[0]):
                    operations: dict[object, Operation] = {"start": self._start, "ask": self._send_request}
                    operations |= {"kill": self._kill, "status": self._status, "forget": self._forget}
                    _serve(connected, uid, operations, RECEIVE_S_MAX)

    # -- people, each in a process of its own --------------------------------------------------------------------------

    def _add(self, uid: int, request: dict[str, Any]) -> dict[str, Any]:
        job = request["job"]
        if not isinstance(job, dict):
            raise TypeError("the job is no object")
        return {"entry": self._spool.add(self._account_of(uid), job)}

    def _withdraw(self, uid: int, request: dict[str, Any]) -> dict[str, Any]:
        entry = check_entry(request["entry"])
        if entry_uid(entry) != uid:
            raise Refused("entry.unknown", f"there is no entry {entry}")  # of this person
        if (self._jobs / entry).exists():
            raise Refused("attempt.live", "it was started", "cancel its run")
        self._spool.remove(entry)
        return {"entry": entry, "state": "ABSENT"}

    # -- the controller ------------------------------------------------------------------------------------------------

    def _start(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        spooled, number, order = (
            self._spool.read(check_entry(request["entry"])),
            int(request["attempt"]),
            request["order"],
        )
        limits, newest = parse_limits(request["limits"], self._cgroups.limited), self._newest(spooled.entry)
        if not 0 <= number < 1 << 31 or not isinstance(order, dict):
            raise ValueError("attempt or order")
        if newest is not None and (newest.record("attempt") or {}).get("order", {}).get("run") != order.get("run"):
            raise Refused("entry.used", "another run was made of that entry")
        if newest is not None and newest.number >= number:
            return self._state(spooled.entry)
        if spooled.entry in self._live:
            raise Refused("attempt.live", f"attempt {self._live[spooled.entry].folder.number} has not ended")
        if is_nearly_full(self._jobs):
            log.warning("start.refused: the disk of %s is nearly full", self._jobs)
            raise Refused("disk.full", "the disk of the jobs' records is nearly full", "ask the machine's admin")
        folder = AttemptRecords(self._jobs / spooled.entry / str(number))
        ordered = {"order": order, "limits": request["limits"], "at": time.time()}
        try:
            folder.create(spooled.uid, self._controller[1], ordered)
        except OSError:
            shutil.rmtree(folder.path, ignore_errors=True)  # it was never there
            raise
        live = self._live[spooled.entry] = _Live(folder)
        cgroup = self._cgroups.job(folder.cgroup)
        cgroup.create(limits)
        given = {"job": spooled.job, "order": order, "attempt": number}
        person = partial(self._find_person, spooled)
        pid, goes = start_supervisor(self._supervisor, person, given, folder, cgroup, self._open_session)
        try:
            folder.save_process(StartedProcess(pid, start_ticks(pid), boot_id()))
            self._watch(live)
            os.write(goes, GO)
        finally:
            os.close(goes)
            if live.descriptor is None:  # it ends without having begun
                os.waitpid(pid, 0)
        return self._state(spooled.entry)

    def _find_person(self, spooled: SpooledJob) -> PersonAccount:
        account = self._account_of(spooled.uid)
        if account.name != spooled.name:  # the account was removed, and its uid given to somebody else
            raise Refused("account.refused", f"uid {spooled.uid} is no longer {spooled.name}'s")
        return account

    def _send_request(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        """Put a request into the attempt's folder, if there is one, and send the supervisor a signal."""
        live, record, number = self._of(request), request.get("record"), int(request["signal"])
        if number not in SIGNALS:
            raise ValueError("signal")
        if record is not None:
            if request["name"] not in RECORDS or not isinstance(record, dict):
                raise ValueError("name or record")
            if request["name"] != "cancel" or live.folder.record("cancel") is None:  # a first cancel's reason stays
                live.folder.save_request(request["name"], record)
        if live.descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(live.descriptor, number)
        return self._state(live.folder.entry)

    def _kill(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        live = self._of(request)
        live.why = live.why or "it was killed"
        self._cgroups.job(live.folder.cgroup).kill()
        return self._state(live.folder.entry)

    def _of(self, request: dict[str, Any]) -> _Live:
        live = self._live.get(check_entry(request["entry"]))
        if live is None or live.folder.number != int(request["attempt"]):
            raise Refused("attempt.ended", "that attempt does not live")
        return live

    def _status(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        entries = request.get("entries", list(self._live))
        if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
            raise ValueError("entries")
        states = [self._state(check_entry(each)) for each in entries]
        return {"states": states, "limits": sorted(self._cgroups.limited)}

    def _state(self, entry: str) -> dict[str, Any]:
        newest = self._newest(entry)
        if newest is None:
            return {"entry": entry, "state": "ABSENT"}
        live = self._live.get(entry)
        end = newest.record("end") if live is None else None
        runs = live is not None and live.descriptor is not None
        state = "ENDED" if end is not None else "RUNNING" if runs else "ENDING"
        seen = {"entry": entry, "attempt": newest.number, "state": state, "end": end, "folder": str(newest.path)}
        if live is not None and live.process is not None:
            seen["ageS"] = live.process.age_s()
        return seen

    def _forget(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        entry = check_entry(request["entry"])
        if entry in self._live:
            raise Refused("attempt.live", f"attempt {self._live[entry].folder.number} has not ended")
        busy = {each.entry for each in self._removers.values()}
        attempts = self._attempts(entry) if entry not in busy else []
        self._spool.remove(entry)  # first: what is not in the spool is not started again
        for folder in attempts:
            self._remove(folder)
        return {"entry": entry, "state": "ABSENT" if not attempts and entry not in busy else "ENDED"}

    # -- what lives ----------------------------------------------------------------------------------------------------

    def _attempts(self, entry: str) -> list[AttemptRecords]:
        path = self._jobs / entry
        names = os.listdir(path) if path.exists() else []  # noqa: PTH208 - names alone
        return [AttemptRecords(path / name) for name in sorted(names, key=int)]

    def _newest(self, entry: str) -> AttemptRecords | None:
        return next(reversed(self._attempts(entry)), None)

    def recover(self) -> None:
        """Find what lives since before this process; the first thing to do."""
        for entry in sorted(os.listdir(self._jobs)):  # noqa: PTH208 - names alone
            folder = self._newest(entry)
            if folder is None or folder.record("end") is not None:
                if not self._spool.has(entry):  # it was being forgotten
                    for each in self._attempts(entry):
                        self._remove(each)
                continue
            live = self._live[entry] = _Live(folder, why="its end was not seen")
            process = folder.process()
            if process is not None and process.boot != boot_id():
                live.why = "the machine was restarted"
            self._watch(live)
        lived = {live.folder.cgroup for live in self._live.values()}
        self._emptied = [self._cgroups.job(name) for name in self._cgroups.names() - lived]

    def _remove(self, folder: AttemptRecords) -> None:
        self._removers[start_remover(entry_uid(folder.entry), folder)] = folder

    def _watch(self, live: _Live) -> None:
        process = live.folder.process()
        live.process, live.descriptor = process, process.open() if process is not None else None
        if live.descriptor is not None:
            self._selector.register(live.descriptor, selectors.EVENT_READ, lambda _: self._supervisor_ended(live))

    def _supervisor_ended(self, live: _Live) -> None:
        assert live.descriptor is not None
        self._selector.unregister(live.descriptor)
        with contextlib.suppress(ChildProcessError):  # it was started by the daemon before this one
            # Nothing comes while another process traces it: then its code stays unknown.
            found = os.waitid(os.P_PIDFD, live.descriptor, os.WEXITED | os.WNOHANG)
            if found is not None:
                live.code = found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)
        os.close(live.descriptor)
        live.descriptor = None

    def _is_ending(self) -> bool:
        return bool(self._removers or self._people) or any(live.descriptor is None for live in self._live.values())

    def _end_what_is_empty(self) -> None:
        """Kill what a supervisor has left, and record the end once nothing is left."""
        for entry, live in [each for each in self._live.items() if each[1].descriptor is None]:
            cgroup = self._cgroups.job(live.folder.cgroup)
            if not cgroup.kill():
                continue
            try:
                refused = live.folder.record("refused")
                if refused is None and not live.folder.begun.exists():
                    live.folder.remove_records()  # nothing of it ever ran: it can be started again
                else:
                    why = (refused or {}).get("why", live.why if live.code is None else "")
                    live.folder.save_end(live.code, why, cgroup.oom_kills())
            except OSError:
                log.exception("end.unsaved", extra={"entry": entry})
                continue
            self._emptied.append(cgroup)
            del self._live[entry]
        self._emptied = [each for each in self._emptied if not each.remove()]

    def _reap(self) -> None:
        for pid in (*self._people, *self._removers):
            done, _ = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            self._people.pop(pid, None)
            folder = self._removers.pop(pid, None)
            if folder is not None:
                with contextlib.suppress(OSError):  # it can be forgotten again
                    folder.remove_records()
                    folder.path.parent.rmdir()


def _accept(listening: socket.socket) -> tuple[socket.socket, int]:
    """A connection, and whose it is."""
    connected, _ = listening.accept()
    return connected, peer_uid(connected)


def _serve(connected: socket.socket, uid: int, operations: Mapping[object, Operation], within_s: float) -> None:
    """Receive one request, within that time, and answer it.

    Raises:
        OSError: the other side is gone, or too slow.
    """
    received, until_s = bytearray(), time.monotonic() + within_s
    connected.settimeout(within_s)
    while part := connected.recv(1 << 16):  # without room for descriptors: what comes with it is closed
        received += part
        if len(received) > REQUEST_BYTES_MAX:
            break
        connected.settimeout(max(until_s - time.monotonic(), 0.01))
    connected.sendall(json.dumps(_answer(bytes(received), uid, operations)).encode())


def _answer(received: bytes, uid: int, operations: Mapping[object, Operation]) -> dict[str, Any]:
    try:
        request = dict(json.loads(received))
        return operations[request["op"]](uid, request)
    except Refused as refused:
        return refused.answer()
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        return Refused("request.invalid", f"that is no request: {error!r}"[:300]).answer()
    except OSError as error:
        log.exception("request.failed")
        return Refused("daemon.failed", f"{error.strerror or error}", "the daemon's log has the rest").answer()
