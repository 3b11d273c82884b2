"""The webhooks' certificate and the trust in it, as the chart's patch jobs make them: before and after an installation.

The command line is that of kube-webhook-certgen v1.1.1 (kubernetes/ingress-nginx, images/kube-webhook-certgen), so the
chart may name that image or ours. Our Secret also holds the authority's key: the operator renews it by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

from moorings import __version__
from moorings.app.logs import configure
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import (
    MUTATING_WEBHOOK,
    SECRET,
    VALIDATING_WEBHOOK,
    ExpectedErrors,
    KubeApi,
    KubeError,
    get_or_none,
)
from moorings.kubernetes.kube.certificates import (
    CA,
    CERT,
    KEY,
    build_secret,
    build_secret_data,
    make_certificates,
    parse_bundle,
)
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.kube.serving_certificate import patch_configuration
from moorings.wire.errors import ExitCode, error_kind

log = logging.getLogger("moorings.kubernetes.certgen")

# logrus' levels, as the original has them
LEVELS = {
    "panic": "error",
    "fatal": "error",
    "error": "error",
    "warn": "warning",
    "warning": "warning",
    "info": "info",
    "debug": "debug",
    "trace": "debug",
}
POLICIES = ("Fail", "Ignore")
TRUE, FALSE = ("1", "t", "true"), ("0", "f", "false")  # of Go's flags


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Run the command line; return the exit code."""
    given = make_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    if given.command == "version":
        sys.stdout.write(f"moorings {__version__}\n")
        return ExitCode.OK
    style = "json" if getattr(given, "log_format", "json") == "json" else "logfmt"
    try:
        configure(LEVELS[getattr(given, "log_level", "info")], style)
        asyncio.run(_with_kube(given, environment))
    except MooringsError as error:
        log.critical("certgen.failed", extra={"code": error.code, "detail": error.detail, "hint": error.hint})
        return error_kind(error.code).exit
    return ExitCode.OK


def make_parser() -> ArgumentParser:
    """The command line; ``--flag value`` and ``--flag=value``."""
    everywhere = ArgumentParser(add_help=False, allow_abbrev=False)
    everywhere.add_argument("--kubeconfig", default=SUPPRESS, help="path of a kubeconfig (default: this Pod's account)")
    everywhere.add_argument("--log-format", default=SUPPRESS, choices=("text", "json"), help="default: json")
    everywhere.add_argument("--log-level", default=SUPPRESS, choices=tuple(LEVELS), help="default: info")
    root = ArgumentParser(
        prog="kubernetes_certgen",
        description="Make a certificate for admission webhooks, and have their configurations believe it.",
        parents=[everywhere],
        allow_abbrev=False,
    )
    commands = root.add_subparsers(dest="command", required=True)
    create = commands.add_parser(
        "create", parents=[everywhere], allow_abbrev=False, help="make a Secret with authority, certificate and key"
    )
    create.add_argument("--host", required=True, help="names and addresses the certificate is for, with commas between")
    create.add_argument("--ca-name", default=CA, help="of the authority in the Secret (default: %(default)s)")
    create.add_argument("--cert-name", default=CERT, help="of the certificate in the Secret (default: %(default)s)")
    create.add_argument("--key-name", default=KEY, help="of the key in the Secret (default: %(default)s)")
    patch = commands.add_parser(
        "patch", parents=[everywhere], allow_abbrev=False, help="put the Secret's authority into webhook configurations"
    )
    patch.add_argument("--webhook-name", required=True, help="of the webhook configurations")
    patch.add_argument("--ca-name", default=CA, help="of the authority in the Secret (default: %(default)s)")
    for kind in ("mutating", "validating"):
        patch.add_argument(
            f"--patch-{kind}", nargs="?", const=True, default=True, type=_parse_bool, metavar="true|false"
        )
    patch.add_argument("--patch-failure-policy", default="", help="Fail or Ignore (default: as it is)")
    for command in (create, patch):
        command.add_argument("--namespace", required=True, help="of the Secret")
        command.add_argument("--secret-name", required=True, help="of the Secret")
    commands.add_parser("version", help="show the version")
    return root


def _parse_bool(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise ValueError(text)
    return text.lower() in TRUE


async def _with_kube(given: Namespace, environment: Mapping[str, str]) -> None:
    kube = connect(environment, path=getattr(given, "kubeconfig", ""))
    work: Callable[[KubeApi, Namespace], Awaitable[None]] = create if given.command == "create" else patch
    try:
        await work(kube, given)
    except KubeError as error:
        hint = f"the job's account needs a Role for the Secret {given.namespace}/{given.secret_name}" + (
            "" if given.command == "create" else f", and a ClusterRole for the configurations {given.webhook_name}"
        )
        raise MooringsError(error.code, error.detail, hint=hint if error.status == 403 else "") from error
    finally:
        await kube.close()


async def create(kube: KubeApi, given: Namespace) -> None:
    """Make the Secret; an existing one stays as it is.

    Raises:
        MooringsError: ``webhook.invalid``: an invalid host, or no host.
        KubeError: the API server.
    """
    hosts = [host.strip() for host in given.host.split(",") if host.strip()]
    if not hosts:
        raise MooringsError("webhook.invalid", "--host names no host", hint="the first is SERVICE.NAMESPACE.svc")
    about = {"secret": given.secret_name, "namespace": given.namespace}
    made = await asyncio.to_thread(make_certificates, hosts, datetime.now(UTC))
    data = build_secret_data(made, given.ca_name, given.cert_name, given.key_name)
    with ExpectedErrors("AlreadyExists"):
        await kube.create(SECRET, build_secret(given.namespace, given.secret_name, data), given.namespace)
        log.info("certgen.secret_made", extra={**about, "hosts": json.dumps(hosts)})
        return
    log.info("certgen.secret_there", extra=about)


async def patch(kube: KubeApi, given: Namespace) -> None:
    """Make the webhook configurations trust the Secret's authority.

    Raises:
        MooringsError: ``webhook.invalid``: nothing to patch, or an invalid policy; ``webhook.not_found``: there is no
            such Secret, or no such configuration.
        KubeError: the API server.
    """
    wanted = {MUTATING_WEBHOOK: given.patch_mutating, VALIDATING_WEBHOOK: given.patch_validating}
    kinds = [kind for kind, chosen in wanted.items() if chosen]
    if not kinds:
        raise MooringsError("webhook.invalid", "there is nothing to patch", hint="leave out one of the two =false")
    if given.patch_failure_policy not in ("", *POLICIES):
        detail = f"{given.patch_failure_policy[:40]!r} is no failure policy"
        raise MooringsError("webhook.invalid", detail, hint=" or ".join(POLICIES))
    where = f"{given.namespace}/{given.secret_name}"
    secret = await get_or_none(kube, SECRET, given.secret_name, given.namespace)
    bundle = parse_bundle(secret, given.ca_name) if secret is not None else b""
    if not bundle:
        detail = f"the Secret {where} has no {given.ca_name!r}" if secret is not None else f"there is no Secret {where}"
        raise MooringsError("webhook.not_found", detail, hint="'create' makes it")
    for kind in kinds:
        changed = await patch_configuration(kube, kind, given.webhook_name, bundle, given.patch_failure_policy)
        if changed is None:
            raise MooringsError("webhook.not_found", f"there is no {kind.name} {given.webhook_name}")
        log.info("certgen.configuration", extra={"kind": kind.name, "webhook": given.webhook_name, "changed": changed})


if __name__ == "__main__":
    sys.exit(main())
