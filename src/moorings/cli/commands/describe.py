"""``moor describe`` and ``moor explain``: all details of one resource, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from moorings.cli.arrays import array_instead, elements_instead, find_run, summarize_array
from moorings.cli.command_tree import NounGroup, complete_names, examples, name_argument, strip_nouns
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.named import Named, resolve_any
from moorings.cli.output import OutputFormat, render_data, render_list
from moorings.cli.output import describe as described
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.cli.resources import CHECKPOINTS, EVENTS, KINDS, QUOTAS, estimate_text
from moorings.client.requests import ClaimFilter, EventFilter
from moorings.core.model.errors import MooringsError
from moorings.core.model.owners import external_job_name
from moorings.core.model.timestamps import Timestamp
from moorings.submission.slurm_submission import report_own
from moorings.terminal.context import CommandContext
from moorings.terminal.text import escape_controls
from moorings.wire.codec import encode
from moorings.wire.shapes import API_VERSION, ExplanationBody, PoolBody, ReasonBody, RunBody
from moorings.workloads.runs import ENDED, RunState

EVENTS_SHOWN = 20
CHECKPOINTS_SHOWN = 5
ANY_NOUN = "run-or-claim"  # of a name without one; no user writes it


def _describe(session: CommandContext, noun: str, name: str, output: str | None) -> None:
    client, kind = session.client, KINDS[noun]
    ident = strip_nouns(noun, [name])[0]
    body: object
    where: EventFilter | None = None
    if noun == "pool":
        body = client.get_pool(ident)
    elif noun == "device":
        body = client.device(ident)
    elif noun == "partition":
        body = partition = client.partition(ident)
        where = EventFilter(claim=partition.claim)
    elif noun == "claim":
        body = claim = client.get_claim(ident)
        where = EventFilter(claim=claim.id)
    elif noun == "project":
        body = client.project(ident)
    else:
        report_own(session)
        try:
            body = run = find_run(client, ident)
        except MooringsError as error:
            _describe_array(session, elements_instead(client, ident, error), output)
            return
        where = EventFilter(run=run.id)
    shown = make_printer(session, output, usual="table")
    if shown.form.name != "table":
        shown.show_one(kind, body)
        return
    short = _without_checkpoints(body) if isinstance(body, RunBody) else body
    session.console.print_data(described(short, session.now(), shown.look))
    if isinstance(body, RunBody):
        _show_checkpoints(session, body)
    if noun == "project":
        _show_quotas(session, ident)
    if isinstance(body, PoolBody):
        _show_queued(session, body)
    if where is not None:
        _show_events(session, where)


def _describe_array(session: CommandContext, runs: Sequence[RunBody], output: str | None) -> None:
    """Show an array in short; each of its runs has more to tell."""
    shown = make_printer(session, output, usual="table")
    if shown.form.name != "table":
        shown.show_list(KINDS["run"], runs)
        return
    session.console.print_data(described(summarize_array(runs), session.now(), shown.look))
    session.console.info(f"'moor describe run {runs[0].id}' shows one of them")


def _without_checkpoints(run: RunBody) -> RunBody:
    """The run without those that a table shows, and before it stops without what it would resume from."""
    point = run.resume_point if run.state == RunState.PAUSED else None
    return replace(run, checkpoints=(), resume_point=point)


def _show_checkpoints(session: CommandContext, run: RunBody) -> None:
    if run.checkpoints:
        newest = run.checkpoints[:CHECKPOINTS_SHOWN]
        table = render_list(CHECKPOINTS, newest, OutputFormat(), session.now(), table_style(session))
        session.console.print_data("\nNewest checkpoints:\n" + "\n".join(f"  {line}" for line in table.splitlines()))


def _show_quotas(session: CommandContext, project: str) -> None:
    quotas = [quota for quota in session.client.list_quotas() if quota.project == project and quota.pool]
    if quotas:
        table = render_list(QUOTAS, quotas, OutputFormat("wide"), session.now(), table_style(session))
        session.console.print_data("\nQuotas:\n" + "\n".join(f"  {line}" for line in table.splitlines()))


def _show_queued(session: CommandContext, pool: PoolBody) -> None:
    """The jobs that wait for the pool in other schedulers' queues, in their order, with the reason of each."""
    lines = []
    for queue in session.client.list_queues():
        for job in queue.jobs if queue.accelerator == pool.accelerator else ():
            if job.pool in (None, pool.name):
                why = job.reason.sentence if job.reason is not None else "nothing is known yet"
                lines.append(
                    escape_controls(f"  {external_job_name(job.owner) or job.owner}, {job.size} devices: {why}")
                )
    if lines:
        session.console.print_data("\nIn other schedulers' queues:\n" + "\n".join(lines))


def _show_events(session: CommandContext, where: EventFilter) -> None:
    events = session.client.last_events(where, EVENTS_SHOWN)
    if events:
        table = render_list(EVENTS, events, OutputFormat(), session.now(), table_style(session))
        session.console.print_data("\nEvents:\n" + "\n".join(f"  {line}" for line in table.splitlines()))


def _describe_command(noun: str) -> click.Command:
    @name_argument(noun)
    @output_option
    @click.pass_obj
    def callback(session: CommandContext, name: str, output: str | None) -> None:
        _describe(session, noun, name, output)

    return click.command(noun, cls=NounGroup.command_class, help=f"Show everything about one {noun}.")(callback)


describe = NounGroup(
    name="describe",
    help="Show everything about one thing.",
    epilog=examples("moor describe run digits", "moor describe pool pod64", "moor describe partition/p64"),
    no_args_is_help=True,
)
for _noun in ("pool", "device", "partition", "claim", "run", "project"):
    describe.add_command(_describe_command(_noun), _noun)


def explanation_text(explanation: ExplanationBody, now: Timestamp, noun: str = "claim") -> str:
    """An explanation as lines of text."""
    place = f" (position {explanation.position})" if explanation.position is not None else ""
    sentence = f"{noun} {explanation.claim} is {explanation.state}{place}: {explanation.summary}".lstrip()
    if explanation.summary.startswith("claim ") and f" is {explanation.state}" in explanation.summary:
        sentence = explanation.summary  # if a claim does not wait, the controller's summary says it all
    lines = [escape_controls(sentence)]
    for reason in explanation.reasons:
        lines += _reason_lines(reason)
    if explanation.estimate is not None:
        lines.append(f"when: {estimate_text(explanation.estimate, now)}")
    lines += [f"to start now: {escape_controls(option)}" for option in explanation.options]
    return "\n".join(lines)


def _reason_lines(reason: ReasonBody) -> list[str]:
    lines = [escape_controls(f"- {reason.message} [{reason.code}]")]
    if reason.blockers:
        lines.append(f"  in the way: {escape_controls(', '.join(reason.blockers))}")
    if reason.until:
        lines.append(escape_controls(f"  until: {reason.until[:19]}Z at the latest"))
    if reason.hint:
        lines.append(f"  hint: {escape_controls(reason.hint)}")
    return lines


def _claim_of(session: CommandContext, noun: str, ident: str) -> str:
    if noun == "partition":
        return session.client.partition(ident).claim
    return ident


def _explain_queued(run: RunBody) -> ExplanationBody:
    """The explanation of a run that waits in another scheduler's queue, or left it."""
    message = run.reason.message if run.reason is not None else run.detail
    summary = message or f"engine {run.engine} has it" + (f" as {run.reference}" if run.reference else "")
    reasons = (run.reason,) if run.reason is not None else ()
    return ExplanationBody(claim=run.id, state=run.state, summary=summary, reasons=reasons)


def _explain(session: CommandContext, noun: str, ident: str, output: str | None, *, when: bool) -> None:
    shown = make_printer(session, output, usual="table")
    run = _run_or_waiting_element(session, ident) if noun == "run" else None
    if run is not None and run.claim is None:
        explanation = _explain_queued(run)
    else:
        claim = run.claim if run is not None else None
        explanation = session.client.explain_claim(claim or _claim_of(session, noun, ident), when=when)
    if shown.form.name in ("json", "yaml"):
        document = {"apiVersion": API_VERSION, "kind": "Explanation", **encode(explanation)}
        session.console.print_data(render_data(document, shown.form, shown.look))
    else:
        about = "claim" if run is None or run.claim else "run"
        session.console.print_data(explanation_text(explanation, session.now(), about))


def _run_or_waiting_element(session: CommandContext, ident: str) -> RunBody:
    """The run of that name; of an array the first that waits, else the first that has not ended, else the last."""
    try:
        return find_run(session.client, ident)
    except MooringsError as error:
        runs = elements_instead(session.client, ident, error)
    array = summarize_array(runs)
    session.console.info(f"array {array.id}: {', '.join(array.states)}")
    waiting = [run for run in runs if run.state == RunState.WAITING]
    return (waiting or [run for run in runs if run.state not in ENDED] or runs[-1:])[0]


_when = click.option("--when", is_flag=True, help="Also when it starts, and what would let it start now.")


def _explain_command(noun: str) -> click.Command:
    @name_argument(noun)
    @_when
    @output_option
    @click.pass_obj
    def callback(session: CommandContext, name: str, *, when: bool, output: str | None) -> None:
        _explain(session, noun, strip_nouns(noun, [name])[0], output, when=when)

    text = f"Say why a {noun} is where it is, and what would change that."
    return click.command(noun, cls=NounGroup.command_class, help=text)(callback)


@click.command(ANY_NOUN, cls=NounGroup.command_class, hidden=True)
@click.argument("name", metavar="NAME", shell_complete=complete_names("run", "claim"))
@_when
@output_option
@click.pass_obj
def _explain_any(session: CommandContext, name: str, *, when: bool, output: str | None) -> None:
    """Say why a run or a claim is where it is, by name alone."""
    try:
        named = resolve_any(session, name, "moor explain")
    except MooringsError as error:
        named = Named("run", array_instead(session.client, name, error))
    _explain(session, named.noun, named.ident, output, when=when)


explain = NounGroup(
    name="explain",
    help="Explain why something waits and what would let it start.\n\n"
    "A name without a noun is that of a run, or of a claim that no run has.",
    epilog=examples("moor explain digits", "moor explain claim p64 --when", "moor explain slurm 39"),
    no_args_is_help=True,
    default_noun=ANY_NOUN,
)
explain.add_command(_explain_any)


def parse_slurm_job(text: str) -> tuple[str, int]:
    """Cluster (empty: not given) and number of ``[CLUSTER/]JOB``."""
    cluster, _, number = text.removeprefix("slurm/").rpartition("/")
    if not (number.isascii() and number.isdecimal() and 0 < int(number) < 2**32) or "/" in cluster:
        hint = "write moor explain slurm 39, or CLUSTER/39; of a task of an array its own number (squeue -O jobid)"
        raise UsageErrorWithHint(f"{text[:80]!r} is no job of Slurm", hint=hint)
    return cluster, int(number)


def _explain_by_controller(session: CommandContext, cluster: str, job: int) -> ExplanationBody | None:
    """The controller's explanation of a Slurm job, by its place in a queue or its claim; None: the job is unknown."""

    def is_it(owner: str) -> bool:
        parts = owner.split("/")
        return parts[0] == "slurm" and len(parts) > 2 and parts[2] == str(job) and cluster in ("", parts[1])

    for queue in session.client.list_queues():
        for place, one in enumerate(queue.jobs, start=1):
            if is_it(one.owner) and one.reason is not None:
                name = external_job_name(one.owner)
                summary = one.reason.message
                return ExplanationBody(
                    claim=name, state="PENDING", summary=summary, position=place, reasons=(one.reason,)
                )
    prefix = f"slurm/{cluster}/{job}/" if cluster else "slurm/"
    claims = session.client.list_claims(ClaimFilter(owner_prefix=prefix))
    claim = next((claim for claim in claims if is_it(claim.owner)), None)
    return session.client.explain_claim(claim.id) if claim is not None else None


def _explain_by_agent(session: CommandContext, cluster: str, job: int) -> ExplanationBody:
    import asyncio

    from moorings.slurm.commands import SlurmCommands
    from moorings.slurm.host.wait_reason_client import get_wait_reason

    try:
        cluster, why = asyncio.run(get_wait_reason(SlurmCommands(session.environment), job, cluster))
    except MooringsError as error:
        if error.code != "slurm.missing":
            raise
        if session.configuration.text("access_key"):
            detail = f"the controller has no report of a job {job} of Slurm that waits or runs"
            hint = "it knows the first 64 that wait for IPUs; on a machine of the cluster its agent explains your own"
            raise MooringsError("slurm.job_unknown", detail, hint=hint) from error
        hint = "ask on a machine of the cluster, where 'squeue' works, or with an access key (MOORINGS_ACCESS_KEY)"
        raise MooringsError(error.code, error.detail, hint=hint) from error
    return ExplanationBody(claim=f"job {job} on slurm/{cluster}", state="", summary=why)


@click.command("slurm", cls=NounGroup.command_class)
@click.argument("job", metavar="[CLUSTER/]JOB")
@output_option
@click.pass_obj
def explain_slurm(session: CommandContext, job: str, output: str | None) -> None:
    """Say why a job of Slurm waits for IPUs.

    With an access key, the controller answers. Without one, or if the controller does not know the job, the cluster's
    agent answers: on any machine with Slurm's commands, and only for your own jobs.
    """
    cluster, number = parse_slurm_job(job)
    shown = make_printer(session, output, usual="table")
    explanation = _explain_by_controller(session, cluster, number) if session.configuration.text("access_key") else None
    if explanation is None:
        explanation = _explain_by_agent(session, cluster, number)
    if shown.form.name in ("json", "yaml"):
        document = {"apiVersion": API_VERSION, "kind": "Explanation", **encode(explanation)}
        session.console.print_data(render_data(document, shown.form, shown.look))
    elif explanation.reasons:
        session.console.print_data(
            explanation_text(explanation, session.now(), "" if explanation.claim.startswith("job ") else "claim")
        )
    else:
        session.console.print_data(escape_controls(f"{explanation.claim}: {explanation.summary}"))


explain.add_command(explain_slurm, "slurm")
for _noun in ("claim", "run", "partition"):
    explain.add_command(_explain_command(_noun), _noun)
