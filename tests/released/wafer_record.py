"""Records what a workflow of a release leaves in its folders and at the controller::

    python -m tests.released.wafer_record

A tiny model is compiled, trained and evaluated by ``run.py``; then all files of its model and compile folders are kept,
and its runs as the controller shows them.
"""

from __future__ import annotations

import base64
import json
import lzma
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.appliance import Site
from tests.released.code import ARCHIVE
from tests.released.slurm_record import write

ROOT = Path(__file__).resolve().parents[2]
WAFER = Path(__file__).with_name("wafer.json")
LABELS = "--job_labels team=nlp run=a/b --job-priority p1"


def tree(folder: Path) -> dict[str, str]:
    """All files, packed, by their name below the folder."""
    return {
        str(path.relative_to(folder)): base64.b64encode(lzma.compress(path.read_bytes(), lzma.FORMAT_ALONE)).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def put_back(recording: dict[str, Any], folder: Path) -> None:
    """The files as they were left."""
    for name, text in recording["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(lzma.decompress(base64.b64decode(text)))


def main() -> None:
    """Write it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "site").mkdir()
        site = Site(folder / "site")
        program = site.program(folder / "program")
        program.code = folder / "code"  # compiled programs hold paths of sources: not those of whoever records
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(program.code, filter="data")
        program.change("max_steps: 30", "max_steps: 6")
        for mode in ("train", "eval"):
            code, text = program.run(f"--mode {mode} --num_csx 2 --compile_dir compiled {LABELS}")
            assert code == 0, text
        for manifest in program.folder.glob("compiled/*/*/manifest.json"):
            if json.loads(manifest.read_text())["side"] == "eval":  # one is enough
                shutil.rmtree(manifest.parent)
        recording: dict[str, Any] = {
            "folder": str(program.folder),
            "files": tree(program.folder),
            "runs": [site.job(one["id"]) for one in site.jobs()],
            "jobs": site.jobs(),
        }
        assert site.controller.stop() == 0
    write(WAFER, json.loads(json.dumps(recording).replace(str(ROOT), "/opt/moorings")))


if __name__ == "__main__":
    main()
