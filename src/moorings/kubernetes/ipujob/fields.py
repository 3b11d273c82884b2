"""Every field of an IPUJob, once: source of the API server's schema, the webhook's defaults and the reference page.

A path has ``[]`` where the items of a list begin and ``{}`` where the values of a mapping begin. Bounds are keywords of
JSON schema; CEL rules, where the server knows them (1.25 and later), add what a schema cannot express, and
``validation`` always checks all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moorings.core.model.claims import NAME_CHARS_MAX, PRIORITY_MAX, SIZE_MAX, TIME_LIMIT_S_MAX
from moorings.kubernetes.ipujob.suspension import MANAGED_BY
from moorings.kubernetes.ipujob.types import (
    ENDED,
    GROUP,
    KIND,
    MANAGER,
    PLURAL,
    VERSION,
    Certainty,
    CleanPodPolicy,
    InstanceOutcome,
    RestartType,
)
from moorings.kubernetes.kube.api import KubeObject

PODS_MAX = 4096  # worker Pods of one job; keeps a typing error from filling a cluster's database
BACK_OFF_LIMIT = 3
WAIT_S_MAX = TIME_LIMIT_S_MAX  # of a deadline
BACK_OFF_LIMIT_MAX = 1_000_000
TTL_S = 3600
TTL_S_MAX = TIME_LIMIT_S_MAX
DEADLINE_S_MAX = TIME_LIMIT_S_MAX  # a claim's own limit
MANAGED_BY_CHARS_MAX = 63
CLASS_CHARS_MAX = 253  # of a name in Kubernetes
KEPT_S_MAX = (1 << 31) - 1  # as in a Job's field
WORDS_MAX, WORD_CHARS_MAX = 1024, 32_768  # of a command; together they limit the cost of its CEL rules

DIGITS = len(str(SIZE_MAX))


class FieldType(StrEnum):
    """The type of a field's value."""

    INTEGER = "integer"
    STRING = "string"
    BOOLEAN = "boolean"
    TIME = "time"  # RFC 3339, whole seconds
    NUMBER = "integer or string"  # people write "2" and 2
    OBJECT = "object"
    OPEN = "open"  # an object whose other fields are preserved: Kubernetes' own, which change with its releases
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class CelRule:
    """A CEL rule: refused with ``message`` unless ``cel`` holds. With ``oldSelf`` it is checked on changes only."""

    cel: str
    message: str


@dataclass(frozen=True, slots=True)
class CrdField:
    """One field.

    Attributes:
        path: from the top.
        type: of its value.
        meaning: the text of ``kubectl explain``.
        default: its value if it is left out.
        alias: path of its other spelling: with that one given there is no default, so no schema can state it.
        schema: its bounds, as JSON schema.
        required: whether it must be present, if the object around it is.
        rules: its CEL rules.
    """

    path: str
    type: FieldType
    meaning: str
    default: Any = None
    alias: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    rules: tuple[CelRule, ...] = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2].removesuffix("[]").removesuffix("{}")

    @property
    def filled(self) -> bool:
        """Whether the API server itself fills in its default."""
        return self.default is not None and not self.alias


_RECREATE = "delete the job and create it anew"
_SAME_NUMBER = CelRule("string(self) == string(oldSelf)", f"cannot be changed while the job exists: {_RECREATE}")
_SAME = CelRule("self == oldSelf", f"cannot be changed while the job exists: {_RECREATE}")
# A number that people also write in quotes. `maxLength` limits the cost that the API server computes for CEL.
_NUMBER = {"minimum": 1, "maximum": SIZE_MAX, "pattern": f"^[1-9][0-9]{{0,{DIGITS - 1}}}$", "maxLength": DIGITS}
_WORDS = {"items": {"type": "string", "maxLength": WORD_CHARS_MAX}, "maxItems": WORDS_MAX}
_ITEMS = {"items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
_COUNT = {"minimum": 0}

JOB_RULES = (
    CelRule(
        f"size(self.metadata.name) <= {NAME_CHARS_MAX}",
        f"metadata.name: at most {NAME_CHARS_MAX} characters are allowed: the vendor's library fails on longer names",
    ),
    CelRule(
        "!has(oldSelf.status) || !has(oldSelf.status.status) || "
        f"!(oldSelf.status.status in {list(ENDED)}) || self.spec.jobInstances == oldSelf.spec.jobInstances",
        f"spec.jobInstances: the job has ended and cannot be scaled: {_RECREATE}",
    ),
)

_IPUS = "int(self.ipusPerJobInstance)"
_GIVEN = "(has(self.workerPerJobInstance) ? int(self.workerPerJobInstance) : {})"
_WORKERS = _GIVEN.format("(has(self.workers.replicas) ? int(self.workers.replicas) : 1)")

SPEC_RULES = (
    CelRule(
        "has(self.ipusPerJobInstance) || has(self.modelReplicas) || has(self.ipusPerModelReplica)",
        "ipusPerJobInstance is missing: say how many IPUs each instance gets",
    ),
    CelRule(
        "!has(self.interactive) || !has(self.launcher) || !(has(self.launcher.command) || has(self.launcher.args))",
        "launcher.command and interactive exclude each other: an interactive launcher runs no command of its own",
    ),
    CelRule(
        "!has(self.launcher) || has(self.interactive) || has(self.launcher.command)",
        "launcher.command is missing: a launcher runs a command; leave the launcher out of an inference job",
    ),
    CelRule(
        "!has(self.workerPerJobInstance) || !has(self.workers.replicas) || "
        "int(self.workerPerJobInstance) == int(self.workers.replicas)",
        "workers.replicas and workerPerJobInstance mean the same and differ: give one of them",
    ),
    CelRule(
        f"!has(self.ipusPerJobInstance) || {_IPUS} % {_WORKERS} == 0",
        "ipusPerJobInstance must be a multiple of workerPerJobInstance: each worker has a GCD of the same size",
    ),
    CelRule(
        f"self.jobInstances * {_WORKERS} <= {PODS_MAX}",
        f"jobInstances times workerPerJobInstance is more than {PODS_MAX} worker Pods",
    ),
    CelRule(
        "has(self.launcher) == has(oldSelf.launcher) && has(self.interactive) == has(oldSelf.interactive)",
        f"launcher and interactive cannot come or go while the job exists: {_RECREATE}",
    ),
    *(  # the rules of the fields themselves are checked only where both the old job and the new one have them
        CelRule(
            f"has(self.{name}) == has(oldSelf.{name})", f"{name} cannot come or go while the job exists: {_RECREATE}"
        )
        for name in ("activeDeadlineSeconds", "managedBy", "priorityClassName")
    ),
    CelRule(  # it has no default, which would override the PriorityClass
        "has(oldSelf.priority) || !has(self.priority) || self.priority == 0 || has(self.priorityClassName)",
        f"priority cannot be changed while the job exists: {_RECREATE}",
    ),
)

SPEC: tuple[CrdField, ...] = (
    CrdField(
        "spec",
        FieldType.OBJECT,
        "What is asked for. While the job exists only jobInstances, restartPolicy, cleanPodPolicy, releaseOnFinish, "
        "startDeadlineSeconds, nodeLostSeconds, ttlSecondsAfterFinished and suspend may be changed; of a suspended job "
        "also where its Pods run, and how they are marked.",
        required=True,
        rules=SPEC_RULES,
    ),
    CrdField(
        "spec.jobInstances",
        FieldType.INTEGER,
        "How many instances run, each with a partition of its own; `kubectl scale` sets it.",
        default=1,
        schema={"minimum": 0, "maximum": PODS_MAX, "format": "int32"},
    ),
    CrdField(
        "spec.ipusPerJobInstance",
        FieldType.NUMBER,
        "IPUs of the partition of each instance. Required, unless modelReplicas or ipusPerModelReplica is given.",
        schema=_NUMBER,
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.workerPerJobInstance",
        FieldType.NUMBER,
        "Worker Pods of each instance; each has one GCD of the partition. Divides ipusPerJobInstance.",
        default="1",
        alias="spec.workers.replicas",
        schema={**_NUMBER, "maximum": PODS_MAX},
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.modelReplicasPerWorker",
        FieldType.NUMBER,
        "Copies of the model inside the GCD of each worker. Divides the IPUs of a GCD.",
        default="1",
        alias="spec.modelReplicas",
        schema=_NUMBER,
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.modelReplicas",
        FieldType.NUMBER,
        "An older spelling: copies of the model in an instance, over all its workers. Times ipusPerModelReplica (1 if "
        "left out) it is ipusPerJobInstance; divided by the workers it is modelReplicasPerWorker.",
        schema=_NUMBER,
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.ipusPerModelReplica",
        FieldType.NUMBER,
        "An older spelling: IPUs of each copy of the model. Times modelReplicas (1 if left out) it is "
        "ipusPerJobInstance.",
        schema=_NUMBER,
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.launcher",
        FieldType.OBJECT,
        "The launcher Pod of each instance, which runs a command (mpirun, say) over the workers: a training job. It "
        "has the image, environment and mounts of the workers' first container, and what is said here.",
    ),
    CrdField(
        "spec.launcher.command",
        FieldType.LIST,
        "What the launcher runs. Required, unless the job is interactive.",
        schema={**_WORDS, "minItems": 1},
        rules=(_SAME,),
    ),
    CrdField("spec.launcher.args", FieldType.LIST, "Arguments of the command.", schema=_WORDS, rules=(_SAME,)),
    CrdField(
        "spec.launcher.image", FieldType.STRING, "Image of the launcher.", schema={"maxLength": 4096}, rules=(_SAME,)
    ),
    CrdField(
        "spec.launcher.imagePullPolicy",
        FieldType.STRING,
        "When the image is pulled.",
        schema={"enum": ["Always", "IfNotPresent", "Never"]},
    ),
    CrdField(
        "spec.launcher.workingDir", FieldType.STRING, "Folder that the command begins in.", schema={"maxLength": 4096}
    ),
    CrdField("spec.launcher.env", FieldType.LIST, "Variables of the launcher, as a container has them.", schema=_ITEMS),
    CrdField("spec.launcher.envFrom", FieldType.LIST, "Where further variables come from.", schema=_ITEMS),
    CrdField(
        "spec.launcher.resources", FieldType.OPEN, "Processors and memory of the launcher, as a container has them."
    ),
    CrdField("spec.launcher.securityContext", FieldType.OPEN, "Security context of the launcher's container."),
    CrdField(
        "spec.launcher.volumeMounts",
        FieldType.LIST,
        "Mounts of the launcher, of volumes in the workers' template.",
        schema=_ITEMS,
    ),
    CrdField(
        "spec.interactive",
        FieldType.OBJECT,
        "Makes the job interactive: a launcher that idles, for `kubectl exec`.",
    ),
    CrdField(
        "spec.interactive.ttl",
        FieldType.INTEGER,
        "How long the session lasts, in seconds.",
        default=TTL_S,
        schema={"minimum": 1, "maximum": TTL_S_MAX},
        rules=(_SAME,),
    ),
    CrdField("spec.workers", FieldType.OBJECT, "The worker Pods.", required=True),
    CrdField(
        "spec.workers.replicas",
        FieldType.NUMBER,
        "Another spelling of workerPerJobInstance; if both are given they must agree.",
        schema={**_NUMBER, "maximum": PODS_MAX},
        rules=(_SAME_NUMBER,),
    ),
    CrdField(
        "spec.workers.template",
        FieldType.OPEN,
        "Template of the worker Pods, as everywhere in Kubernetes. Workers of a job with a launcher idle until it uses "
        "them; those of an inference job run their own command. The launcher gets its volumes and mounts, too.",
        required=True,
    ),
    CrdField("spec.workers.template.metadata", FieldType.OPEN, "Labels and annotations of the worker Pods."),
    CrdField(
        "spec.workers.template.spec",
        FieldType.OPEN,
        "What runs in a worker Pod. Its restartPolicy must not be Always: a worker is started anew with its partition.",
        required=True,
    ),
    CrdField(
        "spec.workers.template.spec.containers",
        FieldType.LIST,
        "Containers of a worker Pod; the first one is the worker.",
        schema={**_ITEMS, "minItems": 1},
        required=True,
    ),
    CrdField(
        "spec.restartPolicy",
        FieldType.OBJECT,
        "Whether the job is started anew when it has ended.",
        default={"type": RestartType.NEVER.value, "backOffLimit": BACK_OFF_LIMIT},
    ),
    CrdField(
        "spec.restartPolicy.type",
        FieldType.STRING,
        "Always: however it ended. OnFailure: if it failed. Never. ExitCode: 1 to 127 is a failure for good, with 128 "
        "to 255 it is started anew.",
        default=RestartType.NEVER.value,
        schema={"enum": [each.value for each in RestartType]},
    ),
    CrdField(
        "spec.restartPolicy.backOffLimit",
        FieldType.INTEGER,
        "Restarts after failures, at most.",
        default=BACK_OFF_LIMIT,
        schema={"minimum": 0, "maximum": BACK_OFF_LIMIT_MAX, "format": "int32"},
    ),
    CrdField(
        "spec.cleanPodPolicy",
        FieldType.STRING,
        "Which Pods go when the job has ended for good. All also overrides restartPolicy: nothing is started anew.",
        default=CleanPodPolicy.NONE.value,
        schema={"enum": [each.value for each in CleanPodPolicy]},
    ),
    CrdField(
        "spec.releaseOnFinish",
        FieldType.BOOLEAN,
        "Whether a job that has ended for good gives its partitions back at once. False: they are kept until the job "
        "is deleted, or activeDeadlineSeconds are over.",
        default=True,
    ),
    CrdField(
        "spec.activeDeadlineSeconds",
        FieldType.INTEGER,
        "How long an instance may be active, in seconds: from when it has its partition, over all its restarts; the "
        "time in which it waits for one does not count. Then its Pods are stopped, and it has Failed with reason "
        "DeadlineExceeded. It is the time limit of its claim: with it others know when IPUs become free, and the job "
        "may start before others where it ends in time.",
        schema={"minimum": 1, "maximum": DEADLINE_S_MAX, "format": "int64"},
        rules=(_SAME,),
    ),
    CrdField(
        "spec.ttlSecondsAfterFinished",
        FieldType.INTEGER,
        "After so many seconds a job that has ended is deleted, and its Pods with it. Left out: never.",
        schema={"minimum": 0, "maximum": KEPT_S_MAX, "format": "int32"},
    ),
    CrdField(
        "spec.suspend",
        FieldType.BOOLEAN,
        "True: the job has no Pods and no partition, and asks for none. Those that it has are stopped and given back; "
        "set to false it starts anew, with its whole activeDeadlineSeconds.",
    ),
    CrdField(
        "spec.managedBy",
        FieldType.STRING,
        f"Which controller has the job: a domain, a slash and a name. Left out, or {MANAGER}: this operator. One with "
        "another name is left alone.",
        schema={"maxLength": MANAGED_BY_CHARS_MAX, "pattern": f"^{MANAGED_BY.pattern}$"},
        rules=(_SAME,),
    ),
    CrdField(
        "spec.priorityClassName",
        FieldType.STRING,
        "A PriorityClass of the cluster, whose value is the priority. With priority beside it they must agree.",
        schema={"maxLength": CLASS_CHARS_MAX},
        rules=(_SAME,),
    ),
    CrdField(
        "spec.priority",
        FieldType.INTEGER,
        "Higher is first in the queue for partitions; at most what the site allows (`jobs.maxPriority`, 0 by default).",
        default=0,
        alias="spec.priorityClassName",
        schema={"minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX, "format": "int32"},
        rules=(_SAME,),
    ),
    CrdField(
        "spec.startDeadlineSeconds",
        FieldType.INTEGER,
        "How long an instance may have its partition without its program having started. Then it gives the partition "
        "back, and asks again later: after as long, twice as long each time, up to an hour. 0: without limit. Left "
        "out: the site's `jobs.startDeadlineSeconds` (600).",
        schema={"minimum": 0, "maximum": WAIT_S_MAX},
    ),
    CrdField(
        "spec.nodeLostSeconds",
        FieldType.INTEGER,
        "How long a node with Pods of an instance may not be Ready. Then the partition is removed, so that what may "
        "still run there has no IPUs; the Pods are deleted by force, and the instance has failed: restartPolicy says "
        "whether it starts elsewhere. 0 or left out: it waits for the node.",
        schema={"minimum": 0, "maximum": WAIT_S_MAX},
    ),
)

STATUS: tuple[CrdField, ...] = (
    CrdField("status", FieldType.OBJECT, "How the job stands; written by the operator."),
    CrdField(
        "status.status",
        FieldType.STRING,
        "In a word: Pending, Running, Restarting, Suspended, Completed or Failed.",
        schema={"maxLength": 64},
    ),
    CrdField(
        "status.currentInstances",
        FieldType.INTEGER,
        "Instances that have their partition and all their Pods, and have not ended.",
        schema=_COUNT,
    ),
    CrdField("status.desiredInstances", FieldType.INTEGER, "Instances that are wanted.", schema=_COUNT),
    CrdField("status.lastMessage", FieldType.STRING, "The last thing there was to say, in a sentence."),
    CrdField("status.selector", FieldType.STRING, "Labels of the worker Pods, for the scale subresource."),
    CrdField("status.conditions", FieldType.LIST, "One of each type; of the states, the one that is True holds."),
    CrdField(
        "status.conditions[].type",
        FieldType.STRING,
        "Ready, Admitted or Finished; or a state: Pending, Running, Restarting, Suspended, Completed or Failed.",
        required=True,
    ),
    CrdField(
        "status.conditions[].status",
        FieldType.STRING,
        "Whether it holds.",
        schema={"enum": ["True", "False", "Unknown"]},
        required=True,
    ),
    CrdField("status.conditions[].reason", FieldType.STRING, "In a word, for programs."),
    CrdField("status.conditions[].message", FieldType.STRING, "In a sentence, for people."),
    CrdField("status.conditions[].lastTransitionTime", FieldType.TIME, "When its status changed last."),
    CrdField(
        "status.conditions[].lastUpdateTime", FieldType.TIME, "When anything of it changed last; states alone have it."
    ),
    CrdField(
        "status.conditions[].observedGeneration",
        FieldType.INTEGER,
        "Of Ready, Admitted and Finished: the generation of the job that it is about.",
        schema=_COUNT,
    ),
    CrdField("status.iPUPartitionCreated", FieldType.BOOLEAN, "Whether an instance has its partition."),
    CrdField("status.launcherStatus", FieldType.STRING, "Phase of the launcher Pod."),
    CrdField("status.restartCount", FieldType.INTEGER, "How often an instance was started anew.", schema=_COUNT),
    CrdField(
        "status.active",
        FieldType.INTEGER,
        "Pods that have not ended, launchers and those that are being deleted among them.",
        schema=_COUNT,
    ),
    CrdField(
        "status.ready",
        FieldType.INTEGER,
        "Pods, launchers among them, that are Ready or have ended well.",
        schema=_COUNT,
    ),
    CrdField(
        "status.estimatedStartTime",
        FieldType.TIME,
        "While it waits: by when it has the partitions that it waits for, as the controllers estimate.",
    ),
    CrdField(
        "status.estimatedStartCertainty",
        FieldType.STRING,
        "How sure that is. AtLatest: it starts then, or earlier, if those before it keep to their time limits and none "
        "comes first. Unknown: lastMessage says why. Left out: the job does not wait, or nobody was asked yet.",
        schema={"enum": [each.value for each in Certainty]},
    ),
    CrdField("status.startTime", FieldType.TIME, "When the operator took the job up."),
    CrdField("status.completionTime", FieldType.TIME, "When it ended for good."),
    CrdField("status.workersStatus", FieldType.OBJECT, "Worker Pods by what became of them; what is left out is 0."),
    CrdField("status.workersStatus.active", FieldType.INTEGER, "Pods that run.", schema=_COUNT),
    CrdField("status.workersStatus.succeeded", FieldType.INTEGER, "Pods that ended well.", schema=_COUNT),
    CrdField("status.workersStatus.failed", FieldType.INTEGER, "Pods that failed.", schema=_COUNT),
    CrdField(
        "status.observedGeneration", FieldType.INTEGER, "The generation of the job that this is about.", schema=_COUNT
    ),
    CrdField("status.instances", FieldType.MAP, "What is remembered of each instance, by its number."),
    CrdField("status.instances{}.restarts", FieldType.INTEGER, "How often it was started anew.", schema=_COUNT),
    CrdField("status.instances{}.failures", FieldType.INTEGER, "How many of them followed a failure.", schema=_COUNT),
    CrdField(
        "status.instances{}.outcome",
        FieldType.STRING,
        "How it ended for good.",
        schema={"enum": [each.value for each in InstanceOutcome]},
    ),
    CrdField("status.instances{}.detail", FieldType.STRING, "Why it failed."),
    CrdField("status.instances{}.start", FieldType.OBJECT, "How its start goes; empty once it has started."),
    CrdField(
        "status.instances{}.start.since", FieldType.TIME, "It has had its partition since then, and has not started."
    ),
    CrdField(
        "status.instances{}.start.missed", FieldType.INTEGER, "Start deadlines that it missed in a row.", schema=_COUNT
    ),
    CrdField("status.instances{}.start.until", FieldType.TIME, "It asks for no partition before."),
    CrdField("status.instances{}.start.why", FieldType.STRING, "What kept it from starting."),
    CrdField(
        "status.instances{}.reason", FieldType.STRING, "Why it failed, in a word, where Kubernetes has one for it."
    ),
    CrdField(
        "status.instances{}.startedAt",
        FieldType.TIME,
        "With activeDeadlineSeconds: since when it has its partition.",
    ),
    CrdField(
        "status.instances{}.activeSeconds",
        FieldType.INTEGER,
        "With activeDeadlineSeconds: how long it had earlier partitions.",
        schema=_COUNT,
    ),
)


# -- the definition of IPUJobs -----------------------------------------------------------------------------------------
# The definition of IPUJobs for the API server (apiextensions.k8s.io/v1), made from the table of fields. There are two
# versions. The first has no CEL rules, so every server takes it: before 1.25, kubectl refuses to apply a definition
# with `x-kubernetes-validations`, instead of ignoring them. The second has them, as a second check behind the webhook.

NAME = f"{PLURAL}.{GROUP}"
SHORT_NAMES = ("ipuj",)

# NAME comes first by itself, and in a list of several kinds its cells begin with `ipujob.graphcore.ai/`.
COLUMNS = (
    ("Status", "string", ".status.status", "How the job stands"),
    ("Current", "integer", ".status.currentInstances", "Instances that have their Pods"),
    ("Desired", "integer", ".spec.jobInstances", "Instances that are wanted"),
    ("LastMessage", "string", ".status.lastMessage", "The last thing there was to say"),
    ("Age", "date", ".metadata.creationTimestamp", "When the job was made"),
)


def build_crd(*, rules: bool = False) -> KubeObject:
    """The CustomResourceDefinition of IPUJobs.

    Args:
        rules: with CEL rules; they need a server (a client is not enough) of 1.25 or later.
    """
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": list(SHORT_NAMES),
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": build_schema(rules=rules)},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.jobInstances",
                            "statusReplicasPath": ".status.currentInstances",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": said}
                        for name, kind, path, said in COLUMNS
                    ],
                }
            ],
        },
    }


def build_schema(*, rules: bool = False) -> KubeObject:
    """The structural schema of an IPUJob."""
    top: KubeObject = {
        "type": "object",
        "description": "A job on IPUs: its Pods are made when its partition is there, and it goes when they are done.",
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{KIND}."},
            "metadata": {"type": "object"},
        },
        **_rules(JOB_RULES if rules else ()),
    }
    nodes = {"": top}
    for entry in (*SPEC, *STATUS):
        holder, _, name = entry.path.rpartition(".")
        into = _inside(nodes[holder.rstrip("[]{}")], holder)
        nodes[entry.path] = into.setdefault("properties", {}).setdefault(name, _node(entry, rules=rules))
        if entry.required:
            into.setdefault("required", []).append(name)
    return top


def _inside(node: KubeObject, path: str) -> KubeObject:
    """The schema node that holds the properties of a path: the node itself, its items or its values."""
    key = "items" if path.endswith("[]") else "additionalProperties" if path.endswith("{}") else ""
    return node.setdefault(key, {"type": "object"}) if key else node


def _node(entry: CrdField, *, rules: bool) -> KubeObject:
    said = {"description": entry.meaning.replace("`", "'"), **_TYPES[entry.type], **entry.schema}
    if entry.filled:
        said["default"] = entry.default
    if entry.path == "status.conditions":
        said |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return said | _rules(entry.rules if rules else ())


_TYPES: dict[FieldType, dict[str, Any]] = {
    FieldType.INTEGER: {"type": "integer"},
    FieldType.STRING: {"type": "string"},
    FieldType.BOOLEAN: {"type": "boolean"},
    FieldType.TIME: {"type": "string", "format": "date-time"},
    FieldType.NUMBER: {"x-kubernetes-int-or-string": True},
    FieldType.OBJECT: {"type": "object"},
    FieldType.OPEN: {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    FieldType.LIST: {"type": "array"},
    FieldType.MAP: {"type": "object"},
}


def _rules(rules: Iterable[CelRule]) -> KubeObject:
    validations = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    return {"x-kubernetes-validations": validations} if validations else {}
