"""An operator that is killed before and after everything it does, and comes back at once: run in place of the app.

``python phoenix.py --places=FILE ARGUMENTS...``: each place (a call that changes something, of the API server or of the
proxy) is hit once before the call and once after it, in the order in which the work comes to them, and is written to
FILE first. Then it works on in peace. The dead are SIGKILLed processes that share nothing but the imports; they all go
by one name, so that the lease of one is the next one's, and no test waits for it to run out.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import secrets
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PR_SET_PDEATHSIG = 1
Tell = Callable[..., str]

QUIET = ("Lease", "Event")  # not a job's


class Places:
    """Where it died, and is to die next."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hit = set(file.read_text().splitlines()) if file.exists() else set()

    def pass_by(self, place: str) -> None:
        """Die, if nobody has died here."""
        if place in self._hit:
            return
        with self._file.open("a") as file:
            file.write(f"{place}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def watch(owner: type, name: str, tell: Tell, places: Places) -> None:
    """Have it die before and after a method."""
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def watched(self: Any, *args: Any, **more: Any) -> Any:
        place = tell(*args, **more)
        if not place:
            return await real(self, *args, **more)
        places.pass_by(f"before {place}")
        found = await real(self, *args, **more)
        places.pass_by(f"after {place}")
        return found

    setattr(owner, name, watched)


def _tell_created(kind: Any, body: Any, namespace: str | None = None) -> str:
    if kind.name in QUIET:
        return ""
    restart = body["metadata"].get("labels", {}).get("graphcore.ai/restart", "")
    return f"create {kind.name} {body['metadata']['name']} {restart}".rstrip()


def _tell_replaced(kind: Any, body: Any, namespace: str | None = None) -> str:
    return "" if kind.name in QUIET else f"replace {kind.name} {body['metadata']['name']}"


def _tell_patched(kind: Any, name: str, body: Any, namespace: str | None = None, *, subresource: str = "") -> str:
    if kind.name in QUIET:
        return ""
    if subresource != "status":
        return (
            f"patch {kind.name} {name} {body}" if isinstance(body, list) else f"patch {kind.name} {name} {_less(body)}"
        )
    value = body[-1]["value"]
    told = [str(value.get(key, "")) for key in ("status", "currentInstances", "desiredInstances", "restartCount")]
    # Without the times of its start: they differ in each life, and the place would be a new one for ever.
    records = {
        number: {key: told for key, told in record.items() if key != "start"}
        for number, record in value.get("instances", {}).items()
    }
    return f"status {name} {' '.join(told)} {records or ''}".rstrip()


def _less(body: Any) -> Any:
    return {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}


def _tell_deleted(
    kind: Any, name: str, namespace: str | None = None, *, uid: str = "", grace_s: int | None = None
) -> str:
    return "" if kind.name in QUIET else f"delete {kind.name} {name} {uid}"


def _tell_claimed(request: Any) -> str:
    return f"claim {request.job} {request.instance}"


def _tell_released(namespace: str, job: str, uid: str, instance: int) -> str:
    return f"release {job} {instance}"


def _tell_given(namespace: str, job: str, uid: str, instance: int) -> str:
    return f"yield {job} {instance}"


def _tell_reset(namespace: str, job: str, uid: str, instance: int) -> str:
    return f"reset {job} {instance}"


def live(arguments: list[str], file: Path, name: str) -> int:
    """One life."""
    import moorings.app.kubernetes_operator as app
    from moorings.kubernetes.kube.client import KubeClient
    from moorings.kubernetes.proxy_api.client import ProxyClient

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    app.secrets = SimpleNamespace(token_hex=lambda _: name)  # type: ignore[assignment, attr-defined]
    places = Places(file)
    told: dict[str, Tell] = {
        "create": _tell_created,
        "replace": _tell_replaced,
        "patch": _tell_patched,
        "delete": _tell_deleted,
    }
    for method, tell in told.items():
        watch(KubeClient, method, tell, places)
    asked: dict[str, Tell] = {
        "create": _tell_claimed,
        "release": _tell_released,
        "reset": _tell_reset,
        "yield_partition": _tell_given,
    }
    for method, tell in asked.items():
        watch(ProxyClient, method, tell, places)
    return app.main(arguments)


def main() -> int:
    """All lives; the exit code of the last one."""
    import moorings.app.kubernetes_operator  # noqa: F401 - what all share

    parser = ArgumentParser()
    parser.add_argument("--places", type=Path, required=True)
    given, arguments = parser.parse_known_args()
    name = secrets.token_hex(8)
    gc.collect()
    gc.freeze()
    stopping = False
    pid = 0

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    while True:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if pid == 0:
            code = 99
            try:
                code = live(arguments, given.places, name)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if stopping or code != -signal.SIGKILL:
            return code


if __name__ == "__main__":
    sys.path.pop(0)  # the tests' folder: its modules have names that others have too
    sys.exit(main())
