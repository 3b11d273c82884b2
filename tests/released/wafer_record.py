"""Records what a workflow of a release leaves in its folders and at the controller::

    python -m tests.released.wafer_record

A tiny model is compiled, trained and evaluated by ``run.py``; then all files of its model and compile folders are kept,
and its runs as the controller shows them. What XLA made is left out: it is of one kind of CPU.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.appliance import Site
from tests.released.slurm_record import write

WAFER = Path(__file__).with_name("wafer.json")
LABELS = "--job_labels team=nlp run=a/b --job-priority p1"


def tree(folder: Path) -> dict[str, str]:
    """All files, as base64, by their name below the folder."""
    return {
        str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "xla" not in path.parts
    }


def main() -> None:
    """Write it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "site").mkdir()
        site = Site(folder / "site")
        program = site.program(folder / "program")
        program.change("max_steps: 30", "max_steps: 6")
        for mode in ("train", "eval"):
            code, text = program.run(f"--mode {mode} --num_csx 2 --compile_dir compiled {LABELS}")
            assert code == 0, text
        recording: dict[str, Any] = {
            "folder": str(program.folder),
            "files": tree(program.folder),
            "runs": [site.job(one["id"]) for one in site.jobs()],
            "jobs": site.jobs(),
        }
        assert site.controller.stop() == 0
    write(WAFER, recording)
    print(json.dumps({file: len(text) for file, text in recording["files"].items()}, indent=1))


if __name__ == "__main__":
    main()
