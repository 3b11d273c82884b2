"""Prepares a launcher's Pod before the job's own command starts. Standard library only.

Three steps, in this order: copy kubectl to where the remote-exec script finds it, wait for the workers, and ask the
proxy for a clean partition. It says what it waits for in sentences, once for each change and every minute: people read
them in the launcher's log. An unknown state is not ready.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from moorings.client.error_text import format_cause
from moorings.client.requests import ApiCall, ApiError, build_target
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.errors import MooringsError
from moorings.files import atomic_file
from moorings.kubernetes.ipujob.pods import ENDED, condition_of, containers_in
from moorings.kubernetes.kube.api import KubeError, KubeObject
from moorings.kubernetes.launcher.pod_api import PodApi
from moorings.kubernetes.proxy_api.shapes import FAILED, LOST, READY, RELEASING, PartitionBody, PartitionsBody
from moorings.wire.operations import parse_body

WORKERS_NAMED_MAX = 5  # workers named in one message
WATCHED_MAX = 16  # workers with their own thread and watch; of more, each is polled
PAUSE_S, PAUSE_S_MAX = 0.5, 10.0
LOOK_S = 1.0  # between two reads of a partition that is being made ready, or of many workers
REPORT_S = 60.0
WHOLE_S = 30.0  # between two reads of all of many workers
DENIED_S = 60.0  # a refusal within this time may only mean that a Role or a token is not known everywhere yet
ANSWER_S = 15.0  # response timeout of the proxy
RESET_S = 120.0  # how long it may delay the response to a reset, until the partition is clean
_NOT_NOW = ("partition.not_active", "claim.not_ready")
KUBECTL = Path("/usr/local/bin/kubectl")
VERSIONS = Path("/usr/local/lib/kubectl")  # <version>/kubectl

Reporter = Callable[[str], None]


class StartupWait:
    """The common timeout of all waits, and the last message."""

    def __init__(self, timeout_s: float, report: Reporter) -> None:
        self._began_s = time.monotonic()
        self._timeout_s = timeout_s
        self._report = report
        self._reported = ""
        self._reported_s = 0.0

    def log_wait(self, text: str) -> None:
        """Say what the launcher waits for, if it is new or was not said for a while.

        Raises:
            MooringsError: ``wait.timeout``, with the same text.
        """
        now_s = time.monotonic()
        if self._timeout_s and now_s - self._began_s >= self._timeout_s:
            hint = "'kubectl describe pod' tells more of each; the launcher's --timeout is how long it waits"
            raise MooringsError("wait.timeout", f"after {self._timeout_s:g} s still {text}", hint=hint)
        if text != self._reported or now_s - self._reported_s >= REPORT_S:
            self._report(text)
            self._reported, self._reported_s = text, now_s


# -- kubectl -----------------------------------------------------------------------------------------------------------


def choose_kubectl(kubectl: Path, version: str, versions: Path = VERSIONS) -> Path:
    """The path of the kubectl to use: that of a version, if the image has it."""
    wanted = versions / version.removeprefix("v") / "kubectl"
    tagged = versions / f"v{version.removeprefix('v')}" / "kubectl"
    return next((path for path in (wanted, tagged) if version and path.is_file()), kubectl)


def install_kubectl(kubectl: Path, into: Path) -> None:
    """Copy kubectl into a folder atomically.

    Raises:
        MooringsError: ``config.invalid``.
    """
    draft = into / ".kubectl.new"  # a fixed name: the next try overwrites an interrupted copy
    try:
        into.mkdir(parents=True, exist_ok=True)
        target = atomic_file(into / "kubectl", mode=0o755, durable=False, temporary=draft)
        with kubectl.open("rb") as source, target as copy:
            shutil.copyfileobj(source, copy)
    except OSError as error:
        hint = "the launcher's image has kubectl, and the folder is a volume that it shares with the job"
        detail = f"{kubectl} cannot be copied into {into}: {format_cause(error)}"
        raise MooringsError("config.invalid", detail, hint=hint) from error


# -- workers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of a worker: whether it is ready, whether it has ended, and a text."""

    ready: bool
    ended: bool
    text: str


UNSEEN = WorkerStatus(False, False, "is not known yet")
ABSENT = WorkerStatus(False, False, "is not there yet")


def parse_worker_status(pod: KubeObject | None) -> WorkerStatus:
    """The state of a worker from its Pod's status."""
    if pod is None:
        return ABSENT
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    if pod["metadata"].get("deletionTimestamp"):
        return WorkerStatus(False, False, "is being deleted")
    if phase in ENDED:
        return WorkerStatus(False, True, f"has ended ({phase}{_because(_ending(status))})")
    if condition_of(status, "Ready").get("status") == "True":
        return WorkerStatus(True, False, "is Ready")
    return WorkerStatus(False, False, f"is {phase}{_because(_waiting(status))}")


def _because(words: str) -> str:
    return f": {words}" if words else ""


def _ending(status: KubeObject) -> str:
    ended = [(name, one) for name, one in containers_in(status, "terminated") if one.get("exitCode")]
    ended = ended or containers_in(status, "terminated")
    if ended:
        name, one = ended[0]
        return f"container {name} ended with {one.get('exitCode')}{_because(_short(one.get('message')))}"
    return _short(status.get("reason")) or _short(status.get("message"))


def _waiting(status: KubeObject) -> str:
    scheduled = condition_of(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason') or 'Unschedulable'}{_because(_short(scheduled.get('message')))}"
    for _, one in containers_in(status, "waiting"):
        reason, message = str(one.get("reason") or ""), _short(one.get("message"))
        if reason not in ("", "PodInitializing"):
            return f"{reason}{_because(message)}"
    if status.get("phase") == "Running":
        return _short(condition_of(status, "Ready").get("message")) or "not Ready"
    return ""


def _short(text: object) -> str:
    return " ".join(str(text or "").split())[:200]


def waiting_text(sights: Mapping[str, WorkerStatus]) -> str:
    """A sentence about the workers that are not ready; empty: all are ready."""
    late = [name for name, sight in sights.items() if not sight.ready]
    if not late:
        return ""
    more = f"; and {len(late) - WORKERS_NAMED_MAX} more" if len(late) > WORKERS_NAMED_MAX else ""
    states = "; ".join(f"{name} {sights[name].text}" for name in late[:WORKERS_NAMED_MAX])
    return f"waiting for {len(late)} of {len(sights)} workers: {states}{more}"


class WorkerWatcher:
    """Follows the workers' Pods until the process ends or ``close`` is called.

    Args:
        api: the API server.
        every: their names.
    """

    def __init__(self, api: PodApi, every: Sequence[str]) -> None:
        self._api = api
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._sights = dict.fromkeys(every, UNSEEN)
        self._denied: dict[str, tuple[float, KubeError]] = {}
        self._whole_s = float("-inf")  # when all were last read
        works = [(self._watch, [name]) for name in every] if len(every) <= WATCHED_MAX else [(self._read, [*every])]
        for work, those in works:
            threading.Thread(target=self._follow, args=(work, those), name=f"see {those[0]}", daemon=True).start()

    def close(self) -> None:
        """Stop watching; each thread ends with its present watch."""
        self._over.set()

    def wait(self, patience: StartupWait) -> None:
        """Return once all workers are ready at the same time.

        Raises:
            MooringsError: ``worker.failed``, ``wait.timeout``, or ``kubernetes.refused``: we may not read one of them.
        """
        with self._changed:
            while text := waiting_text(self._sights):
                self._check()
                patience.log_wait(text)
                self._changed.wait(1.0)

    def _check(self) -> None:
        ended = [f"{name} {sight.text}" for name, sight in self._sights.items() if sight.ended]
        if ended:
            raise MooringsError(
                "worker.failed",
                f"a worker will not come up: {'; '.join(ended[:5])}",
                hint="'kubectl logs' of that Pod has its last words",
            )
        for name, (since_s, error) in self._denied.items():
            if time.monotonic() - since_s >= DENIED_S:
                hint = "the Role of the launcher's service account must let it get, list and watch its workers"
                raise MooringsError(error.code, f"{name} may not be looked at: {error.detail}", hint=hint)

    def _follow(self, work: Callable[[list[str]], float], those: list[str]) -> None:
        """Poll Pods repeatedly; ``work`` reads them and returns the pause before the next read."""
        pause_s = PAUSE_S
        while not self._over.is_set():
            try:
                wait_s = work(those)
                pause_s = PAUSE_S
            except KubeError as error:
                if error.status != 410:  # 410: our version is older than the server's history: only read again
                    self._update(
                        dict.fromkeys(those, WorkerStatus(False, False, f"is not known: {error.detail}")), error
                    )
                wait_s = max(pause_s, error.retry_after_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            self._over.wait(max(0.0, wait_s))

    def _watch(self, those: list[str]) -> float:
        (name,) = those
        pod, since = self._api.list(name)
        self._update({name: parse_worker_status(pod)})
        began_s = time.monotonic()
        for changed in self._api.watch(name, since):
            self._update({name: parse_worker_status(changed)})
        return began_s + PAUSE_S - time.monotonic()  # some servers end each watch at once

    def _read(self, those: list[str]) -> float:
        """Read all of them now and then; otherwise only until it is clear that some are not ready."""
        began_s = time.monotonic()
        whole = began_s - self._whole_s >= WHOLE_S
        seen: dict[str, WorkerStatus] = {}
        late = 0
        for name, pod in self._api.read(sorted(those, key=lambda one: self._sights[one].ready)):
            seen[name] = parse_worker_status(pod)
            late += not seen[name].ready
            if late == WORKERS_NAMED_MAX and not whole:
                break
        else:
            self._whole_s = began_s
        self._update(seen)
        return max(LOOK_S, time.monotonic() - began_s)  # reading takes at most half of the time

    def _update(self, seen: Mapping[str, WorkerStatus], error: KubeError | None = None) -> None:
        with self._changed:
            for name in seen:
                if error is None or error.status not in (401, 403):
                    self._denied.pop(name, None)
                else:
                    self._denied.setdefault(name, (time.monotonic(), error))
            self._sights |= seen
            self._changed.notify_all()


# -- the partition -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstancePartition:
    """The identity of an instance's partition, and the proxy to ask.

    Attributes:
        url: of the proxy.
        namespace: of the job.
        job: its name.
        uid: its uid.
        instance: number of the instance.
        token_file: file with a token for the proxy; read again for each call.
        ca_file: authorities of the proxy, if it uses TLS.
    """

    url: str
    namespace: str
    job: str
    uid: str
    instance: int
    token_file: Path
    ca_file: str = field(default="")

    def get_partition(self, *, reset: bool) -> PartitionBody | None:
        """The partition; None if the proxy does not know it.

        Raises:
            MooringsError: an error of the proxy or of the transport.
        """
        parts = (self.namespace, self.job, self.uid, str(self.instance))
        with Transport(Endpoint(self.url, self._token(), self.ca_file, timeout_s=ANSWER_S)) as proxy:
            if reset:
                target = build_target("/v1/partitions/{}/{}/{}/{}/reset", *parts)
                return proxy.send(
                    ApiCall("POST", target, parse_body(PartitionBody), is_retryable=False, wait_s=RESET_S)
                )
            target = build_target("/v1/partitions", namespace=self.namespace, job=self.job)
            listed = proxy.send(ApiCall("GET", target, parse_body(PartitionsBody)))
        mine = (one for one in listed.items if (one.uid, one.instance) == (self.uid, self.instance))
        return next(mine, None)

    def _token(self) -> str:
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            detail = f"the token {self.token_file} cannot be read: {format_cause(error)}"
            raise MooringsError("config.invalid", detail, hint="the operator mounts it into the Pod") from error


def wait_for_clean_partition(place: InstancePartition, patience: StartupWait, *, reset: bool) -> None:
    """Return once the partition is ready; with ``reset`` only after it was reset.

    A reset without a response is repeated: nothing runs there yet, and the proxy joins two resets into one.

    Raises:
        MooringsError: ``partition.unusable``, ``wait.timeout``, or a permanent refusal of the proxy.
    """
    pause_s, denied_s = PAUSE_S, 0.0
    wanted, requests_reset = reset, reset  # whether a reset is still needed, and whether the next request is the reset
    while True:
        try:
            found = place.get_partition(reset=requests_reset)
        except MooringsError as error:
            if requests_reset and error.code in _NOT_NOW:
                requests_reset = False  # read its present state
                continue
            denied_s = (denied_s or time.monotonic()) if _is_denial(error) else 0.0
            if not _is_temporary(error) or (denied_s and time.monotonic() - denied_s >= DENIED_S):
                raise
            patience.log_wait(f"waiting for the proxy {place.url}: {error.detail}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            continue
        pause_s, denied_s = PAUSE_S, 0.0
        wanted = wanted and not requests_reset
        if found is not None and found.state in (FAILED, LOST, RELEASING):
            _raise_unusable(found)
        if found is not None and found.state == READY and not wanted:
            return
        requests_reset = wanted
        state = "is not known to the proxy" if found is None else f"is {found.state}{_because(found.message)}"
        patience.log_wait(
            f"waiting {'until the partition can be reset' if wanted else 'for the partition'}: it {state}"
        )
        time.sleep(LOOK_S)


def _is_denial(error: MooringsError) -> bool:
    return isinstance(error, ApiError) and error.status in (401, 403)


def _is_temporary(error: MooringsError) -> bool:
    """404: a proxy that just started may not know it yet. TLS: one of our certificates may be about to change."""
    away = error.retryable or error.code == "controller.unreachable"
    return away or _is_denial(error) or (isinstance(error, ApiError) and error.status == 404)


def _raise_unusable(found: PartitionBody) -> NoReturn:
    detail = f"the partition is {found.state}{_because(found.message)}"
    raise MooringsError("partition.unusable", detail, hint="the operator makes a new one when the job starts anew")
