"""The definition of IPUJobs: structural, complete, one default a field; with CEL rules only where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.ipujob.fields import SPEC, STATUS, build_crd, build_schema
from moorings.kubernetes.ipujob.parsing import parse_ipujob, read_ipujob, status_object
from moorings.kubernetes.ipujob.types import Condition, InstanceOutcome, InstanceStatus, IPUJobStatus, StartAttempts
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import to_camel_case
from tests.unit.kubernetes.ipujobs import EXAMPLES, an_object, example


def nodes(node: KubeObject, path: str = "") -> Iterator[tuple[str, KubeObject]]:
    yield path, node
    for name, each in node.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}".lstrip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in node:
            yield from nodes(node[key], f"{path}{mark}")


def unknown(node: KubeObject, found: object, path: str = "") -> Iterator[str]:
    """Paths that the API server would prune of an object."""
    if isinstance(found, dict):
        inner = node.get("properties", {})
        for name, each in found.items():
            if "additionalProperties" in node:
                yield from unknown(node["additionalProperties"], each, f"{path}.{name}")
            elif name in inner:
                yield from unknown(inner[name], each, f"{path}.{name}")
            elif not node.get("x-kubernetes-preserve-unknown-fields") and path != ".metadata":
                yield f"{path}.{name}"
    elif isinstance(found, list):
        for each in found:
            yield from unknown(node["items"], each, f"{path}[]")


SCHEMA = build_schema()


def test_every_field_is_in_the_schema_and_is_explained():
    found = dict(nodes(SCHEMA))
    for field in (*SPEC, *STATUS):
        assert found[field.path]["description"], field.path
    assert {path for path, node in found.items() if "description" in node} == {
        "",
        *("apiVersion", "kind"),
        *(field.path for field in (*SPEC, *STATUS)),
    }


def test_every_node_has_a_type():
    untyped = [path for path, node in nodes(SCHEMA) if "type" not in node]
    assert all(dict(nodes(SCHEMA))[path].get("x-kubernetes-int-or-string") for path in untyped)
    assert all("items" in node for _, node in nodes(SCHEMA) if node.get("type") == "array")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_nothing_of_an_example_is_pruned(name):
    assert list(unknown(SCHEMA, example(name))) == []


def test_nothing_of_a_status_is_pruned():
    at = Timestamp(0)
    start = StartAttempts(since=at, missed=1, until=at, why="x")
    full = IPUJobStatus(
        state="x",
        message="x",
        conditions=(
            Condition(
                type="x",
                status=True,
                reason="x",
                message="x",
                changed_at=at,
                updated_at=Timestamp(1),
                observed_generation=1,
            ),
        ),
        launcher="x",
        starts_at=at,
        certainty="AtLatest",
        active=1,
        ready=1,
        started_at=at,
        completed_at=at,
        workers_active=1,
        workers_succeeded=1,
        workers_failed=1,
        instances={1: InstanceStatus(restarts=1, failures=1, outcome=InstanceOutcome.FAILED, detail="x", start=start)},
    )
    assert status_object(full).keys() | {"selector"} == SCHEMA["properties"]["status"]["properties"].keys()
    assert list(unknown(SCHEMA, {"status": status_object(full)})) == []


def test_every_field_of_a_record_is_kept():
    within = "status.instances{}."
    kept = {field.path.removeprefix(within) for field in STATUS if field.path.startswith(within)}
    start = {f"start.{to_camel_case(field.name)}" for field in fields(StartAttempts)}
    assert kept == {to_camel_case(field.name) for field in fields(InstanceStatus)} | start


def test_a_number_may_be_quoted():
    node = dict(nodes(SCHEMA))["spec.ipusPerJobInstance"]
    assert node["x-kubernetes-int-or-string"] is True
    assert "type" not in node


def test_the_schema_s_defaults_are_those_of_the_reader():
    spec = {field.name: field.default for field in SPEC if field.filled and field.path.count(".") == 1}
    bare, full = an_object({"ipusPerJobInstance": 1}), an_object({"ipusPerJobInstance": 1, **spec})
    assert parse_ipujob(bare) == parse_ipujob(full)
    assert read_ipujob(full)[1] == ()
    assert {"jobInstances", "restartPolicy", "cleanPodPolicy", "releaseOnFinish"} == set(spec)


def test_what_has_another_spelling_has_no_default_in_the_schema():
    aliased = [field for field in SPEC if field.alias]
    assert {field.name for field in aliased} == {"workerPerJobInstance", "modelReplicasPerWorker", "priority"}
    assert not any("default" in dict(nodes(SCHEMA))[field.path] for field in aliased)


def test_cel_rules_are_there_only_where_they_are_asked_for():
    plain, ruled = (dict(nodes(build_schema(rules=rules))) for rules in (False, True))
    assert not any("x-kubernetes-validations" in node for node in plain.values())
    assert plain.keys() == ruled.keys()
    with_rules = {path for path, node in ruled.items() if "x-kubernetes-validations" in node}
    assert {"", "spec", "spec.ipusPerJobInstance", "spec.launcher.command", "spec.interactive.ttl"} <= with_rules
    for node in ruled.values():
        for rule in node.pop("x-kubernetes-validations", ()):
            assert rule["rule"]
            assert rule["message"]
    assert ruled == plain


def test_it_scales_and_is_listed_with_everything():
    spec = build_crd()["spec"]
    (version,) = spec["versions"]
    assert spec["names"]["categories"] == ["all"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.jobInstances"
    assert [column["name"].upper() for column in version["additionalPrinterColumns"]] == [
        *("STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"),
    ]
    for paths in (
        version["subresources"]["scale"].values(),
        (c["jsonPath"] for c in version["additionalPrinterColumns"]),
    ):
        known = {f".{field.path}" for field in (*SPEC, *STATUS)} | {".metadata.creationTimestamp"}
        assert set(paths) <= known
