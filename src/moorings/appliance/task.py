"""``python -P -m moorings.appliance.task``: a job's program: the user's script again, with an order for ``run``."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from moorings.appliance import entry
from moorings.appliance.arguments import DEVICE
from moorings.appliance.job_spec import read_job_spec
from moorings.core.model.errors import MooringsError


def main(argv: Sequence[str]) -> int:
    """Run the script, where ``run`` exits with the job's code; return 2 after an error, or if ``run`` is not called."""
    parser = argparse.ArgumentParser(prog="moorings.appliance.task", allow_abbrev=False)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--order", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        order = read_job_spec(given.order)
        for path in (given.script, *map(Path, order.mount_dirs)):
            _check_exists(path)
    except MooringsError as error:
        sys.stderr.write(f"error: {error.detail} ({error.code})\n")
        return 2
    entry.set_job_spec(order)
    sys.argv = [str(given.script), DEVICE]
    sys.path.insert(0, str(given.script.parent))  # as Python does for a script
    runpy.run_path(str(given.script), run_name="__main__")
    sys.stderr.write(f"error: {given.script} came to its end without calling moorings.appliance.run\n")
    return 2


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise MooringsError("order.invalid", f"{path} is not to be seen where the job runs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
