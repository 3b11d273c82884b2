"""When a status is written: what matters soon, words less often, and the last of them always."""

from __future__ import annotations

import random

from moorings.kubernetes.ipujob.types import IPUJobStatus
from moorings.kubernetes.operator.reconcile_state import SOON_S, WORDS_S, write_delay_s

WAITS = IPUJobStatus(state="Pending", message="one")


def due(before: IPUJobStatus, after: IPUJobStatus, now_s: float = 100.0, *, hurry: bool = False) -> float | None:
    return write_delay_s(before, after, written_s=99.0, differs_s=None, now_s=now_s, is_urgent=hurry)


def test_what_matters_is_written_soon_and_words_at_the_end_of_their_time() -> None:
    assert due(WAITS, WAITS) is None
    assert due(WAITS, IPUJobStatus(state="Running")) == 0.0
    assert due(WAITS, IPUJobStatus(state="Pending", message="one", current=1)) == SOON_S
    assert due(WAITS, IPUJobStatus(state="Pending", message="two")) == WORDS_S - 1.0
    assert due(WAITS, IPUJobStatus(state="Pending", message="two"), 99.0 + WORDS_S) == 0.0
    assert due(WAITS, IPUJobStatus(state="Pending", message="two"), hurry=True) == SOON_S


def test_the_last_words_are_written_whenever_they_came() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        written, written_s, differs_s, now_s = WAITS, 0.0, None, 0.0
        changes = sorted(chance.uniform(0, 60) for _ in range(chance.randrange(1, 30)))
        n_written, last = 0, WAITS
        while True:
            wait_s = write_delay_s(
                written, last, written_s=written_s, differs_s=differs_s, now_s=now_s, is_urgent=False
            )
            differs_s = None if wait_s is None else now_s if differs_s is None else differs_s
            if wait_s == 0.0:
                written, written_s, differs_s, n_written, wait_s = last, now_s, None, n_written + 1, None
            if not changes and wait_s is None:
                break
            next_s = changes[0] if changes else now_s
            if wait_s is not None and (not changes or now_s + wait_s < next_s):
                now_s += wait_s
            else:
                now_s = changes.pop(0)
                last = IPUJobStatus(state="Pending", message=f"{now_s}")
        assert written == last, seed
        assert n_written <= now_s / WORDS_S + 1, seed
