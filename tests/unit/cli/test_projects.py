"""``moor`` and projects: what is asked of the controller, and what a guarantee may look like."""

from dataclasses import replace

import pytest

from moorings.cli.guarantees import (
    blocks_text,
    format_guarantees,
    format_user_limits,
    parse_guarantees,
    parse_limit,
    parse_user_limits,
)
from moorings.core.model.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.shapes import ShareShape
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, body, listing, problem

LAB, VISION, OPEN = samples.PROJECTS


def topology_of(pool):
    return {"gpu": "any-subset", "pod64": "power-of-two"}[pool]


# -- guarantees


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], {}),
        (["pod64=16x2,4x1"], {"pod64": {"16": 2, "4": 1}}),
        (["gpu=24", "pod64=1x3"], {"gpu": {"1": 24}, "pod64": {"1": 3}}),
        (["pod64=none"], {"pod64": {}}),
    ],
)
def test_guarantees_are_blocks_of_a_pool(texts, found):
    assert parse_guarantees(texts, topology_of) == found


@cases(
    ("texts", "hint"),
    [
        (["pod64"], "pod64=16x2,4x1"),
        (["=16x2"], "pod64=16x2,4x1"),
        (["pod64="], "16x2,4x1"),
        (["pod64=16x0"], "16x2,4x1"),
        (["pod64=x2"], "16x2,4x1"),
        (["pod64=16x2;4x1"], "16x2,4x1"),
        (["pod64=16x2,"], "16x2,4x1"),
        (["pod64=16x2,16x1"], "add the two counts"),
        (["pod64=16x2", "pod64=4x1"], "once"),
        (["pod64=16"], "pod64=16x1"),
    ],
)
def test_a_guarantee_that_cannot_be_read_is_refused_with_one_that_can(texts, hint):
    with pytest.raises(MooringsError) as caught:
        parse_guarantees(texts, topology_of)
    assert caught.value.code == "project.invalid"
    assert hint in caught.value.hint


def test_what_is_shown_can_be_given_back():
    assert format_guarantees(LAB.shares) == "gpu=1x24 pod64=16x2,4x1"
    shown = format_guarantees(LAB.shares).split()
    assert parse_guarantees(shown, topology_of) == {share.pool: share.blocks for share in LAB.shares}
    assert blocks_text({}) == ""


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("60", 60), ("none", None)])
def test_limits(text, limit):
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5", "10000000000000"])
def test_what_is_no_limit(text):
    with pytest.raises(MooringsError, match="is no limit of devices"):
        parse_limit(text)


@cases(
    ("texts", "after"),
    [
        ([], {"ann": 1, "bob": 2}),
        (["ann=8"], {"ann": 8, "bob": 2}),
        (["eve=0", "bob=none"], {"ann": 1, "eve": 0}),
        (["none"], {}),
        (["eve=3", "none"], {"eve": 3}),
        (["none=3"], {"ann": 1, "bob": 2, "none": 3}),
        (["a=b=3"], {"ann": 1, "bob": 2, "a=b": 3}),
    ],
)
def test_a_user_limit_changes_that_of_its_own_subject(texts, after):
    assert parse_user_limits(texts, {"ann": 1, "bob": 2}) == after


@cases("texts", [["ann"], ["=3"], ["ann="], ["ann=-1"], ["ann=many"], ["ann=1", "ann=2"], ["ann=1", "ann=none"]])
def test_what_is_no_user_limit(texts):
    with pytest.raises(MooringsError) as caught:
        parse_user_limits(texts, {})
    assert caught.value.code == "project.invalid"
    assert caught.value.hint


def test_user_limits_that_are_shown_can_be_given_back():
    limits = {"ann": 8, "bob": 0}
    assert parse_user_limits(format_user_limits(limits).split(","), {}) == limits


# -- commands


def test_a_project_is_made_with_what_is_given(server, moor):
    server.on("PUT", "/v1/projects/lab%2Fvision", body(VISION))
    words = ("--guarantee", "pod64=16x1", "--weight", "0.5", "--user-devices-max", "8", "--priority-max", "30")
    waiting = ("--waiting-max", "500", "--waiting-bytes-max", "64M")
    code, out, err = moor("create", "project", "lab/vision", *words, *waiting, "--alias", "slurm/alpha/vision")
    assert (code, out, err) == (0, "project/lab/vision created\n", "")
    assert server.seen[0].json == {
        "shares": [{"pool": "pod64", "blocks": {"16": 1}}],
        "weight": 0.5,
        "userDevicesMax": 8,
        "priorityMax": 30,
        "waitingMax": 500,
        "waitingBytesMax": 1 << 26,
        "members": [],
        "aliases": ["slurm/alpha/vision"],
    }


def test_a_bare_number_asks_how_the_pool_is_wired(server, moor):
    wired = replace(samples.WIRED, type="any-subset")
    server.on("GET", "/v1/pools/gpu", body(samples.pool("gpu", topology=wired)))
    server.on("GET", "/v1/pools/pod64", body(samples.pool("pod64")))
    server.on("PUT", "/v1/projects/lab", body(LAB))
    assert moor("create", "project", "lab", "--guarantee", "gpu=24")[0] == 0
    assert server.seen[-1].json["shares"] == [{"pool": "gpu", "blocks": {"1": 24}}]
    code, _, err = moor("create", "project", "lab", "--guarantee", "pod64=16")
    assert code == 2
    assert "pod64=16x1" in err
    assert len(server.asked("PUT", "/v1/projects/lab")) == 1


def test_only_what_is_given_changes_and_the_version_goes_along(server, moor):
    server.on("GET", "/v1/projects/lab", body(LAB))
    server.on("PUT", "/v1/projects/lab", body(LAB))
    assert moor("set", "project", "lab", "--weight", "3") == (0, "project/lab changed\n", "")
    told = {
        "shares": encode(LAB.shares),
        "weight": 3.0,
        "devicesMax": 60,
        "members": ["ann", "bert"],
        "aliases": [],
        "version": 3,
    }
    assert server.seen[-1].json == told
    moor("set", "project/lab", "--guarantee", "pod64=4x1", "--devices-max", "none", "--member", "none")
    assert server.seen[-1].json == {
        "shares": [{"pool": "gpu", "blocks": {"1": 24}}, {"pool": "pod64", "blocks": {"4": 1}}],
        "weight": 2.0,
        "members": [],
        "aliases": [],
        "version": 3,
    }
    moor("set", "project", "lab", "--user-limit", "eve=8")
    assert server.seen[-1].json["userLimits"] == {"eve": 8}
    moor("set", "project", "lab", "--guarantee", "gpu=none", "--member", "carol")
    assert server.seen[-1].json["shares"] == [encode(ShareShape(pool="pod64", blocks={"4": 1, "16": 2}))]
    assert server.seen[-1].json["members"] == ["carol"]


def test_user_limits_stay_until_they_are_changed(server, moor):
    server.on("GET", "/v1/projects/lab%2Fvision", body(VISION))
    server.on("PUT", "/v1/projects/lab%2Fvision", body(VISION))
    for words, limits in (
        (["--weight", "3"], {"ann": 12, "bob": 0}),
        (["--user-limit", "bob=4"], {"ann": 12, "bob": 4}),
        (["--user-limit", "bob=none"], {"ann": 12}),
        (["--user-limit", "none"], None),
    ):
        assert moor("set", "project", "lab/vision", *words)[0] == 0
        assert server.seen[-1].json.get("userLimits") == limits


def test_who_changed_it_meanwhile_is_not_overwritten(server, moor):
    server.on("GET", "/v1/projects/lab", body(LAB))
    server.on("PUT", "/v1/projects/lab", problem("project.changed", "it has version 4", 409))
    assert moor("set", "project", "lab", "--weight", "3")[0] == 5


def test_nonsense_is_refused_before_any_network(server, moor):
    for words in (
        ("create", "project", "lab//vision"),
        ("create", "project", "lab", "--guarantee", "pod64"),
        ("create", "project", "lab", "--devices-max", "many"),
        ("create", "project", "lab", "--user-limit", "ann"),
        ("create", "project", "claim/lab"),
        ("set", "project", "lab"),
        ("delete", "project", "lab"),
    ):
        assert moor(*words)[0] == 2, words
    assert server.seen == []


def test_projects_are_deleted_by_their_paths(server, moor):
    server.on("DELETE", "/v1/projects/lab%2Fvision", Reply(status=204))
    assert moor("delete", "project", "lab/vision", "-y") == (0, "project/lab/vision deleted\n", "")
    assert moor("delete", "project/lab/vision", "-y") == (0, "project/lab/vision deleted\n", "")


def test_a_description_of_a_project_tells_what_it_has(server, moor):
    server.on("GET", "/v1/projects/lab", body(LAB))
    server.on("GET", "/v1/quotas", listing("Quota", [encode(quota) for quota in samples.QUOTAS]))
    code, out, _ = moor("describe", "project", "lab")
    assert code == 0
    assert "Members:      ann, bert" in out
    assert "1234.6" in out
    assert "open" not in out


def test_quotas_are_called_as_their_projects_are(server, moor):
    server.on("GET", "/v1/quotas", listing("Quota", [encode(quota) for quota in samples.QUOTAS]))
    server.on("GET", "/v1/projects/no", problem("project.unknown", "there is no project 'no'", 404))
    assert moor("get", "quota", "lab", "-o", "name") == (0, "quota/lab:pod64\n", "")
    assert moor("get", "quotas", "--pool", "pod64", "-o", "name")[1] == "quota/lab:pod64\n"
    assert moor("get", "quota", "no")[0] == 3
