"""Commands to Slurm and their output: ``build_*`` returns an argument list, ``parse_*`` a value.

The text formats are explicit and the same on 22.05, 24.11 and 26.05 (``tests/unit/slurm/recordings`` has the output of
each). The author of the text decides the format. Job listings hold text of users, so they have columns of fixed width
(``fixed_width``). Licenses, reservations, nodes and the configuration hold text of admins only: they are read as
``Key=Value``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.fixed_width import (
    FixedColumn,
    build_format,
    cut_rows,
    is_whole,
    parse_rows,
    read_row,
    value_or_empty,
)

LICENSE = "ipu"  # the counted license; its untracked twins `ipu_1`, `ipu_2`, ... are the gate
GATE = "moorings_gate"  # keeps the reservation from being empty: Slurm refuses an empty one
RESERVATION = "moorings"
STEPPED_MAX = 10_000  # tasks of an array, listed in one argument (at most 128 KiB)

_NONCE = re.compile(r"[0-9a-f]{16}")
_ORDER = re.compile(
    r"moorings:1 nonce=([0-9a-f]{16}) ipus=([0-9]{1,6}) gcds=([0-9]{1,6}) replicas=([0-9]{1,9})"
    r"(?: preemptible=((?:B:)?[A-Z][A-Z0-9]{1,9}))?(?=\s|$)"
)
# Only a whole value counts: the column may have cut it.
_ASKED = re.compile(r" asked=([0-9]{1,9})@([0-9]{10}),([0-9]{10})")
_NOTE = " -- "  # we may overwrite the text after it
_LICENSE = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STEPPED = re.compile(r"([0-9]{1,10})-([0-9]{1,10}):([1-9][0-9]{0,9})")
_TARGET = re.compile(r"[0-9]{1,10}(?:_(?:[0-9]{1,10}|\[[0-9,-]{1,120000}\]))?")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9]{1,9}")
_STATUS = re.compile(r"([0-9]{1,9})(?::([0-9]{1,3}))?")
_ENTRY = re.compile(r"([A-Za-z0-9_./-]+(?:\[[0-9]+\])?)=(\S*)")
_SETTING = re.compile(r"([A-Za-z0-9_/]+(?:\[[0-9]+\])?)\s+= ?(.*)")


class SlurmJobPhase(StrEnum):
    """What a job holds in a state."""

    WAITING = "waiting"  # in the queue: it holds nothing and may still start
    LIVE = "live"  # it holds its allocation, or may; an unknown state is LIVE, because a release cannot be undone
    ENDED = "ended"  # it holds nothing and never will again


_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedOptions:
    """The options of a job at submission; only ``job_submit`` and admins can write them.

    Attributes:
        signal: the warning before the job yields, as in ``--signal``: ``USR1`` for its steps, ``B:USR1`` for its batch
            script; empty: the job is never asked to yield.
    """

    nonce: str
    ipus: int
    gcds: int
    replicas: int
    signal: str = ""


@dataclass(frozen=True, slots=True)
class YieldNotice:
    """A request to yield, sent to one start of a job; the agent records it beside the submitted options.

    Attributes:
        restarts: the start, by its restart count.
        requeue_at: when the agent requeues the job if it has not ended by then; whole seconds.
        since: since when the job has its place in the controller's queue; whole seconds.
    """

    restarts: int
    requeue_at: Timestamp
    since: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, or the pending rest of an array, as Slurm lists it now.

    Attributes:
        job_id: Slurm's own, also for a task of an array; the pending rest of an array has the array's.
        array_job: the job's array; None: it is not part of one.
        array_tasks: the tasks of the array: ``3``, or ``5-9%2`` or ``1-9:2`` for the pending rest; may be cut with
            ``...``.
        het_job: the first component of its heterogeneous job; ``het_offset`` is its place there.
        state: Slurm's word; ``phase`` is its meaning.
        account: the account that the job names; a user can name any where Slurm does not enforce associations.
        submit_time: changes at a requeue; ``eligible``: the earliest start.
        end_time: for a live job, the end of its time limit (None: never).
        limit_s: its time limit; None: none.
        nodes: folded, as ``n[1-3]``; ``nodes_whole``: it was not cut.
        restarts: number of requeues.
        status: exit code and signal.
        licenses: its licenses, as far as the column shows them.
        order: the options that ``job_submit`` recorded; None: not a job with accelerators.
        asked: the request to yield, in this start or an earlier one; None: never.
        note: the text for people behind that, cut at the end of the column.
        is_note_ours: whether we may overwrite it; an admin's own words stay.
        comment: the user's; ``name`` too. Never trust them.
    """

    job_id: int
    array_job: int | None
    array_tasks: str
    het_job: int | None
    het_offset: int | None
    state: str
    phase: SlurmJobPhase
    reason: str
    uid: int
    user: str
    account: str
    partition: str
    qos: str
    priority: int
    submit_time: Timestamp | None
    eligible: Timestamp | None
    start_time: Timestamp | None
    end_time: Timestamp | None
    limit_s: float | None
    nodes: str
    nodes_whole: bool
    restarts: int
    requeue: bool
    batch: bool
    status: tuple[int, int]
    licenses: Mapping[str, int] = field(default_factory=dict)
    order: SubmittedOptions | None = None
    asked: YieldNotice | None = None
    note: str = ""
    is_note_ours: bool = True
    comment: str = ""
    name: str = ""

    @property
    def target(self) -> str:
        """Return the job's name in a command. The id of an array's last started task means the whole array."""
        tasks = _list_tasks(self.array_tasks)
        if not tasks or self.is_cut_array:  # only the whole array has a name
            return str(self.job_id)
        return f"{self.array_job}_{tasks}" if tasks.isdecimal() else f"{self.array_job}_[{tasks}]"

    @property
    def is_cut_array(self) -> bool:
        """Whether it is the rest of an array without a name: Slurm has cut the list, or it would be too long."""
        return self.array_tasks.endswith("...") or len(_stepped(self.array_tasks)) > STEPPED_MAX


def _stepped(array_tasks: str) -> range:
    """Return the tasks of ``1-5:2``, Slurm's form for tasks at equal steps; else none."""
    found = _STEPPED.fullmatch(array_tasks.partition("%")[0])
    return range(int(found[1]), int(found[2]) + 1, int(found[3])) if found else range(0)


def _list_tasks(array_tasks: str) -> str:
    """Return ``1,3,5`` for ``1-5:2%4``: of all commands only sbatch accepts steps (22.05 to 26.05)."""
    return ",".join(map(str, _stepped(array_tasks)[:STEPPED_MAX])) or array_tasks.partition("%")[0]


def build_admin_comment(order: SubmittedOptions, asked: YieldNotice | None = None, note: str = "") -> str:
    """Return the AdminComment of a job; ``job_submit`` writes the same, without ``asked`` and ``note``.

    Args:
        order: the submitted options.
        asked: the request to yield.
        note: for people, in one line.
    """
    assert _NONCE.fullmatch(order.nonce), order.nonce
    text = f"moorings:1 nonce={order.nonce} ipus={order.ipus} gcds={order.gcds} replicas={order.replicas}"
    text += f" preemptible={order.signal}" if order.signal else ""
    if asked is not None:
        text += f" asked={asked.restarts}@{asked.requeue_at // SECOND:010d},{asked.since // SECOND:010d}"
    return text + (f"{_NOTE}{note}" if note or asked is not None else "")


def build_comment_update(job: int | str, order: SubmittedOptions, asked: YieldNotice | None, note: str) -> list[str]:
    """Write the text of ``build_admin_comment`` into a job's AdminComment."""
    return ["scontrol", "update", f"jobid={_target(job)}", f"admincomment={build_admin_comment(order, asked, note)}"]


def build_allow_requeue(job: int | str) -> list[str]:
    """Allow requeue of a batch job, whatever was set before."""
    return ["scontrol", "update", f"jobid={_target(job)}", "requeue=1"]


def parse_options(comment: str) -> SubmittedOptions | None:
    """Return the options in an AdminComment; text may follow them. None: there are none."""
    found = _ORDER.match(comment)
    if found is None:
        return None
    signal = found[5] or ""
    return SubmittedOptions(
        nonce=found[1], ipus=int(found[2]), gcds=int(found[3]), replicas=int(found[4]), signal=signal
    )


def parse_yield_notice(comment: str) -> YieldNotice | None:
    """Return the request to yield behind the options; None: there is none."""
    order = _ORDER.match(comment)
    found = _ASKED.match(comment, order.end()) if order is not None else None
    if found is None:
        return None
    return YieldNotice(int(found[1]), Timestamp(int(found[2]) * SECOND), Timestamp(int(found[3]) * SECOND))


def parse_note(comment: str) -> tuple[str, bool]:
    """Return an AdminComment's text for people, and whether we may overwrite it: an admin's own words stay."""
    order = _ORDER.match(comment)
    if order is None:
        return "", not value_or_empty(comment)
    asked = _ASKED.match(comment, order.end())
    rest = comment[(asked or order).end() :]
    ours = not rest.strip() or f"{rest} ".startswith(_NOTE)
    return rest.strip().removeprefix(_NOTE.strip()).strip(), ours


# -- jobs --------------------------------------------------------------------------------------------------------------

_JOB = (
    FixedColumn("job_id", "JobID", 12),
    FixedColumn("array_job", "ArrayJobID", 12),
    FixedColumn("array_tasks", "ArrayTaskID", 80),  # Slurm itself cuts it at 64
    FixedColumn("het_job", "HetJobID", 12),
    FixedColumn("het_offset", "HetJobOffset", 8),
    FixedColumn("state", "State", 20),
    FixedColumn("reason", "Reason", 64),
    FixedColumn("uid", "UserID", 12),
    FixedColumn("user", "UserName", 64),
    FixedColumn("account", "Account", 64),
    FixedColumn("partition", "Partition", 128),
    FixedColumn("qos", "QOS", 64),
    FixedColumn("priority", "PriorityLong", 12),
    FixedColumn("submitted", "SubmitTime", 20),
    FixedColumn("eligible", "EligibleTime", 20),
    FixedColumn("started", "StartTime", 20),
    FixedColumn("ends", "EndTime", 20),
    FixedColumn("limit", "TimeLimit", 20),
    FixedColumn("nodes", "NodeList", 512),
    FixedColumn("restarts", "RestartCnt", 8),
    FixedColumn("requeue", "Requeue", 4),
    FixedColumn("batch", "BatchFlag", 4),
    FixedColumn("status", "exit_code", 12),
    FixedColumn("licenses", "Licenses", 256),
    FixedColumn("order", "admin_comment", 128),  # squeue has no field `AdminComment`
    FixedColumn("comment", "Comment", 128),
    FixedColumn("name", "Name", 64),
)
_WIDTH = {column.name: column.width for column in _JOB}


def build_jobs(
    *, license_name: str | None = None, jobs: Sequence[int] = (), users: Sequence[int] = (), ended: bool = True
) -> list[str]:
    """List the jobs of all users; the filters are squeue's own and combine.

    Args:
        license_name: only jobs with this license.
        jobs: only these; an unknown id is an error if it is the only one.
        users: only these uids'.
        ended: also jobs that ended within ``MinJobAge`` (Slurm's default: 5 minutes).
    """
    argv = ["squeue", "--noheader", "--all", f"--Format={build_format(_JOB)}"]
    argv += ["--states=all"] if ended else []
    argv += [f"--licenses={_checked(_LICENSE, license_name)}"] if license_name is not None else []
    argv += [f"--jobs={','.join(str(int(job)) for job in jobs)}"] if jobs else []
    return [*argv, f"--user={','.join(str(int(user)) for user in users)}"] if users else argv


def parse_jobs(answer: bytes, *, accounts: bool = True) -> list[JobRecord]:
    """Return the jobs in the output of ``build_jobs``; times are UTC, because ``commands`` sets that zone.

    Args:
        answer: squeue's output.
        accounts: whether accounts can be trusted; if not, no job has one.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    return [_job(row, accounts=accounts) for row in parse_rows(answer, _JOB, source="squeue")]


class JobListParser:
    """Parses one job list after the other; a record that stays the same, byte for byte, is parsed once.

    In a long queue nearly all records stay the same from one second to the next.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, JobRecord] = {}
        self._accounts = False  # whether those of ``_known`` were trusted

    def parse(self, answer: bytes, *, accounts: bool) -> list[JobRecord]:
        """Like ``parse_jobs``."""
        known = self._known if accounts == self._accounts else {}
        rows = cut_rows(answer, _JOB, source="squeue")
        self._known = {row: known.get(row) or _job(read_row(row, _JOB), accounts=accounts) for row in rows}
        self._accounts = accounts
        return list(self._known.values())


def phase_of(state: str) -> SlurmJobPhase:
    """Return the meaning of a state; an unknown one counts as live."""
    if state in _WAITING:
        return SlurmJobPhase.WAITING
    return SlurmJobPhase.ENDED if state in _ENDED else SlurmJobPhase.LIVE


def _job(row: Mapping[str, str], *, accounts: bool) -> JobRecord:
    try:
        tasks = value_or_empty(row["array_tasks"])
        note, note_is_ours = parse_note(row["order"])
        return JobRecord(
            job_id=int(row["job_id"]),
            array_job=int(row["array_job"]) if tasks else None,
            array_tasks=tasks,
            het_job=_number(row["het_job"]) or None,
            het_offset=_number(row["het_offset"]) if _number(row["het_job"]) else None,
            state=row["state"],
            phase=phase_of(row["state"]),
            reason=value_or_empty(row["reason"]),
            uid=int(row["uid"]),
            user=row["user"],
            account=value_or_empty(row["account"]) if accounts else "",
            partition=row["partition"],
            qos=value_or_empty(row["qos"]),
            priority=int(row["priority"]),
            submit_time=parse_instant(row["submitted"]),
            eligible=parse_instant(row["eligible"]),
            start_time=parse_instant(row["started"]),
            end_time=parse_instant(row["ends"]),
            limit_s=_limit_s(row["limit"]),
            nodes=value_or_empty(row["nodes"]),
            nodes_whole=is_whole(row["nodes"], _WIDTH["nodes"]),
            restarts=int(row["restarts"]),
            requeue=row["requeue"] == "1",
            batch=row["batch"] == "1",
            status=_status(row["status"]),
            licenses=_licenses(row["licenses"]),
            order=parse_options(row["order"]),
            asked=parse_yield_notice(row["order"]),
            note=note,
            is_note_ours=note_is_ours,
            comment=value_or_empty(row["comment"]),
            name=row["name"],
        )
    except ValueError as error:
        raise _unreadable(f"squeue's line of job {row['job_id'][:12]!r} cannot be read: {error}") from error


def _licenses(text: str) -> dict[str, int]:
    parts = re.split("[,;]", value_or_empty(text))
    if not is_whole(text, _WIDTH["licenses"]):
        parts = parts[:-1]  # the last one's number may be cut
    return dict(parse_license_list(",".join(parts)))


def _status(text: str) -> tuple[int, int]:
    """Return exit code and signal, from ``3:0`` or, on 22.05, the status of wait(2)."""
    found = _STATUS.fullmatch(text)
    if found is None:
        raise ValueError(f"status {text[:20]!r}")
    if found[2] is not None:
        return int(found[1]), int(found[2])
    return int(found[1]) >> 8 & 0xFF, int(found[1]) & 0x7F


def _number(text: str) -> int | None:
    return int(text) if value_or_empty(text) else None


def parse_instant(text: str) -> Timestamp | None:
    """Return a time of squeue or sacct, which is UTC here; None: there is none, or none in range."""
    if not value_or_empty(text):
        return None
    try:
        return Timestamp(round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND)
    except (ValueError, OverflowError):
        return None  # users choose some of them, as far off as year 97849: one job must not make the list unreadable


def _limit_s(text: str) -> float | None:
    if text in ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit"):
        return None
    try:
        return parse_duration_s(text)
    except MooringsError as error:
        raise ValueError(f"time limit {text[:20]!r}") from error


def _target(job: int | str) -> str:
    return _checked(_TARGET, str(job))


def build_cancel(job: int | str, *, signal: str | None = None, batch_only: bool = False) -> list[str]:
    """Cancel a job, or send it a signal (``TERM``); an unknown id is not an error.

    Here and below a job is its id, or its ``target`` for one part of an array.
    """
    flags = [f"--signal={_checked(_SIGNAL, signal)}"] if signal is not None else []
    return ["scancel", *flags, *(["--batch"] if batch_only else []), _target(job)]


def build_requeue(job: int | str) -> list[str]:
    """Requeue a running batch job."""
    return ["scontrol", "requeue", _target(job)]


# -- licenses and the reservation --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class License:
    """The counts of a license; ``free`` ones are neither in use by jobs nor reserved."""

    total: int
    used: int
    reserved: int

    @property
    def free(self) -> int:
        """Return how many a job could take now; negative if too many are reserved."""
        return self.total - self.used - self.reserved


@dataclass(frozen=True, slots=True)
class LicenseReservation:
    """A reservation of licenses."""

    name: str
    state: str
    flags: frozenset[str]
    licenses: Mapping[str, int]


def parse_license_list(text: str) -> Iterator[tuple[str, int]]:
    """Return names and counts in ``ipu_1:64,other``; 26.05 writes some ``;`` where earlier releases wrote ``,``."""
    for part in filter(None, re.split("[,;]", value_or_empty(text))):
        name, _, count = part.partition(":")
        yield name, int(count) if count.isdecimal() and count.isascii() else 1


def build_license_list(licenses: Mapping[str, int]) -> str:
    """Return ``ipu_1:64,moorings_gate:1`` without licenses of count 0, because 26.05 refuses them."""
    return ",".join(f"{_checked(_LICENSE, name)}:{int(count)}" for name, count in licenses.items() if count > 0)


def build_licenses() -> list[str]:
    """List the licenses."""
    return ["scontrol", "show", "licenses", "--oneliner"]


def parse_licenses(answer: bytes) -> dict[str, License]:
    """Return the licenses by name, also those of remote servers (``Remote=yes``).

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = {}
    for line in _lines(answer):
        if line == "No licenses configured in Slurm.":
            continue
        entry = _entries(line)
        try:
            found[entry["LicenseName"]] = License(int(entry["Total"]), int(entry["Used"]), int(entry["Reserved"]))
        except (KeyError, ValueError) as error:
            raise _unreadable(f"scontrol's line of a license cannot be read: {line[:80]!r}") from error
    return found


def build_create_reservation(name: str, licenses: Mapping[str, int]) -> list[str]:
    """Create a reservation of licenses alone, for root, from now for 365 days (Slurm's maximum)."""
    times = ["starttime=now", "duration=infinite", "user=root", "flags=any_nodes,ignore_jobs"]
    named = f"reservationname={_checked(_NAME, name)}"
    return ["scontrol", "create", "reservation", named, *times, f"licenses={build_license_list(licenses)}"]


def build_update_reservation(name: str, licenses: Mapping[str, int]) -> list[str]:
    """Change the licenses of a reservation.

    Never name a license that Slurm does not know, or more than its total: a *refused* change opens the gate, on 22.05,
    24.11 and 26.05 alike. Slurm still shows the reservation as before, but ``Reserved`` of its licenses is 0 until the
    next accepted change. Read the reserved counts from ``parse_licenses``, not from the reservation.
    """
    named = f"reservationname={_checked(_NAME, name)}"
    return ["scontrol", "update", named, f"licenses={build_license_list(licenses)}"]


def build_renew_reservation(name: str) -> list[str]:
    """Extend a reservation to 365 days from now: ``duration`` counts from its start, and is 365 days at most."""
    return ["scontrol", "update", f"reservationname={_checked(_NAME, name)}", "endtime=now+365days"]


def build_reservations() -> list[str]:
    """List all reservations; a request for a missing one by name is an error."""
    return ["scontrol", "show", "reservation", "--oneliner"]


def parse_reservations(answer: bytes) -> dict[str, LicenseReservation]:
    """Return the reservations by name.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = {}
    for line in _lines(answer):
        if line.startswith("No reservations in the system"):
            continue
        entry = _entries(line)
        try:
            name = entry["ReservationName"]
            flags = frozenset(value_or_empty(entry["Flags"]).split(",")) - {""}
            held = dict(parse_license_list(entry["Licenses"]))
            found[name] = LicenseReservation(name, entry["State"], flags, held)
        except KeyError as error:
            raise _unreadable(f"scontrol's line of a reservation cannot be read: {line[:80]!r}") from error
    return found


# -- nodes and the configuration ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinfoNode:
    """A node; ``version`` is its slurmd's, empty until slurmd has reported it."""

    name: str
    host: str
    state: str
    version: str
    features: tuple[str, ...]


_NODE = (
    FixedColumn("name", "NodeList", 128),
    FixedColumn("host", "NodeHost", 128),
    FixedColumn("state", "StateLong", 32),
    FixedColumn("version", "Version", 24),
    FixedColumn("features", "features_act", 256),
)


def build_nodes() -> list[str]:
    """List the nodes, one a line."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--Format={build_format(_NODE)}"]


def parse_nodes(answer: bytes) -> list[SinfoNode]:
    """Return the nodes, each once (sinfo lists a node once for each of its partitions).

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = {}
    for row in parse_rows(answer, _NODE, source="sinfo"):
        features = tuple(filter(None, value_or_empty(row["features"]).split(",")))
        found[row["name"]] = SinfoNode(row["name"], row["host"], row["state"], value_or_empty(row["version"]), features)
    return list(found.values())


def build_drain(nodes: Sequence[str], why: str) -> list[str]:
    """Drain nodes; ``why`` is for people, in one line."""
    return ["scontrol", "update", f"nodename={join_names(nodes)}", "state=drain", f"reason={why}"]


def join_names(nodes: Sequence[str]) -> str:
    """Return nodes as one argument.

    Raises:
        MooringsError: ``name.invalid``.
    """
    return ",".join(_checked(_NAME, node) for node in nodes)


def build_config() -> list[str]:
    """Show slurmctld's running configuration."""
    return ["scontrol", "show", "config"]


def parse_config(answer: bytes) -> dict[str, str]:
    """Return the settings by Slurm's names; an unset one is empty."""
    return {
        found[1]: value_or_empty(found[2].strip()) for line in _lines(answer) if (found := _SETTING.fullmatch(line))
    }


def build_history(*jobs: int) -> list[str]:
    """Show ended jobs in the accounting: one line each, without text of the user."""
    fields = "JobIDRaw,State,ExitCode,Submit,Start,End"
    ids = ",".join(str(int(job)) for job in jobs)
    return ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}", f"--format={fields}"]


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """A job's accounting record."""

    job_id: int
    state: str
    status: tuple[int, int]
    started: Timestamp | None
    ended: Timestamp | None


def parse_history(answer: bytes) -> list[AccountedJob]:
    """Return the jobs in the output of ``build_history``; none without accounting of the job.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = []
    for line in _lines(answer):
        try:
            job, state, status, _, started, ended = line.split("|")
            word = state.split(" ")[0]  # `CANCELLED by 1000`
            found.append(AccountedJob(int(job), word, _status(status), parse_instant(started), parse_instant(ended)))
        except ValueError as error:
            raise _unreadable(f"sacct's line of a job cannot be read: {line[:80]!r}") from error
    return found


def _lines(answer: bytes) -> list[str]:
    return [line.strip() for line in answer.decode("utf-8", "replace").split("\n") if line.strip()]


def _entries(line: str) -> dict[str, str]:
    """Return ``Key=Value`` pairs. The first of a key counts, because free text of admins stands at the end."""
    found: dict[str, str] = {}
    for entry in _ENTRY.finditer(line):
        found.setdefault(entry[1], entry[2])
    return found


def _checked(form: re.Pattern[str], text: str | None) -> str:
    """Return ``text`` after a check, for an argument list.

    Raises:
        MooringsError: ``name.invalid``.
    """
    if text is None or not form.fullmatch(text):
        raise MooringsError("name.invalid", f"{(text or '')[:40]!r} is no name that Slurm is told")
    return text


def _unreadable(problem: str) -> MooringsError:
    return MooringsError(
        "slurm.unreadable", problem, hint="is this a release of Slurm that Moorings knows (22.05 to 26.05)?"
    )
