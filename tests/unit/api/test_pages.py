import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.api.pagination import ITEMS_A_READ, PART_S, PageRequest, build_token, encode_items, parse_token
from moorings.core.model.errors import MooringsError
from moorings.ports.store import PageQuery
from tests.cases import cases

keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@given(keys)
def test_a_token_gives_back_its_key(key: str) -> None:
    assert parse_token("claims", build_token("claims", key)) == key


@given(keys)
def test_a_token_of_another_list_is_refused(key: str) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_token("runs", build_token("claims", key))
    assert refused.value.code == "page.invalid"


@given(st.text(max_size=80))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_token("claims", text)
    assert refused.value.code == "page.invalid"


@cases("content", [[], ["claims"], ["claims", 7], ["claims", "a\nb"], {"claims": "x"}, "claims", 3])
def test_a_forged_token_is_refused(content: object) -> None:
    token = urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
    with pytest.raises(MooringsError, match="not a token"):
        parse_token("claims", token)


@given(st.sets(st.integers(0, 999)), st.integers(1, 20), st.sets(st.integers(0, 999)))
def test_pages_show_everything_once_though_items_come_and_go(start: set[int], limit: int, gone: set[int]) -> None:
    items = {f"{number:03}" for number in start}
    vanishing = {f"{number:03}" for number in gone}
    seen: list[str] = []
    after = None
    while True:
        shown, token = PageRequest("x", limit, after).page_of(sorted(items), str)
        assert len(shown) <= limit
        seen += shown
        if token is None:
            break
        after = parse_token("x", token)
        items -= vanishing
    assert seen == sorted(set(seen))
    assert {f"{number:03}" for number in start - gone} <= set(seen)


@pytest.mark.parametrize("there", [0, 1, 99, 100, 101, 250, 299, 300, 301, 400])
async def test_a_page_read_in_pieces_is_the_page(there: int) -> None:
    items = [f"{number:04}" for number in range(there)]
    asked: list[int] = []

    async def read(page: PageQuery) -> list[str]:
        asked.append(page.limit)
        return [item for item in items if page.after is None or item > page.after][: page.limit]

    wanted = PageRequest("claims", 300, None)
    assert await wanted.read_page(read, str) == items[:301]
    assert max(asked) <= ITEMS_A_READ


async def test_long_pages_leave_time_for_others_while_they_are_written() -> None:
    """Rounds of the loop are counted, and every item takes its part's whole time."""

    class Slow:
        def __iter__(self) -> Iterator[dict[str, int]]:
            for number in range(10):
                until = time.perf_counter() + PART_S
                while time.perf_counter() < until:
                    pass
                yield {"number": number}

    rounds, done = 0, False

    async def others() -> None:
        nonlocal rounds
        while not done:
            rounds += 1
            await asyncio.sleep(0)

    pen = asyncio.Lock()
    other = asyncio.create_task(others())
    pages = await asyncio.gather(*(encode_items(Slow(), pen) for _ in range(3)))
    done = True
    await other
    assert all(len(page) == 10 for page in pages)
    assert rounds >= 30, "one part of one page in each round, whoever asks for how many"
