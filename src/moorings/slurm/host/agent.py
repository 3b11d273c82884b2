"""The agent of one Slurm cluster, beside slurmctld: observes, carries out what ``plan`` decides, and answers nodes.

Slurm is the authority on running jobs, the controller on the holders of devices. The agent can learn all its state
again from these two or from its files (``step_allocations``), so a kill at any moment does no harm. It is
level-triggered: it acts on lists of jobs and claims, every second or few, and on each change of the offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.bindings import Binding
from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import (
    RESERVATION,
    JobRecord,
    SlurmJobPhase,
    build_config,
    build_create_reservation,
    build_licenses,
    build_renew_reservation,
    build_requeue,
    build_update_reservation,
    parse_config,
    parse_licenses,
)
from moorings.slurm.host.bind_protocol import BindReply, BindRequest
from moorings.slurm.host.bind_server import BindHandler
from moorings.slurm.host.claim_table import ENDED_STATES, ClaimTable
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.executor import SlurmExecutor, wall_clock
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.job_listing import JobTable
from moorings.slurm.host.job_table import KIND, ClusterIdentity, JobStart, may_be_running, start_of
from moorings.slurm.host.node_monitor import NodeMonitor
from moorings.slurm.host.personal_jobs import PersonalJobs
from moorings.slurm.host.plan import (
    AgentAction,
    AnnounceQueue,
    ClusterState,
    DeviceHolders,
    ListDevices,
    ListSteps,
    LogWarning,
    PreemptJobs,
    ReleaseIfJobGone,
    ReleaseJobClaim,
    ServeJob,
    UpdateReservation,
    plan,
)
from moorings.slurm.host.plugin_heartbeat import PluginHeartbeat
from moorings.slurm.host.preemption_rules import PreemptionRules, PreemptType, build_partitions, build_qos, parse_rules
from moorings.slurm.host.queue_sync import QueueSync
from moorings.slurm.host.reclaim import UserNames
from moorings.slurm.host.site import enforces_accounts
from moorings.slurm.host.start_backoff import withheld_reasons
from moorings.slurm.host.step_allocations import StepAllocations
from moorings.slurm.host.wait_reason import find_wait_reason
from moorings.slurm.node_requirements import build_cpus, build_needs, parse_needs
from moorings.slurm.step_records import build_nodelist, build_steps, parse_nodes_of, parse_steps
from moorings.wire.shapes import ClaimBody

log = logging.getLogger("moorings.slurm.agent")

LIST_S = 1.0  # between two lists of jobs
LIST_PAUSE_S = 0.1  # minimum pause: a list of a large queue keeps slurmctld busy
CLAIMS_S = 5.0  # between two lists of claims
NEEDS_S = 2.0  # between two lists of waiting jobs' requirements of nodes
NEEDS_PAUSE = 20.0  # minimum pause, as a multiple of the time of such a list: a list of a large queue is long
RULES_S = 60.0  # between two reads of slurm.conf and QOS
GATE_S = 5.0  # between two checks of the gate without an event
GATE_PAUSE_S = 0.1  # minimum pause: each check and each change is a command of its own
RENEW_S = 86_400.0  # Slurm ends a reservation after 365 days, "infinite" or not
PAUSE_S = 0.5
FAILED_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent's settings.

    Attributes:
        cluster: Slurm's ClusterName.
        instance: the id of this Slurm among those of that name.
        pool: for its jobs; empty: any of the kind.
        folder: IpuofDir; empty: jobs get variables.
        patience_s: how long a started job may wait for its partition.
        steps_folder: where the allocations of steps are recorded; None: nowhere.
        nodes_file: where the nodes with the plugin are recorded; None: nowhere.
        admins: uids of users allowed to ask about others' jobs.
    """

    cluster: str
    instance: str
    pool: str = ""
    folder: str = ""
    patience_s: float = 50.0
    steps_folder: Path | None = None
    nodes_file: Path | None = None
    admins: frozenset[int] = frozenset({0})


class SlurmAgent:
    """One cluster's agent: ``serve`` runs it, ``answer`` answers the server for nodes."""

    def __init__(self, settings: AgentSettings, slurm: SlurmCommands, calls: ControllerClient) -> None:
        self._settings = settings
        self._cluster = home = ClusterIdentity(settings.cluster, settings.instance)
        self._slurm = slurm
        self._calls = calls
        self._troubles = troubles = FailureLog()
        self._gate = asyncio.Event()
        self._listing = JobTable(slurm)
        self._offers = QueueSync(
            calls,
            home.queue,
            settings.instance,
            settings.pool,
            self._gate.set,
            self._listing.refresh_wanted.set,
            troubles,
        )
        self._claims = ClaimTable(
            calls, home, settings.pool, settings.patience_s, self._end_unbound_job, self._offers.request_refresh
        )
        self._doer = SlurmExecutor(slurm, calls, troubles)
        self._steps = StepAllocations(settings.steps_folder)
        self._nodes = NodeMonitor(slurm, troubles, settings.nodes_file)
        self._claims_listed = asyncio.Event()
        self._answers = BindHandler(
            slurm, self._listing, self._offers, self._steps, self._claims_listed, self._serve, settings.folder
        )
        self._personal = PersonalJobs(slurm, calls, home.queue, settings.instance, self._offers.accepted, troubles)
        self._accounts_known = asyncio.Event()
        self._releasing: set[str] = set()
        self._gate_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._devices_wanted = asyncio.Event()
        self._state = ClusterState(home=home, pool=settings.pool)

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Work until cancelled; then close the gate, because no agent would serve the next starts."""
        offers = self._offers
        try:
            async with asyncio.TaskGroup() as group:
                for watch in (
                    self._watch_jobs,
                    self._watch_claims,
                    self._watch_rules,
                    self._watch_devices,
                    self._watch_needs,
                ):
                    group.create_task(watch())
                for work in (
                    self._watch_gate,
                    offers.serve_watching,
                    offers.serve_announcing,
                    self._nodes.serve,
                    self._doer.serve,
                    self._personal.serve,
                ):
                    group.create_task(work())
        finally:
            offers.counts = None
            with self._troubles.logged("slurm.gate"):
                await self._set_gate()

    def _plan_and_execute(self) -> tuple[AgentAction, ...]:
        """Decide from the current state and carry out the actions, except for the gate."""
        berths, offers = self._claims, self._offers
        view = replace(
            self._state,
            at_s=_now(),
            claims=dict(berths.claims),
            claims_listed=self._claims_listed.is_set(),
            releasing=frozenset(self._releasing),
            settled_at=dict(berths.settled_at),
            bound_nodes=self._steps.asked,
            nodes_with_plugin=self._nodes.nodes_with_plugin,
            nodes_gone_silent=self._nodes.nodes_gone_silent,
            n_nodes=self._nodes.n_nodes,
            offer=offers.snapshot(),
            outcomes=self._doer.outcomes,
        )
        found = plan(view, wall_clock())
        self._state = replace(view, devices=None, steps=None, memory=found.memory)
        if found.has_reviewed_claims:
            self._doer.forget_missing(view.jobs)
        for act in found.acts:
            self._execute(act)
        if found.has_reviewed_claims:
            berths.forget_finished(view.jobs)
            starts = map(start_of, {*berths.claims, *berths.bindings})
            self._steps.retain({start for start in starts if start is not None})
            self._steps.save()
        return found.acts

    def _execute(self, act: AgentAction) -> None:
        match act:
            case ServeJob():
                self._serve(act.job)
            case ReleaseJobClaim():
                self._release(act.claim, act.why)
            case ReleaseIfJobGone():
                self._spawn(self._release_if_gone(act.claim, act.why), "job.ask")
            case AnnounceQueue():
                self._offers.announce(act.queue)
            case ListDevices():
                self._devices_wanted.set()
            case ListSteps():
                self._spawn(self._list_steps(act.jobs), "slurm.steps")
            case LogWarning():
                fields = {"claim": act.claim} if act.claim else {}
                level = logging.ERROR if act.is_error else logging.WARNING
                log.log(level, act.event, extra={**fields, "detail": act.detail, "hint": act.hint})
            case UpdateReservation():
                pass  # the caller that listed the licenses does it, before the next list
            case _:
                self._doer.submit(act)

    def _serve(self, job: JobRecord) -> asyncio.Task[Binding]:
        """Return the binding of a start. Without a claim, no earlier agent can have answered a node for it."""
        assert job.order is not None
        start = JobStart.of(job, job.order)
        if start.owner(self._cluster) not in self._claims.claims:
            self._steps.track_start(start)
        return self._claims.get_binding(job)

    def _spawn(self, work: Awaitable[None], what: str) -> None:
        async def done() -> None:
            with self._troubles.logged(what):
                await work

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- Slurm's jobs ------------------------------------------------------------------------------------------------

    async def _watch_jobs(self) -> None:
        await self._accounts_known.wait()  # no claim or report names an account that may be forged
        wanted = self._listing.refresh_wanted
        while True:
            begun = _now()
            wanted.clear()
            with self._troubles.logged("slurm.list"):
                await self._list_jobs()
            await asyncio.sleep(LIST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(begun + LIST_S - _now(), 0.0)):
                    await wanted.wait()

    async def _list_jobs(self) -> None:
        listing, accepted = self._listing, self._offers.accepted
        # What arrives during a listing is judged by the next one; so are all claims if they arrive then.
        was_ready = accepted.is_set() and self._claims_listed.is_set()
        known = dict(self._claims.claims) if was_ready else {}

        def starts() -> set[JobStart]:
            owners = {owner for owner in known if self._cluster.owns_claim(owner)}
            return {start for start in map(start_of, {*owners, *self._claims.bindings}) if start is not None}

        await listing.refresh(starts)
        self._state = replace(
            self._state,
            jobs=listing.jobs,
            listed_at=listing.listed_at,
            claims_before=known,
            is_accepted=was_ready and accepted.is_set(),
        )
        self._plan_and_execute()
        self._gate.set()

    async def _list_steps(self, jobs: Sequence[int]) -> None:
        steps = parse_steps(await self._slurm.run_checked(build_steps(jobs)))
        for place, step in enumerate(steps):
            if not step.nodes:  # too many for a list of steps
                answer = await self._slurm.run_checked(build_nodelist(step.job_id, step.number))
                steps[place] = replace(step, nodes=parse_nodes_of(answer, step.job_id, step.number))
        self._state = replace(self._state, steps=steps)
        self._plan_and_execute()

    async def _watch_rules(self) -> None:
        while True:
            with self._troubles.logged("slurm.rules") as good:
                rules = await self._read_rules()
                self._state = replace(self._state, rules=rules)
                self._claims.is_private = rules.private
            await asyncio.sleep(RULES_S if good else FAILED_PAUSE_S)

    async def _read_rules(self) -> PreemptionRules:
        config = parse_config(await self._slurm.run_checked(build_config()))
        # Set even if the rest fails: sacctmgr fails while slurmdbd is down, and jobs start all the same.
        self._listing.accounts = enforces_accounts(config)
        self._accounts_known.set()
        partitions = await self._slurm.run_checked(build_partitions())
        by_qos = config.get("PreemptType") == PreemptType.QOS
        return parse_rules(config, partitions, await self._slurm.run_checked(build_qos()) if by_qos else b"")

    async def _watch_needs(self) -> None:
        while True:
            needs, begun = None, _now()
            with self._troubles.logged("slurm.needs"):
                waits = any(job.phase is SlurmJobPhase.WAITING for job in self._state.jobs.values())
                if waits and self._state.rules.by is PreemptType.NONE:
                    needs = parse_needs(
                        await self._slurm.run_checked(build_needs()), await self._slurm.run_checked(build_cpus())
                    )
            self._state = replace(self._state, needs=needs)
            await asyncio.sleep(max(NEEDS_S, NEEDS_PAUSE * (_now() - begun)))

    # -- the controller's claims and devices -------------------------------------------------------------------------

    async def _watch_claims(self) -> None:
        while True:
            with self._troubles.logged("claims.list"):
                await self._list_claims()
            await asyncio.sleep(CLAIMS_S if self._claims_listed.is_set() else PAUSE_S)

    async def _list_claims(self) -> None:
        berths = self._claims
        before = dict(berths.claims)
        prefix = f"{self._cluster.queue}/"
        found = {
            c.owner: c for c in await self._calls(lambda client: client.list_claims(ClaimFilter(owner_prefix=prefix)))
        }
        for owner in {*before, *found}:
            if berths.claims.get(owner) is not before.get(owner):
                continue  # it changed during the listing
            claim = found.get(owner)
            if claim is None or claim.state in ENDED_STATES:
                berths.remove(owner)
            else:
                berths.update(claim)
        if not self._claims_listed.is_set():
            self._claims_listed.set()
            self._listing.refresh_wanted.set()

    async def _watch_devices(self) -> None:
        while True:
            await self._devices_wanted.wait()
            self._devices_wanted.clear()
            with self._troubles.logged("job.displace"):
                devices = await self._calls(self._list_devices)
                self._state = replace(self._state, devices=devices)
                if not any(isinstance(act, PreemptJobs) for act in self._plan_and_execute()):
                    log.debug("nobody.displaced", extra={"next_up": str(dict(devices.next_up))})
            await asyncio.sleep(FAILED_PAUSE_S)

    def _list_devices(self, client: Client) -> DeviceHolders:
        named = [
            one for one in client.list_pools() if one.accelerator == KIND and self._settings.pool in ("", one.name)
        ]
        return DeviceHolders(
            [(one, client.list_devices(one.name)) for one in named], client.queue(self._cluster.queue).next_up
        )

    def _release(self, claim: ClaimBody, why: str) -> None:
        if claim.id in self._releasing:
            return
        self._releasing.add(claim.id)
        self._claims.forget(claim.owner)
        self._spawn(self._release_claim(claim, why), "claim.release")

    async def _release_claim(self, claim: ClaimBody, why: str) -> None:
        try:
            await self._calls(lambda client: client.delete_claim(claim.id))
            log.info("claim.released", extra={"claim": claim.id, "owner": claim.owner, "why": why})
        except MooringsError as error:
            if error.code != "claim.unknown":
                raise
        finally:
            self._releasing.discard(claim.id)
        self._claims.remove(claim.owner)

    async def _release_if_gone(self, claim: ClaimBody, why: str) -> None:
        """Ask Slurm for this one job before its partition goes: an admin may have changed the fields that lists use."""
        start = start_of(claim.owner)
        if start is not None:
            found = await self._listing.query_jobs([start.job_id])
            if any(job.job_id == start.job_id and may_be_running(start, job) for job in found):
                return
        if self._offers.accepted.is_set() and not self._offers.contested:  # check again: Slurm may have taken its time
            self._release(claim, why)

    async def _end_unbound_job(self, job: JobRecord, message: str) -> bool:
        """Give up a job that waited too long; return whether it is requeued, or its node may refuse it.

        The claim of a requeued job is released when Slurm says that this start has ended. A job that cannot be requeued
        ends by the refusal at its node, and so does a step of srun or salloc: a cancelled one would end without a
        message.
        """
        assert job.order is not None
        owner = JobStart.of(job, job.order).owner(self._cluster)
        claim = self._claims.claims.get(owner)
        # Its claim has no devices: the next job would start on its licenses and wait, too.
        self._claims.settled_at.pop(owner, None)
        with self._troubles.logged("job.give_up") as good:
            await self._set_gate()
            if job.batch and job.requeue:
                await self._slurm.run_checked(build_requeue(job.target))
            elif claim is not None:
                await self._release_claim(claim, message)
        return bool(good)

    # -- the gate ----------------------------------------------------------------------------------------------------

    async def _watch_gate(self) -> None:
        renewed_at: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATE_S):
                    await self._gate.wait()
            self._gate.clear()
            with self._troubles.logged("slurm.gate"):
                await self._set_gate()
                if renewed_at is None or _now() - renewed_at > RENEW_S:
                    await self._slurm.run_checked(build_renew_reservation(RESERVATION))
                    renewed_at = _now()
            await asyncio.sleep(GATE_PAUSE_S)

    async def _set_gate(self) -> None:
        async with self._gate_lock:
            licenses = parse_licenses(await self._slurm.run_checked(build_licenses()))
            self._state = replace(self._state, licenses=licenses, licenses_at=_now())
            for act in self._plan_and_execute():
                if isinstance(act, UpdateReservation):
                    await self._reserve(act)

    async def _reserve(self, act: UpdateReservation) -> None:
        log.debug("gate.set", extra={"kept": str(act.licenses)})
        answer = await self._slurm.run(build_update_reservation(RESERVATION, act.licenses))
        if answer.code != 0:
            await self._slurm.run_checked(build_create_reservation(RESERVATION, act.closed))
            log.warning("gate.made", extra={"detail": f"the reservation {RESERVATION} was missing: {answer.stderr}"})
            self._gate.set()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def answer(self, request: BindRequest) -> BindReply:
        """Answer a node."""
        return await self._answers.answer(request)

    def record_heartbeat(self, hello: PluginHeartbeat) -> bool:
        """Record that a node's slurmd has loaded the plugin; return whether that is done."""
        return self._nodes.record_heartbeat(hello)

    def explain_wait(self, uid: int, job: int) -> str | None:
        """Return why a job waits, for that user; None: no such job, or another user's."""
        jobs = self._listing.jobs
        people = UserNames(self._cluster.cluster, {} if self._state.rules.private else jobs)
        withheld = withheld_reasons(self._state.memory.start_backoffs)
        reasons = self._offers.reasons
        return find_wait_reason(jobs.get(job), uid, self._settings.admins, reasons, self._cluster, people, withheld)


def _now() -> float:
    return asyncio.get_running_loop().time()
