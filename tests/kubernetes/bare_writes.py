"""What an API server takes at best: the objects of one job made again under other names, as fast as it answers.

``python -m tests.kubernetes.bare_writes KUBECONFIG FILE PREFIX COUNT`` prints the seconds. The bound of a benchmark.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import ResourceType
from moorings.kubernetes.kube.client import KubeClient, connect

AT_ONCE = 16
NAME = "of-bare-writes"  # in the file, in place of the job's name
STATUSES = 2  # writes of a job's status, from its making until it runs

Written = Sequence[tuple[ResourceType, dict[str, Any]]]


def write_file(file: Path, job: str, objects: Written) -> None:
    """The objects of a job, the job first, without what an API server adds to them."""
    kept = [(list(_fields(kind)), _bare(found)) for kind, found in objects]
    file.write_text(json.dumps(kept).replace(job, NAME))


def _bare(found: dict[str, Any]) -> dict[str, Any]:
    added = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences", "generation")
    metadata = {name: value for name, value in found["metadata"].items() if name not in added}
    return {**found, "metadata": metadata}


def _fields(kind: ResourceType) -> tuple[Any, ...]:
    return kind.group, kind.version, kind.name, kind.plural, kind.namespaced


async def main(kubeconfig: str, text: str, prefix: str, count: int) -> None:
    """Make them, many jobs at a time."""
    kube = connect(os.environ, path=kubeconfig)
    numbers = iter(range(count))

    async def make_some() -> None:
        for number in numbers:
            await _make(kube, json.loads(text.replace(NAME, f"{prefix}{number}")))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(make_some())
    print(time.perf_counter() - begun)
    await kube.close()


async def _make(kube: KubeClient, objects: list[tuple[list[Any], dict[str, Any]]]) -> None:
    job = objects[0][1]
    for fields, body in objects:
        status = body.pop("status", None) if body is job else None
        await kube.create(ResourceType(*fields), body)
        for _ in range(STATUSES if status is not None else 0):
            patch = [{"op": "add", "path": "/status", "value": status}]
            name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
            await kube.patch(IPU_JOB, name, patch, namespace, subresource="status")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text(), sys.argv[3], int(sys.argv[4])))
