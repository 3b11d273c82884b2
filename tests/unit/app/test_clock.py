"""The real clock and real randomness, where they meet the rest."""

from __future__ import annotations

import re
import time

import pytest

from moorings.app.clock import ID_CHARS, RandomIds, SystemClock
from moorings.core.model.claims import check_name, check_owner


def test_now_is_whole_microseconds_since_1970():
    before = time.time_ns()
    now = SystemClock().now()
    assert before // 1000 <= now <= time.time_ns() // 1000
    assert isinstance(now, int)


async def test_sleeping_comes_back():
    await SystemClock().sleep(0)


@pytest.mark.parametrize("kind", ["claim", "run"])
def test_an_id_is_its_kind_and_twelve_characters_that_need_no_quoting(kind):
    ids = RandomIds()
    assert all(re.fullmatch(rf"{kind}-[a-z2-7]{{{ID_CHARS}}}", ids.new(kind)) for _ in range(100))


def test_an_id_may_be_a_name_and_part_of_an_owner():
    ident = RandomIds().new("claim")
    assert check_name(ident) == ident
    assert check_owner(f"local/{RandomIds().new('run')}")


def test_ids_do_not_repeat_and_use_their_whole_alphabet():
    ids = [RandomIds().new("run") for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert len(set("".join(ident[4:] for ident in ids))) == 32


def test_an_unknown_kind_has_no_ids():
    with pytest.raises(KeyError):
        RandomIds().new("anything")
