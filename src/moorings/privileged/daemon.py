"""The root daemon: one thread, and nothing in it waits for a person, their files or a directory service.

Two sockets. On ``submit`` anybody hands in jobs, each in a process of its own that is killed when its time is up, and
takes back their own. On ``control`` one user, the controller, starts, asks and ends what was handed in. The kernel says
who is connected (SO_PEERCRED, unix(7)); nothing that is sent says so.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moorings.privileged import attempts
from moorings.privileged.accounts import PersonAccount, find_account
from moorings.privileged.attempts import AttemptRecords, StartedProcess, boot_id
from moorings.privileged.cgroups import CgroupTree, JobCgroup, parse_limits
from moorings.privileged.connections import BUSY, Operation, PeerConnection, PeerListener, answer_request
from moorings.privileged.devices import ALL_DEVICES, PATTERNS, device_access
from moorings.privileged.pam import open_session
from moorings.privileged.peers import end_after
from moorings.privileged.records import is_nearly_full
from moorings.privileged.refusals import Refused
from moorings.privileged.spool import Spool, SpooledJob, check_entry, entry_uid
from moorings.privileged.trash import Trash

log = logging.getLogger("moorings.privileged")

PERSON_S_MAX = 20  # for a request of a person to be served
ANSWER_S_MAX = 2.0  # for the controller to take an answer
WITHDRAWAL_BYTES_MAX = 1024
LOOK_S = 0.05  # between two looks at a cgroup whose processes are being killed
ENTRIES_MAX = 1000  # of one question, or one answer
STOP_S_MAX = 90.0  # for jobs that are all stopped, as systemd gives them on v2
STOPPED = "all jobs of the machine were stopped"
RECORDS = ("cancel", "yield")  # what a supervisor may be asked
SIGNALS = (signal.SIGTERM, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1))  # to a supervisor


@dataclass(slots=True)
class _Live:
    """An attempt that has not ended.

    Attributes:
        descriptor: of its supervisor's process; None: it was gone when it was looked for.
        runs: the supervisor does.
        code: the supervisor's, if it is known.
        why: the end is not known from the code.
        is_stopped: it ends because all jobs are stopped: with systemd's scope, or the machine.
        is_logged: that its end could not be saved.
    """

    folder: AttemptRecords
    process: StartedProcess | None = None
    descriptor: int | None = None
    runs: bool = False
    code: int | None = None
    why: str = ""
    is_stopped: bool = False
    is_logged: bool = False


class RootDaemon:
    """The daemon.

    Args:
        folder: its own, root's alone but for ``run`` of each attempt.
        cgroups: of the jobs.
        supervisor: the command of a supervisor; the attempt's folder is added.
        controller: uid and gid of who may control; what supervisors write is for that group to read.
        account_of: finds a person's account.
        open_session: PAM's part, in the process that becomes the person.
        patterns: of the device files that belong to jobs.
    """

    def __init__(
        self,
        folder: Path,
        cgroups: CgroupTree,
        supervisor: Sequence[str],
        controller: tuple[int, int],
        account_of: Callable[[int], PersonAccount] = find_account,
        open_session: Callable[[str], None] = open_session,
        patterns: Sequence[str] = PATTERNS,
    ) -> None:
        self._jobs = folder / "jobs"
        self._jobs.mkdir(mode=0o711, exist_ok=True)
        self._spool, self._trash = Spool(folder / "spool"), Trash(folder / "trash")
        self._cgroups, self._supervisor, self._patterns = cgroups, supervisor, patterns
        self._controller, self._account_of, self._open_session = controller, account_of, open_session
        self._selector = selectors.DefaultSelector()
        self._people: dict[int, int] = {}  # by the process that serves a request: its person
        self._live: dict[str, _Live] = {}  # by entry: of a job one attempt lives at a time
        self._traced: list[int] = []  # of supervisors that have ended, perhaps without giving their codes
        self._emptied: list[JobCgroup] = []  # not removed yet: the kernel may need a moment
        self._is_full = False
        self._kill_at_s = 0.0  # of what is left; 0: the jobs are not being stopped
        self.operations_of_person: dict[object, Operation] = {"spool": self._add, "withdraw": self._withdraw}
        self.operations_of_controller: dict[object, Operation] = {
            "start": self._start,
            "ask": self._send_request,
            "kill": self._kill,
            "status": self._status,
            "unstarted": self._list_unstarted,
            "forget": self._forget,
        }

    # -- serving -------------------------------------------------------------------------------------------------------

    def serve(self, submit: socket.socket, control: socket.socket, is_over: Callable[[], bool]) -> None:
        """Serve until that, or until all jobs were stopped; else jobs go on without this process."""
        self.recover()
        owners = {0, self._controller[0]}
        listeners = (
            PeerListener(submit, self._selector, self._serve_person, busy=self._people.values),
            PeerListener(control, self._selector, self._serve_controller, owners),
        )
        while not self._is_over(asked=is_over()):
            is_receiving = any(listener.is_receiving for listener in listeners)
            is_ending = self._people or self._trash.is_working or not all(live.runs for live in self._live.values())
            for key, _ in self._selector.select(LOOK_S if is_receiving or is_ending else 1.0):
                if self._selector.get_map().get(key.fd) is key:  # nothing before it in this turn has closed it
                    key.data()
            for listener in listeners:
                listener.close_late()
            self._trash.turn()
            self._reap()
            self._kill_late()
            self._end_what_is_empty()
        if not self._cgroups.is_there():  # so nothing is left in it
            for live in self._live.values():
                live.runs = False
            self._end_what_is_empty()

    def _is_over(self, *, asked: bool) -> bool:
        """While all jobs are stopped, as at a shutdown, this process stays to record their ends."""
        if not self._cgroups.is_there():
            return True
        return not self._live if self._cgroups.is_stopping() else asked

    def _kill_late(self) -> None:
        """Kill what is left of a scope that was stopped: on v1 systemd does not wait for one that it delegates."""
        if not self._cgroups.is_stopping():
            return
        self._kill_at_s = self._kill_at_s or time.monotonic() + STOP_S_MAX
        if time.monotonic() > self._kill_at_s:
            for live in self._live.values():
                self._cgroups.job(live.folder.cgroup).kill()

    def _serve_person(self, connection: PeerConnection) -> None:
        if _is_withdrawal(connection.received):  # here, so that it is before or after a start
            connection.answer(answer_request(connection.received, connection.uid, self.operations_of_person))
            return
        with connection.socket:
            daemon = os.getpid()
            try:
                pid = os.fork()
            except OSError:  # people have taken all process ids, or the memory
                connection.answer(BUSY)
                return
            if pid:
                self._people[pid] = connection.uid
                return
            try:
                attempts.end_with(daemon)  # the next daemon removes drafts: nothing may still write one then
                end_after(PERSON_S_MAX)
                attempts.close_others(connection.socket.fileno())
                answer = answer_request(connection.received, connection.uid, {"spool": self._add})
                connection.answer(answer, PERSON_S_MAX)
            finally:
                os._exit(0)

    def _serve_controller(self, connection: PeerConnection) -> None:
        answer = answer_request(connection.received, connection.uid, self.operations_of_controller)
        connection.answer(answer, ANSWER_S_MAX)

    # -- people --------------------------------------------------------------------------------------------------------

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
        spooled = self._spool.read(check_entry(request["entry"]))
        entry, number, order = spooled.entry, int(request["attempt"]), request["order"]
        limits, newest = parse_limits(request["limits"], self._cgroups.limited), self._newest(entry)
        if not 0 <= number < 1 << 31 or not isinstance(order, dict):
            raise ValueError("attempt or order")
        if newest is not None and (newest.record("attempt") or {}).get("order", {}).get("run") != order.get("run"):
            raise Refused("entry.used", "another run was made of that entry")
        if newest is not None and newest.number >= number:
            return self._state(entry)
        if entry in self._live:
            raise Refused("attempt.live", f"attempt {self._live[entry].folder.number} has not ended")
        access = device_access(self._patterns, limits.devices)
        if self._cgroups.is_stopping():
            raise Refused("daemon.stopping", STOPPED, "the next daemon starts it")
        self._check_disk()
        folder = AttemptRecords(self._jobs / entry / str(number))
        try:
            folder.create(
                spooled.uid, self._controller[1], {"order": order, "limits": request["limits"], "at": time.time()}
            )
        except OSError:
            shutil.rmtree(folder.path, ignore_errors=True)  # it was never there
            raise
        live = self._live[entry] = _Live(folder)
        cgroup = self._cgroups.job(folder.cgroup)
        cgroup.create(limits, access if self._cgroups.closes_devices else ALL_DEVICES)
        person = partial(self._find_person, spooled)
        begin = partial(attempts.begin_supervisor, self._supervisor, person, self._open_session, folder, cgroup)
        given = {"job": spooled.job, "order": order, "attempt": number}
        pid, goes = attempts.start_supervisor(begin, given)
        try:
            folder.save_process(StartedProcess(pid, attempts.start_ticks(pid), boot_id()))
            self._watch(live)
            os.write(goes, attempts.GO)
        finally:
            os.close(goes)
            if live.descriptor is None:  # it ends without having begun
                os.waitpid(pid, 0)
        return self._state(entry)

    def _check_disk(self) -> None:
        was_full, self._is_full = self._is_full, is_nearly_full(self._jobs)
        if self._is_full:
            if not was_full:
                log.warning("disk.full: nothing is started; the disk of %s is nearly full", self._jobs)
            raise Refused("disk.full", "the disk of the jobs' records is nearly full", "ask the machine's admin")

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
        if live.runs and live.descriptor is not None:
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
        state = "ENDED" if end is not None else "RUNNING" if live is not None and live.runs else "ENDING"
        seen = {"entry": entry, "attempt": newest.number, "state": state, "end": end, "folder": str(newest.path)}
        if live is not None and live.process is not None:
            seen["ageS"] = live.process.age_s()
        return seen

    def _list_unstarted(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        """Entries that were never started, handed in so many seconds ago or more; perhaps not all."""
        found = (each for each in self._spool.older_than(float(request["ageS"])) if not (self._jobs / each).exists())
        return {"entries": list(itertools.islice(found, ENTRIES_MAX))}

    def _forget(self, _uid: int, request: dict[str, Any]) -> dict[str, Any]:
        entry = check_entry(request["entry"])
        if entry in self._live:
            raise Refused("attempt.live", f"attempt {self._live[entry].folder.number} has not ended")
        self._spool.remove(entry)  # first: what is not in the spool is not started again
        self._remove(entry)
        return {"entry": entry, "state": "ABSENT"}

    # -- what lives ----------------------------------------------------------------------------------------------------

    def _attempts(self, entry: str) -> list[AttemptRecords]:
        path = self._jobs / entry
        names = os.listdir(path) if path.exists() else []  # noqa: PTH208 - names alone
        return [AttemptRecords(path / name) for name in sorted(names, key=int)]

    def _newest(self, entry: str) -> AttemptRecords | None:
        return next(reversed(self._attempts(entry)), None)

    def recover(self) -> None:
        """Find what lives since before this process; the first thing to do."""
        self._spool.remove_drafts()
        for entry in sorted(os.listdir(self._jobs)):  # noqa: PTH208 - names alone
            folder = self._newest(entry)
            if folder is None or folder.record("end") is not None:
                if not self._spool.has(entry):  # it was being forgotten
                    self._remove(entry)
                continue
            live = self._live[entry] = _Live(folder, why="its end was not seen")
            process = folder.process()
            live.is_stopped = not self._cgroups.job(folder.cgroup).is_there()
            if process is not None and process.boot != boot_id():
                live.why = "the machine was restarted"
            elif live.is_stopped:
                live.why = STOPPED
            self._watch(live)
        lived = {live.folder.cgroup for live in self._live.values()}
        self._emptied = [self._cgroups.job(name) for name in self._cgroups.names() - lived]

    def _remove(self, entry: str) -> None:
        for attempt in self._attempts(entry):
            self._trash.add(attempt)
        with contextlib.suppress(FileNotFoundError):
            (self._jobs / entry).rmdir()

    def _watch(self, live: _Live) -> None:
        live.process = live.folder.process()
        live.descriptor = live.process.open() if live.process is not None else None
        if live.descriptor is not None:
            live.runs = True
            self._selector.register(live.descriptor, selectors.EVENT_READ, lambda: self._supervisor_ended(live))

    def _supervisor_ended(self, live: _Live) -> None:
        assert live.descriptor is not None
        self._selector.unregister(live.descriptor)
        live.runs = False

    def _end_what_is_empty(self) -> None:
        """Kill what a supervisor has left, and record the end once nothing is left."""
        for entry, live in [each for each in self._live.items() if not each[1].runs]:
            cgroup = self._cgroups.job(live.folder.cgroup)
            if self._cgroups.is_stopping() and not live.is_stopped:
                live.is_stopped, live.why = True, STOPPED
            if not cgroup.kill():
                continue
            if live.descriptor is not None and live.code is None:  # now: a process of the job that traced it is gone
                with contextlib.suppress(ChildProcessError):  # it was started by the daemon before this one
                    live.code = attempts.take_exit_code(live.descriptor)
            try:
                refused, oom_kills = live.folder.record("refused"), cgroup.oom_kills()
                if refused is None and not oom_kills and not live.folder.begun.exists():
                    self._trash.add(live.folder)  # nothing of it ever ran: it can be started again
                else:
                    is_stopped = live.is_stopped and refused is None and live.folder.record("cancel") is None
                    why = live.why or "its exit code was not seen" if live.code is None or is_stopped else ""
                    why = (refused or {}).get("why", why)
                    live.folder.save_end(live.code, why, oom_kills, is_stopped=is_stopped)
            except OSError:
                if not live.is_logged:
                    log.exception("end.unsaved: %s", entry)
                live.is_logged = True
                continue
            self._traced += [live.descriptor] if live.descriptor is not None else []
            self._emptied.append(cgroup)
            del self._live[entry]
        self._emptied = [each for each in self._emptied if not each.remove()]

    def _reap(self) -> None:
        for pid in list(self._people):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._people[pid]
        for descriptor in list(self._traced):
            with contextlib.suppress(ChildProcessError):
                if attempts.take_exit_code(descriptor) is None:
                    continue
            os.close(descriptor)
            self._traced.remove(descriptor)


def _is_withdrawal(received: bytearray) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(received) if len(received) <= WITHDRAWAL_BYTES_MAX else None
        return isinstance(found, dict) and found.get("op") == "withdraw"
    return False
