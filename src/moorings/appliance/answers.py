"""The results of jobs, in files beside their specifications."""

from __future__ import annotations

import json
from typing import Any, Final

from moorings.appliance.order import ApplianceJobSpec
from moorings.core.errors import MooringsError

ANSWER_BYTES_MAX: Final = 1 << 20


def read_result(order: ApplianceJobSpec) -> dict[str, Any]:
    """The result that a job has written.

    Raises:
        MooringsError: ``answer.invalid``.
    """
    wanted = {"compile": ("artifact", "seconds"), "train": ("step", "loss", "checkpoint")}
    try:
        with order.answer.open("rb") as file:
            answer = json.loads(file.read(ANSWER_BYTES_MAX))
        missing = [name for name in wanted.get(order.act, ("step", "loss", "batches")) if name not in answer]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise MooringsError("answer.invalid", f"the job wrote no answer that can be read: {error}") from error
    if missing or not isinstance(answer, dict):
        raise MooringsError("answer.invalid", f"{order.answer} does not tell: {', '.join(missing)}")
    return answer
