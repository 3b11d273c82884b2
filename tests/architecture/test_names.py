"""One name has one meaning: no name that was given up comes back, no class name means two things, terms are kept.

``retired.txt`` has the names of classes, functions, methods, fields and constants that were given up for standard
terms; what each is called now is in the table of ARCHITECTURE.md and, name by name, in ``renamed.tsv``. That has the
old paths of modules as well; its other names are qualified by the modules and classes of their time.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "moorings"
HERE = Path(__file__).parent
TREES = {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

TWICE = {
    "PartitionBody": "a shape of the API and one of the proxy: both names are published in OpenAPI descriptions",
    "PartitionRequest": "as PartitionBody",
    "Run": "for Python programs, moorings.Run is a run that they have submitted",
}

# A standard term, and the folders or files in which a class may carry it: elsewhere it would mean something else.
TERMS = {
    "Quota": {"core/scheduling/quotas.py", "wire/shapes.py", "api", "cli"},
    "Reservation": {"slurm", "wire/shapes.py"},
    "Lease": {"kubernetes", "appliance/lease_renewal.py", "core/model/inputs.py"},
    "Report": {  # what others say to the controller: agents of their queues, jobs of their runs
        "core/model/queue_reports.py",
        "engines/node_report.py",
        "ports/personal.py",
        "wire/shapes.py",
    },
    "Request": {
        "wire",
        "api",
        "client",
        "kubernetes/proxy",
        "kubernetes/proxy_api",
        "local",
        "slurm/host",
        "controller",
        "ports",
    },
}


def definitions() -> dict[str, list[str]]:
    """Where each class, function, field of a class and constant of a module is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name].append(f"{path}:{node.lineno}")
            if isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        found[field.target.id].append(f"{path}:{field.lineno}")
        for node in tree.body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id].append(f"{path}:{node.lineno}")
    return found


def classes() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return found


def test_names_given_up_stay_away() -> None:
    retired = (HERE / "retired.txt").read_text().split()
    known = definitions()
    assert {name: known[name] for name in retired if name in known} == {}, "renamed.tsv says what they are called now"


def test_modules_given_up_stay_away() -> None:
    rows = [line.split("\t") for line in (HERE / "renamed.tsv").read_text().splitlines()[1:]]
    moved = {was: now for was, now in rows if "." in now}
    assert len(moved) > 200
    assert [was for was in moved if (PACKAGE / f"{was.replace('.', '/')}.py").exists()] == []


def test_class_name_means_one_thing() -> None:
    twice = {name: list(map(str, paths)) for name, paths in classes().items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in TWICE} == {}
    assert set(TWICE) <= set(twice), "the list names only what is so"


def test_standard_term_means_one_thing() -> None:
    wrong = [
        f"{path}: {name}"
        for name, paths in classes().items()
        for path in paths
        for word in re.findall(r"[A-Z][a-z]+", name)
        if word in TERMS and not any(path.is_relative_to(place) for place in TERMS[word])
    ]
    assert wrong == []
