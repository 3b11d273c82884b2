"""A local shell: from the moment its partition is ACTIVE to its first prompt on the person's terminal.

``moor shell`` in a real terminal, against a real controller with simulated devices. Bound: the same login shell without
Moorings, in a terminal of its own.
"""

from __future__ import annotations

import fcntl
import os
import select
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from datetime import datetime
from pathlib import Path

from benchmarks.claims_http import POOLS, start_controller
from moorings.client.client import Client
from moorings.client.transport import Endpoint, Transport

ROUNDS = 11
SHELL = "/bin/sh"
PROMPTS = (b"# ", b"$ ")


def shell_ready_ms() -> float:
    """The median time in milliseconds from an ACTIVE partition to the first prompt."""
    moor = str(Path(sys.executable).with_name("moor"))
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        (folder / "pools.toml").write_text(POOLS)
        process, server, key = start_controller(folder)
        environment = {**os.environ, "MOORINGS_SERVER": server, "MOORINGS_ACCESS_KEY": key, "SHELL": SHELL}
        try:
            with Client(Transport(Endpoint(server, access_key=key))) as client:
                taken = []
                for _ in range(ROUNDS + 1):
                    at_s = _first_prompt_at_s([moor, "shell", "--ipus", "1"], environment)
                    ready = max(filter(None, (claim.ready_at for claim in client.list_claims())))
                    taken.append((at_s - datetime.fromisoformat(ready).timestamp()) * 1000)
                    for each in client.list_runs():
                        client.cancel_run(each.id, wait_s=20)
        finally:
            process.terminate()
            process.wait(20)
    return statistics.median(taken[1:])  # the first one writes bytecode


def plain_shell_ms() -> float:
    """The median time in milliseconds to the first prompt of a login shell."""
    taken = []
    for _ in range(ROUNDS):
        begun_s = time.time()
        taken.append((_first_prompt_at_s([SHELL, "-l"], dict(os.environ)) - begun_s) * 1000)
    return statistics.median(taken)


def _first_prompt_at_s(command: list[str], environment: dict[str, str]) -> float:
    """When a command's terminal shows a prompt; then it is killed."""
    master, slave = os.openpty()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(slave)
        shown = b""
        while not shown.rstrip(b"\x1b[K").endswith(PROMPTS):
            if not select.select([master], [], [], 60)[0]:
                raise SystemExit(f"no prompt comes: {shown.decode(errors='replace')}")
            shown += os.read(master, 1 << 16)
        at_s = time.time()
        process.kill()
    os.close(master)
    return at_s
