"""The list of controllers, their keys, and the projects of namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.settings import (
    ControllerEntry,
    ProxySettings,
    parse_controllers,
    parse_projects,
    read_controllers,
)
from tests.cases import cases


def test_the_seeds_list() -> None:
    assert parse_controllers("pod001:8090:ipunode=node1,pod002:8091:ipunode=node2") == (
        ControllerEntry("pod001", 8090, {"ipunode": "node1"}),
        ControllerEntry("pod002", 8091, {"ipunode": "node2"}),
    )


def test_lines_blanks_and_missing_labels_are_taken() -> None:
    found = parse_controllers("\n pod1:8090 ,\n10.0.0.1:1:example.com/rack=r-1\n[fd00::1]:8090:a=\n")
    assert [entry.name for entry in found] == ["pod1:8090", "10.0.0.1:1", "[fd00::1]:8090"]
    assert [dict(entry.labels) for entry in found] == [{}, {"example.com/rack": "r-1"}, {"a": ""}]
    assert parse_controllers("") == ()


@cases(
    "entry",
    [
        *("pod1", "pod1:", "pod1:0", "pod1:65536", "pod1:x:a=b", ":8090:a=b", "pod 1:8090", "pod1:8090:a"),
        *("pod1:8090:=b", "pod1:8090:a=b=c", "http://pod1:8090", "pod1:8090:a b=c"),
    ],
)
def test_what_cannot_be_read_is_named(entry: str) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_controllers(f"pod0:8090:a=b,{entry}")
    assert refused.value.code == "config.invalid"
    assert repr(entry.strip()) in refused.value.detail
    assert "host:port:key=value" in refused.value.hint


def test_one_that_is_listed_twice_is_a_mistake() -> None:
    with pytest.raises(MooringsError, match="pod1:8090 is listed twice"):
        parse_controllers("pod1:8090:a=b,pod1:8090:a=c")


def test_one_that_is_gone_for_good_is_marked() -> None:
    assert parse_controllers("pod1:8090:a=b,!pod2:8090,! pod3:8090:a=b") == (
        ControllerEntry("pod1", 8090, {"a": "b"}),
        ControllerEntry("pod2", 8090, is_removed=True),
        ControllerEntry("pod3", 8090, {"a": "b"}, is_removed=True),
    )
    with pytest.raises(MooringsError, match="pod1:8090 is listed twice"):
        parse_controllers("pod1:8090,!pod1:8090")


def test_keys_and_certificates_of_each(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("pod1:8090:a=b,pod2:8090:a=b")
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "access-key").write_text("moor_all_x\n")
    (keys / "pod2_8090").write_text("moor_two_y\n")
    plain = ProxySettings(cluster="lab", controllers_file=tmp_path / "list", keys_folder=keys)
    assert [(e.server, e.access_key) for _, e in read_controllers(plain)] == [
        ("http://pod1:8090", "moor_all_x"),
        ("http://pod2:8090", "moor_two_y"),
    ]
    secure = ProxySettings(cluster="lab", controllers_file=tmp_path / "list", ca_file=tmp_path / "ca.pem")
    found = [endpoint for _, endpoint in read_controllers(secure)]
    assert [(e.server, e.access_key, e.ca_file) for e in found] == [
        ("https://pod1:8090", "", str(tmp_path / "ca.pem")),
        ("https://pod2:8090", "", str(tmp_path / "ca.pem")),
    ]
    (keys / "pod2_8090").write_text("two words")
    with pytest.raises(MooringsError) as refused:
        read_controllers(plain)
    assert "two words" not in refused.value.detail
    (tmp_path / "list").unlink()
    with pytest.raises(MooringsError, match="cannot be read"):
        read_controllers(plain)


def test_projects_of_namespaces() -> None:
    assert parse_projects('{"a": "nlp", "b": "vision"}') == {"a": "nlp", "b": "vision"}
    assert parse_projects("a=nlp,\n b = vision") == {"a": "nlp", "b": "vision"}
    assert parse_projects("") == {}
    for bad in ("a", "=x", "a=", '{"a": 1}', '{"a"'):
        with pytest.raises(MooringsError) as refused:
            parse_projects(bad)
        assert refused.value.code == "config.invalid"
