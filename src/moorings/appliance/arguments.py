"""The command line of ``run.py``: the options that users of such appliances know, each written with ``_`` or ``-``.

argparse and not click: a user's program may parse arguments of its own with argparse first, and its authors know the
standard library's messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from moorings.appliance.schemas import Mode

DEVICE: Final = "CSX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The parsed arguments.

    Attributes:
        params: the params file, as given.
        runconfig: values of ``runconfig`` from the command line, by name.
        flags: global flags of the command line (``server``), by name.
    """

    params: str
    compile_only: bool = False
    validate_only: bool = False
    checkpoint_path: str | None = None
    runconfig: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)


def parse_arguments(argv: Sequence[str], program: str = "run.py") -> Arguments:
    """Parse ``argv`` (without the program's name).

    Raises:
        SystemExit: 2, after usage and the error were written to stderr; 0 after ``--help``.
    """
    read = vars(_parser(program).parse_args(list(argv)))
    given = {name: read[name] for name in _IN_RUNCONFIG if read[name] is not None}
    given |= {name: tuple(given[name]) for name in ("mount_dirs", "python_paths", "job_labels") if name in given}
    return Arguments(
        params=read["params"],
        compile_only=read["compile_only"],
        validate_only=read["validate_only"],
        checkpoint_path=read["checkpoint_path"],
        runconfig=given,
        flags={name: read[name] for name in ("server", "context") if read[name] is not None},
    )


_IN_RUNCONFIG: Final = (
    *("mode", "model_dir", "compile_dir", "num_csx", "num_wgt_servers", "max_steps", "job_time_sec", "job_priority"),
    *("job_labels", "mount_dirs", "python_paths"),
)


class _GivenOnce(argparse.Action):
    """An option that may be given once: of two, one is probably a mistake."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} was given twice")
        setattr(namespace, self.dest, values)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Compile and execute this program on wafer-scale systems.",
        epilog="Options may be written with _ or -. Exit codes: 0; 1 a job failed; 2 wrong arguments or params; "
        "124 job_time_sec is over; 128 + N after signal N.",
    )
    parser.add_argument("device", choices=[DEVICE], help="on what to run it")

    def option(name: str, help_text: str, group: Any = parser, **more: Any) -> None:  # noqa: ANN401 - argparse's
        if "action" not in more:
            more["action"] = _GivenOnce
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        group.add_argument(*spellings, dest=name, help=help_text, **more)

    option("params", "params file (YAML)", required=True, metavar="FILE")
    option("mode", "what to do", choices=get_args(Mode))
    option("model_dir", "folder of checkpoints", metavar="DIR")
    option("compile_dir", "folder of compiled programs (~/.cache/moorings/compile)", metavar="DIR")
    option("checkpoint_path", "begin from this checkpoint (the newest one in model_dir)", metavar="FILE")
    option("num_csx", "systems (1)", type=int, metavar="N")
    option("num_wgt_servers", "number of weight servers (1)", type=int, metavar="K")
    option("max_steps", "train until this many steps are done", type=int, metavar="N")
    option("job_time_sec", "seconds that all jobs may run together, without queueing (no limit)", type=int, metavar="S")
    option("job_priority", "p1, p2 or p3; or a number from 0 (first) to 399 (p2)", metavar="P")
    option("job_labels", "labels of the jobs", nargs="+", metavar="KEY=VALUE")
    option("mount_dirs", "folders that the program needs", nargs="+", metavar="DIR")
    option("python_paths", "folders to import from", nargs="+", metavar="DIR")
    option("server", "address of the controller (as for moor)", metavar="URL")
    option("context", "context of moor's configuration", metavar="NAME")
    alone = parser.add_mutually_exclusive_group()
    option("compile_only", "end after the compile jobs", alone, action="store_true")
    option("validate_only", "check everything, queue nothing", alone, action="store_true")
    return parser
