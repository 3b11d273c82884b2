"""``submit`` and ``map_array``: a job from a Python program, built, checked and handed in as ``moor run`` does it."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

from moorings.client.jobs import job_shape
from moorings.client.requests import ApiError
from moorings.core.model.errors import MooringsError
from moorings.sdk.functions import FunctionEntry, find_entry, new_entry
from moorings.sdk.runs import Run
from moorings.sdk.sessions import in_session
from moorings.submission.container_images import fetch_image
from moorings.submission.early_checks import check_startable
from moorings.submission.handing_in import create_run, hand_in, without_values
from moorings.submission.job_building import JobFlags, build_job, job_name_of
from moorings.submission.job_environment import JobPlace, choose_export, find_place
from moorings.submission.slurm_submission import SlurmSubmission, runs_folder
from moorings.terminal.configuration import data_folder
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import RunBody, RunRequest
from moorings.workloads.jobs import JobSpec

T = TypeVar("T")
Command = Sequence[str | os.PathLike[str]]
Job = Command | str | os.PathLike[str] | Mapping[str, object]
_FOLDER = "functions"

_logger = logging.getLogger("moorings")


class JobOptions(TypedDict, total=False):
    """What a job needs, by the names that ``moor run`` has for it; what is left out is the job file's, or the usual.

    ``time`` is a duration as ``"1h"`` or a ``timedelta``, ``memory`` a size as ``"4G"``; ``after`` is a run, an id or a
    name, or several; ``size=0`` asks for no devices.
    """

    ipus: int
    size: int
    kind: str
    pool: str
    tasks: int
    cpus: int
    memory: str
    replicas: int
    time: str | timedelta
    name: str
    priority: int
    project: str
    preemptible: bool
    retries: int
    export: str
    env: Mapping[str, str]
    env_files: Sequence[str | os.PathLike[str]]
    setup: Sequence[str]
    after: Run[Any] | str | Sequence[Run[Any] | str]
    labels: Mapping[str, str]
    chdir: str | os.PathLike[str]
    engine: str
    image: str
    resume: Run[Any] | str
    resume_from: str


@dataclass(frozen=True, slots=True)
class _Call:
    """The calls of a function: the arguments of each run."""

    function: Callable[..., object]
    arguments: Sequence[Sequence[object]]


@overload
def submit(what: Callable[..., T], /, *args: object, **options: Unpack[JobOptions]) -> Run[T]: ...
@overload
def submit(what: Job, /, **options: Unpack[JobOptions]) -> Run[None]: ...


def submit(what: Callable[..., T] | Job, /, *args: object, **options: Unpack[JobOptions]) -> Run[T] | Run[None]:
    """Start a function or a command as a run; returns at once.

    Args:
        what: a function, which each task calls with ``args``; a command, as a list of its words; a job file, by its
            path; or what a job file holds, as a dictionary. ``functools.partial`` gives a function further arguments.
        args: of the function.
        options: ``JobOptions``; they win over a job file.

    Raises:
        MooringsError: what ``moor run`` would say; ``function.refused``: a function cannot be sent there.
        TypeError: there is no such option, or ``what`` is no job.
    """
    _check_options(options)
    if callable(what):
        runs = _submit(None, _Call(what, [args]), options)
    elif args:
        raise TypeError("only a function has arguments; give a command as one list of words")
    else:
        runs = _submit(_job_of(what), None, options)
    return runs[0]


def map_array(
    function: Callable[..., T],
    /,
    *iterables: Iterable[object],
    at_once: int | None = None,
    **options: Unpack[JobOptions],
) -> list[Run[T]]:
    """Call a function for each element of the iterables, as ``map`` does, in the runs of one array.

    Args:
        function: the function.
        iterables: of its arguments; the shortest one ends it.
        at_once: how many of the runs ask for devices at once; None: all.
        options: as of ``submit``, of each run.

    Raises:
        as ``submit``.
    """
    _check_options(options)
    calls = list(zip(*iterables, strict=False))
    if not calls:
        return []
    limit = f"%{at_once}" if at_once is not None else ""
    return _submit(None, _Call(function, calls), options, array=f"0-{len(calls) - 1}{limit}")


def find_run(name: str) -> Run[Any]:
    """A run that was submitted earlier, here or with ``moor``, to wait for it and to get its result.

    Args:
        name: its id, or the name of one that has not ended.

    Raises:
        MooringsError: ``run.unknown``.
    """
    environment = dict(os.environ)

    def find(session: CommandContext) -> Run[Any]:
        body = session.client.get_run(name)
        made_as = body.array.id if body.array is not None else body.id
        entry = find_entry(_functions_folder(session, body.engine), made_as)
        index = body.array.index if body.array is not None else 0
        return Run(body.id, environment, body.job.tasks, entry, index)

    return in_session(environment, find)


def _submit(given: _Given, call: _Call | None, options: JobOptions, array: str | None = None) -> list[Run[Any]]:
    environment = dict(os.environ)
    return in_session(environment, lambda session: _Submitting(session, given, call, options, array).submit())


class _Submitting:
    """One submission in a session.

    Args:
        session: with the controller.
        given: a job file, its tables, or a command; None: ``call`` is given.
        call: a function; None: ``given`` is.
        options: of the caller.
        array: the indexes of the array.
    """

    def __init__(
        self, session: CommandContext, given: _Given, call: _Call | None, options: JobOptions, array: str | None
    ) -> None:
        self._session = session
        self._call = call
        self._engine = options.get("engine", "local")
        self._entry: FunctionEntry | None = None
        if call is not None:
            self._entry = new_entry(_functions_folder(session, self._engine))
        self._place = find_place(session.configuration.text("server"), self._engine, session.environment)
        self._job = self._build_job(given, options, array)
        if self._job.array and call is None:
            detail = "submit() returns one run, and this job is an array"
            raise MooringsError("job.invalid", detail, hint="'moor run' starts it; map_array() calls a function")
        self._resume = _id_of(options["resume"]) if "resume" in options else None
        self._resume_from = options.get("resume_from")

    def submit(self) -> list[Run[Any]]:
        """The runs, made and on their way."""
        session, job = self._session, self._job
        request = RunRequest(
            job=job_shape(job), engine=self._engine, resume=self._resume, resume_from=self._resume_from
        )
        if self._place is not JobPlace.ELSEWHERE:
            check_startable(job)
            if job.image is not None and self._entry is None:
                fetch_image(job.image, session.environment, _logger.info)
        submission = SlurmSubmission(session, job)
        request = submission.prepare(request)
        if request.submitter is not None:
            request = without_values(request)
        if self._entry is not None:
            assert self._call is not None
            self._check_reachable(is_own_on_slurm=request.submitter is not None)
            self._entry.save(self._call.function, self._call.arguments, job.tasks)
        made = self._create(hand_in(session, job, request))
        for note in made.notes or ():
            _logger.info("%s: %s", made.id, note)
        if note := submission.submit(made):
            _logger.info("%s", note)
        return self._runs_of(made)

    def _create(self, request: RunRequest) -> RunBody:
        try:
            made = create_run(self._session, request, secrets.token_hex(16))
        except ApiError:
            if self._entry is not None:
                self._entry.remove()
            raise
        if self._entry is not None:
            self._entry.link(made.array.id if made.array is not None else made.id)
        return made

    def _runs_of(self, made: RunBody) -> list[Run[Any]]:
        environment, tasks, entry = self._session.environment, self._job.tasks, self._entry
        if made.array is None:
            return [Run(made.id, environment, tasks, entry)]
        array = made.array.id
        return [Run(f"{array}-{index}", environment, tasks, entry, index) for index in range(made.array.size)]

    def _build_job(self, given: _Given, options: JobOptions, array: str | None) -> JobSpec:
        session, name = self._session, options.get("name")
        if self._entry is not None:
            assert self._call is not None
            command, given = self._entry.command, None
            name = name if name is not None else job_name_of([_function_name(self._call.function)])
        else:
            command, given = (given, None) if isinstance(given, tuple) else ((), given)
        return build_job(
            given,
            command,
            _flags_of(options, name, array),
            session.environment,
            Path.cwd(),
            session.configuration.text("project"),
            usual_export=choose_export(self._place, self._engine),
            warn=lambda sentence: _logger.warning("%s", sentence),
        )

    def _check_reachable(self, *, is_own_on_slurm: bool) -> None:
        """Raise if the job's task would not be this person, or would not see these files."""
        if self._job.image is not None:
            raise _refused("a function needs this very Python and its packages, which an image does not have")
        if self._engine == "kubernetes":
            raise _refused("a function cannot run on Kubernetes: Pods do not see the files of this machine")
        if self._place is JobPlace.ELSEWHERE and not is_own_on_slurm:
            where = f"the engine {self._engine} of {self._session.client.server}"
            raise _refused(f"{where} is not seen to run jobs as you on this machine: they could not read your files")


_Given = str | tuple[str, ...] | Mapping[str, object] | None


def _functions_folder(session: CommandContext, engine: str) -> Path:
    """Where functions lie: on Slurm in the folder of one's own runs, which the nodes see, too."""
    folder = runs_folder(session) if engine == "slurm" else data_folder(session.environment)
    return folder / _FOLDER


def _refused(detail: str) -> MooringsError:
    hint = "submit a command instead, as ['python3', 'train.py']"
    return MooringsError("function.refused", detail, hint=hint)


def _check_options(options: JobOptions) -> None:
    unknown = sorted(set(options) - JobOptions.__optional_keys__)
    if unknown:
        hint = f"functools.partial(function, {unknown[0]}=...) gives it to a function"
        raise TypeError(f"there is no option {unknown[0]!r} of a job; {hint}")


def _job_of(what: object) -> _Given:
    """A job file, a command or tables, in the forms that ``build_job`` takes."""
    if isinstance(what, str | os.PathLike):
        return _job_file(os.fspath(cast("str | os.PathLike[str]", what)))
    if isinstance(what, Mapping):
        return {str(key): _plain(value) for key, value in what.items()}
    if isinstance(what, Sequence) and not isinstance(what, bytes | bytearray):
        return tuple(os.fspath(word) for word in what)
    raise TypeError(f"a {type(what).__name__} is no function, command, job file or dictionary of one")


def _job_file(path: str) -> str:
    if not Path(path).exists():
        hint = "a command is a list of words, as ['python3', 'train.py']"
        raise MooringsError("job.invalid", f"there is no job file {path[:200]}", hint=hint)
    return path


def _plain(value: object) -> object:
    """``value`` with the types that TOML has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _function_name(function: Callable[..., object]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _flags_of(options: JobOptions, name: str | None, array: str | None) -> JobFlags:
    ipus, size, kind = options.get("ipus"), options.get("size"), options.get("kind")
    if ipus is not None and (size is not None or kind not in (None, "ipu")):
        raise TypeError("ipus=N means kind='ipu', size=N: give one or the other")
    after = options.get("after", ())
    return JobFlags(
        size=ipus if ipus is not None else size,
        kind="ipu" if ipus is not None else kind,
        pool=options.get("pool"),
        tasks=options.get("tasks"),
        cpus=options.get("cpus"),
        memory=options.get("memory"),
        replicas=options.get("replicas"),
        time=_duration_text(options["time"]) if "time" in options else None,
        name=name,
        priority=options.get("priority"),
        project=options.get("project"),
        preemptible=options.get("preemptible", False),
        retries=options.get("retries"),
        exported=options.get("export"),
        after=tuple(map(_id_of, [after] if isinstance(after, str | Run) else after)),
        array=array,
        environment=tuple(f"{key}={value}" for key, value in options.get("env", {}).items()),
        labels=tuple(f"{key}={value}" for key, value in options.get("labels", {}).items()),
        env_files=tuple(os.fspath(path) for path in options.get("env_files", ())),
        setup=tuple(options.get("setup", ())),
        workdir=os.fspath(options["chdir"]) if "chdir" in options else None,
        image=options.get("image"),
    )


def _duration_text(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    if isinstance(value, str):
        return value
    raise TypeError(f"time={value!r} has no unit: write '{value}m', '{value}h' or a timedelta")


def _id_of(run: Run[Any] | str) -> str:
    return run.id if isinstance(run, Run) else run
