"""A webhook that notes what it is asked, for the tests of what calls one."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kubernetes import pki


@dataclass
class Hook:
    """A server of admission reviews on an address; it allows everything that is not labelled ``refuse``."""

    address: str
    port: int
    bundle: str  # the authority, as a webhook configuration has it
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def serve_hook(folder: Path, address: str, *names: str) -> Iterator[Hook]:
    """Serve on an address of this machine, with a certificate for it and for names."""
    folder.mkdir()
    authority = pki.Authority(folder, "hook-ca")
    certificate, key = authority.issue("hook", names[0] if names else address, hosts=[address, *names])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            hook.asked.append(request)
            allowed = "refuse" not in request["object"]["metadata"].get("labels", {})
            response = {"uid": request["uid"], "allowed": allowed, "status": {"message": "not here", "code": 403}}
            text = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        hook = Hook(address, server.server_address[1], base64.b64encode(authority.certificate.read_bytes()).decode())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
