"""The spool takes so much of one person, and tells one's from another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.privileged import records
from moorings.privileged import spool as module
from moorings.privileged.accounts import PersonAccount
from moorings.privileged.refusals import Refused
from moorings.privileged.spool import JOB_BYTES_MAX, Spool, SpooledJob, check_entry

ANN, BOB = (PersonAccount(name, uid, uid, "/", "/bin/sh") for name, uid in (("ann", 1001), ("bob", 1002)))


def refusal(spool: Spool, account: PersonAccount, job: dict[str, object]) -> str:
    with pytest.raises(Refused) as refused:
        spool.add(account, job)
    return refused.value.code


def test_a_job_is_kept_as_it_was_handed_in(tmp_path: Path) -> None:
    job = {"command": ["a", "\ud800", "é"], "n": 1}
    entry = Spool(tmp_path / "spool").add(ANN, job)
    assert Spool(tmp_path / "spool").read(entry) == SpooledJob(entry, 1001, "ann", job)
    assert entry.startswith("1001-")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "spool").rglob("*")] == [0o700, 0o600]


def test_one_persons_full_spool_is_not_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    spool = Spool(tmp_path / "spool")
    entries = [spool.add(ANN, {}) for _ in range(3)]
    assert refusal(spool, ANN, {}) == "spool.full"
    assert refusal(Spool(tmp_path / "spool"), ANN, {}) == "spool.full", "it is counted again by the next daemon"
    spool.add(BOB, {})
    spool.remove(entries[0])
    spool.remove(entries[0])
    spool.add(ANN, {})
    assert refusal(spool, ANN, {"x": "y" * JOB_BYTES_MAX}) == "spool.too_large"


def test_one_persons_bytes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 10_000)
    spool = Spool(tmp_path / "spool")
    entry = spool.add(ANN, {"x": "y" * 6000})
    assert refusal(spool, ANN, {"x": "y" * 6000}) == "spool.full"
    spool.add(BOB, {"x": "y" * 6000})
    spool.remove(entry)
    spool.add(ANN, {"x": "y" * 6000})


def test_what_vanishes_while_it_is_counted_fails_no_other(tmp_path: Path) -> None:
    """As the draft of another job that is taken in meanwhile."""
    spool = Spool(tmp_path / "spool")
    spool.add(ANN, {})
    (tmp_path / "spool" / "1001" / ".gone.draft").symlink_to("nowhere")
    spool.add(ANN, {})


def test_a_job_that_was_half_taken_in_is_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    entry = spool.add(ANN, {})
    (tmp_path / "spool" / "1001" / f".{entry[:-1]}0.draft").touch()
    spool.remove_drafts()
    assert [path.name for path in (tmp_path / "spool" / "1001").iterdir()] == [entry]


def test_a_disk_that_is_nearly_full_takes_no_more_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FREE_BYTES_MIN", 1 << 62)
    assert refusal(Spool(tmp_path / "spool"), ANN, {}) == "spool.full"


@pytest.mark.parametrize(
    "entry", ["", "1001", f"1001-{'0' * 31}", f"01001-{'0' * 32}", f"-1-{'0' * 32}", f"1-{'0' * 32}/..", 7]
)
def test_what_is_no_entrys_id_reaches_no_file(entry: object) -> None:
    with pytest.raises(Refused):
        check_entry(entry)
