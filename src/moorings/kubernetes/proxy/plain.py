"""What the proxy answers without TLS, beside HTTPS: what is open to all where a site wants that, and never a token.

A token that comes this way was sent in clear; to serve it would have clients go on so. Who is refused may ask again: a
launcher or an operator of the release before spoke no TLS, and waits until it is exchanged. A redirection was refused,
since clients that follow one have sent their token by then.
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
        is_open: whether what needs no token is served.
    """

    def __init__(self, routes: ProxyRoutes, *, is_open: bool) -> None:
        self._routes = routes
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or say that it takes HTTPS."""
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
