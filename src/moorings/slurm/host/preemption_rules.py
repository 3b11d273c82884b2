"""Slurm's own rules of priority and preemption, read from its commands.

Slurm orders its queue by the tier of a job's partition first. With ``PreemptType=preempt/partition_prio`` a higher tier
may preempt a lower one, with ``preempt/qos`` a QOS those in its list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.fixed_width import FixedColumn, build_format, parse_rows, value_or_empty
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.site import has_private_jobs


class PreemptType(StrEnum):
    """The values of ``PreemptType``."""

    NONE = "preempt/none"
    TIERS = "preempt/partition_prio"
    QOS = "preempt/qos"


# Other modes (OFF, GANG, SUSPEND, WITHIN) leave a job its devices, or are about one QOS: they preempt no job.
_MODES = ("REQUEUE", "CANCEL")
KILL_WAIT_S = 30.0  # the default in slurm.conf(5)
_KILL_WAIT = re.compile(r"([0-9]{1,6})(?: sec)?")


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS: the ones it may preempt, and how its own jobs are preempted (empty: as the cluster's)."""

    preempts: frozenset[str] = frozenset()
    mode: str = ""
    exempt_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """A partition's tier, and how its jobs are preempted."""

    tier: int
    mode: str


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """A cluster's rules.

    Attributes:
        by: the setting that decides which jobs may preempt others.
        mode: PreemptMode of the cluster.
        exempt_s: seconds from its start until a job can be preempted.
        partitions: by name.
        qos: by name; empty without accounting.
        kill_wait_s: seconds from TERM to KILL.
        private: whether users must not see others' jobs; true until that is known.
    """

    by: PreemptType = PreemptType.NONE
    mode: str = ""
    exempt_s: float = 0.0
    partitions: Mapping[str, SlurmPartition] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    kill_wait_s: float = KILL_WAIT_S
    private: bool = True

    def tier(self, job: JobRecord) -> int:
        """Return the tier of a job: the highest of its partitions, if it names several."""
        tiers = [self.partitions[name].tier for name in job.partition.split(",") if name in self.partitions]
        return max(tiers, default=1)

    def may_preempt(self, waiting: JobRecord, running: JobRecord, now: Timestamp) -> bool:
        """Whether a job may preempt a running one now."""
        exempt_s = self.exempt_s
        if self.by is PreemptType.TIERS:
            its = self.partitions.get(running.partition)
            allowed = its is not None and its.tier < self.tier(waiting) and its.mode in _MODES
        elif self.by is PreemptType.QOS:
            low, high = self.qos.get(running.qos, Qos()), self.qos.get(waiting.qos, Qos())
            allowed = running.qos in high.preempts and (low.mode or self.mode) in _MODES
            exempt_s = low.exempt_s if low.exempt_s is not None else exempt_s
        else:
            allowed = False
        return allowed and running.start_time is not None and now - running.start_time >= exempt_s * SECOND

    def is_requeued(self, running: JobRecord) -> bool:
        """Whether a preempted job is requeued; else it is cancelled."""
        if self.by is PreemptType.QOS:
            mode = self.qos.get(running.qos, Qos()).mode or self.mode
        else:
            its = self.partitions.get(running.partition)
            mode = its.mode if its is not None else self.mode
        return mode == "REQUEUE" and running.batch and running.requeue


_PARTITION = (
    FixedColumn("name", "PartitionName", 128),
    FixedColumn("tier", "PriorityTier", 12),
    FixedColumn("mode", "PreemptMode", 32),
)


def build_partitions() -> list[str]:
    """List the partitions."""
    return ["sinfo", "--noheader", "--all", f"--Format={build_format(_PARTITION)}"]


def build_qos() -> list[str]:
    """List the QOS of the accounting."""
    fields = "Name,Preempt,PreemptMode,PreemptExemptTime"
    return ["sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={fields}"]


def parse_rules(config: Mapping[str, str], partitions: bytes, qos: bytes = b"") -> PreemptionRules:
    """Return the rules, from ``formats.parse_config`` and the output of ``build_partitions`` and ``build_qos``.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    try:
        kinds = [kind for kind in PreemptType if kind == config.get("PreemptType", "")]
        rows = parse_rows(partitions, _PARTITION, source="sinfo")
        kill_wait = _KILL_WAIT.fullmatch(config.get("KillWait", ""))
        return PreemptionRules(
            by=kinds[0] if kinds else PreemptType.NONE,
            mode=_mode(config.get("PreemptMode", "")),
            exempt_s=_seconds(config.get("PreemptExemptTime", "")) or 0.0,
            partitions={row["name"].rstrip("*"): SlurmPartition(int(row["tier"]), _mode(row["mode"])) for row in rows},
            qos=dict(_qos(line) for line in qos.decode("utf-8", "replace").splitlines() if line),
            kill_wait_s=float(kill_wait[1]) if kill_wait is not None else KILL_WAIT_S,
            private=has_private_jobs(config),
        )
    except ValueError as error:
        raise MooringsError("slurm.unreadable", f"Slurm's rules of preemption cannot be read: {error}") from error


def _qos(line: str) -> tuple[str, Qos]:
    name, displaces, mode, exempt = line.split("|")
    named = "" if mode == "cluster" else _mode(mode)
    return name, Qos(frozenset(filter(None, displaces.split(","))), named, _seconds(exempt))


def _mode(text: str) -> str:
    """Slurm shows ``GANG,SUSPEND`` as one text; GANG only means that CPUs are shared."""
    return ",".join(part for part in text.upper().split(",") if part not in ("GANG", ""))


def _seconds(text: str) -> float | None:
    if not value_or_empty(text) or text in ("UNLIMITED", "-1"):
        return None
    try:
        return parse_duration_s(text)
    except MooringsError as error:
        raise ValueError(error.detail) from error
