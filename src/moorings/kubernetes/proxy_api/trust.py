"""The authorities of the proxy's certificate, read repeatedly from the ConfigMap in which the proxy publishes them.

A mounted ConfigMap would arrive a minute later, at a start too. The Secret beside it holds keys, which only the proxy
may read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import CONFIG_MAP, KubeApi, get_or_none
from moorings.kubernetes.kube.serving_certificate import parse_authorities

log = logging.getLogger("moorings.kubernetes.proxy.trust")

LOOK_S = 20.0  # how late a certificate by an unknown new authority (its Secret was deleted) is trusted
FIRST_S = 1.0


class ProxyTrustInformer:
    """Reports the proxy's authorities whenever they have changed.

    Args:
        kube: the API server.
        namespace: of the ConfigMap.
        name: its name.
        on_change: takes the authorities, as PEM; raises MooringsError if they cannot be read.
    """

    def __init__(self, kube: KubeApi, namespace: str, name: str, on_change: Callable[[str], None]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._on_change = on_change
        self._trusted = ""

    async def refresh(self) -> None:
        """Read them once.

        Raises:
            MooringsError: the API server did not respond, or its content cannot be read.
        """
        found = parse_authorities(await get_or_none(self._kube, CONFIG_MAP, self._name, self._namespace))
        if found and found != self._trusted:
            self._on_change(found)
            self._trusted = found
            log.info("proxy.trusted", extra={"configmap": self._name})

    async def serve(self) -> None:
        """Read them repeatedly until cancelled."""
        while True:
            try:
                await self.refresh()
            except MooringsError as error:
                log.warning("proxy.not_trusted", extra={"code": error.code, "detail": error.detail})
            await asyncio.sleep(LOOK_S if self._trusted else FIRST_S)
