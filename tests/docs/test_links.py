"""What the pages point to is there: files, anchors, commands and their flags, code, tests, reasons."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

import moorings
from moorings.cli.command_tree import NounGroup
from moorings.cli.main import root
from moorings.cli.reference import make_context
from tests.cases import cases
from tests.docs.pages import ROOT, all_pages, anchors, split, steps

PAGES = all_pages()
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(src|docs|tests|deploy|examples|scripts|benchmarks)/[A-Za-z0-9_./-]*")
CODE = re.compile(r"([a-z_]+(?:\.[a-z_]+)*):([A-Za-z_]+(?:\.[A-Za-z_]+)*)")
DOTTED = re.compile(r"[a-z_]+(?:\.[A-Za-z_]+)+")
FOLDERS = {folder.name for folder in Path(moorings.__file__).parent.iterdir() if folder.is_dir()}
SHORT = re.compile(r"^-[A-Za-z]$")

every_page = cases("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    return "\n".join(line for _, line in split(page.read_text())[0])


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    named = [span.partition("::")[0] for span in SPAN.findall(prose(page)) if PATH.fullmatch(span.partition("::")[0])]
    assert [name for name in named if not (ROOT / name).exists()] == []


@every_page
def test_code_that_is_named_exists(page: Path) -> None:
    wrong = []
    for span in SPAN.findall(prose(page)):
        found = CODE.fullmatch(span)
        if found is None or found[1].split(".")[0] not in FOLDERS:
            continue
        value: object = importlib.import_module(f"moorings.{found[1]}")
        for name in found[2].split("."):
            value = getattr(value, name, None)
        if value is None:
            wrong.append(span)
    assert wrong == []


def test_modules_that_the_map_names_exist() -> None:
    """But for the names of before, in the first column of the table of names."""
    page = re.sub(r"^\| [^|]* \|(?= `)", "|", prose(ROOT / "ARCHITECTURE.md"), flags=re.MULTILINE)
    spans = {span for span in SPAN.findall(page) if DOTTED.fullmatch(span) and span.split(".")[0] in FOLDERS}
    assert len(spans) > 30
    assert sorted(span for span in spans if not _is_code(span)) == []


def _is_code(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec(f"moorings.{name}") is not None:
            return True
    module, _, member = name.rpartition(".")
    with contextlib.suppress(ImportError):
        return hasattr(importlib.import_module(f"moorings.{module}"), member)
    return False


@every_page
def test_files_that_are_shown_can_be_read(page: Path) -> None:
    for block in split(page.read_text())[1]:
        text = "\n".join(block.lines)
        if block.language == "toml":
            tomllib.loads(text)
        elif block.language == "python":
            ast.parse(text)
        elif block.language == "json":
            json.loads(text)


def commands(page: Path) -> Iterator[str]:
    """What the page says that somebody may type, from `moor` on."""
    text, blocks = split(page.read_text())
    yield from (span for span in SPAN.findall("\n".join(line for _, line in text)) if span.startswith("moor "))
    for block in blocks:
        if block.language == "console":
            lines = [step.command for step in steps(block)] if not block.reason else list(block.lines)
            yield from (line.removeprefix("$ ").removeprefix("# ") for line in lines)
        elif block.language in ("shell", "sh", "bash", ""):
            yield from block.lines


def wrong_words(line: str) -> Iterator[str]:
    """Commands and flags of `moor` in a line that do not exist."""
    for part in re.split(r"\||&&|;|\$\(|\)", line.split(" #")[0]):
        words = part.split()
        if not words or words[0] != "moor":
            continue
        words = words[1 : words.index("--")] if "--" in words else words[1:]
        with make_context(root) as ctx:
            command, rest = find(words, ctx)
            if command is None:
                yield part.strip()
                continue
            known = {name for each in (*command.params, *root.params) for name in (*each.opts, *each.secondary_opts)}
            known |= {"-h", "--help"}
            yield from (
                f"{part.strip()}: {word}"
                for word in rest
                if word.startswith("-")
                and len(word) > 1
                and not word[1].isdigit()
                and word.split("=")[0].strip("'\"") not in known
            )


def find(words: list[str], ctx: click.Context) -> tuple[click.Command | None, list[str]]:
    """The command that words name, and what follows it; a word in capitals stands for any."""
    command: click.Command = root
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        if rest[0].startswith("-") or rest[0].isupper() or rest[0] in ("...", "VERB"):
            break
        inner = command.get_command(ctx, rest[0].partition("/")[0])
        if inner is None and isinstance(command, NounGroup) and command.default_noun:
            inner, rest = command.get_command(ctx, command.default_noun), [command.default_noun, *rest]
        if inner is None:
            return None, []
        command, rest = inner, rest[1:]
    return command, rest


@every_page
def test_commands_and_flags_that_are_named_exist(page: Path) -> None:
    wrong = [each for line in commands(page) if re.search(r"(^|[ (])moor ", line) for each in wrong_words(line)]
    assert wrong == []


def test_a_wrong_command_or_flag_is_noticed() -> None:
    assert list(wrong_words("moor fly run x")) == ["moor fly run x"]
    assert list(wrong_words("moor get runs --al")) == ["moor get runs --al: --al"]
    assert list(wrong_words("true && moor get moons | cat")) == ["moor get moons"]
    assert list(wrong_words("moor run --ipus 4 -- python3 --version")) == []


@cache
def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_laws_page_names_tests_that_exist() -> None:
    rows = re.findall(
        r"^\| (`test_.*`) \| `([^`]+)` \|$", (ROOT / "docs/explanation/laws.md").read_text(), re.MULTILINE
    )
    named = [(path, name) for names, path in rows for name in SPAN.findall(names)]
    assert len(named) > 30
    assert [(path, name) for path, name in named if name not in functions_of(ROOT / path)] == []


def test_the_laws_page_has_every_law_of_the_map() -> None:
    laws = re.findall(r"^## (\d+)\. ", (ROOT / "docs/explanation/laws.md").read_text(), re.MULTILINE)
    assert [int(law) for law in laws] == list(range(1, 11))


def test_every_reason_is_explained() -> None:
    """The codes of `Reason(...)` in the sources stand on the page that people ask."""
    page = (ROOT / "docs/how-to/why-does-it-wait.md").read_text()
    codes = set()
    for folder in ("core", "workloads", "controller"):
        for path in (ROOT / "src/moorings" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reason" and node.args:
                    codes |= {
                        leaf.value
                        for leaf in ast.walk(node.args[0])
                        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
                    }
    elsewhere = {"store.unavailable"}  # of the whole controller: it stands among the errors
    assert len(codes) > 10
    assert {code for code in codes - elsewhere if f"`{code}`" not in page} == set()


def test_every_page_of_the_manual_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [
        page for folder in ("how-to", "explanation", "reference") for page in (ROOT / "docs" / folder).glob("*.md")
    ]
    assert [page.name for page in pages if f"{page.parent.name}/{page.name}" not in index] == []
