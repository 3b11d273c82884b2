"""``make demo``: the main job, on this machine alone, through the real controller.

A controller with a simulated pod of 64 IPUs is started in a folder of its own; ``examples/digits`` trains on a 4-IPU
partition with 2 GCDs; then the demo looks for anything left behind. Everything shown is what ``moor`` prints.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOOR = (sys.executable, "-m", "moorings.cli.main")
ACCURACY_MIN = 0.93
JOB = "examples/digits/job.toml"


class DemoError(Exception):
    """The demo did not show what it promises."""


def main() -> int:
    """Run the demo; 0 if all was as it should be."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the controller is stopped on the way out
    with tempfile.TemporaryDirectory(prefix="moorings-demo-") as name:
        demo = Demo(Path(name))
        try:
            accuracy = demo.run()
        except DemoError as error:
            print(f"\nThe demo failed: {error}", file=sys.stderr)
            demo.show_log()
            return 1
        finally:
            demo.stop()
    print(f"accuracy {accuracy:.3f}")
    return 0


class Demo:
    """One controller in ``folder``, and a user at its keyboard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MOORINGS_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",  # python3 with NumPy
            "MOORINGS_DATA": str(self.data),
            "MOORINGS_CREDENTIALS": str(folder / "credentials.toml"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def run(self) -> float:
        """The accuracy the job reached.

        Raises:
            DemoError: something was not as it should be.
        """
        say("A controller for this user, with one simulated pool")
        self.moor("up", "--port", str(free_port()))
        self.moor("get", "pools")
        say(f"The job: {JOB}, 2 tasks on 4 IPUs")
        run, accuracy = self.train()
        say("What it came to")
        self.moor("get", "runs", "--all")
        self.moor("events", "--run", run)
        say("What is left behind")
        self.look_for_leftovers(run)
        self.moor("down")
        self.no_controller_left()
        if accuracy < ACCURACY_MIN:
            raise DemoError(f"accuracy {accuracy:.3f} is under {ACCURACY_MIN}")
        return accuracy

    def train(self) -> tuple[str, float]:
        """Run the job in the foreground, looking at the partition half way; the run's id and the accuracy."""
        shown = False
        last = ""
        with self.start("run", JOB) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line
                if not shown and "epoch" in line:
                    shown = True
                    self.moor("get", "partitions")
        if process.returncode:
            raise DemoError(f"the job ended with {process.returncode}")
        found = re.search(r"accuracy (\d\.\d+)", last)
        if found is None or not shown:
            raise DemoError(f"the job's last line was {last!r}")
        return self.items("runs", "--all")[0]["id"], float(found[1])

    def look_for_leftovers(self, run: str) -> None:
        """Nothing of the run is left: no claim, no partition, no process, no file of its binding.

        Raises:
            DemoError: something is.
        """
        deadline = time.monotonic() + 30  # the hardware takes its time to remove a partition
        while self.items("partitions") and time.monotonic() < deadline:
            self.quietly("wait", "claim", self.items("partitions")[0]["claim"], "--for", "ENDED", "--timeout", "20s")
        left = [
            *(f"claim {claim['id']}" for claim in self.items("claims")),
            *(f"partition {partition['name']}" for partition in self.items("partitions")),
            *(f"process {pid}" for pid in processes_of(run)),
            *(f"file {path}" for path in self.data.rglob("*_ipuof.conf")),
        ]
        free = self.items("pools")[0]["free"]
        if left or free != 64:
            raise DemoError(f"left behind: {', '.join(left) or f'only {free} devices are free'}")
        print("no claim, no partition, no process, no binding file; 64 of 64 devices free")

    def no_controller_left(self) -> None:
        """The controller's process has gone.

        Raises:
            DemoError: it has not.
        """
        if (self.data / "controller.json").exists():
            raise DemoError("the controller is still there")

    # -- the keyboard ------------------------------------------------------------------------------------------------

    def moor(self, *arguments: str) -> None:
        """Show a command and what it prints.

        Raises:
            DemoError: it failed.
        """
        print(f"\n$ {shlex.join(['moor', *arguments])}", flush=True)
        code = subprocess.run([*MOOR, *arguments], env=self.environment, cwd=ROOT, check=False).returncode
        if code:
            raise DemoError(f"moor {shlex.join(arguments)} ended with {code}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Show a command and start it; its output is read here, its progress goes to the terminal."""
        print(f"\n$ {shlex.join(['moor', *arguments])}", flush=True)
        return subprocess.Popen([*MOOR, *arguments], env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def quietly(self, *arguments: str) -> str:
        """What a command prints, unseen."""
        command = [*MOOR, *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout

    def items(self, *what: str) -> list[dict[str, Any]]:
        """The items of a list, as JSON gives them.

        Raises:
            DemoError: no list came.
        """
        try:
            items: list[dict[str, Any]] = json.loads(self.quietly("get", *what, "-o", "json"))["items"]
        except (ValueError, KeyError) as error:
            raise DemoError(f"moor get {' '.join(what)} gave no list") from error
        return items

    def stop(self) -> None:
        """Whatever happened, no controller is left running."""
        if (self.data / "controller.json").exists():
            self.quietly("down")

    def show_log(self) -> None:
        """The end of the controller's log."""
        log = self.data / "controller.log"
        if log.exists():
            print("\n".join(["The controller's log:", *log.read_text().splitlines()[-20:]]), file=sys.stderr)


def processes_of(run: str) -> Sequence[int]:
    """Processes whose environment says they belong to the run."""
    marker = f"MOORINGS_RUN_ID={run}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it ended, or belongs to somebody else
                continue
    return found


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def say(title: str) -> None:
    """A heading."""
    print(f"\n== {title} {'=' * max(3, 90 - len(title))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
