"""``moor simulate``: serves a trace of jobs under a policy, without a controller."""

from __future__ import annotations

from pathlib import Path

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.output import render_data
from moorings.cli.printing import make_printer, output_option
from moorings.terminal.context import CommandContext


@click.command(
    cls=MoorCommand,
    help="Try a policy on a trace of jobs, without a controller.\n\n"
    "TRACE is CSV with a header. Needed columns: arrives, runs, size (or timestamp, duration, num_gpus); optional: "
    "name, project, user, priority, limit, kind, preemptible, resumable. Hardware takes no time here; otherwise the "
    "same code decides as in a controller. Shown are waits by size of those that started.",
    epilog=examples(
        "moor simulate jobs.csv --pool power-of-two:8x64",
        "moor simulate jobs.csv --pool pools.toml --policy policy.toml --compare other.toml",
        "moor simulate jobs.csv --pool any-subset:512 --projects projects.toml --out result",
    ),
)
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--pool",
    required=True,
    metavar="SPEC",
    help="A pools file, or power-of-two:8x64 (8 domains of 64 devices), or any-subset:512.",
)
@click.option("--policy", metavar="FILE", type=click.Path(path_type=Path), help="Policy file (the defaults).")
@click.option(
    "--compare", metavar="FILE", type=click.Path(path_type=Path), help="Another policy file, shown beside the first."
)
@click.option("--projects", metavar="FILE", type=click.Path(path_type=Path), help="File of projects (none).")
@click.option("--round-up", is_flag=True, help="Give a job whose size no pool has the next larger one.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write report.json, jobs.csv and timeline.svg there.",
)
@output_option
@click.pass_obj
def simulate(
    session: CommandContext,
    /,
    trace: Path,
    *,
    pool: str,
    policy: Path | None,
    compare: Path | None,
    projects: Path | None,
    round_up: bool,
    out: Path | None,
    output: str | None,
) -> None:
    """Try a policy on a trace of jobs, without a controller."""
    from moorings.cli import simulation
    from moorings.core.forecast.traces import parse_trace

    shown = make_printer(session, output, usual="table")
    pools = simulation.read_pools(pool)
    known = simulation.read_projects(projects, pools)
    policies = [(str(policy) if policy is not None else simulation.USUAL, simulation.read_policy(policy))]
    if compare is not None:
        policies.append((str(compare), simulation.read_policy(compare)))
    text = simulation.read_file(trace, "trace.invalid")
    jobs = parse_trace(text, source=str(trace), kind=pools[0].kind, projects=known)
    if round_up:
        jobs = simulation.round_up_sizes(jobs, pools)
    outcomes = [simulation.run_simulation(name, pools, jobs, one, known) for name, one in policies]
    written = simulation.write_files(out, f"{trace.name}: {len(jobs)} jobs", outcomes) if out is not None else []
    if shown.form.name in ("json", "yaml"):
        session.console.print_data(render_data(simulation.outcome_data(outcomes), shown.form, shown.look))
    else:
        session.console.print_data(simulation.outcome_text(outcomes, shown.look))
    if written:
        session.console.info(f"wrote {', '.join(str(path) for path in written)}")
