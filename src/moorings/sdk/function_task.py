"""The program of a job that calls a function: ``python function_task.py ENTRY``.

A file and not a module: it gives the submitter's import path to this Python first, and only then finds this package and
the modules of the function. Until then it uses nothing that Python 3.6 does not have, so that it can say what is wrong.
"""

import json
import os
import sys
from pathlib import Path

INDEX_VARIABLE, RANK_VARIABLE = "MOORINGS_ARRAY_INDEX", "RANK"  # set by moorings alone: of no shell does it take them


def main(entry: Path) -> int:
    """Call the function; returns the exit code."""
    index, rank = (int(os.environ.get(name, "0")) for name in (INDEX_VARIABLE, RANK_VARIABLE))
    with (entry / "call.json").open(encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            return _fail(f"{entry} is another user's")
        call = json.load(file)
    here, there = [sys.implementation.name, *sys.version_info[:2]], [call["implementation"], *call["python"]]
    if here != there:
        text = "it was pickled by {} {}.{}, and runs with {} {}.{}".format(*there, *here)
        _write_fault(entry / f"result-{index}-{rank}", text)
        return _fail(text)
    sys.path[:] = call["path"] + [folder for folder in sys.path[1:] if folder not in call["path"]]

    from moorings.sdk.functions import call_function

    return call_function(entry, index, rank)


def _write_fault(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.new")  # moorings.files may be no program of this Python
    draft.write_text(json.dumps({"kind": "fault", "text": text}) + "\n", encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(target)


def _fail(text: str) -> int:
    sys.stderr.write(f"moorings: the function was not called: {text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
