"""The rules of the house that no linter knows: who may import whom, what a folder says of itself, what starts fast."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.cases import cases

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "moorings"
MODULES = sorted(PACKAGE.rglob("*.py"))
TOP_FOLDERS = sorted(init.parent for init in PACKAGE.glob("*/__init__.py"))
PURE = [module for folder in ("core", "workloads") for module in sorted((PACKAGE / folder).rglob("*.py"))]

DRAWERS = {"utils", "util", "common", "base", "manager", "helpers", "helper", "misc"}
SERVER_LIBRARIES = {"alembic", "fastapi", "pydantic", "sqlalchemy", "starlette", "structlog", "uvicorn", "yaml"}
HEAVY = SERVER_LIBRARIES | {"cryptography"}
IMPURE_BUILTINS = {"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"}
CLOCKS = {"now", "today", "utcnow"}


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_folders_import_only_what_the_map_allows() -> None:
    linter = str(Path(sys.executable).with_name("lint-imports"))  # in a process: it would reconfigure our logging
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_with_code_is_a_package() -> None:
    folders = {folder for module in MODULES for folder in module.parents if folder.is_relative_to(PACKAGE)}
    assert [short(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@cases("folder", TOP_FOLDERS, ids=short)
def test_a_top_folder_says_what_is_here_and_what_is_not(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert re.search(r"\bnot here\b", text, re.IGNORECASE), (
        "the docstring says what is here, what is not here, where to start"
    )


def test_the_map_names_every_top_folder() -> None:
    words = (ROOT / "ARCHITECTURE.md").read_text()
    assert [short(folder) for folder in TOP_FOLDERS if f"{folder.name}/" not in words] == []


def test_no_module_is_a_drawer() -> None:
    assert [short(module) for module in MODULES if {module.stem, module.parent.name} & DRAWERS] == []


@cases("module", PURE, ids=short)
def test_a_module_that_decides_asks_no_clock_and_touches_no_file(module: Path) -> None:
    # import-linter sees imports; `open`, `print` and `datetime.now` need none that it could forbid.
    calls = [node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    found = [
        f"line {call.lineno}: {call.id}()"
        for call in calls
        if isinstance(call, ast.Name) and call.id in IMPURE_BUILTINS
    ]
    found += [
        f"line {call.lineno}: .{call.attr}()"
        for call in calls
        if isinstance(call, ast.Attribute) and call.attr in CLOCKS
    ]
    assert found == []


def test_the_command_starts_without_the_servers_libraries() -> None:
    code = "import sys, moorings.cli.main; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    answer = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    loaded = set(answer.stdout.split())
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_the_lock_names_only_the_public_index() -> None:
    # A mirror or a local folder in one developer's configuration must not become everybody's.
    lock = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]+)"', lock)) == {"https://pypi.org/simple"}
    hosts = {url.split("/")[2] for url in re.findall(r'url = "([^"]+)"', lock)}
    assert hosts == {"files.pythonhosted.org"}
