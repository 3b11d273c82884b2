"""On a machine that people share a run is made only of what its own person has handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from moorings.app.clock import RandomIds, SystemClock
from moorings.controller.loop import TurnLoop
from moorings.controller.personal_runs import PersonalRuns
from moorings.controller.reasons import ReasonService
from moorings.controller.run_service import RunService, _check_order
from moorings.core.model.access import Caller, Role
from moorings.core.model.errors import MooringsError
from moorings.engines.environments import FolderEnvironments
from moorings.local.engine import LocalEngine
from moorings.ports.store import Store
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import JobSpec
from moorings.workloads.run_turn import CreateRun
from moorings.workloads.runs import RunId

JOB = JobSpec(name="n", command=("true",), workdir="/")
ANN = Caller("ann", Role.USER, "user/ann", "uid-61001", uid=61001)
ANN_BY_KEY = Caller("ann", Role.USER, "user/ann", "k1")
ROOT = Caller("root", Role.ADMIN, "", "uid-0", uid=0)
TAIL = "0123456789abcdef" * 2


class Nothing:
    """A loop and a store that are not used: all is refused before."""

    get_run = None

    def subscribe(self, listener: object) -> None:
        pass


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., RunService]:
    def make(*handed_in: str, admins_only: Collection[str] = ()) -> RunService:
        nothing = Nothing()
        loop, store, reasons = cast("TurnLoop", nothing), cast("Store", nothing), cast("ReasonService", nothing)
        engines = {"local": LocalEngine(tmp_path, SystemClock())}
        return RunService(
            loop,
            store,
            engines,
            RandomIds(),
            reasons,
            FolderEnvironments({"local": tmp_path}),
            PersonalRuns(loop, {}),
            handed_in=handed_in,
            admins_only=admins_only,
        )

    return make


@pytest.mark.parametrize(
    ("caller", "entry", "code"),
    [
        (ANN, None, "engine.rejected"),  # it was not handed in
        (ANN, f"61002-{TAIL}", "owner.denied"),  # another's
        (ANN, f"061001-{TAIL}", "owner.denied"),
        (ANN, f"61001-{TAIL}/../61002-{TAIL}", "owner.denied"),
        (ANN, f"61001-{TAIL}\n", "owner.denied"),
        (ANN, "61001-", "owner.denied"),
        (ANN, "", "owner.denied"),
        (ANN_BY_KEY, f"61001-{TAIL}", "owner.denied"),  # a key says no uid
        (ROOT, f"61001-{TAIL}", "owner.denied"),  # an admin starts nothing as somebody else
    ],
)
def test_what_somebody_else_handed_in_starts_nothing(
    serve: Callable[..., RunService], caller: Caller, entry: str | None, code: str
) -> None:
    with pytest.raises(MooringsError) as refused:
        serve("local")._check_person(caller, "local", (entry,) if entry is not None else ())
    assert refused.value.code == code


def test_ones_own_is_taken(serve: Callable[..., RunService]) -> None:
    serve("local")._check_person(ANN, "local", (f"61001-{TAIL}", f"61001-{TAIL[::-1]}"))


async def test_one_strangers_entry_among_ones_own_starts_nothing(serve: Callable[..., RunService]) -> None:
    own, strangers = f"61001-{TAIL}", f"61002-{TAIL}"
    for one, more in ((None, (own, strangers)), (own, (strangers,)), (strangers, (own,))):
        with pytest.raises(MooringsError) as refused:
            await serve("local").create_run(ANN, JOB, spool_entry=one, spool_entries=more)
        assert refused.value.code == "owner.denied"


def test_where_nothing_is_handed_in_an_entry_is_a_mistake(serve: Callable[..., RunService]) -> None:
    with pytest.raises(MooringsError) as refused:
        serve()._check_person(ANN, "local", (f"61001-{TAIL}",))
    assert refused.value.code == "job.invalid"


def test_a_controller_that_root_has_started_runs_the_jobs_of_admins_only(serve: Callable[..., RunService]) -> None:
    service = serve(admins_only=("local",))
    with pytest.raises(MooringsError) as refused:
        service._check_person(ANN_BY_KEY, "local", ())
    assert refused.value.code == "engine.rejected"
    assert "moor up --system" in refused.value.hint
    service._check_person(Caller("root", Role.ADMIN, "", "k2"), "local", ())
    service._check_person(ANN_BY_KEY, "slurm", ())


async def test_it_is_refused_before_there_is_a_run(serve: Callable[..., RunService]) -> None:
    with pytest.raises(MooringsError) as refused:
        await serve("local").create_run(ANN, JOB, spool_entry=f"61002-{TAIL}")
    assert refused.value.code == "owner.denied"


async def test_no_array_is_made_of_a_job_that_was_handed_in_once(serve: Callable[..., RunService]) -> None:
    with pytest.raises(MooringsError, match="each run of an array is handed in by itself") as refused:
        await serve("local").create_run(ANN, replace(JOB, array="0-3"), spool_entry=f"61001-{TAIL}")
    assert refused.value.code == "engine.rejected"


def test_neither_arrays_nor_order_where_they_cannot_be_kept() -> None:
    part = WorkflowPart(ApplianceJobType.COMPILE, "wflow-" + "a" * 22)
    usual = CreateRun(id=RunId("run-1"), claim=None, job=replace(JOB, after=("run-0",)), engine="slurm", subject="ann")
    _check_order(usual)
    _check_order(replace(usual, job=JOB, within=True))
    for given, code in (
        (replace(usual, within=True), "job.invalid"),
        (replace(usual, job=replace(JOB, array="0-1", appliance=part)), "job.invalid"),
        (replace(usual, job=replace(JOB, array="0-1", terminal_keep_s=60.0)), "job.invalid"),
        (replace(usual, job=replace(JOB, array="0-1"), spool_entries=("1-a",)), "job.invalid"),
        (replace(usual, job=replace(JOB, array="0-1"), spool_entries=("1-a", "1-a")), "job.invalid"),
        (replace(usual, job=replace(JOB, array="0-1"), token_digests=("0" * 64,) * 3), "job.invalid"),
        (replace(usual, job=JOB, token_digests=("0" * 64,)), "job.invalid"),
    ):
        with pytest.raises(MooringsError) as refused:
            _check_order(given)
        assert refused.value.code == code
