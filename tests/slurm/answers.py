"""Answers that no node may act on, each wrong in one thing; the plugin and ``parse_reply`` must agree on them."""

from __future__ import annotations

from collections.abc import Callable

from moorings.slurm.host.bind_protocol import BindRequest

GOOD = {
    "partition": "p1",
    "gcds": "2",
    "dir": "",
    "master": "n1",
    "port": "29500",
    "env": "MOORINGS_X=1",
    "genv": "1:MOORINGS_Y=2",
}
FILES = GOOD | {"dir": "/tmp/moorings-hostile"}


def head(request: BindRequest, **other: str) -> list[str]:
    values = {"job": str(request.job), "step": str(request.step), "nonce": request.nonce, "status": "ok"} | other
    return [f"{key}={value}" for key, value in values.items()]


def written(lines: list[str], values: dict[str, str]) -> bytes:
    return "\n".join([*lines, *(f"{key}={value}" for key, value in values.items()), ""]).encode()


def wrong(**other: str) -> Callable[[BindRequest], bytes]:
    return lambda request: written(head(request), GOOD | other)


def wrong_file(name: str, content: str = "eA==", gcd: str = "0", folder: str = FILES["dir"]) -> Callable[..., bytes]:
    return lambda request: written(head(request), FILES | {"dir": folder, "file": f"{gcd}:{name}:{content}"})


UNSAFE_NAMES = (
    "LD_PRELOAD",
    "PATH",
    "IFS",
    "SLURM_JOB_ID",
    "BASH_ENV",
    "PYTHONPATH",
    "A-B",
    "1A",
    "",
    "A B",
    "A" * 129,
)

HOSTILE: dict[str, Callable[[BindRequest], bytes]] = {
    "another nonce": lambda request: written(head(request, nonce="0" * 16), GOOD),
    "another job": lambda request: written(head(request, job=str(request.job + 1)), GOOD),
    "another step": lambda request: written(head(request, step="77"), GOOD),
    "no status": lambda request: written(head(request, status=""), GOOD),
    "an unknown status": lambda request: written(head(request, status="fine"), GOOD),
    "nothing but ok": lambda request: written(head(request), {}),
    "a line without a key": lambda request: written([*head(request), "rubbish"], GOOD),
    "no GCD": wrong(gcds="0"),
    "GCDs in words": wrong(gcds="two"),
    "too many GCDs": wrong(gcds="4097"),
    "a GCD that is not there": wrong(genv="2:MOORINGS_Y=1"),
    "a negative GCD": wrong(genv="-1:MOORINGS_Y=1"),
    "no port": wrong(port="0"),
    "a large port": wrong(port="65536"),
    "an address with a space": wrong(master="n1 n2"),
    "no address": wrong(master=""),
    "no partition": wrong(partition=""),
    "a relative folder": wrong_file("a.conf", folder="tmp/x"),
    "a folder with ..": wrong_file("a.conf", folder="/tmp/../etc"),
    "a folder that ends in ..": wrong_file("a.conf", folder="/tmp/x/.."),
    "the root folder": wrong_file("a.conf", folder="/"),
    "a file without a folder": wrong_file("a.conf", folder=""),
    "a file above": wrong_file("../a.conf"),
    "a file elsewhere": wrong_file("/tmp/a.conf"),
    "a hidden file": wrong_file(".lock"),
    "a file without a name": wrong_file(""),
    "a file of another GCD": wrong_file("a.conf", gcd="2"),
    "no base64": wrong_file("a.conf", "e!=="),
    "base64 with its end in the middle": wrong_file("a.conf", "eA==eA=="),
    "base64 that is cut": wrong_file("a.conf", "eA="),
    "too many entries": lambda request: written([*head(request), *("env=A=1" for _ in range(4097))], GOOD),
    **{f"the variable {name[:20]!r}": wrong(env=f"{name}=1") for name in UNSAFE_NAMES},
}
