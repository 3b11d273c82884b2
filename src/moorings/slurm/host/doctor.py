"""Observes a site's Slurm for ``moor slurm doctor`` and passes the observations to ``checks``. It changes nothing.

It runs beside slurmctld, which sees everything, and on any other machine of the cluster, where it reports what it
cannot see. Everything has a time limit: independent parts run at the same time, and a hanging part only costs its own
checks.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.doctor.checks import SLURM_CHECKS
from moorings.doctor.findings import FAIL, PASS, SKIP, Finding, failed_finding, skipped_findings
from moorings.doctor.tasks import confirm_twice, in_daemon_thread, run_part
from moorings.slurm import formats
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import LICENSE, RESERVATION, JobRecord
from moorings.slurm.host import checks
from moorings.slurm.host.bind_protocol import BATCH_STEP, BindRequest, build_request, parse_reply
from moorings.slurm.host.install import find_site, load_plugstack, read_file
from moorings.slurm.host.install_plan import JOB_SUBMIT, LIMITS, is_template
from moorings.slurm.host.instance_id import read_instance
from moorings.slurm.host.job_table import KIND, ClusterIdentity, queue_of
from moorings.slurm.host.node_state_file import FILE as NODES
from moorings.slurm.host.node_state_file import load_node_state
from moorings.slurm.host.plugstack import PluginLine, agent_uid_of, plugin_lines
from moorings.slurm.host.site import Site, munge_socket_of
from moorings.slurm.host.vipu_conf import VipuConf, load_vipu_conf, slurm_conf_path, slurm_uid, vipu_conf_path
from moorings.slurm.munge import Munge
from moorings.slurm.node_records import build_show_nodes, parse_show_nodes
from moorings.slurm.slurm_conf import parse_slurm_conf
from moorings.wire.shapes import ClaimBody, PoolBody

PART_S = 4.6  # timeout of one part; there are two rounds of parts, and 10 s in all are promised
COMMAND_S = 4.0
CONFIRM_PAUSE_S = 1.5  # the agent lists every second, so a mere delay is over by then
LOG_BYTES_MAX = 4 << 20
AGENT_S = 4.0
NO_JOB = 4_294_967_290  # above Slurm's MaxJobId: the agent answers that there is no such job
_REPLY_BYTES_MAX = 1 << 20

ClientOf = Callable[[VipuConf], Client]
_INSTALLED = (
    *("slurm.plugin", "slurm.options", "slurm.submit", "slurm.limits", "slurm.accounting", "slurm.backfill"),
    *("slurm.requeue", "slurm.waits"),
)
_SITE = ("slurm.release", "slurm.conf", "slurm.user", "slurm.nodes", *_INSTALLED, "slurm.agent")
_POOL = (
    *("slurm.pool", "slurm.accounts", "slurm.licenses", "slurm.instance", "slurm.reservation"),
    *("slurm.orphans", "slurm.foreign", "slurm.unclaimed"),
)


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """The doctor's surroundings: this machine's variables, and a client with the agent's key."""

    environment: Mapping[str, str]
    client_of: ClientOf


async def examine(place: DoctorContext) -> list[Finding]:
    """Return the findings in the order of ``SLURM_CHECKS``, within 10 seconds."""
    commands = SlurmCommands(place.environment, timeout_s=COMMAND_S)
    conf = slurm_conf_path(place.environment)
    seen = _Discovered()
    first = [
        run_part(("slurm.select",), _select(conf), PART_S),
        run_part(("slurm.munge",), _munge(conf), PART_S),
        run_part(("slurm.controller",), _site(commands, seen), PART_S),
        run_part(("slurm.vipu",), _vipu(vipu_conf_path(place.environment), conf, seen), PART_S),
    ]
    found = [finding for part in await asyncio.gather(*first) for finding in part]
    if seen.site is None:
        found += skipped_findings((*_SITE, *_POOL), "slurmctld does not answer")
    else:
        parts = [*_site_parts(commands, seen.site, seen.conf)]
        if seen.conf is None:
            found += skipped_findings(_POOL, "vipu.conf cannot be used")
        else:
            parts.append(run_part(_POOL, _pool(place, commands, seen.site, seen.conf), PART_S))
        found += [finding for part in await asyncio.gather(*parts) for finding in part]
    order = list(SLURM_CHECKS)
    return sorted(found, key=lambda finding: order.index(finding.id))


@dataclass(slots=True)
class _Discovered:
    """Results of the first parts, for the others."""

    site: Site | None = None
    conf: VipuConf | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # set: slurmctld was asked


def _site_parts(
    commands: SlurmCommands, site: Site, conf: VipuConf | None
) -> Iterable[Coroutine[None, None, list[Finding]]]:
    yield run_part(("slurm.release",), _release(commands, site), PART_S)
    yield run_part(("slurm.conf", "slurm.user"), _same(site), PART_S)
    yield run_part(("slurm.nodes",), _nodes(commands, site), PART_S)
    yield run_part(_INSTALLED, _installed(commands, site, conf), PART_S)
    yield run_part(("slurm.agent",), _agent(site), PART_S)


# -- Slurm itself ------------------------------------------------------------------------------------------------------


async def _select(conf: Path) -> list[Finding]:
    text = await in_daemon_thread(read_file, conf)
    if text is None:
        return skipped_findings(("slurm.select",), f"there is no {conf}: configless, or SLURM_CONF names another")
    settings = parse_slurm_conf(text.decode("utf-8", "replace"))
    return [checks.check_select(settings.get("selecttype", ""), conf)]


async def _site(commands: SlurmCommands, seen: _Discovered) -> list[Finding]:
    try:
        seen.site = await find_site(commands)
    finally:
        seen.asked.set()
    evidence = f"slurmctld of cluster '{seen.site.cluster}' answers"
    return [Finding("slurm.controller", PASS, evidence)]


async def _release(commands: SlurmCommands, site: Site) -> list[Finding]:
    output, nodes = await asyncio.gather(
        commands.run_checked(["scontrol", "--version"]), commands.run_checked(formats.build_nodes())
    )
    version = output.decode("utf-8", "replace").split()[-1:] or [""]
    return [checks.check_release(site, version[0], formats.parse_nodes(nodes))]


async def _nodes(commands: SlurmCommands, site: Site) -> list[Finding]:
    """Check nodes beside slurmctld alone, where the agent records their reports of the plugin."""
    if not await in_daemon_thread(os.access, site.state_folder, os.R_OK | os.X_OK):
        return skipped_findings(
            ("slurm.nodes",), f"{site.state_folder} is not seen here: ask beside slurmctld, as root"
        )
    notes = await in_daemon_thread(load_node_state, site.state_folder / NODES)
    nodes = parse_show_nodes(await commands.run_checked(build_show_nodes()))
    return [checks.check_nodes(nodes, notes, await in_daemon_thread(read_file, site.folder / LIMITS), time.time())]


async def _same(site: Site) -> list[Finding]:
    log = await in_daemon_thread(_tail, Path(site.log_file)) if site.log_file else None
    differing = checks.parse_differing(log or "")
    return [
        checks.check_conf(site, differing, log_seen=log is not None),
        checks.check_user(site, await in_daemon_thread(_number_of, site.slurm_user[0])),
    ]


def _tail(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LOG_BYTES_MAX, 0))
            return file.read(LOG_BYTES_MAX).decode("utf-8", "replace")
    except OSError:  # the log is on another machine, or not readable for this user
        return None


def _number_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


async def _munge(conf: Path) -> list[Finding]:
    """Check munge. Without it slurmctld does not answer, so the socket's path comes from slurm.conf."""
    text = await in_daemon_thread(read_file, conf) or b""
    socket = munge_socket_of(parse_slurm_conf(text.decode("utf-8", "replace")).get("authinfo", ""))

    def round_trip() -> int:
        munge = Munge(socket)
        return munge.decode(munge.encode(b"moorings doctor")).uid

    uid = await in_daemon_thread(round_trip)
    return [Finding("slurm.munge", PASS, f"a credential was made and read as user {uid}")]


# -- the installation --------------------------------------------------------------------------------------------------


def plugin_line(site: Site) -> PluginLine | None:
    """Return the line that loads the plugin, from plugstack.conf or an included file."""
    return next(iter(plugin_lines(load_plugstack(site.plugstack))), None)


async def _installed(commands: SlurmCommands, site: Site, conf: VipuConf | None) -> list[Finding]:
    lines = plugin_lines(await in_daemon_thread(load_plugstack, site.plugstack))
    image = await in_daemon_thread(read_file, Path(lines[0].path)) if lines else None
    help_text = await commands.run(["srun", "--help"])
    fetched = not site.has_files and not await in_daemon_thread(site.slurm_conf.exists)
    return [
        checks.check_plugin(site, lines, image, fetched=fetched),
        checks.check_options(help_text.output.decode("utf-8", "replace")),
        *await _submitting(site),
        checks.check_accounting(site),
        checks.check_backfill(site),
        checks.check_requeue(site),
        checks.check_waits(lines[0].arguments if lines else None, conf.timeout_s if conf is not None else None),
    ]


async def _submitting(site: Site) -> list[Finding]:
    if not site.has_files:
        return skipped_findings(("slurm.submit", "slurm.limits"), "slurmctld's own files are beside it (configless)")
    return [
        checks.check_submit(site, await in_daemon_thread(read_file, site.folder / JOB_SUBMIT)),
        checks.check_limits(site, await in_daemon_thread(read_file, site.folder / LIMITS)),
    ]


# -- running parts -----------------------------------------------------------------------------------------------------


async def _vipu(path: Path, slurm_conf: Path, seen: _Discovered) -> list[Finding]:
    if not await in_daemon_thread(path.exists):  # only the agent's machine needs it
        fix = "beside slurmctld: 'moor slurm install --apply' makes one to fill in"
        return [Finding("slurm.vipu", SKIP, f"there is no {path}", fix)]
    content = await in_daemon_thread(read_file, path) if os.geteuid() == 0 else None
    if content is not None and is_template(content):
        evidence = f"{path} is as it was made: not filled in, as it need not be where the agent does not run"
        return [Finding("slurm.vipu", SKIP, evidence, "beside slurmctld: fill it in")]
    await seen.asked.wait()
    user = seen.site.slurm_user[1] if seen.site is not None else await in_daemon_thread(slurm_uid, slurm_conf)
    seen.conf = conf = await in_daemon_thread(load_vipu_conf, path, user)
    if not conf.access_key:
        fix = "ApiAccessKey=KEY; 'moor create key' makes one"
        return [Finding("slurm.vipu", FAIL, f"{path} has no access key", fix)]
    return [Finding("slurm.vipu", PASS, f"{path} names {conf.server}")]


async def _agent(site: Site) -> list[Finding]:
    """Ask the agent at each of its addresses about an impossible job, as a node asks about a real one."""
    line = await in_daemon_thread(plugin_line, site)
    arguments = line.arguments if line else {}
    address = arguments.get("agent") or ",".join(site.controllers)
    hosts, port = checks.parse_agents(address)
    answers = await asyncio.gather(*(_answer(host, port, site) for host in hosts))
    return [checks.check_agent(site, address, answers, agent_uid_of(site, line))]


async def _answer(host: str, port: str, site: Site) -> checks.AgentProbe:
    try:
        async with asyncio.timeout(AGENT_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=_REPLY_BYTES_MAX)
            try:
                if os.geteuid() != 0:  # the agent answers root alone
                    return checks.AgentProbe(host, None, "not asked", listens=True)
                uid, message = await _probe(reader, writer, site)
            finally:
                writer.close()
    except MooringsError as error:
        return checks.AgentProbe(host, None, error.detail, listens=False)
    except (OSError, ValueError, OverflowError) as error:  # also for an invalid port; TimeoutError is an OSError
        return checks.AgentProbe(host, None, str(error) or "it took too long", listens=False)
    return checks.AgentProbe(host, uid, message, listens=True)


async def _probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> tuple[int, str]:
    """Return the uid of the answering process, and its message."""
    request = BindRequest(job=NO_JOB, step=BATCH_STEP, node="doctor", restart=0, nonce=secrets.token_hex(8))
    munge = Munge(site.munge_socket)
    writer.write((await in_daemon_thread(munge.encode, build_request(request))).encode() + b"\n")
    await writer.drain()
    line = await reader.readline()
    credential = await in_daemon_thread(munge.decode, line.decode("ascii", "replace").strip())
    reply = parse_reply(credential.payload, request)
    return credential.uid, reply.message or reply.status


async def _pool(place: DoctorContext, commands: SlurmCommands, site: Site, conf: VipuConf) -> list[Finding]:
    with place.client_of(conf) as client:
        try:
            pools = await in_daemon_thread(_pools, client, conf)
        except MooringsError as error:
            mend = MooringsError(
                error.code, error.detail, hint="is it up? See ApiHost, ApiPort and the key in vipu.conf"
            )
            raise mend from error
        evidence = f"{conf.server} answers to the agent's key: {sum(pool.devices for pool in pools)} IPUs"
        found = [Finding("slurm.pool", PASS, evidence)]
        found.append(checks.check_licenses(site, pools, conf.max_ipus))
        found.append(checks.check_accounts(site, await in_daemon_thread(client.list_projects)))
        home, instance = await _instance(client, site)
        found.append(instance)

        async def in_step() -> list[Finding]:
            licenses = formats.parse_licenses(await commands.run_checked(formats.build_licenses()))
            reservations = formats.parse_reservations(await commands.run_checked(formats.build_reservations()))
            now = await in_daemon_thread(_pools, client, conf)
            return [checks.check_reservation(licenses, reservations.get(RESERVATION), now)]

        async def accounted() -> list[Finding]:
            claims = await in_daemon_thread(_claims, client, site.cluster)
            ours = [claim for claim in claims if home is None or home.owns_claim(claim.owner)]
            jobs = await _jobs(commands, ours)
            orphans = checks.unmatched_claims(ours, jobs)
            after = await in_daemon_thread(_claims, client, site.cluster)  # a claim is made after its job's start
            return [
                checks.check_orphans(site.cluster, orphans, len(ours), all_ours=home is not None),
                checks.check_foreign(home, claims),
                checks.check_unclaimed(jobs, after),
            ]

        return found + await confirm_twice((in_step, accounted), CONFIRM_PAUSE_S)


async def _instance(client: Client, site: Site) -> tuple[ClusterIdentity | None, Finding]:
    """Request the offer as the agent does, with the id from Slurm's state folder; return also our identity.

    None: there is no readable id here.
    """
    check, home = "slurm.instance", None
    try:
        instance = await in_daemon_thread(read_instance, site.state_folder)
        if instance is None:
            evidence = f"there is no id in {site.state_folder}: the agent makes it, beside slurmctld"
            return None, Finding(check, SKIP, evidence)
        home = ClusterIdentity(site.cluster, instance)
        queue = await in_daemon_thread(client.queue, home.queue, instance=instance)
    except MooringsError as error:
        if error.code == "queue.unknown":
            return home, Finding(check, SKIP, error.detail, "see slurm.agent")
        return home, failed_finding(check, error)
    return home, checks.check_instance(site.cluster, queue, Timestamp(int(time.time() * SECOND)))


def _pools(client: Client, conf: VipuConf) -> list[PoolBody]:
    return [pool for pool in client.list_pools() if pool.accelerator == KIND and conf.pool in ("", pool.name)]


def _claims(client: Client, cluster: str) -> list[ClaimBody]:
    return list(client.list_claims(ClaimFilter(owner_prefix=f"{queue_of(cluster)}/")))


async def _jobs(commands: SlurmCommands, claims: list[ClaimBody]) -> list[JobRecord]:
    """Return the jobs with IPUs, and the jobs of claims whose licenses were removed."""
    jobs = formats.parse_jobs(await commands.run_checked(formats.build_jobs(license_name=LICENSE, ended=False)))
    rest = sorted(start.job_id for start in checks.unmatched_claims(claims, jobs))
    if rest:
        try:
            jobs += formats.parse_jobs(await commands.run_checked(formats.build_jobs(jobs=rest)))
        except MooringsError as error:
            if error.code != "slurm.job_unknown":
                raise
    return jobs
