"""A name that two have: asked about at a terminal, an error that lists them elsewhere, and one's own first."""

from contextlib import contextmanager

import pytest

from moorings.terminal.console import Console
from moorings.wire.codec import encode
from moorings.wire.shapes import CallerBody, ExplanationBody
from tests.unit.cli import samples
from tests.unit.client.recorded import body, listing, problem

OLD, NEW, OTHERS = "run-oldoldoldold", "run-newnewnewnew", "run-bobsbobsbobs"


def waiting_run(ident, subject="ann"):
    claim = samples.claim(f"claim-of-{ident}", owner=f"local/{ident}", state="PENDING", subject=subject)
    return claim, samples.run(ident, "digits", state="WAITING", subject=subject, claim=claim.id)


@pytest.fixture
def named(server):
    """Serves runs called digits; ``ann`` asks."""

    def serve(*runs):
        pairs = [waiting_run(*run) for run in runs]
        server.on("GET", "/v1/claims", listing("Claim", [encode(claim) for claim, _ in pairs]))
        server.on("GET", "/v1/runs", listing("Run", [encode(run) for _, run in pairs]))
        server.on("GET", "/v1/whoami", body(CallerBody(subject="ann", role="user", owner_prefix="user/ann")))
        for claim, run in pairs:
            told = ExplanationBody(claim=claim.id, state="PENDING", summary=f"{run.id} waits")
            server.on("GET", f"/v1/runs/{run.id}", body(run))
            server.on("GET", f"/v1/claims/{claim.id}/explain", body(told))
            server.on("POST", f"/v1/runs/{run.id}/cancel", body(samples.run(run.id, state="CANCELLED")))
        server.on("GET", "/v1/runs/digits", problem("run.unknown", "there is no run digits", 404))
        server.on("GET", "/v1/claims/digits", problem("claim.unknown", "there is no claim digits", 404))
        return server

    return serve


@contextmanager
def answers(monkeypatch, text):
    monkeypatch.setattr(Console, "can_ask", property(lambda _self: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt: text)
    yield


def test_a_name_without_a_noun_is_explained(named, moor):
    server = named((OLD,))
    assert moor("explain", "digits")[:2] == (0, f"claim claim-claim-of-{OLD} is PENDING: {OLD} waits\n")
    assert moor("explain", "--when", "digits")[0] == 0
    assert "when=true" in server.seen[-1].target


def test_a_claim_without_a_run_is_explained_by_its_name(named, moor):
    server = named()
    server.on("GET", "/v1/claims", listing("Claim", [encode(samples.claim("byhand", state="PENDING"))]))
    told = ExplanationBody(claim="claim-byhand", state="PENDING", summary="waits")
    server.on("GET", "/v1/claims/claim-byhand/explain", body(told))
    assert moor("explain", "byhand")[:2] == (0, "claim claim-byhand is PENDING: waits\n")


def test_what_nothing_is_called_is_an_error_with_both_lists(named, moor):
    named()
    code, _, err = moor("explain", "digits")
    assert code == 3
    assert "there is no run or claim 'digits'" in err


@pytest.mark.parametrize("command", ["explain", "cancel"])
def test_two_of_one_name_are_listed_without_a_terminal(named, moor, command):
    server = named((OLD,), (NEW,))
    code, out, err = moor(command, "digits")
    assert (code, out) == (2, "")
    assert f"{OLD}: ann, WAITING, 16 ipu" in err
    assert f"hint: name one by its id: moor {command} {NEW}" in err
    assert not [seen for seen in server.seen if seen.method == "POST"]


def test_two_of_one_name_are_asked_about_at_a_terminal(named, moor, monkeypatch):
    named((OLD,), (NEW,))
    with answers(monkeypatch, "2"):
        code, out, err = moor("cancel", "digits")
    assert (code, out) == (0, f"run/{OLD} cancelled\n")
    assert f"  2  {OLD}: ann, WAITING" in err


def test_ones_own_run_comes_before_anothers_of_that_name(named, moor):
    named((OLD,), (OTHERS, "bob"))
    assert moor("cancel", "digits")[:2] == (0, f"run/{OLD} cancelled\n")


def test_an_id_is_not_looked_up(named, moor):
    server = named((OLD,), (NEW,))
    assert moor("cancel", NEW)[:2] == (0, f"run/{NEW} cancelled\n")
    assert [seen.path for seen in server.seen] == [f"/v1/runs/{NEW}/cancel"]


# -- many at once ----------------------------------------------------------------------------------------------------


def test_all_of_ones_runs_are_cancelled(named, moor):
    server = named((OLD,), (NEW,))
    code, out, _ = moor("cancel", "--all", "--yes")
    assert (code, out) == (0, f"run/{OLD} cancelled\nrun/{NEW} cancelled\n")
    (asked,) = server.asked("GET", "/v1/runs")
    assert "subject=ann" in asked.target


def test_all_runs_of_a_user_are_cancelled_only_if_confirmed(named, moor, monkeypatch):
    server = named((OLD, "bob"), (NEW, "bob"))
    code, _, err = moor("cancel", "--user", "bob")
    assert code == 2
    assert "Cancel 2 runs of bob: digits (WAITING), digits (WAITING)?" in err
    with answers(monkeypatch, "n"):
        assert moor("cancel", "--user", "bob")[0] == 130
    assert not [seen for seen in server.seen if seen.method == "POST"]
    with answers(monkeypatch, "y"):
        assert moor("cancel", "--user", "bob")[0] == 0


def test_no_runs_are_no_question(named, moor):
    named()
    assert moor("cancel", "--all") == (0, "", "No runs of ann run or wait.\n")


@pytest.mark.parametrize("words", [(), ("digits", "--all"), ("--all", "--user", "bob")])
def test_names_all_and_user_exclude_each_other(named, moor, words):
    assert moor("cancel", *words)[0] == 2
