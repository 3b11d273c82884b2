"""A site's Slurm, from ``scontrol show config``, and the lines of ``slurm.conf`` for IPU jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.slurm.formats import GATE, LICENSE, parse_license_list
from moorings.slurm.host.bind_protocol import REQUEUE_EXIT_CODE
from moorings.slurm.host.spank_object import release_of

_TRIED = ("22.05", "24.11", "26.05")

# Slurm counts these by itself; AccountingStorageTRES adds to them.
_TRES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
# With any of these words Slurm refuses an account that is not the user's (slurm.conf(5)); else ``-A`` may name any.
_ENFORCING = frozenset({"associations", "limits", "qos", "safe", "all"})
_USER = re.compile(r"(.+)\(([0-9]+)\)")
_HOST = re.compile(r"([^()]+)(?:\((.+)\))?")
_RANGE = re.compile(r"[0-9]+(-[0-9]+)?")
_SOCKET = re.compile(r"(?:^|,)socket=([^,]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running Slurm.

    Attributes:
        version: as ``22.05.8``.
        cluster: its name.
        slurm_conf: the file that its commands read, here or (``parse_site``) at slurmctld; the others lie beside it.
        plugstack: path of plugstack.conf.
        controllers: addresses of slurmctld's machines.
        slurm_user: name and uid of SlurmUser.
        conf_hash: ``Match``, or how this machine's slurm.conf differs from slurmctld's.
        munge_socket: from AuthInfo; empty: munge's default.
        tres: the resources that the accounting counts.
        accounting: whether there is a slurmdbd.
        enforces_accounts: whether Slurm checks that a user may use a job's account.
        job_requeue: whether a batch job without --requeue or --no-requeue may start again.
        requeue_exit: exit codes and ranges of them (``3-5``) that requeue a batch job.
        log_file: slurmctld's, on its machine; empty: none.
        state_folder: slurmctld's StateSaveLocation, on its machine.
        configless: whether slurmctld distributes its files to machines without any.
        has_files: whether this machine has files of its own; False: slurmctld distributes them.
    """

    version: str
    cluster: str
    slurm_conf: Path
    plugstack: Path
    controllers: tuple[str, ...]
    slurm_user: tuple[str, int]
    conf_hash: str
    munge_socket: str
    job_submit: tuple[str, ...]
    licenses: Mapping[str, int]
    tres: tuple[str, ...]
    accounting: bool
    enforces_accounts: bool
    scheduler: tuple[str, ...]
    job_requeue: bool
    requeue_exit: tuple[str, ...]
    log_file: str
    state_folder: Path
    configless: bool = False
    has_files: bool = True

    @property
    def folder(self) -> Path:
        """Return the folder of slurm.conf and its related files."""
        return self.slurm_conf.parent

    @property
    def release(self) -> str:
        """Return the release, as ``22.05``."""
        return release_of(self.version)

    @property
    def was_tried(self) -> bool:
        """Whether our tests run on this release."""
        return self.release in _TRIED


def parse_site(config: Mapping[str, str]) -> Site:
    """Return the site of a configuration (``formats.parse_config``), as seen from slurmctld.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    try:
        user = _USER.fullmatch(config["SlurmUser"])
        conf = Path(config["SLURM_CONF"])
        return Site(
            version=config["SLURM_VERSION"],
            cluster=config["ClusterName"],
            slurm_conf=conf,
            plugstack=Path(config["PlugStackConfig"] or conf.parent / "plugstack.conf"),
            controllers=tuple(_controllers(config)),
            slurm_user=(user[1], int(user[2])) if user is not None else (config["SlurmUser"], -1),
            conf_hash=config.get("HASH_VAL", ""),
            munge_socket=munge_socket_of(config["AuthInfo"]),
            job_submit=_words(config["JobSubmitPlugins"]),
            licenses=dict(parse_license_list(config["Licenses"])),
            tres=_words(config["AccountingStorageTRES"]),
            accounting=has_accounting(config),
            enforces_accounts=enforces_accounts(config),
            scheduler=_words(config["SchedulerParameters"]),
            job_requeue=config.get("JobRequeue", "1") != "0",
            requeue_exit=_words(config.get("RequeueExit", "")),
            log_file=config.get("SlurmctldLogFile", ""),
            state_folder=Path(config["StateSaveLocation"]),
            configless="enable_configless" in _words(config.get("SlurmctldParameters", "").lower()),
        )
    except KeyError as error:
        raise MooringsError("slurm.unreadable", f"'scontrol show config' does not tell {error}") from error


def at_machine(site: Site, conf: Path, *, has_files: bool) -> Site:
    """Return the site as seen from a machine whose commands read the file ``conf``."""
    beside = site.plugstack == site.folder / "plugstack.conf"
    plugstack = conf.with_name("plugstack.conf") if beside else site.plugstack
    return replace(site, slurm_conf=conf, plugstack=plugstack, has_files=has_files)


def has_accounting(config: Mapping[str, str]) -> bool:
    """Whether there is a slurmdbd."""
    return config.get("AccountingStorageType", "").endswith("slurmdbd")


def enforces_accounts(config: Mapping[str, str]) -> bool:
    """Whether Slurm refuses a job with an account that its user may not use; not by default.

    Args:
        config: ``formats.parse_config``.
    """
    words = {word.lower() for word in _words(config.get("AccountingStorageEnforce", ""))}
    return has_accounting(config) and not words.isdisjoint(_ENFORCING)


def has_private_jobs(config: Mapping[str, str]) -> bool:
    """Whether users must not see others' jobs, or each other (``PrivateData``)."""
    return not {"jobs", "users", "all"}.isdisjoint(word.lower() for word in _words(config.get("PrivateData", "")))


def munge_socket_of(auth_info: str) -> str:
    """Return the socket in AuthInfo; empty: munge's default."""
    socket = _SOCKET.search(auth_info)
    return socket[1] if socket else ""


def _controllers(config: Mapping[str, str]) -> Iterator[str]:
    for name, value in config.items():
        host = _HOST.fullmatch(value)
        if name.startswith("SlurmctldHost[") and host is not None:
            yield host[2] or host[1]


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


# -- desired lines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfLine:
    """A line for one of the site's own files; only the site writes it."""

    file: Path
    line: str
    why: str


def sizes_up_to(largest: int) -> tuple[int, ...]:
    """Return the sizes of partitions: powers of two up to ``largest``."""
    return tuple(1 << power for power in range(max(largest, 0).bit_length()))


def licenses_wanted(ipus: int, largest: int) -> dict[str, int]:
    """Return the desired ``Licenses`` for a pool of ``ipus`` devices whose largest partition has ``largest``."""
    return {LICENSE: ipus} | {f"{LICENSE}_{size}": ipus for size in sizes_up_to(largest)} | {GATE: 1}


def is_our_license(name: str) -> bool:
    """Whether a license is one of ours."""
    return name in (LICENSE, GATE) or (name.startswith(f"{LICENSE}_") and name.removeprefix(f"{LICENSE}_").isdigit())


def conf_lines(site: Site, ipus: int, largest: int) -> list[ConfLine]:
    """Return the missing or different lines of slurm.conf; they keep the site's other values."""
    wanted = licenses_wanted(ipus, largest)
    found = []
    if {name: count for name, count in site.licenses.items() if is_our_license(name)} != wanted:
        others = {name: count for name, count in site.licenses.items() if not is_our_license(name)}
        value = ",".join(f"{name}:{count}" for name, count in (others | wanted).items())
        why = "jobs of IPUs wait for these, and fair share and limits count 'ipu'"
        found.append(ConfLine(site.slurm_conf, f"Licenses={value}", why))
    if "lua" not in site.job_submit:
        value = ",".join((*site.job_submit, "lua"))
        why = "turns --ipus into licenses when a job is submitted"
        found.append(ConfLine(site.slurm_conf, f"JobSubmitPlugins={value}", why))
    if site.accounting and f"license/{LICENSE}" not in site.tres:
        value = ",".join([*(name for name in site.tres if name not in _TRES), f"license/{LICENSE}"])
        why = "sacct and limits (MaxTRESPerUser=license/ipu=4) count IPUs"
        found.append(ConfLine(site.slurm_conf, f"AccountingStorageTRES={value}", why))
    if not is_requeued(site, REQUEUE_EXIT_CODE):
        value = ",".join((*site.requeue_exit, str(REQUEUE_EXIT_CODE)))
        why = "a batch job whose wait for its partition was in vain goes back into the queue, and does not fail"
        found.append(ConfLine(site.slurm_conf, f"RequeueExit={value}", why))
    if "bf_licenses" in site.scheduler:
        value = ",".join(word for word in site.scheduler if word != "bf_licenses")
        why = "bf_licenses delays every plain job behind a waiting IPU job by half a minute"
        found.append(ConfLine(site.slurm_conf, f"SchedulerParameters={value}", why))
    return found


def is_requeued(site: Site, code: int) -> bool:
    """Whether Slurm requeues a batch job with this exit code."""
    ends = ([int(end) for end in word.split("-")] for word in site.requeue_exit if _RANGE.fullmatch(word))
    return any(found[0] <= code <= found[-1] for found in ends)


def uses_select_vipu(settings: Mapping[str, str]) -> bool:
    """Whether a ``slurm.conf`` (``slurm_conf.parse_slurm_conf``) has the V-IPU select plugin."""
    return settings.get("selecttype", "").lower() == "select/vipu"


def without_select_vipu(settings: Mapping[str, str], conf: Path) -> Sequence[ConfLine]:
    """Return the lines that replace those for the V-IPU select plugin."""
    parameters = [word.strip() for word in settings.get("selecttypeparameters", "").split(",") if word.strip()]
    under = next((word.lower().removeprefix("other_") for word in parameters if word.lower().startswith("other_")), "")
    chosen = "select/linear" if under == "linear" else "select/cons_tres"  # Slurm has no cons_res since 23.11
    rest = ",".join(word for word in parameters if not word.lower().startswith("other_"))
    lines = [ConfLine(conf, f"SelectType={chosen}", "no stock Slurm has select/vipu; IPUs are licenses now")]
    if rest:
        lines.append(ConfLine(conf, f"SelectTypeParameters={rest}", "the other_... word was the select plugin's own"))
    return lines
