"""Settings of the controller: flag, then environment, then file, then default.

Our own loader of some 130 lines rather than pydantic-settings: that brings seven more packages, and messages should
name the file and line (``core.model.toml_table``).
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypedDict

from moorings.app.folders import ARCHIVE, RUNS
from moorings.core.model.access import LIFETIME_DAYS_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_bytes, parse_duration_s
from moorings.core.model.toml_table import TomlTable
from moorings.kubernetes.engine.settings import KubernetesEngineSettings
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.workloads.idleness import IdleLimits

DEFAULT_CONFIG = Path("/etc/moorings/controller.toml")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("logfmt", "json")

_PATHS = (
    *("data", "shared", "runs", "archive", "pools", "policy", "credentials", "log_file", "sockets"),
    *("tls_cert", "tls_key", "tls_client_ca", "tls_ca"),
)
OUTPUT_BYTES_MAX = 10_000_000_000
_NUMBERS = (
    "log_file_bytes_max",
    "keep_runs_days",
    "keep_history_days",
    "output_bytes_max",
    "key_lifetime_days",
    "cpus",
)
_DURATIONS = ("idle_after", "idle_admin_after")
_BOOLEANS = ("reserve", "local_runs", "jobs_as_root", "plain_http")
_DATABASE = re.compile(r"postgres(ql)?://\S+")
_ADVERTISED = re.compile(r"https?://[^\s/?#]+")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything an admin can set about one controller."""

    data: Path = field(metadata={"flag": "--data", "environment": "MOORINGS_DATA"})
    """Folder of the database, the runs and the simulated hardware; made 0700. Default: ``$XDG_STATE_HOME/moorings``
    (``~/.local/state/moorings``), or ``/var/lib/moorings`` under systemd, which sets ``STATE_DIRECTORY``."""

    database: str = field(default="", repr=False, metadata={"environment": "MOORINGS_DATABASE"})
    """``postgresql://user@host/name``: a PostgreSQL database (14 or newer), which several controllers may share: one
    leads, the others forward requests to it and take over within seconds. The password belongs in the passfile
    (``~/.pgpass``) or this variable; there is no flag, because command lines are visible to others. Default: SQLite,
    ``moorings.db`` in the data folder.
    """

    shared: Path | None = field(default=None, metadata={"flag": "--shared"})
    """With PostgreSQL: the folder of the installation's shared files (pepper of the access keys, pools file, runs,
    simulated hardware), the same for all controllers of one machine. Default: ``data``.
    """

    runs: Path | None = field(default=None, metadata={"flag": "--runs"})
    """Folder of the runs: their orders, records and output; on a local disk, which need not be that of the database.
    Change it only while no run is active, move its contents along, hidden files too, and set it in the settings' file,
    where ``moor restore`` finds it. Default: ``runs`` in the data folder, or the ``shared`` one.
    """

    local_runs: bool = field(default=True, metadata={})
    """Whether jobs may run as processes of this machine. Turn it off if the controllers are on several machines: the
    next leader could not see the other machine's processes.
    """

    cpus: int | None = field(default=None, metadata={})
    """CPUs of this machine for its jobs (``moor run``), those with devices too: a job that names more waits until so
    many are free. 0: they are not counted. Default: those that this controller may use.
    """

    memory: str = field(default="", metadata={})
    """Memory of this machine for its jobs, likewise, as ``200G``; leave some for the system. ``0``: it is not counted.
    Default: the machine's whole memory.
    """

    jobs_as_root: bool = field(default=False, metadata={"environment": "MOORINGS_JOBS_AS_ROOT"})
    """For a controller that root has started without ``sockets``: whether people with ``user`` keys may start jobs of
    this machine, too. All of them are root's processes, so each of these people is root. Default: only admins may.
    """

    sockets: Path | None = field(default=None, metadata={"flag": "--sockets"})
    """On a machine that people share: the folder of the root daemon's sockets (``/run/moorings``). Jobs of this machine
    then run as the people who have handed them in, and this controller listens at ``controller/api`` in that folder as
    well, where the kernel says who asks and no key is needed. Needs SQLite. Default: none; jobs of this machine run as
    this controller's own user.
    """

    advertise: str = field(default="", metadata={"flag": "--advertise"})
    """With PostgreSQL: ``https://host:port`` (``http://`` without TLS), this controller's address for the others; its
    certificate must cover that name. Default: the address it listens on.
    """

    host: str = field(default="127.0.0.1", metadata={"flag": "--host"})
    """Address to listen on. Default: only this machine. Another one needs ``tls_cert`` and ``tls_key``, or
    ``plain_http``."""

    port: int = field(default=8090, metadata={"flag": "--port"})
    """TCP port, 0 to 65535 (0: any free one; see ``controller.json``). Default 8090, the port V-IPU users know."""

    tls_cert: Path | None = field(default=None, metadata={"flag": "--tls-cert", "environment": "MOORINGS_TLS_CERT"})
    """PEM file of the controller's certificate, and of those between it and its authority. With it and ``tls_key`` the
    controller speaks HTTPS only, TLS 1.2 or newer. A changed file is loaded within 10 s, or at SIGHUP.
    """

    tls_key: Path | None = field(default=None, metadata={"flag": "--tls-key", "environment": "MOORINGS_TLS_KEY"})
    """PEM file (0600, unencrypted) of that certificate's private key."""

    tls_client_ca: Path | None = field(
        default=None, metadata={"flag": "--tls-client-ca", "environment": "MOORINGS_TLS_CLIENT_CA"}
    )
    """Secure mode: PEM file of the authorities of the clients' certificates. Every client must show a certificate with
    the subject of its access key (``moor pki issue SUBJECT``). Name an authority of your own only. Default: clients
    show no certificates.
    """

    tls_ca: Path | None = field(default=None, metadata={"flag": "--tls-ca", "environment": "MOORINGS_TLS_CA"})
    """With PostgreSQL: PEM file of the authorities behind the other controllers' certificates. Default:
    ``tls_client_ca``, else the system's."""

    plain_http: bool = field(default=False, metadata={"flag": "--plain-http"})
    """Listen on other addresses than this machine's without TLS: anyone who can read the network's traffic can read
    access keys. Default: that is refused.
    """

    pools: Path | None = field(default=None, metadata={"flag": "--pools"})
    """Pools file. Default: ``pools.toml`` in the data folder, made with a simulated ``pod64`` at the first start."""

    credentials: Path | None = field(default=None, metadata={"flag": "--credentials"})
    """File (0600) that gets an admin's access key if it names none for this controller. Default: none is written."""

    context: str = field(default="default", metadata={"flag": "--context"})
    """Name under which the access key is written. Default ``default``, the first one ``moor`` looks for."""

    reserve: bool = field(default=True, metadata={})
    """Keep a block for the first claim that must wait (law 7). Off, small claims may starve a large one."""

    policy: Path | None = field(default=None, metadata={"flag": "--policy"})
    """Policy file: the order of the queue, what is lent and reclaimed, when claims are moved. Read at the start.
    Default: ``policy.toml`` in the data folder, if there is one.
    """

    log_level: str = field(default="info", metadata={"flag": "--log-level", "environment": "MOORINGS_LOG_LEVEL"})
    """``debug``, ``info``, ``warning`` or ``error``. Default ``info``: one line for each event that admins may look
    for.
    """

    log_format: str = field(default="logfmt", metadata={"flag": "--log-format"})
    """``logfmt`` (one readable line an event) or ``json``. Default ``logfmt``."""

    log_file: Path | None = field(default=None, metadata={"flag": "--log-file"})
    """The log, as a file that is rotated when it is full (three older ones are kept). Default: standard error, for the
    journal; ``moor up`` names ``controller.log`` in the data folder.
    """

    log_file_bytes_max: int = field(default=20_000_000, metadata={"flag": "--log-file-bytes-max"})
    """Size in bytes at which ``log_file`` is rotated; 0: never. Default 20,000,000: 80 MB in all, weeks of events."""

    keep_runs_days: int = field(default=90, metadata={"flag": "--keep-runs-days"})
    """Days for which an ended run's folder with its output is kept; 0: for ever. The run's records stay in the database
    for ``keep_history_days``. Default 90: long enough for a paper's deadline, short enough for a disk.
    """

    keep_history_days: int = field(default=365, metadata={"flag": "--keep-history-days"})
    """Days for which events, and claims and runs that have ended, stay in the database; then they move to ``archive``.
    0: for ever. Idempotency keys stay for ever, as digests. Default 365: accounts are made once a year. A million
    claims take some 4 GB.
    """

    archive: Path | None = field(default=None, metadata={"flag": "--archive"})
    """Folder of the archives: events and ended records that have left the database, in packed files that never change.
    ``moor replay`` reads them. Default: ``archive`` in the data folder, or the ``shared`` one.
    """

    output_bytes_max: int = field(default=OUTPUT_BYTES_MAX, metadata={"flag": "--output-bytes-max"})
    """Bytes that an attempt of a run on this machine may write to its output; each task has the same part. Output
    beyond it is cut, a line in the output says so, and the job runs on. 0: no limit; then one job can fill the disk for
    all. Default 10,000,000,000: 10 GB, more than anybody reads.
    """

    key_lifetime_days: int = field(default=365, metadata={"flag": "--key-lifetime-days"})
    """Days after which a new access key expires, unless another time is given (``moor create key --expires``); 0:
    never. Keys of agents, the first admin's, and those older than this setting never expire by themselves. Default 365:
    forgotten keys expire, and users renew theirs once a year.
    """

    idle_after: str = field(default="30m", metadata={})
    """On a machine that people share: how long a run with devices may use no CPU until its holder is shown that it is
    idle, as ``90s``, ``30m`` or ``2h``. It is never stopped for that. 0: never. Default 30m:
    few programs wait so long for their data.
    """

    idle_admin_after: str = field(default="4h", metadata={})
    """How long until admins are shown it as well, in the same form; not before ``idle_after``. 0: never. Default 4h:
    its holder has had half a day to look.
    """

    slurm: SlurmEngineSettings | None = field(default=None, metadata={})
    """Table ``[slurm]``, only in the file: a Slurm cluster with IPUs for runs (``moor run --engine slurm``). Each
    person's ``moor`` submits them, as that person. With ``folder`` the controller submits them instead, all as its own
    user, who must not be root; ``folder``: of these runs, under the same path on controller and nodes; ``conf``: the
    cluster's slurm.conf, for that controller. ``python``: Python 3.11 or later on the nodes (default: python3), which
    looks at checkpoints there; ``account``, ``partition``, ``qos``: of its jobs, and in ``[slurm.projects.NAME]`` those
    of a project's jobs. A project without a table has the account of its name. Default:
    there is no engine ``slurm``.
    """

    kubernetes: KubernetesEngineSettings | None = field(default=None, metadata={})
    """Table ``[kubernetes]``, only in the file: a Kubernetes cluster with IPUs for runs (``moor run --engine
    kubernetes``), as IPUJobs. ``namespace``: of these, and in ``[kubernetes.projects.NAME]`` of a project's;
    ``kubeconfig`` and ``context``: the credentials, if not those that ``kubectl`` finds; ``[[kubernetes.volumes]]``:
    mounts ``claim`` or ``host_path`` at ``path`` in tasks (and ``read_only``); ``user`` and ``group``: numbers that
    tasks run as (the image's); ``request_cpus``: whether a task requests its CPUs from Kubernetes' scheduler (true);
    ``checkpoint_image``: the image ``launcher`` of the operator's chart, which then looks at checkpoints in the Pods.
    Default: there is no engine ``kubernetes``.
    """

    @property
    def runs_folder(self) -> Path:
        """The folder of the runs' folders."""
        return self.runs or (self.shared or self.data) / RUNS

    @property
    def memory_bytes(self) -> int | None:
        """The memory for jobs in bytes; 0: it is not counted; None: the machine's."""
        return parse_bytes(self.memory) if self.memory else None

    @property
    def idle_limits(self) -> IdleLimits:
        """When a run is idle."""
        return IdleLimits(parse_duration_s(self.idle_after), parse_duration_s(self.idle_admin_after))

    @property
    def archive_folder(self) -> Path:
        """The folder of the archives."""
        return self.archive or (self.shared or self.data) / ARCHIVE


def default_data(environment: Mapping[str, str]) -> Path:
    """The data folder if none is set."""
    if environment.get("STATE_DIRECTORY"):
        return Path(environment["STATE_DIRECTORY"].split(":")[0])
    state = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "/root")) / ".local" / "state")
    return Path(state) / "moorings"


def read_settings(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, at: Path | None = None
) -> Settings:
    """The settings from flags, environment and file.

    Args:
        arguments: the flags.
        environment: the variables; None: this process's.
        at: the folder for relative paths; None: this process's.

    Raises:
        MooringsError: ``config.invalid``, with the file and line, or the flag.
    """
    environment = os.environ if environment is None else environment
    at = at or Path.cwd()
    parser = ArgumentParser(prog="moorings-controller", description="The Moorings controller, in the foreground.")
    parser.add_argument("--config", help=f"settings file (default {DEFAULT_CONFIG}, if it is there)")
    for item in fields(Settings):
        if "flag" in item.metadata and item.name in _BOOLEANS:
            parser.add_argument(item.metadata["flag"], dest=item.name, action="store_true", default=None)
        elif "flag" in item.metadata:
            parser.add_argument(item.metadata["flag"], dest=item.name)
    flags = {name: value for name, value in vars(parser.parse_args(list(arguments))).items() if value is not None}
    flag_of = {item.name: item.metadata.get("flag", "") for item in fields(Settings)}
    values: dict[str, str | int | bool] = {"data": str(default_data(environment))}
    engines: EngineSettings = {}
    config = flags.pop("config", None)
    if config is not None or DEFAULT_CONFIG.exists():
        said, engines = _read_file(at / config if config is not None else DEFAULT_CONFIG)
        values |= said
    for item in fields(Settings):
        variable = str(item.metadata.get("environment", ""))
        if environment.get(variable):
            value = _check_value(item.name, environment[variable], variable)
            values[item.name] = value.lower() == "true" if item.name in _BOOLEANS else value
    for name, value in flags.items():
        values[name] = value if isinstance(value, bool) else _check_value(name, value, flag_of[name])
    return replace(_settings(values, at), **engines)


class EngineSettings(TypedDict, total=False):
    """The engines' tables, if the file has them."""

    slurm: SlurmEngineSettings
    kubernetes: KubernetesEngineSettings


def _read_file(path: Path) -> tuple[dict[str, str | int | bool], EngineSettings]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("config.invalid", f"{path}: {error}") from error
    table = TomlTable.parse(text, source=str(path), code="config.invalid")
    found: dict[str, str | int | bool] = {}
    for item in fields(Settings):
        if not table.has(item.name) or item.name in EngineSettings.__annotations__:
            continue
        if item.name == "port" or item.name in _NUMBERS:
            found[item.name] = table.integer(item.name)
        elif item.name in _BOOLEANS:
            found[item.name] = table.boolean(item.name)
        else:
            found[item.name] = table.text(item.name)
        _check_value(item.name, str(found[item.name]), table.location(item.name))
    engines: EngineSettings = {}
    if table.has("slurm"):
        engines["slurm"] = SlurmEngineSettings.read(table.table("slurm"))
    if table.has("kubernetes"):
        engines["kubernetes"] = KubernetesEngineSettings.read(table.table("kubernetes"))
    table.reject_unknown_keys()
    return found, engines


def _check_value(name: str, value: str, origin: str) -> str:
    """Return ``value`` if it is valid for the setting.

    Raises:
        MooringsError: ``config.invalid``; ``effective_settings`` is its file and line, its variable or its flag.
    """
    if name == "port" and not (_PORT.fullmatch(value) and int(value) <= 65_535):
        problem, hint = f"port {value[:20]!r} is not 0 to 65535", "0 takes any free one"
    elif name == "log_level" and value not in LOG_LEVELS:
        problem, hint = f"log level {value[:20]!r} is not known", f"use {', '.join(LOG_LEVELS)}"
    elif name == "log_format" and value not in LOG_FORMATS:
        problem, hint = f"log format {value[:20]!r} is not known", f"use {' or '.join(LOG_FORMATS)}"
    elif name in _NUMBERS and not _NUMBER.fullmatch(value):
        problem, hint = f"{name} {value[:20]!r} is no whole number", "write a number; 0 switches it off"
    elif name in _BOOLEANS and value.lower() not in ("true", "false"):
        problem, hint = f"{name} {value[:20]!r} is neither true nor false", "write true or false"
    elif name == "key_lifetime_days" and int(value) > LIFETIME_DAYS_MAX:
        problem, hint = f"{name} {value[:20]!r} is too long", f"write {LIFETIME_DAYS_MAX} at most, or 0: never"
    elif name == "memory" and value and not _is_size(value):
        problem, hint = f"memory {value[:20]!r} is no size", "write 200G or 512M; 0 switches it off"
    elif name in _DURATIONS and not _is_duration(value):
        problem, hint = f"{name} {value[:20]!r} is no duration", "write 90s, 30m or 2h; 0 switches it off"
    elif name == "database" and value and not _DATABASE.fullmatch(value):
        # Not shown: it may hold a password.
        problem, hint = "the database is no postgresql:// URL", "leave it out for SQLite in the data folder"
    elif name == "advertise" and value and not _ADVERTISED.fullmatch(value):
        problem, hint = f"{value[:80]!r} is no address", "write http://host:port, or https://host:port"
    elif name in _PATHS and not _is_path(value):
        problem, hint = f"{name} {value[:80]!r} is no path", "write an absolute path, or one that begins with ~/"
    else:
        return value
    raise MooringsError("config.invalid", f"{origin}: {problem}", hint=hint)


def _is_size(text: str) -> bool:
    try:
        parse_bytes(text)
    except MooringsError:
        return False
    return True


def _is_duration(text: str) -> bool:
    try:
        parse_duration_s(text)
    except MooringsError:
        return False
    return True


def _is_path(text: str) -> bool:
    try:
        Path(text).expanduser()
    except RuntimeError:  # ~nobody
        return False
    return bool(text) and "\0" not in text


def _settings(values: Mapping[str, str | int | bool], at: Path) -> Settings:
    text = {name: str(value) for name, value in values.items()}
    paths = {name: at / Path(text[name]).expanduser() for name in _PATHS if name in text}
    return Settings(
        data=paths["data"],
        database=text.get("database", ""),
        shared=paths.get("shared"),
        runs=paths.get("runs"),
        sockets=paths.get("sockets"),
        archive=paths.get("archive"),
        local_runs=bool(values.get("local_runs", True)),
        jobs_as_root=bool(values.get("jobs_as_root", False)),
        cpus=int(text["cpus"]) if "cpus" in text else None,
        memory=text.get("memory", ""),
        advertise=text.get("advertise", "").rstrip("/"),
        host=text.get("host", "127.0.0.1"),
        port=int(text.get("port", "8090")),
        tls_cert=paths.get("tls_cert"),
        tls_key=paths.get("tls_key"),
        tls_client_ca=paths.get("tls_client_ca"),
        tls_ca=paths.get("tls_ca"),
        plain_http=bool(values.get("plain_http", False)),
        pools=paths.get("pools"),
        credentials=paths.get("credentials"),
        context=text.get("context", "default"),
        reserve=bool(values.get("reserve", True)),
        policy=paths.get("policy"),
        log_level=text.get("log_level", "info"),
        log_format=text.get("log_format", "logfmt"),
        log_file=paths.get("log_file"),
        log_file_bytes_max=int(text.get("log_file_bytes_max", "20000000")),
        keep_runs_days=int(text.get("keep_runs_days", "90")),
        keep_history_days=int(text.get("keep_history_days", "365")),
        output_bytes_max=int(text.get("output_bytes_max", str(OUTPUT_BYTES_MAX))),
        key_lifetime_days=int(text.get("key_lifetime_days", "365")),
        idle_after=text.get("idle_after", "30m"),
        idle_admin_after=text.get("idle_admin_after", "4h"),
    )
