"""``moor create``: partitions, claims, projects, access keys."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, complete_names, examples, options
from moorings.cli.commands.projects import create_project
from moorings.cli.errors import CommandExit
from moorings.cli.printing import make_printer, output_option
from moorings.cli.resources import CLAIMS, KEYS, PARTITIONS
from moorings.core.model.claims import ClaimSpec, ClaimState, check_name, check_spec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s, parse_memory_bytes
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline, parse_lifetime_s, parse_seconds
from moorings.terminal.following import wait_for_claim
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.shapes import ClaimBody, ClaimRequest, KeyRequest

_shape = options(
    click.option("--size", "--ipus", "size", type=int, required=True, metavar="N", help="Devices."),
    click.option("--kind", default="ipu", metavar="KIND", help="Kind of accelerator (ipu)."),
    click.option("--pool", metavar="POOL", help="Only in this pool.", shell_complete=complete_names("pool")),
    click.option("--gcds", "--num-gcds", type=int, default=1, metavar="N", help="Graph compilation domains (1)."),
    click.option("--replicas-per-gcd", type=int, default=1, metavar="N", help="Model replicas inside each GCD (1)."),
)
_wait = click.option("--wait", is_flag=True, help="Wait for room, and until the partition is ACTIVE.")
_timeout = click.option(
    "--timeout", metavar="DURATION", help="Give up waiting after this time, as 90s or 10m, with exit code 124."
)

create = NounGroup(
    name="create",
    help="Make a partition, a claim, a project or an access key.",
    epilog=examples(
        "moor create partition p64 --size 64",
        "moor create claim --size 16 --gcds 4 --time 2h --wait",
        "moor create project lab --guarantee pod64=16x2,4x1 --member ann",
        "moor create key alice --role user",
    ),
    no_args_is_help=True,
)


create.add_command(create_project)


@create.command("partition", cls=MoorCommand)
@click.argument("name")
@_shape
@_wait
@_timeout
@output_option
@click.pass_obj
def create_partition(
    session: CommandContext,
    /,
    name: str,
    *,
    wait: bool,
    timeout: str | None,
    output: str | None,
    **shape: Any,  # noqa: ANN401 - the options of a partition's shape
) -> None:
    """Make a partition by hand, and wait until it is ACTIVE.

    Where there is no room now it is refused (exit code 6), or with --wait waited for.
    """
    request = _request(check_name(name, what="partition"), **shape)
    request = replace(request, queue="wait" if wait else "never")
    claim = _wait_until_ready(session, request, timeout=timeout)
    shown = make_printer(session, output, usual="table")
    if shown.form.name == "table":
        session.console.print_line(f"partition/{claim.partition} created in {claim.pool}, devices {claim.devices}")
    else:
        shown.show_one(PARTITIONS, session.client.partition(claim.partition_id or name))


@create.command("claim", cls=MoorCommand)
@click.argument("name", required=False)
@_shape
@click.option("--owner", metavar="OWNER", help="The owner, as KIND/NAME (user/<you>).")
@click.option("--project", metavar="NAME", help="Project (default).")
@click.option("--priority", type=int, default=0, metavar="N", help="Higher is first (0).")
@click.option(
    "--time", metavar="DURATION", help="How long it may hold its partition, as 30m, 2:00:00; bare: minutes (no limit)."
)
@click.option(
    "--lease",
    metavar="DURATION",
    help="Release the claim if it is not renewed within this time, as 90s or 10m (no lease).",
)
@click.option("--memory", metavar="SIZE", help="Memory of the pool's management node, as 64G.")
@click.option("--preemptible", is_flag=True, help="The claim may be preempted.")
@click.option("--now", is_flag=True, help="Be refused (exit code 6) instead of waiting for room.")
@_wait
@_timeout
@output_option
@click.pass_obj
def create_claim(
    session: CommandContext,
    /,
    name: str | None,
    *,
    owner: str | None,
    project: str | None,
    priority: int,
    time: str | None,
    lease: str | None,
    memory: str | None,
    preemptible: bool,
    now: bool,
    wait: bool,
    timeout: str | None,
    output: str | None,
    **shape: Any,  # noqa: ANN401 - the options of a partition's shape
) -> None:
    """Ask for a partition; the claim queues, and keeps the partition until it is deleted."""
    request = replace(
        _request(None if name is None else check_name(name), **shape),
        owner=owner,
        project=project or session.configuration.text("project"),
        priority=priority,
        time_limit_s=None if time is None else parse_duration_s(time),
        lease_s=None if lease is None else parse_seconds(lease),
        resources={} if memory is None else {"memory": parse_memory_bytes(memory)},
        preemptible=preemptible,
        queue="never" if now else "wait",
    )
    claim = _wait_until_ready(session, request, timeout=timeout) if wait else _submit_claim(session, request)
    reason = f": {claim.reason.sentence}" if claim.reason is not None else ""
    make_printer(session, output, usual="table").show_done(
        CLAIMS, claim, f"claim/{claim.name} created, {claim.state}{reason}"
    )


@create.command("key", cls=MoorCommand)
@click.argument("subject")
@click.option(
    "--role", type=click.Choice(["admin", "user", "agent", "viewer"]), default="user", help="The role (user)."
)
@click.option("--owner-prefix", metavar="PREFIX", help="Owners an agent may act for, as slurm/cluster1.")
@click.option(
    "--expires",
    metavar="DURATION",
    help="It works for so long, as 90d, or never (as the controller is set; agents' keys never expire).",
)
@output_option
@click.pass_obj
def create_key(
    session: CommandContext,
    subject: str,
    *,
    role: str,
    owner_prefix: str | None,
    expires: str | None,
    output: str | None,
) -> None:
    """Make an access key for SUBJECT; its secret is shown this once.

    On one machine jobs run as the controller's own user. So the holder of a key with the role user or admin can read
    all files of this user, also the controller's database and keys: give such keys only to people you would trust with
    that account.
    """
    lifetime_s = None if expires is None else parse_lifetime_s(expires)
    key = session.client.create_key(
        KeyRequest(subject=subject, role=role, owner_prefix=owner_prefix, lifetime_s=lifetime_s)
    )
    shown = make_printer(session, output, usual="table")
    if shown.form.name != "table":
        shown.show_one(KEYS, key)
        return
    until = f", works until {key.expires_at[:19]}Z" if key.expires_at is not None else ""
    session.console.info(f"key/{key.id} created for {key.subject} ({key.role}{until}). Its secret is shown only now:")
    session.console.print_line(key.secret or "")


def _request(
    name: str | None, *, size: int, kind: str, pool: str | None, gcds: int, replicas_per_gcd: int
) -> ClaimRequest:
    check_spec(
        ClaimSpec(
            kind=kind,
            size=size,
            gcds=gcds,
            replicas_per_gcd=replicas_per_gcd,
            pool=PoolName(pool) if pool is not None else None,
        )
    )
    return ClaimRequest(name=name, size=size, accelerator=kind, pool=pool, gcds=gcds, replicas_per_gcd=replicas_per_gcd)


def _submit_claim(session: CommandContext, request: ClaimRequest) -> ClaimBody:
    try:
        return session.client.create_claim(request, secrets.token_hex(16))
    except MooringsError as error:
        if error.code == "claim.no_room" and "--wait" not in error.hint:
            error.hint = f"{error.hint}; --wait waits for room" if error.hint else "--wait waits for room"
        raise


def _wait_until_ready(session: CommandContext, request: ClaimRequest, *, timeout: str | None) -> ClaimBody:
    """The claim once it is READY.

    Raises:
        MooringsError: ``wait.timeout``, or the reason why it ended.
    """
    limit = Deadline.of(timeout)
    progress = Progress(session.console)
    claim = _submit_claim(session, request)
    session.client.retry_policy = make_patience(progress)
    try:
        with SignalsAsExceptions():
            made = wait_for_claim(session.client, progress, claim.id, "READY", name=claim.name, limit=limit)
    except Interrupted as stop:
        progress.report(f"claim/{claim.name} stays; 'moor delete claim {claim.name}' withdraws it")
        raise CommandExit(stop.exit_code) from None
    if made is None:
        raise MooringsError(
            "wait.timeout",
            f"claim {claim.name} is not READY; the time is up",
            hint=f"the claim continues: 'moor wait claim/{claim.name}', or 'moor delete claim {claim.name}'",
        )
    if made.state != ClaimState.READY:
        reason = made.reason
        why = f": {reason.message}" if reason is not None else ""
        code = reason.code if reason is not None else "claim.not_ready"
        raise MooringsError(code, f"claim {made.name} is {made.state}{why}", hint=reason.hint if reason else "")
    return made
