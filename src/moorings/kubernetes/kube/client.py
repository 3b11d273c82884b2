"""The API server over HTTPS: each call is sent once, and every failure is a ``KubeError``.

Paths and bodies are ours; lightkube's own client was measured and rejected (ADR 0007). Nothing is retried here: only
the caller knows whether it still wants the same a moment later.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import msgspec
from lightkube.core.exceptions import ConfigError

from moorings import __version__
from moorings.client.async_http import HttpError, HttpResponse, HttpTimeoutError, make_http_client
from moorings.client.error_text import format_cause
from moorings.kubernetes.kube.api import (
    SECRET,
    KubeError,
    KubeObject,
    ObjectList,
    ResourceType,
    WatchEvent,
    get_or_none,
)
from moorings.kubernetes.kube.kubeconfig import ClusterCredentials, load_credentials

PAGE = 500  # objects in one page of a list, as client-go requests
CONNECTIONS = 100
KEPT_S = 60.0  # lifetime of an idle connection; servers and load balancers close theirs later
RETRY_AFTER_MAX_S = 300.0
WORDS_MAX = 1000

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_PLAIN = re.compile(r"[A-Za-z0-9.-]*")
_NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeTimeouts:
    """Timeouts of requests to the API server, in seconds.

    Attributes:
        call_s: for the whole response to a call, or to one page of a list.
        watch_s: after which the server is asked to end a watch; up to a fifth less, so that not all end at once.
        silence_s: without a byte of a watch before it counts as dead. A server sends a bookmark every minute.
    """

    call_s: float = 10.0
    watch_s: float = 290.0
    silence_s: float = 90.0


def connect(
    environment: Mapping[str, str],
    *,
    path: str = "",
    context: str = "",
    patience: KubeTimeouts | None = None,
) -> KubeClient:
    """A client from a kubeconfig, or from inside a cluster; sends nothing yet.

    Args:
        environment: of the process.
        path: a kubeconfig; empty: ``KUBECONFIG``, then our Pod's service account, then ``~/.kube/config``.
        context: of the kubeconfig; empty: its current one.
        patience: the timeouts.

    Raises:
        MooringsError: ``kubernetes.not_configured``.
    """
    return KubeClient(load_credentials(environment, path=path, context=context), patience or KubeTimeouts())


class KubeClient:
    """A ``KubeApi``.

    Args:
        credentials: address of the API server, and our identity.
        patience: the timeouts.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self, credentials: ClusterCredentials, patience: KubeTimeouts, jitter: Callable[[], float] = random.random
    ) -> None:
        self.namespace = credentials.namespace
        self.server = credentials.server
        self._patience = patience
        self._chance = jitter
        self._identity = credentials.identity
        self._http = make_http_client(
            credentials.server,
            tls=credentials.tls,
            connections=CONNECTIONS,
            kept_s=KEPT_S,
            # Without this the server compresses every long list, which costs it more than the network gains.
            headers={
                "User-Agent": f"moorings/{__version__}",
                "Accept": "application/json",
                "Accept-Encoding": "identity",
            },
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, kind: ResourceType, name: str, namespace: str | None = None) -> KubeObject:
        return await self._call("GET", kind, build_path(kind, namespace, name))

    async def list(
        self,
        kind: ResourceType,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        trim: Callable[[KubeObject], KubeObject] | None = None,
    ) -> ObjectList:
        # Without a resourceVersion: the newest state, in pages of one moment.
        params = {"limit": str(PAGE), **_selector_params(labels, fields)}
        path = build_path(kind, namespace)
        items: list[KubeObject] = []
        while True:
            page = await self._call("GET", kind, f"{path}?{urlencode(params)}")
            found = page.get("items") or ()
            items += found if trim is None else map(trim, found)
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return ObjectList(items, metadata["resourceVersion"])
            params["continue"] = metadata["continue"]

    async def watch(
        self, kind: ResourceType, namespace: str | None = None, *, since: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent]:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(max(1, round(self._patience.watch_s * (1 - 0.2 * self._chance())))),
            **_selector_params(labels, fields),
        }
        target = f"{build_path(kind, namespace)}?{urlencode(params)}"
        with self._as_kube_error():
            sent = await self._authorization()
            streamed = self._http.stream(
                "GET", target, headers=sent, timeout_s=self._patience.call_s, silence_s=self._patience.silence_s
            )
            async with streamed as answer:
                if answer.status != 200:
                    async with asyncio.timeout(self._patience.call_s):
                        content = b"".join([chunk async for chunk in answer.chunks])
                    if answer.status == 401:
                        await self._authorization(sent)  # for the next watch
                    raise parse_status_error(answer.status, answer.headers, content, kind)
                # The caller sees by it that the watch is established.
                yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": since}})
                rest = b""
                async for chunk in answer.chunks:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield parse_event(line, kind)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        namespace = namespace or _namespace(body)
        assert namespace is not None or not kind.namespaced, f"a {kind.name} is made in a namespace"
        return await self._call("POST", kind, build_path(kind, namespace), body=_with_type_meta(kind, body))

    async def replace(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        path = build_path(kind, namespace or _namespace(body), body["metadata"]["name"])
        return await self._call("PUT", kind, path, body=_with_type_meta(kind, body))

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: KubeObject | Sequence[KubeObject],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> KubeObject:
        path = build_path(kind, namespace, name, subresource)
        media = MERGE_PATCH if isinstance(body, dict) else JSON_PATCH
        return await self._call("PATCH", kind, path, body=body, media=media)

    async def delete(
        self,
        kind: ResourceType,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        options: KubeObject = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid} | ({"resourceVersion": version} if version else {})
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", kind, build_path(kind, namespace, name), body=options)
        except KubeError as error:
            if error.status == 409 and uid and await self._uid(kind, name, namespace) != uid:
                return
            if error.status != 404:
                raise

    async def _uid(self, kind: ResourceType, name: str, namespace: str | None) -> str:
        found = await get_or_none(self, kind, name, namespace)
        return str(found["metadata"]["uid"]) if found is not None else ""

    async def close(self) -> None:
        await self._http.close()

    # -- transport -----------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        kind: ResourceType,
        target: str,
        *,
        body: KubeObject | Sequence[KubeObject] | None = None,
        media: str = "application/json",
    ) -> KubeObject:
        content = b"" if body is None else msgspec.json.encode(body)
        about = {} if body is None else {"Content-Type": media}
        with self._as_kube_error():
            sent = await self._authorization()
            answer = await self._send(method, target, sent | about, content)
            if answer.status == 401 and (newer := await self._authorization(sent)) != sent:
                answer = await self._send(method, target, newer | about, content)
        if not 200 <= answer.status < 300:
            raise parse_status_error(answer.status, answer.headers, answer.content, kind)
        return _parse(answer.content)

    async def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        return await self._http.call(method, target, headers=headers, body=body, timeout_s=self._patience.call_s)

    async def _authorization(self, refused: Mapping[str, str] = _NO_HEADERS) -> dict[str, str]:
        """The headers with our identity; others than the refused ones, if there are any."""
        if self._identity is None:
            return {}
        return {"Authorization": await self._identity.header(refused.get("Authorization", ""))}

    @contextmanager
    def _as_kube_error(self) -> Iterator[None]:
        """Raise transport failures as KubeErrors."""
        try:
            yield
        except (TimeoutError, HttpTimeoutError) as error:
            raise KubeError(0, "Timeout", f"{self.server} does not answer") from error
        except (HttpError, OSError) as error:
            raise KubeError(0, "Unreachable", f"{self.server} is not reached: {format_cause(error)}") from error
        except ConfigError as error:
            raise KubeError(
                0, "NoCredentials", f"there is nothing to tell {self.server} who we are: {error}"
            ) from error


def build_path(kind: ResourceType, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """The path of an object, or of all objects of a kind (in one namespace, or in all)."""
    parts = ["api", kind.version] if not kind.group else ["apis", kind.group, kind.version]
    if kind.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    assert namespace is not None or not kind.namespaced or not name, f"a {kind.name} stands in a namespace"
    return "/" + "/".join([_quoted(part) for part in (*parts, kind.plural, name, subresource) if part])


def _quoted(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else quote(part, safe="")  # most names need no quoting, and there are many


def parse_event(line: bytes, kind: ResourceType) -> WatchEvent:
    """One line of a watch.

    Raises:
        KubeError: the event says that the watch has failed, most often with 410, or the line cannot be read.
    """
    event = _parse(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise _refusal(int(status.get("code", 500)), status, kind, 0.0)
    return WatchEvent(event["type"], event["object"])


def parse_status_error(status: int, headers: Mapping[str, str], content: bytes, kind: ResourceType) -> KubeError:
    """The error of a response without success. A proxy in front of the API server may have sent it."""
    try:
        said = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("kind") != "Status":
        said = {"message": f"HTTP status {status} without a reason"}
    return _refusal(status, said, kind, _retry_after(headers.get("retry-after", "")))


def _refusal(status: int, said: KubeObject, kind: ResourceType, retry_after_s: float) -> KubeError:
    reason = str(said.get("reason") or "")
    # An API server may quote the request, and the content of a Secret must not get into a log.
    message = str(said.get("message") or "")[:WORDS_MAX] if kind is not SECRET else f"a Secret was refused: {reason}"
    details = said.get("details")
    if not retry_after_s and isinstance(details, dict):
        retry_after_s = min(float(details.get("retryAfterSeconds") or 0), RETRY_AFTER_MAX_S)
    return KubeError(status, reason, message or reason or f"HTTP status {status}", retry_after_s=retry_after_s)


def _retry_after(text: str) -> float:
    """Seconds; no API server uses the other form, a date."""
    return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0


def _parse(content: bytes) -> KubeObject:
    try:
        found = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise KubeError(0, "Unreadable", "the API server's answer is not JSON") from error
    if not isinstance(found, dict):
        raise KubeError(0, "Unreadable", "the API server's answer is no object")
    return found


def _selector_params(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {name: text for name, text in given.items() if text}


def _namespace(body: KubeObject) -> str | None:
    found: str | None = body["metadata"].get("namespace") if "metadata" in body else None
    return found


def _with_type_meta(kind: ResourceType, body: KubeObject) -> KubeObject:
    """Add the type fields that a list leaves out of its items."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}
