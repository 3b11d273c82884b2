"""The hook of helm uninstall, before anything is deleted: ``python -m moorings.app.kubernetes_uninstall``.

An admin finds its last line, ``error:``, in the log of the hook's Pod.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence

from moorings.app.clock import SystemClock
from moorings.app.exits import returns_exit_code
from moorings.app.logs import configure
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.operator.uninstall import InstalledNames, uninstall


@returns_exit_code
def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Remove the obstacles to the deletion of IPUJobs."""
    given = make_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    configure(given.log_level, "json")
    installed = InstalledNames(
        namespace=given.namespace,
        deployment=given.deployment,
        selector=given.selector,
        lease=given.lease_name,
        webhooks=given.webhook_name,
        jobs_in=tuple(filter(None, given.watch_namespaces.split(","))),
        proxy_lease=given.proxy_lease,
        secrets=tuple(filter(None, (given.webhook_secret, given.proxy_secret))),
    )
    asyncio.run(_run(installed, given.kubeconfig, environment))


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="kubernetes_uninstall", description="Let IPUJobs live without the operator.")
    parser.add_argument("--namespace", required=True, help="where the chart is installed")
    parser.add_argument("--deployment", required=True, help="the operator's")
    parser.add_argument("--selector", required=True, help="labels of its Pods")
    parser.add_argument("--lease-name", required=True, help="the Lease of the leading operator")
    parser.add_argument("--webhook-name", required=True, help="of the two webhook configurations")
    parser.add_argument("--webhook-secret", default="", help="with the webhooks' certificate, deleted if it is named")
    parser.add_argument("--proxy-secret", default="", help="with the proxy's certificate, deleted if it is named")
    parser.add_argument("--proxy-lease", default="", help="of the proxy that works, deleted if it is named")
    parser.add_argument("--watch-namespaces", default="", help="namespaces with managed IPUJobs (default: all)")
    parser.add_argument("--kubeconfig", default="", help="path of a kubeconfig (default: this Pod's account)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


async def _run(installed: InstalledNames, kubeconfig: str, environment: Mapping[str, str]) -> None:
    kube = connect(environment, path=kubeconfig)
    try:
        await uninstall(kube, SystemClock(), installed)
    finally:
        await kube.close()


if __name__ == "__main__":
    sys.exit(main())
