"""A run's folder says what it was told to say, or nothing."""

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.claims import CheckpointContract
from moorings.core.instants import Timestamp
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    ProcessIdentity,
    RecordUnreadableError,
    SupervisorStatus,
    from_json,
    to_json,
)
from moorings.local.rundir import LocalRunFolder, write_atomically
from moorings.ports.engine import RunSubmission
from moorings.testing.engine_suite import make_order
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase
from tests.cases import cases

texts = st.text(max_size=20)
jobs = st.builds(
    JobSpec,
    name=texts,
    command=st.lists(texts, min_size=1, max_size=3).map(tuple),
    workdir=texts,
    environment=st.dictionaries(texts, texts, max_size=3),
    tasks=st.integers(1, 4),
    accelerators=st.builds(Accelerators, replicas=st.none() | st.integers(1, 4), pool=st.none() | texts),
    resources=st.builds(Resources, memory_bytes=st.none() | st.integers(1)),
    time_limit_s=st.none() | st.floats(1, 1e6),
    checkpoint=st.builds(CheckpointContract, resumable=st.booleans(), warn_s=st.floats(0, 1e4)),
)
records = st.one_of(
    jobs.map(lambda job: replace(make_order(("x",), "/"), job=job)),
    st.builds(
        SupervisorStatus,
        st.integers(0),
        st.sampled_from([RunPhase.STARTING, RunPhase.RUNNING]),
        texts,
        st.builds(ProcessIdentity, st.integers(1), st.integers(0)),
        st.none() | st.integers(0).map(Timestamp),
        st.lists(st.builds(ProcessIdentity, st.integers(1), st.integers(0)), max_size=3).map(tuple),
    ),
    st.builds(CancelRecord, st.integers(0), texts),
    st.builds(
        AttemptEnd,
        st.integers(0),
        st.builds(
            EndRecord,
            st.sampled_from(EndReason),
            st.integers(0, 255),
            st.lists(st.none() | st.integers(0, 255), max_size=3).map(tuple),
            detail=texts,
        ),
    ),
)


def names(folder):
    return [entry.name for entry in folder.iterdir()]


END = to_json(AttemptEnd(0, EndRecord(EndReason.EXITED, 0, (0,))))


@given(records)
def test_what_is_written_is_read(record):
    assert from_json(type(record), to_json(record).encode("ascii")) == record


def test_names_that_are_not_utf8_survive():
    order = make_order((os.fsdecode(b"/bin/caf\xe9"),), "/")
    assert os.fsencode(from_json(RunSubmission, to_json(order)).job.command[0]) == b"/bin/caf\xe9"


@given(st.integers(0, len(END) - 1))
def test_half_a_record_is_no_record(length):
    with pytest.raises(RecordUnreadableError):
        from_json(AttemptEnd, END[:length])


@cases(
    ("path", "value"),
    [
        (("attempt",), "0"),
        (("attempt",), True),
        (("record", "ending"), "PROBABLY_FINE"),
        (("record", "exit_code"), None),
        (("record", "task_codes"), {}),
        (("record", "task_codes"), ["0"]),
        (("record",), []),
    ],
)
def test_a_wrong_value_is_no_record(path, value):
    data = json.loads(END)
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(RecordUnreadableError):
        from_json(AttemptEnd, json.dumps(data))


def test_an_older_or_newer_release_is_understood():
    data = json.loads(END)
    data["colour"] = "blue"
    del data["record"]["detail"]
    assert from_json(AttemptEnd, json.dumps(data)) == AttemptEnd(0, EndRecord(EndReason.EXITED, 0, (0,)))


def test_a_record_of_another_attempt_is_history(tmp_path):
    folder = LocalRunFolder(tmp_path)
    folder.save_end(AttemptEnd(0, EndRecord(EndReason.EXITED, 0)))
    folder.save_cancel(CancelRecord(0, "enough"))
    assert folder.read_end(0) is not None
    assert folder.read_end(1) is None
    assert folder.read_cancel(1) is None


def test_files_are_replaced_whole_and_are_the_owners_alone(tmp_path):
    path = tmp_path / "record"
    write_atomically(path, b"one", durable=True)
    with path.open("rb") as before:
        write_atomically(path, b"two", durable=True)
        assert before.read() == b"one"
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["record"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "record"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, b"new", durable=True)
    assert names(tmp_path) == ["record"]


def test_a_run_id_cannot_lead_out_of_the_folder(tmp_path):
    for run in ("", ".", "..", "../x", "a/b", "/etc", ".hidden", "x\n", "x" * 101):
        assert LocalRunFolder.of(tmp_path, RunId(run)) is None
    assert LocalRunFolder.of(tmp_path, RunId("run-abc")) is not None


def test_a_binding_file_cannot_lead_out_of_the_folder(tmp_path):
    order = make_order(("x",), "/")
    gcd = replace(order.binding.gcds[0], file_name="../order.json")
    with pytest.raises(RecordUnreadableError):
        LocalRunFolder(tmp_path).write_bindings(replace(order, binding=replace(order.binding, gcds=(gcd,))))


def test_removing_the_binding_files_follows_no_link(tmp_path):
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    (kept / "thesis.tex").touch()
    folder = LocalRunFolder(tmp_path / "run")
    folder.make()
    folder.bindings.symlink_to(kept)
    folder.remove_bindings()
    assert not folder.bindings.is_symlink()
    folder.bindings.mkdir()
    (folder.bindings / "link").symlink_to(kept)
    (folder.bindings / "subfolder").mkdir()
    folder.remove_bindings()
    assert names(folder.bindings) == ["subfolder"]
    assert names(kept) == ["thesis.tex"]


def test_only_one_holds_a_lock_and_it_goes_with_its_holder(tmp_path):
    folder = LocalRunFolder(tmp_path)
    with folder.at_door(wait_s=0) as ours:
        assert ours
        with folder.at_door(wait_s=0) as twice:
            assert not twice
        life = folder.take_life()
        assert life is not None
        assert folder.take_life() is None
        inherited = os.dup(life)
        os.close(life)
        assert folder.take_life() is None  # a child that inherited it still holds it
        os.close(inherited)
        again = folder.take_life()
        assert again is not None
        os.close(again)
