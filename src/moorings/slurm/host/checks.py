"""The findings of ``moor slurm doctor``, from observations of Slurm, munge, agent and controller.

The ids are stable, like error codes; ``docs/how-to/slurm-install.md`` explains each. They are separate from those of
``moor doctor``, which also runs without Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import join_first
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.doctor.checks import SELECT_PAGE, SLURM_PAGE
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN, Finding, failed_finding
from moorings.slurm.formats import (
    LICENSE,
    RESERVATION,
    JobRecord,
    License,
    LicenseReservation,
    SinfoNode,
    SlurmJobPhase,
)
from moorings.slurm.host.bind_protocol import REQUEUE_EXIT_CODE
from moorings.slurm.host.install_plan import JOB_SUBMIT, LIMITS, calls_our_script, parse_feature, parse_requeue
from moorings.slurm.host.job_table import ClusterIdentity, JobStart, queue_of, start_of
from moorings.slurm.host.license_gate import gate_licenses
from moorings.slurm.host.node_state_file import NodeState
from moorings.slurm.host.plugin_nodes import FEATURE, has_plugin
from moorings.slurm.host.plugstack import PLUGIN, PluginLine, is_handed_out
from moorings.slurm.host.site import Site, is_our_license, is_requeued, licenses_wanted
from moorings.slurm.host.spank_object import parse_version, release_of
from moorings.slurm.host.vipu_conf import AGENT_PORT
from moorings.slurm.node_records import NodeRecord
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, PoolBody, ProjectBody, QueueBody

UNIT = "moorings-slurm-agent"
CONTESTED_S = 600  # a rival refused longer ago than this no longer counts


# -- Slurm itself ------------------------------------------------------------------------------------------------------


def check_select(select_type: str, conf: Path) -> Finding:
    """Whether the site still has the select plugin; ``select_type`` as in slurm.conf, empty if it names none."""
    if select_type.lower() == "select/vipu":
        fix = f"'moor slurm install --plan' prints the lines that take its place; {SELECT_PAGE} tells the rest"
        return Finding("slurm.select", FAIL, f"{conf} has SelectType=select/vipu, which needs a patched Slurm", fix)
    return Finding("slurm.select", PASS, f"{conf} has SelectType={select_type or '(not set)'}")


def check_release(site: Site, commands: str, nodes: Sequence[SinfoNode]) -> Finding:
    """Whether one release runs everywhere; ``commands`` is the version of this machine's commands."""
    others = [node for node in nodes if node.version and release_of(node.version) != site.release]
    fix = "a SPANK plugin is for one release: install it on each machine for what runs there"
    if release_of(commands) != site.release:
        return Finding("slurm.release", FAIL, f"commands here are of {commands}, slurmctld is of {site.version}", fix)
    if others:
        evidence = join_first(f"{node.name} ({node.version})" for node in others)
        return Finding("slurm.release", WARN, f"slurmctld is of {site.version}, and other nodes are: {evidence}", fix)
    silent = [node.name for node in nodes if not node.version]
    evidence = f"Slurm {site.version} here, at slurmctld and on {len(nodes) - len(silent)} nodes"
    if not site.was_tried:
        return Finding("slurm.release", WARN, evidence, "this release was not tested; 22.05, 24.11 and 26.05 were")
    return Finding("slurm.release", PASS, evidence + (f"; {len(silent)} have not told" if silent else ""))


def check_conf(site: Site, differing: Collection[str], *, log_seen: bool) -> Finding:
    """Whether slurm.conf is the same everywhere; ``differing`` are the nodes named in slurmctld's log."""
    fix = "copy the file, then 'scontrol reconfigure'; run this doctor on the nodes, too"
    if site.conf_hash.startswith("Different"):
        return Finding("slurm.conf", FAIL, f"{site.slurm_conf} is not what slurmctld runs with", fix)
    if differing:
        return Finding("slurm.conf", WARN, f"slurmctld says that nodes have another one: {join_first(differing)}", fix)
    evidence = f"{site.slurm_conf} is what slurmctld runs with"
    return Finding(
        "slurm.conf", PASS, evidence + ("; no node has another" if log_seen else "; the nodes were not seen")
    )


_OTHER_CONF = re.compile(r"Node (\S+) appears to have a different slurm\.conf")
_CONFIG_READ = re.compile(r"slurmctld version \S+ started|Processing Reconfiguration Request")


def parse_differing(log: str) -> set[str]:
    """Return the nodes named in slurmctld's log since it last read its configuration."""
    found: set[str] = set()
    for line in log.split("\n"):
        if _CONFIG_READ.search(line):
            found = set()
        elif (other := _OTHER_CONF.search(line)) is not None:
            found.add(other[1])
    return found


def check_user(site: Site, here: int | None) -> Finding:
    """Whether SlurmUser is the same everywhere; ``here`` is its uid on this machine, None: it does not exist."""
    name, uid = site.slurm_user
    if here == uid:
        return Finding("slurm.user", PASS, f"SlurmUser {name} is {uid} here and at slurmctld")
    evidence = f"has number {here}" if here is not None else "does not exist"
    fix = "give it the same number on all machines, before Slurm starts there"
    return Finding("slurm.user", FAIL, f"SlurmUser {name} {evidence} here, and is {uid} at slurmctld", fix)


# -- the installation --------------------------------------------------------------------------------------------------

_INSTALL = "moor slurm install --plan"


def check_plugin(site: Site, lines: Sequence[PluginLine], image: bytes | None, *, fetched: bool = False) -> Finding:
    """Whether plugstack's plugin exists, fits this release and is loaded once, also on configless nodes.

    Args:
        site: as seen from this machine.
        lines: the lines that load it.
        image: the file that the first line loads; None: missing.
        fetched: Slurm's commands fetch plugstack.conf from slurmctld, so it cannot be seen here.
    """
    if fetched:
        evidence = "Slurm's commands fetch plugstack.conf from slurmctld each time, and nothing is to be seen here"
        return Finding("slurm.plugin", SKIP, evidence, "see slurm.options")
    if not lines:
        fix = _INSTALL if site.has_files else f"{_INSTALL}, beside slurmctld, which hands that file out"
        return Finding("slurm.plugin", FAIL, f"no file that {site.plugstack} takes in loads {PLUGIN}", fix)
    if len(lines) > 1:
        evidence = f"{PLUGIN} is loaded twice: by {join_first(line.file for line in lines)}; 'srun --ipus=1' crashes"
        return Finding("slurm.plugin", FAIL, evidence, f"leave one of the lines; '{_INSTALL}' tells which is ours")
    if site.has_files and site.configless and not is_handed_out(site, lines[0]):
        evidence = (
            f"the line that loads {PLUGIN} stands in {lines[0].file}, which slurmctld does not hand out: configless"
        )
        fix = f"'{_INSTALL}' prints the line for {site.folder / 'plugstack.conf'} itself; then 'scontrol reconfigure'"
        return Finding("slurm.plugin", FAIL, f"{evidence} nodes start IPU jobs without a partition", fix)
    path = lines[0].path
    if image is None:
        return Finding("slurm.plugin", FAIL, f"{path} is not there", "moor slurm install --apply")
    try:
        version = parse_version(image, path)
    except MooringsError as error:
        return failed_finding("slurm.plugin", error)
    if release_of(version) != site.release:
        evidence = f"{path} was compiled for Slurm {version}, and {site.version} runs: Slurm refuses it"
        return Finding("slurm.plugin", FAIL, evidence, "moor slurm install --apply")
    return Finding("slurm.plugin", PASS, f"{path} was compiled for Slurm {version}")


def check_options(help_text: str) -> Finding:
    """Whether srun has the options, which it only has with the plugin loaded."""
    if "--ipus" in help_text:
        return Finding("slurm.options", PASS, "'srun --help' has --ipus")
    fix = "see slurm.plugin; 'srun -v --help' tells what it loads"
    return Finding("slurm.options", FAIL, "'srun --help' does not have --ipus: the plugin is not loaded here", fix)


def check_submit(site: Site, script: bytes | None) -> Finding:
    """Whether slurmctld calls our script; ``script`` is its job_submit.lua."""
    path = site.folder / JOB_SUBMIT
    if "lua" not in site.job_submit:
        evidence = f"JobSubmitPlugins is {','.join(site.job_submit) or 'not set'}: --ipus would ask for nothing"
        return Finding("slurm.submit", FAIL, evidence, f"'{_INSTALL}' prints the line for slurm.conf")
    if script is None:
        return Finding("slurm.submit", FAIL, f"{path} is not there", "moor slurm install --apply")
    if not calls_our_script(script):
        return Finding("slurm.submit", FAIL, f"{path} does not call ours", f"'{_INSTALL}' prints the lines to add")
    return Finding("slurm.submit", PASS, f"{path} calls ours")


def check_limits(site: Site, limits: bytes | None) -> Finding:
    """Whether the submit script knows which jobs must not start twice; ``limits`` is its file of limits."""
    path, fix = site.folder / LIMITS, "'moor slurm install --apply' beside slurmctld"
    if limits is None:
        return Finding("slurm.limits", WARN, f"{path} is missing: the submit script uses its built-in limits", fix)
    now = f"JobRequeue={site.job_requeue:d}"
    if parse_requeue(limits) == site.job_requeue:
        return Finding("slurm.limits", PASS, f"{path} was made for {now}, which Slurm has")
    after = (
        "does not go back into the queue"
        if site.job_requeue
        else "may start again on 22.05, though nobody said --requeue"
    )
    evidence = f"Slurm has {now}, and {path} was made for JobRequeue={not site.job_requeue:d}"
    return Finding("slurm.limits", WARN, f"{evidence}: a batch job that waits in vain {after}", fix)


def check_nodes(nodes: Sequence[NodeRecord], notes: NodeState, limits: bytes | None, at_s: float) -> Finding:
    """Whether IPU jobs only run on nodes whose slurmd has loaded the plugin.

    Args:
        nodes: all of the cluster.
        notes: slurmds' reports of their plugin, as the agent recorded them.
        limits: the submit script's file of limits; None: missing.
        at_s: when the nodes were listed, in epoch seconds.
    """
    declared = [node for node in nodes if FEATURE in node.features]
    required = parse_feature(limits or b"")
    without = [node.name for node in declared or nodes if has_plugin(node, notes.hellos, notes.starts, at_s) is False]
    if without and declared:
        fix = "install the plugin for the Slurm that runs there, and restart slurmd: it reports within a minute"
        return Finding("slurm.nodes", FAIL, f"slurmd has not reported its plugin on {join_first(without)}", fix)
    if required and not declared:
        fix = f"give Feature={FEATURE} back to the nodes in slurm.conf, or '{_INSTALL}' once more"
        return Finding("slurm.nodes", FAIL, f"jobs ask for nodes with the feature {FEATURE}, and no node has it", fix)
    if declared and not required:
        fix = "'moor slurm install --apply' beside slurmctld, once more"
        evidence = f"{len(declared)} nodes have the feature {FEATURE}, and the submit script does not ask for it"
        return Finding("slurm.nodes", WARN, evidence, fix)
    if not declared:
        rest = f"; slurmd has not reported its plugin on {join_first(without)}" if without else ""
        fix = f"see 'Keep IPU jobs to nodes that have the plugin' in {SLURM_PAGE}"
        evidence = f"no node has the feature {FEATURE}, so an IPU job may start on any{rest}"
        return Finding("slurm.nodes", SKIP, evidence, fix)
    return Finding("slurm.nodes", PASS, f"{len(declared)} nodes with the feature {FEATURE} have the plugin")


def check_licenses(site: Site, pools: Sequence[PoolBody], largest_allowed: int) -> Finding:
    """Whether Slurm's licenses fit the pools of the cluster's jobs."""
    if not pools:
        return Finding("slurm.licenses", FAIL, "the controller has no pool of IPUs", "see Pool in vipu.conf")
    ipus, largest = shape_of(pools, largest_allowed)
    wanted = licenses_wanted(ipus, largest)
    found = {name: count for name, count in site.licenses.items() if is_our_license(name)}
    if found == wanted:
        return Finding("slurm.licenses", PASS, f"{ipus} IPUs, partitions up to {largest}")
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    evidence = join_first(f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'wanted')}" for name in wrong)
    return Finding("slurm.licenses", FAIL, f"Licenses: {evidence}", f"'{_INSTALL}' prints the line for slurm.conf")


def shape_of(pools: Sequence[PoolBody], largest_allowed: int) -> tuple[int, int]:
    """Return the devices of the pools, and the largest partition for a job of Slurm: a power of two."""
    largest = min(max((pool.topology.max_block for pool in pools), default=0), largest_allowed)
    return sum(pool.devices for pool in pools), 1 << (max(largest, 1).bit_length() - 1)


def check_accounting(site: Site) -> Finding:
    """Whether sacct and limits count IPUs."""
    if not site.accounting:
        return Finding("slurm.accounting", SKIP, "there is no slurmdbd", "sacct and limits need one")
    if f"license/{LICENSE}" in site.tres:
        return Finding("slurm.accounting", PASS, f"AccountingStorageTRES has license/{LICENSE}")
    evidence = f"AccountingStorageTRES lacks license/{LICENSE}: sacct counts no IPUs, and limits do not hold"
    return Finding("slurm.accounting", WARN, evidence, f"'{_INSTALL}' prints the line for slurm.conf")


def check_accounts(site: Site, projects: Sequence[ProjectBody]) -> Finding:
    """Whether an account proves a project: without enforcement any user can name any account with ``-A``."""
    check = "slurm.accounts"
    if site.enforces_accounts:
        return Finding(check, PASS, "Slurm enforces accounts, so a job's account is its project")
    why = "Slurm does not enforce accounts, so every job is of the project 'default'"
    fix = "AccountingStorageEnforce=associations in slurm.conf, with slurmdbd and the users' accounts (sacctmgr)"
    prefix = f"{queue_of(site.cluster)}/"
    mapped = sorted(
        f"{alias.removeprefix(prefix)} (project {project.name})"
        for project in projects
        for alias in project.aliases
        if alias.startswith(prefix)
    )
    if mapped:
        return Finding(check, FAIL, f"{why}, whatever its account: {join_first(mapped)}", fix)
    if projects:
        named = join_first(sorted(project.name for project in projects))
        return Finding(check, WARN, f"{why}, also where its account is called as one: {named}", fix)
    return Finding(check, PASS, f"{why}; there are no others")


def check_backfill(site: Site) -> Finding:
    """Whether plain jobs wait for IPU jobs."""
    if "bf_licenses" not in site.scheduler:
        return Finding("slurm.backfill", PASS, "SchedulerParameters does not have bf_licenses")
    evidence = "bf_licenses is on: a waiting IPU job holds plain jobs up by half a minute"
    return Finding(
        "slurm.backfill", FAIL, evidence, "take it out of SchedulerParameters; the agent keeps order among IPU jobs"
    )


def check_requeue(site: Site) -> Finding:
    """Whether a batch job is requeued if no agent answers in time."""
    if is_requeued(site, REQUEUE_EXIT_CODE):
        return Finding("slurm.requeue", PASS, f"RequeueExit has {REQUEUE_EXIT_CODE}")
    evidence = f"RequeueExit lacks {REQUEUE_EXIT_CODE}: while the agent is away, a batch job that starts fails"
    return Finding("slurm.requeue", WARN, evidence, f"'{_INSTALL}' prints the line for slurm.conf")


def check_waits(arguments: Mapping[str, str] | None, patience_s: int | None) -> Finding:
    """Whether the agent gives a job up before its node does.

    Args:
        arguments: of the plugin; None: no line loads it.
        patience_s: ApiTimeout; None: unknown.
    """
    check, mend = "slurm.waits", "set ApiTimeout in vipu.conf, or 'moor slurm install --wait S' on all machines"
    if arguments is None:
        return Finding(check, SKIP, "no line that loads the plugin is to be seen", "see slurm.plugin")
    wait = arguments.get("wait", "60")  # the plugin's default
    if patience_s is None:
        return Finding(check, SKIP, f"nodes wait {wait} s; vipu.conf cannot be used here", "see slurm.vipu")
    if wait.isdecimal() and int(wait) > patience_s:
        return Finding(check, PASS, f"nodes wait {wait} s, and the agent {patience_s} s")
    evidence = f"wait={wait} of the plugin's line must be more than ApiTimeout={patience_s}, or nodes do not hear why"
    return Finding(check, WARN, evidence, mend)


# -- running parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentProbe:
    """The result of a request to one of the agent's addresses.

    Attributes:
        host: the address.
        uid: the user of the answering process; None: no answer, or not checked.
        message: its message; without an answer, why there is none.
        listens: whether a process listens there.
    """

    host: str
    uid: int | None
    message: str
    listens: bool


def parse_agents(address: str) -> tuple[list[str], str]:
    """Return hosts and port of the plugin's ``agent=``, as the plugin parses it: the port is optional."""
    hosts, colon, port = address.rpartition(":")
    if not colon or "]" in port:  # inside an IPv6 address
        hosts, port = address, str(AGENT_PORT)  # the plugin's default
    return [host.strip("[]") for host in hosts.split(",") if host], port


def check_agent(site: Site, address: str, answers: Sequence[AgentProbe], agent_uid: int) -> Finding:
    """Whether the agent answers nodes, as a user they trust: root, or the plugin's ``agent_uid=``.

    An answer without uid was not checked: only root can.
    """
    check = "slurm.agent"
    strangers = [answer for answer in answers if answer.uid not in (None, 0, agent_uid)]
    if strangers:
        evidence = join_first(f"{answer.host} runs as uid {answer.uid}" for answer in strangers)
        nodes = f"nodes take uid 0's word{f' or {agent_uid}' if agent_uid else ''} alone"
        name, uid = site.slurm_user
        fix = f"say --agent-uid {uid} to 'moor slurm install --apply' on all machines; without it SlurmUser is meant"
        if any(answer.uid != uid for answer in strangers):
            fix = f"who listens there? The agent runs as {name} ({uid}): see 'systemctl status {UNIT}'"
        return Finding(check, FAIL, f"what answers for the agent at {evidence}, and {nodes}", fix)
    silent = join_first(f"{answer.host}: {answer.message}" for answer in answers if answer.uid is None)
    if not any(answer.listens for answer in answers):
        evidence = f"the agent does not answer at {address}" + (f" ({silent})" if silent else ": it names no host")
        return Finding(check, FAIL, evidence, f"systemctl start {UNIT}, or correct 'agent=' in the plugin's line")
    if all(answer.uid is None for answer in answers):
        fix = "run it as root to see whether it is the agent"
        return Finding(check, SKIP, f"something listens at {address} ({silent})", fix)
    good = [answer for answer in answers if answer.uid is not None]
    evidence = join_first(f"{answer.host} as uid {answer.uid} ({answer.message})" for answer in good)
    if silent:
        fix = f"systemctl start {UNIT} there, or take the host out of 'agent=' in the plugin's line"
        return Finding(check, WARN, f"the agent answers at {evidence}, and not at {silent}", fix)
    return Finding(check, PASS, f"the agent answers at {address}: {evidence}")


def check_instance(cluster: str, queue: QueueBody, now: Timestamp) -> Finding:
    """Whether only this Slurm reports its queue, from the controller's answer for its instance."""
    check, fix = "slurm.instance", "give one of the two another ClusterName, and a key of its own"
    if queue.contested_at is not None and seconds_between(parse_time(queue.contested_at), now) < CONTESTED_S:
        evidence = (
            f"another Slurm called {cluster} was refused at {queue.contested_at}: claims of unknown jobs are kept"
        )
        return Finding(check, WARN, evidence, fix)
    return Finding(check, PASS, f"the controller believes this Slurm's agent, and no other of {queue.queue}")


def check_reservation(
    licenses: Mapping[str, License], reservation: LicenseReservation | None, pools: Sequence[PoolBody]
) -> Finding:
    """Whether Slurm's free licenses are no more than what the pools can give now, size by size."""
    check, fix = "slurm.reservation", "is the agent running? It sets the reservation again within a second"
    if reservation is None:
        return Finding(
            check, FAIL, f"there is no reservation '{RESERVATION}': jobs start whether or not there is room", fix
        )
    uncounted = [name for name, count in reservation.licenses.items() if _reserved(licenses, name) < count]
    if uncounted:
        evidence = f"Slurm shows the reservation and does not keep what it holds: {join_first(sorted(uncounted))}"
        return Finding(check, FAIL, evidence, f"{fix}; a refused 'scontrol update' of it has this effect")
    free = {size: sum(pool.available.get(str(size), 0) for pool in pools) * size for size in gate_licenses(licenses)}
    open_ = [
        f"{name}: {licenses[name].free} free, {free[size]} can be formed"
        for size, name in sorted(gate_licenses(licenses).items())
        if licenses[name].free > free[size]
    ]
    if open_:
        return Finding(check, FAIL, f"Slurm would start what cannot be formed: {join_first(open_)}", fix)
    may = max((licenses[name].free for name in gate_licenses(licenses).values()), default=0)
    return Finding(check, PASS, f"jobs may start on {max(may, 0)} IPUs now, and the pools have {free.get(1, 0)} free")


def _reserved(licenses: Mapping[str, License], name: str) -> int:
    return licenses[name].reserved if name in licenses else 0


_BY_HAND = "'moor delete claim NAME'"


def unmatched_claims(claims: Iterable[ClaimBody], jobs: Iterable[JobRecord]) -> dict[JobStart, ClaimBody]:
    """Return the claims for jobs of Slurm without a live job in ``jobs``."""
    alive = {
        (job.job_id, job.order.nonce) for job in jobs if job.order is not None and job.phase is not SlurmJobPhase.ENDED
    }
    starts = {start: claim for claim in claims if (start := start_of(claim.owner)) is not None}
    return {start: claim for start, claim in starts.items() if (start.job_id, start.nonce) not in alive}


def check_orphans(
    cluster: str, orphans: Mapping[JobStart, ClaimBody], claims: int, *, all_ours: bool = True
) -> Finding:
    """Whether there are claims without a job.

    Args:
        cluster: the jobs' cluster.
        orphans: the claims without a job.
        claims: number of claims checked.
        all_ours: False: some may be another Slurm's of this name.
    """
    if not orphans:
        return Finding("slurm.orphans", PASS, f"{claims} claims of {queue_of(cluster)}, each with its job")
    evidence = join_first(f"{claim.name} ({claim.state}, job {start.job_id})" for start, claim in orphans.items())
    but = "" if all_ours else ", those of another Slurm of this name never"
    fix = f"the agent releases them once it runs{but}; {_BY_HAND} by hand, when you know the job is gone"
    return Finding("slurm.orphans", FAIL, f"claims whose job has ended: {evidence}", fix)


def check_foreign(home: ClusterIdentity | None, claims: Sequence[ClaimBody]) -> Finding:
    """Whether there are claims that this Slurm's agent never releases; ``home`` is None if its id is unknown."""
    check = "slurm.foreign"
    if home is None:
        return Finding(check, SKIP, "it is unknown which claims are another Slurm's", "see slurm.instance")
    foreign = [claim for claim in claims if not home.owns_claim(claim.owner)]
    if not foreign:
        return Finding(check, PASS, f"no claim of {home.queue} is another Slurm's")
    starts = ((claim, start_of(claim.owner)) for claim in foreign)
    evidence = join_first(
        f"{claim.name} ({claim.state}, job {start.job_id})" for claim, start in starts if start is not None
    )
    fix = f"this Slurm's agent leaves them alone; if that Slurm is gone for good, {_BY_HAND} ends them"
    return Finding(check, WARN, f"claims of another Slurm called {home.cluster}: {evidence}", fix)


def check_unclaimed(jobs: Iterable[JobRecord], claims: Iterable[ClaimBody]) -> Finding:
    """Whether jobs run without a partition."""
    claimed = {(start.job_id, start.nonce) for claim in claims if (start := start_of(claim.owner)) is not None}
    running = [job for job in jobs if job.order is not None and job.state == "RUNNING"]
    bare = [job.job_id for job in running if job.order is not None and (job.job_id, job.order.nonce) not in claimed]
    if not bare:
        return Finding("slurm.unclaimed", PASS, f"{len(running)} jobs of IPUs run, each with its claim")
    return Finding("slurm.unclaimed", FAIL, f"jobs run without a claim: {join_first(bare)}", "is the agent running?")
