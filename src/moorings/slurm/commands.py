"""Runs Slurm's commands with limits on time, output and number. Every failure has one of our error codes.

The commands were chosen over libslurm and slurmrestd: every site has them, in its own release, and they need no token.
Variables that change a command's output (``SQUEUE_*``, ``SLURM_TIME_FORMAT``, a user's locale and time zone) are not
passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moorings.core.model.errors import MooringsError

T = TypeVar("T")

TIMEOUT_S = 20.0  # Slurm's default MessageTimeout is 10 s, and commands try twice
OUTPUT_BYTES_MAX = 128 << 20  # 80,000 jobs
COMPLAINT_BYTES_MAX = 64 << 10
END_S = 5.0  # to drain the pipes of a killed command
STDERR_CHARS_MAX = 300
CONCURRENT_MAX = 4  # more would only wait in slurmctld, ahead of the users' own

_HANDED_ON = ("HOME", "LD_LIBRARY_PATH", "PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "USER", "LOGNAME")
_AWAY = re.compile(
    r"unable to contact slurm controller|connection refused|connection reset|timed out|zero bytes were transmitted|"
    r"communication connection failure|controller in standby|slurmctld.* (shutting down|is in standby)|"
    r"could not establish a configuration source|dns srv lookup failed|resource temporarily unavailable|"
    r"protocol authentication error|munge.* (unable|failed)|unable to connect to database|try again",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_DENIED = re.compile(r"access/permission denied|access denied|user id is not permitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The stdout of a command, its messages on stderr (also possible on success), and its exit code."""

    output: bytes
    stderr: str
    code: int


class SlurmCommands:
    """Slurm's commands on this machine.

    Args:
        environment: the variables to choose from; only those needed to reach Slurm are passed on.
        timeout_s: timeout of one command, without its wait for a slot.

    Attributes:
        environment: the variables of the commands.
    """

    def __init__(self, environment: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
        self.environment = build_environment(environment)
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(CONCURRENT_MAX)

    def check_installed(self, name: str) -> None:
        """Raise if that command is not installed.

        Raises:
            MooringsError: ``slurm.missing``.
        """
        if shutil.which(name, path=self.environment["PATH"]) is None:
            raise _missing(name, "it is not on PATH")

    async def run_checked(self, argv: Sequence[str]) -> bytes:
        """Run a command and return its stdout.

        Raises:
            MooringsError: ``slurm.missing``, ``slurm.unavailable``, ``slurm.job_unknown``, ``slurm.denied``,
                ``slurm.refused``.
        """
        answer = await self.run(argv)
        if answer.code != 0:
            raise parse_error(argv, answer)
        return answer.output

    async def run(self, argv: Sequence[str]) -> CommandResult:
        """Run a command and return its result, for any exit code.

        Raises:
            MooringsError: ``slurm.missing``, ``slurm.unavailable`` (it took too long), ``slurm.unreadable`` (it wrote
                too much).
        """
        async with self._turns:
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=self.environment,
                    start_new_session=True,  # so that its whole process group can be ended
                )
            except OSError as error:
                raise _missing(argv[0], error.strerror or repr(error)) from error
            try:
                return await _bounded(self._answer(process, argv), self._timeout_s)
            except TimeoutError:
                hint = "is slurmctld up ('scontrol ping'), and munge?"
                problem = f"{argv[0]} did not answer within {self._timeout_s:g} s"
                raise MooringsError("slurm.unavailable", problem, hint=hint, retryable=True) from None
            finally:
                await _end(process)

    @staticmethod
    async def _answer(process: asyncio.subprocess.Process, argv: Sequence[str]) -> CommandResult:
        assert process.stdout is not None
        assert process.stderr is not None
        complained = asyncio.ensure_future(_read(process.stderr, COMPLAINT_BYTES_MAX))
        try:
            output = await _read(process.stdout, OUTPUT_BYTES_MAX + 1, enough=True)
            if len(output) > OUTPUT_BYTES_MAX:
                raise MooringsError("slurm.unreadable", f"{argv[0]} writes more than {OUTPUT_BYTES_MAX} bytes")
            complaint = (await complained).decode("utf-8", "replace").strip()
        finally:
            complained.cancel()
        return CommandResult(output, complaint, await process.wait())


def _missing(name: str, why: str) -> MooringsError:
    detail = f"{name} cannot be run on {socket.gethostname()}: {why}"
    return MooringsError("slurm.missing", detail, hint="install Slurm's client commands there, or set PATH")


def build_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command: those needed to reach Slurm, and fixed ones for uniform output."""
    found = {name: environment[name] for name in _HANDED_ON if environment.get(name)}
    found.setdefault("PATH", os.defpath)
    return {**found, "LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "64"}


def parse_error(argv: Sequence[str], answer: CommandResult) -> MooringsError:
    """Return the error for a failed command."""
    message = " ".join(answer.stderr.split()) or f"exit code {answer.code}"
    detail = f"{' '.join(argv[:2])}: {message[:STDERR_CHARS_MAX]}"
    if _UNKNOWN_JOB.search(message):
        return MooringsError("slurm.job_unknown", detail, hint="Slurm forgets an ended job after MinJobAge")
    if _DENIED.search(message):
        return MooringsError("slurm.denied", detail, hint="run it as root or as SlurmUser")
    if _AWAY.search(message):
        hint = "is slurmctld up ('scontrol ping'), and munge?"
        return MooringsError("slurm.unavailable", detail, hint=hint, retryable=True)
    return MooringsError("slurm.refused", detail)


async def _bounded(work: Awaitable[T], limit_s: float) -> T:
    async with asyncio.timeout(limit_s):
        return await work


async def _read(stream: asyncio.StreamReader, bytes_max: int, *, enough: bool = False) -> bytes:
    """Return the first ``bytes_max`` bytes. With ``enough`` the rest is not read, else it is read and discarded."""
    found = bytearray()
    while chunk := await stream.read(1 << 16):
        found += chunk[: bytes_max - len(found)]
        if enough and len(found) == bytes_max:
            break
    return bytes(found)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command's whole process group, and let asyncio see the end: it also waits for empty pipes."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a process outside the group may hold a pipe open
        async with asyncio.timeout(END_S):
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await _read(stream, 0)
            await process.wait()
