"""Admission of IPUJobs: fills in defaults and finds every error that the object alone shows. Pure.

The schema refuses wrong types, and CEL rules refuse more on newer servers. All rules stand here, for the webhook and
for the operator (a job may have been created while no webhook listened).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moorings.core.model.claims import NAME_CHARS_MAX, ClaimSpec, check_name, check_spec
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.fields import PODS_MAX, SPEC, CrdField
from moorings.kubernetes.ipujob.names import BIN_DIR, CONFIG_DIR
from moorings.kubernetes.ipujob.parsing import FieldError, abbreviate, parse_ipujob, read_ipujob
from moorings.kubernetes.ipujob.pod_security import NO_LIMITS, AdmissionLimits, find_privileges, find_reserved_rights
from moorings.kubernetes.ipujob.priority_class import find_priority_faults, needs_class_value, resolve_priority
from moorings.kubernetes.ipujob.suspension import immutable_template, is_queued_by_kueue
from moorings.kubernetes.ipujob.types import ENDED, FINALIZER, GROUP, IPUJob, JobKind, needs_service
from moorings.kubernetes.kube.api import KubeObject

ERRORS_SHOWN_MAX = 8  # in one message
GENERATED_CHARS = 5  # that the API server appends to a `generateName`

# What Moorings itself puts into Pods. A user's value would point the job at another partition, or keep the launcher
# from its workers. Other variables of the vendor (IPUOF_LOG_LEVEL, say) are the user's own.
OUR_PREFIX = "moorings-"  # of volumes and containers
OUR_LABELS = f"{GROUP}/"  # labels and annotations below it
OUR_VARIABLES = frozenset(
    {
        "IPUOF_CONFIG_PATH",
        "IPUOF_VIPU_API_GCD_ID",
        "IPUOF_VIPU_API_HOST",
        "IPUOF_VIPU_API_PARTITION_ID",
        "IPUOF_VIPU_API_PORT",
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_agent",
        "PRTE_MCA_plm_ssh_agent",
        "PRTE_MCA_prte_default_hostfile",
    }
)
OUR_VARIABLES_PREFIX = "MOORINGS_"
OUR_PATHS = (BIN_DIR, CONFIG_DIR)

_BY_JOB = "leave it out: a worker is started again by spec.restartPolicy, with a clean partition"
_SET_BY_US = "Moorings sets it itself: leave it out"
_TEMPLATE = "spec.workers.template"

# Types of the template fields that we read or add to; the API server checks the rest.
_LIST, _OBJECT, _TEXTS = "a list of objects", "an object", "an object of strings"
_OF_TEMPLATE = {"metadata": _OBJECT, "spec": _OBJECT}
_OF_METADATA = {"labels": _TEXTS, "annotations": _TEXTS}
_OF_SPEC = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "imagePullSecrets"), _LIST),
    "nodeSelector": _TEXTS,
    "securityContext": _OBJECT,
}
_OF_CONTAINER = {**dict.fromkeys(("env", "ports", "volumeMounts"), _LIST), "securityContext": _OBJECT}


def default_ipujob(obj: KubeObject, limits: AdmissionLimits = NO_LIMITS) -> list[KubeObject]:
    """A JSON patch that adds the defaults of a new job; it changes no given value.

    The patch adds the finalizer, so that the job never exists without it. For CREATE only: on UPDATE the patch would
    add the finalizer again after an uninstall removes it.
    """
    patch: list[KubeObject] = []
    if limits.suspends_queued and is_queued_by_kueue(obj) and isinstance(obj.get("spec"), Mapping):
        patch.append(_add("/spec/suspend", True))
    finalizers = obj["metadata"].get("finalizers")
    if parse_ipujob(obj).managed_elsewhere:  # we give it no partitions
        pass
    elif finalizers is None:
        patch.append(_add("/metadata/finalizers", [FINALIZER]))
    elif FINALIZER not in finalizers:
        patch.append(_add("/metadata/finalizers/-", FINALIZER))
    if limits.value_of_class is not None:
        priced = resolve_priority(obj, limits.value_of_class)
        if priced is not None and priced is not obj:
            patch.append(_add("/spec/priority", priced["spec"]["priority"]))
    left_out = [field for field in SPEC if field.default is not None and _is_left_out(obj, field)]
    return [*patch, *(_add("/" + field.path.replace(".", "/"), field.default) for field in left_out)]


def _add(path: str, value: object) -> KubeObject:
    return {"op": "add", "path": path, "value": value}


def _is_left_out(obj: KubeObject, field: CrdField) -> bool:
    """Whether a field and its other spelling are missing, while the object around the field exists."""
    holder = _at(obj, field.path.rpartition(".")[0])
    return isinstance(holder, Mapping) and all(_at(obj, path) is None for path in (field.path, field.alias) if path)


def _at(obj: KubeObject, path: str) -> object:
    found: object = obj
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def check_ipujob(obj: KubeObject, limits: AdmissionLimits = NO_LIMITS) -> IPUJob:
    """The parsed job, if it has no errors.

    Raises:
        MooringsError: ``ipujob.invalid``, naming each wrong field.
    """
    _raise_errors(find_errors(obj, limits))
    return parse_ipujob(obj)


def check_update(old: KubeObject, new: KubeObject, limits: AdmissionLimits = NO_LIMITS) -> IPUJob:
    """The changed job, if the change is allowed.

    Errors of the old job are no reason to refuse: rules may have become stricter since then. Any change of a job under
    deletion is allowed, and any change of metadata: a finalizer that cannot be removed would keep the job for ever.

    Raises:
        MooringsError: ``ipujob.invalid``, naming the fields.
    """
    before, after = parse_ipujob(old), parse_ipujob(new)
    if needs_class_value(new):  # the user's file has no value: the one that the webhook wrote still holds
        after = replace(after, priority=before.priority)
    if after.deleted or old.get("spec") == new.get("spec"):
        return after
    _raise_errors(
        FieldError(path, "cannot be changed while the job exists", "delete the job and create it anew")
        for path, changed in _immutable_changes(before, after)
        if changed
    )
    if before.status.state in ENDED and before.instances != after.instances:
        problem = f"cannot be changed: the job is {before.status.state}, and is not started anew"
        _raise_errors([FieldError("spec.jobInstances", problem, "delete the job and create it anew")])
    known = find_errors(old, limits)
    _raise_errors(fault for fault in find_errors(new, limits) if fault not in known)
    return after


def _immutable_changes(before: IPUJob, after: IPUJob) -> Iterator[tuple[str, bool]]:
    """Fields that may not change, and whether each did; compares values, so another spelling is no change."""
    yield "spec.ipusPerJobInstance", before.ipus != after.ipus
    yield "spec.workerPerJobInstance", before.workers != after.workers
    yield "spec.modelReplicasPerWorker", before.replicas != after.replicas
    yield "spec.interactive", before.ttl_s != after.ttl_s
    one, other = ((job.has_launcher, job.command, job.args, job.launcher) for job in (before, after))
    yield "spec.launcher", one != other and before.ttl_s == after.ttl_s
    templates = before.template, after.template
    if before.suspended or after.suspended:  # as it is resumed, or as it is suspended
        templates = immutable_template(before.template), immutable_template(after.template)
    yield _TEMPLATE, templates[0] != templates[1]
    yield "spec.managedBy", before.managed_by != after.managed_by
    yield "spec.activeDeadlineSeconds", before.active_deadline_s != after.active_deadline_s
    yield "spec.priorityClassName", before.priority_class != after.priority_class
    yield "spec.priority", before.priority != after.priority


def find_errors(obj: KubeObject, limits: AdmissionLimits = NO_LIMITS) -> tuple[FieldError, ...]:
    """Every error that the job itself shows, without a request to any server; a job without errors can be built."""
    job, unread = read_ipujob(obj)
    found = [*_check_namespace(job, limits), *_name(job, obj), *unread, *_launcher(job), *_template(job)]
    found += find_priority_faults(obj, limits.value_of_class)
    if not limits.is_trusted(job.namespace):
        found += find_privileges(_TEMPLATE, job.template, job.launcher if job.has_launcher else {})
    if not unread:  # else the numbers are defaults, and errors about them would be wrong
        found += [*_split(job), *_pods(job), *_priority(job, limits)]
    return tuple(found)


def _raise_errors(faults: Iterable[FieldError]) -> None:
    found = list(faults)
    if not found:
        return
    first = found[0]
    if len(found) == 1:
        raise MooringsError("ipujob.invalid", f"{first.path}: {first.problem}", hint=first.hint)
    messages = [
        f"{fault.path}: {fault.problem}" + (f" ({fault.hint})" if fault.hint else "")
        for fault in found[:ERRORS_SHOWN_MAX]
    ]
    if len(found) > ERRORS_SHOWN_MAX:
        messages.append(f"and {len(found) - ERRORS_SHOWN_MAX} more")
    raise MooringsError("ipujob.invalid", "; ".join(messages))


def _check_namespace(job: IPUJob, limits: AdmissionLimits) -> Iterator[FieldError]:
    if limits.namespaces and job.namespace not in limits.namespaces:
        yield FieldError(
            "metadata.namespace",
            f"nobody looks after IPUJobs in {job.namespace}",
            "an admin can add the namespace to watchNamespaces",
        )


def _name(job: IPUJob, obj: KubeObject) -> Iterator[FieldError]:
    prefix = obj["metadata"].get("generateName")
    name = job.name or (f"{prefix}{'x' * GENERATED_CHARS}" if isinstance(prefix, str) else "")
    if len(name) > NAME_CHARS_MAX:
        yield FieldError(
            "metadata.name",
            f"has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed",
            "longer names make the vendor's library fail later with a misleading device error",
        )
        return
    try:
        check_name(name)
    except MooringsError as error:
        yield FieldError("metadata.name", error.detail, error.hint)
        return
    if "." in name:
        yield FieldError(
            "metadata.name",
            f"{abbreviate(name)} has a dot, and mpirun cuts the names of hosts there",
            "use '-' instead",
        )
    elif needs_service(job) and name[0].isdigit():
        yield FieldError(
            "metadata.name",
            f"{abbreviate(name)} begins with a digit, which a Service's name may not",
            "begin with a letter: the workers of an inference job with several find each other by a Service",
        )


def _launcher(job: IPUJob) -> Iterator[FieldError]:
    if job.kind is JobKind.INTERACTIVE and (job.command or job.args):
        yield FieldError(
            "spec.launcher.command",
            "excludes spec.interactive",
            "an interactive launcher runs no command of its own: leave one of them out",
        )
    elif job.kind is JobKind.TRAINING and not job.command:
        yield FieldError(
            "spec.launcher.command",
            "is missing",
            "say what the launcher runs; leave the launcher out of an inference job",
        )


def _split(job: IPUJob) -> Iterator[FieldError]:
    """The rules of all claims, which do not know the field names of IPUJobs."""
    spec = ClaimSpec(kind="ipu", size=job.ipus, gcds=job.workers, replicas_per_gcd=job.replicas, priority=job.priority)
    try:
        check_spec(spec)
    except MooringsError as error:
        path, hint = _CLAIMS[error.code]
        yield FieldError(path, error.detail, hint or error.hint)


_CLAIMS = {
    "claim.size_invalid": ("spec.ipusPerJobInstance", ""),
    "claim.gcds_invalid": (
        "spec.workerPerJobInstance",
        "each worker has a GCD: the number of workers must divide ipusPerJobInstance",
    ),
    "claim.replicas_invalid": (
        "spec.modelReplicasPerWorker",
        "the number of replicas must divide the IPUs of each worker",
    ),
    "claim.invalid": ("spec.priority", ""),
}


def _priority(job: IPUJob, limits: AdmissionLimits) -> Iterator[FieldError]:
    if job.priority > limits.max_priority:
        yield FieldError(
            "spec.priority",
            f"{job.priority} is above {limits.max_priority}, the highest that is allowed here",
            "it would go before everybody who waits for the same IPUs; an admin can raise jobs.maxPriority",
        )


def _pods(job: IPUJob) -> Iterator[FieldError]:
    if job.instances * job.workers > PODS_MAX:
        yield FieldError(
            "spec.jobInstances",
            f"{job.instances} instances of {job.workers} workers are more than {PODS_MAX} Pods",
            "make several jobs of it",
        )


# -- the Pod template --------------------------------------------------------------------------------------------------


def _template(job: IPUJob) -> Iterator[FieldError]:
    yield from _kinds(_TEMPLATE, job.template, _OF_TEMPLATE)
    metadata, where = _dict(job.template.get("metadata")), f"{_TEMPLATE}.spec"
    yield from _kinds(f"{_TEMPLATE}.metadata", metadata, _OF_METADATA)
    yield from _labels(metadata)
    spec = _dict(job.template.get("spec"))
    yield from _kinds(where, spec, _OF_SPEC)
    yield from find_reserved_rights(where, spec)
    if spec.get("restartPolicy") == "Always":
        yield FieldError(
            f"{where}.restartPolicy",
            "must not be Always",
            _BY_JOB,
        )
    containers = list(_dicts(spec.get("containers")))
    for index, container in containers:  # Kubernetes 1.35 restarts single containers
        for field in ("restartPolicy", "restartPolicyRules"):
            if container.get(field) not in (None, [], "Never"):
                yield FieldError(f"{where}.containers[{index}].{field}", "must not restart the container", _BY_JOB)
    if not containers:
        yield FieldError(f"{where}.containers", "is missing", "name at least one container, with its image")
    volumes = []
    for index, volume in _dicts(spec.get("volumes")):
        yield from _strings(f"{where}.volumes[{index}]", volume, "name")
        volumes.append(name := volume.get("name"))
        if _is_ours(name, OUR_PREFIX):
            yield FieldError(
                f"{where}.volumes[{index}].name", f"{abbreviate(name)} is a name of Moorings' own", "rename it"
            )
    for kind, found in (("containers", containers), ("initContainers", list(_dicts(spec.get("initContainers"))))):
        for index, container in found:
            yield from _container(f"{where}.{kind}[{index}]", container, volumes)
    names = [container.get("name") for _, container in containers]
    for name in dict.fromkeys(str(name) for name in names if names.count(name) > 1):
        yield FieldError(f"{where}.containers", f"two are called {abbreviate(name)}", "give each a name of its own")
    if job.has_launcher:
        first = containers[0][1] if containers else {}
        yield from _launcher_container(job.launcher, first, volumes)


def _labels(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    for kind in ("labels", "annotations"):
        for name in _dict(metadata.get(kind)):
            if _is_ours(name, OUR_LABELS):
                yield FieldError(
                    f"{_TEMPLATE}.metadata.{kind}", f"{abbreviate(name)} is one of Moorings' own", "leave it out"
                )


def _container(where: str, container: Mapping[str, Any], volumes: list[Any]) -> Iterator[FieldError]:
    yield from _strings(where, container, "name", "image")
    yield from _kinds(where, container, _OF_CONTAINER)
    if _is_ours(container.get("name"), OUR_PREFIX):
        yield FieldError(f"{where}.name", f"{abbreviate(container['name'])} is a name of Moorings' own", "rename it")
    yield from _environment(where, container)
    yield from _mounts(where, container, volumes)


def _launcher_container(
    launcher: Mapping[str, Any], worker: Mapping[str, Any], volumes: list[Any]
) -> Iterator[FieldError]:
    """Check the launcher: it has the mounts of the workers' first container, its own, and the folder of its tools."""
    yield from _kinds("spec.launcher", launcher, _OF_CONTAINER)
    yield from _environment("spec.launcher", launcher)
    yield from _mounts("spec.launcher", launcher, volumes)
    taken = [mount.get("mountPath") for _, mount in _dicts(worker.get("volumeMounts"))]
    for index, mount in _dicts(launcher.get("volumeMounts")):
        if mount.get("mountPath") in taken:
            yield FieldError(
                f"spec.launcher.volumeMounts[{index}].mountPath",
                f"{abbreviate(mount['mountPath'])} is mounted already",
                "the launcher has the mounts of the workers' first container, too",
            )


def _environment(where: str, container: Mapping[str, Any]) -> Iterator[FieldError]:
    for index, variable in _dicts(container.get("env")):
        yield from _strings(f"{where}.env[{index}]", variable, "name")
        name = variable.get("name")
        if isinstance(name, str) and (name in OUR_VARIABLES or name.startswith(OUR_VARIABLES_PREFIX)):
            yield FieldError(f"{where}.env[{index}].name", f"{abbreviate(name)} is not yours to set", _SET_BY_US)


def _mounts(where: str, container: Mapping[str, Any], volumes: list[Any]) -> Iterator[FieldError]:
    for index, mount in _dicts(container.get("volumeMounts")):
        path = f"{where}.volumeMounts[{index}]"
        yield from _strings(path, mount, "name", "mountPath")
        if mount.get("name") not in volumes:
            yield FieldError(
                f"{path}.name", f"there is no volume {abbreviate(mount.get('name'))}", f"add it to {_TEMPLATE}.spec"
            )
        if str(mount.get("mountPath")).rstrip("/") in OUR_PATHS:
            yield FieldError(
                f"{path}.mountPath", f"{abbreviate(mount['mountPath'])} is Moorings' own", "mount it elsewhere"
            )


def _strings(where: str, found: Mapping[str, Any], *fields: str) -> Iterator[FieldError]:
    for field in fields:
        value = found.get(field)
        if value is None or value == "":
            yield FieldError(f"{where}.{field}", "is missing")
        elif not isinstance(value, str):
            yield FieldError(f"{where}.{field}", f"must be a string, not {abbreviate(value)}")


def _kinds(where: str, found: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[FieldError]:
    for field, kind in kinds.items():
        value, path = found.get(field), f"{where}.{field}"
        if value is None:
            continue
        if not isinstance(value, list if kind == _LIST else Mapping):
            yield FieldError(path, f"must be {kind}, not {abbreviate(value)}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if not isinstance(item, Mapping):
                    yield FieldError(f"{path}[{index}]", f"must be an object, not {abbreviate(item)}")
        elif kind == _TEXTS:
            for name, text in value.items():
                if not isinstance(text, str):
                    yield FieldError(f"{path}[{name}]", f"must be a string, not {abbreviate(text)}", "put it in quotes")


def _is_ours(name: object, prefix: str) -> bool:
    return isinstance(name, str) and name.startswith(prefix)


def _dict(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _dicts(found: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list, with their indexes."""
    for index, each in enumerate(found if isinstance(found, list) else ()):
        if isinstance(each, Mapping):
            yield index, each
