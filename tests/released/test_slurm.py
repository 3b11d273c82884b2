"""An agent of today goes on from what one of the release left: every job is kept, and nothing is done twice."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from moorings.slurm.host import bind_protocol, plugin_heartbeat, wait_reason
from moorings.slurm.host.install_plan import (
    MANIFEST,
    FileAction,
    digest_of,
    is_template,
    parse_feature,
    parse_manifest,
    plan_uninstall,
)
from moorings.slurm.host.plugstack import plugin_lines
from moorings.slurm.host.vipu_conf import load_vipu_conf
from tests.released.code import ARCHIVE
from tests.released.slurm_states import SLURM, decide, put_files, read_run

STATES = {path.stem: json.loads(path.read_text()) for path in sorted(SLURM.glob("*.json"))}
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(SLURM.with_name("slurm_runs").glob("*.json"))}
SAID = json.loads(SLURM.with_name("slurm_said.json").read_text())
INSTALLED = json.loads(SLURM.with_name("slurm_installed.json").read_text())


def plain(value: object) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


# -- the agent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_an_agent_decides_the_same_of_a_recorded_cluster(state: str, tmp_path: Path) -> None:
    put_files(STATES[state], tmp_path)
    assert plain(decide(STATES[state], tmp_path)) == STATES[state]["did"]


def test_no_claim_of_a_live_job_is_given_back() -> None:
    given_back = {state: {act[1] for act in one["did"]["acts"] if "release" in act[0]} for state, one in STATES.items()}
    assert {state for state, owners in given_back.items() if owners} == {
        "ended-without-an-agent",
        "requeued-without-an-agent",
    }
    assert not any("claim a partition" == act[0] for act in STATES["busy"]["did"]["acts"])


def test_a_listing_that_lost_its_jobs_ends_nothing(tmp_path: Path) -> None:
    recording = {**STATES["busy"], "jobs": [""]}
    put_files(recording, tmp_path)
    done = {act[0] for act in decide(recording, tmp_path)["acts"]}
    assert not done & {"release", "requeue", "cancel"}


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", RUNS)
def test_an_engine_sees_the_same_of_a_recorded_run(state: str, tmp_path: Path) -> None:
    assert plain(read_run(RUNS[state], tmp_path)) == RUNS[state]["did"]


# -- nodes and agent ---------------------------------------------------------------------------------------------------


def test_what_nodes_and_agent_say_is_read_and_built_alike() -> None:
    kinds = set()
    for one in SAID:
        question, answer = one["question"]["payload"].encode(), one["answer"]["payload"].encode()
        if question.startswith(plugin_heartbeat.GREETING):
            told = plugin_heartbeat.parse_request(question)
            assert plugin_heartbeat.build_request(told) == question
            assert plugin_heartbeat.build_reply(told, noted=b"status=ok" in answer) == answer
            kinds.add("hello")
        elif question.startswith(wait_reason.GREETING):
            of = wait_reason.parse_request(question)
            assert wait_reason.build_request(of) == question
            assert wait_reason.build_reply(of, wait_reason.parse_reply(answer, of)) == answer
            kinds.add("why")
        else:
            asked = bind_protocol.parse_request(question)
            assert bind_protocol.build_request(asked) == question
            reply = bind_protocol.parse_reply(answer, asked)
            assert bind_protocol.build_reply(asked, reply) == answer
            kinds.add(str(reply.status))
            kinds |= {f"files {bool(reply.folder)}"} if reply.partition else set()
    assert kinds == {"hello", "why", "ok", "retry", "files True", "files False"}


# -- what is installed -------------------------------------------------------------------------------------------------


def test_what_the_release_installed_is_known_to_be_ours() -> None:
    texts = {Path(path): text for path, text in INSTALLED["files"].items()}
    library = Path(INSTALLED["library"])
    manifest = parse_manifest(texts[library / MANIFEST].encode(), "recorded")
    on_disk: dict[Path, str | None] = {path: digest_of(text.encode()) for path, text in texts.items()}
    with tarfile.open(ARCHIVE) as archive:
        script = archive.extractfile("deploy/slurm/moorings_submit.lua")
        assert script is not None
        digest = digest_of(script.read())
    for path, ours in manifest.digests.items():
        if path.suffix == ".so":
            on_disk[path] = ours[-1]
        elif path.name == "moorings_submit.lua":
            on_disk[path] = digest
    steps = plan_uninstall(on_disk, manifest)
    assert {step.path: step.action for step in steps if step.action is not FileAction.REMOVE} == {}
    assert {step.path for step in steps} == manifest.digests.keys()


def test_what_the_release_installed_is_read(tmp_path: Path) -> None:
    texts = {Path(path): text for path, text in INSTALLED["files"].items()}
    named = {path.name: text for path, text in texts.items()}
    assert not parse_feature(named["moorings_limits.lua"].encode())
    (plugstack,) = [path for path in texts if path.name == "plugstack.conf"]
    (line,) = plugin_lines({plugstack: texts[plugstack]})
    assert line.arguments["agent"] == "127.0.0.1:8091"
    conf = tmp_path / "vipu.conf"
    conf.touch(0o600)
    conf.write_text(named["vipu.conf"])
    assert load_vipu_conf(conf, 0).api_port == 8090
    assert is_template(conf.read_bytes())
