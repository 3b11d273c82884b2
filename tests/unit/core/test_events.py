"""Events: names that can be trusted, bytes that can be compared."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.events import EVENTS, canonical_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
data = st.dictionaries(st.text(), values, max_size=5)


def test_names_are_a_noun_and_a_verb():
    assert [name for name in EVENTS if not re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)?", name)] == []


def test_every_name_is_explained():
    assert [name for name, told in EVENTS.items() if len(told) < 10] == []


@given(data)
def test_canonical_data_comes_back(told):
    assert json.loads(canonical_json(told)) == told


@given(data, st.randoms())
def test_equal_data_gives_equal_bytes_in_whatever_order_it_was_put_together(told, chance):
    shuffled = list(told.items())
    chance.shuffle(shuffled)
    assert canonical_json(dict(shuffled)) == canonical_json(told)


def test_canonical_data_is_ascii_on_one_line_even_where_it_is_not_unicode():
    text = canonical_json({"b": "ü\n", "a": "\udce9"})
    assert text == '{"a":"\\udce9","b":"\\u00fc\\n"}'
