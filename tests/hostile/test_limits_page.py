"""The page of limits says what the code says, and leaves none out."""

import ast
import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from moorings.api.limits import DEFAULT_LIMITS, ApiLimits

PAGE = Path("docs/explanation/hostile-input.md")
ROW = re.compile(r"^\| .* \| ([0-9.,]+)[^|]* \| `([a-z_.]+):([A-Za-z_.]+)` \|$", re.MULTILINE)
FOLDERS = ("api", "client", "core", "net", "privileged", "wire", "workloads")
# Bounds of a loop or a cache of our own, which nobody outside can reach.
INNER = {
    *("ERRORS_SHOWN_MAX", "STREAM_SILENCE_S_MAX", "WHERE_CHARS_MAX", "PROBLEM_CHARS_MAX"),
    *("CANDIDATES_MAX", "USED_MAX", "MISSING_S_MIN"),
}


def value_of(module: str, name: str) -> float:
    found: object = importlib.import_module(f"moorings.{module}")
    for part in name.split("."):
        found = DEFAULT_LIMITS if part == "ApiLimits" else getattr(found, part)
    assert isinstance(found, int | float)
    return found


def told() -> dict[tuple[str, str], float]:
    return {(module, name): json.loads(value.replace(",", "")) for value, module, name in ROW.findall(PAGE.read_text())}


def test_every_number_is_the_codes() -> None:
    rows = told()
    assert len(rows) > 40
    assert {key: value_of(*key) for key in rows} == rows


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_limit_is_on_the_page(folder: str) -> None:
    wanted = set()
    for path in Path("src/moorings", folder).rglob("*.py"):
        module = ".".join(path.relative_to("src/moorings").with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign):
                names = {leaf.id for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
                wanted |= {(module, name) for name in names - INNER if re.fullmatch(r"[A-Z][A-Z_]*_(MAX|MIN)", name)}
    assert wanted - set(told()) == set()


def test_every_limit_of_the_server_is_on_the_page() -> None:
    assert {("api.limits", f"ApiLimits.{item.name}") for item in fields(ApiLimits)} - set(told()) == set()
