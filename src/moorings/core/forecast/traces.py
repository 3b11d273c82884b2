"""Traces of jobs: read from CSV, and the results of a simulation in numbers.

A trace has a header and a line for each job. Columns are in any order; those in brackets are optional::

    arrives        seconds (from any beginning), or a time as 2026-01-31T12:00:00Z
    runs           seconds, or a duration as 30m or 1:30:00
    size           devices
    [name]         unique
    [project]      the project it is charged to
    [user]         who submits it
    [priority]     higher is first
    [limit]        time limit, as `runs`; a job ends there at the latest
    [kind]         of accelerator
    [preemptible]  yes or no
    [resumable]    yes or no

The columns ``timestamp``, ``duration`` and ``num_gpus`` of published traces stand for the first three; other columns
are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, isfinite
from typing import Final, NoReturn

from moorings.core.forecast.simulation import JobOutcome, SimulatedJob, SimulationResult
from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import DEFAULT_PROJECT, Projects
from moorings.core.model.quantities import parse_duration_s

SPAN_S_MAX: Final = 100 * 366 * 86_400.0
SIZES_SHOWN_MAX: Final = 12  # with more different sizes, neighbours are grouped
COLUMN_ALIASES: Final = {"timestamp": "arrives", "duration": "runs", "num_gpus": "size"}
REQUIRED_COLUMNS: Final = ("arrives", "runs", "size")
_WORDS: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def parse_trace(
    text: str, *, source: str = "trace.csv", kind: str = "ipu", projects: Projects | None = None
) -> tuple[SimulatedJob, ...]:
    """The jobs of a trace, in its order; the earliest arrives at 0.

    Args:
        text: CSV.
        source: name of the file, for messages.
        kind: of accelerator, for jobs that name none.
        projects: if any are defined, a job must name one of them.

    Raises:
        MooringsError: ``trace.invalid``; the message names file, line and column.
    """
    rows = _rows(text, source)
    _, header = next(rows, (1, []))
    columns = _columns(header, source)
    lines = [_line(number, row, header, columns, source) for number, row in rows]
    if not lines:
        raise _invalid(f"{source}: there is no job in it", "write a line for each job below the header")
    as_time = lines[0].time("arrives")[1]
    arrives = [line.arrival(as_time=as_time) for line in lines]
    began = min(arrives)
    known = projects if projects is not None else Projects()
    jobs = [_job(line, at - began, kind, known) for line, at in zip(lines, arrives, strict=True)]
    _check_names(lines, jobs)
    return tuple(jobs)


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, with their line numbers."""
    reader = csv.reader(text.removeprefix("\ufeff").split("\n"), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise _invalid(f"{source}:{reader.line_num}: {error}", "the file is not valid CSV") from error


def _columns(header: Sequence[str], source: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for at, title in enumerate(header):
        name = title.strip().lower()
        name = COLUMN_ALIASES.get(name, name)
        if name in columns:
            raise _invalid(f"{source}:1: there are two columns {name!r}", "keep one of them")
        columns[name] = at
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise _invalid(
            f"{source}:1: the column {missing[0]!r} is missing",
            "the first line names the columns: arrives,runs,size or timestamp,duration,num_gpus",
        )
    return columns


def _line(number: int, row: Sequence[str], header: Sequence[str], columns: Mapping[str, int], source: str) -> _TraceRow:
    if len(row) != len(header):
        raise _invalid(
            f"{source}:{number}: {len(row)} values stand under {len(header)} columns", "write one value for each column"
        )
    return _TraceRow(source, number, {name: row[at].strip() for name, at in columns.items()})


@dataclass(frozen=True, slots=True)
class _TraceRow:
    """One line of a trace."""

    source: str
    number: int
    values: Mapping[str, str]

    def complain(self, column: str, problem: str, hint: str = "") -> NoReturn:
        raise _invalid(f"{self.source}:{self.number}: {column} {self.values.get(column, '')[:40]!r} {problem}", hint)

    def time(self, column: str) -> tuple[float, bool]:
        """Seconds since 1970 or since any beginning, and whether it was written as a time."""
        text = self.values[column]
        try:
            found = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                self.complain(column, "is no time", "write seconds, or 2026-01-31T12:00:00Z")
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds(), True
        if not isfinite(found):
            self.complain(column, "is no time", "write seconds, or 2026-01-31T12:00:00Z")
        return found, False

    def arrival(self, *, as_time: bool) -> float:
        """Seconds, in the form of the first line."""
        found, mine = self.time("arrives")
        if mine is not as_time:
            self.complain("arrives", "is not written as in the first line", "write all as times, or all as seconds")
        return found

    def duration_s(self, column: str) -> float:
        text = self.values[column]
        try:
            found = float(text)
        except ValueError:
            try:
                return parse_duration_s(text)
            except MooringsError as error:
                self.complain(column, "is no length of time", error.hint)
        if not 0 <= found <= SPAN_S_MAX:
            self.complain(column, "is out of range", f"use 0 to {SPAN_S_MAX:g} seconds")
        return found

    def integer(self, column: str, least: int, most: int) -> int:
        text = self.values[column]
        found = int(text) if text.lstrip("-").isdecimal() and len(text) <= 12 else None
        if found is None or not least <= found <= most:
            self.complain(
                column, "is out of range" if found is not None else "is no whole number", f"{least} to {most}"
            )
        return found

    def flag(self, column: str) -> bool:
        """Yes or no; an empty cell is a yes."""
        text = self.values.get(column, "")
        if text and text.lower() not in _WORDS:
            self.complain(column, "is neither yes nor no")
        return _WORDS[text.lower()] if text else True


def _job(line: _TraceRow, arrives_s: float, kind: str, projects: Projects) -> SimulatedJob:
    given = line.values
    if arrives_s > SPAN_S_MAX:
        line.complain("arrives", "is more than 100 years behind the first job")
    limit_s = line.duration_s("limit") if given.get("limit") else None
    runs_s = line.duration_s("runs")
    project = given.get("project") or DEFAULT_PROJECT
    if projects and project != DEFAULT_PROJECT and projects.get(project) is None:
        unknown = projects.unknown_error(project)
        line.complain("project", "is not in the file of projects", unknown.hint)
    return SimulatedJob(
        name=given.get("name") or f"line-{line.number}",
        arrives_s=arrives_s,
        runs_s=runs_s if limit_s is None else min(runs_s, limit_s),
        size=line.integer("size", 1, 1 << 24),
        kind=given.get("kind") or kind,
        project=project,
        subject=given.get("user") or "user",
        priority=line.integer("priority", -PRIORITY_MAX, PRIORITY_MAX) if given.get("priority") else 0,
        limit_s=limit_s,
        preemptible=line.flag("preemptible"),
        resumable=line.flag("resumable"),
    )


def _check_names(lines: Sequence[_TraceRow], jobs: Sequence[SimulatedJob]) -> None:
    seen: dict[str, int] = {}
    for line, job in zip(lines, jobs, strict=True):
        if job.name in seen:
            line.complain("name", f"stands in line {seen[job.name]} already", "give each job a name of its own")
        seen[job.name] = line.number


def _invalid(detail: str, hint: str) -> MooringsError:
    return MooringsError("trace.invalid", detail, hint=hint)


# -- results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """The waits of jobs of some sizes, in seconds; only jobs that started.

    Attributes:
        least: the smallest size among them.
        most: the largest.
        jobs: how many started.
        mean_s: like the fields below: None if none started.
    """

    least: int
    most: int
    jobs: int
    mean_s: float | None
    median_s: float | None
    p95_s: float | None
    longest_s: float | None

    @property
    def sizes(self) -> str:
        """The sizes as text: ``16``, ``17-32``."""
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The results of a trace under a policy.

    Attributes:
        waits: by size, ascending.
        every: of all sizes together.
        guaranteed: of jobs that first started within a guarantee.
        projects: by project; empty if there is only one.
        jobs: of the trace.
        refused: jobs of a kind or of a size that no pool has.
        unknown_kind: those of them of a kind that no pool has.
        unstarted: others that never started.
        n_devices: of all pools.
        utilisation: the share of device time in use until the last job ended.
        utilisation_arriving: the same until the last job arrived: afterwards the remaining jobs only run out.
        moves: moves per hundred jobs.
        yields: yields per hundred jobs.
        span_s: from the first arrival to the last end.
    """

    waits: tuple[WaitStatistics, ...]
    every: WaitStatistics
    guaranteed: WaitStatistics
    projects: Mapping[str, WaitStatistics]
    jobs: int
    refused: int
    unknown_kind: int
    unstarted: int
    n_devices: int
    utilisation: float
    utilisation_arriving: float
    moves: float
    yields: float
    span_s: float


def summarize(simulated: SimulationResult) -> TraceSummary:
    """The numbers of a simulation."""
    courses = simulated.courses
    able = [course for course in courses if not course.rejection_reason]
    sizes = {course.job.size for course in able}
    by_class: dict[tuple[int, int], list[JobOutcome]] = {one: [] for one in size_classes(sizes)}
    bounds = {size: one for one in by_class for size in sizes if one[0] <= size <= one[1]}
    for course in able:
        by_class[bounds[course.job.size]].append(course)
    by_project: dict[str, list[JobOutcome]] = {}
    for course in sorted(able, key=lambda course: course.job.project):
        by_project.setdefault(course.job.project, []).append(course)
    hundred = 100 / max(1, len(able))
    arrived_s = max((course.job.arrives_s for course in able), default=0.0)
    return TraceSummary(
        waits=tuple(_waits(*one, mine) for one, mine in by_class.items()),
        every=_all_waits(able),
        guaranteed=_all_waits([course for course in able if course.is_guaranteed]),
        projects={name: _all_waits(mine) for name, mine in by_project.items()} if len(by_project) > 1 else {},
        jobs=len(courses),
        refused=len(courses) - len(able),
        unknown_kind=sum(course.is_unknown_kind for course in courses),
        unstarted=sum(course.started_s is None for course in able),
        n_devices=simulated.n_devices,
        utilisation=simulated.utilisation(),
        utilisation_arriving=simulated.utilisation(arrived_s),
        moves=simulated.moves * hundred,
        yields=simulated.yields * hundred,
        span_s=simulated.levels[-1].at_s if simulated.levels else 0.0,
    )


def size_classes(sizes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Sizes as classes (least, most): each its own, or, if there are many, grouped by the next power of two."""
    known = sorted(set(sizes))
    if len(known) <= SIZES_SHOWN_MAX:
        return tuple((size, size) for size in known)
    found: dict[int, list[int]] = {}
    for size in known:
        found.setdefault((size - 1).bit_length(), []).append(size)
    return tuple((min(mine), max(mine)) for mine in found.values())


def _all_waits(courses: Sequence[JobOutcome]) -> WaitStatistics:
    sizes = [course.job.size for course in courses] or [0]
    return _waits(min(sizes), max(sizes), courses)


def _waits(least: int, most: int, courses: Iterable[JobOutcome]) -> WaitStatistics:
    waits = sorted(course.wait_s for course in courses if course.wait_s is not None)
    if not waits:
        return WaitStatistics(least, most, 0, None, None, None, None)
    return WaitStatistics(
        least, most, len(waits), sum(waits) / len(waits), _rank(waits, 0.5), _rank(waits, 0.95), waits[-1]
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    """The least value such that ``share`` of all values are at most it."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
