"""Every page whose commands can be run, is: in order, in a fresh home, with real processes, and its output compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import cases
from tests.docs.pages import ROOT, Block, all_pages, split, steps
from tests.docs.terminal import Terminal, matches


def runs(page: Path) -> bool:
    """Whether it has commands to run; those of the examples are run by `tests/examples`."""
    return not page.is_relative_to(ROOT / "examples") and any(
        block.language == "console" and not block.reason for block in split(page.read_text())[1]
    )


PAGES = [page for page in all_pages() if runs(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    wrong: list[str] = []
    with Terminal(home) as terminal:
        for block in split(page.read_text())[1]:
            wrong += play(block, terminal)
            assert wrong == [], "\n".join(["", *wrong])


def play(block: Block, terminal: Terminal) -> list[str]:
    """Do what a block says; the differences."""
    if block.reason:
        print(f"not run, line {block.number}: {block.reason}")
    elif block.file:
        where, _ = terminal.run("pwd")
        path = Path(where[0], block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(terminal.here("\n".join(block.lines) + "\n"))
    elif block.language == "console":
        return [wrong for step in steps(block) if (wrong := terminal.check(step))]
    return []


def test_some_pages_run() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"docs/tutorial.md", "docs/how-to/write-a-job-file.md", "docs/how-to/use-it-from-a-program.md"} <= names


def test_a_console_block_that_is_not_run_says_why() -> None:
    blocks = [(page, block) for page in all_pages() for block in split(page.read_text())[1]]
    assert [
        f"{page.relative_to(ROOT)}:{block.number}"
        for page, block in blocks
        if block.language == "console" and block.words and not block.reason
    ] == []


@cases(
    ("said", "printed", "same"),
    [
        (["a b", "c"], ["a  b", "c"], True),
        (["a", "c"], ["a", "b", "c"], False),
        (["a", "...", "c"], ["a", "b", "b", "c"], True),
        (["a", "...", "c"], ["a", "c"], True),
        (["...", "c"], ["a", "c"], True),
        (["...", "c"], ["c"], True),
        (["a", "..."], ["a"], True),
        (["a", "..."], ["a", "b"], True),
        (["a", "..."], ["b", "a"], False),
        (["..."], [], True),
        (["a ... c"], ["a b c"], True),
        (["a ... c"], ["a b d"], False),
        (["run-abcdefgh2345: RUNNING after 1.2 s"], ["run-zzzzzzzz2345: RUNNING after 12 s"], True),
        (["run-abcdefgh2345: SUCCEEDED"], ["run-abcdefgh2345: RUNNING", "run-abcdefgh2345: SUCCEEDED"], True),
        (["run-abcdefgh2345: ENDED"], ["claim-abcdefgh2345: ENDED"], False),
        (["64 devices"], ["63 devices"], False),
        (["job: running", "job: done"], ["job: waits for 4 devices in p: full", "job: done"], True),
        (["job: done"], ["job: running"], False),
        ([], ["anything"], False),
    ],
)
def test_what_varies_may_and_what_does_not_may_not(said: list[str], printed: list[str], *, same: bool) -> None:
    assert matches(said, printed) is same
