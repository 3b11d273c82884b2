"""Shared by ``moor simulate`` and ``moor replay``: reading their files, and showing the result of a trace."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moorings.cli.guarantees import parse_guarantees
from moorings.cli.output import TableStyle, render_table
from moorings.cli.timeline_svg import timeline
from moorings.core.forecast.simulation import JobOutcome, SimulatedJob, SimulationResult, simulate
from moorings.core.forecast.traces import TraceSummary, WaitStatistics, summarize
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.policy import DEFAULT_POLICY as USUAL_POLICY
from moorings.core.model.policy import Policy, parse_policy
from moorings.core.model.pools import parse_pools
from moorings.core.model.projects import Project, Projects, ProjectShare, UserLimit, check_project
from moorings.core.model.quantities import age_text, join_first
from moorings.core.model.toml_table import TomlTable
from moorings.core.model.topology import AnySubset, Pool, PowerOfTwo

USUAL = "the defaults"
_WRITE_POOL = "write power-of-two:8x64, any-subset:512 or the name of a pools file"
_POOL_KEYS = "'man moorings-pools' lists all keys of a pools file"
_PROJECT_KEYS = (
    "each [[project]] has a name of its own, and may have guarantee, weight, devices_max, user_devices_max and "
    'user_limits; write weight = 2.0, guarantee = ["pod64=16x2"], user_limits = { ann = 8 }'
)
_POOLS_SHOWN = 8
_SPEC = re.compile(r"(power-of-two:([1-9][0-9]{0,5})x([1-9][0-9]{0,5})|any-subset:([1-9][0-9]{0,6}))")


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """One simulation: its name and its result."""

    name: str
    simulated: SimulationResult
    report: TraceSummary


def read_file(path: Path, code: str, hint: str = "name a text file that you may read") -> str:
    """The text of a file; ``hint`` is for the error if there is none.

    Raises:
        MooringsError: with that code: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MooringsError(code, f"{path} cannot be read: {why}", hint=hint) from error


def read_pools(spec: str) -> tuple[Pool, ...]:
    """The pools of a pools file, or the one pool of ``power-of-two:8x64`` or ``any-subset:512``.

    Raises:
        MooringsError: ``pools.invalid``.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        if not spec or re.match(r"(power-of-two|any-subset):", spec):
            raise MooringsError("pools.invalid", f"{spec[:80]!r} is no pool", hint=_WRITE_POOL)
        text = read_file(Path(spec), "pools.invalid", _WRITE_POOL)
        with _hinting(_POOL_KEYS):
            return tuple(entry.pool for entry in parse_pools(text, source=spec))
    if match[4]:
        return (Pool(PoolName("pool"), "ipu", "simulated", AnySubset(int(match[4]), int(match[4]))),)
    domains, size = int(match[2]), int(match[3])
    return (Pool(PoolName("pool"), "ipu", "simulated", PowerOfTwo(domains, size, _largest(domains, size))),)


@contextlib.contextmanager
def _hinting(hint: str) -> Iterator[None]:
    """Add a hint to an error without one."""
    try:
        yield
    except MooringsError as error:
        if error.hint:
            raise
        raise MooringsError(error.code, error.detail, hint=hint) from error


def _largest(domains: int, size: int) -> int:
    """The largest block: as many whole domains as give a power of two; if ``size`` is none, the pool itself refuses."""
    return size << (domains.bit_length() - 1)


def read_policy(path: Path | None) -> Policy:
    """The policy in a policy file; without one, the defaults.

    Raises:
        MooringsError: ``policy.invalid``.
    """
    return USUAL_POLICY if path is None else parse_policy(read_file(path, "policy.invalid"), source=str(path))


def read_projects(path: Path | None, pools: Sequence[Pool]) -> Projects:
    """The projects in a file: ``[[project]]`` with the options of ``moor create project`` as keys.

    Raises:
        MooringsError: ``project.invalid``, and other errors of a project, with file and line.
    """
    if path is None:
        return Projects((), pools)
    text = read_file(path, "project.invalid")
    with _hinting(_PROJECT_KEYS):
        return _parse_projects(text, str(path), pools)


def _parse_projects(text: str, source: str, pools: Sequence[Pool]) -> Projects:
    projects = Projects((), pools)
    top = TomlTable.parse(text, source=source, code="project.invalid")
    tables = top.tables("project")
    top.reject_unknown_keys()
    by_name = {pool.name: pool for pool in pools}
    for table in sorted(tables, key=lambda one: one.text("name").count("/")):  # parents before their parts
        project = _project(table, by_name)
        if projects.get(project.name) is not None:
            table.fail_at("name", f"project {project.name!r} is defined twice", "keep one of them")
        try:
            check_project(project, projects, by_name)
        except MooringsError as error:
            hint = _pools_text(by_name) if error.code == "pool.unknown" else error.hint
            raise MooringsError(error.code, f"{table.location('name')}: {error.detail}", hint=hint) from error
        projects = projects.with_project(project)
    return projects


def _project(table: TomlTable, pools: Mapping[PoolName, Pool]) -> Project:
    def topology_of(name: str) -> str:
        pool = pools.get(PoolName(name))
        if pool is None:
            table.fail_at("guarantee", f"there is no pool {name[:40]!r}", _pools_text(pools))
        return "any-subset" if isinstance(pool.topology, AnySubset) else "blocks"

    try:
        shares = parse_guarantees(table.strings("guarantee", ()), topology_of)
    except MooringsError as error:
        if error.detail.startswith(table.location("guarantee")):
            raise
        table.fail_at("guarantee", error.detail, error.hint)
    limits = table.table("user_limits")
    project = Project(
        name=table.text("name"),
        shares=tuple(
            ProjectShare(PoolName(pool), tuple((int(size), count) for size, count in blocks.items()))
            for pool, blocks in shares.items()
            if blocks
        ),
        weight=table.number("weight", 1.0),
        devices_max=table.integer("devices_max") if table.has("devices_max") else None,
        user_devices_max=table.integer("user_devices_max") if table.has("user_devices_max") else None,
        user_limits=tuple(UserLimit(subject, limits.integer(subject)) for subject in limits.keys()),
    )
    table.reject_unknown_keys()
    return project


def _pools_text(pools: Iterable[PoolName]) -> str:
    names = list(pools)
    shown = join_first(names, _POOLS_SHOWN)
    return f"the only pool is {shown}" if len(names) == 1 else f"the pools are {shown}"


def run_simulation(
    name: str, pools: Sequence[Pool], jobs: Sequence[SimulatedJob], policy: Policy, projects: Projects
) -> SimulationOutcome:
    """Run all jobs under a policy."""
    simulated = simulate(pools, jobs, policy, projects)
    return SimulationOutcome(name, simulated, summarize(simulated))


def round_up_sizes(jobs: Sequence[SimulatedJob], pools: Sequence[Pool]) -> tuple[SimulatedJob, ...]:
    """The jobs, each with its size rounded up to the next one that a pool of its kind has."""
    sizes: dict[str, list[int]] = {}
    for pool in pools:
        sizes[pool.kind] = sorted({*sizes.get(pool.kind, ()), *pool.topology.sizes})
    found = []
    for job in jobs:
        size = next((one for one in sizes.get(job.kind, ()) if one >= job.size), job.size)
        found.append(job if size == job.size else replace(job, size=size))
    return tuple(found)


# -- for people ------------------------------------------------------------------------------------------------------


def outcome_text(outcomes: Sequence[SimulationOutcome], look: TableStyle) -> str:
    """One result, or two side by side."""
    marks = ("A", "B") if len(outcomes) > 1 else ("",)
    headers = ["SIZE", "JOBS"]
    headers += [
        f"{title}{'-' if mark else ''}{mark}" for title in ("MEAN", "MEDIAN", "P95", "LONGEST") for mark in marks
    ]
    rows = [_row(waits.sizes, outcomes, _sizes_of(outcomes, at)) for at, waits in enumerate(outcomes[0].report.waits)]
    rows.append(_row("all", outcomes, [outcome.report.every for outcome in outcomes]))
    rows += [
        _row(project, outcomes, [outcome.report.projects[project] for outcome in outcomes])
        for project in outcomes[0].report.projects
    ]
    if any(outcome.report.guaranteed.jobs for outcome in outcomes):
        rows.append(_row("guaranteed", outcomes, [outcome.report.guaranteed for outcome in outcomes]))
    parts = [render_table(headers, rows, look), "", render_table(_titles(outcomes), _measures(outcomes), look)]
    return "\n".join(parts)


def _sizes_of(outcomes: Sequence[SimulationOutcome], at: int) -> list[WaitStatistics]:
    return [outcome.report.waits[at] for outcome in outcomes]


def _row(name: str, outcomes: Sequence[SimulationOutcome], waits: Sequence[WaitStatistics]) -> list[str]:
    values = [(one.mean_s, one.median_s, one.p95_s, one.longest_s) for one in waits]
    cells = [_wait_text(value[at]) for at in range(4) for value in values]
    started = "/".join(dict.fromkeys(str(one.jobs) for one in waits))
    return [name, started, *cells]


def _wait_text(seconds: float | None) -> str:
    return "" if seconds is None else age_text(seconds)


def _titles(outcomes: Sequence[SimulationOutcome]) -> list[str]:
    if len(outcomes) == 1:
        return ["MEASURE", outcomes[0].name]
    return ["MEASURE", *(f"{mark}: {outcome.name}" for mark, outcome in zip("AB", outcomes, strict=True))]


def _measures(outcomes: Sequence[SimulationOutcome]) -> list[list[str]]:
    reports = [outcome.report for outcome in outcomes]
    rows = [
        ["in use until the last job came", *(f"{report.utilisation_arriving:.1%}" for report in reports)],
        ["in use until the last job ended", *(f"{report.utilisation:.1%}" for report in reports)],
        ["first arrival to last end", *(age_text(report.span_s) for report in reports)],
        ["moves per 100 jobs", *(f"{report.moves:.1f}" for report in reports)],
        ["yields per 100 jobs", *(f"{report.yields:.1f}" for report in reports)],
    ]
    if any(report.unstarted for report in reports):
        rows.append(["jobs that never started", *(str(report.unstarted) for report in reports)])
    if any(report.unknown_kind for report in reports):
        rows.append(["jobs of a kind no pool has", *(str(report.unknown_kind) for report in reports)])
    if any(report.refused > report.unknown_kind for report in reports):
        rows.append(["jobs of a size no pool has", *(str(report.refused - report.unknown_kind) for report in reports)])
    return rows


# -- for programs ----------------------------------------------------------------------------------------------------


def outcome_data(outcomes: Sequence[SimulationOutcome]) -> dict[str, object]:
    """One result, or two, as JSON."""
    return {"reports": [{"policy": outcome.name, **_report_data(outcome.report)} for outcome in outcomes]}


def _report_data(report: TraceSummary) -> dict[str, object]:
    return {
        "waits": [_waits_data(waits) for waits in report.waits],
        "all": _waits_data(report.every),
        "guaranteed": _waits_data(report.guaranteed),
        "projects": {name: _waits_data(waits) for name, waits in report.projects.items()},
        "jobs": report.jobs,
        "refused": report.refused,
        "unknownKind": report.unknown_kind,
        "unstarted": report.unstarted,
        "devices": report.n_devices,
        "utilisation": report.utilisation,
        "utilisationArriving": report.utilisation_arriving,
        "movesPer100": report.moves,
        "yieldsPer100": report.yields,
        "spanS": report.span_s,
    }


def _waits_data(waits: WaitStatistics) -> dict[str, object]:
    found = asdict(waits)
    return {
        "sizes": [found["least"], found["most"]],
        "jobs": found["jobs"],
        **{
            name: found[key]
            for name, key in (
                ("meanS", "mean_s"),
                ("medianS", "median_s"),
                ("p95S", "p95_s"),
                ("longestS", "longest_s"),
            )
        },
    }


def write_files(folder: Path, title: str, outcomes: Sequence[SimulationOutcome]) -> list[Path]:
    """Write ``report.json``, ``jobs.csv`` and ``timeline.svg`` into a folder, made if missing; return the paths.

    Raises:
        MooringsError: ``trace.invalid``: the folder is not writable.
    """
    curves = [(outcome.name, outcome.simulated.levels) for outcome in outcomes]
    texts = {
        "report.json": json.dumps(outcome_data(outcomes), indent=2) + "\n",
        "jobs.csv": _jobs_csv(outcomes),
        "timeline.svg": timeline(title, curves, outcomes[0].simulated.n_devices),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MooringsError("trace.invalid", f"{folder} cannot be written: {error.strerror}") from error
    return [folder / name for name in texts]


def _jobs_csv(outcomes: Sequence[SimulationOutcome]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("policy", "name", "project", "size", "arrives", "waits", "ends", "pool", "moves", "yields", "why"))
    for outcome in outcomes:
        writer.writerows((outcome.name, *_course_row(course)) for course in outcome.simulated.courses)
    return buffer.getvalue()


def _course_row(course: JobOutcome) -> tuple[object, ...]:
    job = course.job
    return (
        *(job.name, job.project, job.size, job.arrives_s, course.wait_s, course.ended_s, course.pool),
        *(course.moves, course.yields, course.rejection_reason),
    )
