"""What a launcher asks of the API server: its workers' Pods, by name or by label. Standard library only.

Where its Role names the Pods it may see, each is listed and watched for itself, by ``fieldSelector=metadata.name=...``:
a list of all is forbidden. Of many workers that would be as many threads, connections and watches, so those are listed
and watched together, by their labels, page by page. The operator's client was refused here: the launcher's image is
Python and nothing else.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from moorings.client.causes import cause_text
from moorings.kubernetes.ipujob import Obj
from moorings.kubernetes.kube import KubeError
from moorings.kubernetes.pods import trim_pod

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_S = 15.0
WATCH_S = 240  # then the API server ends the watch, and a new one begins
LINE_BYTES_MAX = 8 << 20  # several times the largest object there can be
PAGE = 50  # Pods of an answer: 160 KB each, where 10 are usual
_PROBES = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))  # a silent peer: 30 s


class Selector(NamedTuple):
    """Which Pods: ``fieldSelector`` or ``labelSelector``, and what it says."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PodApi:
    """The API server, seen from a Pod.

    Attributes:
        host: of the API server.
        port: of it.
        namespace: of the Pods.
        account: folder of the Pod's service account; read anew for each call, for tokens end.
    """

    host: str
    port: int
    namespace: str
    account: Path = ACCOUNT

    def list(self, selector: Selector) -> tuple[dict[str, Obj], str]:
        """The Pods that are there, by name, and where a watch goes on.

        Raises:
            KubeError: they are not known.
        """
        pods: dict[str, Obj] = {}
        query = {"limit": str(PAGE)}
        while True:
            with self._ask(selector, query) as answer:
                try:
                    found = json.loads(answer.read(LINE_BYTES_MAX))
                    pods |= {one["metadata"]["name"]: trim_pod(one) for one in found.get("items") or ()}
                    since, more = str(found["metadata"]["resourceVersion"]), found["metadata"].get("continue")
                except (ValueError, LookupError, AttributeError, TypeError) as error:
                    raise KubeError(0, "Unreadable", f"{self.host} does not answer as an API server does") from error
            if not more:
                return pods, since
            query["continue"] = more

    def watch(self, selector: Selector, since: str) -> Iterator[tuple[str, Obj | None]]:
        """A Pod, by name, each time it has changed, None when it is gone; ends when the API server ends the watch.

        Raises:
            KubeError: the connection is lost; 410 when ``since`` is too old.
        """
        query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": str(WATCH_S)}
        with self._ask(selector, query) as answer:
            while line := answer.readline(LINE_BYTES_MAX):
                try:
                    event = json.loads(line)
                    kind, found = event["type"], event["object"]
                    name = found["metadata"]["name"] if kind not in ("ERROR", "BOOKMARK") else ""
                except (ValueError, LookupError, TypeError) as error:
                    raise KubeError(0, "Unreadable", "a watch broke off in the middle of a line") from error
                if kind == "ERROR":
                    raise _refusal(int(found.get("code") or 500), found)
                if kind != "BOOKMARK":
                    yield name, None if kind == "DELETED" else found

    @contextlib.contextmanager
    def _ask(self, selector: Selector, query: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?" + urlencode({selector.kind: selector.text} | query)
        try:
            with contextlib.closing(self._connect()) as connection:
                token = (self.account / "token").read_text().strip()
                headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
                connection.request("GET", path, headers=headers)
                with connection.getresponse() as answer:  # it may hold the socket that the connection has let go
                    if answer.status != 200:
                        told = _status(answer.read(LINE_BYTES_MAX))
                        raise _refusal(answer.status, told, answer.getheader("Retry-After"))
                    if "watch" in query and connection.sock is not None:
                        connection.sock.settimeout(WATCH_S + ANSWER_S)
                    yield answer
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a header or CA nobody can read
            where = f"{self.host}:{self.port}"
            raise KubeError(0, "Unreachable", f"the API server {where} does not answer: {cause_text(error)}") from error

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
        except OSError:  # also of a server that went right after the handshake
            connection.close()
            raise
        return connection


def _status(body: bytes) -> Obj:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(status: int, found: Obj, retry_after: str | None = None) -> KubeError:
    words = str(found.get("message") or f"the API server answers with status {status}")
    pause_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
    return KubeError(status, str(found.get("reason") or ""), words[:500], retry_after_s=pause_s)
