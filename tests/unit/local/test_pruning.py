"""Old runs' folders go; of a run that lives, is doubtful or is spared nothing does."""

import os

import pytest

from moorings.app.maintenance import PRUNED_PREFIX, prune
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.timestamps import Timestamp
from moorings.local.live_runs import partitions_in_use
from moorings.local.records import AttemptEnd
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.runs import EndReason, EndRecord, RunId

OLD, NEW, BEFORE = Timestamp(1_000_000), Timestamp(9_000_000), Timestamp(5_000_000)


@pytest.fixture
def runs(tmp_path):
    made = tmp_path / "runs"
    made.mkdir()
    return made


def a_run(runs, name, ended_at=None):
    folder = LocalRunFolder(runs / name)
    folder.create()
    job = JobSpec(name="j", command=("true",), workdir="/", environment={}, tasks=1, accelerators=Accelerators(size=1))
    binding = Binding(f"part-{name}", {}, (GcdBinding(0, (), "", "", {}),))
    folder.save(RunSubmission(RunId(name), 0, job, binding))
    log = folder.log_path(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("output")
    if ended_at is not None:
        folder.save_end(AttemptEnd(0, EndRecord(EndReason.EXITED, 0, (0,), ended_at=ended_at)))
    return folder


def test_only_what_ended_long_ago_goes(runs):
    a_run(runs, "run-old", OLD)
    a_run(runs, "run-new", NEW)
    a_run(runs, "run-open")
    a_run(runs, "run-spared", OLD)
    assert prune(runs, BEFORE, {"run-spared"}, LocalRunFolder.hold_ended) == ["run-old"]
    assert sorted(path.name for path in runs.iterdir()) == ["run-new", "run-open", "run-spared"]
    assert prune(runs, BEFORE, {"run-spared"}, LocalRunFolder.hold_ended) == []


def test_a_run_whose_supervisor_lives_stays(runs):
    folder = a_run(runs, "run-a", OLD)
    with folder.hold_submit_lock(wait_s=0) as ours:
        assert ours
        life = folder.acquire_liveness_lock()
    assert life is not None
    assert prune(runs, BEFORE, (), LocalRunFolder.hold_ended) == []
    os.close(life)
    assert prune(runs, BEFORE, (), LocalRunFolder.hold_ended) == ["run-a"]


def test_a_damaged_folder_and_a_stranger_s_stay(runs):
    a_run(runs, "run-a", OLD).order.write_text("{")
    (runs / "notes.txt").write_text("mine")
    (runs / "folder of mine").mkdir()
    (runs / "link").symlink_to("/tmp")
    assert prune(runs, BEFORE, (), LocalRunFolder.hold_ended) == []
    assert len(list(runs.iterdir())) == 4


def test_one_that_was_cut_off_is_finished(runs):
    a_run(runs, "run-a", OLD).path.rename(runs / f"{PRUNED_PREFIX}run-a")
    assert prune(runs, BEFORE, (), LocalRunFolder.hold_ended) == []
    assert list(runs.iterdir()) == []


def test_a_link_of_a_job_s_is_removed_and_not_followed(runs, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (a_run(runs, "run-a", OLD).path / "link").symlink_to(precious)
    assert prune(runs, BEFORE, (), LocalRunFolder.hold_ended) == ["run-a"]
    assert (precious / "file").read_text() == "mine"


def test_no_folder_of_runs_is_no_error(tmp_path):
    assert prune(tmp_path / "none", BEFORE, (), LocalRunFolder.hold_ended) == []
    assert partitions_in_use(tmp_path / "none") == frozenset()


# -- which partitions are in use


def test_a_partition_is_in_use_as_long_as_its_run_lives(runs):
    a_run(runs, "run-ended", NEW)
    a_run(runs, "run-dead")  # ordered, and nothing of it is left
    folder = a_run(runs, "run-live")
    with folder.hold_submit_lock(wait_s=0):
        life = folder.acquire_liveness_lock()
    assert life is not None
    assert partitions_in_use(runs) == {"part-run-live"}
    os.close(life)
    assert partitions_in_use(runs) == frozenset()


def test_nothing_follows_from_a_live_run_that_cannot_be_read(runs):
    folder = a_run(runs, "run-live")
    folder.order.write_text("{")
    with folder.hold_submit_lock(wait_s=0):
        life = folder.acquire_liveness_lock()
    assert life is not None
    with pytest.raises(Exception, match="damaged"):
        partitions_in_use(runs)
    os.close(life)
    assert partitions_in_use(runs) == frozenset()
