"""The server of cluster names, as a process: ``dns.py ADDRESS API-SERVER PKI-FOLDER``; standard library only.

It answers what a cluster's DNS answers for Services: their address, for headless ones the Endpoints' addresses, and
``<hostname>.<service>.<namespace>.svc`` by the Endpoints' host names; also ``<service>.<namespace>`` without a suffix,
as resolvers' search lists complete it. It keeps nothing: each question is put to the API server, so an answer is never
older than what the API server has. While that one is away, the last answer is given. Other names do not exist.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SUFFIX = ("svc", "cluster", "local")
_A, _ANY, _IN = 1, 255, 1
_NO_ERROR, _SERVER_FAILURE, _NO_NAME = 0, 2, 3
_TTL_S = 1


class Api:
    """The few questions to the API server; a connection for each thread."""

    def __init__(self, url: str, pki: Path) -> None:
        self._address = urlsplit(url).netloc
        self._context = ssl.create_default_context(cafile=str(pki / "kube-ca.crt"))
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._local = threading.local()

    def get(self, path: str) -> dict[str, Any] | None:
        """An object, or None where there is none; OSError while the API server is away."""
        for attempt in (1, 2):
            connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=3)
                self._local.connection = connection
            try:
                connection.request("GET", path, headers={"Accept": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
                break
            except (OSError, http.client.HTTPException) as problem:  # kept open, and closed by the other side
                connection.close()
                self._local.connection = None
                if attempt == 2:
                    raise OSError(str(problem)) from problem
        else:
            raise AssertionError
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise OSError(f"{answer.status} for {path}")
        found: dict[str, Any] = json.loads(body)
        return found


def find_addresses(api: Api, labels: tuple[str, ...]) -> list[str] | None:
    """The addresses of a name; None if it does not exist."""
    if labels[-3:] != _SUFFIX or len(labels) not in (5, 6):
        return None
    hostname = labels[0] if len(labels) == 6 else ""
    name, namespace = labels[-5], labels[-4]
    service = api.get(f"/api/v1/namespaces/{namespace}/services/{name}")
    if service is None:
        return None
    cluster_ip = service["spec"].get("clusterIP", "None")
    if cluster_ip not in ("None", "") and not hostname:
        return [cluster_ip]
    endpoints = api.get(f"/api/v1/namespaces/{namespace}/endpoints/{name}") or {}
    addresses = [each for subset in endpoints.get("subsets") or () for each in subset.get("addresses") or ()]
    if hostname:
        found = [each["ip"] for each in addresses if each.get("hostname") == hostname]
        return found or None
    return [each["ip"] for each in addresses] or None


def answer(api: Api, last: dict[tuple[str, ...], list[str] | None], question: bytes) -> bytes:
    """The reply to a question, both as they travel."""
    labels, end = [], 12
    while length := question[end]:
        labels.append(question[end + 1 : end + 1 + length].decode("ascii", "replace").lower())
        end += 1 + length
    kind, _ = struct.unpack(">HH", question[end + 1 : end + 5])
    name = tuple(labels)
    try:
        found = last[name] = find_addresses(api, name)
    except OSError:
        found = last.get(name)
        if name not in last:
            return _reply(question, end, _SERVER_FAILURE, ())
    if found is None:
        return _reply(question, end, _NO_NAME, ())
    return _reply(question, end, _NO_ERROR, found if kind in (_A, _ANY) else ())


def _reply(question: bytes, end: int, code: int, addresses: list[str] | tuple[str, ...]) -> bytes:
    shown = addresses[:28]  # what fits in 512 bytes
    head = question[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(shown), 0, 0)
    records = (struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(each) for each in shown)
    return head + question[12 : end + 5] + b"".join(records)


def main(address: str, url: str, pki: str) -> None:
    """Serve until killed."""
    api = Api(url, Path(pki))
    last: dict[tuple[str, ...], list[str] | None] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door, ThreadPoolExecutor(8) as threads:
        door.bind((address, 53))

        def serve(question: bytes, asker: tuple[str, int]) -> None:
            try:
                door.sendto(answer(api, last, question), asker)
            except Exception as problem:
                sys.stderr.write(f"{asker}: {problem!r}\n")

        while True:
            threads.submit(serve, *door.recvfrom(1500))


if __name__ == "__main__":
    main(*sys.argv[1:])
