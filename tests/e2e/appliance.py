"""A tiny program for an appliance, started as its users do: ``python run.py CSX ...`` against a real controller."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.processes import ControllerProcess
from tests.processes import DYING_WITH_US
from tests.procfs import HEARING
from tests.released.code import environment_of
from tests.waiting import patient

POOLS = """
[[pool]]
name = "cs"
kind = "csx"
driver = "simulated"
topology = { type = "any-subset", domain_size = 4 }
resources = { memory = "200G" }
[pool.simulated]
provision_s = 0.1
provision_per_device_s = 0.0
remove_s = 0.1
remove_per_device_s = 0.0
"""
RUN_PY = """import time
from dataclasses import dataclass

import numpy as np

from moorings.appliance import run
from moorings.appliance.layers import Layer


class Net:
    @dataclass
    class Params:
        hidden_size: int = 8

        def check(self):
            if self.hidden_size < 1:
                raise ValueError(f"hidden_size: {self.hidden_size} is less than 1")

    def __init__(self, params):
        self.size = params.hidden_size

    def layers(self):
        import jax.numpy as jnp

        def weights(rows, columns):
            return lambda rng: {"w": rng.normal(0, 0.3, (rows, columns)).astype(np.float32)}

        return [
            Layer("first", "first", weights(8, self.size), lambda w, x: jnp.tanh(x @ w["w"])),
            Layer("loss", "loss", weights(self.size, 1), lambda w, x, y: jnp.mean((x @ w["w"] - y) ** 2)),
        ]


class Data:
    @dataclass
    class Params:
        batch_size: int
        pause_s: float = 0.0
        broken: bool = False

    def __init__(self, params):
        self.params = params

    def batch(self, step, *, system, systems):
        time.sleep(self.params.pause_s)
        if self.params.broken and step > 2:
            raise RuntimeError("the data has a hole")
        share = self.params.batch_size // systems
        x = np.random.default_rng((step, system)).normal(size=(share, 8)).astype(np.float32)
        return x, x.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    run(Net, train=Data, eval=Data, _lease_s=LEASE_S)
"""
PARAMS = """model:
  hidden_size: 8
train_input:
  batch_size: 32
  pause_s: {pause_s}
eval_input:
  batch_size: 32
optimizer:
  learning_rate: 1e-2
runconfig:
  max_steps: 30
  log_steps: 5
  eval_steps: 2
"""
SECRET = "hunter2-of-the-client"
_HANDED_ON = ("PATH", "HOME", "LANG", "PYTHONPATH")


class Way:
    """A way to the controller that can be cut: what is open breaks, and nobody answers until it is repaired."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open = True
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def cut(self) -> None:
        self._open = False
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if not self._open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := one.recv(1 << 16):
                other.sendall(chunk)
            other.shutdown(socket.SHUT_WR)


class Started:
    """A ``run.py`` that runs; its lines as they come, both of its outputs together."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, text: str, wait_s: float = 60.0) -> str:
        """The first new line with that text."""
        deadline = time.monotonic() + patient(wait_s)
        while True:
            line = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"ended without {text!r}:\n{self.text}"
            self.lines.append(line)
            if text in line:
                return line

    def end(self, wait_s: float = 90.0) -> int:
        """Its exit code, all lines read."""
        code = self.process.wait(patient(wait_s))
        self._thread.join(patient(10))
        while (line := self._queue.get(timeout=patient(10))) is not None:
            self.lines.append(line)
        return code

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Site:
    """A controller with four systems, and a folder with the program."""

    def __init__(self, folder: Path, code: Path | None = None) -> None:
        self.controller = ControllerProcess(folder, POOLS, code=code)
        self.controller.start()
        self.cache = folder / "cache"
        self.cache.mkdir()

    def program(self, folder: Path, pause_s: float = 0.0, lease_s: float = 60.0) -> Program:
        """The program in a folder of its own."""
        folder.mkdir(exist_ok=True)
        (folder / "run.py").write_text(RUN_PY.replace("LEASE_S", str(lease_s)))
        (folder / "params.yaml").write_text(PARAMS.format(pause_s=pause_s))
        return Program(self, folder)

    def get(self, path: str) -> Any:
        status, answer = self.controller.ask("GET", path)
        assert status == 200, answer
        return answer

    def jobs(self, *, ended: bool = True) -> list[dict[str, Any]]:
        return list(self.get(f"/v1/appliance/jobs?limit=1000{'&all=true' if ended else ''}")["items"])

    def job(self, ident: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/runs/{ident}"))

    def claims(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/claims")["items"])


class Program:
    """Starts it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.model_dir = folder / "model_dir"
        self.code: Path | None = None  # of another release; None: today's

    def change(self, before: str, after: str) -> None:
        file = self.folder / "params.yaml"
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))

    @contextlib.contextmanager
    def started(self, words: str = "--mode train", *, port: int = 0) -> Iterator[Started]:
        """``python run.py CSX --params params.yaml WORDS``."""
        controller = self.site.controller
        environment = {
            **{name: told for name, told in environment_of(self.code).items() if name in _HANDED_ON},
            "XDG_CACHE_HOME": str(self.site.cache),
            "MOORINGS_SERVER": f"http://127.0.0.1:{port or controller.port}",
            "MOORINGS_ACCESS_KEY": controller.key,
            "SOME_TOKEN": SECRET,
        }
        process = subprocess.Popen(
            [
                *DYING_WITH_US,
                *HEARING,
                sys.executable,
                "run.py",
                "CSX",
                "--params",
                "params.yaml",
                *words.split(),
            ],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Started(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def run(self, words: str = "--mode train", **more: Any) -> tuple[int, str]:
        """Its exit code, and all it wrote."""
        with self.started(words, **more) as started:
            code = started.end()
            return code, started.text

    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints."""
        return sorted(int(path.stem.split("_")[1]) for path in self.model_dir.glob("checkpoint_*.npz"))

    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.model_dir / "run_meta.json").read_text()))
