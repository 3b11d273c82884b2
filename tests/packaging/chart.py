"""The chart as helm renders it, for the tests: real helm, no cluster."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.debian import ROOT
from tests.kubernetes import programs
from tests.waiting import patient

CHART = ROOT / "deploy" / "helm" / "ipu-operator"
RELEASE, NAMESPACE = "gc", "ipus"

Obj = dict[str, Any]


class Rendered:
    """What helm makes of the chart, hooks too; ``["Kind", "name"]`` gives an object, the name without the release's."""

    def __init__(self, text: str) -> None:
        # with libyaml: PyYAML's own reader takes ten times as long, and there are 150 of these
        self.objects: list[Obj] = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    def __getitem__(self, key: tuple[str, str]) -> Obj:
        return next(each for each in self.objects if is_named(each, key))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return any(is_named(each, key) for each in self.objects)

    def at(self, kind: str, name: str, path: str) -> Any:
        """What stands in an object at ``a.b[c].d``: ``[c]`` is the item called c; None if there is nothing."""
        found: Any = self[kind, name]
        for step in path.split("."):
            key, _, item = step.partition("[")
            found = (found or {}).get(key)
            if item:
                found = next((each for each in found or () if each["name"] == item[:-1]), None)
        return found

    def args(self, kind: str, name: str, container: str) -> dict[str, str]:
        """A container's options: ``--a=b`` as ``{"--a": "b"}``, words as themselves."""
        words = self.at(kind, name, f"spec.template.spec.containers[{container}].args")
        return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def is_named(found: Obj, key: tuple[str, str]) -> bool:
    name = found["metadata"]["name"]
    return found["kind"] == key[0] and name in (key[1], f"{RELEASE}-ipu-operator-{key[1]}")


def run_helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm away from any cluster; ``values`` are given to it as a file."""
    given = () if values is None else ("--values", "-")
    return subprocess.run(
        [programs.helm(), *words, *given],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
    )


def render(values: Mapping[str, Any] | None = None, *words: str, chart: Path = CHART) -> Rendered:
    """The chart with these values; it must be possible."""
    done = run_helm("template", RELEASE, str(chart), f"--namespace={NAMESPACE}", *words, values=values or {})
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


@functools.cache
def plain() -> Rendered:
    """The chart as it is without any values."""
    return render()


def nested(path: str, value: Any) -> Obj:
    """``{"a": {"b": value}}`` for ``a.b``."""
    for key in reversed(path.split(".")):
        value = {key: value}
    made: Obj = value
    return made


def default_values() -> Obj:
    """values.yaml."""
    read: Obj = yaml.safe_load((CHART / "values.yaml").read_text())
    return read


def value_at(values: Any, path: str) -> Any:
    """The value a parameter has."""
    for key in path.split("."):
        values = values[key]
    return values
