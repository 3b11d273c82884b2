"""The launcher's init container: ``python3 -m moorings.app.kubernetes_launcher``. Standard library only.

Environment, set by the operator:

- ``MOORINGS_WORKERS``: the number of the instance's worker Pods; a variable cannot hold 4,096 names.
- ``MOORINGS_PROXY_URL``, ``MOORINGS_PROXY_TOKEN_FILE``, ``MOORINGS_PROXY_CA_FILE``: the proxy, a token for it (audience
  ``moorings-proxy``), and its authority if it speaks TLS.
- ``MOORINGS_PARTITION``: ``<namespace>/<job>/<uid>/<instance>``.
- ``MOORINGS_RESET``: 1 resets the partition, for it was used before.

Exit codes: 0 all is ready; 1 a worker ended, or the partition will never be ready; 2 the command line, the environment
or the image is wrong; 4 the proxy's refusal; 7 something stays unreachable; 124 it took longer than ``--timeout``; 143
after SIGTERM, at once. A refusal of the API server gives the code of ``kubernetes.refused``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from moorings.app.exits import returns_exit_code
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.launcher.init import (
    KUBECTL,
    InstancePartition,
    StartupWait,
    WorkerWatcher,
    choose_kubectl,
    install_kubectl,
    wait_for_clean_partition,
)
from moorings.kubernetes.launcher.pod_api import ACCOUNT, PodApi

TIMEOUT_S = 3600.0
TERMINATED = 128 + signal.SIGTERM


@returns_exit_code
def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Prepare a launcher."""
    parser = ArgumentParser(prog="kubernetes_launcher", description="Prepare a launcher: kubectl, workers, partition.")
    parser.add_argument("--into", type=Path, required=True, help="folder that is shared with the job")
    parser.add_argument("--kubectl", type=Path, default=KUBECTL, help="default: %(default)s")
    parser.add_argument("--kubectl-version", default="", help="take that one, if the image has it")
    parser.add_argument("--account", type=Path, default=ACCOUNT, help="the service account (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help="for everything, in seconds; 0: none (default: %(default)s)"
    )
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    _end_at_term()
    place = read_partition(environment)
    workers = _count(environment, "MOORINGS_WORKERS")
    api = make_api(environment, place.namespace, given.account)
    patience = StartupWait(given.timeout, _print)
    install_kubectl(choose_kubectl(given.kubectl, given.kubectl_version), given.into)
    watched = WorkerWatcher(api, names.worker_names(place.job, place.instance, workers))
    watched.wait(patience)
    _print(f"{workers} of {workers} workers are Ready")
    wait_for_clean_partition(place, patience, reset=environment.get("MOORINGS_RESET") == "1")
    watched.wait(patience)  # a worker may have ended meanwhile
    _print("the partition is READY")


def _end_at_term() -> None:
    """End at SIGTERM, which process 1 of a container would ignore; there is nothing to clean up.

    A thread waits for it: a handler that Python runs is late if the signal comes just before a call that blocks.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def end() -> None:
        signal.sigwait({signal.SIGTERM})
        os._exit(TERMINATED)

    threading.Thread(target=end, name="term", daemon=True).start()


def read_partition(environment: Mapping[str, str]) -> InstancePartition:
    """The partition, and the proxy to ask for it.

    Raises:
        MooringsError: ``config.invalid``.
    """
    text = _require_variable(environment, "MOORINGS_PARTITION")
    parts = text.split("/")
    if len(parts) != 4 or not all(parts) or not parts[3].isdecimal():
        hint = "as <namespace>/<job>/<uid>/<instance>"
        raise MooringsError("config.invalid", f"MOORINGS_PARTITION is {text[:200]!r}", hint=hint)
    return InstancePartition(
        url=_require_variable(environment, "MOORINGS_PROXY_URL"),
        namespace=parts[0],
        job=parts[1],
        uid=parts[2],
        instance=int(parts[3]),
        token_file=Path(_require_variable(environment, "MOORINGS_PROXY_TOKEN_FILE")),
        ca_file=environment.get("MOORINGS_PROXY_CA_FILE", ""),
    )


def make_api(environment: Mapping[str, str], namespace: str, account: Path) -> PodApi:
    """The API server, from the variables that Kubernetes sets in every Pod.

    Raises:
        MooringsError: ``config.invalid``.
    """
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not port.isdecimal():
        raise MooringsError("config.invalid", f"KUBERNETES_SERVICE_PORT is {port[:80]!r}", hint="Kubernetes sets it")
    return PodApi(_require_variable(environment, "KUBERNETES_SERVICE_HOST"), int(port), namespace, account)


def _require_variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise MooringsError("config.invalid", f"{name} is not set", hint="the operator sets it in a launcher's Pod")
    return value


def _count(environment: Mapping[str, str], name: str) -> int:
    value = _require_variable(environment, name)
    if not value.isdecimal() or len(value) > 9:
        raise MooringsError("config.invalid", f"{name} is {value[:80]!r}", hint="the operator sets it to a number")
    return int(value)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
