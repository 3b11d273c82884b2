"""Calls to an API server by plain HTTPS, as its administrator."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

Obj = dict[str, Any]


class KubernetesError(Exception):
    """The API server refused; ``status`` is the HTTP status, ``body`` its Status object."""

    def __init__(self, status: int, body: Obj) -> None:
        super().__init__(f"{status} {body.get('reason')}: {body.get('message')}")
        self.status = status
        self.body = body


class Api:
    """A server on a port, seen with the certificates of a cluster's folder ``pki``."""

    def __init__(self, host: str, port: int, pki: Path) -> None:
        self._host = host
        self._port = port
        self._context = ssl.create_default_context(cafile=str(pki / "kube-ca.crt"))
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Obj:
        """Call it, and take its answer, which is JSON.

        Raises:
            KubernetesError: it refused.
            OSError: it is not there.
        """
        text = None if body is None else json.dumps(body)
        status, answer = self._ask(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
        found: Obj = json.loads(answer)
        if status >= 400:
            raise KubernetesError(status, found)
        return found

    def is_ready(self) -> bool:
        """Whether it is there, and says that it is ready."""
        try:
            return self._ask("GET", "/readyz", None, {})[0] == 200
        except OSError:
            return False

    def _ask(self, method: str, path: str, text: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=30)
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as problem:  # it ended in the midst of an answer
            raise ConnectionError(str(problem)) from problem
        finally:
            connection.close()
