"""A run's folder says what it was told to say, or nothing."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import CheckpointContract
from moorings.core.model.timestamps import Timestamp
from moorings.engines.run_folder import to_json
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    ProcessIdentity,
    RecordUnreadableError,
    SupervisorStatus,
    from_json,
)
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.testing.engine_suite import make_order
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import EndReason, EndRecord, RunPhase
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
    assert from_json(type(record), to_json(record)) == record


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
    folder.save(CancelRecord(0, "enough"))
    assert folder.read(AttemptEnd, 0) is not None
    assert folder.read(AttemptEnd, 1) is None
    assert folder.read(CancelRecord, 1) is None


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
    folder.create()
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
    with folder.hold_submit_lock(wait_s=0) as ours:
        assert ours
        with folder.hold_submit_lock(wait_s=0) as twice:
            assert not twice
        life = folder.acquire_liveness_lock()
        assert life is not None
        assert folder.acquire_liveness_lock() is None
        inherited = os.dup(life)
        os.close(life)
        assert folder.acquire_liveness_lock() is None  # a child that inherited it still holds it
        os.close(inherited)
        again = folder.acquire_liveness_lock()
        assert again is not None
        os.close(again)
