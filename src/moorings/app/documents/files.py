"""``pools-file.md`` and ``job-file.md``: every key of the two files people write, with type, default and bounds.

The parsers are code, not tables, so the keys are listed here; ``tests/docs/test_reference.py`` asks the parsers and
fails on a wrong key, type or default. Numbers come from the code's own constants.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields

from moorings.app.documents.markdown import GENERATED, code, table
from moorings.core.model import pools
from moorings.core.model.claims import PRIORITY_MAX, SIZE_MAX, TIME_LIMIT_S_MAX, WARN_SIGNALS, CheckpointContract
from moorings.core.model.topology import CATALOGUE_BLOCKS_MAX, DEVICES_MAX
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.drivers.vipu.settings import VipuSettings
from moorings.workloads import environment, jobs
from moorings.workloads.arrays import ELEMENTS_MAX
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX
from moorings.workloads.dependencies import AFTER_MAX

_DAYS = TIME_LIMIT_S_MAX // 86_400
_CONTRACT = CheckpointContract()


@dataclass(frozen=True, slots=True)
class FileKey:
    """One key of a file.

    Attributes:
        table: its table; empty: the top level, or ``[[pool]]``.
        name: as written in the file.
        kind: its type, in TOML's terms.
        default: as it would be written; empty: none.
        bounds: its allowed values.
        meaning: one sentence.
        required: whether a file without it is refused.
    """

    table: str
    name: str
    kind: str
    default: str
    bounds: str
    meaning: str
    required: bool = False


POOLS: tuple[FileKey, ...] = (
    FileKey("", "name", "string", "", "1 to 32 lower-case letters, digits, `-`, `.`", "The pool's name.", True),
    FileKey(
        "", "kind", "string", "", "1 to 32 lower-case letters, digits, `-`", "Kind of its accelerators: `ipu`.", True
    ),
    FileKey("", "driver", "string", "", "`simulated`, `vipu`", "The driver of the hardware.", True),
    FileKey(
        "topology", "type", "string", "", "`power-of-two`, `any-subset`, `catalogue`", "Which blocks there are.", True
    ),
    FileKey("topology", "domains", "integer", "1", f"1 to {DEVICES_MAX:,} devices in all", "How many domains."),
    FileKey(
        *("topology", "domain_size", "integer", "", f"1 to {DEVICES_MAX:,} devices in all"),
        "Devices of each domain; a power of two where the topology is one.",
        required=True,
    ),
    FileKey(
        *("topology", "max_block", "integer", "", "1 to all devices"),
        "Devices of the largest partition. Default: a domain (`power-of-two`), or all (`any-subset`).",
    ),
    FileKey(
        *("topology", "blocks", "list of strings", "", f"1 to {CATALOGUE_BLOCKS_MAX:,}"),
        'Of a `catalogue`, which alone has and needs it: every block there is, as `"0-3"` or `"0-3,8"`.',
    ),
    FileKey(
        *("resources", "NAME", "size or integer", "", "0 or more"),
        'Secondary resources that claims may ask for, under names of your choice: `memory = "256G"`.',
    ),
)

JOB: tuple[FileKey, ...] = (
    FileKey(
        "",
        "name",
        "string",
        "",
        f"1 to {jobs.JOB_NAME_CHARS_MAX} letters, digits, `-`, `.`, `_`",
        "Name of the job. Default: the file's.",
    ),
    FileKey(
        *(
            "",
            "command",
            "string or list",
            "",
            f"{COMMAND_ARGS_MAX:,} words, {COMMAND_CHARS_MAX:,} characters",
        ),
        "Program and arguments of every task. No shell is put in between; a string is split as a shell splits words.",
        required=True,
    ),
    FileKey(
        *("", "setup", "list of strings", "[]", f"{environment.SETUP_LINES_MAX} lines"),
        "Lines that bash runs before the command, in the same shell: `module load cuda`, `source venv/bin/activate`.",
    ),
    FileKey("", "tasks", "integer", "1", f"1 to {jobs.TASKS_MAX:,}", "Processes; each has one GCD of the partition."),
    FileKey("", "time", "duration", "", f"1 s to {_DAYS} days", "Time limit of the run. Without it: endless."),
    FileKey("", "workdir", "string", '"."', "a folder", "Working folder of every task; relative: to the job file."),
    FileKey("", "project", "string", '"default"', "1 to 64 letters, digits, `.`, `_`, `-`, `/`", "The project."),
    FileKey("", "priority", "integer", "0", f"±{PRIORITY_MAX:,}", "Higher is first in the queue."),
    FileKey(
        *("", "preemptible", "boolean", "false", ""),
        "May be preempted by a project whose guarantee needs its devices; it keeps its place and is restarted later.",
    ),
    FileKey(
        *("", "retries", "integer", "0", f"0 to {jobs.RETRIES_MAX}"),
        "How often the job resumes after its machine or its devices were lost. Only for a job with `resumable` and "
        "`directory`. An exit of its own, running out of memory too, is a result and not retried.",
    ),
    FileKey(
        *("", "after", "list of strings", "[]", f"up to {AFTER_MAX}"),
        "Runs that must have ended before the job asks for devices, each as `RUN`, `RUN:ok`, `RUN:any` or "
        "`RUN:failed`. If one ends in another way, the run is cancelled.",
    ),
    FileKey(
        *("", "image", "string", "", "a name in a registry, or the path of a SIF file"),
        "The [container image](../how-to/container-images.md) in which the tasks run.",
    ),
    FileKey(
        *("", "array", "string", "", f"up to {ELEMENTS_MAX:,} indexes, each up to 999,999"),
        'One run for each index: `"0-99"`, `"1,3,7-9"`, `"0-10:2"`. With `%8` behind it, 8 at most ask for '
        "devices at once.",
    ),
    FileKey("accelerators", "kind", "string", '"ipu"', "a pool's kind", "Kind of accelerator."),
    FileKey(
        *("accelerators", "size", "integer", "1", f"0 to {SIZE_MAX:,}"),
        "Devices of the whole job. 0: none, only CPUs and memory.",
    ),
    FileKey(
        "accelerators",
        "replicas",
        "integer",
        "",
        "a multiple of `tasks`",
        "Model replicas of the whole job. Default: one a task.",
    ),
    FileKey("accelerators", "pool", "string", "", "a pool's name", "Only there. Default: any pool of the kind."),
    FileKey(
        "resources",
        "cpus",
        "integer",
        "1",
        "1 or more",
        "Processors of a task; [counted](../how-to/write-a-job-file.md#jobs-without-devices) on one machine.",
    ),
    FileKey("resources", "memory", "size", "", "1 byte or more", "Memory of a task; counted likewise."),
    FileKey("resources", "nodes", "integer", "1", "1 on one machine", "Hosts of the job."),
    FileKey(
        "environment",
        "export",
        "string",
        "",
        "`ALL`, `BASIC`, `NONE`, `NAME,NAME=value`, also behind `ALL,` or `BASIC,`",
        "Which of the submitter's variables travel ([which is usual](../how-to/environment.md)).",
    ),
    FileKey(
        "environment",
        "pass",
        "list of strings",
        "[]",
        "names",
        "Further ones by name; without `export` only these.",
    ),
    FileKey(
        *("environment", "set", "table of strings", "", f"{environment.ENVIRONMENT_CHARS_MAX:,} characters in all"),
        "Further variables. Names that [Moorings sets](environment.md#variables-of-a-job) are refused.",
    ),
    FileKey(
        "checkpoint",
        "directory",
        "string",
        "",
        "a folder",
        "Folder of the job's checkpoints, passed as `MOORINGS_CHECKPOINT_DIR`.",
    ),
    FileKey(
        "checkpoint",
        "resumable",
        "boolean",
        str(_CONTRACT.resumable).lower(),
        "",
        "Whether the job can resume from a checkpoint. Each attempt after the first gets the newest whole one, as "
        "`MOORINGS_RESUME_FROM`.",
    ),
    FileKey(
        *("checkpoint", "resume_arg", "string", "", "must have `{}`"),
        "Appended to the command of an attempt that resumes, with the checkpoint's path for `{}`.",
    ),
    FileKey(
        *(
            "checkpoint",
            "warn_signal",
            "string",
            f'"{_CONTRACT.warn_signal}"',
            ", ".join(f"`{name}`" for name in sorted(WARN_SIGNALS)),
        ),
        "Warns of the time limit, and of a preemption. `auto`: the first of `USR2`, `USR1`, `TERM` that the "
        "program handles.",
    ),
    FileKey(
        "checkpoint",
        "warn",
        "duration",
        f"{_CONTRACT.warn_s:g}",
        f"0 s to {_DAYS} days",
        "How long before the limit it is sent.",
    ),
    FileKey(
        "checkpoint",
        "grace",
        "duration",
        f"{_CONTRACT.grace_s:g}",
        f"0 s to {_DAYS} days",
        "Time between TERM and KILL.",
    ),
    FileKey("kubernetes", "image", "string", "", "", "The same as `image`, as files of earlier releases have it."),
)


def pools_page() -> str:
    """The page of the pools file."""
    text = (
        GENERATED
        + "# The pools file\n\n"
        + POOLS_ABOUT
        + _HOW.format("pools")
        + f"\n```toml\n{example_of(pools)}\n```\n"
    )
    text += f"\nA file has at least one pool and at most {pools.POOLS_MAX}.\n"
    text += _tables(POOLS, {"": "[[pool]]", "topology": "topology", "resources": "resources"})
    text += "\n## `[pool.simulated]`\n\n"
    text += "The settings of the driver `simulated`, all of them optional. [Simulated accelerators](simulated.md)"
    text += " tells more, faults included.\n\n"
    text += table(("key", "default", "meaning"), simulated_rows())
    text += "\n## `[pool.vipu]`\n\n"
    text += "The settings of the driver `vipu`, all of them optional. [Use a V-IPU controller](../how-to/vipu.md)"
    text += " tells which you need.\n\n"
    return text + table(("key", "default", "meaning"), vipu_rows())


def job_page() -> str:
    """The page of the job file."""
    text = GENERATED + "# The job file\n\n" + JOB_ABOUT + _HOW.format("job") + f"\n```toml\n{example_of(jobs)}\n```\n"
    titles = {"": "The top", **{name: f"[{name}]" for name in dict.fromkeys(key.table for key in JOB) if name}}
    return text + _tables(JOB, titles) + "\n" + FORMS


POOLS_ABOUT = """\
Which devices there are, how they are wired, and which driver talks to them. The controller reads it at its start;
[`moor doctor`](cli.md#moor-doctor) checks it. It is TOML and read strictly: a key that is not known is refused, with
file and line.
"""
JOB_ABOUT = """\
One job, as [`moor run`](cli.md#moor-run) takes it; every key but `command` may be left out, and flags win over the
file. It is TOML and read strictly: a key that is not known is refused, with file and line.
"""
_HOW = "[Write a {0} file](../how-to/write-a-{0}-file.md) shows how.\n"
FORMS = """\
## How durations and sizes are written

A duration is `"90s"`, `"30m"`, `"2h"`, `"1d"`, as Slurm has it (`"10:00"` is ten minutes, `"2:00:00"` two hours,
`"1-12:00:00"` a day and a half, `"30"` thirty minutes), or a plain number of seconds without quotes. A size is
`"512M"` or `"4G"`, always with a unit.
"""


def example_of(module: object) -> str:
    """The example in a module's docstring."""
    text = inspect.cleandoc((inspect.getdoc(module) or "").partition("::\n")[2])
    return text.strip()


def simulated_rows() -> list[tuple[str, str, str]]:
    """Key, default and meaning of every setting of the simulated driver, from its docstring."""
    return _setting_rows(SimulatedSettings)


def vipu_rows() -> list[tuple[str, str, str]]:
    """Key, default and meaning of every setting of the vipu driver, from its docstring."""
    return _setting_rows(VipuSettings)


def _setting_rows(settings: type[SimulatedSettings | VipuSettings]) -> list[tuple[str, str, str]]:
    said = attributes(settings)
    return [(code(item.name), code(_as_toml(item.default)), said[item.name]) for item in fields(settings)]


def _as_toml(value: object) -> str | int | float:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return value
        case tuple():
            return "[]"
        case _:
            return f'"{value}"'


def attributes(cls: type) -> dict[str, str]:
    """The entries of a docstring's ``Attributes:``, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2].splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, said = line.strip().partition(": ")
            found[name] = said
        elif name:
            found[name] += f" {line.strip()}"
    return {name: said.replace("``", "`").strip() for name, said in found.items()}


def _tables(keys: Sequence[FileKey], titles: dict[str, str]) -> str:
    text = ""
    for name, title in titles.items():
        rows = [_row(key) for key in keys if key.table == name]
        text += f"\n## {code(title) if '[' in title or name else title}\n\n"
        text += table(("key", "type", "default", "may be", "meaning"), rows)
    return text


def _row(key: FileKey) -> tuple[str, ...]:
    default = "required" if key.required else code(key.default) or "none"
    return code(key.name), key.kind, default, key.bounds, key.meaning
