"""Reports what an attempt's folder shows to the controller: from a node, or by its person's ``moor``.

The controller sees neither that folder nor the node. A report carries the small files of ``MIRRORED`` that have
changed, and what is new of the tasks' output. All that is sent lies in the folder, so nothing is lost while the
controller is away: the next report has it. Only the standard library: this runs where Moorings is not installed
(``node_program``).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from moorings.engines.processes import boot_id

SETTINGS_FILE = "report.json"
MIRRORED = re.compile(
    r"claimed|began\.[0-9]{1,9}|done|tasks/[0-9]{1,6}(\.why)?|checkpoints\.json|unseen|job\.log|step\.log"
)
OUTPUT_BYTES_MAX = 256 << 20  # of all tasks that the controller keeps; the whole lies in the person's folder
TASK_OUTPUT_BYTES_MIN = 64 << 10
OUTPUT_PART_BYTES_MAX = 256 << 10  # in one report
FILES_MAX = 500  # in one report
FILE_BYTES_MAX = 64 << 10
TAIL_BYTES = 4000  # of a log about the script or srun
CALL_S = 10.0
LOOK_S, LOOK_S_MAX = 1.0, 30.0  # between two looks; while the controller is away
LAST_S = 8.0  # for the last reports
_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
ANSWER_BYTES_MAX = 1 << 20
_FINAL = frozenset({400, 401, 403, 404, 409, 413, 422})  # asking again changes nothing


class ReportRefusedError(Exception):
    """The controller takes no report of this attempt any more."""


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Where to report, of ``report.json`` in the attempt's folder (0600).

    Attributes:
        server: the controller's address, ``http`` or ``https``.
        token: of the run.
        run: its id.
        attempt: its attempt.
        ca_file: PEM file of the authority of the server's certificate; empty: the system's.
        cert_file: PEM file of an own certificate; empty: none.
        key_file: of its key.
        boot_id: of the machine that submitted: only there does an address of this machine mean its controller.
    """

    server: str
    token: str = field(repr=False)
    run: str
    attempt: int
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    boot_id: str = ""

    @classmethod
    def read(cls, folder: Path) -> ReportSettings:
        """Return those of an attempt.

        Raises:
            OSError, ValueError, TypeError: there are none that can be read.
        """
        return cls(**json.loads((folder / SETTINGS_FILE).read_text()))


class FolderReport:
    """What is new in an attempt's folder since the last report that arrived.

    Args:
        folder: of the attempt.
        is_restart: the job was started again, so files of its first start are gone.
    """

    def __init__(self, folder: Path, *, is_restart: bool = False) -> None:
        self._folder = folder
        self._is_restart = is_restart
        self._sent: dict[str, tuple[int, int]] = {}
        self._known: Mapping[str, int] | None = None  # bytes of output by task, as the controller has them

    def build(self, attempt: int) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
        """Return a report's body, and the files in it with their times and sizes."""
        new = ((name, stamp) for name, stamp in self._files() if self._sent.get(name) != stamp)
        found = dict(itertools.islice(new, FILES_MAX))
        output = list(self._output())
        if (
            output or self._known is None or len(found) == FILES_MAX
        ):  # the record of the end comes when all output has arrived
            found.pop("done", None)
        files = [file for name in found if (file := self._file(name, found[name][0])) is not None]
        body: dict[str, Any] = {"attempt": attempt, "files": files, "output": output}
        if self._known is None and self._is_restart:
            body["present"] = [name for name, _ in self._files()]
        return body, found

    def is_current(self) -> bool:
        """Whether the last report had all."""
        has_files = all(self._sent.get(name) == stamp for name, stamp in self._files())
        return self._known is not None and has_files and next(iter(self._output()), None) is None

    def record(self, sent: Mapping[str, tuple[int, int]], answer: Mapping[str, Any]) -> None:
        """Take note that a report has arrived."""
        self._sent.update(sent)
        self._known = {str(task): int(size) for task, size in dict(answer.get("outputBytes", {})).items()}

    def _files(self) -> Iterable[tuple[str, tuple[int, int]]]:
        for folder, prefix in ((self._folder, ""), (self._folder / "tasks", "tasks/")):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    name = f"{prefix}{entry.name}"
                    if MIRRORED.fullmatch(name) and entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        yield name, (state.st_mtime_ns, state.st_size)

    def _file(self, name: str, modified_ns: int) -> dict[str, str] | None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if name.endswith(".log"):
                    os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - TAIL_BYTES), os.SEEK_SET)
                text = os.read(descriptor, FILE_BYTES_MAX).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
            return {"name": name, "text": text, "modifiedAt": _time_text(modified_ns)}
        return None

    def _output(self) -> Iterable[dict[str, Any]]:
        left = OUTPUT_PART_BYTES_MAX
        for task, known in (self._known or {}).items():
            if left <= 0 or known >= output_bytes_max(len(self._known or {})):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(
                    self._folder / "logs" / f"{int(task)}.log",
                    os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
                )
                try:
                    data = os.pread(descriptor, left, known) if os.fstat(descriptor).st_size > known else b""
                finally:
                    os.close(descriptor)
                if data:
                    left -= len(data)
                    yield {"task": int(task), "offset": known, "data": base64.b64encode(data).decode()}


def output_bytes_max(tasks: int) -> int:
    """Return how much output of each of so many tasks the controller keeps."""
    return max(OUTPUT_BYTES_MAX // max(tasks, 1), TASK_OUTPUT_BYTES_MIN)


def send_report(settings: ReportSettings, body: Mapping[str, Any], *, within_s: float = CALL_S) -> dict[str, Any]:
    """Send a report; returns the controller's answer.

    Raises:
        ReportRefusedError: it will never be taken.
        OSError: the controller cannot be reached, or cannot take it now.
    """
    parts = urlsplit(settings.server)
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
        connection = http.client.HTTPSConnection(host, port or 443, timeout=within_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port or 80, timeout=within_s)
    headers = {"Authorization": f"Bearer {settings.token}", "Content-Type": "application/json"}
    try:
        with contextlib.closing(connection):
            connection.request("POST", f"/v1/runs/{quote(settings.run)}/report", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_BYTES_MAX)
        found = json.loads(text) if text else {}
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the answer of {settings.server} cannot be read: {error!r}") from error
    if answer.status in _FINAL:
        raise ReportRefusedError(f"{found.get('code', answer.status)}: {found.get('detail', '')}")
    if answer.status != 200:
        raise OSError(f"{settings.server} answers with {answer.status}")
    return dict(found)


def report_until_current(settings: ReportSettings, report: FolderReport, within_s: float) -> bool:
    """Send what is new until the controller has all, at most for so long; return whether it has.

    Raises:
        ReportRefusedError, OSError: as ``send_report``.
    """
    give_up = time.monotonic() + within_s
    while (left_s := give_up - time.monotonic()) > 0:
        body, sent = report.build(settings.attempt)
        report.record(sent, send_report(settings, body, within_s=min(CALL_S, max(left_s, 0.1))))
        if report.is_current():
            return True
    return False


def is_of_another_machine(settings: ReportSettings) -> bool:
    """Whether the address is a loopback one, and this is not the machine that submitted: anybody may listen there."""
    host = urlsplit(settings.server).hostname or ""
    if host != "localhost" and not host.startswith("127.") and host != "::1":
        return False
    return settings.boot_id != boot_id()


def report_until_ended(folder: Path, start: int) -> None:
    """Report what changes in an attempt's folder until WINCH comes or the parent is gone, and then what is left."""
    parent = os.getppid()
    # Slurm sends TERM to all of a batch step while the tasks may still write.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH, *_OTHERS})
    settings, report = ReportSettings.read(folder), FolderReport(folder, is_restart=start > 0)
    if is_of_another_machine(settings):
        sys.stderr.write(f"moorings: no reports: {settings.server} is an address of the machine that submitted\n")
        return
    pause_s = LOOK_S
    while os.getppid() == parent and signal.sigtimedwait({signal.SIGWINCH}, pause_s) is None:
        try:
            if not report.is_current():
                report_until_current(settings, report, CALL_S)
            pause_s = LOOK_S
        except ReportRefusedError as error:
            sys.stderr.write(f"moorings: no more reports: {error}\n")
            return
        except OSError as error:
            sys.stderr.write(f"moorings: {error}\n")
            pause_s = min(pause_s * 2, LOOK_S_MAX)
    with contextlib.suppress(OSError, ReportRefusedError):
        report_until_current(settings, report, LAST_S)


def _time_text(modified_ns: int) -> str:
    """RFC 3339 in UTC, to the microsecond: the API's form."""
    return datetime.fromtimestamp(modified_ns // 1000 / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
