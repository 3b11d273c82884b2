"""What of a Pod the level `restricted` of Kubernetes' Pod Security Standards refuses; of no use for Windows.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ (v1.25 and later). Clusters of the tests
have no Pod Security admission.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Obj = dict[str, Any]

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
_SECCOMP = ("RuntimeDefault", "Localhost")
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
}
_SELINUX = (None, "", "container_t", "container_init_t", "container_kvm_t")


def refused(spec: Obj) -> list[str]:
    """Why `restricted` refuses a Pod of this spec; empty: it does not."""
    return [*_of_pod(spec), *(why for kind in _KINDS for one in spec.get(kind) or () for why in _of_one(one, spec))]


_KINDS = ("initContainers", "containers", "ephemeralContainers")


def _of_pod(spec: Obj) -> Iterator[str]:
    yield from (field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    for volume in spec.get("volumes") or ():
        yield from (f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - _VOLUMES)
    context = spec.get("securityContext") or {}
    yield from (f"sysctl {one['name']}" for one in context.get("sysctls") or () if one["name"] not in _SYSCTLS)
    yield from (f"Pod: {why}" for why in _of_context(context))


def _of_one(container: Obj, spec: Obj) -> Iterator[str]:
    of_pod, context = spec.get("securityContext") or {}, container.get("securityContext") or {}
    name, capabilities = container["name"], context.get("capabilities") or {}
    found = list(_of_context(context))
    found += ["hostPort" for port in container.get("ports") or () if port.get("hostPort")]
    found += ["privileged"] if context.get("privileged") else []
    found += ["procMount"] if context.get("procMount") not in (None, "Default") else []
    found += [] if context.get("allowPrivilegeEscalation") is False else ["allowPrivilegeEscalation is not false"]
    found += [] if "ALL" in (capabilities.get("drop") or ()) else ["capabilities: ALL are not dropped"]
    found += [f"capability {one}" for one in capabilities.get("add") or () if one != "NET_BIND_SERVICE"]
    if context.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        found.append("runAsNonRoot is not true")
    if (context.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type") not in _SECCOMP:
        found.append("no seccompProfile")
    yield from (f"{name}: {why}" for why in found)


def _of_context(context: Obj) -> Iterator[str]:
    """What is forbidden in a Pod's security context and in a container's."""
    selinux = context.get("seLinuxOptions") or {}
    yield from (f"seLinuxOptions.{field}" for field in ("user", "role") if selinux.get(field))
    if selinux.get("type") not in _SELINUX:
        yield "seLinuxOptions.type"
    if context.get("runAsUser") == 0:
        yield "runAsUser is 0"
    for field in ("seccompProfile", "appArmorProfile"):
        if (context.get(field) or {}).get("type") == "Unconfined":
            yield f"{field}.type"
