"""Jobs of wafer-scale appliances as they are shown; what is written of them; csctl's words; what an archive holds."""

from __future__ import annotations

import json
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moorings.cli.csctl import install, script, translate
from moorings.cli.output import OutputFormat, TableStyle, render_list, render_one
from moorings.cli.wafer import (
    JOBS,
    SYSTEMS,
    WaferJob,
    count_jobs,
    job_duration,
    job_from_list,
    job_from_run,
    job_name,
    parse_changes,
    parse_selectors,
    sort_jobs,
    summarize_pool,
    summary_text,
    system_names,
    systems_of,
    systems_text,
)
from moorings.cli.wafer_export import split_at_lines
from moorings.core.model.errors import MooringsError
from moorings.wire.shapes import ApplianceJobBody, ApplianceShape, DeviceBody, PartitionBody
from tests.cases import cases
from tests.unit.cli import samples
from tests.waiting import patient

WORKFLOW = "wflow-" + "a" * 22
AT = "2026-01-31T11:00:00.000000Z"
LATER = "2026-01-31T11:50:00.000000Z"
NAME = "wsjob-" + "q" * 22


def listed(name: str = NAME, state: str = "WAITING", **more: Any) -> ApplianceJobBody:
    usual: dict[str, Any] = {
        "id": name,
        "kind": "execute",
        "workflow": WORKFLOW,
        "subject": "ann",
        "state": state,
        "priority": -299,
        "systems": 2,
        "created_at": AT,
    }
    return ApplianceJobBody(**{**usual, **more})


def shown(name: str = NAME, state: str = "WAITING", **more: Any) -> WaferJob:
    return job_from_list(listed(name, state, **more))


RUNNING = listed(
    state="RUNNING",
    pool="cs",
    devices="0-1",
    labels={"team": "nlp", "exp": "3"},
    scheduled_at=AT,
    started_at="2026-01-31T11:58:30.000000Z",
)


def cells(job: WaferJob, form: str = "table") -> list[str]:
    header, row = render_list(JOBS, [job], OutputFormat(form), samples.NOW).splitlines()
    assert len(header.split()) == len(row.split())
    return row.split()


def test_the_columns_are_those_of_the_newest_release() -> None:
    header = render_list(JOBS, [shown()], OutputFormat("table"), samples.NOW).splitlines()[0]
    names = "SESSION NAME TYPE PRIORITY AGE DURATION PHASE SYSTEMS USER LABELS WORKFLOW DASHBOARD"
    assert header.split() == names.split()


def test_a_job_that_runs() -> None:
    assert cells(job_from_list(RUNNING)) == [
        *("default", NAME, "execute", "P2", "60m", "90s", "RUNNING", "cs:0-1"),
        *("ann", "team=nlp,exp=3", WORKFLOW, "-"),
    ]


@cases(
    ("state", "more", "phase", "duration"),
    [
        ("WAITING", {}, "QUEUED", "-"),
        ("WAITING", {"scheduled_at": AT}, "SCHEDULED", "-"),
        ("STARTING", {"scheduled_at": AT}, "SCHEDULED", "-"),
        ("STOPPING", {"scheduled_at": AT, "started_at": AT}, "RUNNING", "60m"),
        ("SUCCEEDED", {"started_at": AT, "ended_at": LATER}, "SUCCEEDED", "50m"),
        ("TIMED_OUT", {"started_at": AT, "ended_at": LATER}, "FAILED", "50m"),
        ("CANCELLED", {"ended_at": LATER}, "CANCELLED", "-"),
    ],
)
def test_phases_and_durations(state: str, more: dict[str, Any], phase: str, duration: str) -> None:
    job = shown(state=state, **more)
    assert (job.status.phase, job_duration(job.status, samples.NOW)) == (phase, duration)


def test_scripts_find_what_they_read() -> None:
    told = json.loads(render_list(JOBS, [job_from_list(RUNNING)], OutputFormat("json"), samples.NOW))
    assert told["kind"] == "WaferJobList"
    (item,) = told["items"]
    assert item == {
        "meta": {
            "name": NAME,
            "namespace": "default",
            "labels": {"team": "nlp", "exp": "3"},
            "createTime": AT,
        },
        "spec": {
            "type": "execute",
            "user": "ann",
            "workflow": WORKFLOW,
            "priority": "P2",
            "priorityValue": 299,
            "numSystems": 2,
        },
        "status": {
            "phase": "RUNNING",
            "systems": ["cs:0", "cs:1"],
            "scheduleTime": AT,
            "startTime": "2026-01-31T11:58:30.000000Z",
        },
    }
    one = yaml.safe_load(render_one(JOBS, job_from_list(RUNNING), OutputFormat("yaml"), samples.NOW))
    assert one == {"apiVersion": "moorings/v1", "kind": "WaferJob", **item}
    assert render_one(JOBS, job_from_list(RUNNING), OutputFormat("name"), samples.NOW) == f"job/{NAME}"


def test_a_waiting_job_says_why_and_at_which_place() -> None:
    run = samples.run(
        id=NAME,
        state="WAITING",
        reason=samples.FULL,
        position=2,
        priority=-150,
        started_at=None,
    )
    run = replace(run, job=replace(run.job, appliance=ApplianceShape(kind="compile", workflow=WORKFLOW)))
    job = job_from_run(run)
    assert (job.spec.type, job.spec.priority, job.spec.priority_value) == ("compile", "P1", 150)
    assert (job.status.position, job.status.reason) == (2, samples.FULL.message)
    assert "waits for 16 devices" in render_one(JOBS, job, OutputFormat("wide"), samples.NOW)
    assert "(position 2)" in render_one(JOBS, job, OutputFormat("wide"), samples.NOW)


def test_another_run_is_no_job_of_an_appliance() -> None:
    with pytest.raises(MooringsError) as refused:
        job_from_run(samples.run())
    assert refused.value.code == "run.unknown"
    assert "moor get runs" in refused.value.hint


def test_what_runs_comes_first_then_the_queue_in_its_order() -> None:
    jobs = [
        shown("ended", "SUCCEEDED"),
        shown("late", created_at=LATER),
        shown("early"),
        shown("first", priority=-199, created_at=LATER),
        shown("made", scheduled_at=AT),
        shown("runs", "RUNNING", priority=-399),
    ]
    assert [job.meta.name for job in sort_jobs(jobs)] == ["runs", "made", "first", "early", "late", "ended"]


@pytest.mark.parametrize(
    ("devices", "names", "text"),
    [("", (), ""), ("3", ("cs:3",), "cs:3"), ("0-2,7", ("cs:0", "cs:1", "cs:2", "cs:7"), "cs:0-2,7")],
)
def test_systems_are_named_as_devices_are(devices: str, names: tuple[str, ...], text: str) -> None:
    assert system_names("cs", devices) == names
    assert systems_text(names) == text


@pytest.mark.parametrize("text", [NAME, f"job/{NAME}", f"default/{NAME}", f"{NAME}-csx16", f"ns/{NAME}-csx1"])
def test_a_job_is_named_as_slurm_and_others_name_it(text: str) -> None:
    assert job_name(text) == NAME


# -- labels ------------------------------------------------------------------------------------------------------------


def test_selectors_may_be_joined() -> None:
    assert parse_selectors(["a=b,c=d", "e="]) == (("a", "b"), ("c", "d"), ("e", ""))
    assert parse_selectors([]) == ()


def test_changes_of_labels() -> None:
    changes = parse_changes(["team=nlp", "stage-", "a-b=c-"[:-1], "x="])
    assert (changes.labels, changes.remove) == ({"team": "nlp", "a-b": "c", "x": ""}, ("stage",))


@cases("texts", [["team"], ["-"], ["=x"], ["a b=c"], ["a=b c"], ["a=1", "a-"], ["a=1", "a=2"], [""]])
def test_what_changes_no_label_is_refused(texts: list[str]) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_changes(texts)
    assert refused.value.code == "label.invalid"
    assert refused.value.hint


@pytest.mark.parametrize("text", ["team", "a=b,", ",", "a b=c", ""])
def test_what_finds_no_label_is_refused(text: str) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_selectors([text])
    assert refused.value.code == "label.invalid"


# -- the cluster -------------------------------------------------------------------------------------------------------

POOL = samples.pool(
    "cs",
    accelerator="csx",
    devices=4,
    free=1,
    resources={"memory": 128 << 30},
    resources_used={"memory": 99 << 30},
)


def device(index: int, state: str = "IN_SERVICE", **more: Any) -> DeviceBody:
    return DeviceBody(
        id=f"cs:{index}",
        pool="cs",
        accelerator="csx",
        index=index,
        domain=0,
        state=state,
        **more,
    )


def held(devices: str, owner: str, state: str = "ACTIVE") -> PartitionBody:
    made: PartitionBody = samples.partition(devices=devices, owner=owner, state=state, since=AT)
    return made


def test_who_holds_which_system() -> None:
    jobs = [job_from_list(RUNNING)]
    devices = [device(0), device(1), device(2), device(3, "DRAINED", reason="fan", since=LATER)]
    found = systems_of(POOL, devices, [held("0-1", f"appliance/{NAME}"), held("2", "user/bob", "REMOVING")], jobs)
    assert [(one.status.job, one.status.user, one.status.since) for one in found] == [
        (NAME, "ann", AT),
        (NAME, "ann", AT),
        ("user/bob", "bob", AT),
        (None, None, LATER),
    ]
    assert [one.has_error for one in found] == [False, False, False, True]
    assert [one.status.notes for one in found] == ["", "", "REMOVING", "fan"]
    header = render_list(SYSTEMS, found, OutputFormat("table"), samples.NOW).splitlines()[0]
    assert header.split() == ["NAME", "TYPE", "STATE", "DEVICE", "JOB", "USER", "SINCE", "NOTES"]


def test_systems_of_a_pool_that_cannot_be_reached_are_not_well() -> None:
    (found,) = systems_of(replace(POOL, reachable=False, problem="no route"), [device(0)], [], [])
    assert found.has_error
    assert found.status.notes == "no route"


def test_memory_and_queue() -> None:
    jobs = [shown(kind="compile"), shown(), shown(state="RUNNING"), shown(scheduled_at=AT), shown(state="FAILED")]
    lengths = count_jobs(jobs)
    assert (lengths.queued, lengths.running) == ({"compile": 1, "execute": 1}, {"compile": 0, "execute": 2})
    text = summary_text([summarize_pool(POOL)], lengths, TableStyle())
    assert [line.split() for line in text.splitlines()] == [
        ["POOL", "SYSTEMS_FREE", "MEMORY_FREE", "STATE", "NOTES"],
        ["cs", "1", "of", "4", "29", "of", "128", "GiB", "UP", "-"],
        [],
        ["JOBS", "QUEUED", "RUNNING"],
        ["compile", "1", "0"],
        ["execute", "1", "2"],
    ]
    assert summarize_pool(samples.pool()).memory_bytes is None


# -- csctl -------------------------------------------------------------------------------------------------------------


@cases(
    ("words", "told"),
    [
        ("get jobs -a", "get jobs -a"),
        ("-n nlp get jobs", "get jobs --session nlp"),
        ("get jobs --namespace=nlp -ojson", "get jobs -ojson --session nlp"),
        ("cancel job x -nnlp", "cancel job x --session nlp"),
        ("job set-priority x p2 -n job-operator", "job set-priority x p2 --session default"),
        ("--csconfig /a -d1 get job x -o=yaml", "get job x -o yaml"),
        ("-d 2 --debug=1 get cluster", "get cluster"),
        ("-n a get jobs -n b", "get jobs --session b"),
        ("label job x a=b -- -n", "label job x a=b -- -n"),
    ],
)
def test_the_vendors_flags(words: str, told: str) -> None:
    assert translate(words.split())[0] == told.split()


def test_what_is_passed_over_is_told() -> None:
    assert "--csconfig" in translate(["--csconfig=/a", "get", "jobs"])[1][0]
    with pytest.raises(MooringsError) as refused:
        translate(["get", "jobs", "-n"])
    assert refused.value.code == "name.invalid"


def test_csctl_is_installed_and_runs(tmp_path: Path) -> None:
    folder = tmp_path / "my bin"
    path = install(folder)
    assert path == install(folder), "a second time"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run(
        [path, "--csconfig", "/x", "get", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=patient(60)
    )
    assert done.returncode == 0, done.stderr
    assert "cluster" in done.stdout
    assert done.stderr.startswith("note: --csconfig is passed over")
    refused = subprocess.run([path, "get", "jobs", "-n"], capture_output=True, text=True, timeout=patient(60))
    assert refused.returncode == 2
    assert "-n needs a value (name.invalid)" in refused.stderr
    assert [item.name for item in folder.iterdir()] == ["csctl"]


def test_a_foreign_csctl_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "csctl").write_text("#!/bin/sh\necho the vendor's\n")
    with pytest.raises(MooringsError) as refused:
        install(tmp_path)
    assert refused.value.code == "config.invalid"
    assert "echo the vendor's" in (tmp_path / "csctl").read_text()
    (tmp_path / "csctl").unlink()
    (tmp_path / "csctl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MooringsError):
        install(tmp_path)
    with pytest.raises(MooringsError):
        install(tmp_path / "csctl" / "x")


def test_a_python_with_a_blank_in_its_path() -> None:
    assert "exec '/opt/my env/bin/python' -P -m moorings.cli.csctl" in script("/opt/my env/bin/python")


# -- log-export --------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab\n-", max_size=9)), st.integers(1, 12))
def test_pieces_are_the_same_text(chunks: list[str], most: int) -> None:
    pieces = list(split_at_lines(chunks, most))
    assert "".join(pieces) == "".join(chunks)


def test_pieces_end_with_a_line_and_not_in_a_key() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAAAA\n-----END RSA PRIVATE KEY-----\n"
    text = "begun\n" * 3 + key + "after\n" * 3
    pieces = list(split_at_lines(list(text), 24))
    assert "".join(pieces) == text
    assert [piece for piece in pieces if "MIIE" in piece] == [piece for piece in pieces if "BEGIN" in piece]
    assert all("-----END" in piece for piece in pieces if "BEGIN" in piece)
    assert all(piece.endswith("\n") for piece in pieces if piece)
