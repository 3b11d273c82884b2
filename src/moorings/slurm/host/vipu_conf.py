"""``vipu.conf`` beside ``slurm.conf``: the agent's way to the controller, and the limits of jobs.

The keys, their defaults and the secure mode are those of the V-IPU plugin's manual (V-IPU user guide, section 5.2), in
the syntax of Slurm's own files, so a site's old file works unchanged. We add few keys: ``ApiAccessKeyFile`` (a secret
in a file of its own, for rotation), ``Pool`` (a controller may have several), ``AgentPort`` (the port for the nodes).
Only the agent and root read the file: it holds a key, and the SPANK plugin also runs as the user.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from moorings.client.transport import Endpoint
from moorings.core.model.errors import MooringsError
from moorings.slurm.slurm_conf import parse_slurm_conf

FILE_NAME = "vipu.conf"
SERVER_USER = "MOORINGS_SERVER_USER"  # of a controller on this machine, as for moor: the file has the seed's keys alone
AGENT_PORT = 8091
TIMEOUT_S = 50
DEFAULT_SLURM_CONF = Path("/etc/slurm/slurm.conf")
CACHED_SLURM_CONF = Path("/run/slurm/conf/slurm.conf")  # slurmd's or sackd's copy from slurmctld
BYTES_MAX = 64 << 10
IPUS_MAX = 65_536

_KEY = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=[ \t]*")
_QUOTED = re.compile(r'"([^"]*)"(?=\s|$)')
_BARE = re.compile(r'[^\s"]+(?=\s|$)')
_COMMENT = re.compile(r'^((?:[^"#\\]|\\.|\\$|"[^"]*")*)#')
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,39}")
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORDS = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class VipuConf:
    """The file's values.

    Attributes:
        api_host: of the controller; ``api_port`` is its TCP port.
        ipuof_dir: folder of a job's IPUoF files on nodes; None: jobs get variables instead of files.
        max_ipus: maximum number of devices of one job.
        timeout_s: how long a started job may wait for its partition; less than its node's wait.
        secure: whether to use TLS, with the certificate and key of ``client_cert`` and ``client_key``.
        user: owner of the access key; the client certificate has the same name.
        access_key: the key itself; empty if it is in ``access_key_file``, or missing.
        server_cert: the CA certificate to verify the controller's.
        pool: for jobs; empty: the controller chooses.
        agent_port: TCP port of the agent for nodes.
    """

    api_host: str
    api_port: int = 8090
    ipuof_dir: Path | None = None
    max_ipus: int = 256
    timeout_s: int = TIMEOUT_S
    secure: bool = False
    user: str = ""
    access_key: str = field(default="", repr=False)
    access_key_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    server_cert: Path | None = None
    pool: str = ""
    agent_port: int = AGENT_PORT

    @property
    def server(self) -> str:
        """Return the controller's URL."""
        host = f"[{self.api_host}]" if ":" in self.api_host else self.api_host
        return f"{'https' if self.secure else 'http'}://{host}:{self.api_port}"

    def endpoint(self, timeout_s: float, server_user: str = "") -> Endpoint:
        """Return the endpoint of the controller for the agent and for tools that check in its place.

        Args:
            timeout_s: of a response.
            server_user: the controller's, if it is on this machine and of a user of its own (``Endpoint``).
        """
        return Endpoint(
            server=self.server,
            access_key=self.access_key,
            ca_file=str(self.server_cert or ""),
            cert_file=str(self.client_cert or ""),
            key_file=str(self.client_key or ""),
            timeout_s=timeout_s,
            server_user=server_user,
        )


def slurm_conf_path(environment: Mapping[str, str], reported: Path = DEFAULT_SLURM_CONF) -> Path:
    """Return the ``slurm.conf`` that Slurm's own commands read, found in their way.

    Args:
        environment: of the commands.
        reported: slurmctld's path. Without any file, the commands fetch it each time, and this path is the result.
    """
    if named := environment.get("SLURM_CONF"):
        return Path(named)
    return next((path for path in (reported, DEFAULT_SLURM_CONF, CACHED_SLURM_CONF) if path.exists()), reported)


def is_own_conf(conf: Path) -> bool:
    """Whether a ``slurm.conf`` is the machine's own, not slurmctld's copy (configless) of slurmd or sackd."""
    cached = conf.parent == CACHED_SLURM_CONF.parent or conf.resolve().parent.name == "conf-cache"
    return conf.exists() and not cached


def vipu_conf_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the file: beside ``slurm.conf``."""
    return slurm_conf_path(environment).with_name(FILE_NAME)


def slurm_uid(conf: Path) -> int:
    """Return SlurmUser's uid from a ``slurm.conf``, for when slurmctld cannot be asked; 0 if unknown."""
    try:
        user = parse_slurm_conf(conf.read_text("utf-8", "replace")).get("slurmuser", "root")
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except (OSError, KeyError):
        return 0


def load_vipu_conf(path: Path, slurm_user: int = 0) -> VipuConf:
    """Return the file's values, with an access key in ``ApiAccessKeyFile``.

    Args:
        path: the file's.
        slurm_user: uid of SlurmUser; root accepts its files, too, because the agent runs as that user.

    Raises:
        MooringsError: ``config.invalid``, naming file, line, key and what is allowed; ``credentials.unsafe`` if users
            other than root, this one and (for root) SlurmUser can read or write it.
    """
    owners = {0, os.geteuid()} | ({slurm_user} if os.geteuid() == 0 else set())
    conf = parse_vipu_conf(_read_private(path, owners), str(path))
    if conf.access_key_file is None:
        return conf
    key = _read_private(conf.access_key_file, owners).strip()
    if not key or not key.isprintable() or " " in key:
        raise MooringsError("config.invalid", f"{conf.access_key_file}: it does not hold one access key")
    return replace(conf, access_key=key)


def parse_vipu_conf(text: str, source: str) -> VipuConf:
    """Return the values of a ``vipu.conf``.

    Args:
        text: the file's.
        source: its name, for messages.

    Raises:
        MooringsError: ``config.invalid``. Values that may be secret are never in the message.
    """
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for number, key, value in _pairs(text, source):
        known = _KEYS.get(key.lower())
        if known is None:
            allowed = ", ".join(each.name for each in _KEYS.values())
            _raise_invalid(source, number, f"{key[:40]} is no key of this file", f"the keys are {allowed}")
        if known.field in values:
            _raise_invalid(source, number, f"{known.name} stands twice, first in line {lines[known.field]}", "keep one")
        read = known.read(value)
        if read is None:
            shown = "" if known.secret else f" {value[:80]!r}"
            _raise_invalid(source, number, f"{known.name}{shown} is not allowed", f"{known.name} is {known.allowed}")
        values[known.field], lines[known.field] = read, number
    _check_whole(values, lines, source)
    # Each key's reader gives the type of its field.
    return VipuConf(**values)


@dataclass(frozen=True, slots=True)
class _ConfKey:
    name: str
    field: str
    read: Callable[[str], str | int | bool | Path | None]  # None: invalid
    allowed: str
    secret: bool = False


def _number(low: int, high: int) -> Callable[[str], int | None]:
    return lambda text: int(text) if _NUMBER.fullmatch(text) and low <= int(text) <= high else None


def _matching(form: re.Pattern[str]) -> Callable[[str], str | None]:
    return lambda text: text if form.fullmatch(text) else None


def _path(text: str) -> Path | None:
    return Path(text) if text.startswith("/") and text.isprintable() else None


def _word(text: str) -> str | None:
    return text if text and text.isprintable() and " " not in text else None


_PORT = _number(1, 65_535)
_FILE = "an absolute path"

_KEYS = {
    key.name.lower(): key
    for key in (
        _ConfKey("ApiHost", "api_host", _matching(_HOST), "a host name or an IP address"),
        _ConfKey("ApiPort", "api_port", _PORT, "a TCP port, 1 to 65535"),
        _ConfKey("IpuofDir", "ipuof_dir", _path, "an absolute path; without it jobs get variables instead of files"),
        _ConfKey("MaxIpusPerJob", "max_ipus", _number(1, IPUS_MAX), f"a whole number, 1 to {IPUS_MAX}"),
        _ConfKey("ApiTimeout", "timeout_s", _number(1, 3599), "a whole number of seconds, 1 to 3599"),
        _ConfKey("IsSecure", "secure", lambda text: _WORDS.get(text.lower()), "yes or no"),
        _ConfKey("ApiUser", "user", _word, "a user name, as 'moor get keys' shows it"),
        _ConfKey("ApiAccessKey", "access_key", _word, "an access key, without blanks", secret=True),
        _ConfKey("ApiAccessKeyFile", "access_key_file", _path, _FILE),
        _ConfKey("ClientCertFile", "client_cert", _path, _FILE),
        _ConfKey("ClientKeyFile", "client_key", _path, _FILE),
        _ConfKey("ServerCertFile", "server_cert", _path, _FILE),
        _ConfKey("Pool", "pool", _matching(_POOL), "the name of a pool, as 'moor get pools' shows it"),
        _ConfKey("AgentPort", "agent_port", _PORT, "a TCP port, 1 to 65535"),
    )
}
_NAMES = {key.field: key.name for key in _KEYS.values()}
_SECURE = ("user", "client_cert", "client_key", "server_cert")


def _check_whole(values: Mapping[str, object], lines: Mapping[str, int], source: str) -> None:
    if "api_host" not in values:
        raise MooringsError(
            "config.invalid", f"{source}: ApiHost is missing", hint="ApiHost=HOST names the controller's machine"
        )
    if "access_key" in values and "access_key_file" in values:
        _raise_invalid(
            source, lines["access_key_file"], "ApiAccessKey and ApiAccessKeyFile both stand here", "keep one"
        )
    if not values.get("secure"):
        return
    missing = [_NAMES[name] for name in _SECURE if name not in values]
    if "access_key" not in values and "access_key_file" not in values:
        missing.append("ApiAccessKey (or ApiAccessKeyFile)")
    if missing:
        _raise_invalid(
            source,
            lines["secure"],
            f"IsSecure=yes needs {', '.join(missing)}",
            "'moor pki issue' makes the certificates, 'moor create key' the access key",
        )


def _pairs(text: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and value of each setting, by Slurm's rules: several a line, quotes, comments, continuations."""
    for number, line in _whole_lines(text):
        at = 0
        while line[at:].strip():
            key = _KEY.match(line, at)
            if key is None:
                _raise_invalid(
                    source, number, "this is no KEY=VALUE", "write one as ApiHost=HOST, and comments behind #"
                )
            value = _QUOTED.match(line, key.end()) or _BARE.match(line, key.end())
            if value is None:
                hint = 'write KEY=VALUE, or KEY="a value with blanks"'
                _raise_invalid(source, number, f"{key[1][:40]} has no value that can be read", hint)
            yield number, key[1], value[1] if value.re is _QUOTED else value[0].replace("\\#", "#")
            at = value.end()


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, each joined with its continuation lines after a backslash."""
    begun, start = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        start = start or number
        comment = _COMMENT.match(line)
        begun += comment[1] if comment else line.rstrip("\r")
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        yield start, begun
        begun, start = "", 0
    if begun:
        yield start, begun


def _name_of(uid: int) -> str:
    """Return a user's name for a command to type; the uid without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _raise_invalid(source: str, line: int, problem: str, hint: str) -> NoReturn:
    raise MooringsError("config.invalid", f"{source}:{line}: {problem}", hint=hint)


def _read_private(path: Path, owners: Collection[int]) -> str:
    """Return the text of a file that only its owner, one of these users, and root can read or change.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MooringsError("config.invalid", f"{path} is no file")
            if status.st_uid not in owners:
                hint = f"it may hold a key: chown {_name_of(max(owners))} {path}"
                raise MooringsError("credentials.unsafe", f"{path} belongs to user {status.st_uid}", hint=hint)
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                hint = f"chmod 600 {path}; if others could read its key, make a new one"
                raise MooringsError("credentials.unsafe", f"{path} has mode {mode}, it may hold a key", hint=hint)
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        hint = "make it beside slurm.conf, mode 0600" if isinstance(error, FileNotFoundError) else ""
        if isinstance(error, PermissionError):
            hint = "only root and its owner can read it: it must belong to whom the agent runs as, SlurmUser"
        raise MooringsError("config.invalid", f"{path} cannot be read: {error.strerror}", hint=hint) from error
    if len(text) > BYTES_MAX:
        raise MooringsError("config.invalid", f"{path} is longer than {BYTES_MAX} bytes")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MooringsError("config.invalid", f"{path} is not UTF-8, at byte {error.start}") from error
