"""Runs the ``vipu`` command: the only module that starts processes, reads secrets, and waits.

Commands are limited in number, time and output. A command that hangs is killed with all its children. Command lines are
readable for every user of the machine, so they hold no secret: the access key is in a configuration file (0600), named
by ``--config``. The command gets an environment of its own, because the controller may have inherited ``VIPU_CLI_*``
variables for another server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.drivers.vipu.commands import build_configuration
from moorings.drivers.vipu.settings import VipuSettings
from moorings.files import write_atomically

OUTPUT_BYTES_MAX = 16 << 20  # a listing of 4,096 IPUs in JSON is far smaller
ERRORS_BYTES_MAX = 64 << 10
MESSAGE_CHARS_MAX = 300
SECRET_BYTES_MAX = 64 << 10
KILLED_WITHIN_S = 5.0
CONFIGURATION = "vipu-cli.hcl"

_AGAIN = "Moorings asks again by itself"


class VipuNotStartedError(MooringsError):
    """The command was not started, so it has had no effect."""


class VipuCommandError(MooringsError):
    """The command ran to its end and reported a failure."""


class VipuCli:
    """The ``vipu`` command of one pool.

    Args:
        settings: the V-IPU controller's address and options.
        folder: for the configuration file.

    Raises:
        MooringsError: ``pools.invalid`` (a secret file is missing, or others can read it), ``driver.unavailable`` (the
            configuration file cannot be written).
    """

    def __init__(self, settings: VipuSettings, folder: Path) -> None:
        key = ""
        for name, path in settings.secret_files.items():
            text = _read_secret(name, Path(path))
            if name == "api_key_file":
                key = text.strip()
        if settings.config:
            configuration = settings.config
        else:
            configuration = str(folder / CONFIGURATION)
            _write_private(folder / CONFIGURATION, build_configuration(settings, key))
        self._key = key
        self._argv = (settings.command, "--config", configuration)
        self._slots = asyncio.Semaphore(settings.parallel)

    async def run(self, words: Sequence[str], timeout_s: float) -> str:
        """Run the command and return its output.

        Args:
            words: verb, noun, name, options.
            timeout_s: seconds until it is killed.

        Raises:
            VipuNotStartedError: it could not be started.
            VipuCommandError: it failed.
            MooringsError: ``driver.unavailable``: a timeout, a kill, or too much output or no text; its effect is
                unknown.
        """
        said = " ".join(("vipu", *words))
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                output, errors, status = await self._run(words, said)
        except TimeoutError as error:
            raise unavailable_error(f"no answer to '{said}' within {timeout_s:g} s") from error
        told = self._message(errors or output)
        if status > 0:
            detail = f"'{said}' failed (exit code {status}): {told or 'it said nothing'}"
            raise VipuCommandError("driver.unavailable", detail, hint=_AGAIN, retryable=True)
        if status < 0:
            raise unavailable_error(f"'{said}' was killed by signal {-status}")
        try:
            return output.decode()
        except UnicodeDecodeError as error:
            raise unavailable_error(f"'{said}' printed what is no text") from error

    async def _run(self, words: Sequence[str], said: str) -> tuple[bytes, bytes, int]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
        loop = asyncio.get_running_loop()
        try:
            transport, hearing = await loop.subprocess_exec(
                partial(_OutputCollector, said, loop.create_future()),
                *self._argv,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**kept, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        except OSError as error:
            raise VipuNotStartedError(
                "driver.unavailable",
                f"'{said}' could not be started: {error}",
                hint="set 'command' in [pool.vipu] to where the vipu command is",
                retryable=True,
            ) from error
        try:
            await hearing.finished
        except BaseException:  # also on cancellation
            with contextlib.suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hearing.exited.wait(), KILLED_WITHIN_S)
            raise
        finally:
            transport.close()  # a process outside the group may hold the pipes open
        status = transport.get_returncode()
        assert status is not None
        return bytes(hearing.output[1]), bytes(hearing.output[2]), status

    def _message(self, output: bytes) -> str:
        """Return the vendor's words on one line, without our key."""
        words = " ".join(output[: 4 * MESSAGE_CHARS_MAX].decode(errors="replace").split())
        words = "".join(char if char.isprintable() else "?" for char in words)
        if self._key:
            words = words.replace(self._key, "***")
        return words if len(words) <= MESSAGE_CHARS_MAX else f"{words[:MESSAGE_CHARS_MAX]}..."


class _OutputCollector(asyncio.SubprocessProtocol):
    """Collects a command's output, up to a limit; ``finished`` is set when it has exited and closed its pipes."""

    def __init__(self, words: str, over: asyncio.Future[None]) -> None:
        self.finished = over
        self.exited = asyncio.Event()
        self.output = {1: bytearray(), 2: bytearray()}
        self._words = words

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        most = OUTPUT_BYTES_MAX if fd == 1 else ERRORS_BYTES_MAX
        if len(self.output[fd]) + len(data) <= most:
            self.output[fd] += data
        elif not self.finished.done():
            self.finished.set_exception(unavailable_error(f"'{self._words}' printed more than {most} bytes"))

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


def _read_secret(key: str, path: Path) -> str:
    """Return the text of a file that no other user can read.

    Raises:
        MooringsError: ``pools.invalid``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(SECRET_BYTES_MAX) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise MooringsError("pools.invalid", f"{key}: {path} cannot be read: {error.strerror}") from error
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a file"
    elif status.st_mode & 0o077:
        problem = f"can be read by others (mode {stat.S_IMODE(status.st_mode):04o})"
    elif status.st_uid not in (0, os.geteuid()):
        problem = f"belongs to another user (uid {status.st_uid})"
    elif not content.strip():
        problem = "is empty"
    elif key == "api_key_file" and len(content.split()) != 1:
        problem = "holds more than one word; it is to hold the access key alone"
    if problem:
        raise MooringsError("pools.invalid", f"{key}: {path} {problem}", hint=f"chmod 600 {path}, owned by us or root")
    return content.decode(errors="replace")


def _write_private(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(
            path, text.encode(), durable=False, temporary=path.with_name(f".{path.name}.{os.getpid()}.tmp")
        )
    except OSError as error:
        raise unavailable_error(f"{path} cannot be written: {error}") from error


def unavailable_error(detail: str) -> MooringsError:
    """The error for a question or a request that is made again by itself."""
    return MooringsError("driver.unavailable", detail, hint=_AGAIN, retryable=True)
