"""Names are completed in the real shells: bash on a terminal, zsh and fish out of Debian's packages."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.cli import completion
from tests.debian import folder_of, program, surroundings
from tests.e2e.processes import ControllerProcess
from tests.shells.keyboard import Keyboard
from tests.waiting import patient, until

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    process = ControllerProcess(tmp_path_factory.mktemp("controller"))
    process.start()
    for name in ("bench", "bert"):
        status, _ = process.ask("POST", "/v1/claims?wait=20s", {"name": name, "size": 2})
        assert status == 201
    yield process
    process.stop()


def environment(controller: ControllerProcess, home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
        "MOORINGS_SERVER": f"http://127.0.0.1:{controller.port}",
        "MOORINGS_CREDENTIALS": str(controller.credentials),
    }


@pytest.fixture
def bash(controller: ControllerProcess, tmp_path: Path) -> Iterator[Keyboard]:
    keyboard = Keyboard(["/bin/bash", "--norc", "--noprofile", "-i"], environment(controller, tmp_path))
    keyboard.run("source <(moor completion bash)")
    yield keyboard
    keyboard.close()


CASES = [
    ("moor expl", "moor explain"),
    ("moor get partition ben", "moor get partition bench"),
    ("moor get partition/ben", "moor get partition/bench"),
    ("moor delete claim bench ber", "moor delete claim bench bert"),
    ("moor run --pool po", "moor run --pool pod16"),
    ("moor get devices --state drai", "moor get devices --state DRAINED"),
    ("moor describe pool po", "moor describe pool pod16"),
    ("moor events --claim ber", "moor events --claim bert"),
]


@pytest.mark.parametrize(
    ("begun", "line"),
    [
        *CASES,
        ("moor drain device --reason 'a b' pod16:1", "moor drain device --reason a b pod16:1"),  # 1, 10, 11, ...
        ("moor resume device pod16:", "moor resume device pod16:"),
        ("moor get devices --pool=po", "moor get devices --pool=pod16"),
        ("moor create key --ro", "moor create key --role"),
    ],
)
def test_bash_completes_on_a_terminal(bash: Keyboard, begun: str, line: str) -> None:
    assert bash.complete(begun) == line


def test_bash_completes_devices_behind_the_colon(bash: Keyboard) -> None:
    bash.run("bind 'TAB: menu-complete'")
    assert bash.complete("moor describe device pod16:15") == "moor describe device pod16:15"
    assert bash.complete("moor describe device pod16:") == "moor describe device pod16:0"
    assert bash.complete("moor describe device pod") == "moor describe device pod16:0"


def test_zsh_completes_on_a_terminal(controller: ControllerProcess, tmp_path: Path) -> None:
    own = shutil.which("zsh")
    shell = Path(own) if own else program("zsh", "zsh")
    lines = ["PS1='> '", "unsetopt zle_bracketed_paste prompt_cr prompt_sp"]
    if not own:  # what it looks for in /usr lies elsewhere
        modules = next(folder_of("zsh").rglob("zle.so")).parents[1]
        functions = next(folder_of("zsh-common").rglob("compinit")).parents[1]
        folders = sorted({str(path.parent) for path in functions.rglob("*") if path.is_file()})
        lines = [f"module_path=({modules})", f"fpath=({' '.join(folders)})", *lines]
    lines += ["autoload -Uz compinit", "compinit -u -D", "bindkey -e", "source <(moor completion zsh)"]
    (tmp_path / ".zshrc").write_text("\n".join(lines) + "\n")
    keyboard = Keyboard([str(shell), "-i"], {**environment(controller, tmp_path), "ZDOTDIR": str(tmp_path)})
    try:
        keyboard.run("true")
        assert [keyboard.complete(begun) for begun, _ in CASES] == [line for _, line in CASES]
    finally:
        keyboard.close()


def test_fish_completes(controller: ControllerProcess, tmp_path: Path) -> None:
    shell = program("fish", "fish")
    for begun, line in CASES:
        script = f"moor completion fish | source; complete -C {begun!r}"
        done = subprocess.run(
            [str(shell), "--no-config", "-c", script],
            env={**surroundings(shell), **environment(controller, tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(60),
        )
        words = {answer.split("\t")[0] for answer in done.stdout.splitlines()}
        assert line.split()[-1] in words, (begun, done.stdout, done.stderr)


def ask(words: str, env: dict[str, str]) -> tuple[str, str]:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_MOOR_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [str(BIN / "moor")], env={**env, **asked}, capture_output=True, text=True, check=False, timeout=patient(60)
    )
    return done.stdout.strip(), done.stderr


def test_names_are_remembered_privately_and_kept_while_the_controller_is_away(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    env = environment(controller, tmp_path)
    everything = ("plain,bench\nplain,bert", "")
    until(lambda: ask("moor get claim ", env) == everything)  # a busy machine may use up the budget
    files = list((tmp_path / ".cache" / "moorings" / "names").iterdir())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (files[0].parent, *files)] == [0o700, 0o600]
    assert controller.key not in files[0].read_text() + files[0].name
    files[0].write_text(files[0].read_text().replace("bench", "remembered"))
    assert ask("moor get claim r", env) == ("plain,remembered", ""), "asked again within seconds"
    files[0].write_text("{")
    until(lambda: ask("moor get claim ", env) == everything)  # a damaged cache is none


def test_a_controller_that_does_not_answer_costs_the_budget_once_and_says_nothing(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        env = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "MOORINGS_SERVER": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        assert ask("moor get claim ", env) == ("", "")
        silent.accept()[0].close()
        assert ask("moor get claim ", env) == ("", "")
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()  # nobody has asked again
    assert completion.BUDGET_S <= 0.2


def test_a_configuration_that_cannot_be_used_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("server = 1\n")
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MOORINGS_CONFIG": str(tmp_path / "broken.toml")}
    assert ask("moor get claim ", env) == ("", "")
    assert ask("moor expl", env) == ("plain,explain", "")
