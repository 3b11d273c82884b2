"""Which Slurm it is: the id is drawn once for each StateSaveLocation, and is there whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.instance_id import FILE, ensure_instance, lock_instance, read_instance
from tests.waiting import patient

ROOT = Path(__file__).resolve().parents[3]
CAPABILITIES = "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE"  # of an agent that runs as root
ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_it_is_drawn_once(tmp_path: Path) -> None:
    assert read_instance(tmp_path) is None
    assert ensure_instance(tmp_path, ONE) == ONE
    assert ensure_instance(tmp_path, OTHER) == ONE, "restarts do not change it"
    assert read_instance(tmp_path) == ONE
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).read_text() == f"{ONE}\n"
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_of_many_that_draw_one_at_once_all_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(lambda n: ensure_instance(tmp_path, f"{n:016x}"), range(200)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_one_that_was_killed_at_it_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its draft stays; the id is made by the next one."""
    code = (
        "import os, signal, sys, pathlib; os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "from moorings.slurm.host.instance_id import ensure_instance;"
        f"ensure_instance(pathlib.Path(sys.argv[1]), {OTHER!r})"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=patient(60)).returncode == -9
    )
    assert len(list(tmp_path.iterdir())) == 1
    assert read_instance(tmp_path) is None
    assert ensure_instance(tmp_path, ONE) == ONE


@pytest.mark.parametrize("text", ["", "0123", ONE.upper(), f"{ONE}0", f"{ONE}\n\n", "0" * 15 + "\xff"])
def test_one_that_cannot_be_read_is_told_and_kept(tmp_path: Path, text: str) -> None:
    """A new one in its place would be another Slurm, whose claims are not ours."""
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    with pytest.raises(MooringsError) as caught:
        ensure_instance(tmp_path, ONE)
    assert caught.value.code == "slurm.unreadable"
    assert FILE in caught.value.detail
    assert "remove it" in caught.value.hint
    assert (tmp_path / FILE).read_text(encoding="latin-1") == text


def test_one_agent_at_a_time_holds_it(tmp_path: Path) -> None:
    ensure_instance(tmp_path, ONE)
    held = lock_instance(tmp_path)
    assert held is not None
    assert lock_instance(tmp_path) is None
    os.close(held)
    again = lock_instance(tmp_path)
    assert again is not None
    os.close(again)


def test_a_folder_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(MooringsError, match="cannot be made: No such file") as caught:
        ensure_instance(tmp_path / "away", ONE)
    assert "StateSaveLocation" in caught.value.hint
    assert CAPABILITIES in caught.value.hint


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A link to nowhere is no file that is missing: whoever made it wants another file written or read."""
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MooringsError) as caught:
        ensure_instance(tmp_path, ONE)
    assert caught.value.code == "slurm.unreadable"
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = Path("/proc/self")  # root writes everywhere else
    else:
        folder = tmp_path
        tmp_path.chmod(0o500)
    with pytest.raises(MooringsError, match="cannot be made"):
        ensure_instance(folder, ONE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 23456)
    ensure_instance(tmp_path, ONE)
    made = (tmp_path / FILE).stat()
    assert (made.st_uid, made.st_gid) == (12345, 23456)


def as_root_with(capabilities: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What root comes to that a unit leaves these capabilities (``CAP_A CAP_B``)."""
    code = (
        "import sys, pathlib; from moorings.slurm.host.instance_id import ensure_instance;"
        f"print(ensure_instance(pathlib.Path(sys.argv[1]), {ONE!r}))"
    )
    names = [f"+{name.removeprefix('CAP_').lower()}" for name in capabilities.split()]
    bound = ["setpriv", f"--bounding-set={','.join(['-all', *names])}", "--"]
    words = [*bound, sys.executable, "-c", code, str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60))


@pytest.fixture
def slurms_folder() -> Iterator[Path]:
    """A StateSaveLocation, at a place where root needs no capability to come to."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="moorings-instance-") as folder:
        Path(folder).chmod(0o755)
        state = Path(folder) / "state"
        state.mkdir(mode=0o700)
        os.chown(state, 12345, 23456)
        yield state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities")
def test_root_without_the_right_to_give_files_away_keeps_its_own(slurms_folder: Path) -> None:
    slurms_folder.chmod(0o777)
    done = as_root_with("", slurms_folder)
    assert (done.returncode, done.stdout) == (0, f"{ONE}\n"), done.stderr
    assert (slurms_folder / FILE).stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities")
def test_root_with_what_the_manual_gives_it_makes_one_in_the_folder_of_slurms_user(slurms_folder: Path) -> None:
    """As in the drop-in for an agent that runs as root."""
    done = as_root_with("", slurms_folder)
    assert "Permission denied" in done.stderr
    assert f"\nUser=root\nGroup=root\n{CAPABILITIES}\n" in (ROOT / "docs/how-to/slurm-install.md").read_text()
    assert CAPABILITIES in (ROOT / "deploy/systemd/moorings-slurm-agent.service").read_text()
    done = as_root_with(CAPABILITIES.partition("=")[2], slurms_folder)
    assert (done.returncode, done.stdout) == (0, f"{ONE}\n"), done.stderr
    assert (slurms_folder / FILE).stat().st_uid == 12345
