"""``moor defrag``: what is ordered, what is shown, and who is asked before."""

import io
import json
from functools import partial

import pytest

from moorings.cli.commands.defrag import limit_to_agreed
from moorings.terminal.console import Console
from moorings.wire.codec import encode
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest, MoveBody
from tests.unit.client.recorded import Reply

FOUND = DefragmentBody(
    pool="pod64",
    devices="32-63",
    cost_s=1920.0,
    moves=(
        MoveBody(claim="claim-1", name="night", project="guests", devices="32-47", to="16-31"),
        MoveBody(claim="claim-2", name="day", project="lab", devices="48-51", to="0-3"),
    ),
)
TABLE = """\
NAME    PROJECT   FROM    TO
night   guests    32-47   16-31
day     lab       48-51   0-3
devices 32-63 of pod64 become free: 2 claims move, 32 device-minutes are lost
"""


@pytest.fixture
def moor(moor, server):
    """Runs ``moor defrag`` at a controller that has an answer; (exit code, stdout, stderr)."""
    server.on("POST", "/v1/defragment", Reply(encode(FOUND)))
    return partial(moor, "defrag")


def test_a_dry_run_shows_who_would_move(server, moor):
    assert moor("--ipus", "32", "--pool", "pod64", "--dry-run") == (0, TABLE, "")
    assert [sent.json for sent in server.seen] == [{"size": 32, "pool": "pod64", "dryRun": True}]


def test_an_order_names_a_claim_and_what_may_be_lost(server, moor):
    told = "the claims were asked to move; follow them with 'moor get claims'\n"
    assert moor("--claim", "claim/big", "--cost-max", "3600", "-y") == (0, TABLE, told)
    assert [sent.json for sent in server.seen] == [{"claim": "big", "dryRun": False, "costMaxS": 3600.0}]


def test_nobody_is_moved_without_a_word(server, moor):
    code, out, err = moor("--ipus", "32")
    assert (code, out, server.seen) == (2, "", [])
    assert "say --yes (-y)" in err


@pytest.mark.parametrize("size", ["0", "-3", "three"])
def test_a_size_is_a_number_of_devices(server, moor, size):
    code, out, err = moor("--ipus", size, "--dry-run")
    assert (code, out, server.seen) == (2, "", [])
    assert "--ipus" in err


@pytest.mark.parametrize(("given", "bound"), [((), None), (("--cost-max", "9000"), 9000.0)])
def test_no_more_is_lost_than_was_shown_before_the_question(server, moor, monkeypatch, given, bound):
    monkeypatch.setattr(Console, "can_ask", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = moor("--ipus", "32", *given)
    assert (code, out) == (0, TABLE)
    assert err.startswith(f"{TABLE}Ask these claims to move?")
    shown, order = (sent.json for sent in server.seen)
    assert shown["dryRun"] is True
    assert (order["dryRun"], order["pool"]) == (False, "pod64")
    if bound is None:  # twenty devices work on while the question is read
        assert 1920.0 + 20 * 5 <= order["costMaxS"] < 1920.0 + 20 * 60
    else:
        assert order["costMaxS"] == bound


def test_who_thinks_for_long_is_not_refused_for_it():
    order = DefragmentRequest(size=32)
    assert limit_to_agreed(order, FOUND, 60.0).cost_max_s == 1920.0 + 20 * 65


@pytest.mark.parametrize("arguments", [(), ("--ipus", "8", "--claim", "big")])
def test_a_size_or_a_claim_is_needed(server, moor, arguments):
    code, _, err = moor(*arguments, "--dry-run")
    assert (code, server.seen) == (2, [])
    assert "name --ipus or --claim" in err


def test_json_is_what_the_api_gives(server, moor):
    document = json.loads(moor("--ipus", "32", "--dry-run", "-o", "json")[1])
    assert document == {"apiVersion": "moorings/v1", "kind": "Defragment", **encode(FOUND)}
