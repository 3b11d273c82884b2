"""Python packages that only some tests need: unpacked under ``.tools/witnesses``, beside everybody's environment.

Their versions and hashes stand in a file of requirements, which names all that they need: nothing is resolved here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from zlib import crc32

from tests.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".tools" / "witnesses"


def packages_of(requirements: Path, python: str) -> Path:
    """The folder of the packages in a file of requirements, for that Python; made once.

    Raises:
        AssertionError: they cannot be had here.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    mark = crc32(requirements.read_bytes() + os.path.realpath(python).encode())
    folder = CACHE / f"{requirements.stem}-{mark:08x}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest want it at the same time
        if not folder.exists():
            _install(requirements, python, folder)
    return folder


def _install(requirements: Path, python: str, folder: Path) -> None:
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    command = [str(ROOT / ".tools" / "bin" / "uv"), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    wanted = ["--only-binary", ":all:", "--python", python, "--target", str(work), "-r", str(requirements)]
    try:
        done = subprocess.run(
            [*command, *wanted], cwd=ROOT, capture_output=True, text=True, check=False, timeout=patient(200)
        )
        assert done.returncode == 0, f"{requirements.name} cannot be had: {done.stderr[-500:]}"
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
