"""A candidate of an election, as a process of its own: prints when it leads, and why it ends.

usage: candidate.py KUBECONFIG NAMESPACE LEASE IDENTITY LEASE_S RENEW_S RETRY_S
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time

from moorings.kubernetes.kube.client import KubeTimeouts, connect
from moorings.kubernetes.kube.election import Elector, LeaseTimes


async def stand(path: str, namespace: str, lease: str, identity: str, *times: str) -> None:
    lease_s, renew_s, retry_s = map(float, times)
    kube = connect({}, path=path, patience=KubeTimeouts(call_s=renew_s))
    elector = Elector(kube, namespace, lease, identity, LeaseTimes(lease_s=lease_s, renew_s=renew_s, retry_s=retry_s))

    async def work() -> None:
        print("won", flush=True)
        try:
            while True:
                at = time.monotonic()  # before it is asked: true of this moment, whenever it is printed
                if elector.is_leading():
                    print("leads", at, flush=True)
                await asyncio.sleep(0.01)
        finally:
            print("stopped", flush=True)

    leading = asyncio.ensure_future(elector.lead(work))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leading.cancel)
    print("stands", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await leading
    await kube.close()


if __name__ == "__main__":
    asyncio.run(stand(*sys.argv[1:]))
