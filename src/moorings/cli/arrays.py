"""Arrays at the command line: found by id or name, followed in one line, shown in a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorings.cli.errors import UsageErrorWithHint
from moorings.client.requests import RunFilter
from moorings.core.model.claims import is_id
from moorings.core.model.errors import MooringsError
from moorings.terminal.durations import Deadline
from moorings.terminal.following import REASON_FRESH_S, run_exit_code
from moorings.wire.shapes import ReasonBody, RunBody
from moorings.workloads.arrays import format_indexes
from moorings.workloads.runs import ENDED, RunState

if TYPE_CHECKING:
    from moorings.client.client import Client
    from moorings.terminal.progress import Progress

_WAITS = (RunState.WAITING, RunState.PAUSED)


def find_run(client: Client, name: str) -> RunBody:
    """A run by its id or name.

    Raises:
        MooringsError: ``run.unknown``: there is none, or it has ended, and an array of that name has not.
    """
    return unless_array(client, name, client.get_run(name))


def unless_array(client: Client, name: str, run: RunBody) -> RunBody:
    """The run that was found by a name.

    Raises:
        MooringsError: ``run.unknown``: it has ended, and an array of that name has not.
    """
    if run.state in ENDED and not is_id(name) and _arrays_named(client.list_runs(), name):
        raise MooringsError("run.unknown", f"{name!r} is an array by now, and run {run.id} of that name has ended")
    return run


def find_one_run(client: Client, name: str, command: str) -> RunBody:
    """A run by its id or name, for what cannot be done with an array.

    Args:
        client: asks the controller.
        name: of the run.
        command: for the hint: ``moor exec``.

    Raises:
        UsageErrorWithHint: it is an array's.
        MooringsError: ``run.unknown``.
    """
    try:
        return find_run(client, name)
    except MooringsError as error:
        raise one_element_error(elements_instead(client, name, error), name, command) from error


def one_element_error(runs: Sequence[RunBody], name: str, command: str) -> UsageErrorWithHint:
    """The error where one run of an array must be named."""
    which = next((run for run in runs if run.state not in ENDED), runs[0])
    index = which.array.index if which.array is not None else 0
    return UsageErrorWithHint(f"{name} is an array of {len(runs)} runs", hint=f"name one: {command} {name}-{index}")


def array_instead(client: Client, name: str, error: MooringsError) -> str:
    """The id of the array with that id or name: of those that have not ended, else the newest of those that have.

    Args:
        client: asks the controller.
        name: of no run.
        error: the answer to a request for a run of that name.

    Raises:
        MooringsError: ``error``: it is none of an array either.
        UsageErrorWithHint: several that have not ended have that name.
    """
    if error.code != "run.unknown":
        raise error
    if is_id(name):
        if list_elements(client, name):
            return name
        raise error
    active = _arrays_named(client.list_runs(), name)
    if len(active) > 1:
        hint = f"name one by its id: {', '.join(active)}"
        raise UsageErrorWithHint(f"{len(active)} arrays are called {name!r}", hint=hint)
    named = active or _arrays_named(client.list_runs(RunFilter(all=True)), name)
    if not named:
        raise error
    return named[-1]


def _arrays_named(runs: Sequence[RunBody], name: str) -> list[str]:
    """The ids of the arrays of that name among these runs, the oldest first."""
    named = [(run.created_at, run.array.id) for run in runs if run.array and run.name == f"{name}-{run.array.index}"]
    return list(dict.fromkeys(array for _, array in sorted(named)))


def elements_instead(client: Client, name: str, error: MooringsError) -> Sequence[RunBody]:
    """The runs of the array with that id or name, by index.

    Raises:
        MooringsError: ``error``: there is none.
    """
    return list_elements(client, array_instead(client, name, error))


def list_elements(client: Client, array: str) -> Sequence[RunBody]:
    """The runs of an array, by index; those that have ended, too."""
    found = client.list_runs(RunFilter(array=array, all=True))
    return sorted(found, key=lambda run: run.array.index if run.array is not None else 0)


def follow_array(
    client: Client, progress: Progress, array: str, limit: Deadline, report: Callable[[], None]
) -> Sequence[RunBody]:
    """The runs of an array once all have ended; reports how many have.

    Args:
        client: asks the controller.
        progress: shows it.
        array: its id.
        limit: when to give up.
        report: tells the controller of what only this person sees of them; called every few seconds.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    while True:
        report()
        runs = list_elements(client, array)
        left = [run for run in runs if run.state not in ENDED]
        if not left:
            progress.clear()
            return runs
        if limit.is_over:
            progress.clear()
            hint = f"it continues: 'moor wait {array}'"
            raise MooringsError("wait.timeout", f"{array}: {progress_text(runs)}; the time is up", hint=hint)
        progress.show_waiting(f"{array}: {progress_text(runs)}")
        client.get_run(left[-1].id, wait_s=limit.remaining_s(REASON_FRESH_S))


def progress_text(runs: Sequence[RunBody]) -> str:
    """How far an array is: ``12 of 100 ended, 8 run, 80 wait``."""
    ended, waiting = (sum(run.state in states for run in runs) for states in (ENDED, _WAITS))
    return f"{ended} of {len(runs)} ended, {len(runs) - ended - waiting} run, {waiting} wait"


def end_text(array: str, runs: Sequence[RunBody]) -> str:
    """How the runs of an array have ended, in one line."""
    good = f"{sum(run.state == RunState.SUCCEEDED for run in runs)} {RunState.SUCCEEDED}"
    texts = (good if text.startswith(f"{good} (") else text for text in _state_texts(runs))
    return f"{array}: {', '.join(texts)}"


def worst_exit_code(runs: Iterable[RunBody]) -> int:
    """The highest exit code of these runs."""
    return max((run_exit_code(run) for run in runs), default=0)


@dataclass(frozen=True, kw_only=True)
class ArraySummary:
    """An array in a few lines: ``states`` says how many of its runs are in which state, and which."""

    id: str
    name: str
    user: str
    project: str
    engine: str
    size: int
    limit: int | None
    created_at: str
    states: tuple[str, ...]
    reason: ReasonBody | None


def summarize_array(runs: Sequence[RunBody]) -> ArraySummary:
    """An array, from all its runs by index; ``reason``: why the first that waits does."""
    first = runs[0]
    assert first.array is not None
    waiting = next((run for run in runs if run.state in _WAITS), None)
    return ArraySummary(
        id=first.array.id,
        name=first.name.removesuffix(f"-{first.array.index}"),
        user=first.subject,
        project=first.job.project,
        engine=first.engine,
        size=first.array.size,
        limit=first.array.limit,
        created_at=first.created_at,
        states=tuple(_state_texts(runs)),
        reason=waiting.reason if waiting is not None else None,
    )


def _state_texts(runs: Sequence[RunBody]) -> Iterator[str]:
    """How many runs are in which state, and which."""
    for state, count in sorted(Counter(run.state for run in runs).items()):
        which = format_indexes(run.array.index for run in runs if run.state == state and run.array is not None)
        yield f"{count} {state} ({which})"
