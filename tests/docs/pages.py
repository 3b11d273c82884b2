"""Pages as the tests see them: headings, links, spans and blocks of code.

A block says what it is in the words behind its fence, which no forge shows::

    ```console                       commands behind `$ `, and what they print
    ```console no-run: needs root    not run, and why
    ```toml file=job.toml            written to that file

A parser of its own rather than a Markdown library: what we write is plain, and a library would hide the fence's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moorings.app.documents.markdown import anchor

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)(```+)(.*)$")
HEADING = re.compile(r"^#{1,6} (.*)$")
NO_RUN = "no-run:"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        language: the first word behind the fence.
        words: the rest of that line.
        lines: what is inside, without the fence's indent.
        number: the line the fence stands on.
    """

    language: str
    words: str
    lines: tuple[str, ...]
    number: int

    @property
    def file(self) -> str:
        """The file it is to be written to; empty: none."""
        return self.words.removeprefix("file=") if self.words.startswith("file=") else ""

    @property
    def reason(self) -> str:
        """Why it is not run; empty: it is."""
        return self.words.removeprefix(NO_RUN).strip() if self.words.startswith(NO_RUN) else ""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console block, and what the page says it prints."""

    command: str
    output: tuple[str, ...]
    number: int


def all_pages() -> list[Path]:
    """Every page of ours."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def split(text: str) -> tuple[list[tuple[int, str]], list[Block]]:
    """The lines outside of blocks with their numbers, and the blocks."""
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            prose.append((number, line))
            continue
        inside = []
        for _, inner in lines:
            if inner.strip() == fence[2]:
                break
            inside.append(inner.removeprefix(fence[1]))
        language, _, words = fence[3].strip().partition(" ")
        blocks.append(Block(language, words.strip(), tuple(inside), number))
    return prose, blocks


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    found: list[str] = []
    for _, line in split(page.read_text())[0]:
        heading = HEADING.match(line)
        if heading is not None:
            made = anchor(heading[1])
            found.append(made if made not in found else f"{made}-{found.count(made)}")
    return set(found)


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block; a line behind `> ` continues with the command before."""
    command, at = "", block.number
    output: list[str] = []
    for number, line in enumerate(block.lines, start=block.number + 1):
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(output), at)
            command, output, at = line.removeprefix("$ "), [], number
        elif line.startswith("> ") and not output:
            command += "\n" + line.removeprefix("> ")
        else:
            assert command, f"line {number}: output before the first command"
            output.append(line)
    if command:
        yield Step(command, tuple(output), at)
