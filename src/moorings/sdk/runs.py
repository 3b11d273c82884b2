"""``Run``: a submitted command or function, in the manner of a future. It holds no connection, so it may live long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from moorings.core.model.errors import MooringsError
from moorings.sdk.functions import EXCEPTION, FAULT, CallOutcome, FunctionEntry
from moorings.sdk.sessions import in_session
from moorings.submission.slurm_submission import cancel_own, report_own
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline
from moorings.terminal.following import END_WAIT_S, run_end_text
from moorings.terminal.patience import PATIENCE_S
from moorings.wire.shapes import RunBody
from moorings.workloads.runs import ENDED, RunState

T = TypeVar("T")


class RunError(MooringsError):
    """A run has ended, and there is no result.

    Attributes:
        run: all that the API says of it: its state, exit code and detail.
    """

    def __init__(self, code: str, detail: str, run: RunBody, *, hint: str = "") -> None:
        super().__init__(code, detail, hint=hint)
        self.run = run


class WaitTimeoutError(MooringsError, TimeoutError):
    """A run had not ended in time; it continues."""


class Run(Generic[T]):
    """A submitted run.

    Args:
        ident: its id.
        environment: the variables that say where its controller is.
        tasks: its number of tasks.
        entry: the files of its function; None: it is a command.
        index: of the arguments in ``entry``.
        array: the id and the size of the array that it belongs to.
    """

    def __init__(
        self,
        ident: str,
        environment: Mapping[str, str],
        tasks: int,
        entry: FunctionEntry | None = None,
        index: int = 0,
        array: tuple[str, int] | None = None,
    ) -> None:
        self._id = ident
        self._environment = environment
        self._tasks = tasks
        self._entry = entry
        self._index = index
        self._array = array
        self._ended: RunBody | None = None

    def __repr__(self) -> str:
        return f"<moorings.Run {self._id}>"

    @property
    def id(self) -> str:
        """Its id, as ``moor`` takes it."""
        return self._id

    @property
    def array(self) -> tuple[str, int] | None:
        """The id and the size of the array that it belongs to."""
        return self._array

    @property
    def state(self) -> str:
        """Its state now, as ``RUNNING``.

        Raises:
            MooringsError: the controller cannot be asked.
        """
        return self.info().state

    def info(self) -> RunBody:
        """All that the API says of it: why it waits, its devices, its exit code.

        Raises:
            MooringsError: the controller cannot be asked.
        """
        return self._look(0.0, PATIENCE_S)

    def done(self) -> bool:
        """Whether it has ended, in whatever way.

        Raises:
            MooringsError: the controller cannot be asked.
        """
        return self.info().state in ENDED

    def wait(self, timeout: float | None = None) -> RunBody:
        """Wait for its end; returns all that the API says of it then.

        Args:
            timeout: in seconds; None: no limit.

        Raises:
            WaitTimeoutError: it has not ended in time.
            TypeError: the timeout is no number.
            MooringsError: the controller cannot be asked.
        """
        _check_timeout(timeout)
        limit = Deadline(timeout)
        body = self._look(0.0, limit.remaining_s(PATIENCE_S))
        while body.state not in ENDED:
            if limit.is_over:
                raise WaitTimeoutError("wait.timeout", f"{self._id} is {body.state}; the time is up")
            body = self._look(limit.remaining_s(END_WAIT_S), limit.remaining_s(PATIENCE_S))
        return body

    def result(self, timeout: float | None = None) -> T:
        """What its function returned; of a command None, once that has succeeded.

        An exception of the function is raised here, with its remote traceback as a note.

        Args:
            timeout: in seconds; None: no limit.

        Raises:
            WaitTimeoutError: it has not ended in time.
            RunError: it has ended without a result, or a command without success.
            MooringsError: the controller cannot be asked; ``function.refused``: its result may be another user's;
                ``function.failed``: the function raised something that cannot be raised here.
        """
        if self._tasks != 1 and self._entry is not None:
            detail = f"the function ran in {self._tasks} tasks: results() returns the value of each"
            raise MooringsError("function.refused", detail)
        results = self.results(timeout)
        return results[0] if self._entry is not None else None  # type: ignore[return-value]  # a command is a Run[None]

    def results(self, timeout: float | None = None) -> list[T]:
        """What its function returned in each task, by rank; of a command an empty list.

        Raises:
            as ``result``; of several tasks that failed, the exception of the lowest rank.
        """
        body = self.wait(timeout)
        if self._entry is None:
            if body.state != RunState.SUCCEEDED:
                raise self._no_result(body)
            return []
        outcomes = [self._outcome(self._entry, body, rank) for rank in range(self._tasks)]
        for outcome in outcomes:
            if outcome is not None and outcome.kind == EXCEPTION:
                outcome.value.add_note(f"\nin {self._id}:\n{outcome.text}")
                raise outcome.value
            if outcome is not None and outcome.kind == FAULT:
                hint = f"'moor logs {self._id}' shows its output"
                raise MooringsError("function.failed", f"{self._id}: {outcome.text}", hint=hint)
        found = [outcome.value for outcome in outcomes if outcome is not None]
        if len(found) != self._tasks:
            raise self._no_result(body)
        return found

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What ``result`` would raise; None: it would return.

        Raises:
            WaitTimeoutError: it has not ended in time.
        """
        self.wait(timeout)
        try:
            self.results()
        except Exception as error:
            return error
        return None

    def cancel(self) -> None:
        """Ask it to stop; ``wait`` waits until it has. One that has ended stays as it is.

        Raises:
            MooringsError: the controller, or for one's own run on Slurm that, cannot be asked.
        """

        def stop(session: CommandContext) -> None:
            cancelled = session.client.cancel_run(self._id)
            if cancelled.state not in ENDED:
                cancel_own(session, cancelled)

        in_session(self._environment, stop)

    def logs(self, *, task: int | None = None) -> str:
        """Its output until now, stdout and stderr as written; of several tasks, each line behind its rank.

        Args:
            task: only of this rank.

        Raises:
            MooringsError: the controller cannot be asked.
        """

        def read(session: CommandContext) -> str:
            return b"".join(session.client.logs(self._id, task=task)).decode(errors="replace")

        return in_session(self._environment, read)

    def _look(self, wait_s: float, patience_s: float) -> RunBody:
        if self._ended is not None:
            return self._ended

        def look(session: CommandContext) -> RunBody:
            report_own(session)  # without an agent only its person sees how its job in Slurm goes on
            return session.client.get_run(self._id, wait_s=wait_s)

        body = in_session(self._environment, look, patience_s)
        if body.state in ENDED:
            self._ended = body
        return body

    def _outcome(self, entry: FunctionEntry, body: RunBody, rank: int) -> CallOutcome | None:
        """How the call of a task ended; None: its last attempt says nothing of it.

        An attempt removes the result of the one before when it begins. So after success there is the last one's; after
        a failure one may be left of an attempt that was stopped, if the last one never began.
        """
        outcome = entry.read_outcome(self._index, rank)
        if outcome is None or body.state == RunState.SUCCEEDED:
            return outcome
        has_failed = body.state == RunState.FAILED and rank < len(body.task_codes) and body.task_codes[rank] == 1
        return outcome if has_failed and outcome.kind in (EXCEPTION, FAULT) else None

    def _no_result(self, body: RunBody) -> RunError:
        end = "; its function has returned nothing" if self._entry is not None else ""
        hint = f"'moor logs {self._id}' shows its output"
        return RunError("run.unsuccessful", f"{run_end_text(body)}{end}", body, hint=hint)


def _check_timeout(timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
