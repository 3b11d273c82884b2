"""Forbidden parts of a Pod template: others' rights, and, where Pods are not trusted, privileges on their node. Pure.

Also the limits of a site that hold for all jobs: ``AdmissionLimits``.

The operator creates Pods for every user that may create an IPUJob, with its own rights: no other component checks them.
Privileges on the node are all that Kubernetes' Pod Security Standards leave out of "baseline":
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moorings.core.model.claims import PRIORITY_MAX
from moorings.kubernetes.ipujob.parsing import FieldError, abbreviate
from moorings.kubernetes.proxy_api.shapes import AUDIENCE

# Accounts of launchers (names.account_name), and names that look like one: `<job>-launcher-<instance>`.
_LAUNCHERS = re.compile(r".*-launcher(-[0-9]+)?", re.DOTALL)
_ACCOUNTS = ("serviceAccountName", "serviceAccount")  # the second is an older name of the first
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_CAPABILITIES = frozenset({"NET_BIND_SERVICE", "CAP_NET_BIND_SERVICE"})
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_SELINUX_TYPES = frozenset({"container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
# Annotations that set a container's profile in older releases.
_PROFILES = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Where Pods may have privileges on their node, and a site's other limits; the chart's values.

    Attributes:
        privileged: containers are privileged.
        privileged_namespaces: Pods get privileges and the node's network only here; empty: everywhere.
        max_priority: the highest priority of a job: it goes before all others that wait for the same controllers.
        namespaces: where jobs are managed at all; empty: everywhere.
        value_of_class: value of a PriorityClass, None if it does not exist; None instead of a function: unknown.
        suspends_queued: a new job with Kueue's queue label is suspended until Kueue admits it.
    """

    privileged: bool = True
    privileged_namespaces: frozenset[str] = frozenset()
    max_priority: int = PRIORITY_MAX
    namespaces: frozenset[str] = frozenset()
    suspends_queued: bool = False
    value_of_class: Callable[[str], int | None] | None = None

    def grants_privileges_in(self, namespace: str) -> bool:
        """Whether Pods in a namespace get the privileges that these settings give to Pods."""
        return not self.privileged_namespaces or namespace in self.privileged_namespaces

    def is_trusted(self, namespace: str) -> bool:
        """Whether a template in a namespace may itself request privileges on the node."""
        return self.grants_privileges_in(namespace) and (self.privileged or bool(self.privileged_namespaces))


NO_LIMITS = AdmissionLimits()


def find_reserved_rights(where: str, spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Parts of a Pod's spec that take a launcher's rights: to start processes in workers, and to reset partitions.

    Args:
        where: path of the spec.
        spec: of the Pods.
    """
    for field in _ACCOUNTS:
        account = spec.get(field)
        if isinstance(account, str) and _LAUNCHERS.fullmatch(account):
            yield FieldError(
                f"{where}.{field}",
                f"{abbreviate(account)} is called like a launcher's account, which is for that launcher alone",
                "take another account; the launcher of this job has its own without being told",
            )
    for index, volume in _items(spec, "volumes"):
        for number, source in _items(_inside(volume, "projected"), "sources"):
            if _inside(source, "serviceAccountToken").get("audience") == AUDIENCE:
                yield FieldError(
                    f"{where}.volumes[{index}].projected.sources[{number}].serviceAccountToken.audience",
                    f"a token for {AUDIENCE} is for the operator and for launchers alone",
                    "leave it out",
                )


def find_privileges(where: str, template: Mapping[str, Any], launcher: Mapping[str, Any]) -> Iterator[FieldError]:
    """Parts of a template, or of a launcher, that request privileges on the node.

    Args:
        where: path of the template.
        template: of the Pods.
        launcher: the launcher container's own fields.
    """
    for path in _privileged_paths(where, template, launcher):
        yield FieldError(
            path,
            "is power over the node, which Pods in this namespace do not have",
            "leave it out, or let an admin add the namespace to jobs.privilegedNamespaces",
        )


def _privileged_paths(where: str, template: Mapping[str, Any], launcher: Mapping[str, Any]) -> Iterator[str]:
    for name, profile in _inside(_inside(template, "metadata"), "annotations").items():
        if name.startswith(_PROFILES) and profile == "unconfined":
            yield f"{where}.metadata.annotations[{name}]"
    spec = _inside(template, "spec")
    where = f"{where}.spec"
    for field in _HOST:
        if _is_on(spec, field):
            yield f"{where}.{field}"
    for index, volume in _items(spec, "volumes"):
        if volume.get("hostPath") is not None:
            yield f"{where}.volumes[{index}].hostPath"
    context = _inside(spec, "securityContext")
    yield from _context(f"{where}.securityContext", context)
    for index, sysctl in _items(context, "sysctls"):
        if not _is_one_of(sysctl.get("name"), _SYSCTLS):
            yield f"{where}.securityContext.sysctls[{index}]"
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in _items(spec, kind):
            yield from _container(f"{where}.{kind}[{index}]", container)
    yield from _container("spec.launcher", launcher)


def _container(where: str, container: Mapping[str, Any]) -> Iterator[str]:
    for index, port in _items(container, "ports"):
        if port.get("hostPort"):
            yield f"{where}.ports[{index}].hostPort"
    where = f"{where}.securityContext"
    context = _inside(container, "securityContext")
    yield from _context(where, context)
    for field in ("privileged", "allowPrivilegeEscalation"):
        if _is_on(context, field):
            yield f"{where}.{field}"
    if context.get("procMount") not in (None, "Default"):
        yield f"{where}.procMount"
    added = _inside(context, "capabilities").get("add")
    for index, capability in enumerate(added if isinstance(added, list) else ()):
        if not _is_one_of(capability, _CAPABILITIES):
            yield f"{where}.capabilities.add[{index}]"


def _context(where: str, context: Mapping[str, Any]) -> Iterator[str]:
    """The privileges that both a Pod's security context and a container's can request."""
    if _is_on(_inside(context, "windowsOptions"), "hostProcess"):
        yield f"{where}.windowsOptions.hostProcess"
    for field in ("seccompProfile", "appArmorProfile"):
        if _inside(context, field).get("type") == "Unconfined":
            yield f"{where}.{field}.type"
    selinux = _inside(context, "seLinuxOptions")
    for field in ("user", "role"):
        if selinux.get(field):
            yield f"{where}.seLinuxOptions.{field}"
    if selinux.get("type") and not _is_one_of(selinux["type"], _SELINUX_TYPES):
        yield f"{where}.seLinuxOptions.type"


def _is_on(found: Mapping[str, Any], field: str) -> bool:
    """Whether a switch is not off: a value that is no switch counts as on."""
    return found.get(field) not in (None, False)


def _is_one_of(found: object, known: frozenset[str]) -> bool:
    return isinstance(found, str) and found in known


def _inside(found: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    inner = found.get(field)
    return inner if isinstance(inner, Mapping) else {}


def _items(found: Mapping[str, Any], field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    items = found.get(field)
    for index, each in enumerate(items if isinstance(items, list) else ()):
        if isinstance(each, Mapping):
            yield index, each
