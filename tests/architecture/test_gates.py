"""The two gates: what a sample is, and what a run says of its costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes
from tests.costs import Cost, folder_of, folders, idle, over_budget
from tests.lanes import Lane
from tests.sampling import ROOT, Row, rank, share_of, table

SEED = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def test_a_share_is_drawn_by_the_seed_alone() -> None:
    names = [f"tests/slurm/test_x.py::test_{number}" for number in range(2_000)]
    drawn = [name for name in names if rank(name, SEED) < 0.2]
    assert 300 < len(drawn) < 500
    assert drawn == [name for name in names if rank(name, SEED) < 0.2]
    assert drawn != [name for name in names if rank(name, SEED[::-1]) < 0.2]
    assert all(0 <= rank(name, SEED) < 1 for name in names)


def test_a_files_own_share_goes_before_its_folders() -> None:
    rows = {"slurm": Row(share=0.2), "slurm/test_munge.py": Row(share=1.0), "unit/core": Row(cpu_s=5)}
    assert share_of("slurm/test_munge.py", rows) == 1.0
    assert share_of("slurm/test_ipu_jobs.py", rows) == 0.2
    assert share_of("unit/core/test_turn.py", rows) == 1.0


def test_the_table_has_a_budget_for_each_folder_and_nothing_that_is_gone() -> None:
    rows = table()
    files = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    missing = {folder_of(f"tests/{path}::x") for path in files} - {name for name, row in rows.items() if row.cpu_s}
    assert missing == set(), "give them a line in tests/gates.toml"
    assert [name for name in rows if not (ROOT / "tests" / name).exists()] == []
    assert [name for name, row in rows.items() if row.share is not None and not 0 < row.share <= 1] == []


def test_a_folder_over_twice_its_budget_is_a_failure_and_slow_machines_are_allowed_for() -> None:
    tests = {"tests/unit/core/test_a.py::test_a": Cost(cpu_s=25), "tests/e2e/test_b.py::test_b": Cost(cpu_s=1)}
    rows = {"unit/core": Row(cpu_s=10), "e2e": Row(cpu_s=10)}
    assert [line.split()[0] for line in over_budget(tests, rows, 1.0)] == ["tests/unit/core"]
    assert over_budget(tests, rows, 1.5) == []
    assert "has no budget" in over_budget(tests, {"e2e": Row(cpu_s=10)}, 1.0)[0]
    assert "unit/core" in folders(tests, rows)


def test_lanes_run_beside_each_other_stop_at_a_failure_and_leave_nothing(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from tests import lanes; from tests.lanes import Lane;"
        "from tests.mutation import keeper; keeper.adopt_orphans(); lanes.FOLDER = pathlib.Path(sys.argv[1]);"
        "bad = Lane('bad', [['false'], ['touch', sys.argv[1] + '/never']]);"
        "good = Lane('good', [['sh', '-c', '(sleep 1000 &) ; exit 0'], ['touch', sys.argv[1] + '/second']]);"
        "slow = Lane('slow', [['sleep', '1000']]); lanes.GRACE_S = 0.2;"
        "lanes.run([bad, good, slow], {'PATH': '/bin:/usr/bin'}, 2.0);"
        "print(bad.status, good.status, slow.status, len(lanes.end_all([bad, good, slow])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == ["1", "0", "124", "1"]
    assert "took too long" in (tmp_path / "slow.log").read_text()
    assert (tmp_path / "second").exists()
    assert not (tmp_path / "never").exists()


def test_a_run_with_a_failure_or_something_left_behind_is_red(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path)
    good = Lane("good", [], status=0)
    good.log.write_text("..\n2 passed\n")
    assert lanes.report([good], 1.0, 9.0, [], sampled=False) == 0
    assert lanes.report([good], 1.0, 9.0, ["123 sleep 1000"], sampled=False) == 1
    assert lanes.report([Lane("good", [], status=1)], 1.0, 9.0, [], sampled=False) == 1
    assert "FAILED: 123 sleep 1000" in capsys.readouterr().out


def test_a_lane_that_ends_well_has_to_prove_that_it_ran_its_tests(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path)
    (tmp_path / "rest.log").write_text("..\n2 passed\n")
    ran = {"tests/slurm/test_a.py::test_a": Cost()}
    for collected, tests, red in ((1, ran, 0), (2, ran, 1), (None, {}, 1), (0, {}, 1)):
        lane = Lane("rest", [["python", "-m", "pytest"]], status=0, collected=collected, tests=tests)
        assert lanes.report([lane], 1.0, 9.0, [], sampled=False) == red
    assert "lane rest ran 1 of 2 tests" in capsys.readouterr().out
    assert idle(ran, {"slurm": Row(cpu_s=1), "e2e": Row(cpu_s=1), "slurm/test_a.py": Row(share=0.5)}) == [
        "tests/e2e: no test has run"
    ]


def test_a_sample_says_in_a_line_that_heavy_tests_are_left_to_the_other_gate(monkeypatch) -> None:
    for extent, told in (("sample", True), ("whole", False)):
        monkeypatch.setenv("MOORINGS_TESTS", extent)
        command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/e2e/test_disturbed_training.py")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
        assert ("heavy tests were not run: make test-all" in done.stdout) is told, done.stdout + done.stderr
        assert ("[lightning]" in done.stdout) is not told


def test_a_smoke_test_that_is_skipped_is_red(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path)
    (tmp_path / "rest.log").write_text("s\n1 skipped\n")
    for smoke, red in ((False, 0), (True, 1)):
        ran = {"tests/slurm/test_a.py::test_a": Cost(outcome="skipped", smoke=smoke)}
        lane = Lane("rest", [["python", "-m", "pytest"]], status=0, collected=1, tests=ran)
        assert lanes.report([lane], 1.0, 9.0, [], sampled=False) == red
    assert "tests/slurm/test_a.py::test_a is smoke, and was skipped" in capsys.readouterr().out


def test_a_lane_that_is_not_known_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        lanes.main(["slrum"])
    assert "there is no lane slrum; there are kubernetes, slurm, rest, check" in capsys.readouterr().err


def test_progress_tells_how_far_and_what_has_failed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path)
    lane = Lane("slurm", [])
    assert lane.progress() == "slurm begins"
    lane.log.write_text("slurm: builds\n...F.E")
    assert lane.progress() == "slurm 6 tests (2 failed)"
    lane.log.write_text("....  [ 80%]\n...")
    assert lane.progress() == "slurm 80 %"
