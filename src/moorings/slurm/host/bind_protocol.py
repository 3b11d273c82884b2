"""The protocol of a node and the agent: the pure half; the other is ``deploy/slurm/moorings_spank.c``.

A node connects and sends one line, a munge credential of root, with the payload::

    moorings 1 bind
    job=1234
    step=4294967291
    node=n1
    restart=0
    nonce=0123456789abcdef
    tasks=4
    nodes=2

The agent answers with one line, a munge credential that only root may decode, with lines ``key=value``: ``job``,
``step`` and ``nonce`` of the request (so that an answer cannot be forwarded to another node), ``status`` and the
fields of that status.

Both sides check every value against the same limits: the agent sends nothing that the plugin would refuse. JSON was
refused: the other side is C that runs as root, where a line is only cut at its first ``=``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.model.bindings import Binding, Rendezvous
from moorings.core.model.errors import MooringsError

GREETING = "moorings 1 bind"
REQUEST_BYTES_MAX = 512
CREDENTIAL_REQUEST_BYTES_MAX = 2048  # the node's whole line
PAYLOAD_BYTES_MAX = 700_000  # with munge's framing and base64 below the line's 1 MiB
ENTRIES_MAX = 4096  # env, genv and file lines together
GCDS_MAX = 4096
MESSAGE_CHARS_MAX = 500

REQUEUE_EXIT_CODE = 122  # of a batch script without a partition in time: with RequeueExit its job is requeued

BATCH_STEP = 4294967291  # slurm.h: SLURM_BATCH_SCRIPT
INTERACTIVE_STEP = 4294967290

_UINT32_MAX = 2**32 - 1
_NODE = re.compile(r"[A-Za-z0-9._-]{1,255}")
_NONCE = re.compile(r"[0-9a-f]{16}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_PARTITION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FOLDER = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+")
_FOLDER_CHARS_MAX = 3000
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")

# Variables of a loader, an interpreter, a shell or Slurm itself. No binding needs them, and a driver's answer must not
# give them to a task of root. The plugin has the same list.
_FAMILIES = (
    *("LD_", "SLURM_", "SLURMD_", "SPANK_", "_SLURM_", "BASH_", "GCONV_", "GLIBC_", "MALLOC_"),
    *("PYTHON", "PERL", "RUBY", "NODE_", "JAVA_"),
)
_NAMES = frozenset(
    {
        *("PATH", "IFS", "ENV", "HOME", "SHELL", "SHELLOPTS", "USER", "LOGNAME", "CDPATH", "GLOBIGNORE"),
        *("PROMPT_COMMAND", "PS1", "PS4", "TMPDIR", "LOCPATH", "NLSPATH", "LOCALDOMAIN", "HOSTALIASES"),
        *("RES_OPTIONS", "EDITOR", "PAGER"),
    }
)


class BindStatus(StrEnum):
    """The agent's answer to a request."""

    OK = "ok"
    RETRY = "retry"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A node's request: the part of the partition for this step of this job.

    Attributes:
        job: the Slurm job's id (an array task's own).
        step: the step's id; also ``BATCH_STEP`` or ``INTERACTIVE_STEP``.
        node: its NodeName. The agent checks whether the job runs there.
        restart: number of requeues, as far as the node knows: the user can influence it.
        nonce: 16 hexadecimal digits, new for each request.
        tasks: of the step, on all its nodes; None: not sent by the plugin of an older release.
        nodes: number of the step's nodes; likewise.
    """

    job: int
    step: int
    node: str
    restart: int
    nonce: str
    tasks: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class BindReply:
    """The agent's answer.

    Attributes:
        status: whether there is a binding.
        message: one line for the user; for every status but OK.
        partition: the partition's name.
        folder: where the nodes write the files (IpuofDir); empty: there are no files.
        environment: variables of every task.
        gcds: for each GCD its own variables and its files (name, content).
        master: address and port of task 0.
    """

    status: BindStatus
    message: str = ""
    partition: str = ""
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    gcds: tuple[GcdReply, ...] = ()
    master: Rendezvous = Rendezvous("", 0)


@dataclass(frozen=True, slots=True)
class GcdReply:
    """The additions to ``BindReply.environment`` for the tasks of one GCD."""

    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def reply_for(binding: Binding, meeting: Rendezvous, folder: str, numbers: Sequence[int] | None = None) -> BindReply:
    """Return the reply that gives a step all or part of ``binding``.

    Args:
        binding: the driver's.
        meeting: address and port of task 0.
        folder: IpuofDir; empty: API form.
        numbers: the step's GCDs, in the order of its tasks; None: all.
    """
    files = bool(folder) and any(gcd.file_name for gcd in binding.gcds)
    common = {"MOORINGS_PARTITION_ID": binding.partition} | ({} if files else dict(binding.api))
    gcds = []
    for gcd in binding.gcds if numbers is None else [binding.gcds[number] for number in numbers]:
        own = {"MOORINGS_DEVICES": ",".join(gcd.devices), **gcd.environment}
        if binding.api and not files:
            own["IPUOF_VIPU_API_GCD_ID"] = str(gcd.gcd)
        content = {gcd.file_name: gcd.file_text.encode()} if files and gcd.file_name else {}
        gcds.append(GcdReply(own, content))
    return BindReply(
        BindStatus.OK,
        partition=binding.partition,
        folder=folder if files else "",
        environment=common,
        gcds=tuple(gcds),
        master=meeting,
    )


def build_request(request: BindRequest) -> bytes:
    """Return the payload of a node's credential."""
    return (
        f"{GREETING}\njob={request.job}\nstep={request.step}\nnode={request.node}\n"
        f"restart={request.restart}\nnonce={request.nonce}\n"
        + "".join(
            f"{name}={number}\n"
            for name, number in (("tasks", request.tasks), ("nodes", request.nodes))
            if number is not None
        )
    ).encode("ascii")


def parse_request(payload: bytes) -> BindRequest:
    """Parse a node's request.

    Raises:
        MooringsError: ``node.invalid``: not a request that this release understands.
    """
    text = _text(payload, REQUEST_BYTES_MAX)
    greeting, *lines = text.split("\n")
    if greeting != GREETING:
        raise _invalid(f"a request begins with '{GREETING}': is the plugin of another release?")
    values = _fields(lines, {"job", "step", "node", "restart", "nonce"})
    return BindRequest(
        job=_number(values, "job", 1, _UINT32_MAX),
        step=_number(values, "step", 0, _UINT32_MAX),
        node=_matched(values, "node", _NODE),
        restart=_number(values, "restart", 0, _UINT32_MAX),
        nonce=_matched(values, "nonce", _NONCE),
        tasks=_number(values, "tasks", 1, _UINT32_MAX) if "tasks" in values else None,
        nodes=_number(values, "nodes", 1, _UINT32_MAX) if "nodes" in values else None,
    )


def build_reply(request: BindRequest, reply: BindReply) -> bytes:
    """Return the payload of the agent's credential for a plugin of this release.

    Raises:
        MooringsError: ``node.invalid``: it has a value that nodes refuse.
    """
    lines = [f"job={request.job}", f"step={request.step}", f"nonce={request.nonce}", f"status={reply.status}"]
    if reply.status is BindStatus.OK:
        lines += _binding_lines(reply)
    else:
        lines.append(f"message={_CONTROLS.sub(' ', reply.message)[:MESSAGE_CHARS_MAX]}")
    payload = ("\n".join(lines) + "\n").encode()
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise _invalid(f"the binding takes {len(payload)} bytes, and {PAYLOAD_BYTES_MAX} are allowed")
    return payload


def parse_reply(payload: bytes, request: BindRequest) -> BindReply:
    """Parse the agent's answer to ``request``; accept and refuse the same as the plugin.

    Raises:
        MooringsError: ``node.invalid``: not an answer to this request, or with a forbidden value.
    """
    entries: list[tuple[str, str]] = []
    plain: list[str] = []
    for line in _text(payload, PAYLOAD_BYTES_MAX).split("\n"):
        key, _, value = line.partition("=")
        if key in {"env", "genv", "file"}:
            entries.append((key, value))
        else:
            plain.append(line)
    known = {"job", "step", "nonce", "status", "message", "partition", "gcds", "dir", "master", "port"}
    values = dict.fromkeys(known, "") | _fields(plain, {"job", "step", "nonce", "status"}, known)
    if (values["job"], values["step"], values["nonce"]) != (str(request.job), str(request.step), request.nonce):
        raise _invalid("the answer is to another request")
    if values["status"] not in set(BindStatus):
        raise _invalid(f"the status {values['status']!r} is unknown")
    status = BindStatus(values["status"])
    if status is not BindStatus.OK:
        return BindReply(status, values["message"])
    if len(entries) > ENTRIES_MAX:
        raise _invalid(f"the answer has {len(entries)} entries, and {ENTRIES_MAX} are allowed")
    reply = _binding(values, entries)
    _check(reply)
    return reply


def _binding_lines(reply: BindReply) -> list[str]:
    _check(reply)
    lines = [f"partition={reply.partition}", f"gcds={len(reply.gcds)}", f"dir={reply.folder}"]
    lines += [f"master={reply.master.address}", f"port={reply.master.port}"]
    lines += [f"env={name}={value}" for name, value in reply.environment.items()]
    for number, gcd in enumerate(reply.gcds):
        lines += [f"genv={number}:{name}={value}" for name, value in gcd.environment.items()]
        for name, content in gcd.files.items():
            lines.append(f"file={number}:{name}:{base64.b64encode(content).decode()}")
    return lines


def _binding(values: Mapping[str, str], entries: Iterable[tuple[str, str]]) -> BindReply:
    n_gcds = _number(values, "gcds", 1, GCDS_MAX)
    common: dict[str, str] = {}
    environments: list[dict[str, str]] = [{} for _ in range(n_gcds)]
    files: list[dict[str, bytes]] = [{} for _ in range(n_gcds)]
    for key, entry in entries:
        if key == "env":
            name, equals, value = entry.partition("=")
            common[name] = value
            gcd = 0
        else:
            number, _, rest = entry.partition(":")
            name, equals, value = rest.partition("=" if key == "genv" else ":")
            gcd = _number({key: number}, key, 0, n_gcds - 1)
        if not equals:
            raise _invalid(f"an entry {key}= cannot be read")
        if key == "genv":
            environments[gcd][name] = value
        elif key == "file":
            files[gcd][name] = _decoded(value)
    return BindReply(
        BindStatus.OK,
        partition=values["partition"],
        folder=values["dir"],
        environment=common,
        gcds=tuple(GcdReply(own, content) for own, content in zip(environments, files, strict=True)),
        master=Rendezvous(values["master"], _number(values, "port", 1, 65535)),
    )


def _check(reply: BindReply) -> None:
    """Raise unless the plugin accepts the whole binding."""
    _require(0 < len(reply.gcds) <= GCDS_MAX, f"{len(reply.gcds)} GCDs: 1 to {GCDS_MAX} are allowed")
    _require(bool(_PARTITION.fullmatch(reply.partition)), f"the partition's name {reply.partition!r} is not allowed")
    _require(bool(_HOST.fullmatch(reply.master.address)), f"the address {reply.master.address!r} is not allowed")
    _require(1 <= reply.master.port <= 65535, f"the port {reply.master.port} is not allowed")
    _require(
        not reply.folder or (len(reply.folder) <= _FOLDER_CHARS_MAX and bool(_FOLDER.fullmatch(reply.folder))),
        f"the folder {reply.folder!r} is no absolute path without '.', '..' and control characters",
    )
    n_entries = len(reply.environment)
    seen: set[str] = set()
    for name, value in reply.environment.items():
        _check_variable(name, value)
    for gcd in reply.gcds:
        n_entries += len(gcd.environment) + len(gcd.files)
        for name, value in gcd.environment.items():
            _check_variable(name, value)
        for name in gcd.files:
            _require(bool(_FILE.fullmatch(name)), f"the file name {name!r} is not allowed")
            _require(name not in seen, f"two files are called {name}")
            _require(bool(reply.folder), f"there is no folder for the file {name}")
            seen.add(name)
    _require(n_entries <= ENTRIES_MAX, f"the answer has {n_entries} entries, and {ENTRIES_MAX} are allowed")


def variable_allowed(name: str) -> bool:
    """Whether a job may get a variable of that name."""
    return bool(_VARIABLE.fullmatch(name)) and not name.startswith(_FAMILIES) and name not in _NAMES


def _check_variable(name: str, value: str) -> None:
    _require(variable_allowed(name), f"the variable {name!r} may not be set")
    _require("\n" not in value and "\0" not in value, f"the value of {name} has a line break or a NUL")


def _fields(lines: Iterable[str], needed: set[str], known: set[str] | None = None) -> dict[str, str]:
    """Return the fields of ``key=value`` lines; ignore keys of newer releases, refuse duplicates."""
    values: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not line:
            continue
        _require(bool(equals), "a line is not key=value")
        _require(key not in values, f"{key!r} comes twice")
        values[key] = value
    missing = needed - values.keys()
    _require(not missing, f"{', '.join(sorted(missing))} is missing")
    return {key: value for key, value in values.items() if known is None or key in known}


def _text(payload: bytes, bytes_max: int) -> str:
    _require(len(payload) <= bytes_max, f"the message has {len(payload)} bytes, and {bytes_max} are allowed")
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise _invalid("the message is not UTF-8") from None
    _require("\0" not in text, "the message has a NUL")
    return text


def _number(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = values[name]
    number = int(text) if _NUMBER.fullmatch(text) else -1
    _require(low <= number <= high, f"{name} is {text[:40]!r}: a number from {low} to {high} is allowed")
    return number


def _matched(values: Mapping[str, str], name: str, pattern: re.Pattern[str]) -> str:
    _require(bool(pattern.fullmatch(values[name])), f"{name} is {values[name][:40]!r}: {pattern.pattern} is allowed")
    return values[name]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("a file's content is not base64") from None


def _require(condition: bool, detail: str) -> None:
    if not condition:
        raise _invalid(detail)


def _invalid(detail: str) -> MooringsError:
    return MooringsError("node.invalid", detail, hint="the node's plugin and the agent must be of the same release")
