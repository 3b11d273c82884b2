"""Clients: people and agents who submit, wait, lose responses and retry, release, cancel, drain, list and explain.

Each is one task that does one thing after the other, with what it knows of its own resources. Every response is checked
against earlier ones and the database: a key gives one claim for ever, a response contains only saved state, and no
client can act on another's resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from moorings.controller.queues import QueueView
from moorings.controller.service import WAIT_TARGETS, Controller
from moorings.controller.views import ClaimView, RunView
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import ENDED, CheckpointContract, Claim, ClaimId, ClaimSpec, ClaimState, QueueMode
from moorings.core.model.devices import DeviceState
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import DEFAULT_PROJECT
from moorings.core.model.queue_reports import INSTANCE_ID_CHARS, QueuedJob
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Pool
from moorings.ports.store import PageQuery, Seq
from moorings.testing.simulation.context import SimulationContext
from moorings.testing.simulation.controller import SimulatedController, is_of_poison
from moorings.testing.simulation.engine import ENGINE_NAME as LOCAL
from moorings.testing.simulation.scheduler import NAME as SCHEDULER
from moorings.testing.simulation.sharing import ACCOUNTS, NOBODYS, drawn_name, drawn_project
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.dependencies import AfterEnd
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.runs import Run

T = TypeVar("T")

ROOT = Caller("root", Role.ADMIN, "", "k0")
VIEWER = Caller("vic", Role.VIEWER, "", "k9")
CALLERS = (
    *(ROOT, VIEWER),
    *(Caller(name, Role.USER, f"user/{name}", f"k-{name}") for name in ("ann", "bob", "cyd")),
    Caller("alpha", Role.AGENT, "slurm/alpha", "k-alpha"),
)
PATIENCE_S = 45.0  # after that a client takes a response for lost
TRIES_MAX = 6
QUEUED_OF = 0.25  # of all runs: on the engine with its own scheduler
APPLIANCE_OF = 0.3  # of all runs: a job of an appliance
WITHIN_OF = 0.2  # of those: within a claim that its owner holds
AFTER_OF = 0.15  # of the others: after the end of an earlier run
ARRAY_OF, ARRAYS = 0.08, ("0-2", "0-5%2")  # of the others: an array
WORKFLOWS = 2  # of each person at a time
WORKFLOW_JOBS = 50  # then a new one is started
NAMES = ("train", "eval", "sweep")  # of named claims: they collide now and then
PRIORITIES = (0, 0, 0, 0, 5, -5)
LEASES_S = (None, None, None, 6.0, 20.0)
LIMITS_S = (None, None, 5.0, 30.0, 600.0)
PREEMPTIBLE_OF = 0.75  # of claims and runs, if there are projects
DEAF_OF, LATE_OF = 0.1, 0.15  # of manual holders that are asked to yield
LATE_S_MAX = 6.0  # how late a manual holder yields at most, if it does
AWAY = ("store.unavailable", "store.fenced", "store.turned_back", "store.conflict", "controller.unreachable")
ALLOWED = frozenset(  # possible errors for a valid request
    (
        *("claim.name_taken", "claim.no_room", "claim.no_lease", "claim.not_ready", "claim.held_by_run"),
        *("claim.unknown", "claim.too_large", "claim.size_not_allowed", "claim.gcds_too_few", "key.conflict"),
        *(
            "controller.unreachable",
            "store.turned_back",
            "driver.unavailable",
            "owner.denied",
            "auth.denied",
            "partition.not_active",
        ),
        *("partition.unknown", "run.unknown", "state.illegal_move", "store.unavailable", "store.fenced"),
        *("store.conflict", "queue.unknown", "queue.taken", "run.ended", "run.queued_elsewhere", "priority.denied"),
        *("run.not_pausable", "run.not_paused", "run.not_running", "run.never_starts", "checkpoint.invalid"),
        *("claim.ended", "claim.other_shape", "claim.not_asked", "project.unknown", "project.not_member"),
        *("project.limit", "project.exists", "project.changed", "project.has_children", "project.in_use"),
        *("project.not_feasible", "project.invalid", "claim.held", "room.is_free", "room.too_costly", "room.not_found"),
    )
)


Choices = tuple[tuple[int, Callable[[], Awaitable[object]]], ...]
UseCase = Callable[[Controller], Coroutine[Any, Any, T]]


class NoAnswerError(Exception):
    """No response came."""


@dataclass(frozen=True, slots=True)
class KeyedResult:
    """The result of a key: the body, and the id."""

    body: str
    ident: str


class ClientPool:
    """Shared by the clients: the serving controllers, and the responses.

    Args:
        stage: the surroundings.
        serving: the controllers that answer requests now: the leader, or one that still believes it leads.
        retries: of the jobs that can be resumed.
    """

    def __init__(
        self, stage: SimulationContext, serving: Callable[[], SimulatedController | None], retries: int
    ) -> None:
        self.stage = stage
        self.retries = retries
        self.serving = serving
        self.told: dict[tuple[str, str], KeyedResult] = {}
        self.keys = 0
        self.yield_times: dict[tuple[ClaimId, int], Timestamp | None] = {}  # when the asked holder yields; None: never

    async def ask(self, who: str, what: str, use_case: UseCase[T]) -> T:
        """The response to a request.

        Raises:
            NoAnswerError: none came: lost on the way there or back, or its controller died or was too slow.
            MooringsError: the controller's error.
        """
        stage = self.stage
        stage.story.add_step("client", f"{who}: {what}")
        await asyncio.sleep(stage.odds.engine_s())
        fault = stage.odds.draw_fault("request_lost", "reply_lost")
        if fault is not None:
            stage.story.add_fault(fault, f"{who}: {what}")
        world = self.serving()
        task = world.submit(use_case) if world is not None and fault != "request_lost" else None
        if world is None or task is None:
            raise NoAnswerError
        task.add_done_callback(_forget)
        done, _ = await asyncio.wait((task, world.life.ended), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if task not in done or task.cancelled() or fault == "reply_lost":
            if not task.done() and stage.odds.chance.random() < 0.5:
                task.cancel()  # the connection is closed, and the server notices
            stage.story.add_line("client", f"{who}: no answer")
            raise NoAnswerError
        await asyncio.sleep(stage.odds.engine_s())
        try:
            answer = task.result()
        except MooringsError as error:
            stage.story.add_line("client", f"{who}: {error.code}: {error.detail}")
            stage.story.count(f"answer {error.code}")
            if error.code not in ALLOWED and not is_of_poison(error):
                stage.story.break_law(0, f"{who}, {what}: {error.code}: {error.detail}")
            raise
        stage.story.add_line("client", f"{who}: {_short(answer)}")
        return answer

    def check_keyed(self, subject: str, key: str, body: str, ident: str) -> None:
        """A keyed request gave this claim or run (law 5)."""
        ledger = self.stage.ledger
        use = ledger.keys.get((subject, key))
        if use is None and ledger.was_saved_before_rewind(ident, 1):
            return  # the database was turned back: the key was used, and is new again
        known = self.told.get((subject, key))
        if known is not None and known.ident != ident and ledger.was_saved_before_rewind(known.ident, 1):
            del self.told[subject, key]
        before = self.told.setdefault((subject, key), KeyedResult(body, ident))
        if before != KeyedResult(body, ident):
            self.stage.story.break_law(5, f"key {key} of {subject} gave {before}, and then {ident} for {body}")
        if use is None or ident not in (use.claim, use.run):
            self.stage.story.break_law(5, f"key {key} of {subject} gave {ident}; saved is {use}")

    def check_shown(self, claim: Claim) -> Claim:
        """A claim was shown: only saved state may be shown (the database decides)."""
        ledger = self.stage.ledger
        saved = ledger.claims.get(claim.id) or ledger.ended_claims.get(claim.id)
        if (saved is None or saved.version < claim.version) and not ledger.was_saved_before_rewind(
            claim.id, claim.version
        ):
            self.stage.story.break_law(2, f"shown was {claim}, saved is {saved}")
        return claim


def _forget(task: asyncio.Task[Any]) -> None:
    """The caller may have gone; then its result is not read."""
    if not task.cancelled():
        task.exception()


def _short(answer: object) -> str:
    match answer:
        case ClaimView():
            return f"{answer.claim.id} {answer.claim.state} v{answer.claim.version}"
        case RunView():
            return f"{answer.run.id} {answer.run.state}"
        case QueueView():
            return f"{answer.report.queue}: {answer.offer}"
        case list() | tuple():
            return f"{len(answer)} items"
        case _:
            return type(answer).__name__


class SimulatedClient:
    """One person, agent or admin at work.

    Attributes:
        ignore_yield_ratio: the fraction of its claims that it never yields.
    """

    ignore_yield_ratio = DEAF_OF

    def __init__(self, number: int, caller: Caller, crowd: ClientPool) -> None:
        self._who = f"{caller.subject}{number}"
        self._instance = "01"[number // len(CALLERS) % 2] * INSTANCE_ID_CHARS  # two Slurms with one name
        self._caller = caller
        self._crowd = crowd
        self._stage = crowd.stage
        self._chance = crowd.stage.odds.chance
        self._think_s = self._chance.choice((0.3, 1.0, 3.0))
        self._claims: list[str] = []
        self._runs: list[str] = []
        self._leased: list[str] = []

    async def work(self) -> None:
        """Do one thing after the other, until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._think_s))
            try:
                await self._yield_when_asked()
                choices = self._choices()
                deed = self._chance.choices([deed for _, deed in choices], [weight for weight, _ in choices])[0]
                await deed()
            except (NoAnswerError, MooringsError):
                continue  # recorded and checked elsewhere; clients continue

    def _choices(self) -> Choices:
        """The possible next actions, each with its weight."""
        reading: Choices = ((2, self._list_something), (1, self._explain))
        mine: Choices = (
            *((6, self._create), (6, self._release), (2, self._get), (1, self._release_foreign), (1, self._adopt)),
            *((2, self._renew), (1, self._reset), (2, self._binding)),
        )
        running: Choices = (
            *((6, self._start), (3, self._cancel), (2, self._follow)),
            *((1, self._label), (2, self._prioritise)),
        )
        ruling: Choices = ((3, self._drain), (5, self._resume), (1, self._release))
        if self._stage.sharing.projects:  # devices out of service cannot be guaranteed
            ruling = ((1, self._drain), *ruling[1:], (4, self._set_project), (1, self._delete_project))
            mine = (*mine, (1, self._save))
        if self._caller.role is Role.ADMIN:
            return (*reading, *ruling)
        if self._caller.role is Role.VIEWER:
            return (*reading, (1, self._release_foreign))
        return (*reading, *mine, *(running if self._caller.role is Role.USER else ((6, self._report_queue),)))

    def _any_claim(self) -> str | None:
        return self._chance.choice(list(self._stage.ledger.claims)) if self._stage.ledger.claims else None

    # -- claims ------------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        spec = self._spec()
        name = f"{self._chance.choice(NAMES)}-{self._chance.randrange(4)}" if self._chance.random() < 0.3 else None
        owner = f"slurm/alpha/{self._chance.randrange(99)}" if self._caller.role is Role.AGENT else None
        wait_s = self._chance.choice((0.0, 0.0, 2.0, 20.0))
        until = self._chance.choice(("GRANTED", "READY"))

        async def request(body: ClaimSpec, key: str) -> None:
            began_s = self._stage.loop.time()
            view = await self._crowd.ask(
                self._who,
                f"create {body.size} {body.kind} key {key}",
                lambda controller: controller.create_claim(
                    self._caller, body, name=name, owner=owner, key=key, wait_s=wait_s, until=until
                ),
            )
            claim = self._crowd.check_shown(view.claim)
            self._crowd.check_keyed(self._caller.subject, key, repr((body, name, owner)), claim.id)
            if claim.subject != self._caller.subject:
                self._stage.story.break_law(5, f"{self._who} asked and was given {claim}")
            early = self._stage.loop.time() - began_s < wait_s - 1e-6
            if early and claim.state not in WAIT_TARGETS[until] and not claim.is_ended:
                self._stage.story.break_law(8, f"{self._who} would wait {wait_s} s for {until}, was told {claim.state}")
            self._claims.append(claim.id)
            if claim.spec.lease_s is not None:
                self._leased.append(claim.id)

        await self._ask_with_key(request, spec, replace(spec, priority=spec.priority + 1))

    async def _ask_with_key(self, request: Callable[[T, str], Awaitable[None]], body: T, other: T) -> None:
        """Retry until a response comes, with one key; now and then with another body, which must be refused."""
        self._crowd.keys += 1
        key = f"key-{self._crowd.keys}"
        for _ in range(TRIES_MAX):
            try:
                await request(body, key)
                if self._chance.random() < 0.9:
                    return
            except NoAnswerError:
                await asyncio.sleep(self._chance.uniform(0, 2))
            except MooringsError as error:
                if error.code not in AWAY:
                    raise
                await asyncio.sleep(self._chance.uniform(0, 2))
            if self._stage.odds.draw_fault("other_body") is not None:
                self._stage.story.add_fault("other_body", f"{self._who} {key}")
                body, other = other, body

    def _spec(self) -> ClaimSpec:
        pool = self._chance.choice(self._stage.pools)
        size = self._size(pool)
        resources = {}
        if pool.resources and self._chance.random() < 0.5:
            name, most = pool.resources[0]
            resources[name] = self._chance.randint(1, most)
        if resources and self._chance.random() < 0.3:
            size = 0
        return ClaimSpec(
            kind=pool.kind,
            size=size,
            gcds=self._gcds(pool, size) if size else 1,
            pool=pool.name if self._chance.random() < 0.3 else None,
            resources=resources,
            priority=self._chance.choice(PRIORITIES),
            time_limit_s=self._chance.choice(LIMITS_S),
            lease_s=self._chance.choice(LEASES_S),
            queue=QueueMode.NEVER if self._chance.random() < 0.15 else QueueMode.WAIT,
            project=self._project(),
            preemptible=self._is_preemptible(),
            checkpoint=CheckpointContract(resumable=self._chance.random() < 0.5),
        )

    def _project(self) -> str:
        """The project of a request: an agent names an account, and now and then a client names an unknown project."""
        known = sorted(self._stage.ledger.projects)
        if not known or self._chance.random() < 0.15:
            return DEFAULT_PROJECT
        if self._caller.role is Role.AGENT and self._chance.random() < 0.7:
            return self._chance.choice(ACCOUNTS)
        return NOBODYS if self._chance.random() < 0.03 else self._chance.choice(known)

    def _is_preemptible(self) -> bool:
        return self._stage.sharing.projects and self._chance.random() < PREEMPTIBLE_OF

    def _size(self, pool: Pool) -> int:
        sizes = list(pool.topology.sizes)
        small = sizes[: max(1, len(sizes) // 2)]
        return self._chance.choice(small if self._chance.random() < 0.7 else sizes)

    def _gcds(self, pool: Pool, size: int) -> int:
        able = [
            gcds for gcds in (1, 2, 4, 8) if size % gcds == 0 and pool.topology.ineligible_reason(size, gcds) is None
        ]
        return self._chance.choice(able) if able else 1

    async def _release(self) -> None:
        ident = self._any_claim() if self._caller.role is Role.ADMIN else self._own(self._claims)
        if ident is None:
            return
        wait_s = self._chance.choice((0.0, 0.0, 10.0))
        view = await self._crowd.ask(
            self._who, f"release {ident}", lambda c: c.release_claim(self._caller, ident, wait_s=wait_s)
        )
        claim = self._crowd.check_shown(view.claim)
        if not claim.is_ended and claim.state not in (ClaimState.RELEASING, ClaimState.YIELDING):
            self._stage.story.break_law(2, f"{ident} was released and is {claim.state}")
        if ident in self._claims:
            self._claims.remove(ident)

    async def _release_foreign(self) -> None:
        """Try to release another client's claim."""
        ident = self._any_claim()
        if ident is None:
            return
        claim = self._stage.ledger.claims[ident]  # type: ignore[index]
        if claim.subject == self._caller.subject:
            return
        try:
            await self._crowd.ask(self._who, f"meddle with {ident}", lambda c: c.release_claim(self._caller, ident))
        except MooringsError as error:
            if error.code in ("owner.denied", "claim.unknown", "store.unavailable", "store.turned_back"):
                return
            raise
        self._stage.story.break_law(10, f"{self._who} released {ident} of {claim.subject}")

    async def _adopt(self) -> None:
        """Find own claims whose creation had no response."""
        prefix = self._caller.owner_prefix
        states = frozenset(ClaimState) - ENDED
        views = await self._crowd.ask(
            self._who, "list", lambda c: c.list_claims(self._caller, PageQuery(50), states=states, owner_prefix=prefix)
        )
        for view in views:
            claim = self._crowd.check_shown(view.claim)
            if claim.subject == self._caller.subject and claim.id not in self._claims:
                self._claims.append(claim.id)

    async def _renew(self) -> None:
        if not self._leased:
            return
        ident = self._leased[-1]
        try:
            await self._crowd.ask(self._who, f"renew {ident}", lambda c: c.renew_claim(self._caller, ident))
        except MooringsError as error:
            if error.code == "claim.no_lease":
                self._leased.remove(ident)
            raise

    async def _get(self) -> None:
        ident = self._own(self._claims)
        if ident is None:
            return
        wait_s = self._chance.choice((0.0, 5.0))
        view = await self._crowd.ask(
            self._who, f"get {ident}", lambda c: c.get_claim(self._caller, ident, wait_s=wait_s)
        )
        self._crowd.check_shown(view.claim)

    async def _explain(self) -> None:
        ident = self._any_claim()
        if ident is None:
            return
        try:
            explanation = await self._crowd.ask(
                self._who, f"explain {ident}", lambda c: c.explain_claim(self._caller, ident)
            )
        except MooringsError as error:
            if error.code == "claim.unknown" and ident not in self._claims:  # it may be another's
                return
            raise
        if not explanation.summary or (explanation.claim.state is ClaimState.PENDING and not explanation.reasons):
            self._stage.story.break_law(8, f"nothing explains {ident}: {explanation}")

    async def _binding(self) -> None:
        ident = self._own(self._claims)
        if ident is not None:
            await self._crowd.ask(self._who, f"binding {ident}", lambda c: c.get_binding(self._caller, ident))

    async def _reset(self) -> None:
        ident = self._own(self._claims)
        claim = self._stage.ledger.claims.get(ident) if ident is not None else None  # type: ignore[call-overload]
        if claim is not None and claim.partition is not None:
            name = claim.partition
            await self._crowd.ask(self._who, f"reset {name}", lambda c: c.reset_partition(self._caller, name))

    async def _save(self) -> None:
        """Report a checkpoint of an own job."""
        ident = self._own(self._claims)
        if ident is not None:
            view = await self._crowd.ask(
                self._who, f"saved {ident}", lambda c: c.record_checkpoint(self._caller, ident)
            )
            self._crowd.check_shown(view.claim)

    async def _yield_when_asked(self) -> None:
        """Yield own claims that were asked to: most at once, some late, some never."""
        ledger, now = self._stage.ledger, self._stage.wall.now()
        held = {run.claim for run in ledger.runs.values()}
        for claim in list(ledger.claims.values()):
            mine = claim.subject == self._caller.subject and claim.state is ClaimState.RECLAIMING
            if not mine or claim.id in held or claim.asked_until is None:
                continue
            drawn = self._chance.random()
            late = add_seconds(claim.asked_until, self._chance.uniform(0, LATE_S_MAX))
            temper = (
                None if drawn < self.ignore_yield_ratio else late if drawn < self.ignore_yield_ratio + LATE_OF else now
            )
            when = self._crowd.yield_times.setdefault((claim.id, claim.attempt), temper)
            if when is not None and when <= now:
                await self._yield(claim.id)

    async def _yield(self, ident: ClaimId) -> None:
        self._stage.yielded_claims.add(ident)
        view = await self._crowd.ask(self._who, f"yield {ident}", lambda c: c.yield_claim(self._caller, ident, "saved"))
        self._crowd.check_shown(view.claim)

    def _own(self, idents: list[str]) -> str | None:
        del idents[:-20]
        return self._chance.choice(idents) if idents else None

    # -- runs --------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        pool = self._chance.choice(self._stage.pools)
        size = self._size(pool)
        job = JobSpec(
            name=self._chance.choice(NAMES),
            command=("python3", "train.py"),
            workdir="/",
            tasks=self._gcds(pool, size),
            accelerators=Accelerators(pool.kind, size),
            priority=self._chance.choice(PRIORITIES),
            time_limit_s=self._chance.choice(LIMITS_S),
            project=self._project(),
            preemptible=self._is_preemptible(),
            checkpoint=CheckpointContract(resumable=self._chance.random() < 0.5),
            checkpoint_directory="/c",
        )
        if job.checkpoint.resumable:
            job = replace(job, retries=self._crowd.retries)
        engine = SCHEDULER if self._chance.random() < QUEUED_OF else LOCAL
        within: str | None = None
        if self._chance.random() < APPLIANCE_OF:
            engine, job = LOCAL, self._of_appliance(job, pool)
            if self._chance.random() < WITHIN_OF:
                within = self._own(self._claims)
        else:
            before = self._own(self._runs) if self._chance.random() < AFTER_OF else None
            after = (f"{before}:{self._chance.choice(list(AfterEnd))}",) if before is not None else ()
            array = self._chance.choice(ARRAYS) if self._chance.random() < ARRAY_OF else ""
            job = replace(job, after=after, array=array)

        async def request(body: JobSpec, key: str) -> None:
            view = await self._crowd.ask(
                self._who,
                f"run {body.accelerators.size} {body.accelerators.kind} on {engine} within {within} key {key}"
                f"{' after '.join(('', *body.after))}{f' array {body.array}' if body.array else ''}",
                lambda c: c.runs.create_run(self._caller, body, engine=engine, within=within, key=key),
            )
            self._crowd.check_keyed(self._caller.subject, key, repr((body, within)), view.run.id)
            self._shown(view.run)
            self._runs.append(view.run.id)
            if body.lease_s is not None and view.run.claim is not None and within is None:
                self._leased.append(view.run.claim)

        await self._ask_with_key(request, job, replace(job, priority=job.priority + 1))

    def _of_appliance(self, job: JobSpec, pool: Pool) -> JobSpec:
        """The same job as a compile or an execute job of one of the client's workflows."""
        number = len(self._runs) // WORKFLOW_JOBS * WORKFLOWS + self._chance.randrange(WORKFLOWS)
        workflow = f"wflow-{self._caller.subject}{number:019d}"
        compiles = self._chance.random() < 0.4
        asked = job.accelerators
        if pool.resources and (compiles or self._chance.random() < 0.5):
            name, most = pool.resources[0]
            size = 0 if compiles else asked.size
            asked = replace(asked, size=size, resources={name: self._chance.randint(1, most)})
        return replace(
            job,
            tasks=job.tasks if asked.size else 1,
            accelerators=asked,
            priority=self._chance.choice((-199, -299, -399)),
            lease_s=self._chance.choice(LEASES_S),
            labels={"model": self._chance.choice(NAMES)} if self._chance.random() < 0.3 else {},
            appliance=WorkflowPart(ApplianceJobType.EXECUTE if asked.size else ApplianceJobType.COMPILE, workflow),
        )

    async def _label(self) -> None:
        ident = self._own(self._runs)
        if ident is not None:
            change = {self._chance.choice(("model", "why")): self._chance.choice((None, *NAMES))}
            view = await self._crowd.ask(
                self._who, f"label {ident} {change}", lambda c: c.runs.label_run(self._caller, ident, change)
            )
            self._shown(view.run)

    async def _prioritise(self) -> None:
        ident = self._own(self._runs)
        if ident is not None:
            priority = self._chance.choice((-50, -199, -299, -399))
            view = await self._crowd.ask(
                self._who,
                f"prioritise {ident} {priority}",
                lambda c: c.runs.set_run_priority(self._caller, ident, priority),
            )
            self._shown(view.run)

    def _shown(self, run: Run) -> None:
        ledger = self._stage.ledger
        saved = ledger.runs.get(run.id) or ledger.ended_runs.get(run.id)
        if (saved is None or saved.version < run.version) and not ledger.was_saved_before_rewind(run.id, run.version):
            self._stage.story.break_law(3, f"shown was {run}, saved is {saved}")

    async def _cancel(self) -> None:
        ident = self._own(self._runs)
        if ident is None:
            return
        wait_s = self._chance.choice((0.0, 20.0))
        view = await self._crowd.ask(
            self._who, f"cancel {ident}", lambda c: c.runs.cancel_run(self._caller, ident, wait_s=wait_s)
        )
        self._shown(view.run)

    async def _follow(self) -> None:
        ident = self._own(self._runs)
        if ident is None:
            return
        wait_s = self._chance.choice((0.0, 20.0))
        view = await self._crowd.ask(
            self._who, f"get {ident}", lambda c: c.runs.get_run(self._caller, ident, wait_s=wait_s)
        )
        self._shown(view.run)

    # -- other schedulers' agents ------------------------------------------------------------------------------------

    async def _report_queue(self) -> None:
        """Report its own queue; the owners are those that it also claims for."""
        pool = self._chance.choice(self._stage.pools)
        numbers = self._chance.sample(range(99), self._chance.choice((0, 1, 2, 8)))
        now, jobs = self._stage.wall.now(), []
        for number in numbers:
            size = self._size(pool)
            project, preemptible = self._project(), self._is_preemptible()
            gcds = self._gcds(pool, size)
            spec = ClaimSpec(kind=pool.kind, size=size, gcds=gcds, project=project, preemptible=preemptible)
            jobs.append(QueuedJob(f"slurm/alpha/{number}", spec, add_seconds(now, -self._chance.uniform(0, 100))))
        believed_s = self._chance.choice((5.0, 30.0, 120.0))
        instance = self._chance.choice((None, self._instance, self._instance))  # an agent of an older release has none
        view = await self._crowd.ask(
            self._who,
            f"tell of {len(jobs)} {pool.kind}",
            lambda c: c.queues.report_queue(
                self._caller, "slurm/alpha", pool.kind, jobs, believed_s, instance=instance
            ),
        )
        if not all(job.reason.message for job in view.jobs):
            self._stage.story.break_law(8, f"nothing explains {view.jobs}")

    # -- admins and onlookers ----------------------------------------------------------------------------------------

    async def _list_something(self) -> None:
        what = self._chance.randrange(6 if self._stage.sharing.projects else 5)
        if what == 0:
            await self._crowd.ask(self._who, "list claims", lambda c: c.list_claims(self._caller, PageQuery(20)))
        elif what == 1:
            await self._crowd.ask(self._who, "list runs", lambda c: c.runs.list_runs(self._caller, PageQuery(20)))
        elif what == 2:
            after = Seq(max(0, self._stage.ledger.seq - 20))
            rows = await self._crowd.ask(self._who, "list events", lambda c: c.list_events(self._caller, after, 20))
            numbers = [after, *(row.seq for row in rows)]
            whole = self._caller.role is Role.ADMIN  # others see a part of them
            follows = self._stage.ledger.follows if whole else int.__gt__
            if not all(map(follows, numbers[1:], numbers)):
                self._stage.story.break_law(9, f"events after {after} are {[row.seq for row in rows]}")
        elif what == 3:
            await self._crowd.ask(self._who, "list devices", lambda c: _list_devices(c, self._caller))
        elif what == 4:
            await self._crowd.ask(self._who, "list quotas", lambda c: _list_quotas(c, self._caller))
        else:
            await self._crowd.ask(self._who, "list pools", lambda c: _list_pools(c, self._caller))

    async def _drain(self) -> None:
        pool = self._chance.choice(self._stage.pools)
        if sum(one.pool == pool.name for one in self._stage.ledger.devices.values()) * 2 > pool.topology.n_devices:
            return  # with everything drained there would be nothing to check
        ident = f"{pool.name}:{self._chance.randrange(pool.topology.n_devices)}"
        await self._crowd.ask(self._who, f"drain {ident}", lambda c: c.drain_device(self._caller, ident, "to look at"))

    async def _set_project(self) -> None:
        """Make or change a project; sometimes one that was changed meanwhile."""
        known = self._stage.ledger.projects
        name = drawn_name(self._chance, known)
        if name in known and self._chance.random() < 0.7:
            return  # guarantees stay for a while
        project = drawn_project(self._chance, name, self._stage.pools, known)
        before = known.get(name)
        version = before.version if before is not None else None
        if self._chance.random() < 0.05:
            version = self._chance.choice((None, 1))
        said = f"set project {name} v{version} {' '.join(f'{s.pool}:{s.blocks}' for s in project.shares)}"
        saved = await self._crowd.ask(self._who, said, lambda c: c.projects.set_project(self._caller, project, version))
        if replace(saved, version=1) != project:
            self._stage.story.break_law(2, f"project {project} was asked for, and {saved} was made")

    async def _delete_project(self) -> None:
        known = sorted(self._stage.ledger.projects)
        if known:
            name = self._chance.choice(known)
            await self._crowd.ask(
                self._who, f"delete project {name}", lambda c: c.projects.delete_project(self._caller, name)
            )

    async def _resume(self) -> None:
        out = [one.id for one in self._stage.ledger.devices.values() if one.state is not DeviceState.IN_SERVICE]
        if out:
            ident = self._chance.choice(sorted(out))
            await self._crowd.ask(self._who, f"resume {ident}", lambda c: c.resume_device(self._caller, ident))


async def _list_quotas(controller: Controller, caller: Caller) -> object:
    return [*controller.projects.list_projects(caller), *controller.projects.list_quotas(caller)]


async def _list_devices(controller: Controller, caller: Caller) -> object:
    return controller.list_devices(caller, PageQuery(50))


async def _list_pools(controller: Controller, caller: Caller) -> object:
    return [*controller.list_pools(), *controller.list_partitions(caller)]


def make_clients(crowd: ClientPool, count: int) -> list[SimulatedClient]:
    """That many clients, of every role."""
    return [SimulatedClient(number, CALLERS[number % len(CALLERS)], crowd) for number in range(count)]
