"""``submit`` and ``map_array``: a job from a Python program, built, checked and handed in as ``moor run`` does it."""

from __future__ import annotations

import functools
import inspect
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

    None is as if left out. ``time`` is a duration as ``"1h"`` or a ``timedelta``, ``memory`` a size as ``"4G"``;
    ``after`` is a run, an id or a name, or several; ``size=0`` asks for no devices.
    """

    ipus: int | None
    size: int | None
    kind: str | None
    pool: str | None
    tasks: int | None
    cpus: int | None
    memory: str | None
    replicas: int | None
    time: str | timedelta | None
    name: str | None
    priority: int | None
    project: str | None
    preemptible: bool | None
    retries: int | None
    export: str | None
    env: Mapping[str, str] | None
    env_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    setup: str | Sequence[str] | None
    after: Run[Any] | str | Sequence[Run[Any] | str] | None
    labels: Mapping[str, str] | None
    chdir: str | os.PathLike[str] | None
    engine: str | None
    image: str | os.PathLike[str] | None
    resume: Run[Any] | str | None
    resume_from: str | None


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
        TypeError: there is no such option, it has another type, or ``what`` is no job.
    """
    options = _check_options(options)
    if callable(what):
        _check_function(what)
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
    options = _check_options(options)
    _check_function(function)
    if not iterables:
        raise TypeError("map_array() needs the function's arguments: map_array(train, [0.1, 0.2])")
    _check_type("at_once", at_once, *_WHOLE)
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
        array = (body.array.id, body.array.size) if body.array is not None else None
        return Run(body.id, environment, body.job.tasks, entry, index, array)

    return in_session(environment, find, fails_unreached=True)


def _submit(given: _Given, call: _Call | None, options: JobOptions, array: str | None = None) -> list[Run[Any]]:
    environment = dict(os.environ)

    def submit_in(session: CommandContext) -> list[Run[Any]]:
        return _Submitting(session, given, call, options, array).submit()

    return in_session(environment, submit_in, fails_unreached=True)


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
        engine, resume = options.get("engine"), options.get("resume")
        self._engine = engine if engine is not None else "local"
        self._entry: FunctionEntry | None = None
        if call is not None:
            self._entry = new_entry(_functions_folder(session, self._engine))
        self._place = find_place(session.configuration.text("server"), self._engine, session.environment)
        self._job = self._build_job(given, options, array)
        if self._job.array and call is None:
            detail = "submit() returns one run, and this job is an array"
            raise MooringsError("job.invalid", detail, hint="'moor run' starts it; map_array() calls a function")
        self._resume = _id_of(resume) if resume is not None else None
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
        except MooringsError as error:
            is_unmade = isinstance(error, ApiError) or not self._session.client.requests_sent
            if self._entry is not None and is_unmade:
                self._entry.remove()
            raise
        if self._entry is not None:
            self._entry.link(made.array.id if made.array is not None else made.id)
        return made

    def _runs_of(self, made: RunBody) -> list[Run[Any]]:
        environment, tasks, entry = self._session.environment, self._job.tasks, self._entry
        if made.array is None:
            return [Run(made.id, environment, tasks, entry)]
        array, size = made.array.id, made.array.size
        return [Run(f"{array}-{index}", environment, tasks, entry, index, (array, size)) for index in range(size)]

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


_PATH = (str, os.PathLike)
_WHOLE = (int,), "a whole number"
_TEXT = (str,), "text"
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("ipus", "size", "tasks", "cpus", "replicas", "priority", "retries"), _WHOLE),
    **dict.fromkeys(("name", "project", "pool", "kind", "engine"), _TEXT),
    "memory": ((str,), "a size such as '4G'"),
    "time": ((str, timedelta), "a duration such as '1h', or a timedelta"),
    "preemptible": ((bool,), "True or False"),
    "export": ((str,), "text such as 'NONE'"),
    "env": ((Mapping,), "a dictionary such as {'A': '1'}"),
    "labels": ((Mapping,), "a dictionary such as {'team': 'nlp'}"),
    "chdir": (_PATH, "a path"),
    "image": (_PATH, "an image or a path"),
    "resume": ((str, Run), "a run, an id or a name"),
    "resume_from": ((str,), "the path or the name of a checkpoint, as text"),
}
_SEVERAL: dict[str, tuple[tuple[type, ...], str]] = {
    "env_files": (_PATH, "a path"),
    "setup": _TEXT,
    "after": ((str, Run), "a run, an id or a name"),
}


def _check_options(options: JobOptions) -> JobOptions:
    """The options that are given, those that can be several as tuples.

    Raises:
        TypeError: there is no such option, or it has another type.
    """
    unknown = sorted(set(options) - JobOptions.__optional_keys__)
    if unknown:
        hint = f"functools.partial(function, {unknown[0]}=...) gives it to a function"
        raise TypeError(f"there is no option {unknown[0]!r} of a job; {hint}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name in _SEVERAL:
            given[name] = _several(name, value, *_SEVERAL[name])
        elif name == "time" and isinstance(value, int | float) and not isinstance(value, bool):
            raise TypeError(f"time={value!r} has no unit: write '{value}m', '{value}h' or a timedelta")
        else:
            _check_type(name, value, *_TYPES[name])
    return cast("JobOptions", given)


def _check_type(name: str, value: object, types: tuple[type, ...], wanted: str) -> None:
    is_right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if value is not None and not is_right:
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def _several(name: str, value: object, types: tuple[type, ...], wanted: str) -> tuple[object, ...]:
    if isinstance(value, types):
        return (value,)
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {wanted}, or a list of them, not {type(value).__name__}")
    several = tuple(value)
    for number, one in enumerate(several, 1):
        if not isinstance(one, types):
            raise TypeError(f"{name} must be {wanted}, or a list of them, and number {number} is {type(one).__name__}")
    return several


def _check_function(function: object) -> None:
    """Raise if it is none, or if a call would only return a coroutine."""
    if not callable(function):
        hint = "submit() starts a command or a job file"
        raise TypeError(f"map_array() calls a function, and a {type(function).__name__} is none; {hint}")
    while isinstance(function, functools.partial):
        function = function.func
    for each in (function, getattr(type(function), "__call__", None)):  # noqa: B004 - what a call of it runs
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            hint = "give a function that calls asyncio.run()"
            raise TypeError(f"{_function_name(function)} is an async function, which nothing would await; {hint}")


def _job_of(what: object) -> _Given:
    """A job file, a command or tables, in the forms that ``build_job`` takes."""
    if isinstance(what, str | os.PathLike):
        return _job_file(os.fspath(cast("str | os.PathLike[str]", what)))
    if isinstance(what, Mapping):
        return {str(key): _plain(value) for key, value in what.items()}
    if isinstance(what, Sequence) and not isinstance(what, bytes | bytearray):
        for number, word in enumerate(what, 1):
            if not isinstance(word, str | os.PathLike):
                raise TypeError(f"word {number} of the command must be text, not {type(word).__name__}")
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
    env_files = cast("Sequence[str | os.PathLike[str]]", options.get("env_files") or ())
    time, chdir, image = options.get("time"), options.get("chdir"), options.get("image")
    return JobFlags(
        size=ipus if ipus is not None else size,
        kind="ipu" if ipus is not None else kind,
        pool=options.get("pool"),
        tasks=options.get("tasks"),
        cpus=options.get("cpus"),
        memory=options.get("memory"),
        replicas=options.get("replicas"),
        time=_duration_text(time) if time is not None else None,
        name=name,
        priority=options.get("priority"),
        project=options.get("project"),
        preemptible=options.get("preemptible") or False,
        retries=options.get("retries"),
        exported=options.get("export"),
        after=_after_of(cast("Sequence[Run[Any] | str]", options.get("after") or ())),
        array=array,
        environment=tuple(f"{key}={value}" for key, value in (options.get("env") or {}).items()),
        labels=tuple(f"{key}={value}" for key, value in (options.get("labels") or {}).items()),
        env_files=tuple(os.fspath(path) for path in env_files),
        setup=tuple(options.get("setup") or ()),
        workdir=os.fspath(chdir) if chdir is not None else None,
        image=os.fspath(image) if image is not None else None,
    )


def _duration_text(value: str | timedelta) -> str:
    return f"{value.total_seconds():.3f}s" if isinstance(value, timedelta) else value


def _after_of(runs: Sequence[Run[Any] | str]) -> tuple[str, ...]:
    """What to wait for, by id; for all runs of an array that is the array's: one job names only a few."""
    arrays: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        if isinstance(run, Run) and run.array is not None:
            arrays.setdefault(run.array, set()).add(run.id)
    whole = {ident: array for (array, size), found in arrays.items() if len(found) == size for ident in found}
    named = (whole.get(run.id, run.id) if isinstance(run, Run) else run for run in runs)
    return tuple(dict.fromkeys(named))


def _id_of(run: Run[Any] | str) -> str:
    return run.id if isinstance(run, Run) else run
