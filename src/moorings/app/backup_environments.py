"""The values of jobs' variables in a backup: its database has their names alone, and a waiting run needs them to start.

One member with a line for each run, after the records: of every run in these its variables are there, or it can start
no more. A restore never replaces what is there: the values of a run do not change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from moorings.engines.environments import FolderEnvironments
from moorings.files import create_file
from moorings.workloads.runs import RunId

MEMBER = "environments.jsonl"


def copy_environments(folders: Mapping[str, Path], work: Path) -> dict[str, Path]:
    """The member, in ``work``; none, if nothing is kept.

    Args:
        folders: of the runs, by engine.
        work: a private folder.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        lines = [
            json.dumps({"engine": engine, "run": run, "environment": dict(variables)})
            for engine, run, variables in FolderEnvironments(folders).all()
        ]
    except ValueError as error:
        raise OSError(str(error)) from error
    if not lines:
        return {}
    with create_file(work / MEMBER) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return {MEMBER: work / MEMBER}


def restore_environments(folders: Mapping[str, Path], work: Path) -> None:
    """Restore the member of an unpacked backup, which is gone then; may be repeated.

    Raises:
        MooringsError: ``engine.unavailable``: the folder of runs cannot be written.
    """
    member = work / MEMBER
    if not member.exists():
        return
    environments = FolderEnvironments(folders)
    with member.open(encoding="ascii") as file:
        for line in file:
            given = json.loads(line)
            environments.restore(str(given["engine"]), RunId(str(given["run"])), dict(given["environment"]))
    member.unlink()
