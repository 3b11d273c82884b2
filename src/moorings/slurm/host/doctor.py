"""Observes a site's Slurm for ``moor slurm doctor`` and passes the observations to ``checks``. It changes nothing.

It runs beside slurmctld, which sees everything, and on any other machine of the cluster, where it reports what it
cannot see. Everything has a time limit: independent parts run at the same time, and a hanging part only costs its own
checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Timestamp
from moorings.slurm import formats
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import LICENSE, RESERVATION, JobRecord
from moorings.slurm.host import checks
from moorings.slurm.host.install import find_site, load_plugstack, read_file
from moorings.slurm.host.installation import JOB_SUBMIT, LIMITS, is_template
from moorings.slurm.host.instance import read_instance
from moorings.slurm.host.ledger import KIND, ClusterIdentity, queue_of
from moorings.slurm.host.node_notes import FILE as NODES
from moorings.slurm.host.node_notes import load_node_state
from moorings.slurm.host.nodes import BATCH_STEP, BindRequest, build_request, parse_reply
from moorings.slurm.host.plugstack import PluginLine, agent_uid_of, plugin_lines
from moorings.slurm.host.site import Site, munge_socket_of
from moorings.slurm.host.vipu_conf import VipuConf, load_vipu_conf, slurm_conf_path, slurm_uid, vipu_conf_path
from moorings.slurm.munge import Munge
from moorings.slurm.node_records import build_show_nodes, parse_show_nodes
from moorings.slurm.slurm_conf import parse_slurm_conf
from moorings.wire.shapes import ClaimBody, FindingBody, PoolBody

P = ParamSpec("P")
T = TypeVar("T")

PART_S = 4.6  # timeout of one part; there are two rounds of parts, and 10 s in all are promised
COMMAND_S = 4.0
LOOK_AGAIN_S = 1.5  # the agent lists every second, so a mere delay is over by then
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


async def examine(place: DoctorContext) -> list[FindingBody]:
    """Return the findings in the order of ``checks.CHECKS``, within 10 seconds."""
    commands = SlurmCommands(place.environment, timeout_s=COMMAND_S)
    conf = slurm_conf_path(place.environment)
    seen = _Discovered()
    first = [
        _part(("slurm.select",), _select(conf)),
        _part(("slurm.munge",), _munge(conf)),
        _part(("slurm.controller",), _site(commands, seen)),
        _part(("slurm.vipu",), _vipu(vipu_conf_path(place.environment), conf, seen)),
    ]
    found = [finding for part in await asyncio.gather(*first) for finding in part]
    if seen.site is None:
        found += checks.skipped((*_SITE, *_POOL), "slurmctld does not answer")
    else:
        parts = [*_site_parts(commands, seen.site, seen.conf)]
        if seen.conf is None:
            found += checks.skipped(_POOL, "vipu.conf cannot be used")
        else:
            parts.append(_part(_POOL, _pool(place, commands, seen.site, seen.conf)))
        found += [finding for part in await asyncio.gather(*parts) for finding in part]
    order = list(checks.CHECKS)
    return sorted(found, key=lambda finding: order.index(finding.id))


@dataclass(slots=True)
class _Discovered:
    """Results of the first parts, for the others."""

    site: Site | None = None
    conf: VipuConf | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # set: slurmctld was asked


def _site_parts(
    commands: SlurmCommands, site: Site, conf: VipuConf | None
) -> Iterable[Coroutine[None, None, list[FindingBody]]]:
    yield _part(("slurm.release",), _release(commands, site))
    yield _part(("slurm.conf", "slurm.user"), _same(site))
    yield _part(("slurm.nodes",), _nodes(commands, site))
    yield _part(_INSTALLED, _installed(commands, site, conf))
    yield _part(("slurm.agent",), _agent(site))


async def _part(ids: tuple[str, ...], work: Awaitable[list[FindingBody]]) -> list[FindingBody]:
    """Return the findings of one part; an error or a timeout costs this part alone."""
    try:
        async with asyncio.timeout(PART_S):
            return await work
    except MooringsError as error:
        return [checks.failed_finding(ids[0], error), *checks.skipped(ids[1:], f"see {ids[0]}")]
    except TimeoutError:
        fix = "what hangs: a disk, munge, the network? The rest of this list may tell"
        told = FindingBody(id=ids[0], verdict=checks.FAIL, evidence=f"nothing was seen in {PART_S:g} s", fix=fix)
        return [told, *checks.skipped(ids[1:], f"see {ids[0]}")]


async def _in_daemon_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return the result of ``work`` in a thread that is abandoned at the timeout: munge or a disk may hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work(*args, **named)
        except Exception as error:  # any error belongs to the waiting caller
            settle: Callable[[], None] = partial(done.set_exception, error)
        else:
            settle = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    threading.Thread(target=run, daemon=True).start()
    return await done


# -- Slurm itself ------------------------------------------------------------------------------------------------------


async def _select(conf: Path) -> list[FindingBody]:
    text = await _in_daemon_thread(read_file, conf)
    if text is None:
        return checks.skipped(("slurm.select",), f"there is no {conf}: configless, or SLURM_CONF names another")
    settings = parse_slurm_conf(text.decode("utf-8", "replace"))
    return [checks.check_select(settings.get("selecttype", ""), conf)]


async def _site(commands: SlurmCommands, seen: _Discovered) -> list[FindingBody]:
    try:
        seen.site = await find_site(commands)
    finally:
        seen.asked.set()
    told = f"slurmctld of cluster '{seen.site.cluster}' answers"
    return [FindingBody(id="slurm.controller", verdict=checks.PASS, evidence=told)]


async def _release(commands: SlurmCommands, site: Site) -> list[FindingBody]:
    told, nodes = await asyncio.gather(commands.ask(["scontrol", "--version"]), commands.ask(formats.build_nodes()))
    version = told.decode("utf-8", "replace").split()[-1:] or [""]
    return [checks.check_release(site, version[0], formats.parse_nodes(nodes))]


async def _nodes(commands: SlurmCommands, site: Site) -> list[FindingBody]:
    """Check nodes beside slurmctld alone, where the agent records their reports of the plugin."""
    if not await _in_daemon_thread(os.access, site.state_folder, os.R_OK | os.X_OK):
        return checks.skipped(("slurm.nodes",), f"{site.state_folder} is not seen here: ask beside slurmctld, as root")
    notes = await _in_daemon_thread(load_node_state, site.state_folder / NODES)
    nodes = parse_show_nodes(await commands.ask(build_show_nodes()))
    return [checks.check_nodes(nodes, notes, await _in_daemon_thread(read_file, site.folder / LIMITS), time.time())]


async def _same(site: Site) -> list[FindingBody]:
    log = await _in_daemon_thread(_tail, Path(site.log_file)) if site.log_file else None
    differing = checks.parse_differing(log or "")
    return [
        checks.check_conf(site, differing, log_seen=log is not None),
        checks.check_user(site, await _in_daemon_thread(_number_of, site.slurm_user[0])),
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


async def _munge(conf: Path) -> list[FindingBody]:
    """Check munge. Without it slurmctld does not answer, so the socket's path comes from slurm.conf."""
    text = await _in_daemon_thread(read_file, conf) or b""
    socket = munge_socket_of(parse_slurm_conf(text.decode("utf-8", "replace")).get("authinfo", ""))

    def round_trip() -> int:
        munge = Munge(socket)
        return munge.decode(munge.encode(b"moorings doctor")).uid

    uid = await _in_daemon_thread(round_trip)
    return [
        FindingBody(id="slurm.munge", verdict=checks.PASS, evidence=f"a credential was made and read as user {uid}")
    ]


# -- the installation --------------------------------------------------------------------------------------------------


def plugin_line(site: Site) -> PluginLine | None:
    """Return the line that loads the plugin, from plugstack.conf or an included file."""
    return next(iter(plugin_lines(load_plugstack(site.plugstack))), None)


async def _installed(commands: SlurmCommands, site: Site, conf: VipuConf | None) -> list[FindingBody]:
    lines = plugin_lines(await _in_daemon_thread(load_plugstack, site.plugstack))
    image = await _in_daemon_thread(read_file, Path(lines[0].path)) if lines else None
    help_text = await commands.run(["srun", "--help"])
    fetched = not site.has_files and not await _in_daemon_thread(site.slurm_conf.exists)
    return [
        checks.check_plugin(site, lines, image, fetched=fetched),
        checks.check_options(help_text.output.decode("utf-8", "replace")),
        *await _submitting(site),
        checks.check_accounting(site),
        checks.check_backfill(site),
        checks.check_requeue(site),
        checks.check_waits(lines[0].arguments if lines else None, conf.timeout_s if conf is not None else None),
    ]


async def _submitting(site: Site) -> list[FindingBody]:
    if not site.has_files:
        return checks.skipped(("slurm.submit", "slurm.limits"), "slurmctld's own files are beside it (configless)")
    return [
        checks.check_submit(site, await _in_daemon_thread(read_file, site.folder / JOB_SUBMIT)),
        checks.check_limits(site, await _in_daemon_thread(read_file, site.folder / LIMITS)),
    ]


# -- running parts -----------------------------------------------------------------------------------------------------


async def _vipu(path: Path, slurm_conf: Path, seen: _Discovered) -> list[FindingBody]:
    if not await _in_daemon_thread(path.exists):  # only the agent's machine needs it
        fix = "beside slurmctld: 'moor slurm install --apply' makes one to fill in"
        return [FindingBody(id="slurm.vipu", verdict=checks.SKIP, evidence=f"there is no {path}", fix=fix)]
    content = await _in_daemon_thread(read_file, path) if os.geteuid() == 0 else None
    if content is not None and is_template(content):
        told = f"{path} is as it was made: not filled in, as it need not be where the agent does not run"
        return [FindingBody(id="slurm.vipu", verdict=checks.SKIP, evidence=told, fix="beside slurmctld: fill it in")]
    await seen.asked.wait()
    user = seen.site.slurm_user[1] if seen.site is not None else await _in_daemon_thread(slurm_uid, slurm_conf)
    seen.conf = conf = await _in_daemon_thread(load_vipu_conf, path, user)
    if not conf.access_key:
        fix = "ApiAccessKey=KEY; 'moor create key' makes one"
        return [FindingBody(id="slurm.vipu", verdict=checks.FAIL, evidence=f"{path} has no access key", fix=fix)]
    return [FindingBody(id="slurm.vipu", verdict=checks.PASS, evidence=f"{path} names {conf.server}")]


async def _agent(site: Site) -> list[FindingBody]:
    """Ask the agent at each of its addresses about an impossible job, as a node asks about a real one."""
    line = await _in_daemon_thread(plugin_line, site)
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
                uid, told = await _ask(reader, writer, site)
            finally:
                writer.close()
    except MooringsError as error:
        return checks.AgentProbe(host, None, error.detail, listens=False)
    except (OSError, ValueError, OverflowError) as error:  # also for an invalid port; TimeoutError is an OSError
        return checks.AgentProbe(host, None, str(error) or "it took too long", listens=False)
    return checks.AgentProbe(host, uid, told, listens=True)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> tuple[int, str]:
    """Return the uid of the answering process, and its message."""
    request = BindRequest(job=NO_JOB, step=BATCH_STEP, node="doctor", restart=0, nonce=secrets.token_hex(8))
    munge = Munge(site.munge_socket)
    writer.write((await _in_daemon_thread(munge.encode, build_request(request))).encode() + b"\n")
    await writer.drain()
    line = await reader.readline()
    credential = await _in_daemon_thread(munge.decode, line.decode("ascii", "replace").strip())
    reply = parse_reply(credential.payload, request)
    return credential.uid, reply.message or reply.status


async def _pool(place: DoctorContext, commands: SlurmCommands, site: Site, conf: VipuConf) -> list[FindingBody]:
    with place.client_of(conf) as client:
        try:
            pools = await _in_daemon_thread(_pools, client, conf)
        except MooringsError as error:
            mend = MooringsError(
                error.code, error.detail, hint="is it up? See ApiHost, ApiPort and the key in vipu.conf"
            )
            raise mend from error
        told = f"{conf.server} answers to the agent's key: {sum(pool.devices for pool in pools)} IPUs"
        found = [FindingBody(id="slurm.pool", verdict=checks.PASS, evidence=told)]
        found.append(checks.check_licenses(site, pools, conf.max_ipus))
        found.append(checks.check_accounts(site, await _in_daemon_thread(client.projects)))
        home, instance = await _instance(client, site)
        found.append(instance)

        async def in_step() -> list[FindingBody]:
            licenses = formats.parse_licenses(await commands.ask(formats.build_licenses()))
            reservations = formats.parse_reservations(await commands.ask(formats.build_reservations()))
            now = await _in_daemon_thread(_pools, client, conf)
            return [checks.check_reservation(licenses, reservations.get(RESERVATION), now)]

        async def accounted() -> list[FindingBody]:
            claims = await _in_daemon_thread(_claims, client, site.cluster)
            ours = [claim for claim in claims if home is None or home.may_judge(claim.owner)]
            jobs = await _jobs(commands, ours)
            orphans = checks.unmatched_claims(ours, jobs)
            after = await _in_daemon_thread(_claims, client, site.cluster)  # a claim is made after its job's start
            return [
                checks.check_orphans(site.cluster, orphans, len(ours), all_ours=home is not None),
                checks.check_foreign(home, claims),
                checks.check_unclaimed(jobs, after),
            ]

        return found + await _confirm_twice(in_step, accounted)


async def _instance(client: Client, site: Site) -> tuple[ClusterIdentity | None, FindingBody]:
    """Request the offer as the agent does, with the id from Slurm's state folder; return also our identity.

    None: there is no readable id here.
    """
    check, home = "slurm.instance", None
    try:
        instance = await _in_daemon_thread(read_instance, site.state_folder)
        if instance is None:
            told = f"there is no id in {site.state_folder}: the agent makes it, beside slurmctld"
            return None, FindingBody(id=check, verdict=checks.SKIP, evidence=told)
        home = ClusterIdentity(site.cluster, instance)
        queue = await _in_daemon_thread(client.queue, home.queue, instance=instance)
    except MooringsError as error:
        if error.code == "queue.unknown":
            return home, FindingBody(id=check, verdict=checks.SKIP, evidence=error.detail, fix="see slurm.agent")
        return home, checks.failed_finding(check, error)
    return home, checks.check_instance(site.cluster, queue, Timestamp(int(time.time() * SECOND)))


async def _confirm_twice(*looks: Callable[[], Awaitable[list[FindingBody]]]) -> list[FindingBody]:
    """Return the findings; a bad one must be seen twice, because a job may have started or ended just now."""
    first = [await look() for look in looks]
    if any(finding.verdict != checks.PASS for found in first for finding in found):
        await asyncio.sleep(LOOK_AGAIN_S)
    good = [all(finding.verdict == checks.PASS for finding in found) for found in first]
    again = [found if well else await look() for look, found, well in zip(looks, first, good, strict=True)]
    return [finding for found in again for finding in found]


def _pools(client: Client, conf: VipuConf) -> list[PoolBody]:
    return [pool for pool in client.pools() if pool.accelerator == KIND and conf.pool in ("", pool.name)]


def _claims(client: Client, cluster: str) -> list[ClaimBody]:
    return list(client.claims(ClaimFilter(owner_prefix=f"{queue_of(cluster)}/")))


async def _jobs(commands: SlurmCommands, claims: list[ClaimBody]) -> list[JobRecord]:
    """Return the jobs with IPUs, and the jobs of claims whose licenses were removed."""
    jobs = formats.parse_jobs(await commands.ask(formats.build_jobs(license_name=LICENSE, ended=False)))
    rest = sorted(start.job_id for start in checks.unmatched_claims(claims, jobs))
    if rest:
        try:
            jobs += formats.parse_jobs(await commands.ask(formats.build_jobs(jobs=rest)))
        except MooringsError as error:
            if error.code != "slurm.job_unknown":
                raise
    return jobs
