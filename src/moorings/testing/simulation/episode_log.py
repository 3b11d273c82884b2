"""The log of an episode: every step in order, what was reached, and the first law that was broken.

A **step** is one action: a turn decided, a call that takes effect at the store, a driver or an engine, a client's
request, or a fault. A mere consequence of a step (a response that arrives) is a line without a number of its own. The
digest covers every line, so two runs with equal digests did the same things at the same moments.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

LINES_KEPT = 400


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """A broken law: which (0: none of the ten, but a fault of the product), at which step, and how."""

    law: int
    step: int
    message: str


class EpisodeLog:
    """The events so far.

    Args:
        moment_s: reads the virtual time.
        until: the step at which to stop, or None.

    Attributes:
        steps: the number of steps.
        reached: how often each counted thing was met (``fault order_late``, ``claim READY``, ...).
        broken: the first law that was broken, or None.
        after_step: called after every step: the check of the laws.
        on_fault: called for every fault, with its target.
        on_end: called once, when a law was broken or ``until`` was reached.
    """

    def __init__(self, moment_s: Callable[[], float], until: int | None = None) -> None:
        self.steps = 0
        self.reached: Counter[str] = Counter()
        self.broken: BrokenLaw | None = None
        self.after_step: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_fault: Callable[[str, str], None] = lambda _kind, _what: None
        self.is_over = False
        self._moment_s = moment_s
        self._until = until
        self._digest = blake2b(digest_size=16)
        self._lines: deque[tuple[int, float, str, str]] = deque(maxlen=LINES_KEPT)

    def add_step(self, who: str, what: str) -> None:
        """Record an action, and check the laws after it."""
        if self.is_over:
            return
        self.steps += 1
        self.reached[f"step {who.split('-', 1)[0]}"] += 1
        self._write(who, what)
        self.after_step()
        if self._until is not None and self.steps >= self._until:
            self._end()

    def add_line(self, who: str, what: str) -> None:
        """Record a consequence of an earlier step."""
        if not self.is_over:
            self._write(who, what)

    def count(self, what: str) -> None:
        """Count something."""
        if not self.is_over:
            self.reached[what] += 1

    def add_fault(self, kind: str, what: str = "") -> None:
        """Record a fault: a step of its own."""
        self.count(f"fault {kind}")
        self.on_fault(kind, what)
        self.add_step("FAULT", f"{kind} {what}".rstrip())

    def break_law(self, law: int, message: str) -> None:
        """Record a broken law: the story ends here."""
        if not self.is_over:
            self._write("BROKEN", f"law {law}: {message}")
            self.broken = BrokenLaw(law, self.steps, message)
            self._end()

    def digest(self) -> str:
        """The digest of every line so far."""
        return self._digest.hexdigest()

    def lines(self, count: int = LINES_KEPT) -> list[str]:
        """The last lines, aligned: step, virtual seconds, who, what."""
        shown = list(self._lines)[-count:]
        width = max((len(who) for _, _, who, _ in shown), default=0)
        return [f"{step:>7} {moment_s:>11.4f}  {who:<{width}}  {what}" for step, moment_s, who, what in shown]

    def _write(self, who: str, what: str) -> None:
        moment_s = self._moment_s()
        self._digest.update(f"{moment_s:.6f} {who} {what}\n".encode())
        self._lines.append((self.steps, moment_s, who, what))

    def _end(self) -> None:
        self.is_over = True
        self.on_end()
