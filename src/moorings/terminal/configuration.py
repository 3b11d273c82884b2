"""The controller's address and key: flag, then environment, then files, then default; with each value's origin.

No library: settings libraries bring pydantic. Files are read strictly (``core.model.toml_table``), so a mistyped key is
refused with its line and not ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.toml_table import TomlTable
from moorings.privileged import places
from moorings.terminal.durations import parse_seconds

SYSTEM_FILE = Path("/etc/moorings/client.toml")
MACHINE_SOCKET = places.SOCKETS / places.API  # of a machine that people share
DEFAULT_CONTEXT = "default"
DEFAULT_SERVER = "http://127.0.0.1:8090"
RECORD_NAME = "controller.json"  # in the data folder: the controller that 'moor up' has started

_IN_CONTEXT = ("server", "project", "ca_file", "cert_file", "key_file", "server_user")
_WITH_KEY = ("server", "access_key", "ca_file", "cert_file", "key_file", "server_user")  # in the credentials file
_AT_TOP = (*_IN_CONTEXT, "output", "timeout", "color")
NAMES = ("context", "server", "access_key", *_IN_CONTEXT[1:], "output", "timeout", "color")

# The defaults. Timeout: long enough for a busy controller, short enough to notice a dead one.
DEFAULTS = {
    "context": DEFAULT_CONTEXT,
    "server": DEFAULT_SERVER,
    "access_key": "",
    "project": "default",
    "ca_file": "",
    "cert_file": "",
    "key_file": "",
    "server_user": "",
    "output": "table",
    "timeout": "30s",
    "color": "auto",
}


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting and its origin."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The settings of one source: by name, and by context and name."""

    origin: str
    top: Mapping[str, str]
    contexts: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting with its origin."""

    values: Mapping[str, SettingValue]

    def text(self, name: str) -> str:
        """The value of a setting."""
        return self.values[name].text

    @property
    def timeout_s(self) -> float:
        """The request timeout in seconds.

        Raises:
            MooringsError: ``duration.invalid``.
        """
        value = self.values["timeout"]
        if value.origin.startswith("flag"):
            return parse_seconds(value.text)
        return parse_duration_s(value.text, bare_s=1.0)  # files of older releases say 30


def flag_of(name: str) -> str:
    """The flag of a setting; empty if there is none (a secret has none: others can see command lines)."""
    if name in ("access_key", "cert_file", "key_file", "server_user"):
        return ""
    flags = {"timeout": "--request-timeout", "output": "-o"}
    return flags.get(name, f"--{name.replace('_', '-')}")


def config_folder(environment: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/moorings``, usually ``~/.config/moorings``."""
    root = environment.get("XDG_CONFIG_HOME", "")
    return (Path(root) if root.startswith("/") else home(environment) / ".config") / "moorings"


def credentials_file(environment: Mapping[str, str]) -> Path:
    """``$MOORINGS_CREDENTIALS``, else ``credentials.toml`` in the configuration folder."""
    chosen = environment.get("MOORINGS_CREDENTIALS")
    return Path(chosen) if chosen else config_folder(environment) / "credentials.toml"


def data_folder(environment: Mapping[str, str]) -> Path:
    """The data folder of a controller on this machine: ``$MOORINGS_DATA``, else ``$XDG_STATE_HOME/moorings``."""
    chosen = environment.get("MOORINGS_DATA")
    if chosen:
        return Path(chosen).absolute()
    root = environment.get("XDG_STATE_HOME", "")
    return (Path(root) if root.startswith("/") else home(environment) / ".local" / "state") / "moorings"


def home(environment: Mapping[str, str]) -> Path:
    """The user's home folder."""
    return Path(environment.get("HOME") or "~").expanduser()


def load_configuration(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    system_file: Path = SYSTEM_FILE,
    machine_socket: Path = MACHINE_SOCKET,
) -> Configuration:
    """The configuration in effect. Without a server, that of a machine that people share is the one at its socket.

    Raises:
        MooringsError: ``config.invalid`` (with file and line), ``credentials.unsafe``.
    """
    files = [_config_layer(path) for path in _config_files(flags, environment, system_file)]
    credentials = _credentials_layer(credentials_file(environment))
    layers = [ConfigSource("flag", flags, {}), _environment_layer(environment), *filter(None, files)]
    layers += [credentials] if credentials is not None else []
    context = _resolve("context", "", layers)
    if context.origin != "default":
        _check_context(context, layers)
    values = {name: _resolve(name, context.text, layers) for name in NAMES[1:]}
    if values["server"].origin == "default" and machine_socket.is_socket():
        values["server"] = SettingValue(f"unix://{machine_socket}", "this machine's socket")
    values["access_key"] = _withhold_foreign_key(values["access_key"], values["server"], credentials, context.text)
    return Configuration({"context": context, **values})


def read_private(path: Path) -> str:
    """The text of a file that holds a secret.

    Raises:
        MooringsError: ``credentials.unsafe`` if another user owns it or others can read it; ``config.invalid`` if it
            cannot be read at all.
    """
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid():
                raise MooringsError(
                    "credentials.unsafe",
                    f"{path} belongs to user {status.st_uid}, not to you",
                    hint="keep a file of your own",
                )
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                raise MooringsError(
                    "credentials.unsafe",
                    f"{path} has mode {mode}: others may use it",
                    hint=permission_hint(path, status.st_mode),
                )
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("config.invalid", f"{path} cannot be read: {format_cause(error)}") from error


def permission_hint(path: Path, mode: int) -> str:
    """How to protect a secret from others: another mode for a file, but never for a device or another user's pipe."""
    return f"chmod 600 {path}" if stat.S_ISREG(mode) else "name a regular file that only you may read"


def context_servers(environment: Mapping[str, str]) -> dict[str, str]:
    """The server of each context of the credentials file that has a key, by the context's name.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """
    layer = _credentials_layer(credentials_file(environment))
    contexts = layer.contexts if layer is not None else {}
    return {name: entry["server"] for name, entry in contexts.items() if {"server", "access_key"} <= set(entry)}


def check_context(name: str, flags: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Check that a context of that name exists.

    Raises:
        MooringsError: ``config.invalid``, with the existing ones; or a file cannot be read.
    """
    files = [_config_layer(path) for path in _config_files(flags, environment, SYSTEM_FILE)]
    credentials = _credentials_layer(credentials_file(environment))
    known = sorted({context for layer in (*files, credentials) if layer is not None for context in layer.contexts})
    if name not in known:
        raise _no_context(f"there is no context {name!r}", known)


def _config_files(flags: Mapping[str, str], environment: Mapping[str, str], system_file: Path) -> list[Path]:
    chosen = flags.get("config") or environment.get("MOORINGS_CONFIG")
    if chosen and not Path(chosen).is_file():
        raise MooringsError("config.invalid", f"there is no configuration file {chosen}")
    usual = [config_folder(environment) / "config.toml", system_file]
    return [*([Path(chosen)] if chosen else []), *(path for path in usual if path.is_file())]


def _config_layer(path: Path) -> ConfigSource:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("config.invalid", f"{path} cannot be read: {format_cause(error)}") from error
    top = TomlTable.parse(text, source=str(path), code="config.invalid")
    settings = {name: top.text(name) for name in ("context", *_AT_TOP) if top.text(name, "")}
    return ConfigSource(str(path), settings, _contexts(top, _IN_CONTEXT))


def _credentials_layer(path: Path) -> ConfigSource | None:
    if not path.exists():
        return None
    top = TomlTable.parse(read_private(path), source=str(path), code="config.invalid")
    return ConfigSource(str(path), {}, _contexts(top, _WITH_KEY))


def _contexts(top: TomlTable, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found = top.named("contexts", lambda of: {name: of.text(name) for name in names if of.text(name, "")})
    top.reject_unknown_keys()
    return found


def _environment_layer(environment: Mapping[str, str]) -> ConfigSource:
    found = {}
    for name in NAMES:
        variable = f"MOORINGS_{name.upper()}"
        if environment.get(variable):
            found[name] = environment[variable]
        elif name == "access_key" and environment.get(f"{variable}_FILE"):
            found[name] = read_private(Path(environment[f"{variable}_FILE"])).strip()
    return ConfigSource("environment", found, {})


def _resolve(name: str, context: str, layers: list[ConfigSource]) -> SettingValue:
    for layer in layers:
        if layer.contexts.get(context, {}).get(name):
            return SettingValue(layer.contexts[context][name], f"{layer.origin} [contexts.{context}]")
        if layer.top.get(name):
            return SettingValue(layer.top[name], _origin(layer, name))
    return SettingValue(DEFAULTS[name], "default")


def _origin(layer: ConfigSource, name: str) -> str:
    if layer.origin == "flag":
        return f"flag {flag_of(name)}"
    if layer.origin == "environment":
        return f"environment MOORINGS_{name.upper()}"
    return layer.origin


def _check_context(context: SettingValue, layers: list[ConfigSource]) -> None:
    known = sorted({name for layer in layers for name in layer.contexts})
    if context.text not in known:
        raise _no_context(f"there is no context {context.text!r} (named by {context.origin})", known)


def _no_context(detail: str, known: list[str]) -> MooringsError:
    hint = f"there are: {', '.join(known)}" if known else "no file defines a context; 'moor up' makes one"
    return MooringsError("config.invalid", detail, hint=hint)


def _withhold_foreign_key(
    key: SettingValue, server: SettingValue, credentials: ConfigSource | None, context: str
) -> SettingValue:
    """The key, unless it belongs to another server than the one in a flag or in the environment."""
    if credentials is None or not key.origin.startswith(credentials.origin):
        return key
    belongs_to = credentials.contexts.get(context, {}).get("server", "")
    named_now = server.origin.startswith(("flag", "environment"))
    if not named_now or not belongs_to or belongs_to.rstrip("/") == server.text.rstrip("/"):
        return key
    return SettingValue("", f"not used: the key in {credentials.origin} belongs to {belongs_to}")
