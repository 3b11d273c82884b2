"""``kill -9`` of the controller before, during and after each save and each act, then again while it recovers.

The points are found, not listed: a first telling of the story counts every write of the database, every change of a
file, every process started and every answer sent. Each is then hit once, on a data folder of its own, and the story
is told to its end by clients that repeat what was not answered.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.checking import broken_laws, events_of, left, settle
from tests.faults.story import tell
from tests.faults.victims import DiedError, Forge, Victim, victim
from tests.faults.watching import Watcher
from tests.once import made_once

PARTS = 16
FIRST_PARTS = 4
RECOVERY_ACTS = 40  # about as many as a start has
# Of the database's pages every n-th is hit before, and every 2n-th during its write; FAULT_PAGES_EACH=1 hits them all.
PAGES_EACH = int(os.environ.get("FAULT_PAGES_EACH", "8"))

# After these the world is another one; after the rest it is as it is before the next act.
TOLD = frozenset({"do_commit", "answer", "write", "rename", "replace", "unlink", "_fork_exec", "pidfd_send_signal"})

Kill = tuple[int, str]


@pytest.fixture(scope="session")
def acts(forge: Forge, template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The acts of a controller in the whole story, by number (from 1, at place 0)."""
    own = tmp_path_factory.mktemp("acts")

    def traced(folder: Path) -> None:
        with victim(own / "dry", forge, template) as dry:
            dry.start({"trace": str(folder / "trace")})
            tell(dry)
            settle(dry, left)

    return _names(made_once(tmp_path_factory, "acts", traced) / "trace")


@pytest.fixture(scope="session")
def first_acts(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The acts of a controller's first start."""
    folder = tmp_path_factory.mktemp("first")
    with victim(folder / "dry", forge) as dry:
        dry.start({"trace": str(folder / "trace")})
        dry.kill()
    return _names(folder / "trace")


def _names(trace: Path) -> list[str]:
    return [line.split()[1] for line in trace.read_text().splitlines()]


def choose(names: list[str]) -> list[Kill]:
    """Where to kill, and when."""
    chosen: list[Kill] = []
    pages = 0
    for number, name in enumerate(names, start=1):
        if name != "pwrite":
            chosen.append((number, "before"))
            chosen += [(number, "after")] if name in TOLD else []
            chosen += [(number, "during")] if name == "write" else []
            continue
        pages += 1
        if pages % PAGES_EACH == 0:
            chosen.append((number, "before"))
        if pages % (2 * PAGES_EACH) == 1:
            chosen.append((number, "during"))
    return chosen


class Twice(Victim):
    """A victim whose first recovery is killed too."""

    again: Kill | None = None

    def start(self, faults: dict[str, object] | None = None, limits: dict[str, int] | None = None) -> None:
        if faults is None and self.again is not None:
            (at, when), self.again = self.again, None
            try:
                super().start({"at": at, "when": when})
            except DiedError:
                super().start()
        else:
            super().start(faults, limits)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_at_every_point(part: int, acts: list[str], forge: Forge, template: Path, tmp_path: Path) -> None:
    chosen = choose(acts)[part::PARTS]
    deaths = sum(kill_at(tmp_path / f"{at}-{when}", forge, template, (at, when)) for at, when in chosen)
    # What happens at the same time does not always come in the same order, so a point near the end may not be reached.
    assert deaths > len(chosen) * 1.5, f"{deaths} deaths at {len(chosen)} points, each of which should bring two"


def kill_at(folder: Path, forge: Forge, template: Path, kill: Kill) -> int:
    """Tell the story around that kill and one during the recovery; how often the controller died."""
    chance = random.Random(f"{kill}")
    with victim(folder, forge, template, make=Twice) as v:
        assert isinstance(v, Twice)
        v.again = (chance.randrange(1, RECOVERY_ACTS), chance.choice(["before", "after"]))
        try:
            v.start({"at": kill[0], "when": kill[1]})
        except DiedError:
            assert broken_laws(v.data) == []
            v.start()
        watcher = Watcher(v)
        watcher.start()
        try:
            tell(v)
            settle(v, left)
            told = watcher.finish(lambda: events_of(v.data)[-1][0])
            assert told == events_of(v.data), f"who watches sees each event once, in order; {watcher.said}"
        except BaseException as error:
            error.add_note(f"killed at {kill}; {folder}\n{v.log()[-6000:]}")
            raise
        return v.starts - 1


@pytest.mark.slow
@pytest.mark.parametrize("part", range(FIRST_PARTS))
def test_at_every_point_of_the_first_start(part: int, first_acts: list[str], forge: Forge, tmp_path: Path) -> None:
    chosen = choose(first_acts)[part::FIRST_PARTS]
    deaths = 0
    for at, when in chosen:
        with victim(tmp_path / f"{at}-{when}", forge) as v:
            try:
                v.start({"at": at, "when": when})
                v.kill()
            except DiedError:
                deaths += 1
            v.start()
            made = v.insist("POST", "/v1/claims?wait=20s", {"size": 1, "pool": "quick"}, key="one")
            assert made["state"] == "READY"
            v.insist("DELETE", f"/v1/claims/{made['id']}?wait=20s")
            settle(v, left)
            v.kill()
    assert deaths >= len(chosen) - 4, "it dies before it serves, but for what the background does after that"
