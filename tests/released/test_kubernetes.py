"""An operator of today goes on from what one of the release left on a cluster: no Pod is deleted or made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.kube.election import parse_lease
from moorings.kubernetes.kube.serving_certificate import parse_authorities
from moorings.kubernetes.proxy.tracker import build_data
from moorings.kubernetes.proxy_api.shapes import ChangeBody, PartitionBody, PartitionRequest, PartitionsBody
from moorings.wire.codec import decode, encode
from tests.released.kube_states import KUBE, decide, read_run

STATES = {path.stem: json.loads(path.read_text()) for path in sorted(KUBE.glob("*.json"))}
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(KUBE.with_name("kubernetes_runs").glob("*.json"))}
SAID = json.loads(KUBE.with_name("kubernetes_said.json").read_text())
BESIDE = json.loads(KUBE.with_name("kubernetes_beside.json").read_text())


@pytest.mark.parametrize("state", STATES)
def test_an_operator_decides_the_same_of_a_recorded_job(state: str) -> None:
    recording = STATES[state]
    assert json.loads(json.dumps(decide(recording))) == recording["did"]


@pytest.mark.parametrize("state", [state for state in STATES if state.startswith(("running-", "starting", "scaled"))])
def test_nothing_is_done_about_a_job_that_is_well(state: str) -> None:
    assert STATES[state]["did"]["acts"] == []


# A new operator does not know that Pods were refused: the first try tells it.
@pytest.mark.parametrize("state", [state for state in STATES if state != "refused-pods"])
def test_no_status_is_written_anew_for_a_recorded_job(state: str) -> None:
    recording = STATES[state]
    saved, built = recording["job"]["status"], recording["did"]["status"]

    def meant(status: dict[str, Any]) -> dict[str, Any]:
        """All but the words, of which some have the time in them."""
        kept = {name: value for name, value in status.items() if name not in ("lastMessage", "conditions")}
        return {**kept, "told": [[one[name] for name in ("type", "status", "reason")] for one in status["conditions"]]}

    assert meant(built) == meant(saved)


def shapes(one: dict[str, Any]) -> tuple[type | None, type | None]:
    """What a request and its answer are of."""
    if one["path"] == "/v1/partitions":
        return (PartitionRequest, PartitionBody) if one["method"] == "POST" else (None, PartitionsBody)
    return None, PartitionBody if one["said"] and one["path"].startswith("/v1/") else None


def test_what_operator_and_proxy_say_is_read_and_built_alike() -> None:
    kinds = set()
    for one in SAID:
        if one["path"].endswith("/watch"):
            changes = [line for line in one["said"].splitlines() if line.startswith("data: ")]
            for text in (line.removeprefix("data: ") for line in changes):
                assert encode(decode(ChangeBody, json.loads(text))) == json.loads(text)
            kinds |= {"watch"} if changes else set()
            continue
        request, answer = shapes(one)
        if one["status"] is None or one["status"] >= 400:
            continue
        for kind, text in ((request, one["asked"]), (answer, one["said"])):
            if kind is not None:
                assert encode(decode(kind, json.loads(text))) == json.loads(text), one["path"]
                kinds.add(kind.__name__)
    assert len(kinds) == 4, kinds


def test_the_tracker_says_the_same_of_recorded_partitions() -> None:
    (tracker,) = [one for one in BESIDE["configmaps"] if one["metadata"]["name"] == "ipu-partitions-tracker"]
    bodies = [decode(PartitionBody, body) for one in STATES.values() for body in one["partitions"]]
    told = sorted(build_data(bodies)["partitions"].splitlines())
    assert told == sorted(tracker["data"]["partitions"].splitlines())
    assert build_data([])["note"] == tracker["data"]["note"]


def test_leases_and_authorities_are_read() -> None:
    assert BESIDE["leases"] != []
    for lease in BESIDE["leases"]:
        record = parse_lease(lease)
        assert record.holder == lease["spec"]["holderIdentity"]
        assert record.lease_s == lease["spec"]["leaseDurationSeconds"]
    (authority,) = [one for one in BESIDE["configmaps"] if one["metadata"]["name"].endswith("-ca")]
    assert parse_authorities(authority).startswith("-----BEGIN CERTIFICATE-----")
    assert parse_authorities(authority) == STATES["running-training"]["proxy_ca"]


def test_what_stands_beside_a_job_is_what_would_be_made_today() -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in STATES["running-training"]["did"]["objects"]}
    found = [one for kind, ones in BESIDE.items() if "/" in kind or kind == "rolebindings" for one in ones]
    ours = [one for one in found if one["metadata"]["name"].startswith("train-")]
    assert len(ours) >= 3
    for one in ours:
        kind = {"data": "ConfigMap", "rules": "Role", "roleRef": "RoleBinding"}
        (named,) = [name for field, name in kind.items() if field in one]
        built = made[named, one["metadata"]["name"]]
        for field in ("data", "rules", "subjects", "roleRef"):
            assert one.get(field) == built.get(field)
        assert one["metadata"]["labels"] == built["metadata"]["labels"]
        assert one["metadata"]["ownerReferences"] == built["metadata"]["ownerReferences"]


@pytest.mark.parametrize("state", RUNS)
def test_an_engine_reads_the_same_of_a_recorded_run(state: str, tmp_path: Path) -> None:
    recording = RUNS[state]
    assert json.loads(json.dumps(read_run(recording, tmp_path))) == recording["did"]
    assert len(recording["jobs"]) == (state != "cancelled-ended")  # it has none any more
    for job in map(parse_ipujob, recording["jobs"]):
        assert [job.namespace, job.name] == [recording["did"]["asked"][field] for field in ("namespace", "name")]
