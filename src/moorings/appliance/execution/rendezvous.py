"""How systems and weight servers connect: the first system starts the servers and publishes their addresses.

The sockets are in a folder of their own (0700), below XDG_RUNTIME_DIR or /tmp: a socket's path has at most 107 bytes,
and the model's folder may be longer. A notice file in the order's folder, which all tasks see, has the path. Both are
removed as soon as all systems have connected, before the first step: after that a ``kill -9`` of all processes leaves
nothing behind. Before that, if the first system is killed, the servers remove them; they stay only if the servers are
killed at the same moment. Refused: TCP, to which any user of the machine could connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from moorings.appliance.execution.connections import ServerAddress, ServerConnections
from moorings.appliance.execution.errors import execution_error
from moorings.appliance.execution.optimizer import AdamW
from moorings.appliance.execution.server import ServerConfig
from moorings.appliance.execution.weights import Shapes
from moorings.core.model.errors import MooringsError
from moorings.files import write_atomically

FILE_NAME: Final = "servers.json"
_FILE_MOST: Final = 1 << 20
_MEET_S: Final = 300.0  # the first system may start later than the others
_AGAIN_S: Final = 0.05
_END_S: Final = 10.0
_REAP_S: Final = 1.0  # a killed process closes its sockets a moment before it can be reaped


class WeightServers:
    """The weight servers started by this process.

    Args:
        shares: the layers of each server.
        shapes: of the weights of each layer.
        systems: how many will connect.
        optimizer: None: nothing is trained.
        folder: the order's, where the other systems look for the notice.
    """

    def __init__(
        self,
        shares: Sequence[Sequence[int]],
        shapes: Sequence[Shapes],
        systems: int,
        optimizer: AdamW | None,
        folder: Path,
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="moorings-", dir=_short_folder()))
        self._address_file = folder / FILE_NAME
        self._hidden = False
        self.places: list[ServerAddress] = []
        try:
            for number, share in enumerate(shares):
                place = ServerAddress(self._folder / f"{number}.sock", secrets.token_hex(16))
                plan = ServerConfig(
                    place.token, systems, {layer: shapes[layer] for layer in share}, optimizer, str(self._address_file)
                )
                self._processes.append(_start(place, plan))
                self.places.append(place)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The servers' process ids, in order."""
        return [process.pid for process in self._processes]

    def exit_reason(self, server: int) -> str:
        """How a server ended, as a clause; empty if it has not."""
        try:
            code = self._processes[server].wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return ""
        if code >= 0:
            return f"it exited with {code}"
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-code).name}"
        return f"it was killed by signal {-code}"

    def find_killed(self) -> int | None:
        """A server that was killed by a signal; None: none was.

        Waits for it: another system that lost its connection may be missed before the server itself can be reaped.
        """
        deadline = time.monotonic() + _REAP_S
        while True:
            codes = enumerate([process.poll() for process in self._processes])
            killed = next((server for server, code in codes if code is not None and code < 0), None)
            if killed is not None or time.monotonic() > deadline:
                return killed
            time.sleep(_AGAIN_S)

    def publish(self) -> None:
        """Publish the servers' addresses to the other systems.

        Raises:
            MooringsError: ``execution.failed``: the file cannot be written.
        """
        record = [{"path": str(place.path), "token": place.token} for place in self.places]
        try:
            write_atomically(self._address_file, json.dumps(record).encode())
        except OSError as error:
            raise execution_error(f"{self._address_file} cannot be written: {error.strerror or error}") from error

    def wait_for_systems(self, links: ServerConnections, check: Callable[[], None]) -> None:
        """Wait until all systems are connected to all servers; then remove the sockets and the notice.

        Args:
            links: the first system's.
            check: called while waiting; raises to stop.

        Raises:
            MooringsError: ``execution.failed``: a system or a server has gone.
        """
        while any(answer["missing"] for answer in links.call_all("missing")):
            check()
            time.sleep(_AGAIN_S)
        self._remove_addresses()

    def _remove_addresses(self) -> None:
        if self._hidden:
            return  # a notice that is there now is another job's
        self._hidden = True
        with contextlib.suppress(OSError):
            self._address_file.unlink()  # first: if this process is killed here, the servers remove the rest
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Stop them, and wait for their end."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._remove_addresses()


@contextlib.contextmanager
def weight_servers(
    shares: Sequence[Sequence[int]],
    shapes: Sequence[Shapes],
    systems: int,
    optimizer: AdamW | None,
    folder: Path,
) -> Iterator[WeightServers]:
    """Weight servers for the duration of the block.

    Raises:
        MooringsError: ``execution.failed``: they cannot be started, or one of them was killed.
    """
    try:
        servers = WeightServers(shares, shapes, systems, optimizer, folder)
    except OSError as error:
        raise execution_error(f"the weight servers cannot be started: {error}") from error
    try:
        yield servers
    except MooringsError as error:
        killed = servers.find_killed()  # other errors may only be its consequences
        if killed is None:
            raise
        raise execution_error(f"weight server {killed} has gone: {servers.exit_reason(killed)}") from error
    finally:
        servers.close()


def connect_servers(
    folder: Path,
    shares: Sequence[Sequence[int]],
    shapes: Sequence[Shapes],
    system: int,
    check: Callable[[], None],
    within_s: float = _MEET_S,
) -> ServerConnections:
    """Connect a system other than the first; wait for the first to start the servers.

    A notice from an earlier attempt names sockets without a listener: it is read again.

    Args:
        folder: the order's.
        shares: the layers of each server.
        shapes: of the weights of each layer.
        system: this system's number.
        check: called while waiting; raises to stop.
        within_s: how long to wait.

    Raises:
        MooringsError: ``execution.failed``: they did not start in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        check()
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            return ServerConnections(_read(folder / FILE_NAME), shares, shapes, system)
        if time.monotonic() > deadline:
            raise execution_error(f"system {system} found no weight servers within {within_s:.0f} s")
        time.sleep(_AGAIN_S)


def _read(path: Path) -> list[ServerAddress]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise execution_error(f"another user wrote {path}")
        text = file.read(_FILE_MOST)
    try:
        return [ServerAddress(Path(each["path"]), str(each["token"])) for each in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise execution_error(f"{path} does not say where the weight servers are") from error


def _short_folder() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return runtime if 0 < len(runtime) < 60 and os.access(runtime, os.W_OK | os.X_OK) else "/tmp"  # noqa: S108


def _start(place: ServerAddress, plan: ServerConfig) -> subprocess.Popen[bytes]:
    """Start a server's process on a socket that already listens: early connections wait in the backlog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        listener.bind(str(place.path))
        place.path.chmod(0o600)
        listener.listen(2 * plan.systems + 8)
        process = subprocess.Popen(  # -P: a json.py in the user's folder is not ours
            [sys.executable, "-P", "-m", "moorings.appliance.execution.server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    assert process.stdin is not None
    try:
        process.stdin.write(plan.dump())
        process.stdin.flush()
    except OSError:
        pass  # it has ended; the connections will show that
    return process
