"""What people try on a shared machine: with their own folder, their own supervisor, and others' jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.local import shared_engine
from moorings.privileged import cgroups
from moorings.testing.engine_suite import (
    make_order,
    observe_run,
    open_engine,
    read_output,
    wait_for_end,
    wait_for_output,
)
from moorings.workloads.runs import EndReason, RunPhase
from tests.contract.test_engine_shared import SharedRig
from tests.unit.privileged.rig import ANN, BOB, NEEDS_ROOT, PYTHON
from tests.waiting import until_async

pytestmark = NEEDS_ROOT


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[SharedRig]:
    made = SharedRig(tmp_path)
    yield made
    made.daemon.end()


def run_folder(rig: SharedRig, attempt: int = 0) -> Path:
    (job,) = (rig.daemon.folder / "jobs").iterdir()
    return job / str(attempt) / "run"


def supervisor(rig: SharedRig) -> int:
    """The process id of the only run's supervisor."""
    return int(json.loads((run_folder(rig).parent / "started.json").read_text())["pid"])


async def test_a_link_in_place_of_an_output_shows_nothing(rig: SharedRig, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the pepper")
    secret.chmod(0o600)  # of the controller's user, who is root here
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        log = run_folder(rig) / "0.log"
        for forge in (log.symlink_to, log.hardlink_to):
            log.unlink()
            forge(secret)
            assert await read_output(engine, order.run) == b""
        log.unlink()
        os.mkfifo(log)
        assert await read_output(engine, order.run) == b""
        await engine.cancel(order.run, "enough")
        await wait_for_end(engine, order.run)


async def test_an_end_that_its_person_wrote_ends_nothing(rig: SharedRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        end = {"attempt": 0, "record": {"ending": "EXITED", "exit_code": 0, "task_codes": [0]}}
        forged = run_folder(rig) / "end.json"
        forged.write_text(json.dumps(end))
        shutil.chown(forged, ANN, ANN)
        (run_folder(rig) / "status.json").unlink()
        (run_folder(rig) / "status.json").symlink_to("/etc/passwd")
        assert (await observe_run(engine, order.run)).phase is RunPhase.STARTING
        await engine.cancel(order.run, "enough")
        await wait_for_end(engine, order.run)


async def test_a_status_that_takes_long_to_read_is_none(rig: SharedRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        forged = run_folder(rig) / "status.json"
        status = json.loads(forged.read_text())
        assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
        forged.write_text(json.dumps(status | {"tasks": status["tasks"] * 1000}))
        assert (await observe_run(engine, order.run)).phase is RunPhase.STARTING
        await engine.cancel(order.run, "enough")
        await wait_for_end(engine, order.run)


async def test_a_supervisor_that_its_person_has_stopped_keeps_no_devices(
    rig: SharedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_engine, "MARGIN_S", 0.5)
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    order = replace(order, job=replace(order.job, checkpoint=replace(order.job.checkpoint, grace_s=0.5)))
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        os.kill(supervisor(rig), signal.SIGSTOP)
        await engine.cancel(order.run, "enough")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.LOST, 137)


async def test_a_time_limit_holds_though_its_supervisor_was_stopped(
    rig: SharedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_engine, "MARGIN_S", 0.5)
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir, time_limit_s=3)
    order = replace(order, job=replace(order.job, checkpoint=replace(order.job.checkpoint, grace_s=0.5)))
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        os.kill(supervisor(rig), signal.SIGSTOP)
        assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST


def tries(uid: int, statement: str, *words: str) -> str:
    """What a statement of a user meets; empty: it works."""
    become = f"import os, sys; os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3)"
    done = subprocess.run(
        [str(PYTHON), "-I", "-c", f"{become}; {statement}", *words], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


async def test_one_person_stops_nothing_of_another_and_nothing_of_roots(rig: SharedRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        folder = run_folder(rig)
        pid = supervisor(rig)
        others = [f"os.kill({pid}, 9)", "open(sys.argv[1] + '/0.log')", "os.listdir(sys.argv[1])"]
        roots = [
            "open(sys.argv[1] + '/../attempt.json')",
            "open(sys.argv[1] + '/../cancel.json', 'w')",
            "os.mkdir(sys.argv[1] + '/../x')",
            "os.rename(sys.argv[1], sys.argv[1] + '/../x')",
            "os.listdir(sys.argv[1] + '/..')",
        ]
        for uid, statements in ((BOB, [*others, *roots]), (ANN, roots)):
            for statement in statements:
                assert "PermissionError" in tries(uid, statement, str(folder)), (uid, statement)
        assert tries(ANN, "open(sys.argv[1] + '/0.log')", str(folder)) == "", "it is her own"
        assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
        await engine.cancel(order.run, "enough")
        await wait_for_end(engine, order.run)


def ends_with(record: dict[str, object]) -> str:
    """A script that writes its run's end, and kills its supervisor."""
    end = json.dumps({"attempt": 0, "record": record})
    return f"echo '{end}' > $(dirname $(readlink /proc/$$/fd/1))/end.json; kill -9 $PPID"


@pytest.mark.parametrize(
    "said",
    [
        {"ending": "EXITED", "exit_code": 10**40},
        {"ending": "EXITED", "exit_code": 0, "task_codes": [0] * 5},
        {"ending": "EXITED", "exit_code": -1},
    ],
    ids=str,
)
async def test_an_end_that_could_be_none_is_none(rig: SharedRig, said: dict[str, object]) -> None:
    writes = ends_with(said)
    order = make_order(rig.programs.shell(writes), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST


async def test_times_and_words_that_a_person_wrote_are_as_they_can_be(rig: SharedRig) -> None:
    record = {
        "ending": "EXITED",
        "exit_code": 7,
        "started_at": 9 * 10**18,
        "ended_at": -(10**40),
        "detail": "x" * 10_000,
    }
    writes = ends_with(record)
    order = make_order(rig.programs.shell(writes), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        end = await wait_for_end(engine, order.run)
        assert (end.exit_code, len(end.detail)) == (7, 500)
        assert end.started_at is not None
        assert end.ended_at is not None
        assert 10**15 < end.ended_at <= end.started_at < 4 * 10**15


async def test_a_later_attempt_resumes_from_what_the_one_before_has_saved(rig: SharedRig) -> None:
    saves = Path(rig.workdir) / "saves"
    code = "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('a', b'x')"
    save = f'/usr/bin/python3 -c "{code}" {saves}/step-3.pt'
    script = f'echo "from ${{MOORINGS_RESUME_FROM:-nothing}}"; {save}; sleep 3; exit 85'
    order = make_order(rig.programs.shell(script), rig.workdir)
    contract = replace(order.job.checkpoint, resumable=True)
    order = replace(order, job=replace(order.job, checkpoint=contract, checkpoint_directory=str(saves)))
    async with open_engine(rig) as engine:
        await engine.submit(order)
        assert (await wait_for_end(engine, order.run)).exit_code == 85
        await engine.submit(replace(order, attempt=1, resume_from=f"{saves}/step-3.pt", resume_step=3))
        assert (await wait_for_end(engine, order.run)).exit_code == 85
        assert (await read_output(engine, order.run)).decode() == f"from nothing\nfrom {saves}/step-3.pt\n"


async def test_a_person_whose_account_was_closed_is_told_why_nothing_started(rig: SharedRig) -> None:
    order = make_order(rig.programs.exits(0), rig.workdir)
    rig.entry(order)
    rig.daemon.closed.touch()
    async with open_engine(rig) as engine:
        await engine.submit(order)
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.detail) == (EndReason.NOT_STARTED, 126, "ann-x is locked")


async def test_the_output_of_a_job_is_cut_at_its_limit(rig: SharedRig) -> None:
    order = make_order(rig.programs.shell("head -c 100000 /dev/zero | tr '\\0' x; echo"), rig.workdir)
    async with open_engine(rig) as engine:
        engine._output_bytes_max = 8192  # type: ignore[attr-defined]
        await engine.submit(order)
        await wait_for_end(engine, order.run)
        output = (await read_output(engine, order.run)).decode()
        assert output.startswith("x" * 8192 + "\n[moorings: the output is cut here")
        assert len(output) < 8300


async def test_a_limit_that_the_machine_cannot_set_rejects_the_run(
    rig: SharedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.daemon.kill()
    monkeypatch.setattr(cgroups, "LIMITING", frozenset({"pids"}))
    monkeypatch.setattr(cgroups, "_V1", frozenset({"pids", "freezer"}))
    rig.daemon.start()
    order = make_order(rig.programs.exits(0), rig.workdir)
    async with open_engine(rig) as engine:
        with pytest.raises(MooringsError, match="this machine cannot limit a job's use of cpu") as rejected:
            await engine.submit(order)
        assert rejected.value.code == "engine.rejected"


async def test_a_daemon_that_is_away_makes_every_run_unknown_and_ends_none(rig: SharedRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready")
        rig.daemon.kill()
        assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
        rig.daemon.start()

        async def runs() -> bool:
            return (await observe_run(engine, order.run)).phase is RunPhase.RUNNING

        await until_async(runs, 30)
        await engine.cancel(order.run, "enough")
        end = await wait_for_end(engine, order.run)
        assert end.ending is EndReason.CANCELLED
