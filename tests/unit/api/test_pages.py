import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.api.pages import Wanted, build_token, parse_token
from moorings.core.errors import MooringsError

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


@pytest.mark.parametrize("content", [[], ["claims"], ["claims", 7], ["claims", "a\nb"], {"claims": "x"}, "claims", 3])
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
        shown, token = Wanted("x", limit, after).choose(sorted(items), str)
        assert len(shown) <= limit
        seen += shown
        if token is None:
            break
        after = parse_token("x", token)
        items -= vanishing
    assert seen == sorted(set(seen))
    assert {f"{number:03}" for number in start - gone} <= set(seen)
