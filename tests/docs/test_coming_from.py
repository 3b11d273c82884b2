"""The tables for people who come from elsewhere: each right-hand side is run, and does what the left-hand one would."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.docs.pages import ROOT
from tests.docs.terminal import Terminal
from tests.procfs import HEARING
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient

PAGE = ROOT / "docs" / "how-to" / "coming-from.md"
ROW = re.compile(r"\| (.+) \| `(.+)` \|")

FILES = {
    "job.sh": '#!/bin/sh\necho "job ${MOORINGS_ARRAY_INDEX-alone} home=$HOME"\n',
    "train.py": "import os\nprint('trained on', len(os.environ['MOORINGS_DEVICES'].split(',')), os.environ['RANK'])\n",
    "job.toml": 'name = "train"\ncommand = "./job.sh"\n',
}
RUNNING = "until moor get run train 2> /dev/null | grep -q RUNNING; do sleep 0.1; done"
PROCESS = "sh -c 'echo began; echo on; exec sleep 600'"
TRAIN = f"moor run --detach --name train --label team=nlp --ipus 2 -- {PROCESS}; {RUNNING}"
SHORT = "moor run --detach --name train --size 0 -- sh -c 'echo began; sleep 1'"
NEXT = f"{TRAIN}; moor run --detach --name next --ipus 64 -- true"
OPEN = f"moor run --detach -i --name train --ipus 2 -- sh -c 'echo began; exec cat'; {RUNNING}"


@dataclass(frozen=True)
class Line:
    """What a line of a table needs and does.

    Attributes:
        shows: a pattern in what it prints.
        before: commands that make what it needs.
        then: a command that shows its effect; ``{out}`` is the first line that it printed.
        effect: a pattern in what that prints.
        types: what is typed, if it is interactive.
        ready: what it shows before that.
    """

    shows: str
    before: str = TRAIN
    then: str = ""
    effect: str = ""
    types: str = ""
    ready: str = "# " if os.geteuid() == 0 else "$ "

    @property
    def changes_nothing(self) -> bool:
        """Whether what it needs is there for the next line, too."""
        return self.before in (TRAIN, NEXT) and not self.then and not self.types


WAITED = "moor wait {out}; moor logs {out}"
CANCELLED = Line("cancelled", then="moor get runs --all", effect="train .*CANCELLED")
ONE_ID = r"\Arun-[a-z2-7]{12}\Z"

COMMANDS = {
    "moor run --ipus 2 -- python3 train.py": Line(r"trained on 2 0(?s:.*)SUCCEEDED", before=""),
    "moor run --ipus 2 -n 2 -- python3 train.py": Line(r"(?s)(?=.*trained on 1 0)(?=.*trained on 1 1)", before=""),
    "moor shell --ipus 2": Line("devices pod64:0,pod64:1", before="", types='echo "devices $MOORINGS_DEVICES"\nexit\n'),
    "moor exec train -- hostname": Line(rf"\A{re.escape(os.uname().nodename)}\Z"),
    "moor run --detach --ipus 2 -- ./job.sh": Line(ONE_ID, before="", then=WAITED, effect="job alone home=/"),
    "moor run --detach --time 1:00:00 --export NONE -- ./job.sh": Line(
        ONE_ID, before="", then=f"{WAITED}; moor get run {{out}} -o json", effect=r'home=\n(?s:.*)"timeLimitS": 3600'
    ),
    "moor run --detach --after train -- ./job.sh": Line(
        ONE_ID, then="moor explain {out}", effect=r"waits for run run-\S+ to end \(ok\)"
    ),
    "moor run --detach --array 0-3%2 -- ./job.sh": Line(
        ONE_ID, before="", then="moor wait {out}; moor logs {out} --index 3", effect="4 SUCCEEDED\njob 3"
    ),
    "moor wait train": Line("SUCCEEDED", before=SHORT),
    "moor get queue": Line(r"(?s)train.*RUNNING.*next.*(PENDING|WAITING)", before=NEXT),
    "moor get queue --mine": Line(r"(?s)train.*RUNNING.*next", before=NEXT),
    "moor explain next": Line("pod64", before=NEXT),
    "moor describe run train": Line(r"(?s)train.*RUNNING.*pod64"),
    "moor logs -f train": Line(r"\Abegan\Z", before=SHORT),
    "moor attach train": Line(r"heard\r\n(?s:.*)heard", before=OPEN, types="heard\n\x04", ready="began"),
    "moor cancel train": CANCELLED,
    "moor cancel --all --yes": CANCELLED,
    "moor get runs --all": Line("train .*SUCCEEDED", before=f"{SHORT}; moor wait train"),
    "moor get pools": Line(r"pod64 .*64"),
    "moor drain device pod64:63 --reason fan -y": Line(
        "pod64:63", then="moor get devices; moor resume device pod64:63", effect="DRAIN.*fan"
    ),
    "moor run --detach job.toml": Line(ONE_ID, before="", then=WAITED, effect="job alone"),
    "moor run --dry-run job.toml": Line(r'(?s)\A\{.*"train"', before="", then="moor get runs", effect="No runs"),
    "moor run -i --ipus 2 -- bash": Line(
        "devices pod64:0,pod64:1", before="", types='echo "devices $MOORINGS_DEVICES"\nexit\n'
    ),
    "moor get runs": Line("train .*RUNNING"),
    "moor get runs -l team=nlp": Line(r"\A[^\n]*\n[^\n]*train [^\n]*\Z", before=NEXT),
    "moor get run train -o json": Line(r'(?s)\A[\[{].*"name": "train"'),
    "moor get runs -o name": Line(r"\Arun/run-[a-z2-7]{12}\Z"),
    "moor get runs -o custom-columns=NAME:.name": Line(r"\ANAME\ntrain\Z"),
    "moor events --run train": Line(r"(?s)run\.created.*run\.started"),
    "moor logs train --tail 1": Line(r"\Aon\Z"),
    "moor logs train --since 10m": Line(r"\Abegan\non\Z"),
    "moor exec train -- bash": Line("at pod64:0", types='echo "at ${MOORINGS_DEVICES%%,*}"\nexit\n'),
    "moor port-forward train 0:8888": Line(r"Forwarding from 127\.0\.0\.1:\d+ -> 8888", types="\x03", ready="8888"),
    "moor get devices": Line(r"(?s)pod64:0-1 .*pod64:2-63"),
    "moor get quotas": Line("QUOTA|No quotas|PROJECT"),
    "moor config use-context default": Line("default"),
    "moor config view": Line(r"server.*http://127\.0\.0\.1"),
}

PYTHON = {
    "import moorings": "moorings.submit",
    'options = {"time": "1h", "ipus": 2}': "options",
    "run = moorings.submit(train, 4.0, **options)": "run.info().job.time_limit_s == 3600",
    "run.id": "value.startswith('run-')",
    "run.state": "value in ('WAITING', 'STARTING', 'RUNNING', 'SUCCEEDED')",
    "run.wait()": "value.state == 'SUCCEEDED'",
    "run.done()": "value is True",
    "run.result()": "value == (4.0, 2)",
    "run.exception()": "value is None",
    "run.logs()": "value == 'at 4.0\\n'",
    "moorings.submit(functools.partial(train, rate=4.0), **options).result()": "value == (4.0, 2)",
    "moorings.submit(train, 4.0, tasks=2, ipus=2).results()": "value == [(4.0, 1), (4.0, 1)]",
    "runs = moorings.map_array(train, [1.0, 2.0], at_once=1)": "runs[0].info().array.limit == 1",
    "[run.result() for run in runs]": "value == [(1.0, 1), (2.0, 1)]",
    'moorings.submit(["true"]).result()': "value is None",
    'moorings.submit(["sleep", "600"]).cancel()': "value is None",
    "moorings.find_run(run.id).result()": "value == (4.0, 2)",
}
PROGRAM = """
import functools, os

def train(rate):
    print("at", rate)
    return rate, len(os.environ["MOORINGS_DEVICES"].split(","))

def check(line, is_right):
    if not is_right:
        print("not as the page says:", line)

"""


def right_sides(heading: str) -> list[str]:
    """The right-hand sides of the table below a heading."""
    part = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    found = [ROW.fullmatch(row) for row in rows]
    assert all(found), f"a row of {heading} cannot be read: {rows}"
    return [row[2] for row in found if row]


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    home = tmp_path_factory.mktemp("home")
    for name, text in FILES.items():
        (home / name).write_text(text)
    (home / "job.sh").chmod(0o755)
    with Terminal(home) as terminal:
        terminal.run("moor up")
        yield terminal


def test_every_line_of_a_table_is_run_and_no_other() -> None:
    assert set(right_sides("From Slurm")) | set(right_sides("From kubectl")) == set(COMMANDS)
    assert right_sides("From submitit") == list(PYTHON)


@pytest.mark.slow
@pytest.mark.timeout(patient(240))
@pytest.mark.parametrize("heading", ["From Slurm", "From kubectl"])
def test_each_command_does_what_its_line_says(terminal: Terminal, heading: str) -> None:
    wrong, there = [], ""
    for command in right_sides(heading):
        line = COMMANDS[command]
        if line.before != there:
            terminal.run("moor cancel --all --yes")
            terminal.settle()
            terminal.run(line.before or "true")
        wrong.append(differs(terminal, command, line))
        there = line.before if line.changes_nothing else ""
    terminal.run("moor cancel --all --yes")
    assert [said for said in wrong if said] == [], "\n\n".join(["", *filter(None, wrong)])


@pytest.mark.slow
def test_each_line_of_python_does_what_it_says(terminal: Terminal) -> None:
    lines = []
    for line, right in PYTHON.items():
        given = line if re.match(r"import |\w+ = ", line) else f"value = {line}"
        lines += [given, f"check({line!r}, {right})"]
    (terminal.home / "program.py").write_text(PROGRAM + "\n".join(lines) + "\nprint('all run')\n")
    printed, code = terminal.run("python3 program.py")
    terminal.run("moor cancel --all --yes")
    assert (printed, code) == (["all run"], 0)


def differs(terminal: Terminal, command: str, line: Line) -> str:
    """What is wrong with what a command does; empty: nothing."""
    if line.types:
        return type_into(terminal, command, line)
    printed, code = terminal.run(command)
    text = "\n".join(printed)
    if code or not re.search(line.shows, text):
        return f"$ {command}\nexit code {code}; {line.shows!r} is not in\n{text}"
    if not line.then:
        return ""
    after = line.then.format(out=printed[0] if printed else "")
    text = "\n".join(terminal.run(after)[0])
    return "" if re.search(line.effect, text) else f"$ {command}\n$ {after}\n{line.effect!r} is not in\n{text}"


def type_into(terminal: Terminal, command: str, line: Line) -> str:
    """What is wrong with an interactive command; empty: nothing."""
    variables = dict(text.split("=", 1) for text in terminal.run("env")[0] if "=" in text)
    with Pseudoterminal([*HEARING, "bash", "--norc", "-c", command], variables, folder=terminal.home) as typed:
        typed.wait_for(line.ready)
        typed.type(line.types)
        typed.wait()
    text = typed.output.decode(errors="replace")
    return "" if re.search(line.shows, text) else f"$ {command}\n{line.shows!r} is not in\n{text}"
