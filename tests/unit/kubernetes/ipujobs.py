"""IPUJobs for the tests: the documented examples, small jobs, and any JSON where a job is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from moorings.kubernetes.ipujob.types import API_VERSION, KIND
from moorings.kubernetes.kube.api import KubeObject

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"


def example(name: str) -> KubeObject:
    """The IPUJob in an example's file."""
    (found,) = [each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == KIND]
    return dict(found)


def a_spec(**more: Any) -> KubeObject:
    """A small inference job's spec; a value of None leaves the field out."""
    spec = {"ipusPerJobInstance": "4", "workers": {"template": a_template()}, **more}
    return {name: value for name, value in spec.items() if value is not None}


def a_template(**more: Any) -> KubeObject:
    """A Pod template; ``more`` are fields of the Pods' spec."""
    return {"spec": {"containers": [{"name": "c", "image": "i"}], **more}}


def a_container(**more: Any) -> KubeObject:
    """A worker's container."""
    return {"name": "c", "image": "i", **more}


def an_object(spec: object = None, *, name: str = "job", status: object = None, **meta: Any) -> KubeObject:
    """An IPUJob as the API server has it."""
    found: KubeObject = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default", **meta},
    }
    found["spec"] = a_spec() if spec is None else spec
    return found if status is None else {**found, "status": status}


_words = st.text(max_size=8)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _words
anything = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3), max_leaves=8
)


def shaped(*known: str, **inside: st.SearchStrategy[Any]) -> st.SearchStrategy[KubeObject]:
    """Objects in which known fields hold anything, and others what is right for them, or anything."""
    fields = dict.fromkeys(known, anything) | {name: right | anything for name, right in inside.items()}
    return st.fixed_dictionaries({}, optional=fields)


# Mostly right, so that much of it can be built.
_named = _words.map(lambda word: f"n{word}")
_mounts = st.lists(shaped(name=st.just("v"), mountPath=_named), max_size=2)
_container = st.builds(
    lambda required, optional: {**required, **optional},
    st.fixed_dictionaries({"name": _named, "image": _named}) | shaped("name", "image"),
    shaped(
        *("args", "ports", "securityContext", "livenessProbe"),
        env=st.lists(shaped("value", name=_named), max_size=2),
        volumeMounts=_mounts,
    ),
)
_pod = shaped(
    *("restartPolicy", "nodeSelector", "imagePullSecrets", "serviceAccountName", "securityContext", "hostPID"),
    containers=st.lists(_container, min_size=1, max_size=2),
    initContainers=st.lists(_container, max_size=1),
    volumes=st.just([{"name": "v"}]) | st.lists(shaped("name", "hostPath", "projected"), max_size=2),
)
_numbers = st.integers(-2, 9) | st.integers(-2, 9).map(str)
_spec = shaped(
    *("cleanPodPolicy", "releaseOnFinish", "priority", "startDeadlineSeconds", "nodeLostSeconds"),
    jobInstances=_numbers,
    ipusPerJobInstance=_numbers,
    workerPerJobInstance=_numbers,
    modelReplicasPerWorker=_numbers,
    modelReplicas=_numbers,
    ipusPerModelReplica=_numbers,
    launcher=shaped("command", "args", "env", "volumeMounts"),
    interactive=shaped("ttl"),
    restartPolicy=shaped("type", "backOffLimit"),
    workers=shaped(replicas=_numbers, template=shaped(metadata=shaped("labels", "annotations"), spec=_pod)),
)
_condition = shaped("type", "status", "reason", "message", "lastTransitionTime", "lastUpdateTime")
_status = shaped(
    *("status", "currentInstances", "lastMessage", "startTime", "completionTime", "restartCount", "workersStatus"),
    conditions=st.lists(_condition, max_size=2),
    instances=st.dictionaries(_words | _numbers.map(str), shaped("restarts", "failures", "outcome"), max_size=2),
)
_meta = shaped("finalizers", "generation", "creationTimestamp", "deletionTimestamp", "generateName", name=_words)
objects = st.fixed_dictionaries({"metadata": _meta}, optional={"spec": _spec | anything, "status": _status | anything})
