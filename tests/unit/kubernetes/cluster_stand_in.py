"""An API server and a proxy, as far as a launcher sees them: real HTTPS and HTTP, and they misbehave when told to."""

from __future__ import annotations

import copy
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from moorings.kubernetes.kube.certificates import make_certificates
from moorings.kubernetes.kube.serving_certificate import load_certificate
from moorings.net.tls import make_bare_context

Pod = dict[str, Any]
TOKEN = "the-accounts-token"


def pod(name: str, phase: str = "Pending", *, ready: bool = False, waiting: str = "", code: Any = None) -> Pod:
    """A Pod with one container."""
    state: Pod = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    if code is not None:
        state = {"terminated": {"exitCode": code, "message": "its last words"}}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [{"name": "main", "state": state}]}
    return {"metadata": {"name": name}, "status": status}


class Cluster:
    """Pods with a log of their changes.

    ``faults`` are met by the next requests, one each: a status, ``drop``, ``silence`` or ``garbage``; ``watch_faults``
    by watches alone. ``asked`` has each request's kind and Pod. ``watch_s``: how long a watch lasts at most.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.changes: list[tuple[str, Pod]] = []
        self.changed = threading.Condition()
        self.faults: list[int | str] = []
        self.watch_faults: list[int | str] = []
        self.asked: list[tuple[str, str]] = []
        self.connections = 0
        self.watch_s = 60.0
        self.token = TOKEN
        self.forgotten = 0  # changes up to this one are too old for a watch
        self.over = False

    def put(self, one: Pod) -> None:
        with self.changed:
            name = one["metadata"]["name"]
            self.changes.append(("MODIFIED" if name in self.pods else "ADDED", copy.deepcopy(one)))
            self.pods[name] = copy.deepcopy(one)
            self.changed.notify_all()

    def remove(self, name: str) -> None:
        with self.changed:
            self.changes.append(("DELETED", self.pods.pop(name)))
            self.changed.notify_all()

    def count(self, kind: str) -> int:
        return len([one for one, _ in self.asked if one == kind])

    def take_fault(self, *lists: list[int | str]) -> int | str | None:
        with self.changed:
            return next((faults.pop(0) for faults in lists if faults), None)


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies are written apart

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any, media: str = "application/json", **headers: str) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": media, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)


def _api(cluster: Cluster) -> type[_Quiet]:
    class Api(_Quiet):
        def setup(self) -> None:
            super().setup()
            cluster.connections += 1

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            place, _, one = parts.path.partition("/pods/")
            name = one or query.get("fieldSelector", "").removeprefix("metadata.name=")
            watch = query.get("watch") == "1"
            cluster.asked.append(("get" if one else "watch" if watch else "list", name))
            fault = cluster.take_fault(cluster.faults, cluster.watch_faults if watch else [])
            if fault == "drop":
                self.close_connection = True
                self.connection.close()
            elif fault == "silence":
                time.sleep(1.5)
                self.close_connection = True
            elif fault == "garbage":
                self.answer(200, "no object")
            elif isinstance(fault, int):
                self.refuse(fault, "a fault")
            elif self.headers["Authorization"] != f"Bearer {cluster.token}":
                self.refuse(401, "Unauthorized")
            elif place.removesuffix("/pods") != "/api/v1/namespaces/team" or not name:
                self.refuse(403, "pods is forbidden: cannot list resource")
            elif watch:
                self.watch(name, int(query["resourceVersion"]))
            elif one and name not in cluster.pods:
                self.refuse(404, "not found")
            elif one:
                self.answer(200, cluster.pods[name])
            else:
                with cluster.changed:
                    items = [cluster.pods[name]] if name in cluster.pods else []
                    self.answer(200, {"items": items, "metadata": {"resourceVersion": str(len(cluster.changes))}})

        def refuse(self, status: int, words: str) -> None:
            body = {"kind": "Status", "code": status, "reason": "Because", "message": words}
            self.answer(status, body, Retry_After="0")

        def watch(self, name: str, since: int) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            ends_s = time.monotonic() + cluster.watch_s
            while time.monotonic() < ends_s and not cluster.over:
                with cluster.changed:
                    if len(cluster.changes) == since:
                        cluster.changed.wait(min(0.2, max(0.0, ends_s - time.monotonic())))
                    fresh = cluster.changes[since:]
                    too_old = since < cluster.forgotten
                    since += len(fresh)
                if too_old:
                    self.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
                    break
                for kind, one in fresh:
                    if one["metadata"]["name"] == name:
                        self.event(kind, one)
                if cluster.take_fault(cluster.watch_faults) == "drop":  # in the middle of a line
                    self.wfile.write(b'10\r\n{"type": "MODIF')
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")

        def event(self, kind: str, one: Pod) -> None:
            line = json.dumps({"type": kind, "object": one}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()

    return Api


class Proxy:
    """A partition of one instance. ``answers`` are (status, body) that the next requests get instead."""

    def __init__(self) -> None:
        self.states = ["READY"]  # one a request; the last one stays
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.message = ""

    def body(self) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        known = {"namespace": "team", "job": "job", "uid": "u-1", "instance": 0, "ipus": 4}
        return known | {"state": state, "message": self.message}


def _proxy(proxy: Proxy) -> type[_Quiet]:
    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.meet(self.listed)

        def listed(self) -> Any:
            body = proxy.body()
            return {"version": "1", "complete": True, "items": [body | {"uid": "u-0", "state": "READY"}, body]}

        def do_POST(self) -> None:
            self.meet(proxy.body)

        def meet(self, good: Callable[[], Any]) -> None:
            proxy.asked.append(f"{self.command} {self.path}")
            proxy.tokens.append(self.headers["Authorization"] or "")
            if proxy.answers:
                status, body = proxy.answers.pop(0)
                self.answer(status, body, "application/problem+json")
            else:
                self.answer(200, good())

    return Handler


@contextmanager
def _serving(handler: type[_Quiet], context: ssl.SSLContext | None, port: int = 0) -> Iterator[int]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            pass  # clients go when they like

    server = Server(("127.0.0.1", port), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serve_cluster(cluster: Cluster, account: Path, port: int = 0) -> Iterator[int]:
    """The API server's port; ``account`` becomes the folder of a service account that it knows."""
    held = make_certificates(["127.0.0.1"], datetime.now(UTC))
    context = make_bare_context()
    load_certificate(context, held)
    account.mkdir(exist_ok=True)
    (account / "ca.crt").write_bytes(held.ca)
    (account / "token").write_text(cluster.token)
    with _serving(_api(cluster), context, port) as found:
        try:
            yield found
        finally:
            cluster.over = True


@contextmanager
def serve_proxy(proxy: Proxy, port: int = 0, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The proxy's URL."""
    with _serving(_proxy(proxy), context, port) as found:
        yield f"http{'s' if context is not None else ''}://127.0.0.1:{found}"
