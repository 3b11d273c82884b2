"""The address of the API server and our identity, from a kubeconfig or from the Pod that we run in.

lightkube reads the format and makes TLS contexts. This file adds what it lacks: the search order, several files in
``KUBECONFIG``, and exec plugins of version 1, which run once for many calls and again when their token expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import Cluster, User, UserExec
from lightkube.core.exceptions import ConfigError

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.wire.codec import parse_time

EXEC_VERSIONS = ("v1", "v1beta1", "v1alpha1")
EXEC_S = 30.0  # a plugin may ask a cloud
REFRESH_EARLY_S = 30.0  # a token is renewed so long before it expires

Doc = dict[str, Any]


class TokenSource(Protocol):
    """Our identity, as the ``Authorization`` header of our requests."""

    async def header(self, refused: str = "") -> str:
        """The value of the header; a new one if the last one, ``refused``, got a 401.

        Raises:
            ConfigError: there is none.
        """


class StaticToken:
    """A ``TokenSource`` with the token of the kubeconfig."""

    def __init__(self, value: str) -> None:
        self._value = value

    async def header(self, refused: str = "") -> str:
        return self._value


class FileTokenSource:
    """A ``TokenSource`` with the token of a file; reads it again after a refusal, since the kubelet renews the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._value = ""

    async def header(self, rejected: str = "") -> str:
        if self._value == rejected:
            try:
                self._value = f"Bearer {self._file.read_text('utf-8').strip()}"
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"the token {self._file} cannot be read: {format_cause(error)}") from error
        return self._value


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """What a connection needs.

    Attributes:
        server: URL.
        namespace: of the context, or of our Pod.
        tls: TLS context with the trusted authorities, and our certificate if we have one.
        identity: the source of our token; None: the certificate is our identity.
    """

    server: str
    namespace: str
    tls: ssl.SSLContext
    identity: TokenSource | None


def load_credentials(
    environment: Mapping[str, str], *, path: str = "", context: str = "", account: str = SERVICE_ACCOUNT
) -> ClusterCredentials:
    """Credentials from ``path``, ``KUBECONFIG``, our Pod or ``~/.kube/config``: the first that exists.

    Args:
        environment: of the process.
        path: a kubeconfig.
        context: of the kubeconfig; empty: its current one.
        account: the folder of a Pod's service account.

    Raises:
        MooringsError: ``kubernetes.not_configured``.
    """
    named = path or environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME", "/")) / ".kube" / "config"
    try:
        if named:
            files = [Path(path)] if path else [Path(one) for one in named.split(os.pathsep) if one]
            config = _from_files(files, context)
        elif environment.get("KUBERNETES_SERVICE_HOST") and Path(account, "token").exists():
            config = _from_account(environment, Path(account))
        elif home.exists():
            config = _from_files([home], context)
        else:
            raise MooringsError(
                "kubernetes.not_configured",
                "there is no kubeconfig, and this is no Pod of a cluster",
                hint="set KUBECONFIG, or name the kubeconfig in the settings",
            )
        return _credentials(config, environment)
    except (ConfigError, OSError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        where = named or (str(home) if home.exists() else account)
        raise MooringsError(
            "kubernetes.not_configured",
            f"{where} cannot be used: {_cause(error)}",
            hint="see that 'kubectl config view' shows a cluster, a user and the context",
        ) from error


def _cause(error: Exception) -> str:
    """The reason of a failure, never with a line of the file: it may be a key."""
    if isinstance(error, yaml.YAMLError):
        return "it is not YAML"
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r} in it"
    if isinstance(error, (AttributeError, TypeError)):
        return "it has not the form of a kubeconfig"
    return format_cause(error)


def _credentials(config: SingleConfig, environment: Mapping[str, str]) -> ClusterCredentials:
    user = config.user or User()
    return ClusterCredentials(
        server=config.cluster.server.rstrip("/"),
        namespace=config.namespace,
        tls=verify_cluster(config.cluster, user, config.abs_file),
        identity=_identity(user, environment),
    )


def _identity(user: User, environment: Mapping[str, str]) -> TokenSource | None:
    if user.token_file is not None:
        return FileTokenSource(Path(user.token_file))
    if user.token is not None:
        return StaticToken(f"Bearer {user.token}")
    if user.exec is not None:
        return ExecCredentialPlugin(user.exec, environment)
    if user.username and user.password:
        return StaticToken("Basic " + b64encode(f"{user.username}:{user.password}".encode()).decode())
    if user.auth_provider:
        raise ConfigError("auth-provider is not supported: Kubernetes took it away in 1.26; use an exec plugin")
    return None


def _from_account(environment: Mapping[str, str], account: Path) -> SingleConfig:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]" if ":" in host else host
    namespace = account / "namespace"
    return _chosen(
        KubeConfig.from_one(
            cluster=Cluster(server=f"https://{authority}:{port}", certificate_auth=str(account / "ca.crt")),
            user=User(token_file=str(account / "token")),  # rotated; it is read again
            namespace=namespace.read_text().strip() if namespace.exists() else None,
        ),
        "",
    )


def _from_files(files: Sequence[Path], context: str) -> SingleConfig:
    """Merge as kubectl does: the first definition of a name counts; missing files are skipped, unless all are."""
    there = [file for file in files if file.exists()] or list(files[:1])
    merged: Doc = {"clusters": [], "contexts": [], "users": []}
    for file in there:
        document = yaml.safe_load(file.read_text()) or {}
        if not merged.get("current-context"):
            merged["current-context"] = document.get("current-context")
        for part in ("clusters", "contexts", "users"):
            names = {entry["name"] for entry in merged[part]}
            found = document.get(part) or []
            merged[part] += [_absolute(entry, file.resolve().parent) for entry in found if entry["name"] not in names]
    return _chosen(KubeConfig.from_dict(merged, fname=there[0]), context)


def _chosen(config: KubeConfig, context: str) -> SingleConfig:
    chosen = config.get(context or None)
    assert chosen is not None  # ``get`` raises if there is none
    return chosen


def _absolute(entry: Doc, folder: Path) -> Doc:
    """An entry of a kubeconfig with absolute paths: relative ones start at the folder of its file."""
    made = dict(entry)
    for part in ("cluster", "user"):
        values = made.get(part)
        if isinstance(values, dict):
            made[part] = values = dict(values)
            for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
                if values.get(name):
                    values[name] = str(folder / values[name])
            plugin = values.get("exec")
            if plugin and "/" in plugin["command"]:
                values["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return made


class ExecCredentialPlugin:
    """A ``TokenSource`` with the token that a program prints; kept until it expires or is refused.

    Args:
        plugin: from the kubeconfig.
        environment: of the program; the kubeconfig adds to it.
    """

    def __init__(self, plugin: UserExec, environment: Mapping[str, str]) -> None:
        group, _, version = plugin.apiVersion.partition("/")
        if group != "client.authentication.k8s.io" or version not in EXEC_VERSIONS:
            raise ConfigError(f"plugins of version {plugin.apiVersion} are not known")
        about = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        self._command = (plugin.command, *(plugin.args or ()))
        self._environment = {
            **environment,
            **{variable.name: variable.value for variable in plugin.env or ()},
            "KUBERNETES_EXEC_INFO": json.dumps(about),
        }
        self._value = ""
        self._ends_at: int | None = None  # microseconds since 1970, as the program says
        self._run_lock = asyncio.Lock()

    async def header(self, refused: str = "") -> str:
        async with self._run_lock:  # concurrent calls share one run of the program
            over = self._ends_at is not None and time.time_ns() // 1000 > self._ends_at - REFRESH_EARLY_S * SECOND
            if over or self._value == refused:
                token, self._ends_at = parse_exec(await self._run())
                self._value = f"Bearer {token}"
            return self._value

    async def _run(self) -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            async with asyncio.timeout(EXEC_S):
                printed, said = await process.communicate()
        except TimeoutError as error:
            raise ConfigError(f"{self._command[0]} did not end within {EXEC_S:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode != 0:
            last = said.decode(errors="replace").strip()[-200:]
            raise ConfigError(f"{self._command[0]} ended with {process.returncode}: {last}")
        return printed


def parse_exec(printed: bytes) -> tuple[str, int | None]:
    """The token that a plugin printed, and its expiry (microseconds since 1970; None: not given).

    Raises:
        ConfigError: the text is no ExecCredential with a token.
    """
    try:
        status = json.loads(printed)["status"]
        ends = status.get("expirationTimestamp")
        return str(status["token"]), None if ends is None else parse_time(ends)
    except (ValueError, LookupError, TypeError, AttributeError, MooringsError) as error:
        raise ConfigError("the plugin of the kubeconfig printed no ExecCredential with a token") from error
