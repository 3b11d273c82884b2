"""A real PostgreSQL server for the tests: each process that runs tests makes one, and it dies with that process.

``scripts/find-postgresql.sh`` finds the programs or gets them; without them the tests fail, they are not skipped. A
server shared by all processes was refused: tests restart it, and use up its connections. Data is synced as in the
field, since what a commit promises is what is tested; making a server takes about a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.processes import killed_on_failure
from tests.waiting import until

ROLE = "moorings"  # owns its databases and is no superuser, as in the field
PASSWORD = "open &?=:@/% sesame"
NOBODY = 65534
CONNECTIONS_MAX = 30
START_S = 60.0

_SETTINGS = {
    "max_connections": CONNECTIONS_MAX,
    "superuser_reserved_connections": 3,
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "recovery_init_sync_method": "syncfs",  # after a crash: one call, and not one for each of thousands of files
    "jit": "on",  # off is what we ask for
    "timezone": "GMT",  # needs no file of the machine
    "log_timezone": "GMT",
}
_ROOT = Path(__file__).parent.parent
_PREFIX = "moorings-pg-"


class PostgresqlServer:
    """A server on a socket in a folder of its own, and on a port of this machine.

    Args:
        bindir: the programs.
        primary: whose standby it is; that one is down for a moment meanwhile.
    """

    def __init__(self, bindir: Path, primary: PostgresqlServer | None = None) -> None:
        self._number = itertools.count()
        self._empty: list[str] = []
        # The kernel ends a server when the *thread* that started it ends, so this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="postgresql")
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))  # a socket's path is short
        self._bindir = self._reachable(bindir)
        self.data = self.folder / "data"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)  # as root it would refuse to run
        if primary is None:
            self._make()
        else:
            self._follow(primary)

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self.port = self.port or _free_port()
        settings = {**_SETTINGS, "port": self.port, "unix_socket_directories": self.folder}
        given = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items())
        self.process = self._starter.submit(self._launch, list(given)).result()
        process = self.process

        def connects() -> bool:  # nothing tells when it is up: it has to be tried
            assert process.poll() is None, f"PostgreSQL does not start:\n{self.log()}"
            psycopg.connect(self.admin_url).close()
            return True

        with killed_on_failure(process):
            until(
                connects, START_S, what=lambda: f"PostgreSQL is not up:\n{self.log()}", not_yet=psycopg.OperationalError
            )

    def _launch(self, given: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*self._as_nobody(), str(self._bindir / "postgres"), "-D", str(self.data), *given],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment(),
                cwd=self.folder,
            )

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it; SIGINT throws out who is there and leaves nothing to recover."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait()

    def crash(self) -> None:
        """End it as ``pg_ctl stop -m immediate`` does: nothing is finished, the next start recovers."""
        self.stop(signal.SIGQUIT)

    def hang(self, *, on: bool = True) -> None:
        """Stop all its processes, or let them continue: connections stay, and nothing is answered."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def cut_off(self) -> None:
        """Let a standby hear nothing of its primary any more: it falls behind."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        until(lambda: self.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])

    def promote(self) -> None:
        """Make a primary of a standby."""
        assert self.execute("SELECT pg_promote(true, 60)") == [(True,)]

    def remove(self) -> None:
        """End it and leave nothing."""
        if self.up:
            self.crash()
        self._starter.shutdown()
        shutil.rmtree(self.folder)

    def log(self) -> str:
        """The last of what it logged."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    # -- its databases -----------------------------------------------------------------------------------------------

    @property
    def admin_url(self) -> str:
        """For the superuser."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder))}&port={self.port}"

    def url(self, database: str, *, role: str = ROLE) -> str:
        """Over the socket, without a password."""
        return f"postgresql://{role}@/{database}?host={quote(str(self.folder))}&port={self.port}"

    def tcp_url(self, database: str, *, port: int | None = None, password: str = PASSWORD) -> str:
        """Over TCP, where a password is asked for."""
        secret = quote(password, safe="")
        return (
            f"postgresql://{ROLE}:{secret}@127.0.0.1:{port or self.port}/{database}?sslmode=disable&gssencmode=disable"
        )

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements as superuser, each for itself; the rows of the last, if it gives any."""
        with psycopg.connect(self.url(database, role="postgres"), autocommit=True) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def make_database(self, *options: str) -> str:
        """A new, empty database; its name."""
        name = f"test_{next(self._number)}"
        self.execute(f"CREATE DATABASE {name} OWNER {ROLE} {' '.join(options)}")
        return name

    def take_database(self) -> str:
        """An empty database, for ``give_back``: making one takes ten times as long as emptying one."""
        return self._empty.pop() if self._empty else self.make_database()

    def give_back(self, name: str) -> None:
        """Empty that database for the next one."""
        others = f"datname = '{name}' AND pid <> pg_backend_pid()"
        self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}",
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
            database=name,
        )
        self._empty.append(name)

    # -- its making --------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        subprocess.run(
            [
                *self._as_nobody(),
                *(str(self._bindir / "initdb"), "-D", str(self.data), "-U", "postgres", "--no-sync"),
                *("--encoding=UTF8", "--locale=C.UTF-8", "--auth-local=trust", "--auth-host=scram-sha-256"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=self._environment(),
            cwd=self.folder,
        )
        self.start()
        quoted = PASSWORD.replace("'", "''")
        self.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{quoted}'")

    def _follow(self, primary: PostgresqlServer) -> None:
        """As with a base backup, by programs that every server has."""
        primary.stop()
        subprocess.run(["cp", "-a", str(primary.data), str(self.data)], check=True)
        (self.data / "standby.signal").touch()
        primary.start()
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={primary.folder} port={primary.port} user=postgres'\n")
        self.start()
        until(lambda: self.execute("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'") == [(1,)])

    def _as_nobody(self) -> list[str]:
        """The words that let a server die with us and, for root, run it as nobody."""
        other = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", "--pdeathsig", "QUIT", *other, "--"]

    def _environment(self) -> dict[str, str]:
        libraries = sorted(self._bindir.parent.parent.parent.glob("*-linux-gnu*"))
        unpacked = not self._bindir.is_relative_to("/usr") and libraries
        path = {"LD_LIBRARY_PATH": str(libraries[0])} if unpacked else {}
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", **path}

    def _reachable(self, bindir: Path) -> Path:
        """The programs where nobody may read them: a checkout may lie in root's home."""
        if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in (bindir, *bindir.parents)):
            return bindir
        lib = bindir.parents[2]  # .../usr/lib/postgresql/15/bin
        copy = self.folder / "programs"
        shutil.copytree(lib.parent, copy, symlinks=True)
        copy.chmod(0o755)
        self.folder.chmod(0o711)
        return copy / bindir.relative_to(lib.parent)


def find_programs() -> Path:
    """The folder of the server's programs; the tests that need one fail if there is none."""
    found = subprocess.run([_ROOT / "scripts" / "find-postgresql.sh"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.fail(f"no PostgreSQL server for the tests:\n{found.stderr}", pytrace=False)
    return Path(found.stdout.strip())


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A server for the tests of this process."""
    _sweep()
    server = PostgresqlServer(find_programs())
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def database_name(postgresql: PostgresqlServer) -> Iterator[str]:
    """An empty database of the test's own, on a server that is up."""
    if not postgresql.up:  # a test that ended it has failed
        postgresql.start()
    name = postgresql.take_database()
    yield name
    if postgresql.up:
        postgresql.give_back(name)


@pytest.fixture
def database_url(postgresql: PostgresqlServer, database_name: str) -> str:
    """The URL of an empty database of the test's own."""
    return postgresql.url(database_name)


def _sweep() -> None:
    """Remove the folders of those that were killed; their servers are dead."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):  # another's
                shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":  # a server by hand: python -m tests.postgresql, ended with Ctrl-C
    by_hand = PostgresqlServer(find_programs())
    try:
        sys.stdout.write(f"{by_hand.url(by_hand.make_database())}\n")
        sys.stdout.flush()
        signal.pause()
    except KeyboardInterrupt:
        by_hand.remove()
