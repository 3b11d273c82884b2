"""The policy file: what an admin may write, and what an admin is told who wrote something else."""

from __future__ import annotations

import inspect
import json
import textwrap
from dataclasses import replace

import pytest

from moorings.core.model import policy as policy_module
from moorings.core.model.errors import MooringsError
from moorings.core.model.policy import DEFAULT_POLICY, DefragmentMode, Policy, parse_policy
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import DAY_S
from tests.cases import cases


def complaint(text: str) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        parse_policy(text, source="/etc/policy.toml")
    assert caught.value.code == "policy.invalid"
    return caught.value


def test_an_empty_file_is_the_default():
    assert parse_policy("") == DEFAULT_POLICY
    before = replace(DEFAULT_POLICY, ageing_s=None, patience_s=0.0, waiting_max=0, waiting_bytes_max=0)
    assert before == Policy(), "what logs meant before these"
    assert from_plain(Policy, {"reserve": True}).ageing_s is None


def test_the_example_is_the_default():
    documented = inspect.getdoc(policy_module)
    assert documented is not None
    example = textwrap.dedent(documented.partition("::\n")[2].partition("\nLengths of time")[0])
    assert len(example.strip().splitlines()) == 17
    assert parse_policy(example) == DEFAULT_POLICY


def test_everything_can_be_said():
    text = """
        reserve = false
        backfill = false
        making = "1m"
        fair_share = false
        half_life = "1d"
        min_run = 0
        yield = "90"
        preempt = false
        defragment = "suggest"
        move = 1.5
        moves_per_hour = 0
        patience = "90m"
        user_priority_max = -5
        agent_priority_max = 7
        waiting_max = 8
        waiting_bytes_max = 9
        ageing = "12h"
    """
    assert parse_policy(text) == Policy(
        reserve=False,
        backfill=False,
        making_s=60.0,
        fair_share=False,
        half_life_s=DAY_S,
        min_run_s=0.0,
        yield_s=90.0,
        preempt=False,
        defragment=DefragmentMode.SUGGEST,
        move_s=1.5,
        moves_per_hour=0,
        patience_s=5400.0,
        user_priority_max=-5,
        agent_priority_max=7,
        waiting_max=8,
        waiting_bytes_max=9,
        ageing_s=43_200.0,
    )


@cases(
    ("text", "told"),
    [
        ("half_life = 59", "half_life is out of range"),
        ('half_life = "3661d"', "half_life is out of range"),
        ('min_run = "8d"', "min_run is out of range"),
        ("min_run = -1", "min_run is out of range"),
        ("yield = 0.5", "yield is out of range"),
        ('yield = "25h"', "yield is out of range"),
        ("yield = nan", "yield is out of range"),
        ("yield = inf", "yield is out of range"),
        ("move = -0.1", "move is out of range"),
        ('move = "2d"', "move is out of range"),
        (f"move = 1{'0' * 400}", "move is out of range"),
        ('move = "soon"', "'soon' is not a duration"),
        ("move = true", "move must be a length of time"),
        ("move = [1]", "move must be a length of time"),
        ("moves_per_hour = -1", "moves_per_hour is out of range"),
        ("moves_per_hour = 100001", "moves_per_hour is out of range"),
        ("moves_per_hour = 1.5", "moves_per_hour must be a whole number"),
        ("waiting_max = -1", "waiting_max is out of range"),
        ("waiting_max = 1.5", "waiting_max must be a whole number"),
        ("waiting_bytes_max = -1", "waiting_bytes_max is out of range"),
        ('waiting_bytes_max = "2T"', "waiting_bytes_max is out of range"),
        ('waiting_bytes_max = "much"', "'much' is not a size"),
        ("waiting_bytes_max = true", "waiting_bytes_max must be a size"),
        ("patience = -1", "patience is out of range"),
        ('patience = "3661d"', "patience is out of range"),
        ('patience = "long"', "'long' is not a duration"),
        ("reserve = 1", "reserve must be true or false"),
        ('preempt = "yes"', "preempt must be true or false"),
        ("defragment = true", "defragment must be a string"),
        ('defragment = "ON"', "defragment 'ON' is not known"),
        ("ageing = 59", "ageing is out of range"),
        ("ageing = 0", "ageing is out of range"),
        ('ageing = "3661d"', "ageing is out of range"),
        ("ageing = false", "ageing must be a length of time"),
        ('ageing = "never"', "'never' is not a duration"),
        ("half_life_s = 60", "'half_life_s' is not known here"),
        ("[queue]", "'queue' is not known here"),
        ("reserve =", "Invalid value"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(text: str, told: str) -> None:
    error = complaint(f"# a comment\n{text}\n")
    assert error.detail.startswith("/etc/policy.toml:2: ")
    assert told in error.detail


@cases(
    "text",
    [
        "half_life = 60",
        'half_life = "3660d"',
        'min_run = "7d"',
        "yield = 1",
        'yield = "24h"',
        "move = 0",
        'move = "1d"',
        "moves_per_hour = 100000",
        "patience = 0",
        'patience = "3660d"',
        "user_priority_max = 1000000",
        "waiting_max = 0",
        'waiting_bytes_max = "1T"',
        "agent_priority_max = -1000000",
        "ageing = 60",
        'ageing = "3660d"',
        'ageing = "off"',
    ],
)
def test_the_ends_of_the_ranges_are_taken(text: str) -> None:
    assert parse_policy(text) != DEFAULT_POLICY


def test_a_hint_says_the_range():
    assert complaint("half_life = 1").hint == "use 60s to 3660d"
    assert complaint('defragment = "x"').hint == "use one of off, suggest, on"


def test_equal_policies_are_the_same_bytes():
    whole = Policy(half_life_s=60, min_run_s=0, yield_s=1, move_s=3)
    assert whole == Policy(half_life_s=60.0, min_run_s=0.0, yield_s=1.0, move_s=3.0)
    told = json.dumps(to_plain(whole), sort_keys=True)
    text = "half_life = 60\nmin_run = 0\nyield = 1.0\nmove = 3\n"
    text += 'ageing = "off"\npatience = 0\nwaiting_max = 0\nwaiting_bytes_max = 0'
    assert "waiting" not in told, "as in logs of before"
    assert told == json.dumps(to_plain(parse_policy(text)), sort_keys=True)
    assert from_plain(Policy, json.loads(told)) == whole


def test_the_bound_of_a_guarantee_is_what_a_borrower_may_take():
    assert Policy(min_run_s=10, yield_s=5).guarantee_bound_s == 15.0


def test_a_policy_of_the_release_before_has_no_patience():
    """Law 9: a log of the release before is decided again as it was."""
    written = {"reserve": True, "defragment": "on"}
    assert from_plain(Policy, written) == Policy(defragment=DefragmentMode.ON, patience_s=0.0)
    assert to_plain(from_plain(Policy, written)) == written
