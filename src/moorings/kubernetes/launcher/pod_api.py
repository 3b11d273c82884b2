"""A launcher's requests to the API server: its workers' Pods, one by one. Standard library only.

Its Role names the Pods that it may read, so it cannot list all. Up to a limit each Pod has its own list and watch, by
``fieldSelector=metadata.name=...``; for many Pods that would be as many threads and connections, so they are read one
after the other over one connection. Rejected: the operator's client, for the launcher's image has nothing but Python.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from moorings.client.error_text import format_cause
from moorings.kubernetes.kube.api import KubeError, KubeObject

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_S = 15.0
WATCH_S = 240  # then the API server ends the watch, and a new one begins
LINE_BYTES_MAX = 8 << 20  # several times the largest possible object
_PROBES = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))  # a silent peer: 30 s


@dataclass(frozen=True, slots=True)
class PodApi:
    """The API server, as a Pod reaches it.

    Attributes:
        host: of the API server.
        port: of it.
        namespace: of the Pods.
        account: folder of the Pod's service account; read again for each call, since tokens expire.
    """

    host: str
    port: int
    namespace: str
    account: Path = ACCOUNT

    def read(self, every: Iterable[str]) -> Iterator[tuple[str, KubeObject | None]]:
        """These Pods, by name, over one connection; None for a Pod that does not exist.

        Raises:
            KubeError: a Pod cannot be read.
        """
        with self._connection() as (connection, headers):
            for name in every:
                connection.request("GET", f"{self._pods}/{quote(name)}", headers=headers)
                with connection.getresponse() as answer:
                    content = answer.read(LINE_BYTES_MAX)
                    if answer.status not in (200, 404):
                        raise _refusal(answer.status, _status(content), answer.getheader("Retry-After"))
                yield name, self._parse(content) if answer.status == 200 else None

    def list(self, name: str) -> tuple[KubeObject | None, str]:
        """A Pod, if it exists, and the version from which a watch continues.

        Raises:
            KubeError: it cannot be read.
        """
        with self._get(name, {}) as answer:
            found = self._parse(answer.read(LINE_BYTES_MAX))
            try:
                items = found.get("items") or ()
                return (items[0] if items else None), str(found["metadata"]["resourceVersion"])
            except (LookupError, TypeError) as error:
                raise self._unreadable() from error

    def watch(self, name: str, since: str) -> Iterator[KubeObject | None]:
        """A Pod after each change, None when it is gone; ends when the API server ends the watch.

        Raises:
            KubeError: the connection is lost; 410 when ``since`` is too old.
        """
        query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": str(WATCH_S)}
        with self._get(name, query) as answer:
            while line := answer.readline(LINE_BYTES_MAX):
                try:
                    event = json.loads(line)
                    kind, found = event["type"], event["object"]
                except (ValueError, LookupError, TypeError) as error:
                    raise KubeError(0, "Unreadable", "a watch broke off in the middle of a line") from error
                if kind == "ERROR":
                    raise _refusal(int(found.get("code") or 500), found)
                if kind != "BOOKMARK":
                    yield None if kind == "DELETED" else found

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _parse(self, content: bytes) -> KubeObject:
        try:
            found = json.loads(content)
        except ValueError as error:
            raise self._unreadable() from error
        if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
            raise self._unreadable()
        return found

    def _unreadable(self) -> KubeError:
        return KubeError(0, "Unreadable", f"{self.host} does not answer as an API server does")

    @contextlib.contextmanager
    def _get(self, name: str, query: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        path = f"{self._pods}?" + urlencode({"fieldSelector": f"metadata.name={name}"} | query)
        with self._connection() as (connection, headers):
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:  # it may hold the socket that the connection has released
                if answer.status != 200:
                    status = _status(answer.read(LINE_BYTES_MAX))
                    raise _refusal(answer.status, status, answer.getheader("Retry-After"))
                if "watch" in query and connection.sock is not None:
                    connection.sock.settimeout(WATCH_S + ANSWER_S)
                yield answer

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[http.client.HTTPSConnection, dict[str, str]]]:
        try:
            with contextlib.closing(self._connect()) as connection:
                token = (self.account / "token").read_text().strip()
                yield connection, {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an unreadable header or CA
            where = f"{self.host}:{self.port}"
            raise KubeError(
                0, "Unreachable", f"the API server {where} does not answer: {format_cause(error)}"
            ) from error

    def _connect(self) -> http.client.HTTPSConnection:
        # Not create_default_context: from Python 3.13 on it refuses authorities that old clusters still have.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=self.account / "ca.crt")
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=ANSWER_S, context=context)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES:
                connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:  # also after a server that closed right after the handshake
            connection.close()
            raise
        return connection


def _status(body: bytes) -> KubeObject:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(status: int, found: KubeObject, retry_after: str | None = None) -> KubeError:
    words = str(found.get("message") or f"the API server answers with status {status}")
    pause_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
    return KubeError(status, str(found.get("reason") or ""), words[:500], retry_after_s=pause_s)
