"""Calls to an API server by plain HTTPS, as its administrator."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from pathlib import Path
from typing import Any

from tests.waiting import patient

Obj = dict[str, Any]

AGAIN_S = 30.0  # so long what the API server wants to be asked again is asked again


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
        """Call it, and take its answer, which is JSON; again where it asks for that (an account has no token yet).

        Raises:
            KubernetesError: it refused.
            OSError: it is not there.
        """
        text = None if body is None else json.dumps(body)
        until = time.monotonic() + patient(AGAIN_S)
        while True:
            status, answer = self._ask(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
            found: Obj = json.loads(answer)
            if status < 400:
                return found
            if found.get("reason") != "ServerTimeout" or time.monotonic() > until:
                raise KubernetesError(status, found)
            time.sleep(0.2)

    def is_ready(self) -> bool:
        """Whether it is there, and says that it is ready."""
        try:
            return self._ask("GET", "/readyz", None, {})[0] == 200
        except OSError:
            return False

    def _ask(self, method: str, path: str, text: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=patient(30))
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as problem:  # it ended in the midst of an answer
            raise ConnectionError(str(problem)) from problem
        finally:
            connection.close()
