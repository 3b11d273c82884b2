"""A job's variables: which travel from its person's shell, which never do, and what a file of them says. Pure.

One set of rules for every engine. A table of patterns in each engine was refused: a person learns one list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from moorings.core.model.errors import MooringsError
from moorings.workloads.images import means_the_machine

ENVIRONMENT_CHARS_MAX = 262_144  # all names and values
VARIABLE_BYTES_MAX = 131_071  # of NAME=value: Linux starts no program with a longer one

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_FUNCTION = re.compile(r"BASH_FUNC_[A-Za-z_][A-Za-z0-9_.:-]{0,200}%%")  # an exported function of bash: module, ml
RESERVED_PREFIXES = ("MOORINGS_", "IPUOF_")
RESERVED_NAMES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})

ALL, BASIC, NONE = "ALL", "BASIC", "NONE"

BASIC_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "LC_*", "PATH", "LD_LIBRARY_PATH"),
    *("VIRTUAL_ENV", "CONDA_*", "MODULEPATH", "MODULESHOME", "LOADEDMODULES", "LMOD_*", "BASH_FUNC_*"),
)
# They describe the shell of ``moor`` or the job around it, and would mislead another. Named one by one, they travel.
LEFT_BEHIND = (
    *("_", "PWD", "OLDPWD", "SHLVL", "SLURM_*", "PMI_*", "PMIX_*", "OMPI_COMM_*"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("BASHOPTS", "BASH_VERSINFO", "EUID", "GROUPS", "LINENO", "OPTIND", "PPID", "SHELLOPTS", "UID"),
    *("NOTIFY_SOCKET", "WATCHDOG_*", "LISTEN_*", "INVOCATION_ID", "JOURNAL_STREAM"),
)
_OUR_OWN = ("SLURM_CONF",)  # of those, the one that says where Slurm is


@dataclass(frozen=True, slots=True)
class ExportRule:
    """Which variables of its person's shell a job gets, as ``sbatch --export`` has it.

    Attributes:
        base: ``ALL``, ``BASIC`` or ``NONE``.
        names: further ones by name.
        values: further ones with their value.
    """

    base: str = NONE
    names: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportedVariables:
    """The variables that travel, and a sentence on each that was meant to and cannot."""

    variables: Mapping[str, str]
    dropped: tuple[str, ...] = ()


def parse_export(text: str) -> ExportRule:
    """The rule in ``ALL``, ``BASIC``, ``NONE`` or ``NAME,NAME=value``, the last also behind ``ALL`` or ``BASIC``.

    Raises:
        MooringsError: ``job.invalid``.
    """
    base, names, values = NONE, list[str](), dict[str, str]()
    words = text.split(",")
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in (ALL, BASIC, NONE):
            if base != NONE or (name == NONE and len(words) > 1):
                raise _export_error(f"{name} cannot stand there")
            base = name
            continue
        if not is_variable_name(name):
            raise _export_error(f"{name[:80]!r} is not the name of a variable")
        if equals:
            values[name] = value
        else:
            names.append(name)
    return ExportRule(base, tuple(names), values)


def _export_error(problem: str) -> MooringsError:
    hint = "ALL, BASIC, NONE, NAME,NAME=value or ALL,NAME=value; a value with a comma: --env NAME=value"
    return MooringsError("job.invalid", f"export: {problem}", hint=hint)


def choose_variables(rule: ExportRule, submitter: Mapping[str, str], *, into_image: bool = False) -> ExportedVariables:
    """The variables that travel by a rule.

    Args:
        rule: the rule.
        submitter: the variables of the person's shell; a byte that is not UTF-8 is a lone surrogate.
        into_image: the job runs in a container image, which has programs and files of its own.
    """
    dropped = [f"{name} is not set here" for name in rule.names if name not in submitter]
    found: dict[str, str] = {}
    for name, value in submitter.items():
        if name not in rule.names and not (
            _is_in_base(rule.base, name) and not (into_image and means_the_machine(name))
        ):
            continue
        if (why := _unfit_reason(name, value)) == "":
            found[name] = value
        else:
            dropped.append(f"{ascii(name)[1:-1][:80]} does not travel: {why}")
    found |= rule.values
    return _within_limit(found, keep={*rule.names, *rule.values}, dropped=dropped)


def _is_in_base(base: str, name: str) -> bool:
    if base == NONE or name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        return False
    if name not in _OUR_OWN and any(fnmatchcase(name, pattern) for pattern in LEFT_BEHIND):
        return False
    return base == ALL or any(fnmatchcase(name, pattern) for pattern in BASIC_VARIABLES)


def _unfit_reason(name: str, value: str) -> str:
    """Why a variable cannot travel; empty: it can."""
    if not is_variable_name(name):
        return "its name is none that every shell knows"
    if not is_utf8(value):
        return "it is not UTF-8"
    if variable_bytes(name, value) > VARIABLE_BYTES_MAX:
        return f"it has more than {VARIABLE_BYTES_MAX:,} bytes"
    return ""


def _within_limit(found: dict[str, str], keep: set[str], dropped: list[str]) -> ExportedVariables:
    """Drop the longest, until the rest is an environment; what was asked for by name stays."""
    total = sum(len(name) + len(value) for name, value in found.items())
    for name in sorted(found.keys() - keep, key=lambda one: (-len(found[one]), one)):
        if total <= ENVIRONMENT_CHARS_MAX:
            break
        total -= len(name) + len(found.pop(name))
        dropped.append(f"{name} does not travel: all together have more than {ENVIRONMENT_CHARS_MAX:,} characters")
    return ExportedVariables(found, tuple(dropped))


def is_utf8(text: str) -> bool:
    """Whether a text is UTF-8, and not bytes of something else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def variable_bytes(name: str, value: str) -> int:
    """The length of ``NAME=value``."""
    return len(name) + 1 + len(value.encode("utf-8", "surrogateescape"))


def is_variable_name(name: str) -> bool:
    """Whether a job may have a variable of that name, or an exported function of bash."""
    return bool(_VARIABLE.fullmatch(name) or _FUNCTION.fullmatch(name))


def is_function_name(name: str) -> bool:
    """Whether it is the name of an exported function of bash, which no other shell takes."""
    return _FUNCTION.fullmatch(name) is not None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise unless these can be a job's variables.

    Raises:
        MooringsError: ``job.invalid``.
    """
    if sum(len(name) + len(value) for name, value in environment.items()) > ENVIRONMENT_CHARS_MAX:
        raise MooringsError("job.invalid", f"the environment is longer than {ENVIRONMENT_CHARS_MAX} characters")
    for name, value in environment.items():
        if not is_variable_name(name):
            raise MooringsError("job.invalid", f"{name[:80]!r} is not the name of a variable")
        if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES):
            raise MooringsError(
                "job.invalid", f"the variable {name} is set by Moorings", hint="leave it out of the job's environment"
            )
        if len(value) * 4 > VARIABLE_BYTES_MAX and _bytes_at_least(name, value) > VARIABLE_BYTES_MAX:
            detail = f"the variable {name} has more than {VARIABLE_BYTES_MAX} bytes, and Linux takes no longer one"
            raise MooringsError("job.invalid", detail, hint="put it into a file, and name that")


def _bytes_at_least(name: str, value: str) -> int:
    return len(name) + 1 + len(value.encode("utf-8", "replace"))  # surrogates that a stranger sent count as one


# -- names without values ----------------------------------------------------------------------------------------------


def names_alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The names, each with an empty value: what the database, the API and a list know of an environment."""
    return dict.fromkeys(environment, "")


def has_values(environment: Mapping[str, str]) -> bool:
    """Whether it has a value that ``names_alone`` would have removed."""
    return any(environment.values())


# -- a file of variables -----------------------------------------------------------------------------------------------

_BLANK = re.compile(r"(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))")
_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]{0,255})[ \t]*=[ \t]*")
_SINGLE, _DOUBLE = re.compile(r"'([^']*)'"), re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_REST = re.compile(r"[ \t]*(?:[ \t]#[^\n]*)?(?:\n|\Z)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_env_file(text: str, *, source: str) -> dict[str, str]:
    r"""The variables of a file of ``NAME=value`` lines, as docker and dotenv have them.

    Comments, ``export NAME=value``, ``'as it stands'`` and ``"with \n and \""``, also over several lines. Nothing is
    expanded: a ``$`` is a ``$``.

    Args:
        text: the file's text.
        source: its name, for messages, which never show a value.

    Raises:
        MooringsError: ``job.invalid``, with the line.
    """
    if len(text) > ENVIRONMENT_CHARS_MAX:
        raise MooringsError("job.invalid", f"{source} has more than {ENVIRONMENT_CHARS_MAX} characters")
    return dict(_assignments(text.replace("\r\n", "\n"), source))


def _assignments(text: str, source: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        if (blank := _BLANK.match(text, at)) is not None:
            at = blank.end()
            continue
        line = text.count("\n", 0, at) + 1
        named = _NAME.match(text, at)
        if named is None:
            raise _file_error(source, line, "there is no NAME=value")
        value, at = _value(text, named.end(), source, line)
        yield named[1], value


def _value(text: str, at: int, source: str, line: int) -> tuple[str, int]:
    """A value and where the next line begins."""
    quote = text[at : at + 1]
    if quote not in ("'", '"'):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        return re.split(r"(?:^|[ \t])#", text[at:end], maxsplit=1)[0].strip(), end + 1
    quoted = (_SINGLE if quote == "'" else _DOUBLE).match(text, at)
    rest = _REST.match(text, quoted.end()) if quoted is not None else None
    if quoted is None or rest is None:
        problem = "the quote does not end" if quoted is None else "something follows the closing quote"
        raise _file_error(source, line, problem)
    if quote == "'":
        return quoted[1], rest.end()
    value = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), quoted[1], flags=re.DOTALL)
    return value, rest.end()


def _file_error(source: str, line: int, problem: str) -> MooringsError:
    return MooringsError("job.invalid", f"{source}:{line}: {problem}", hint="write NAME=value, a line for each")


# -- lines before the command ------------------------------------------------------------------------------------------

SETUP_LINES_MAX = 100
SETUP_CHARS_MAX = 16_384  # of all lines: quoted they are one argument of bash

# A line that fails, and one that ends the shell, end the task; the trap tells which. ``eval`` keeps a syntax error to
# its line. The command is no argument of the lines: scripts such as conda's ``activate`` read theirs.
_SETUP = """\
_moorings_command=("$@"); set --
trap '_moorings_code=$?; [ -z "$_moorings_text" ] || printf "moorings: setup line %s ended with exit code %s: %s\\n" \
"$_moorings_line" "$_moorings_code" "$_moorings_text" >&2' EXIT
{lines}
_moorings_text=; trap - EXIT
exec -- "${{_moorings_command[@]}}"
"""
_SETUP_LINE = '_moorings_line={number}; _moorings_text={text}; eval "$_moorings_text"; \
_moorings_code=$?; [ "$_moorings_code" = 0 ] || exit "$_moorings_code"'


def with_setup(setup: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """The command that runs the lines in bash and then becomes ``command``, which stands at its end.

    Args:
        setup: lines of bash; none: the command alone.
        command: program and arguments.
    """
    if not setup:
        return tuple(command)
    lines = [
        _SETUP_LINE.format(number=number, text=_quoted(text)) for number, text in enumerate(setup, 1) if text.strip()
    ]
    return ("bash", "-c", _SETUP.format(lines="\n".join(lines)), "moorings", *command)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
