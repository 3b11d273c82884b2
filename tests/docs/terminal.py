"""A terminal for pages: one shell in a fresh home with real processes, and a comparison that knows what varies."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from moorings.client.client import Client
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.errors import MooringsError
from tests.docs.pages import Step
from tests.processes import DYING_WITH_US
from tests.waiting import until

PORT = "8090"  # what the pages say; the shell uses one that is free
HOME = "/home/ann"
MARK = "--- done"
MOVING = {"GRANTED", "RELEASING", "STARTING", "STOPPING"}

# What differs from one time to the next, and what stands for it in a comparison.
VARIES = (
    (re.compile(r"\b(run|claim|part|key|req|wsjob|wflow)-[a-z2-7]{8,}\b"), r"\1-ID"),
    (re.compile(r"\bmoor_[A-Za-z0-9_-]{8,}"), "moor_SECRET"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?( ?(ms|s|m|h|d|KB|MB|GB|bytes)\b)+"), "N"),
    (re.compile(r"\bprocess \d+"), "process N"),
    (re.compile(r"\brequest id: \w+"), "request id: ID"),
    (re.compile(r"\s+"), " "),
)
# What is said while one waits: how much of it is seen depends on how quick the machine is.
PROGRESS = re.compile(
    r"[a-z0-9-]+(-ID)?: (GRANTED|WAITING|STARTING|STOPPING|running|waits for|partition \S+ ACTIVE|devices)\b.*"
    r"|run-ID: RUNNING"
)


class Terminal:
    """A shell that stays: folder, variables and background jobs are kept from one command to the next."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self._shell = subprocess.Popen(
            [*DYING_WITH_US, "bash", "--norc", "--noprofile"],
            cwd=home,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # The port is all that a page cannot know.
        self.run(
            f'moor() {{ if [ "$1" = up ]; then shift; set -- up --port {self.port} "$@"; fi; command moor "$@"; }}'
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.run("moor get runs -o name | xargs -r moor cancel; moor down")
        with self._shell:  # closes its pipes, and waits for it
            pass

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "USER": "ann", "TZ": "UTC"}
        return variables | {"MOORINGS_JOBS_AS_ROOT": "true"}  # a page's reader is not root, and we may be

    def run(self, command: str) -> tuple[list[str], int]:
        """What a command prints, and its exit code; `$?` is that of the command before."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"(exit ${{__code:-0}})\n{{ {command}\n}} < /dev/null\n__code=$?\n")
        self._shell.stdin.write(f'printf "\\n%s %s\\n" "{MARK}" "$__code"\n')
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(MARK):
                text = "".join(lines).removesuffix("\n")
                return text.splitlines(), int(line.removeprefix(MARK))
            lines.append(line)
        raise AssertionError(f"the shell ended in {command!r}: {''.join(lines)}")

    def here(self, text: str) -> str:
        """What a page says, for this terminal's port."""
        return text.replace(PORT, self.port)

    def settle(self) -> None:
        """Wait as long as a person takes to type: until nothing is on its way."""
        credentials = self.home / ".config" / "moorings" / "credentials.toml"
        if not credentials.exists():
            return
        context = tomllib.loads(credentials.read_text())["contexts"]["default"]
        files = {name: context.get(name, "") for name in ("ca_file", "cert_file", "key_file")}
        server = f"{context['server'].partition(':')[0]}://127.0.0.1:{self.port}"
        with Client(Transport(Endpoint(server=server, access_key=context["access_key"], **files))) as client:

            def still() -> bool:
                try:
                    states = {claim.state for claim in client.list_claims()} | {run.state for run in client.list_runs()}
                except MooringsError as error:  # one whose certificate is not trusted has not taken its new one yet
                    return error.code == "controller.unreachable" and "is not trusted" not in error.detail
                return states.isdisjoint(MOVING)

            until(still)

    def check(self, step: Step) -> str:
        """What is wrong with what a command prints; empty: nothing."""
        self.settle()
        printed, _ = self.run(self.here(step.command))
        printed = [line.replace(self.port, PORT).replace(str(self.home), HOME) for line in printed]
        if matches(step.output, printed):
            return ""
        said, found = ("\n".join(f"    {line}" for line in lines) for lines in (step.output, printed))
        return f"line {step.number}: $ {step.command}\n  the page says\n{said}\n  it prints\n{found}\n"


def plain(line: str) -> str:
    """A line without what varies."""
    for pattern, word in VARIES:
        line = pattern.sub(word, line)
    return line.strip()


def matches(said: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether a page's output is what was printed; `...` stands for anything, alone in a line for any lines."""
    wanted = "\n".join(_pattern(line) for line in told(said))
    wanted = wanted.replace("\n<ANY>", "<ANY>").replace("<ANY>\n", "<ANY>\n?").replace("<ANY>", r"(?:(?:\A|\n).*)*?")
    return re.fullmatch(wanted, "\n".join(told(printed))) is not None


def told(lines: Sequence[str]) -> list[str]:
    """Lines without what varies, and without progress."""
    return [line for line in map(plain, lines) if line and not PROGRESS.fullmatch(line)]


def _pattern(line: str) -> str:
    return "<ANY>" if line == "..." else ".*?".join(re.escape(part.strip()) + "" for part in line.split("..."))
