"""Calls to kubelets through the API server: a Pod's output, and commands in a Pod.

They have their own client beside ``connection``: a followed output holds a connection for as long as the Pod runs, and
there may be hundreds.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import httpx2
from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError
from lightkube.core.exceptions import ConfigError

from moorings import __version__
from moorings.client.error_text import format_cause
from moorings.kubernetes.kube.api import POD, KubeError
from moorings.kubernetes.kube.client import build_path, parse_status_error
from moorings.kubernetes.kube.kubeconfig import ClusterCredentials, TokenSource

CALL_S = 10.0
EXEC_S = 30.0
PROTOCOL = "v4.channel.k8s.io"
OUTPUT_BYTES_MAX = 64 << 10

# Kubelet's text at the end of an output, with status 200, if it removed the container in between.
_GONE = re.compile(
    rb"(?:unable to retrieve container logs for |rpc error: code = NotFound desc = )[^\n]*[0-9a-f]{64}[^\n]*\n?\Z"
)

_STDOUT, _STDERR, _STATUS = 1, 2, 3


class _Auth(httpx2.Auth):
    """A ``TokenSource``, for httpx2."""

    def __init__(self, identity: TokenSource) -> None:
        self._identity = identity

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        value = request.headers["Authorization"] = await self._identity.header()
        answer = yield request
        if answer.status_code == 401 and (newer := await self._identity.header(value)) != value:
            request.headers["Authorization"] = newer
            yield request


class PodStreams:
    """Calls to kubelets."""

    def __init__(self, credentials: ClusterCredentials) -> None:
        self._server = credentials.server
        self._http = httpx2.AsyncClient(
            verify=credentials.tls,
            auth=_Auth(credentials.identity) if credentials.identity is not None else None,
            timeout=httpx2.Timeout(CALL_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            headers={"User-Agent": f"moorings/{__version__}", "Accept-Encoding": "identity"},
        )

    async def stream_logs(
        self, namespace: str, pod: str, container: str, *, follow: bool, lines: int | None = None
    ) -> AsyncIterator[bytes]:
        """A container's output from the beginning that its node still has; with ``follow`` until the container ends.

        Args:
            namespace: of the Pod.
            pod: its name.
            container: its name.
            follow: whether to wait for more.
            lines: begin with so many of the last lines; None: with all.

        Raises:
            KubeError: 404 if there is no such Pod, 400 before there is such a container.
        """
        words = {"container": container, **({"follow": "true"} if follow else {})}
        words |= {"tailLines": str(lines)} if lines is not None else {}
        url = f"{self._server}{build_path(POD, namespace, pod, 'log')}?{urlencode(words)}"
        timeout = httpx2.Timeout(CALL_S, read=None if follow else CALL_S)
        async with _as_kube_error(self._server), self._http.stream("GET", url, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise parse_status_error(answer.status_code, answer.headers, await answer.aread(), POD)
            held = b""
            async for chunk in answer.aiter_raw():
                chunk, held = held + chunk, b""
                if found := _GONE.search(chunk):
                    chunk, held = chunk[: found.start()], chunk[found.start() :]
                if chunk:
                    yield chunk
            if held:
                raise KubeError(404, "NotFound", held.decode("utf-8", "replace").strip())

    async def execute(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in a container; returns its exit code and its output.

        Raises:
            KubeError: it could not be run.
        """
        words = [("container", container), ("stdout", "1"), ("stderr", "1"), *(("command", word) for word in command)]
        url = f"{self._server}{build_path(POD, namespace, pod, 'exec')}?{urlencode(words)}"
        printed = b""
        async with (
            _as_kube_error(self._server),
            asyncio.timeout(EXEC_S),
            self._http.websocket(url, subprotocols=[PROTOCOL]) as socket,
        ):
            while True:
                message = await socket.receive_bytes()
                channel, content = message[0], message[1:]
                if channel in (_STDOUT, _STDERR):
                    printed = (printed + content)[:OUTPUT_BYTES_MAX]
                elif channel == _STATUS:
                    return parse_status(content), printed.decode("utf-8", "replace").strip()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def parse_status(content: bytes) -> int:
    """The exit code in the last message of an exec.

    Raises:
        KubeError: the command was not run.
    """
    said = json.loads(content)
    if said.get("status") == "Success":
        return 0
    if said.get("reason") == "NonZeroExitCode":
        causes: list[Mapping[str, str]] = (said.get("details") or {}).get("causes") or []
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    raise KubeError(422, "NotRun", str(said.get("message") or "the command could not be run")[:1000])


@asynccontextmanager
async def _as_kube_error(server: str) -> AsyncIterator[None]:
    """Raise transport failures as KubeErrors."""
    try:
        yield
    except Exception as raised:
        error = _unwrap_group(raised)
        if isinstance(error, KubeError):
            raise error from raised
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            raise KubeError(0, "Timeout", f"{server} does not answer") from raised
        if isinstance(error, WebSocketUpgradeError):
            raise parse_status_error(error.response.status_code, error.response.headers, b"", POD) from raised
        if isinstance(error, _FAULTS):
            raise KubeError(0, "Unreachable", f"{server} is not reached: {format_cause(error)}") from raised
        raise


_FAULTS = (httpx2.HTTPError, httpx2.StreamError, HTTPXWSException, ConfigError, OSError, ValueError)


def _unwrap_group(error: BaseException) -> BaseException:
    """The single error in nested groups of one: a WebSocket is read by its own tasks."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
