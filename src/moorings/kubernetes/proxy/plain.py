"""The proxy's port without TLS, beside HTTPS: it serves open paths where a site wants that, and never a token.

A token here was sent in clear text; serving it would let clients continue that. A refused client may retry: a launcher
or an operator of the last release used no TLS, and waits until it is replaced.
Rejected: a redirection, since clients that follow one have already sent their token.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from moorings.core.errors import MooringsError
from moorings.kubernetes.proxy.answers import problem_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from moorings.kubernetes.proxy.routes import ProxyRoutes


class PlainRoutes:
    """The ASGI application without TLS.

    Args:
        routes: of the proxy.
        is_open: whether paths that need no token are served.
    """

    def __init__(self, routes: ProxyRoutes, *, is_open: bool) -> None:
        self._routes = routes
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it because it needs HTTPS."""
        has_token = any(name == b"authorization" for name, _ in scope["headers"])
        if self._is_open and not has_token and self._routes.is_open(scope["path"]):
            await self._routes(scope, receive, send)
            return
        detail = "a token is taken over HTTPS alone" if has_token else "this is served over HTTPS alone"
        hint = (
            "write https:// and the HTTPS port; the proxy's authority stands in the ConfigMap <release>-vipu-proxy-ca"
        )
        request_id = secrets.token_hex(8)
        answer = problem_response(MooringsError("request.not_private", detail, hint=hint, retryable=True), request_id)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.head(request_id)})
        await send({"type": "http.response.body", "body": answer.body})
