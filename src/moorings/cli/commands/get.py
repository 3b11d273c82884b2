"""``moor get`` and ``moor watch``: the lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from moorings.cli.command_tree import (
    MoorCommand,
    NounGroup,
    complete_names,
    examples,
    names_argument,
    options,
    strip_nouns,
)
from moorings.cli.commands.events import events
from moorings.cli.folded_arrays import fold_elements, fold_waiting
from moorings.cli.label_selection import parse_label_selectors
from moorings.cli.output import TableStyle, render_line, render_list
from moorings.cli.printing import ResourcePrinter, make_printer, output_options
from moorings.cli.queue_entries import QueueEntry, load_queue, select_entries, user_of
from moorings.cli.resources import CHECKPOINTS, KINDS, QUEUE_ENTRIES, QUOTAS, RUNS, ResourceKind
from moorings.client.requests import ClaimFilter, RunFilter
from moorings.core.model.owners import is_within
from moorings.submission.slurm_submission import report_own
from moorings.terminal.context import CommandContext
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.codec import encode

Filters = dict[str, Any]
Load = Callable[[CommandContext, Filters], Sequence[Any]]

_watch = click.option("-w", "--watch", is_flag=True, help="Continue with each change.")
_all = click.option("-A", "--all", is_flag=True, help="Also what has ended.")
_pool = click.option("--pool", metavar="POOL", help="Only of this pool.", shell_complete=complete_names("pool"))
_state = click.option(
    "--state",
    metavar="STATE",
    help="Only in this state.",
    shell_complete=complete_names("state"),
    callback=lambda _c, _p, v: v and v.upper(),
)


_whose = (
    click.option("--mine", is_flag=True, help="Only your own."),
    click.option("--user", metavar="NAME", help="Only of this user."),
    click.option(
        "--project",
        metavar="NAME",
        help="Only of this project and those below it.",
        shell_complete=complete_names("project"),
    ),
)
_labels = click.option(
    "-l",
    "--selector",
    "selectors",
    multiple=True,
    metavar="LABELS",
    help="Only with these labels: team=nlp, team!=nlp, team, !team, joined by commas.",
)


def _load_claims(session: CommandContext, filters: Filters) -> Sequence[Any]:
    user = _chosen_user(session, filters)
    claims = session.client.list_claims(
        ClaimFilter(filters["state"], filters["owner"], filters["pool"], all=bool(filters["all"] or filters["state"]))
    )
    return [
        claim
        for claim in claims
        if (user is None or user_of(claim) == user) and _is_of_project(claim.project, filters["project"])
    ]


def _load_runs(session: CommandContext, filters: Filters) -> Sequence[Any]:
    has_labels = parse_label_selectors(filters["selectors"])
    where = RunFilter(filters["state"], _chosen_user(session, filters), all=bool(filters["all"] or filters["state"]))
    runs = [
        run
        for run in session.client.list_runs(where)
        if has_labels(run.labels) and _is_of_project(run.job.project, filters["project"])
    ]
    return _matching(runs, pool=filters["pool"])


def _load_queue(session: CommandContext, filters: Filters) -> Sequence[QueueEntry]:
    has_labels = parse_label_selectors(filters["selectors"])
    user, client = _chosen_user(session, filters), session.client
    pool = client.get_pool(filters["pool"]) if filters["pool"] else None
    entries = fold_waiting(select_entries(load_queue(client), user=user, project=filters["project"], pool=pool))
    return [entry for entry in entries if has_labels(entry.labels)]


def _chosen_user(session: CommandContext, filters: Filters) -> str | None:
    """The user of ``--mine`` or ``--user``; None: everybody."""
    if filters["mine"] and filters["user"]:
        raise click.UsageError("--mine and --user exclude each other")
    user: str | None = session.client.who_am_i().subject if filters["mine"] else filters["user"]
    return user


def _is_of_project(project: str, wanted: str | None) -> bool:
    return wanted is None or is_within(project, wanted)


def _load_checkpoints(session: CommandContext, filters: Filters) -> Sequence[Any]:
    runs = session.client.list_runs(RunFilter(all=bool(filters["all"])))
    return [checkpoint for run in runs for checkpoint in run.checkpoints or ()]


def _load_keys(session: CommandContext, filters: Filters) -> Sequence[Any]:
    return [key for key in session.client.list_keys() if filters["all"] or key.revoked_at is None]


def _matching(items: Sequence[Any], **wanted: str | None) -> Sequence[Any]:
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return [item for item in items if all(getattr(item, name) == value for name, value in chosen.items())]


_LOADS: dict[str, tuple[Load, Sequence[Callable[[Any], Any]]]] = {
    "pool": (lambda session, _filters: session.client.list_pools(), ()),
    "device": (lambda session, f: _matching(session.client.list_devices(f["pool"]), state=f["state"]), (_pool, _state)),
    "partition": (
        lambda session, f: _matching(session.client.list_partitions(), pool=f["pool"], state=f["state"]),
        (_pool, _state),
    ),
    "claim": (
        _load_claims,
        (
            _pool,
            _state,
            click.option("--owner", metavar="PREFIX", help="Only of owners that begin with this."),
            *_whose,
            _all,
        ),
    ),
    "run": (_load_runs, (_pool, _state, *_whose, _labels, _all)),
    "queue": (_load_queue, (*_whose, _pool, _labels)),
    "checkpoint": (_load_checkpoints, (_all,)),
    "project": (lambda session, _filters: session.client.list_projects(), ()),
    "quota": (lambda session, f: _matching(session.client.list_quotas(), pool=f["pool"]), (_pool,)),
    "key": (_load_keys, (click.option("-A", "--all", is_flag=True, help="Also revoked ones."),)),
}


def _show_checkpoints(
    session: CommandContext, shown: ResourcePrinter, kind: ResourceKind[Any], names: Sequence[str]
) -> None:
    runs = [session.client.get_run(name) for name in names]
    shown.show_list(kind, [each for run in runs for each in run.checkpoints or ()])
    for run in runs:
        if run.checkpoint_fault:
            session.console.warn(f"the checkpoints of {run.id} cannot be looked at: {run.checkpoint_fault}")


def _get_one(session: CommandContext, noun: str, name: str) -> object:
    client = session.client
    if noun == "key":
        return next((key for key in client.list_keys() if key.id == name), None) or _key_unknown_error(name)
    loads: Mapping[str, Callable[[str], object]] = {
        "pool": client.get_pool,
        "device": client.device,
        "partition": client.partition,
        "claim": client.get_claim,
        "run": lambda name: _find_run(session, name),
        "project": client.project,
    }
    return loads[noun](name)


def _find_run(session: CommandContext, name: str) -> object:
    from moorings.cli.arrays import find_run  # needs more than most of these commands do

    return find_run(session.client, name)


def _get_named(session: CommandContext, noun: str, name: str) -> object:
    """The thing of that name; of an array its runs, as a tuple."""
    from moorings.cli.arrays import elements_instead
    from moorings.core.model.errors import MooringsError

    try:
        return _get_one(session, noun, name)
    except MooringsError as error:
        if noun != "run":
            raise
        return tuple(elements_instead(session.client, name, error))


def _key_unknown_error(name: str) -> object:
    from moorings.core.model.errors import MooringsError

    raise MooringsError("key.unknown", f"there is no access key {name!r}", hint="see 'moor get keys'")


def _show(session: CommandContext, kind: ResourceKind[Any], names: Sequence[str], filters: Filters) -> None:
    if kind.noun in ("run", "queue", "checkpoint"):
        report_own(session)
    shown = make_printer(
        session,
        filters.pop("output"),
        no_headers=filters.pop("no_headers"),
        sort_by=filters.pop("sort_by"),
        kind=kind,
    )
    watch = filters.pop("watch", False)
    # A quota has the name of its project, and checkpoints are named by their run.
    chosen = strip_nouns({QUOTAS.noun: "project", CHECKPOINTS.noun: "run"}.get(kind.noun, kind.noun), names)
    if watch:
        _watch_list(shown, kind, chosen, filters)
    elif kind is QUOTAS and chosen:
        _show_quotas(shown, chosen, filters)
    elif kind is QUEUE_ENTRIES and chosen:
        _show_queued(shown, chosen, filters)
    elif kind is CHECKPOINTS and chosen:
        _show_checkpoints(session, shown, kind, chosen)
    elif chosen:
        _show_named(shown, kind, chosen)
    else:
        where = f" in pool {filters['pool']}" if filters.get("pool") else ""
        items = _LOADS[kind.noun][0](session, filters)
        if kind is RUNS and shown.form.name in ("table", "wide"):
            items = fold_elements(items)
        shown.show_list(kind, items, where=where)


def _show_quotas(shown: ResourcePrinter, projects: Sequence[str], filters: Filters) -> None:
    """Show the quotas of some projects; one that is not defined may still hold something."""
    found = [quota for quota in _LOADS["quota"][0](shown.session, filters) if quota.project in projects]
    missing = [name for name in projects if all(quota.project != name for quota in found)]
    for name in missing:
        shown.session.client.project(name)
    shown.show_list(QUOTAS, found)


def _show_queued(shown: ResourcePrinter, names: Sequence[str], filters: Filters) -> None:
    """Show the rows with these names; several runs may have one. The first missing one is the error."""
    from moorings.core.model.errors import MooringsError

    entries = _load_queue(shown.session, filters)
    found = [entry for entry in entries if not _names_of(QUEUE_ENTRIES, entry).isdisjoint(names)]
    if found:
        shown.show_list(QUEUE_ENTRIES, found)
    known = {name for entry in found for name in _names_of(QUEUE_ENTRIES, entry)}
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        hint = "'moor get runs --all' shows what has ended as well"
        raise MooringsError("run.unknown", f"nothing that runs or waits is called {missing!r}", hint=hint)


def _show_named(shown: ResourcePrinter, kind: ResourceKind[Any], names: Sequence[str]) -> None:
    """Show the existing ones; the first missing one is the error, after the others were shown."""
    from moorings.core.model.errors import MooringsError

    found: list[Any] = []
    missing = None
    for name in names:
        try:
            named = _get_named(shown.session, kind.noun, name)
        except MooringsError as error:
            missing = missing or error
            continue
        if len(names) == 1 and not isinstance(named, tuple):
            shown.show_one(kind, named)
            return
        found += named if isinstance(named, tuple) else [named]
    if found:
        shown.show_list(kind, found)
    if missing is not None:
        raise missing


def _watch_list(shown: ResourcePrinter, kind: ResourceKind[Any], names: Sequence[str], filters: Filters) -> None:
    load = _LOADS[kind.noun][0]

    def current() -> Sequence[Any]:
        items = load(shown.session, filters)
        return [item for item in items if not names or not {*names}.isdisjoint(_names_of(kind, item))]

    watch_items(shown, kind, current, lambda ident: _get_ended(shown.session, kind.noun, ident))


def _names_of(kind: ResourceKind[Any], item: Any) -> set[str]:  # noqa: ANN401 - any kind of item
    if kind is QUEUE_ENTRIES:
        return {item.name, item.run, item.claim} - {"", None}
    return {kind.ident(item), item.project if kind is QUOTAS else getattr(item, "id", "")}


def _get_ended(session: CommandContext, noun: str, ident: str) -> object:
    """A run or a claim that has left the list of active ones; partitions leave no record."""
    return _get_one(session, noun, ident) if noun in ("run", "claim") else None


def _command(noun: str) -> click.Command:
    kind = KINDS[noun]
    extra = _LOADS[noun][1]

    def callback(session: CommandContext, names: Sequence[str], **filters: Any) -> None:  # noqa: ANN401 - Click's options
        _show(session, kind, names, filters)

    decorated = options(names_argument(noun), *extra, output_options, _watch)(callback)
    name, text = kind.plural, f"List {kind.plural}, or show some by name."
    if kind is QUEUE_ENTRIES:
        name, text = kind.noun, _QUEUE_HELP
    return click.command(name, cls=MoorCommand, help=text)(click.pass_obj(decorated))


_QUEUE_HELP = (
    "Show who runs and who waits.\n\n"
    "What runs comes first, by its start; then what waits, in the order of the queue, with the reason. -o wide has the "
    "whole reason."
)


def _group(verb: str, text: str, epilog: str) -> NounGroup:
    group = NounGroup(name=verb, help=text, epilog=epilog, no_args_is_help=True)
    for noun in _LOADS:
        group.add_command(_command(noun), noun)
    group.add_command(events, "event")
    return group


get = _group(
    "get",
    "List things, or show some by name.",
    examples(
        "moor get partitions",
        "moor get pools -o wide",
        "moor get runs --all --sort-by createdAt",
        "moor get devices --pool pod64 --state DRAINED",
        "moor get claim/p64 -o json",
        "moor get queue --mine",
        "moor get runs --user ann -l team=nlp",
    ),
)

watch = _group(
    "watch",
    "List objects, then print each change.",
    examples("moor watch runs", "moor watch partitions -o json"),
)
watch.context_settings["default_map"] = {
    **{command.name: {"watch": True} for command in watch.commands.values()},
    "events": {"follow": True},
}


# -- watch -------------------------------------------------------------------------------------------------------------
# Watch a list: the whole list once, then each item that has changed, as kubectl does. The event stream says *that*
# something happened; the list is then read again, at most once a batch of events. Rebuilding items from events was
# refused: it would repeat the controller's state machines in the client.

T = TypeVar("T")


def watch_items(
    shown: ResourcePrinter, kind: ResourceKind[T], load: Callable[[], Sequence[T]], last: Callable[[str], T | None]
) -> None:
    """Show the list, then each change, until interrupted.

    Args:
        shown: the printer.
        kind: of the items.
        load: the current list.
        last: the last state of an item that has left the list; None if it is no longer known.
    """
    client = shown.session.client
    shown.session.if_interrupted = "no longer watched"
    client.retry_policy = make_patience(Progress(shown.session.console))
    before: dict[str, Any] = {}
    look = replace(shown.look, widths=[])
    for _batch in client.watch_events():
        items = load()
        now = {kind.ident(item): encode(item) for item in items}
        changed = [item for item in items if before.get(kind.ident(item)) != now[kind.ident(item)]]
        ended = (last(ident) for ident in before if ident not in now)
        changed += [item for item in ended if item is not None]
        if changed:
            _show_changed(shown, kind, changed, look)
            look = replace(look, headers=False)
        before = now


def _show_changed(shown: ResourcePrinter, kind: ResourceKind[T], items: Sequence[T], look: TableStyle) -> None:
    console, session = shown.session.console, shown.session
    if shown.form.name == "json":
        for item in items:
            console.print_data(render_line(kind, item, look))
    else:
        console.print_data(render_list(kind, items, shown.form, session.now(), look))
