"""The typed client: one method a call, complete lists, streams that survive a restart of the controller."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from moorings.client.requests import (
    ALL_EVENTS,
    PAGE_ITEMS,
    UNENDED_CLAIMS,
    UNENDED_RUNS,
    ApplianceFilter,
    ClaimFilter,
    EventFilter,
    RunFilter,
    build_call,
)
from moorings.client.sse import EventParser
from moorings.client.transport import STREAM_SILENCE_S_MAX, Retries, RetryPolicy, Transport
from moorings.core.model.errors import MooringsError
from moorings.wire import operations
from moorings.wire.codec import decode
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest, WhatIfBody, WhatIfRequest
from moorings.wire.operations import ListPage, Operation
from moorings.wire.shapes import (
    ApplianceJobBody,
    BindingBody,
    CallerBody,
    CapacityBody,
    CheckpointRequest,
    ClaimBody,
    ClaimRequest,
    DeviceBody,
    DrainRequest,
    EstimateBody,
    EstimateRequest,
    EventBody,
    ExplanationBody,
    FindingsBody,
    KeyBody,
    KeyRequest,
    LabelsRequest,
    PartitionBody,
    PartitionRequest,
    PauseRequest,
    PoolBody,
    PriorityRequest,
    ProjectBody,
    ProjectRequest,
    QueueBody,
    QueueRequest,
    QuotaBody,
    ResumeRequest,
    RotateRequest,
    RunBody,
    RunReportBody,
    RunReportRequest,
    RunRequest,
    SubmittedJobsBody,
    SubmittedJobsRequest,
    TerminalBody,
    VersionBody,
    YieldRequest,
)

T = TypeVar("T")


class Client:
    """One controller's API. For one thread; close it, or use it in a ``with``.

    Raises (from every method):
        MooringsError: the controller's error (``ApiError``), or ``controller.unreachable``.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long calls and streams are retried while the controller is away."""
        return self._transport.patience

    @retry_policy.setter
    def retry_policy(self, patience: RetryPolicy) -> None:
        self._transport.patience = patience

    @property
    def requests_sent(self) -> int:
        """The number of requests that may have reached the controller: those whose connection was not refused."""
        return self._transport.sent

    @property
    def connections_lost(self) -> int:
        """How many connections were lost or refused so far."""
        return self._transport.connections_lost

    @property
    def key_expires_at(self) -> str:
        """When the access key expires, from the last response; empty: never, or not known."""
        return self._transport.key_expires

    @property
    def server(self) -> str:
        """The address of the controller."""
        return self._transport.endpoint.server

    # ------------------------------------------------------------------------------------------------ the controller

    def version(self) -> VersionBody:
        """The controller's release and installation."""
        return self._call(operations.GET_VERSION)

    def ready(self) -> Mapping[str, object]:
        """The controller's health.

        Raises:
            MooringsError: it is not ready.
        """
        return self._call(operations.GET_READINESS)

    def who_am_i(self) -> CallerBody:
        """The caller itself: the subject and the role that the controller knows it by."""
        return self._call(operations.WHO_AM_I)

    def get_findings(self) -> FindingsBody:
        """The controller's checks of itself; for admins."""
        return self._call(operations.GET_FINDINGS)

    def metrics(self) -> str:
        """The controller's numbers, in Prometheus' text format."""
        timeout_s = self._transport.endpoint.timeout_s
        with self._transport.open_stream(build_call(operations.GET_METRICS), silence_s=timeout_s) as chunks:
            return b"".join(chunks).decode("utf-8", "replace")

    # --------------------------------------------------------------------------------------------- pools and devices

    def list_pools(self) -> tuple[PoolBody, ...]:
        """All pools."""
        return self._list_all(operations.LIST_POOLS)

    def get_pool(self, name: str) -> PoolBody:
        """One pool."""
        return self._call(operations.GET_POOL, name)

    def capacity(self, pool: str, size: int) -> CapacityBody:
        """The number of partitions of ``size`` devices that could be formed now."""
        return self._call(operations.GET_CAPACITY, pool, size=size)

    def list_devices(self, pool: str | None = None) -> tuple[DeviceBody, ...]:
        """All devices, or those of one pool."""
        return self._list_all(operations.LIST_DEVICES, pool=pool)

    def device(self, ident: str) -> DeviceBody:
        """One device, by ``<pool>:<index>``."""
        return self._call(operations.GET_DEVICE, ident)

    def drain_device(self, ident: str, reason: str) -> DeviceBody:
        """Take a device out of service; its holder keeps it."""
        return self._call(operations.DRAIN_DEVICE, ident, body=DrainRequest(reason=reason))

    def resume_device(self, ident: str) -> DeviceBody:
        """Put a device back into service."""
        return self._call(operations.RESUME_DEVICE, ident)

    # ----------------------------------------------------------------------------------------- claims and partitions

    def list_claims(self, where: ClaimFilter = UNENDED_CLAIMS) -> tuple[ClaimBody, ...]:
        """The claims that match a filter, by arrival."""
        return self._list_all(
            operations.LIST_CLAIMS, state=where.state, ownerPrefix=where.owner_prefix, pool=where.pool, all=where.all
        )

    def report_queue(self, request: QueueRequest) -> QueueBody:
        """Report the jobs in another scheduler's queue; they replace the last report."""
        return self._call(operations.TELL_QUEUE, body=request)

    def report_jobs(self, queue: str, request: SubmittedJobsRequest) -> SubmittedJobsBody:
        """Report the jobs of runs that people have submitted to another scheduler themselves."""
        return self._call(operations.REPORT_JOBS, *queue.split("/", 1), body=request)

    def list_queues(self) -> tuple[QueueBody, ...]:
        """All queues of other schedulers, with the jobs that wait there and why."""
        return self._list_all(operations.LIST_QUEUES)

    def queue(
        self, queue: str, *, wait_s: float = 0.0, version: str | None = None, instance: str | None = None
    ) -> QueueBody:
        """Another scheduler's queue, once its offer has another version, or after ``wait_s``.

        Refused (``queue.taken``) while another instance than ``instance`` reports it.
        """
        kind, _, cluster = queue.partition("/")
        return self._call(operations.GET_QUEUE, kind, cluster, wait_s=wait_s, version=version, instance=instance)

    def create_claim(self, request: ClaimRequest, key: str | None = None, *, wait_s: float = 0.0) -> ClaimBody:
        """Submit a claim and wait until it is READY; with ``key`` a repeated call gives the same claim."""
        return self._call(operations.CREATE_CLAIM, body=request, key=key, wait_s=wait_s)

    def get_claim(self, ident: str, *, wait_s: float = 0.0, until: str | None = None) -> ClaimBody:
        """One claim, by id or name; with ``until`` (GRANTED, READY, ENDED) once it is there, or after ``wait_s``."""
        return self._call(operations.GET_CLAIM, ident, wait_s=wait_s, for_=until)

    def delete_claim(self, ident: str, *, wait_s: float = 0.0, only_waiting: bool = False) -> ClaimBody:
        """Release a claim; its partition is removed. With ``wait_s`` the claim once it has ended, or after that time.

        With ``only_waiting`` a claim that holds a partition by now is left alone, and refused (``claim.held``).
        """
        return self._call(operations.RELEASE_CLAIM, ident, wait_s=wait_s, onlyWaiting=only_waiting)

    def renew_claim(self, ident: str) -> ClaimBody:
        """Restart its lease from now."""
        return self._call(operations.RENEW_CLAIM, ident)

    def yield_claim(self, ident: str, why: str = "") -> ClaimBody:
        """Release the partition of a claim that was asked to yield: its job has stopped; it waits again."""
        return self._call(operations.YIELD_CLAIM, ident, body=YieldRequest(why=why))

    def checkpoint_claim(self, ident: str, at: str | None = None) -> ClaimBody:
        """Report that its job has saved a checkpoint, at that time or now."""
        return self._call(
            operations.CHECKPOINT_CLAIM, ident, body=CheckpointRequest(at=at), is_repeatable=at is not None
        )

    def explain_claim(self, ident: str, *, when: bool = False) -> ExplanationBody:
        """Why it is in its state, and what would change that; with ``when`` also when it would start."""
        return self._call(operations.EXPLAIN_CLAIM, ident, when=when)

    def estimate(self, request: EstimateRequest) -> EstimateBody:
        """Estimate when a claim submitted now would start; nothing changes."""
        return self._call(operations.ESTIMATE, body=request)

    def compare_policies(self, policy: str) -> WhatIfBody:
        """What a policy file (its text) would change for the claims that wait now; nothing changes."""
        return self._call(operations.WHAT_IF, body=WhatIfRequest(policy=policy))

    def defragment(self, request: DefragmentRequest) -> DefragmentBody:
        """Move claims to make a larger block free; as a dry run, return the moves only."""
        return self._call(operations.DEFRAGMENT, body=request, is_repeatable=request.dry_run)

    def binding(self, ident: str, *, wait_s: float = 0.0) -> BindingBody:
        """The binding for the job on its partition; waits until the claim is READY, at most ``wait_s``."""
        return self._call(operations.GET_BINDING, ident, wait_s=wait_s)

    def list_partitions(self, pool: str | None = None) -> tuple[PartitionBody, ...]:
        """All partitions, or those of one pool."""
        return self._list_all(operations.LIST_PARTITIONS, pool=pool)

    def create_partition(self, request: PartitionRequest, key: str | None = None) -> ClaimBody:
        """Make a partition without a job; return the claim that holds it."""
        return self._call(operations.CREATE_PARTITION, body=request, key=key)

    def partition(self, ident: str) -> PartitionBody:
        """One partition, by id or name."""
        return self._call(operations.GET_PARTITION, ident)

    def delete_partition(self, ident: str, *, wait_s: float = 0.0) -> ClaimBody:
        """Remove a partition, by releasing its claim; return the claim."""
        return self._call(operations.DELETE_PARTITION, ident, wait_s=wait_s)

    def reset_partition(self, ident: str) -> PartitionBody:
        """Put its devices into a clean state."""
        return self._call(operations.RESET_PARTITION, ident)

    # ------------------------------------------------------------------------------------------------------ projects

    def list_projects(self) -> tuple[ProjectBody, ...]:
        """All projects, by name."""
        return self._list_all(operations.LIST_PROJECTS)

    def project(self, name: str) -> ProjectBody:
        """One project, by its path."""
        return self._call(operations.GET_PROJECT, name)

    def set_project(self, name: str, request: ProjectRequest) -> ProjectBody:
        """Make a project, or with ``version`` change it; for admins. The request replaces all of it."""
        return self._call(operations.SET_PROJECT, name, body=request)

    def delete_project(self, name: str) -> None:
        """Remove an unused project; for admins."""
        self._call(operations.DELETE_PROJECT, name)

    def list_quotas(self) -> tuple[QuotaBody, ...]:
        """What each project is guaranteed, holds, borrows and waits for, by project and pool."""
        return self._list_all(operations.LIST_QUOTAS)

    # ---------------------------------------------------------------------------------------------------------- runs

    def list_runs(self, where: RunFilter = UNENDED_RUNS) -> tuple[RunBody, ...]:
        """The runs that match a filter, by creation."""
        return self._list_all(
            operations.LIST_RUNS, state=where.state, subject=where.subject, array=where.array, all=where.all
        )

    def create_run(self, request: RunRequest, key: str | None = None) -> RunBody:
        """Start a job; with ``key`` a repeated call gives the same run."""
        return self._call(operations.CREATE_RUN, body=request, key=key)

    def get_run(self, ident: str, *, wait_s: float = 0.0) -> RunBody:
        """One run, by id or name; with ``wait_s`` once it has ended, or after that time."""
        return self._call(operations.GET_RUN, ident, wait_s=wait_s)

    def report_run(self, ident: str, request: RunReportRequest) -> RunReportBody:
        """Report on a run that its person submits."""
        return self._call(operations.REPORT_RUN, ident, body=request)

    def label_run(self, ident: str, request: LabelsRequest) -> RunBody:
        """Change labels of a run that has not ended."""
        return self._call(operations.LABEL_RUN, ident, body=request)

    def prioritise_run(self, ident: str, priority: int) -> RunBody:
        """Change a run's place in the queue: a higher number comes first."""
        return self._call(operations.PRIORITISE_RUN, ident, body=PriorityRequest(priority=priority))

    def appliance_jobs(self, where: ApplianceFilter) -> tuple[ApplianceJobBody, ...]:
        """The jobs of appliances that match a filter, by creation."""
        return self._list_all(
            operations.LIST_APPLIANCE_JOBS,
            state=where.state,
            subject=where.subject,
            kind=where.kind,
            workflow=where.workflow,
            label=tuple(f"{key}={value}" for key, value in where.labels),
            all=where.all,
        )

    def cancel_run(self, ident: str, *, wait_s: float = 0.0) -> RunBody:
        """Cancel a run: TERM, its grace period, KILL."""
        return self._call(operations.CANCEL_RUN, ident, wait_s=wait_s)

    def pause_run(self, ident: str, request: PauseRequest | None = None, *, wait_s: float = 0.0) -> RunBody:
        """Pause a run: it saves a checkpoint and stops, and its devices are free."""
        return self._call(operations.PAUSE_RUN, ident, body=request or PauseRequest(), wait_s=wait_s)

    def resume_run(self, ident: str, request: ResumeRequest | None = None) -> RunBody:
        """Let a paused run wait in the queue again."""
        return self._call(operations.RESUME_RUN, ident, body=request or ResumeRequest())

    def logs(
        self, ident: str, *, task: int | None = None, follow: bool = False, since: str | None = None
    ) -> Iterator[bytes]:
        """The output of a run from its beginning, as it comes; with ``follow`` until the run ends.

        ``since``: only what was written after that time of the API.

        A lost connection is an error here: the caller must skip what it has read before.
        """
        call = build_call(operations.GET_LOGS, ident, task=task, follow=follow, since=since)
        with self._transport.open_stream(call) as chunks:
            yield from chunks

    def get_terminal(self, ident: str, *, attended: bool = False) -> TerminalBody:
        """Where the terminal of a run is; ``attended``: this person is at it."""
        return self._call(operations.GET_TERMINAL, ident, attended=attended)

    # ----------------------------------------------------------------------------------------------- keys and events

    def list_keys(self) -> tuple[KeyBody, ...]:
        """All access keys, without their secrets."""
        return self._list_all(operations.LIST_KEYS)

    def create_key(self, request: KeyRequest) -> KeyBody:
        """Make an access key; only this response has its secret."""
        return self._call(operations.CREATE_KEY, body=request)

    def rotate_key(self, ident: str, request: RotateRequest) -> KeyBody:
        """Give an access key a new secret; only this response has it."""
        return self._call(operations.ROTATE_KEY, ident, body=request)

    def delete_key(self, ident: str) -> None:
        """Revoke an access key."""
        self._call(operations.REVOKE_KEY, ident)

    def list_events(
        self, where: EventFilter = ALL_EVENTS, *, after: int = 0, limit: int | None = None
    ) -> tuple[EventBody, ...]:
        """One page of the event log: events with a greater sequence number, in order."""
        found = self._call(
            operations.LIST_EVENTS, after=after or None, limit=limit, claim=where.claim, run=where.run, name=where.names
        )
        return found.items

    def events_after(self, where: EventFilter, after: int) -> Iterator[EventBody]:
        """All events that match a filter, with a greater sequence number, in order, read page by page."""
        while True:
            page = self.list_events(where, after=after, limit=PAGE_ITEMS)
            yield from page
            if len(page) < PAGE_ITEMS:
                return
            after = page[-1].seq

    def last_events(self, where: EventFilter, count: int) -> tuple[EventBody, ...]:
        """The newest ``count`` events that match a filter, in order."""
        if where.claim is not None or where.run is not None:  # there are few
            return tuple(deque(self.events_after(where, 0), maxlen=count))
        last, back = self.last_seq(), count
        while True:
            after = max(0, last - back)
            found = tuple(deque(self.events_after(where, after), maxlen=count))
            if len(found) == count or not after:
                return found
            back *= 8

    def last_seq(self) -> int:
        """The last sequence number, by doubling and halving: some dozens of tiny requests instead of the whole log."""
        low, step = 0, 1
        while self.list_events(after=low + step - 1, limit=1):
            low, step = low + step, step * 2
        while step > 1:
            step //= 2
            if self.list_events(after=low + step - 1, limit=1):
                low += step
        return low

    def watch_events(
        self, where: EventFilter = ALL_EVENTS, *, after: int | None = None
    ) -> Iterator[tuple[EventBody, ...]]:
        """Events as they happen, in batches as they arrive; after a lost connection it continues where it was.

        An empty batch means that the stream is open: later events will be seen. Without ``after`` it begins now, and
        events between a loss before the first event and the next empty batch may be missed: read the list again then.
        """
        call = build_call(operations.LIST_EVENTS, watch=1, claim=where.claim, run=where.run, name=where.names)
        last = "" if after is None else str(after)
        retries = Retries(self._transport.patience)
        while True:
            try:
                parser = EventParser()
                opened = self._transport.open_stream(call, last_event_id=last, silence_s=STREAM_SILENCE_S_MAX)
                with opened as chunks:
                    yield ()
                    for chunk in chunks:
                        retries = Retries(self._transport.patience)
                        found = parser.feed(chunk)
                        last = next((event.id for event in reversed(found) if event.id), last)
                        if found:
                            yield tuple(decode(EventBody, _json_object(event.data)) for event in found)
                problem = MooringsError(
                    "controller.unreachable", f"{self.server} ended the event stream", retryable=True
                )
            except MooringsError as error:
                problem = error
            retries.wait(problem)

    def _call(self, operation: Operation[T], *parts: str, **values: Any) -> T:  # noqa: ANN401 - those of build_call
        return self._transport.send(build_call(operation, *parts, **values))

    def _list_all(self, operation: Operation[ListPage[T]], **query: object) -> tuple[T, ...]:
        items: list[T] = []
        after: str | None = None
        while True:
            page = self._call(operation, **query, limit=PAGE_ITEMS, continue_=after)
            items += page.items
            after = page.after
            if after is None:
                return tuple(items)

    # The names of release 0.1.0, for programs that call them.
    claim = get_claim
    claims = list_claims
    devices = list_devices
    events = list_events
    findings = get_findings
    keys = list_keys
    partitions = list_partitions
    pool = get_pool
    pools = list_pools
    projects = list_projects
    queues = list_queues
    quotas = list_quotas
    run = get_run
    runs = list_runs
    tell_queue = report_queue
    what_if = compare_policies


def _json_object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MooringsError("body.invalid", "an event of the stream is not JSON") from error
