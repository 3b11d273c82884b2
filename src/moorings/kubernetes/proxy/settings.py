"""The settings of the proxy, and the list of controllers, which is reloaded when it changes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.client.transport import Endpoint
from moorings.core.model.errors import MooringsError

LIST_BYTES_MAX = 1 << 20
CALL_S = 10.0  # a controller that sends nothing for so long counts as away
CONTROLLERS_MAX = 64
KEY_FILE = "access-key"

_ENTRY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):([0-9]{1,5})(?::(.*))?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"[!-~]{1,300}")
_SHAPE = (
    "write host:port:key=value, as pod1:8090:ipunode=pod1; the label of its nodes may be left out; !host:port: it is "
    "gone for good"
)


@dataclass(frozen=True, slots=True)
class ControllerEntry:
    """One controller of the list.

    Attributes:
        host: its name or address.
        port: its TCP port.
        labels: of the nodes that reach its accelerators; empty: every node does.
        is_removed: it is gone permanently (``!host:port``); its claims are dropped while it does not respond.
    """

    host: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    is_removed: bool = False

    @property
    def name(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class ProxySettings:
    """All settings of one proxy.

    Attributes:
        cluster: name of this Kubernetes cluster in owners of claims.
        cluster_uid: distinguishes it from others of that name; empty: read from the API server.
        controllers_file: the list of controllers; reloaded when it changes.
        keys_folder: of the access keys: ``<host>_<port>``, or ``access-key`` for all.
        ca_file: PEM file of the authority behind the controllers' certificates; None: plain HTTP.
        cert_file: PEM file of our own certificate, ``key_file`` of its key; for controllers that ask for one.
        projects: project of a namespace, if their names differ.
        host: address to listen on.
        port: TCP port for HTTP without TLS; 0: any free one.
        tls_port: TCP port for HTTPS, 0: any free one; None: there is no TLS, and ``port`` serves everything.
        plain: whether ``port`` serves the open paths beside TLS; else it only points to HTTPS.
        operators: service accounts that may do everything: ``system:serviceaccount:<namespace>:<name>``.
        namespace: of the tracker ConfigMap; empty: none is written.
        tracker: its name.
        idle_s: how long an idle connection is kept.
        read_s: how long a request may take to arrive.
        write_s: how long a client may take to read a response; a watch ends then, and continues with a new request.
        connections_max: open connections.
    """

    cluster: str
    controllers_file: Path
    cluster_uid: str = ""
    keys_folder: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    projects: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    port: int = 8080
    tls_port: int | None = None
    plain: bool = False
    operators: frozenset[str] = frozenset()
    namespace: str = ""
    tracker: str = "ipu-partitions-tracker"
    idle_s: float = 60.0
    read_s: float = 30.0
    write_s: float = 300.0
    connections_max: int = 2048


def parse_controllers(text: str) -> tuple[ControllerEntry, ...]:
    """The controllers of a list, in its order: entries between commas or on their own lines.

    Raises:
        MooringsError: ``config.invalid``, naming the entry.
    """
    entries = [_parse_entry(part.strip()) for part in re.split(r"[,\n]", text) if part.strip()]
    if len(entries) > CONTROLLERS_MAX:
        raise MooringsError("config.invalid", f"there are {len(entries)} controllers; at most {CONTROLLERS_MAX}")
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MooringsError("config.invalid", f"the controller {twice} is listed twice", hint="list it once")
    return tuple(entries)


def _parse_entry(text: str) -> ControllerEntry:
    gone = text.startswith("!")
    match = _ENTRY.fullmatch(text.removeprefix("!").lstrip())
    if match is None:
        raise _wrong(text, "it is not host:port:key=value")
    host, port, label = match.groups()
    if not _HOST.fullmatch(host):
        raise _wrong(text, f"{host[:80]!r} is no host")
    if not 1 <= int(port) <= 65535:
        raise _wrong(text, f"{port} is no TCP port")
    return ControllerEntry(host, int(port), _parse_label(text, label) if label else {}, gone)


def _parse_label(entry: str, label: str) -> dict[str, str]:
    key, equals, value = label.partition("=")
    if not equals:
        raise _wrong(entry, f"{label[:80]!r} is no label key=value")
    if not _LABEL_KEY.fullmatch(key):
        raise _wrong(entry, f"{key[:80]!r} is no label's key")
    if not _LABEL_VALUE.fullmatch(value):
        raise _wrong(entry, f"{value[:80]!r} is no label's value")
    return {key: value}


def _wrong(entry: str, why: str) -> MooringsError:
    return MooringsError("config.invalid", f"controller {entry[:120]!r} of the list cannot be used: {why}", hint=_SHAPE)


def parse_projects(text: str) -> dict[str, str]:
    """Projects by namespace: a JSON object, or ``namespace=project`` between commas or on their own lines.

    Raises:
        MooringsError: ``config.invalid``.
    """
    if text.lstrip().startswith("{"):
        return _parse_project_object(text)
    found = {}
    for part in re.split(r"[,\n]", text):
        if part.strip():
            namespace, equals, project = (word.strip() for word in part.partition("="))
            if not equals or not namespace or not project:
                raise _no_project(part.strip())
            found[namespace] = project
    return found


def _parse_project_object(text: str) -> dict[str, str]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise MooringsError("config.invalid", "the projects of namespaces are not JSON") from None
    for namespace, project in data.items():
        if not namespace or not isinstance(project, str) or not project:
            raise _no_project(f"{namespace}: {project!r}")
    return dict(data)


def _no_project(text: str) -> MooringsError:
    return MooringsError(
        "config.invalid", f"{text[:80]!r} is no project of a namespace", hint="write namespace=project"
    )


def read_controllers(settings: ProxySettings) -> tuple[tuple[ControllerEntry, Endpoint], ...]:
    """The controllers of the present files, each with its address and credentials.

    Raises:
        MooringsError: ``config.invalid``: the list or a key cannot be used.
    """
    return tuple((entry, endpoint_of(settings, entry)) for entry in parse_controllers(_read(settings.controllers_file)))


def endpoint_of(settings: ProxySettings, entry: ControllerEntry) -> Endpoint:
    """The address of a controller, with our credentials.

    Raises:
        MooringsError: ``config.invalid``: its access key cannot be used.
    """
    scheme = "http" if settings.ca_file is None else "https"
    return Endpoint(
        f"{scheme}://{entry.name}",
        access_key=_access_key(settings.keys_folder, entry),
        ca_file=str(settings.ca_file or ""),
        cert_file=str(settings.cert_file or ""),
        key_file=str(settings.key_file or ""),
        timeout_s=CALL_S,
    )


def _access_key(folder: Path | None, entry: ControllerEntry) -> str:
    if folder is None:
        return ""
    own = folder / f"{entry.host.strip('[]').replace(':', '_')}_{entry.port}"
    file = own if own.exists() else folder / KEY_FILE
    if not file.exists():
        return ""
    key = _read(file).strip()
    if not _KEY.fullmatch(key):
        raise MooringsError("config.invalid", f"{file} holds no access key", hint="its text is that of one access key")
    return key


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            read = opened.read(LIST_BYTES_MAX + 1)
        if len(read) > LIST_BYTES_MAX:
            raise MooringsError("config.invalid", f"{file} is larger than {LIST_BYTES_MAX} bytes")
        return read.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("config.invalid", f"{file} cannot be read: {format_cause(error)}") from error
