"""When a changed status of an IPUJob is written. Pure.

Each write costs the API server, so one that is about to change again waits a moment, and other words for the same wait
longer. Nothing is lost by that: what differs at the end of the time is written then.
"""

from __future__ import annotations

from moorings.kubernetes.ipujob import IPUJobStatus
from moorings.kubernetes.plan import COMPLETED, FAILED
from moorings.kubernetes.status import RUNNING, is_same_but_messages

SOON_S = 0.5  # a status that is about to change is not written yet
WORDS_S = 10.0  # nor one that only says the same in other words, more often than so


def write_delay_s(
    before: IPUJobStatus, after: IPUJobStatus, *, written_s: float, differs_s: float | None, now_s: float, hurry: bool
) -> float | None:
    """After how many seconds a status is to be written: 0 now; None: it stays as it is.

    Args:
        before: as it was written last.
        after: as it should be.
        written_s: when it was written last; all times are of one monotonic clock.
        differs_s: since when it differs; None: it did not at the look before.
        now_s: the time.
        hurry: words, too, are written soon.
    """
    if before == after:
        return None
    if after.state != before.state and after.state in (RUNNING, COMPLETED, FAILED):
        return 0.0
    if is_same_but_messages(before, after) and not hurry:
        due = written_s + WORDS_S
    else:
        due = (now_s if differs_s is None else differs_s) + SOON_S
    return max(due - now_s, 0.0)
