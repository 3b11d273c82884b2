"""``moor whatif``: what is sent, the tables, and which file is to blame."""

import json
from dataclasses import replace

import pytest

from moorings.cli.main import main
from moorings.wire.codec import encode
from moorings.wire.forecasts import WhatIfAskedBody, WhatIfBody, WhatIfClaimBody, WhatIfSideBody, WhatIfWaitBody
from tests.unit.client.recorded import Reply

AT = "2001-01-01T00:00:00Z"
ANN = WhatIfClaimBody(claim="claim-1", name="ann-1", project="lab", size=16)
BOB = WhatIfClaimBody(claim="claim-2", name="bob-1", project="guests", size=8)
FOUND = WhatIfBody(
    at=AT,
    claims=(
        replace(ANN, now_at="2001-01-01T02:00:00Z", then_at=AT),
        replace(BOB, now_at="2001-01-01T00:10:00Z"),
    ),
    waits=(WhatIfWaitBody(size=16, claims=1, now_s=7200.0, then_s=0.0),),
    now=WhatIfSideBody(yields=0, moves=0, utilisation=0.5),
    then=WhatIfSideBody(
        yields=1,
        moves=2,
        utilisation=0.875,
        asked=(WhatIfAskedBody(claim="claim-3", name="night", project="guests", yields=1, moves=2),),
    ),
    window_s=7200.0,
    whole=True,
)
TABLES = """\
NAME    PROJECT   SIZE   NOW      THEN      CHANGE
ann-1   lab       16     in 2h    at once   2h sooner
bob-1   guests    8      in 10m   unknown   starts no more

SIZE   CLAIMS   MEAN-NOW   MEAN-THEN
16     1        2h         0s

MEASURE                    NOW     THEN
devices in use within 2h   50.0%   87.5%
asked to yield             0       1
asked to move              0       2

ASKED   PROJECT   YIELDS-NOW   YIELDS-THEN   MOVES-NOW   MOVES-THEN
night   guests    0            1             0           2
"""


@pytest.fixture
def moor(capsys, tmp_path, monkeypatch):
    """Runs ``moor whatif`` in a folder with a policy; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.toml").write_text('defragment = "on"\n')

    def call(*arguments):
        code = main(["whatif", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_both_policies_stand_side_by_side(server, moor):
    server.on("POST", "/v1/whatif", Reply(encode(FOUND)))
    assert moor("--policy", "other.toml") == (0, TABLES, "")
    assert server.seen[0].json == {"policy": 'defragment = "on"\n'}


def test_json_is_what_the_api_gives(server, moor):
    server.on("POST", "/v1/whatif", Reply(encode(FOUND)))
    document = json.loads(moor("--policy", "other.toml", "-o", "json")[1])
    assert document == {"apiVersion": "moorings/v1", "kind": "WhatIf", **encode(FOUND)}


def test_what_was_not_played_to_the_end_and_what_is_not_shown_is_told(server, moor):
    many = WhatIfBody(
        at=AT,
        claims=(ANN,) * 60,
        waits=(),
        now=FOUND.now,
        then=FOUND.now,
        window_s=0.0,
        whole=False,
    )
    server.on("POST", "/v1/whatif", Reply(encode(many)))
    _, out, err = moor("--policy", "other.toml")
    assert out.count("ann-1") == 50
    assert out.splitlines()[1].split() == ["ann-1", "lab", "16", "unknown", "unknown", "unknown"]
    assert err.splitlines() == [
        "10 more wait; '-o json' shows them",
        "the queue is too long to be played to its end: what is unknown may still start",
    ]


def test_a_bad_policy_is_named_with_its_line_before_anybody_is_asked(server, moor, tmp_path):
    (tmp_path / "bad.toml").write_text("\nreserve = 3\n")
    code, out, err = moor("--policy", "bad.toml")
    assert (code, out, server.seen) == (2, "", [])
    assert err.startswith("error: bad.toml:2: reserve must be true or false")
    assert moor("--policy", "none.toml")[2].startswith("error: none.toml cannot be read")
