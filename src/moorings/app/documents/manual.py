"""Manual pages, as roff: ``moor(1)`` and one for each command, the controller, and the configuration and job files.

Made from the same commands and tables as the reference pages, so ``man moor-run`` and ``docs/reference/cli.md`` agree.
Refused: a converter from Markdown; no packaged one reads our pages without a warning of ``mandoc -T lint``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields

import click

import moorings
from moorings.app.documents import files
from moorings.app.documents.files import FileKey
from moorings.app.documents.settings import field_docs
from moorings.app.settings import DEFAULT_CONFIG, Settings
from moorings.cli.main import root
from moorings.cli.reference import EXITS, example_lines, help_text, make_context, option_rows
from moorings.core.model import pools
from moorings.terminal.configuration import DEFAULTS, NAMES, flag_of
from moorings.wire.errors import ExitCode
from moorings.workloads import jobs


def manual_pages() -> dict[str, str]:
    """The text of every manual page, by its file name."""
    pages = dict(_commands())
    pages["moorings-controller.8"] = _controller()
    pages["moorings-controller.toml.5"] = _settings_file()
    pages["moorings-pools.5"] = _file(
        "moorings-pools",
        "the pools of a Moorings controller",
        files.POOLS_ABOUT,
        files.example_of(pools),
        files.POOLS,
        _DRIVERS,
    )
    pages["moorings-job.5"] = _file(
        "moorings-job", "a job for moor run", files.JOB_ABOUT, files.example_of(jobs), files.JOB, {}
    )
    return pages


def _page(name: str, number: int, about: str, *parts: str, see: Sequence[str]) -> str:
    others = ", ".join(
        f"\\fB{escape(word)}\\fP({page})"
        for word, page in (each.rsplit(".", 1) for each in see if each != f"{name}.{number}")
    )
    summary = about.rstrip(".")
    text = head(name, number, moorings.__version__) + section(
        "NAME", f"{escape(name)} \\- {escape(summary[0].lower() + summary[1:])}\n"
    )
    return text + "".join(parts) + section("SEE ALSO", f"{others}\n")


_SEE = ("moor.1", "moorings-controller.8", "moorings-controller.toml.5", "moorings-pools.5", "moorings-job.5")


def _commands() -> Iterator[tuple[str, str]]:
    with make_context(root) as ctx:
        names = root.list_commands(ctx)
        yield "moor.1", _moor(ctx, names)
        for name in names:
            command = root.get_command(ctx, name)
            assert command is not None, name
            yield f"moor-{name}.1", _command(command, ctx, name)


def _moor(ctx: click.Context, names: Sequence[str]) -> str:
    rows = [tagged(f"`moor {name}`", f"{root.table[name].help} See moor-{name}(1).") for name in names]
    about = (
        "Moorings gives AI jobs a berth on accelerators: it carves pools of them into isolated partitions, and "
        "ties each one's life to one job's life. `moor` speaks to its controller."
    )
    return _page(
        "moor",
        1,
        "partitions of accelerators for AI jobs",
        section("SYNOPSIS", "\\fBmoor\\fP \\fIVERB\\fP [\\fINOUN\\fP] [\\fINAME\\fP...] [\\fIOPTIONS\\fP]\n"),
        section("DESCRIPTION", paragraph(about)),
        section("COMMANDS", *rows),
        section("OPTIONS", paragraph("Every command takes these."), *_options(root, ctx, hidden=False)),
        section("CONFIGURATION", paragraph(_FILES), *map(_setting, NAMES)),
        section(
            "EXIT STATUS",
            *(tagged(f"`{each.value}`", EXITS[each]) for each in ExitCode),
            tagged("`128+N`", "killed by signal N"),
        ),
        see=[*_SEE, *(f"moor-{name}.1" for name in names)],
    )


_FILES = (
    "The first that says something holds: flag, variable, the file of `--config`, "
    "`~/.config/moorings/config.toml`, `/etc/moorings/client.toml`, then "
    "`~/.config/moorings/credentials.toml`, which must have mode 0600."
)


def _setting(name: str) -> str:
    flag = f"Flag `{flag_of(name)}`" if flag_of(name) else "No flag"
    return tagged(f"`{name}`", f"{flag}; variable `MOORINGS_{name.upper()}`; default: {DEFAULTS[name] or 'none'}.")


def _command(command: click.Command, parent: click.Context, name: str) -> str:
    with click.Context(command, info_name=name, parent=parent) as ctx:
        first, _, rest = help_text(command).partition("\n")
        parts = [
            section("SYNOPSIS", _synopsis(command, ctx)),
            section("DESCRIPTION", paragraph(first), *map(paragraph, rest.split("\n\n")), *_aliases(name)),
        ]
        options = list(_options(command, ctx, hidden=True))
        parts += [section("OPTIONS", *options)] if options else []
        if isinstance(command, click.Group):
            parts += [section("NOUNS", *_nouns(command, ctx))]
        lines = example_lines(command)
        parts += [section("EXAMPLES", verbatim(lines))] if lines else []
        parts += [section("EXIT STATUS", paragraph("See `moor`(1)."))]
        return _page(f"moor-{name}", 1, root.table[name].help, *parts, see=_SEE)


def _aliases(name: str) -> Iterator[str]:
    others = root.table[name].aliases
    if others:
        yield paragraph(f"Also: {', '.join(f'`moor {alias}`' for alias in others)}.")


def _synopsis(command: click.Command, ctx: click.Context) -> str:
    if not isinstance(command, click.Group):
        return f"{_usage(command, ctx)}\n"
    usages = []
    for noun, child in _children(command, ctx):
        with click.Context(child, info_name=noun, parent=ctx) as inner:
            usages.append(_usage(child, inner))
    return "\n.br\n".join(usages) + "\n"


def _children(command: click.Group, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    for noun in command.list_commands(ctx):
        child = command.get_command(ctx, noun)
        if child is not None and not child.hidden:
            yield noun, child


def _usage(command: click.Command, ctx: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(ctx))
    return f"\\fB{escape(ctx.command_path)}\\fP {escape(pieces)}".rstrip()


def _nouns(command: click.Group, ctx: click.Context) -> Iterator[str]:
    for noun, child in _children(command, ctx):
        with click.Context(child, info_name=noun, parent=ctx) as inner:
            paragraphs = map(paragraph, help_text(child).split("\n\n"))
            yield subsection(inner.command_path, *paragraphs, *_options(child, inner, hidden=True))


def _options(command: click.Command, ctx: click.Context, *, hidden: bool) -> Iterator[str]:
    for spelling, meaning in option_rows(command, ctx, hidden=hidden):
        yield tagged(f"`{spelling}`", meaning)


def _controller() -> str:
    rows = [
        tagged(f"`{item.metadata['flag']}`", _meaning(item.name))
        for item in fields(Settings)
        if "flag" in item.metadata
    ]
    signals = [
        tagged("`TERM`, `INT`", "Stop: answers in progress are finished; partitions and jobs stay as they are."),
        tagged(
            "`HUP`",
            "Read settings and pools file again: the log level counts at once; the log says what needs a restart.",
        ),
        tagged("`USR1`", "Write the state to the log."),
    ]
    about = (
        "The controller owns the pools: it gives claims their partitions, starts jobs on them, and answers the "
        "HTTP API. It runs in the foreground; on your own machine, `moor up` starts it in the background."
    )
    return _page(
        "moorings-controller",
        8,
        "the Moorings controller",
        section("SYNOPSIS", "\\fBpython3 \\-m moorings.app.controller\\fP [\\fIOPTIONS\\fP]\n"),
        section("DESCRIPTION", paragraph(about)),
        section("OPTIONS", tagged("`--config`", f"Settings file. Default `{DEFAULT_CONFIG}`, if it is there."), *rows),
        section("SIGNALS", *signals),
        section(
            "EXIT STATUS",
            paragraph(
                "0 after a stop; else that of the error, as `moor`(1) has them: 2 for a setting or a pools file that "
                "cannot be used, 5 if another controller uses the data folder."
            ),
        ),
        see=_SEE,
    )


def _meaning(name: str) -> str:
    return _DOCS[name]


_DOCS = field_docs(Settings)
_DRIVERS = {"simulated": files.simulated_rows(), "vipu": files.vipu_rows()}


def _settings_file() -> str:
    rows = []
    for item in fields(Settings):
        default = (
            ""
            if item.default in (MISSING, None, "")
            else f" Default: `{str(item.default).lower() if isinstance(item.default, bool) else item.default}`."
        )
        rows.append(
            tagged(f"`{item.name}`", _meaning(item.name) + (default if "Default" not in _meaning(item.name) else ""))
        )
    about = (
        f"Read from `{DEFAULT_CONFIG}`, or from the file of `--config`. Flags and variables win over it. It is "
        f"TOML and read strictly: a key that is not known is refused, with file and line."
    )
    return _page(
        "moorings-controller.toml",
        5,
        "settings of the Moorings controller",
        section("DESCRIPTION", paragraph(about)),
        section("KEYS", *rows),
        section(
            "EXAMPLE", verbatim(['data = "/var/lib/moorings"', 'pools = "/etc/moorings/pools.toml"', "port = 8090"])
        ),
        see=_SEE,
    )


def _file(
    name: str,
    about: str,
    text: str,
    example: str,
    keys: Sequence[FileKey],
    drivers: Mapping[str, Sequence[tuple[str, str, str]]],
) -> str:
    parts = [section("DESCRIPTION", paragraph(text)), section("EXAMPLE", verbatim(example.splitlines()))]
    for group in dict.fromkeys(key.table for key in keys):
        rows = [_key(key) for key in keys if key.table == group]
        parts.append(subsection(f"[{group}]", *rows) if group else section("KEYS", *rows))
    for driver, settings in drivers.items():
        rows = [tagged(key, f"{meaning} Default: {default}.") for key, default, meaning in settings]
        parts.append(subsection(f"[pool.{driver}]", *rows))
    return _page(name, 5, about, *parts, see=_SEE)


def _key(key: FileKey) -> str:
    facts = [key.kind, key.bounds, "required" if key.required else f"default `{key.default}`" if key.default else ""]
    return tagged(f"`{key.name}`", f"{key.meaning} ({'; '.join(fact for fact in facts if fact)})")


# -- roff's man macros -------------------------------------------------------------------------------------------------
# The few that manual pages need, and the escapes that keep text from being read as requests.

RELEASED = "2026-11-21"  # the release's date, not today's: the same code gives the same pages

_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def escape(text: str) -> str:
    """``text`` shown unchanged: hyphens stay hyphens when copied, and no line is a request."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    )
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return f"\\&{text}" if text.startswith(".") else text


def prose(text: str) -> str:
    """A paragraph of Markdown: code in bold, links as their text."""
    parts = _SPAN.split(_LINK.sub(r"\1", " ".join(text.split())))
    escaped = [f"\\fB{escape(part)}\\fP" if index % 2 else escape(part) for index, part in enumerate(parts)]
    shown = "".join(escaped)
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def head(name: str, number: int, version: str) -> str:
    """The first lines of a page of section ``number``."""
    made = '.\\" Made by "make docs" from the code; do not edit.\n'
    return f'{made}.TH {name.upper()} {number} {RELEASED} "Moorings {version}"\n'


def section(title: str, *parts: str) -> str:
    """A section; its first paragraph needs no macro."""
    return f".SH {title}\n" + "".join(parts).removeprefix(".PP\n")


def subsection(title: str, *parts: str) -> str:
    """A section of a section."""
    return f".SS {escape(title)}\n" + "".join(parts).removeprefix(".PP\n")


def paragraph(text: str) -> str:
    """A paragraph."""
    return f".PP\n{prose(text)}\n" if text.strip() else ""


def tagged(term: str, text: str) -> str:
    """A term (Markdown) and its meaning."""
    meaning = prose(text) or "\\&"
    return f".TP\n{prose(term)}\n{meaning}\n"


def verbatim(lines: Iterable[str]) -> str:
    """Lines unchanged."""
    shown = "\n".join(escape(line) or "\\&" for line in lines)
    return f".PP\n.nf\n.RS 4\n{shown}\n.RE\n.fi\n"
