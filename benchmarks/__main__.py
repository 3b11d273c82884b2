"""``python -m benchmarks [NAME ...] [--json]``."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from benchmarks.report import Report


def names() -> list[str]:
    """Every benchmark there is."""
    folder = Path(__file__).parent
    found = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return sorted(
        name for name in found if name not in ("__main__", "report", "shell_ready", "slurm_submit", "surrogates")
    )


def main() -> int:
    """Run the chosen benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} (default: all)")
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(names())
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    for name in chosen.names or names():
        report: Report = importlib.import_module(f"benchmarks.{name}").run()
        if not chosen.json:
            print(report.table(), end="\n\n")
        print(report.json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
