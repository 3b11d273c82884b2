"""The tracker: a ConfigMap that shows people which job holds which partition. No program reads it.

It is written only when its content changes, at most every few seconds, and the larger it is the less often; it stays
when the chart is removed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping

from moorings.kubernetes.kube.api import CONFIG_MAP, ExpectedErrors, KubeApi, KubeError, KubeObject
from moorings.kubernetes.proxy_api.shapes import PartitionBody

log = logging.getLogger("moorings.kubernetes.proxy")

PAUSE_S, PAUSE_S_MAX = 2.0, 30.0
BYTES_PER_S = 4 << 10  # average rate of writes during constant changes
AGAIN_S = 15.0
BYTES_MAX = 900 << 10  # a ConfigMap holds 1 MiB at most
PARTITIONS, NOTE = "partitions", "note"


def build_data(partitions: Iterable[PartitionBody]) -> dict[str, str]:
    """The ConfigMap's data: a line of JSON for each partition; a note says what was left out."""
    lines, size, left = [], 0, 0
    for one in partitions:
        entry = {
            "job": f"{one.namespace}/{one.job}",
            "instance": one.instance,
            "partition": one.name,
            "ipus": one.ipus,
            "state": one.state,
            "controller": one.controller,
            "uid": one.uid,
        }
        line = json.dumps(entry, separators=(", ", ": "))
        size += len(line) + 1
        if size > BYTES_MAX:
            left += 1
        else:
            lines.append(line)
    note = "Written by the proxy for people to read; changing it changes nothing."
    if left:
        note += f" {left} more partitions did not fit."
    return {PARTITIONS: "\n".join(lines) + "\n" if lines else "", NOTE: note}


def pause_s(data: Mapping[str, str]) -> float:
    """Seconds without a write after this data was written."""
    return min(max(PAUSE_S, sum(map(len, data.values())) / BYTES_PER_S), PAUSE_S_MAX)


class TrackerConfigMap:
    """Maintains the ConfigMap.

    Args:
        kube: the API server.
        namespace: of the ConfigMap, and ``name`` its name.
        read: returns a number that changes with the partitions, and all partitions.
    """

    def __init__(
        self, kube: KubeApi, namespace: str, name: str, read: Callable[[], tuple[int, Iterable[PartitionBody]]]
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._read = read

    async def serve(self) -> None:
        """Write it when it changes, until cancelled."""
        number, written, failed = -1, None, False
        while True:
            now, partitions = self._read()
            wait_s = PAUSE_S
            if now != number:
                data = build_data(partitions)
                try:
                    if data != written:
                        await self._write(data)
                        wait_s = pause_s(data)
                    number, written, failed = now, data, False
                except KubeError as error:
                    if not failed:
                        log.warning("tracker.not_written", extra={"configmap": self._name, "detail": error.detail})
                    failed, wait_s = True, AGAIN_S
            await asyncio.sleep(wait_s)

    async def _write(self, data: dict[str, str]) -> None:
        with ExpectedErrors(404):
            await self._kube.patch(CONFIG_MAP, self._name, {"data": data}, self._namespace)
            return
        body: KubeObject = {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.name,
            "metadata": {"name": self._name, "namespace": self._namespace, "labels": {"component": "vipu-proxy"}},
            "data": data,
        }
        await self._kube.create(CONFIG_MAP, body, self._namespace)
