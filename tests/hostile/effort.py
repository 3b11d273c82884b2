"""How hard the hostile tests try: in the gates by the tree, and with chance and patience in ``make fuzz``.

``make fuzz`` is ``pytest tests/hostile --hypothesis-profile=fuzz``; ``--hypothesis-seed=N`` repeats a run of it. A gate
prints its own seed (``tests.lanes``).
"""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

from tests import sampling

FUZZ_FACTOR = 50


def fuzzing() -> bool:
    return settings.get_current_profile_name() == "fuzz"


def effort(examples: int) -> int:
    """How many examples, where ``make test-all`` draws ``examples``."""
    return examples * FUZZ_FACTOR if fuzzing() else sampling.examples(examples)


def tried(examples: int) -> Callable[[Any], Any]:
    """Decorates a property that ``make test-all`` tries ``examples`` times."""
    return settings(
        max_examples=effort(examples),
        derandomize=False,
        print_blob=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
