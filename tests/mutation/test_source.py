from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import mutants
from tests.mutation.source import Change, ChangeMovedError, apply, locate

TEXT = '''\
"""Grüße."""
class Queue:
    @property
    def head(self):
        return f(self.items, key=name, last=None)

    def take(self, one):
        grüße = one if one.ready and self.open else None  # why
        if self.open:
            self.items.append(one)
            self.count += 1
        elif one.late:
            self.late(one)
        try:
            self.tell(one)
        except ValueError:
            raise
        return grüße, self.count
def take(one):
    return one
'''


def changed(at: str, cut: str, put: str, nth: int | None = None) -> str:
    return apply(TEXT, Change("queue.py", at, cut, put, nth))


@pytest.mark.parametrize(
    ("at", "cut", "put", "old", "new"),
    [
        pytest.param(
            "Queue.take", "one.ready and self.open", "True", "one.ready and self.open", "(True)", id="expression"
        ),
        pytest.param(
            "Queue.take", "(one.ready\n and self.open)", "1", "one.ready and self.open", "(1)", id="other format"
        ),
        pytest.param(
            "Queue.take", "grüße, self.count", "3", "grüße, self.count\n", "(3)\n", id="after other than ASCII"
        ),
        pytest.param("Queue.head", "key=name", "key=len", "key=name", "key=len", id="keyword"),
        pytest.param("Queue.head", "key=name", "", " key=name,", " ", id="keyword away"),
        pytest.param("Queue.head", "last=None", "", ", last=None", "", id="last keyword away"),
        pytest.param("Queue.head", "self.items", "*self.items, 1", "f(self.items", "f(*self.items, 1", id="argument"),
        pytest.param("Queue.head", "self.items", "", "self.items, key", " key", id="argument away"),
        pytest.param("Queue.take", "self.items.append(one)", "", "self.items.append(one)", "pass", id="call away"),
        pytest.param("Queue.take", "self.count += 1", "", "self.count += 1", "pass", id="statement away"),
        pytest.param("Queue.take", "if self.open:", "False", "if self.open", "if (False)", id="first line"),
        pytest.param(
            "Queue.take",
            "self.items.append(one)\nself.count += 1",
            "if one:\n    self.count += 1",
            "self.items.append(one)\n            self.count += 1",
            "if one:\n                self.count += 1",
            id="statements",
        ),
        pytest.param(
            "Queue.take",
            "if one.late:\n    self.late(one)",
            "self.late(one)",
            "elif one.late:\n            self.late(one)",
            "else:\n            self.late(one)",
            id="elif",
        ),
        pytest.param(
            "Queue.take",
            "except ValueError:\n    raise",
            "except KeyError:\n    pass",
            "except ValueError:\n            raise",
            "except KeyError:\n            pass",
            id="except",
        ),
        pytest.param("take", "return one", "return 2", "    return one\n", "    return 2\n", id="function"),
        pytest.param("", "grüße", "x", "return grüße", "return (x)", id="nth"),
    ],
)
def test_a_fragment_is_changed_where_it_stands(at: str, cut: str, put: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert changed(at, cut, put, 1 if cut == "grüße" else None) == TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("at", "cut", "nth"),
    [
        ("Queue.take", "self.open", None),
        ("Queue.take", "self.shut", None),
        ("Queue.give", "one", None),
        ("take", "one", 7),
    ],
    ids=["twice", "nowhere", "no function", "too few"],
)
def test_what_is_not_there_once_is_refused(at: str, cut: str, nth: int | None) -> None:
    with pytest.raises(ChangeMovedError, match="Correct the entry"):
        changed(at, cut, "", nth)


def test_other_files_than_python_are_changed_by_their_words() -> None:
    assert apply("if true; then exit 1; fi\n", Change("a.sh", "", "exit 1", "exit 0")) == "if true; then exit 0; fi\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "queue.py").write_text(TEXT)
    (tmp_path / "core" / "other.py").write_text(TEXT.replace("Queue", "Other"))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("core/queue.py", "Queue.take", "self.count += 1"), ("core/queue.py", "Queue.take")),
        (("core/other.py", "Queue.take", "self.count += 1"), ("core/queue.py", "Queue.take")),
        (("core/gone.py", "Queue.take", "self.count += 1"), ("core/queue.py", "Queue.take")),
        (("core/queue.py", "Line.grow", "self.count += 1"), ("core/queue.py", "")),
    ],
    ids=["in its place", "in another file", "in another file, and its own gone", "under another name"],
)
def test_what_has_moved_is_found(package: Path, change: tuple[str, str, str], found: tuple[str, str]) -> None:
    file, at, cut = change
    assert locate(package, Change(file, at, cut, "")) == Change(*found, cut, "")


@pytest.mark.parametrize(
    ("file", "at", "cut"),
    [
        ("core/gone.py", "take", "return one"),
        ("core/queue.py", "Line.grow", "self.open"),
        ("core/queue.py", "", "shut"),
        ("core/queue.py", "Queue.head", "self.count += 1"),
    ],
    ids=["in two other files", "twice under other names", "nowhere", "lost, and there elsewhere"],
)
def test_what_may_be_in_several_places_is_refused(package: Path, file: str, at: str, cut: str) -> None:
    with pytest.raises(ChangeMovedError, match="Correct the entry"):
        locate(package, Change(file, at, cut, ""))


def test_seeded_mutants_change_todays_source() -> None:
    lost = [one.change for one in mutants.load() if not mutants.is_sound(one.change)]
    assert lost == [], "correct these rows of mutants.jsonl: what they cut has moved"
