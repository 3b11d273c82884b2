"""The definition of IPUJobs for the API server (apiextensions.k8s.io/v1), made from the table of fields.

There are two versions. The first has no CEL rules, so every server takes it: before 1.25, kubectl refuses to apply a
definition with `x-kubernetes-validations`, instead of ignoring them. The second has them, as a second check behind the
webhook.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moorings.kubernetes.fields import JOB_RULES, SPEC, STATUS, CelRule, CrdField, FieldType
from moorings.kubernetes.ipujob import GROUP, KIND, PLURAL, VERSION, KubeObject

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
    for field in (*SPEC, *STATUS):
        holder, _, name = field.path.rpartition(".")
        into = _inside(nodes[holder.rstrip("[]{}")], holder)
        nodes[field.path] = into.setdefault("properties", {}).setdefault(name, _node(field, rules=rules))
        if field.required:
            into.setdefault("required", []).append(name)
    return top


def _inside(node: KubeObject, path: str) -> KubeObject:
    """The schema node that holds the properties of a path: the node itself, its items or its values."""
    key = "items" if path.endswith("[]") else "additionalProperties" if path.endswith("{}") else ""
    return node.setdefault(key, {"type": "object"}) if key else node


def _node(field: CrdField, *, rules: bool) -> KubeObject:
    said = {"description": field.meaning.replace("`", "'"), **_TYPES[field.type], **field.schema}
    if field.filled:
        said["default"] = field.default
    if field.path == "status.conditions":
        said |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return said | _rules(field.rules if rules else ())


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
    told = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    return {"x-kubernetes-validations": told} if told else {}
