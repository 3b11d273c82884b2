"""The operator's access to the proxy: a typed client, and an informer of all partitions.

The informer's partitions are fresh while it is ``standing``. A missing partition means something only if it is
``complete`` as well: every controller answers the proxy.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType

from moorings import __version__
from moorings.client.async_http import DirectHttpClient, HttpError
from moorings.client.error_text import format_cause
from moorings.client.requests import build_body, build_target, parse_problem
from moorings.client.sse import EventParser
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy_api.shapes import (
    ChangeBody,
    PartitionBody,
    PartitionRequest,
    PartitionsBody,
    parse_version,
)
from moorings.wire.codec import decode

log = logging.getLogger("moorings.kubernetes.proxy.client")

CALL_S = 20.0
RESET_S = 150.0  # the proxy responds only after the reset
SILENCE_S = 45.0  # of a watch; the proxy sends a heartbeat every 10 s
CONNECTIONS = 64
KEPT_S = 30.0  # lifetime of an idle connection
TOKEN_S = 10.0  # how long a token is used before it is read again; the kubelet renews it long before it expires
PAUSE_S, PAUSE_S_MAX = 0.2, 5.0
RELIST_S = 10.0  # between lists, while a controller did not respond at the last one


class ProxyClient:
    """A typed client of the proxy.

    Args:
        server: ``https://host:port``, which no certificate satisfies until ``add_authorities``; or ``http://host:port``.
        token_file: of the service account's token for the proxy; read repeatedly, since it is renewed.
        token: returns the token instead, if there is no file.
    """

    def __init__(self, server: str, token_file: Path | None = None, token: Callable[[], str] | None = None) -> None:
        self.server = server.rstrip("/")
        self._token_file = token_file
        self._token = token
        self._read_at = float("-inf")
        self._kept = ""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._http = DirectHttpClient(
            self.server,
            tls=self._context,
            connections=CONNECTIONS,
            keep_alive_s=KEPT_S,
            headers={"Accept": "application/json", "User-Agent": f"moorings/{__version__}"},
        )

    async def __aenter__(self) -> ProxyClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    def add_authorities(self, authorities: str) -> None:
        """Trust certificates of these authorities (PEM), in addition to earlier ones, for all new connections.

        Raises:
            MooringsError: ``config.invalid``.
        """
        try:
            self._context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            detail = f"the authorities of the proxy cannot be read: {format_cause(error)}"
            raise MooringsError(
                "config.invalid", detail, hint="delete that ConfigMap: the proxy makes a new one"
            ) from error

    async def create(self, request: PartitionRequest) -> PartitionBody:
        """Request the partition of an instance, and return its present state; idempotent.

        Raises:
            MooringsError: the proxy's error, or ``controller.unreachable``.
        """
        return decode(PartitionBody, await self._call("POST", "/v1/partitions", build_body(request)))

    async def list(self, namespace: str = "", job: str = "") -> PartitionsBody:
        """All partitions, or those of a job.

        Raises:
            MooringsError: as ``create``.
        """
        target = build_target("/v1/partitions", namespace=namespace, job=job)
        return decode(PartitionsBody, await self._call("GET", target))

    async def release(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody | None:
        """Release a partition; None: nothing is left of it.

        Raises:
            MooringsError: as ``create``.
        """
        left = await self._call("DELETE", _target(namespace, job, uid, instance))
        return decode(PartitionBody, left) if left is not None else None

    async def yield_partition(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        """Release a partition that is RECLAIMING: nothing runs on it any more, and its instance waits again.

        Raises:
            MooringsError: as ``create``.
        """
        return decode(PartitionBody, await self._call("POST", f"{_target(namespace, job, uid, instance)}/yield"))

    async def reset(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        """Reset a partition; returns it when it is clean.

        Raises:
            MooringsError: as ``create``.
        """
        target = f"{_target(namespace, job, uid, instance)}/reset"
        return decode(PartitionBody, await self._call("POST", target, timeout_s=RESET_S))

    async def watch(self, since: str) -> AsyncIterator[tuple[str, ChangeBody]]:
        """The changes after a version, each with its own version; ends when the proxy ends it.

        Raises:
            MooringsError: ``watch.expired`` (list again), or as ``create``.
        """
        parser = EventParser()
        target = build_target("/v1/partitions/watch", since=since)
        try:
            async with self._http.stream(
                "GET", target, headers=self._headers(), timeout_s=CALL_S, silence_s=SILENCE_S
            ) as answer:
                if answer.status >= 400:
                    content = b"".join([chunk async for chunk in answer.chunks])
                    raise self._refusal(answer.status, answer.headers, content)
                async for chunk in answer.chunks:
                    for event in parser.feed(chunk):
                        yield event.id, decode(ChangeBody, json.loads(event.data))
        except (HttpError, ValueError) as error:
            raise self._unreachable(error) from error

    async def _call(self, method: str, target: str, body: bytes = b"", *, timeout_s: float = CALL_S) -> object:
        headers = self._headers()
        if body:
            headers["Content-Type"] = "application/json"
        try:
            answer = await self._http.call(method, target, headers=headers, body=body, timeout_s=timeout_s)
            if answer.status >= 400:
                raise self._refusal(answer.status, answer.headers, answer.content)
            found: object = json.loads(answer.content) if answer.status != 204 else None
        except (HttpError, ValueError, RecursionError) as error:
            raise self._unreachable(error) from error
        return found

    def _headers(self) -> dict[str, str]:
        token = self._token() if self._token is not None else self._read_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _read_token(self) -> str:
        if self._token_file is not None and time.monotonic() - self._read_at > TOKEN_S:
            try:
                self._kept = self._token_file.read_text("utf-8").strip()
                self._read_at = time.monotonic()
            except (OSError, UnicodeDecodeError) as error:
                if not self._kept:
                    raise MooringsError(
                        "config.invalid", f"the token {self._token_file} cannot be read: {format_cause(error)}"
                    ) from error
        return self._kept

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> MooringsError:
        return parse_problem(status, dict(headers), body, server=self.server)

    def _unreachable(self, error: Exception) -> MooringsError:
        why = str(error) or type(error).__name__
        return MooringsError(
            "controller.unreachable", f"the proxy {self.server} was not reached: {why}", retryable=True
        )


def _target(namespace: str, job: str, uid: str, instance: int) -> str:
    return build_target("/v1/partitions/{}/{}/{}/{}", namespace, job, uid, str(instance))


class PartitionInformer:
    """All partitions, kept current by list and watch.

    Args:
        client: the proxy.
        on_change: gets ``namespace/job`` after each change of that job's partitions.
        on_return: called whenever it is current again: jobs that failed need not wait for their next try.

    Attributes:
        listed: whether there was a list since ``serve`` began.
        is_watching: whether the watch is connected, so that the data is fresh.
        is_complete: whether every controller answered the proxy at the last list, so that a partition missing there
            does not exist.
    """

    def __init__(
        self, client: ProxyClient, on_change: Callable[[str], None], on_return: Callable[[], None] | None = None
    ) -> None:
        self.listed = False
        self.is_complete = False
        self.is_watching = False
        self._client = client
        self._on_change = on_change
        self._on_return = on_return
        self._jobs: dict[str, dict[tuple[str, int], PartitionBody]] = {}
        self._version = ""
        self._first = asyncio.Event()

    @property
    def is_synced(self) -> bool:
        """Whether a missing partition does not exist: all controllers respond, and no change can have been missed."""
        return self.is_complete and self.is_watching

    def get(self, namespace: str, job: str, uid: str = "") -> Mapping[int, PartitionBody]:
        """A job's partitions by instance; with ``uid`` only those of the job with that uid."""
        found = self._jobs.get(f"{namespace}/{job}", {})
        return {instance: body for (of, instance), body in found.items() if uid in ("", of)}

    def by_job_name(self, namespace: str, job: str) -> list[PartitionBody]:
        """The partitions of all jobs that had this name."""
        return list(self._jobs.get(f"{namespace}/{job}", {}).values())

    def all(self) -> list[PartitionBody]:
        """All partitions."""
        return [body for partitions in self._jobs.values() for body in partitions.values()]

    def observe(self, body: PartitionBody) -> None:
        """Apply the proxy's response about a partition, unless the watch has shown that state or a later one."""
        if self._is_after(body.version, self._version) and not self._is_older(body, body.version):
            self._put(body)

    def observe_gone(self, before: PartitionBody) -> None:
        """Apply that nothing is left of a partition; ``before`` is the state known here before that request."""
        found = self.get(before.namespace, before.job, before.uid).get(before.instance)
        if found is not None and found.version == before.version:
            self._drop(before)

    async def ready(self) -> None:
        """Return once there is a list."""
        await self._first.wait()

    async def serve(self) -> None:
        """List and watch until cancelled; data from before counts as old."""
        self._end()
        try:
            await self._serve()
        finally:
            self._end()

    def _end(self) -> None:
        self.is_watching = self.is_complete = self.listed = False
        self._first.clear()

    async def _serve(self) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                await self._list()
                pause_s = PAUSE_S
                await self._watch()
            except MooringsError as error:
                self.is_watching = False
                if error.code != "watch.expired":
                    log.warning("partitions.not_watched", extra={"code": error.code, "detail": error.detail})
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _list(self) -> None:
        found = await self._client.list()
        before, self._jobs = self._jobs, {}
        answered = [
            one for jobs in before.values() for one in jobs.values() if self._is_after(one.version, found.version)
        ]
        for body in (*found.items, *answered):
            self._jobs.setdefault(f"{body.namespace}/{body.job}", {})[body.uid, body.instance] = body
        was_current = self.is_synced and self.listed
        self.is_complete, self.listed, self._version, self.is_watching = found.complete, True, found.version, True
        self._first.set()
        for key in {*before, *self._jobs}:
            if before.get(key) != self._jobs.get(key) or self.is_synced != was_current:
                self._on_change(key)
        if self.is_synced and not was_current and self._on_return is not None:
            self._on_return()

    async def _watch(self) -> None:
        """Follow the changes, until a new list is needed."""
        until = time.monotonic() + (RELIST_S if not self.is_complete else 6 * RELIST_S)
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    async for version, change in self._client.watch(self._version):
                        self._version = version
                        self._take(change, version)
            except TimeoutError:
                return

    def _take(self, change: ChangeBody, version: str) -> None:
        body = change.partition
        if self._is_older(body, version):
            return
        if change.gone:
            self._drop(body)
        else:
            self._put(body)

    def _is_older(self, body: PartitionBody, version: str) -> bool:
        """Whether a response has already shown a later state of this instance than a version's."""
        known = self._jobs.get(f"{body.namespace}/{body.job}", {}).get((body.uid, body.instance))
        return known is not None and self._is_after(known.version, version)

    @staticmethod
    def _is_after(version: str, other: str) -> bool:
        """Whether a version is later than another of the same process; versions of two processes are not comparable."""
        boot, number = parse_version(version)
        other_boot, other_number = parse_version(other)
        return boot == other_boot and number > other_number

    def _drop(self, body: PartitionBody) -> None:
        key = f"{body.namespace}/{body.job}"
        found = self._jobs.get(key, {})
        if found.pop((body.uid, body.instance), None) is not None:
            if not found:
                del self._jobs[key]
            self._on_change(key)

    def _put(self, body: PartitionBody) -> None:
        key = f"{body.namespace}/{body.job}"
        found = self._jobs.setdefault(key, {})
        before = found.get((body.uid, body.instance))
        found[body.uid, body.instance] = body
        if before != body:
            self._on_change(key)
