"""Runs tests over a changed copy of the package, quickly: a process that has imported everything but the package.

Importing third parties takes four fifths of the time of a short test. So this process imports them once, and forks for
each run; the package itself is imported by the fork alone, from the copy as it is then. Whatever a run leaves behind is
ended with it, as ``keeper`` does.

It reads a line of JSON for each run from standard input, ``{"tests": [...], "limit_s": ..., "cpu_s": ..., "folder":
...}``, and answers with a line, ``{"status": ..., "cpu_s": ...}``; the run writes ``output`` and ``failures.json`` into
that folder.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.mutation import keeper
from tests.procfs import cpu_s

TOO_LONG = keeper.TOO_LONG

# What tests import again and again. JAX and NumPy start threads, which no fork survives: tests import those themselves.
_THIRD_PARTIES = (
    *("pytest", "_pytest.assertion.rewrite", "pytest_timeout", "anyio.pytest_plugin", "anyio._backends._asyncio"),
    *("hypothesis", "_hypothesis_pytestplugin", "hypothesis.strategies", "hypothesis.stateful"),
    *("hypothesis.internal.conjecture.engine", "hypothesis.internal.conjecture.shrinker"),
    *("schemathesis.pytest.plugin", "schemathesis.openapi"),
    *("click", "click.testing", "structlog", "yaml", "prometheus_client", "uvloop", "httptools", "asyncio"),
    *("fastapi", "fastapi.testclient", "pydantic", "starlette.responses"),
    *("uvicorn", "uvicorn.protocols.http.httptools_impl"),
    *(
        "sqlalchemy",
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.dialects.postgresql",
        "alembic.command",
        "alembic.config",
    ),
    *("psycopg", "psycopg_binary", "httpx2", "lightkube", "cryptography.x509"),
    *("cryptography.hazmat.primitives.asymmetric.ec", "cryptography.hazmat.primitives.serialization"),
    *("xdist.plugin", "xdist.remote", "xdist.scheduler", "packaging.version", "readline", "faulthandler", "getpass"),
    *("http.server", "email.parser", "sqlite3", "ssl", "tomllib", "concurrent.futures.thread", "multiprocessing"),
)

_OPTIONS = (
    *("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "anyio", "-p", "pytest_timeout"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # a fork has them imported
    *("-p", "_hypothesis_pytestplugin", "-p", "tests.mutation.telling", "--hypothesis-profile=mutation"),
    *("--hypothesis-seed=0", "-p", "schemathesis.pytest.plugin"),
)


def main() -> None:
    keeper.adopt_orphans()
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):  # also where whoever started this one ignores Ctrl-C
        signal.signal(number, _stop)
    scratch = Path(tempfile.mkdtemp(prefix="moorings-"))  # a short name: sockets of tests lie there
    try:
        _preload()
        _serve(parent, scratch)
    finally:  # also after Ctrl-C
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        keeper.end_descendants(sys.stderr.fileno())
        shutil.rmtree(scratch, ignore_errors=True)


def _stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _preload() -> None:
    if "--bare" not in sys.argv:
        plugins = importlib.import_module("_pytest.config").default_plugins
        for name in (*_THIRD_PARTIES, *(f"_pytest.{plugin}" for plugin in plugins)):
            with contextlib.suppress(ImportError):  # what is missing here, tests import or miss by themselves
                importlib.import_module(name)
    assert "moorings" not in sys.modules
    gc.collect()
    gc.freeze()  # pytest collects garbage several times a run: not among all this


def _serve(parent: int, scratch: Path) -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(json.loads(line), parent, scratch)) + "\n")
        sys.stdout.flush()


def _run(asked: dict[str, Any], parent: int, scratch: Path) -> dict[str, float]:
    folder = Path(asked["folder"])
    with (folder / "output").open("wb") as output:
        child = os.fork()
        if child == 0:
            _be_tested(
                [*_OPTIONS, f"--basetemp={scratch / 'tmp'}", *asked.get("options", ()), *asked["tests"]],
                folder,
                output.fileno(),
            )
        status, used_s = _wait(child, float(asked["limit_s"]), float(asked["cpu_s"]), parent)
        sys.stderr.flush()
        keeper.end_descendants(output.fileno())
    return {"status": status, "cpu_s": used_s}


def _wait(child: int, limit_s: float, limit_cpu_s: float, parent: int) -> tuple[int, float]:
    """The run's exit status and CPU seconds; it is ended after its limits, or when nobody waits for it any more."""
    give_up, before_s = time.monotonic() + limit_s, _children_s()
    pause_s = 0.002
    while time.monotonic() < give_up and cpu_s(child) < limit_cpu_s and os.getppid() == parent:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), _children_s() - before_s
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 1.5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TOO_LONG, _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _be_tested(arguments: list[str], folder: Path, output: int) -> None:
    """Be the run; never returns."""
    status = 3
    try:
        os.setsid()
        keeper.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - for ever
        os.environ["MUTATION_TOLD"] = str(folder / "failures.json")
        pytest = importlib.import_module("pytest")
        status = int(pytest.main(arguments))
    except BaseException:  # whatever it was, it is told, and this process must not continue as the other
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
