"""How hard the hostile tests try: a fixed, repeatable sample in CI, and chance and patience with ``make fuzz``.

``make fuzz`` is ``pytest tests/hostile --hypothesis-profile=fuzz``; ``--hypothesis-seed=N`` repeats a run of it.
Without that profile every test draws the same examples each time, so CI never fails for a reason nobody can see again.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FUZZ_FACTOR = 50


def fuzzing() -> bool:
    return settings.get_current_profile_name() == "fuzz"


def effort(examples: int) -> int:
    """How many examples, where CI draws ``examples``."""
    return examples * FUZZ_FACTOR if fuzzing() else examples


def tried(examples: int) -> Callable[[Any], Any]:
    """Decorates a property that CI tries ``examples`` times."""
    return settings(
        max_examples=effort(examples),
        derandomize=not fuzzing(),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
