"""``moor slurm``: install, uninstall and check the Slurm integration; show external work as job steps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, examples
from moorings.cli.commands.doctor import parse_only, show_findings
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.output import render_data, render_table
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.core.model.errors import MooringsError
from moorings.doctor.checks import SLURM_CHECKS
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import parse_seconds
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import API_VERSION

if TYPE_CHECKING:
    from moorings.client.client import Client
    from moorings.slurm.commands import SlurmCommands
    from moorings.slurm.host.install_plan import InstallOptions, InstallStep
    from moorings.slurm.host.site import Site
    from moorings.slurm.host.vipu_conf import VipuConf

WAIT_S = 60
CALL_S = 4.0

slurm = NounGroup(
    name="slurm",
    help="Install, run and check what Slurm needs for jobs of IPUs.",
    epilog=examples("moor slurm install --plan", "moor slurm agent", "moor slurm doctor"),
    no_args_is_help=True,
)


class SurrogateCommand(MoorCommand):
    """``moor slurm surrogate [flags] -- COMMAND...``: words after ``--`` are never parsed as our flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["command"] = tuple(after)
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "-- COMMAND [ARGUMENT]..."]


# -- install -----------------------------------------------------------------------------------------------------------


@slurm.command(
    "install",
    cls=MoorCommand,
    help="Install the SPANK plugin and the submit script, or take them away.\n\n"
    "Compiles the plugin for the Slurm that runs, and puts files of its own beside slurm.conf. A file of the site's is "
    "never changed: what belongs into slurm.conf is printed. Run it as root on every machine of the cluster.",
    epilog=examples(
        "moor slurm install --plan",
        "moor slurm install --apply --ipus 64 --agent ctl1:8091",
        "moor slurm install --uninstall",
    ),
)
@click.option("--plan", "mode", flag_value="plan", default=True, help="Only show what would be done (the default).")
@click.option("--apply", "mode", flag_value="apply", help="Do it; a second time it changes nothing.")
@click.option("--uninstall", "mode", flag_value="uninstall", help="Remove installed files that were not changed.")
@click.option("--ipus", type=click.IntRange(1, 65_536), metavar="N", help="IPUs of the pool (asked of the controller).")
@click.option("--max-ipus", type=click.IntRange(1, 65_536), metavar="N", help="The most one job may have (vipu.conf).")
@click.option(
    "--agent",
    metavar="HOST[,HOST]:PORT",
    help="Where nodes reach the agent (as before, else slurmctld's machines, 8091).",
)
@click.option("--agent-uid", type=click.IntRange(0), metavar="UID", help="User the agent runs as (SlurmUser).")
@click.option(
    "--wait",
    "wait_s",
    type=click.IntRange(1, 3600),
    metavar="S",
    help="A job's patience (as before, else 60); more than ApiTimeout.",
)
@click.option("--library", metavar="DIR", help="Folder of the plugin, one path for all machines.")
@click.option("--force", is_flag=True, help="Also replace files of ours that were changed by hand.")
@output_option
@click.pass_obj
def install(
    session: CommandContext,
    *,
    mode: str,
    ipus: int | None,
    max_ipus: int | None,
    agent: str | None,
    agent_uid: int | None,
    wait_s: int | None,
    library: str | None,
    force: bool,
    output: str | None,
) -> int:
    """Install the SPANK plugin and the submit script, or take them away."""
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.install_plan import InstallOptions, check_wait
    from moorings.slurm.host.plugstack import installed_arguments
    from moorings.slurm.host.vipu_conf import AGENT_PORT, FILE_NAME, TIMEOUT_S, load_vipu_conf

    folder = Path(library).absolute() if library else doing.LIBRARY
    if mode == "uninstall":
        return _uninstall(session, folder, output)
    site = _site(session)
    if not site.has_files:
        return _install_plugin(session, site, folder, output, apply=mode == "apply", force=force)
    agent_before, wait_before = installed_arguments(doing.load_plugstack(site.plugstack))
    pool = _pool(session, site, ipus, max_ipus)
    conf = site.folder / FILE_NAME
    patience_s = load_vipu_conf(conf, site.slurm_user[1]).timeout_s if conf.exists() else TIMEOUT_S
    wait_s = wait_s or (wait_before if wait_before > patience_s else WAIT_S)  # a wait that is too short is corrected
    if conf.exists():
        check_wait(wait_s, patience_s, conf)
    choices = InstallOptions(
        library=folder,
        agent=_address(agent) if agent else agent_before or f"{','.join(site.controllers)}:{AGENT_PORT}",
        agent_uid=max(site.slurm_user[1], 0) if agent_uid is None else agent_uid,
        ipus=pool.ipus,
        largest=pool.largest,
        domain=pool.domain,
        wait_s=wait_s,
        feature=asyncio.run(doing.find_feature(_commands(session))),
    )
    steps = _plan_install(session, site, choices, force=force)
    if mode == "apply":
        with doing.exclusive_install(folder):
            doing.apply_install(steps, doing.load_manifest(folder), folder)
    _show(session, steps, _manual_edits(site, choices), output, done=mode == "apply")
    return ExitCode.OK


def _install_plugin(
    session: CommandContext, site: Site, folder: Path, output: str | None, *, apply: bool, force: bool
) -> int:
    """Install only the plugin: slurmctld distributes the files, and they are installed on its machine."""
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.install_plan import build_plugin_file, plan_install

    plugin = doing.compile_plugin(doing.load_sources(), site.version, session.environment)
    wanted = [build_plugin_file(site, folder, plugin)]
    with doing.exclusive_install(folder) if apply else contextlib.nullcontext():
        manifest = doing.load_manifest(folder)
        steps = plan_install(wanted, doing.digest_files(file.path for file in wanted), manifest, force=force)
        if apply:
            doing.apply_install(steps, manifest, folder)
    _show(session, steps, [], output, done=apply)
    session.console.info(
        "There is no slurm.conf of this machine's own: slurmctld hands its files out. Beside slurmctld install all of "
        "them; 'scontrol reconfigure' hands them out anew."
    )
    return ExitCode.OK


def _site(session: CommandContext) -> Site:
    """The Slurm that runs; if it cannot run because the V-IPU select plugin is missing, the error says so."""
    from moorings.doctor.checks import SELECT_PAGE
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.site import uses_select_vipu, without_select_vipu
    from moorings.slurm.host.vipu_conf import slurm_conf_path
    from moorings.slurm.slurm_conf import parse_slurm_conf

    conf = slurm_conf_path(session.environment)
    settings = parse_slurm_conf((doing.read_file(conf) or b"").decode("utf-8", "replace"))
    if uses_select_vipu(settings):
        lines = "; ".join(line.line for line in without_select_vipu(settings, conf))
        raise MooringsError(
            "slurm.refused",
            f"{conf} has SelectType=select/vipu, which no stock Slurm has",
            hint=f"write instead: {lines}; restart slurmctld, and install then; {SELECT_PAGE} tells the rest",
        )
    return asyncio.run(doing.find_site(_commands(session)))


def _plan_install(session: CommandContext, site: Site, choices: InstallOptions, *, force: bool) -> list[InstallStep]:
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.install_plan import build_files, plan_install, retired_files

    sources = doing.load_sources()
    plugin = doing.compile_plugin(sources, site.version, session.environment)
    manifest = doing.load_manifest(choices.library)
    stack = doing.load_stack(site, manifest, force=force)
    wanted = build_files(site, choices, plugin, sources, stack)
    retired = retired_files(site, stack)
    on_disk = doing.digest_files([*(file.path for file in wanted), *retired])
    return plan_install(wanted, on_disk, manifest, force=force, retired=retired)


@dataclass(frozen=True, slots=True)
class _PoolSize:
    ipus: int
    largest: int
    domain: int | None  # None: the controller was not asked


def _pool(session: CommandContext, site: Site, ipus: int | None, max_ipus: int | None) -> _PoolSize:
    """The pool's size for Slurm: from the command line, else from the controller."""
    from moorings.slurm.host.checks import shape_of
    from moorings.slurm.host.vipu_conf import FILE_NAME, load_vipu_conf

    path = site.folder / FILE_NAME
    hint = "give --ipus N, or fill in vipu.conf first: then the controller is asked"
    if ipus is not None:
        allowed = max_ipus or (load_vipu_conf(path, site.slurm_user[1]).max_ipus if path.exists() else 256)
        return _PoolSize(ipus, 1 << (min(ipus, allowed).bit_length() - 1), None)
    if not path.exists():
        raise UsageErrorWithHint(f"how many IPUs the pool has is not known: there is no {path}", hint=hint)
    conf = load_vipu_conf(path, site.slurm_user[1])
    with _client(session, conf) as client:
        try:
            pools = [pool for pool in client.list_pools() if pool.accelerator == "ipu" and conf.pool in ("", pool.name)]
        except MooringsError as error:
            raise MooringsError(
                error.code, f"the controller does not report its pool: {error.detail}", hint=hint
            ) from error
    if not pools:
        raise UsageErrorWithHint(f"{conf.server} has no pool of IPUs that {path} names", hint="see 'moor get pools'")
    domain = min(pool.topology.domain_size for pool in pools)
    return _PoolSize(*shape_of(pools, max_ipus or conf.max_ipus), domain)


def _address(agent: str) -> str:
    hosts, colon, port = agent.rpartition(":")
    if colon and hosts and port.isdecimal() and 0 < int(port) < 65_536 and not set(agent) & set(" \t\"'#\\"):
        return agent
    from moorings.slurm.host.vipu_conf import AGENT_PORT

    raise UsageErrorWithHint(
        f"--agent {agent!r} is no address", hint=f"write HOST:{AGENT_PORT}, or HOST,HOST2:{AGENT_PORT}"
    )


@dataclass(frozen=True, slots=True)
class _ManualEdit:
    """An edit for the site's administrator: the file, the lines, and why."""

    file: Path
    lines: tuple[str, ...]
    why: str


def _manual_edits(site: Site, choices: InstallOptions) -> list[_ManualEdit]:
    """The edits that the site's administrator must make."""
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.install_plan import JOB_SUBMIT, lines_for_site
    from moorings.slurm.host.site import conf_lines

    script = doing.read_file(site.folder / JOB_SUBMIT)
    stack = doing.load_stack(site, doing.load_manifest(choices.library))
    lines = [_ManualEdit(line.file, (line.line,), line.why) for line in conf_lines(site, choices.ipus, choices.largest)]
    return [
        *lines,
        *(_ManualEdit(line.file, line.lines, line.why) for line in lines_for_site(site, choices, script, stack)),
    ]


def _uninstall(session: CommandContext, folder: Path, output: str | None) -> int:
    """Needs no running Slurm: the manifest lists the files we wrote."""
    from moorings.slurm.host import install as doing

    if not folder.is_dir():
        _show(session, [], [], output, done=True)
        return ExitCode.OK
    with doing.exclusive_install(folder):
        steps = _remove_files(session, folder)
    _show(session, steps, [], output, done=True)
    return ExitCode.OK


def _remove_files(session: CommandContext, folder: Path) -> list[InstallStep]:
    from moorings.slurm.host import install as doing
    from moorings.slurm.host.install_plan import JOB_SUBMIT, SUBMIT, check_uninstall, plan_uninstall
    from moorings.slurm.host.plugstack import plugin_lines
    from moorings.slurm.host.vipu_conf import slurm_conf_path
    from moorings.slurm.slurm_conf import parse_slurm_conf

    manifest = doing.load_manifest(folder)
    stacks = {slurm_conf_path(session.environment).with_name("plugstack.conf")}
    for path in manifest.digests:
        if path.name == SUBMIT:
            conf = path.with_name("slurm.conf")
            stacks.add(path.with_name("plugstack.conf"))
            settings = parse_slurm_conf((doing.read_file(conf) or b"").decode("utf-8", "replace"))
            used = [word.strip() for word in settings.get("jobsubmitplugins", "").split(",")]
            check_uninstall(used, doing.read_file(path.with_name(JOB_SUBMIT)), conf)
    steps = plan_uninstall(doing.digest_files(manifest.digests), manifest)
    doing.apply_uninstall(steps, manifest, folder)
    for line in (line for stack in stacks for line in plugin_lines(doing.load_plugstack(stack))):
        if Path(line.path) in manifest.digests:
            session.console.warn(
                f"{line.file} still loads {line.path}: take that line out, wherever the file comes from"
            )
    return steps


_SIGNS = {"create": "+", "update": "~", "remove": "-", "keep": "!", "same": "=", "gone": "="}


def _show(
    session: CommandContext,
    steps: Sequence[InstallStep],
    lines: Sequence[_ManualEdit],
    output: str | None,
    *,
    done: bool,
) -> None:
    shown = make_printer(session, output, usual="table")
    if shown.form.name in ("json", "yaml"):
        data = {
            "apiVersion": API_VERSION,
            "kind": "SlurmInstallation",
            "done": done,
            "items": [{"action": str(step.action), "path": str(step.path), "why": step.why} for step in steps],
            "lines": [{"file": str(line.file), "lines": list(line.lines), "why": line.why} for line in lines],
        }
        session.console.print_data(render_data(data, shown.form, shown.look))
        return
    if not steps:
        session.console.info("Nothing of ours is installed here.")
    else:
        rows = [[f"{_SIGNS[step.action]} {step.action}", str(step.path), step.why] for step in steps]
        session.console.print_data(render_table(["ACTION", "FILE", "WHY"], rows, table_style(session)))
    for line in lines:
        session.console.print_line("")
        session.console.print_line(f"{line.file} (write it yourself: {line.why}):")
        for text in line.lines:
            session.console.print_line(f"    {text}")
    if lines:
        session.console.info(
            "After the files were changed on all machines, restart slurmctld, and say 'scontrol reconfigure', so that "
            "nodes read them, too; 'moor slurm doctor' looks."
        )


# -- doctor ------------------------------------------------------------------------------------------------------------


@slurm.command(
    "doctor",
    cls=MoorCommand,
    help="Check the Slurm installation for IPU jobs, and show how to fix it.\n\n"
    "Run it as root: beside slurmctld it sees everything, on a node what concerns the node. Only reads, and takes 10 "
    "seconds at most. The exit code is 8 if a check failed.",
    epilog=examples(
        "moor slurm doctor", "moor slurm doctor --only slurm.agent,slurm.plugin", "moor slurm doctor -o json"
    ),
)
@click.option("--only", metavar="ID,...", help="Only checks whose id begins with one of these.")
@output_option
@click.pass_obj
def doctor(session: CommandContext, *, only: str | None, output: str | None) -> int:
    """Check the Slurm installation for IPU jobs, and show how to fix it."""
    from moorings.slurm.host.doctor import DoctorContext, examine

    wanted = parse_only(only or "slurm", SLURM_CHECKS)
    everything = asyncio.run(examine(DoctorContext(session.environment, lambda conf: _client(session, conf))))
    return show_findings(session, [finding for finding in everything if finding.id.startswith(wanted)], output)


# -- surrogate ---------------------------------------------------------------------------------------------------------


@slurm.command(
    "surrogate",
    cls=SurrogateCommand,
    help="Run a command, and show it as a step of the Slurm job around it.\n\n"
    "For work that runs elsewhere, on Kubernetes say, and is started from a script for sbatch or from the shell of "
    "salloc: the step begins and ends with the command, COMPLETED if its exit code is 0, else FAILED. The exit code "
    "is the command's. Signals are passed on to it; 'scancel' of the step or of the job stops it.",
    epilog=examples(
        "moor slurm surrogate -- moor run --engine kubernetes job.toml",
        "moor slurm surrogate --name train-gpt2 -- ./train.sh",
    ),
)
@click.option("--name", metavar="NAME", help="Name of the step (the program's).")
@click.option("--grace", default="20s", metavar="DURATION", help="From TERM to KILL if the step is cancelled (20s).")
@click.option("--if-slurm", is_flag=True, help="Outside of a Slurm job, and under srun, just run it.")
@click.pass_context
def surrogate(ctx: click.Context, *, name: str | None, grace: str, if_slurm: bool) -> int:
    """Run a command, and show it as a step."""
    from moorings.ports.mirror import NoMirror
    from moorings.slurm.surrogate.command import run_command
    from moorings.slurm.surrogate.detection import NotInJob, find_job, load_ancestors
    from moorings.slurm.surrogate.mirror import SlurmMirror
    from moorings.slurm.surrogate.step import build_name, check_name

    session = ctx.ensure_object(CommandContext)
    command: Sequence[str] = ctx.meta["command"]
    if not command:
        raise UsageErrorWithHint(
            "there is no command to run", hint="write it behind --, as in 'moor slurm surrogate -- ls'"
        )
    step = check_name(name) if name is not None else build_name(command[0])
    grace_s = parse_seconds(grace)
    job = find_job(session.environment, load_ancestors())
    if isinstance(job, NotInJob) and not if_slurm:
        raise UsageErrorWithHint(
            job.why, hint=f"{job.hint}; with --if-slurm the command runs all the same, without a step"
        )
    warn = session.console.warn
    mirror = NoMirror() if isinstance(job, NotInJob) else SlurmMirror(session.environment, job, warn)
    try:
        return run_command(command, mirror=mirror, name=step, grace_s=grace_s, note=warn)
    except OSError as error:
        session.console.error(f"error: {command[0]} cannot be started: {error.strerror or error}")
        return 127 if isinstance(error, FileNotFoundError) else 126  # as in a shell


# -- agent -------------------------------------------------------------------------------------------------------------


@slurm.command(
    "agent",
    cls=MoorCommand,
    help="Keep a cluster's IPU jobs and their partitions in step.\n\n"
    "Runs in the foreground beside slurmctld, as root or SlurmUser, and logs to standard error; deploy/systemd has a "
    "unit. Reads vipu.conf beside slurm.conf. When it ends, no IPU job and no new step of one starts until it is back.",
    epilog=examples("moor slurm agent", "moor slurm agent --conf /etc/slurm/vipu.conf --listen 10.0.0.5"),
)
@click.option("--conf", metavar="FILE", help="Its configuration (vipu.conf beside slurm.conf).")
@click.option("--listen", metavar="ADDRESS", help="Address where nodes ask (all of this machine's).")
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", help="(info)")
@click.pass_obj
def agent(session: CommandContext, *, conf: str | None, listen: str | None, log_level: str) -> int:
    """Keep a cluster's IPU jobs and their partitions in step."""
    words = ["--log-level", log_level]
    words += ["--conf", conf] if conf else []
    words += ["--listen", listen] if listen else []
    # Replace this process, so that its parent (a shell, an init) sees the agent's own end, and signals reach only the
    # agent.
    argv = [sys.executable, "-m", "moorings.app.slurm_agent", *words]
    os.execve(sys.executable, argv, dict(session.environment))  # noqa: S606 - no shell is wanted


def _commands(session: CommandContext) -> SlurmCommands:
    from moorings.slurm.commands import SlurmCommands

    return SlurmCommands(session.environment)


def _client(session: CommandContext, conf: VipuConf) -> Client:
    """A client with the agent's address and key, whatever the caller's own configuration says."""
    from moorings.client.client import Client
    from moorings.client.transport import Transport
    from moorings.slurm.host.vipu_conf import SERVER_USER

    endpoint = conf.endpoint(min(conf.timeout_s, CALL_S), session.environment.get(SERVER_USER, ""))
    return Client(Transport(endpoint, trace=session.console.error if "verbose" in session.flags else None))
