"""The objects of a job: its Pods, and the objects beside them for its launchers. Pure; every name is in ``names``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from zlib import crc32

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.names import BIN_DIR, CONFIG_DIR
from moorings.kubernetes.ipujob.pod_security import AdmissionLimits
from moorings.kubernetes.ipujob.types import API_VERSION, KIND, IPUJob, JobKind
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.operator.start_deadline import DEADLINE_S
from moorings.kubernetes.proxy_api.shapes import AUDIENCE, PartitionBody
from moorings.wire.shapes import GcdBody

IPUOF_DIR = "ipuof"  # in the config folder: the file that reaches a GCD, where a file is used
TOKEN_DIR = "/var/run/secrets/moorings"  # noqa: S105 - a folder
TOKEN_S = 3600
IDLE_S = 365 * 86_400
INIT = "moorings-launcher-init"
VOLUMES = ("moorings-bin", "moorings-config", "moorings-token", "moorings-api")  # ours in a launcher
API_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"  # where every client looks
_API_MOUNT = {"name": VOLUMES[3], "mountPath": API_DIR, "readOnly": True}
_CONFIG_MOUNT = {"name": VOLUMES[1], "mountPath": CONFIG_DIR, "readOnly": True}
ANNOTATIONS_BYTES_MAX = 256 * 1024  # of one object, names and values together; a limit of the API server
PORT_FIRST, PORTS = 20_000, 20_000  # rendezvous ports of the tasks of an instance

# Idle in a shell: sleep as process 1 would ignore TERM, and deleting the Pod would take half a minute.
_IDLE = "trap 'exit 0' TERM; sleep {seconds} & wait"
_CLOSED: KubeObject = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_WATCHED = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")  # they suit the image's own program


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """How Pods are made on this cluster; the chart's values.

    Attributes:
        launcher_image: of the launchers' init container.
        launcher_pull_policy: of that image.
        pull_secrets: names of Secrets for pulling images.
        kubectl_version: version of the image's kubectl to use; empty: its default.
        proxy_url: URL of the proxy for launchers.
        proxy_ca: authorities of the proxy, as PEM; empty: not known yet, or it uses no TLS.
        host_network: Pods use their node's network, to reach its RDMA interface.
        privileged: containers are privileged.
        privileged_namespaces: both only in these namespaces; empty: in all.
        dns_policy: of Pods in the node's network.
        launcher_role: the ClusterRole that the operator binds itself to where it makes launchers; empty: it has that
            right in all its namespaces.
        account: the operator's own, ``namespace:name``; with ``launcher_role``.
        namespaces: namespaces whose jobs it manages; empty: all.
        start_deadline_s: default for jobs without their own; 0: none.
    """

    launcher_image: str = "launcher:latest"
    launcher_pull_policy: str = "Never"
    pull_secrets: tuple[str, ...] = ()
    kubectl_version: str = ""
    proxy_url: str = ""
    proxy_ca: str = ""
    host_network: bool = True
    privileged: bool = True
    privileged_namespaces: frozenset[str] = frozenset()
    dns_policy: str = "ClusterFirstWithHostNet"
    max_priority: int = 0
    start_deadline_s: int = DEADLINE_S
    launcher_role: str = ""
    account: str = ""
    namespaces: frozenset[str] = frozenset()
    suspends_queued: bool = False

    @property
    def proxy_hash(self) -> str:
        """Identifies the way to the proxy that a launcher uses; empty: its authorities are not known."""
        return sha256(f"{self.proxy_url}\n{self.proxy_ca}".encode()).hexdigest()[:16] if self.proxy_ca else ""

    @property
    def limits(self) -> AdmissionLimits:
        """Where Pods may have privileges on their node, and the other limits."""
        return AdmissionLimits(
            self.privileged, self.privileged_namespaces, self.max_priority, self.namespaces, self.suspends_queued
        )


def build_worker(job: IPUJob, number: int, restart: int, partition: PartitionBody, options: PodOptions) -> KubeObject:
    """A worker Pod.

    Args:
        job: its job.
        number: of the worker, over all instances.
        restart: number of restarts of its instance.
        partition: READY.
        options: how Pods are made.

    Raises:
        MooringsError: ``ipujob.invalid``: the annotations have no space for the GCD's file.
    """
    instance, rank = divmod(number, job.workers)
    spec = _pod_spec(job, partition, options)
    containers = spec["containers"]
    file = _file(partition, rank)
    # Open MPI's daemon looks for the remote-exec script, though it never runs it: without it the daemon crashes.
    for container in containers if file is not None else containers[:1] if job.has_launcher else ():
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), _CONFIG_MOUNT]
    if job.has_launcher or file is not None:
        spec["volumes"] = [*(spec.get("volumes") or ()), _worker_volume(job, file)]
    if job.has_launcher:
        _idle(containers[0], IDLE_S)
        own = {}
    else:
        own = _rendezvous_environment(job, instance, rank)
        if job.workers > 1:
            spec |= {"hostname": names.worker_name(job.name, number), "subdomain": job.name}
    _put_environment([*(spec.get("initContainers") or ()), *containers], _environment(partition, rank) | own)
    labels = {names.ROLE: names.WORKER_ROLE, names.WORKER: str(number)}
    found = _pod(job, names.worker_name(job.name, number), instance, restart, labels, partition, spec)
    if file is not None:
        _annotate(found, file)
    return found


def build_launcher(
    job: IPUJob, instance: int, restart: int, partition: PartitionBody, options: PodOptions, *, reset: bool
) -> KubeObject:
    """A launcher Pod: the workers' first container with the launcher's command, after our own init container.

    Args:
        job: its job.
        instance: its instance.
        restart: number of restarts of the instance.
        partition: READY.
        options: how Pods are made.
        reset: the partition may have been used.
    """
    spec = _pod_spec(job, partition, options)
    main = spec["containers"][0]
    spec["containers"] = [main]
    for field in ("initContainers", "hostname", "subdomain"):
        spec.pop(field, None)
    for field in ("command", "args", "resources", "ports", *_WATCHED):
        main.pop(field, None)  # they are the workers': the launcher only starts programs there
    main |= deepcopy({key: value for key, value in job.launcher.items() if key not in ("env", "volumeMounts")})
    if job.kind is JobKind.INTERACTIVE:
        _idle(main, job.ttl_s or 0)
    else:
        main["command"] = list(job.command)
        if job.args:
            main["args"] = list(job.args)
    main["env"] = [*(main.get("env") or ()), *deepcopy(list(job.launcher.get("env") or ()))]
    main["volumeMounts"] = [
        *(main.get("volumeMounts") or ()),
        *deepcopy(list(job.launcher.get("volumeMounts") or ())),
        {"name": VOLUMES[0], "mountPath": BIN_DIR, "readOnly": True},
        _CONFIG_MOUNT,
        _API_MOUNT,
    ]
    _put_environment([main], _environment(partition, None) | _mpi(instance))
    spec["initContainers"] = [_init_container(job, instance, options, main, reset=reset)]
    spec["serviceAccountName"] = names.account_name(job.name)
    # A token that expires with its Pod: before 1.24 the default one is a Secret, made only after a while.
    spec["automountServiceAccountToken"] = False
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(job, instance, options)]
    labels = {names.ROLE: names.LAUNCHER_ROLE}
    found = _pod(job, names.launcher_name(job.name, instance), instance, restart, labels, partition, spec)
    if options.proxy_ca:
        found["metadata"]["annotations"] |= {names.PROXY_CA: options.proxy_ca, names.PROXY: options.proxy_hash}
    return found


def build_config(job: IPUJob, instance: int = 0) -> KubeObject:
    """The ConfigMap of an instance's launcher: its hostfile; the first one also has the remote-exec script.

    One for each instance: scaling changes none of them, so the operator needs no right to change ConfigMaps.
    """
    data = {_hostfile(instance): hostfile(_workers(job, instance), 1)}
    if instance == 0:
        data[SCRIPT] = kubexec_script(job.template["spec"]["containers"][0]["name"], f"{BIN_DIR}/kubectl")
    return _owned_object(job, "v1", "ConfigMap", names.config_name(job.name, instance)) | {"data": data}


def build_launcher_rbac(job: IPUJob) -> tuple[KubeObject, KubeObject, KubeObject]:
    """ServiceAccount, Role and RoleBinding of the launchers: access to this job's workers and nothing else."""
    name = names.account_name(job.name)
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    workers = [worker for instance in range(job.instances) for worker in _workers(job, instance)]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": workers, "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": workers, "verbs": ["create"]},
    ]
    account = _owned_object(job, "v1", "ServiceAccount", name)
    role = _owned_object(job, rbac, "Role", name) | {"rules": rules}
    binding = _owned_object(job, rbac, "RoleBinding", name) | {
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
    }
    return account, role, binding


def build_role_binding(role: str, role_uid: str, account: str, namespace: str) -> KubeObject:
    """The RoleBinding that gives the operator, in one namespace, the right that it passes on to launchers there.

    Args:
        role: the ClusterRole with that right; owner of the binding.
        role_uid: its uid.
        account: the operator's, ``namespace:name``.
        namespace: of the binding.
    """
    group = "rbac.authorization.k8s.io"
    home, _, name = account.partition(":")
    owner = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "name": role, "uid": role_uid}
    return {
        "metadata": {"name": role, "namespace": namespace, "ownerReferences": [owner]},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": home}],
    }


def build_service(job: IPUJob) -> KubeObject:
    """The headless Service through which the workers of an instance find each other."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.JOB: job.name}}
    return _owned_object(job, "v1", "Service", job.name) | {"spec": spec}


def owner_reference(job: IPUJob) -> KubeObject:
    """The owner reference by which an object is deleted with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned_object(job: IPUJob, api_version: str, kind: str, name: str) -> KubeObject:
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.JOB: job.name},
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _pod(
    job: IPUJob,
    name: str,
    instance: int,
    restart: int,
    labels: Mapping[str, str],
    partition: PartitionBody,
    spec: KubeObject,
) -> KubeObject:
    given = job.template.get("metadata") or {}
    found = _owned_object(job, "v1", "Pod", name)
    ours = {names.INSTANCE: str(instance), names.RESTART: str(restart), **labels}
    found["metadata"]["labels"] = {**(given.get("labels") or {}), **found["metadata"]["labels"], **ours}
    found["metadata"]["annotations"] = {**(given.get("annotations") or {}), names.PARTITION: partition.name}
    return found | {"spec": spec}


def _pod_spec(job: IPUJob, partition: PartitionBody, options: PodOptions) -> KubeObject:
    spec: KubeObject = deepcopy(dict(job.template["spec"]))
    spec["restartPolicy"] = "Never"  # the operator restarts, since the partition must be clean before a restart
    covered = options.limits.grants_privileges_in(job.namespace)
    if options.host_network and covered:
        spec["hostNetwork"] = True
        spec.setdefault("dnsPolicy", options.dns_policy)
    if partition.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **partition.node_selector}
    if options.pull_secrets:
        given = list(spec.get("imagePullSecrets") or ())
        ours = [{"name": name} for name in options.pull_secrets]
        spec["imagePullSecrets"] = [*given, *(one for one in ours if one not in given)]
    if options.privileged and covered:
        for container in spec["containers"]:
            context = container.get("securityContext") or {}
            if context.get("allowPrivilegeEscalation") is not False:  # the API server refuses both together
                container["securityContext"] = {"privileged": True} | context
    return spec


def _idle(container: KubeObject, seconds: int) -> None:
    for field in ("args", *_WATCHED):
        container.pop(field, None)
    container["command"] = ["/bin/sh", "-c", _IDLE.format(seconds=seconds)]


def _put_environment(containers: Sequence[KubeObject], ours: Mapping[str, str]) -> None:
    """Ours are last: of two variables of one name the last one counts, and these locate the partition."""
    for container in containers:
        given = [one for one in container.get("env") or () if one.get("name") not in ours]
        container["env"] = [*given, *({"name": name, "value": value} for name, value in ours.items())]


def _environment(partition: PartitionBody, gcd: int | None) -> dict[str, str]:
    """The variables that reach the partition: one GCD of it, or all of it (a launcher)."""
    binding = partition.binding
    assert binding is not None
    found = {**binding.api, "MOORINGS_PARTITION_ID": binding.partition}
    if gcd is not None:
        one = binding.gcds[gcd]
        found |= {**one.environment, "MOORINGS_DEVICES": ",".join(one.devices)}
        if binding.api:
            found["IPUOF_VIPU_API_GCD_ID"] = str(gcd)
        elif one.file_name:
            found["IPUOF_CONFIG_PATH"] = f"{CONFIG_DIR}/{IPUOF_DIR}/{one.file_name}"
    return found


def _file(partition: PartitionBody, gcd: int) -> GcdBody | None:
    """The GCD whose file a worker needs; None if there is an API, because a program refuses both together."""
    binding = partition.binding
    assert binding is not None
    one = binding.gcds[gcd]
    return one if one.file_name and not binding.api else None


def _annotate(pod: KubeObject, file: GcdBody) -> None:
    """Put a GCD's file into an annotation, from which a volume reads it: one object less, deleted with the Pod."""
    annotations = pod["metadata"]["annotations"]
    annotations[names.IPUOF] = file.file_text
    size = sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items())
    if size > ANNOTATIONS_BYTES_MAX:
        raise MooringsError(
            "ipujob.invalid",
            f"{file.file_name} makes the annotations of {pod['metadata']['name']} {size} bytes large; "
            f"{ANNOTATIONS_BYTES_MAX} are allowed",
            hint="ask for more workers of fewer IPUs, or let the site's pool give jobs the API form",
        )


def _rendezvous_environment(job: IPUJob, instance: int, rank: int) -> dict[str, str]:
    """Rendezvous variables of an instance's workers, for programs without a launcher."""
    first = names.worker_name(job.name, instance * job.workers)
    address = f"{first}.{job.name}.{job.namespace}.svc" if job.workers > 1 else "127.0.0.1"
    port = PORT_FIRST + crc32(f"{job.uid}/{instance}".encode()) % PORTS  # they may share their node's network
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(job.workers),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _mpi(instance: int) -> dict[str, str]:
    """Variables for Open MPI, by the names of release 4 and of release 5.

    Without tree spawn a daemon goes to the background and its ``kubectl exec`` ends at once. With it each exec would
    last for the whole run, until a kubelet closes a stream that was silent for hours, and so ends the job.
    """
    agent, hosts = f"{CONFIG_DIR}/{SCRIPT}", f"{CONFIG_DIR}/{_hostfile(instance)}"
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_orte_default_hostfile": hosts,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_default_hostfile": hosts,
    }


def _init_container(job: IPUJob, instance: int, options: PodOptions, main: KubeObject, *, reset: bool) -> KubeObject:
    command = ["python3", "-m", "moorings.app.kubernetes_launcher", "--into", BIN_DIR]
    if options.kubectl_version:
        command += ["--kubectl-version", options.kubectl_version]
    variables = {
        "MOORINGS_WORKERS": str(job.workers),
        "MOORINGS_PROXY_URL": options.proxy_url,
        "MOORINGS_PARTITION": f"{job.namespace}/{job.name}/{job.uid}/{instance}",
        "MOORINGS_PROXY_TOKEN_FILE": f"{TOKEN_DIR}/token",
        "MOORINGS_RESET": "1" if reset else "0",
    }
    if options.proxy_ca:
        variables["MOORINGS_PROXY_CA_FILE"] = f"{TOKEN_DIR}/ca.crt"
    return {
        "name": INIT,
        "image": options.launcher_image,
        "imagePullPolicy": options.launcher_pull_policy,
        "command": command,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**_confinement(main), **_CLOSED},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUMES[0], "mountPath": BIN_DIR},
            {"name": VOLUMES[2], "mountPath": TOKEN_DIR, "readOnly": True},
            _API_MOUNT,
        ],
    }


def _confinement(main: KubeObject) -> KubeObject:
    """What Pod Security's level ``restricted`` demands of the init container, if the main container has it too.

    The Pod's own settings hold for both. Elsewhere it is left out: images of launchers may run as root, and older
    policies refuse each seccomp profile that they do not name.
    """
    context: KubeObject = main.get("securityContext") or {}
    found: KubeObject = {}
    if context.get("runAsNonRoot") is True:
        found |= {field: context[field] for field in ("runAsNonRoot", "runAsUser") if field in context}
    profile = context.get("seccompProfile")
    if isinstance(profile, Mapping) and profile.get("type") in ("RuntimeDefault", "Localhost"):
        found["seccompProfile"] = {"type": "RuntimeDefault"}  # a profile of the node is for the image's own program
    return found


def _volumes(job: IPUJob, instance: int, options: PodOptions) -> list[KubeObject]:
    proxy: list[KubeObject] = [
        {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": TOKEN_S, "path": "token"}}
    ]
    if options.proxy_ca:
        place = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{names.PROXY_CA}']"}
        proxy.append({"downwardAPI": {"items": [{"path": "ca.crt", "fieldRef": place}]}})
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    api = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_S, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return [
        {"name": VOLUMES[0], "emptyDir": {}},
        _launcher_config(job, instance),
        {"name": VOLUMES[2], "projected": {"sources": proxy}},
        {"name": VOLUMES[3], "projected": {"sources": api}},
    ]


def _config_volume(job: IPUJob) -> KubeObject:
    config: dict[str, Any] = {"name": names.config_name(job.name), "defaultMode": 0o555}
    return {"name": VOLUMES[1], "configMap": config}


def _launcher_config(job: IPUJob, instance: int) -> KubeObject:
    if instance == 0:
        return _config_volume(job)
    script = {"name": names.config_name(job.name), "items": [{"key": SCRIPT, "path": SCRIPT}]}
    sources = [{"configMap": script}, {"configMap": {"name": names.config_name(job.name, instance)}}]
    return {"name": VOLUMES[1], "projected": {"sources": sources, "defaultMode": 0o555}}


def _worker_volume(job: IPUJob, file: GcdBody | None) -> KubeObject:
    if file is None:
        return _config_volume(job)
    place = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{names.IPUOF}']"}
    sources: list[KubeObject] = [
        {"downwardAPI": {"items": [{"path": f"{IPUOF_DIR}/{file.file_name}", "fieldRef": place}]}}
    ]
    if job.has_launcher:
        sources.append({"configMap": {"name": names.config_name(job.name)}})
    return {"name": VOLUMES[1], "projected": {"sources": sources, "defaultMode": 0o555}}


def _workers(job: IPUJob, instance: int) -> list[str]:
    return names.worker_names(job.name, instance, job.workers)


def _hostfile(instance: int) -> str:
    return "hostfile" if instance == 0 else f"hostfile-{instance}"


# -- the remote-exec script and the hostfile ---------------------------------------------------------------------------
# How a launcher starts processes in its workers. Open MPI starts a
# daemon in each worker through its "rsh agent", a program that it calls as ``AGENT HOST WORDS...``. The words are
# quoted for a shell at the other end (``"env"`` comes with its quotes, a login profile as ``( test ! -r ...``). The
# agent must join them with blanks and pass them to that shell, as rsh and ssh do. Open MPI starts it with /dev/null as
# its input (``ssh_child`` in plm_rsh_module.c of releases 4.0 and 4.1); a call by a person behaves the same. Rejected:
# ssh in the workers' images. It needs keys, and a daemon that users' images lack.

_SCRIPT = """\
#!/bin/sh
# Runs a command in a worker, as ssh would: {name} [-OPTION...] POD WORD...
# The words are joined by blanks and are for the shell over there.
while [ $# -gt 0 ]; do
    case $1 in
    -*) shift ;;
    *) break ;;
    esac
done
if [ $# -lt 2 ]; then
    echo "usage: {name} POD COMMAND..." >&2
    exit 2
fi
pod=$1
shift
exec {kubectl} exec "$pod" -c {container} -- /bin/sh -c "$*" </dev/null
"""

SCRIPT = "kubexec.sh"  # its name


def kubexec_script(container: str, kubectl_path: str) -> str:
    """The remote-exec script, for any POSIX shell.

    It ends with the command's own exit code. It ignores options before the Pod's name: they are ssh's.

    Args:
        container: of the workers.
        kubectl_path: path of the launcher's kubectl.
    """
    return _SCRIPT.format(name=SCRIPT, kubectl=shlex.quote(kubectl_path), container=shlex.quote(container))


def hostfile(names: Iterable[str], slots: int) -> str:
    """Open MPI's list of workers.

    Args:
        names: of the workers' Pods, in the order of their ranks.
        slots: processes that each worker can run.
    """
    return "".join(f"{name} slots={slots}\n" for name in names)
