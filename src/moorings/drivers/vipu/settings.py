"""Settings of a pool behind a V-IPU controller: the table ``[pool.vipu]`` of the pools file.

Where public texts do not tell the behaviour of a release of the ``vipu`` command, there is a setting for it (the IPUs
of a partition, the identity of an IPU, the option that prints an IPUoF file), so that a site can correct our guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from moorings.core.model.toml_table import TomlTable

TIME_S_MAX = 86_400.0
PARALLEL_MAX = 64
TEXT_CHARS_MAX = 4096
PLACEHOLDERS = ("name", "start", "end", "size", "index")

Ipuof = Literal["file", "api"]

_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_WORD = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._:-]{0,199}")  # never an option
_OPTION = re.compile(r"--[a-z][a-z0-9-]{0,60}")
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VipuSettings:
    """The address of a pool's V-IPU controller, and the usage of its release of ``vipu``.

    Attributes:
        api_host: the V-IPU controller's address; also part of a binding in API form.
        api_port: its port for users.
        command: the `vipu` command, by name or absolute path.
        timeout_s: seconds before a command that changes a partition (create, reset, delete) is killed; poprun's
            default.
        question_timeout_s: seconds before a command that reads (list, get) is killed.
        parallel: how many `vipu` processes may run at once; a hung controller must not fill the machine with them.
        config: a configuration file of the vendor's (as `vipu-admin create user` writes), used unchanged, in place of
            the one that Moorings makes from `api_host`, `api_port` and the five keys of secure mode. Must be private:
            0600.
        api_user: user id in secure mode; with `api_key_file`.
        api_key_file: file with that user's access key alone; must be private: 0600.
        client_cert_file: our certificate (PEM) in secure mode; with `client_key_file`.
        client_key_file: its key; must be private: 0600.
        server_cert_file: certificate to verify the V-IPU controller.
        allocation: the allocation for partitions; empty: the controller chooses.
        cluster: the V-IPU cluster that this pool is; may be empty where the controller shows only one.
        clusters_file: file with the output of `vipu-admin --showjson list clusters`, for controllers that show clusters
            to admins only; empty: ask `vipu`.
        ipu_keys: the keys that identify an IPU in the vendor's JSON; empty: its whole value.
        reconfigurable: create partitions of one GCD with `--reconfigurable`.
        create_arguments: further arguments for `vipu create partition`; `{name}`, `{start}`, `{end}` (first and last
            device), `{size}` and `{index}` (number of the block among those of that size: start / size) are replaced.
        ipuof: `"file"`: jobs get an IPUoF file for each GCD, or the API form without a folder for files; `"api"`:
            always the API form.
        ipuof_option: the option of `vipu get partition` that prints a GCD's IPUoF file.
        ipuof_timeout_s: how long a job's runtime may wait for the V-IPU controller, in whole seconds; poprun's default.
            Large partitions need up to 3600.
    """

    api_host: str = "127.0.0.1"
    api_port: int = 8090
    command: str = "vipu"
    timeout_s: float = 120.0
    question_timeout_s: float = 20.0
    parallel: int = 4
    config: str = ""
    api_user: str = ""
    api_key_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    server_cert_file: str = ""
    allocation: str = ""
    cluster: str = ""
    clusters_file: str = ""
    ipu_keys: tuple[str, ...] = ()
    reconfigurable: bool = True
    create_arguments: tuple[str, ...] = ()
    ipuof: Ipuof = "file"
    ipuof_option: str = "--ipuof-configs"
    ipuof_timeout_s: int = 120

    @classmethod
    def read(cls, table: TomlTable) -> VipuSettings:
        """Return the settings in a pool's table.

        Raises:
            MooringsError: the table's code (``pools.invalid``); the message names file, line and key.
        """
        usual = cls()
        settings = cls(
            api_host=_matching(table, "api_host", usual.api_host, _HOST, "a host name or address"),
            api_port=_within(table, "api_port", usual.api_port, 65_535),
            command=_command(table, usual.command),
            timeout_s=_time_s(table, "timeout_s", usual.timeout_s),
            question_timeout_s=_time_s(table, "question_timeout_s", usual.question_timeout_s),
            parallel=_within(table, "parallel", usual.parallel, PARALLEL_MAX),
            config=_path(table, "config"),
            api_user=_word(table, "api_user"),
            api_key_file=_path(table, "api_key_file"),
            client_cert_file=_path(table, "client_cert_file"),
            client_key_file=_path(table, "client_key_file"),
            server_cert_file=_path(table, "server_cert_file"),
            allocation=_word(table, "allocation"),
            cluster=_word(table, "cluster"),
            clusters_file=_path(table, "clusters_file"),
            ipu_keys=_keys(table, usual.ipu_keys),
            reconfigurable=table.boolean("reconfigurable", usual.reconfigurable),
            create_arguments=_arguments(table, usual.create_arguments),
            ipuof=_ipuof(table, usual.ipuof),
            ipuof_option=_matching(
                table, "ipuof_option", usual.ipuof_option, _OPTION, "an option such as --ipu-configs"
            ),
            ipuof_timeout_s=_within(table, "ipuof_timeout_s", usual.ipuof_timeout_s, int(TIME_S_MAX)),
        )
        _check_secure_mode(table, settings)
        table.reject_unknown_keys()
        return settings

    @property
    def secret_files(self) -> dict[str, str]:
        """Return the files that other users must not be able to read, by key."""
        files = {
            "config": self.config,
            "api_key_file": self.api_key_file,
            "client_key_file": self.client_key_file,
        }
        return {key: path for key, path in files.items() if path}


def _check_secure_mode(table: TomlTable, settings: VipuSettings) -> None:
    for one, other in (("api_user", "api_key_file"), ("client_cert_file", "client_key_file")):
        given = {key for key in (one, other) if getattr(settings, key)}
        if len(given) == 1:
            missing = one if other in given else other
            table.fail_at(given.pop(), f"{missing} is missing", hint=f"{one} and {other} go together")
    own = (
        "api_host",
        "api_port",
        "api_user",
        "api_key_file",
        "client_cert_file",
        "client_key_file",
        "server_cert_file",
    )
    if settings.config:
        both = [key for key in own[2:] if getattr(settings, key)]
        if both:
            table.fail_at(both[0], f"{both[0]} and config cannot both be given", hint="config says it all")


def _time_s(table: TomlTable, key: str, default: float) -> float:
    return table.within(key, table.number(key, default), 0.1, TIME_S_MAX, " seconds")


def _within(table: TomlTable, key: str, default: int, most: int) -> int:
    return table.within(key, table.integer(key, default), 1, most)


def _matching(table: TomlTable, key: str, default: str, pattern: re.Pattern[str], what: str) -> str:
    value = table.text(key, default)
    if not pattern.fullmatch(value):
        table.fail_at(key, f"{key} = {value[:80]!r} is not {what}")
    return value


def _word(table: TomlTable, key: str) -> str:
    value = table.text(key, "")
    if value and not _WORD.fullmatch(value):
        table.fail_at(key, f"{key} = {value[:80]!r} is not allowed", hint="letters, digits, '.', '_', ':' and '-'")
    return value


def _path(table: TomlTable, key: str) -> str:
    value = table.text(key, "")
    if value and not (value.startswith("/") and value.isprintable() and len(value) <= TEXT_CHARS_MAX):
        table.fail_at(key, f"{key} = {value[:80]!r} is not an absolute path", hint="begin it with /")
    return value


def _command(table: TomlTable, default: str) -> str:
    value = table.text("command", default)
    if value.startswith("/") and value.isprintable() and len(value) <= TEXT_CHARS_MAX:
        return value
    return _matching(table, "command", default, _WORD, "the name of a command, or an absolute path")


def _keys(table: TomlTable, default: tuple[str, ...]) -> tuple[str, ...]:
    values = table.strings("ipu_keys", default)
    for value in values:
        if not _KEY.fullmatch(value):
            table.fail_at("ipu_keys", f"ipu_keys: {value[:80]!r} is not a key")
    return values


def _arguments(table: TomlTable, default: tuple[str, ...]) -> tuple[str, ...]:
    values = table.strings("create_arguments", default)
    for value in values:
        if not value.isprintable() or len(value) > TEXT_CHARS_MAX:
            table.fail_at("create_arguments", f"create_arguments: {value[:80]!r} is not a word")
        unknown = [name for name in _PLACEHOLDER.findall(value) if name not in PLACEHOLDERS]
        if unknown:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            table.fail_at("create_arguments", f"{{{unknown[0][:40]}}} is not known", hint=f"known: {known}")
    return values


def _ipuof(table: TomlTable, default: Ipuof) -> Ipuof:
    value = table.text("ipuof", default)
    if value == "file":
        return "file"
    if value == "api":
        return "api"
    table.fail_at("ipuof", f"ipuof = {value[:40]!r} is not known", hint='write "file" or "api"')
