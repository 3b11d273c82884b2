"""Durations and sizes: every spelling of the field, and none that only looks like one."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import (
    age_text,
    amount_text,
    duration_text,
    parse_bytes,
    parse_duration_s,
    parse_memory_bytes,
)
from tests.cases import cases

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNITS = {"ms": 0.001, "s": 1, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}


@cases(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 5 * MINUTE),
        ("2h", 2 * HOUR),
        ("1d", DAY),
        ("1w", 7 * DAY),
        ("200ms", 0.2),
        ("1.5h", 90 * MINUTE),
        ("10", 10 * MINUTE),
        ("10:30", 10 * MINUTE + 30),
        ("1:30:00", 90 * MINUTE),
        ("01:30:00", 90 * MINUTE),
        ("1-12", 36 * HOUR),
        ("1-12:30", 36 * HOUR + 30 * MINUTE),
        ("1-12:30:15", 36 * HOUR + 30 * MINUTE + 15),
        ("0", 0),
        ("  30s ", 30),
    ],
)
def test_a_duration_in_every_spelling(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@cases(
    "text",
    [
        *["", " ", "-", "-1", "-1s", "+1", "1:", ":1", "1-", "-1:00", "1:2:3:4", "1-1:1:1:1", "1h30m", "1 s", "1e3"],
        *["1e3s", "nan", "inf", "infs", "soon", "1y", "1S", "0x10", "1_000", "1,5h", ".5h", "1.h", "1-2-3", "\0"],
        *["1s\n2s", "٣s", "²", "9" * 10, "9" * 400 + "s", "1." + "9" * 400 + "s", "9" * 10_000, "1" + ":1" * 10_000],
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(MooringsError) as caught:
        parse_duration_s(text)
    assert caught.value.code == "duration.invalid"
    assert "1:30:00" in caught.value.hint
    assert len(str(caught.value)) < 100


@given(st.floats(0, 366 * DAY))
def test_a_duration_written_is_the_duration_read(seconds):
    assert parse_duration_s(duration_text(seconds)) == round(seconds)


@given(st.integers(0, 99_999), st.sampled_from(sorted(UNITS)))
def test_a_number_with_a_unit_is_so_many_of_them(number, unit):
    assert parse_duration_s(f"{number}{unit}") == pytest.approx(number * UNITS[unit])


@given(st.text())
def test_any_text_is_a_finite_duration_or_refused(text):
    with contextlib.suppress(MooringsError):
        seconds = parse_duration_s(text)
        assert math.isfinite(seconds)
        assert seconds >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59, "0:59"), (600, "10:00"), (5400, "1:30:00"), (36 * HOUR, "1-12:00:00"), (-5, "0:00")],
)
def test_durations_are_written_as_slurm_writes_them(seconds, text):
    assert duration_text(seconds) == text


@cases(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0.9, "0s"),
        (40, "40s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (3 * DAY + 22 * HOUR, "3d22h"),
        (8 * DAY + 22 * HOUR, "8d"),
        (400 * DAY, "400d"),
    ],
)
def test_ages_are_read_at_a_glance(seconds, text):
    assert age_text(seconds) == text


@cases(
    ("text", "n_bytes"),
    [
        ("512", 512),
        ("512B", 512),
        ("0", 0),
        ("4K", 4 << 10),
        ("4M", 4 << 20),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("4GB", 4 << 30),
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        (" 4G ", 4 << 30),
        ("1.5T", 3 << 39),
        ("2P", 2 << 50),
    ],
)
def test_a_size_in_every_spelling(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@cases(
    "text",
    [
        *["", "K", "-1", "-1G", "+1G", "1e3", "4GG", "4i", "4X", "4Gb it", "0x10", "1,5G", ".5G", "1.G", "nan", "inf"],
        *["٣G", "\0", "4G\n4G", "9" * 13, "1." + "9" * 7 + "G", "9" * 10_000],
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(MooringsError) as caught:
        parse_bytes(text)
    assert caught.value.code == "size.invalid"
    assert "4G" in caught.value.hint
    assert len(str(caught.value)) < 100


@cases("text", ["4000", " 4000 ", "1.5", "1"])
def test_memory_without_a_unit_is_refused_with_both_spellings(text):
    with pytest.raises(MooringsError) as caught:
        parse_memory_bytes(text)
    number = text.strip()
    assert caught.value.code == "size.invalid"
    assert (caught.value.detail, caught.value.hint) == (f"'{number}' has no unit", f"write {number}M or {number}G")


@cases(("text", "n_bytes"), [("0", 0), ("512B", 512), ("4000M", 4000 << 20), (" 4G ", 4 << 30)])
def test_memory_with_a_unit_and_none_at_all_are_read_as_any_size(text, n_bytes):
    assert parse_memory_bytes(text) == n_bytes


@given(st.integers(0, 999_999_999_999), st.sampled_from(" KMGTP"))
def test_a_whole_size_is_exact_to_the_byte(number, unit):
    assert parse_bytes(f"{number}{unit.strip()}") == number * 1024 ** " KMGTP".index(unit)


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("10:00", 600), ("2m", 120), ("1-0", 86_400)])
def test_a_bare_number_counts_what_the_caller_says_and_nothing_else_changes(text, seconds):
    assert parse_duration_s(text, bare_s=1.0) == seconds
    assert parse_duration_s("60") == 3600


@given(st.text())
def test_any_text_is_a_size_or_refused(text):
    with contextlib.suppress(MooringsError):
        assert parse_bytes(text) >= 0


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (6, "6"), (1 << 20, "1 MiB"), (1536 << 20, "1.5 GiB"), (64 << 30, "64 GiB"), (503 << 30, "503 GiB")],
)
def test_amounts_are_written_as_people_count_them(amount, text):
    assert amount_text(amount) == text
