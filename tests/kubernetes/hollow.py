"""A kubelet for many Pods that runs nothing: it tells the API server that every Pod runs. For benchmarks.

``python -m tests.kubernetes.hollow KUBECONFIG [SUBMITTERS]``
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from moorings.kubernetes.kube.api import POD, KubeError
from moorings.kubernetes.kube.client import connect

AT_ONCE = 8


async def main(kubeconfig: str) -> None:
    """Tell until ended."""
    kube = connect(os.environ, path=kubeconfig)
    waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    told: set[str] = set()

    async def tell() -> None:
        while True:
            namespace, name = await waiting.get()
            try:
                await kube.patch(POD, name, _running(), namespace, subresource="status")
            except KubeError as error:
                if error.status not in (404, 409):
                    raise

    async def watch() -> None:
        since = (await kube.list(POD)).resource_version
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            async for event in kube.watch(POD, since=since):
                meta = event.object["metadata"]
                since = meta["resourceVersion"]
                if event.type == "ADDED" and meta["uid"] not in told:
                    told.add(meta["uid"])
                    waiting.put_nowait((meta["namespace"], meta["name"]))

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for _ in range(AT_ONCE):
            group.create_task(tell())


def _running() -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    state["state"] = {"running": {"startedAt": now}}
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": now}]
    return {"status": {"phase": "Running", "conditions": ready, "containerStatuses": [state], "startTime": now}}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
