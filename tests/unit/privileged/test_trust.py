"""Code and configuration that is not root's alone is found, wherever on the way to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.privileged.trust import tree_fault, trust_fault

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is root's")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below the root folder alone: /tmp is everybody's."""
    made = Path(f"/moorings-trust-{os.getpid()}")
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


def test_what_is_roots_up_to_the_root_folder_is_trusted(folder: Path) -> None:
    (folder / "code").mkdir(mode=0o755)
    (folder / "code" / "a.py").touch(mode=0o644)
    (folder / "link").symlink_to("code/a.py")
    assert trust_fault(folder / "link") == tree_fault(folder) == ""


def test_what_others_may_change_is_not(folder: Path) -> None:
    code = folder / "code"
    code.mkdir(mode=0o755)
    file = code / "a.py"
    file.touch(mode=0o644)
    file.chmod(0o664)
    assert "a.py can be written by others (0664)" in tree_fault(folder)
    file.chmod(0o644)
    os.chown(file, 61_001, 0)
    assert "a.py is user 61001's" in tree_fault(folder)
    os.chown(file, 0, 0)
    code.chmod(0o777)
    assert "code can be written by others" in trust_fault(file)
    code.chmod(0o755)
    os.chown(code, 61_001, 0)
    assert "code is user 61001's" in trust_fault(file)


def test_the_target_of_a_link_counts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.py").touch(mode=0o644)
    (folder / "link").symlink_to(tmp_path / "a.py")
    assert "can be written by others" in trust_fault(folder / "link"), "/tmp is everybody's"
    (folder / "own").symlink_to("own")
    assert "too many links" in trust_fault(folder / "own")
    os.chown(folder / "link", 61_001, 0, follow_symlinks=False)
    assert "the link" in trust_fault(folder / "link")


def test_of_a_path_that_is_not_there_its_folders_count(folder: Path, tmp_path: Path) -> None:
    assert trust_fault(folder / "none" / "deeper") == ""
    assert "can be written by others" in trust_fault(tmp_path / "none"), "/tmp is everybody's"


SHOWS = """
import sys
from pathlib import Path
from moorings.privileged.trust import daemon_fault
del sys.modules["__main__"].__file__
print(daemon_fault(*map(Path, sys.argv[1:])))
"""


@pytest.fixture
def installed(folder: Path) -> Path:
    """A virtual environment as an admin makes one; its folder of packages."""
    python = Path("/usr/bin/python3")
    if not python.exists() or trust_fault(python):
        pytest.skip(f"there is no {python} of root's alone")
    made = [str(python), "-m", "venv", "--without-pip", "--symlinks", str(folder / "venv")]
    if subprocess.run(made, check=False, capture_output=True).returncode != 0:
        pytest.skip("this Python makes no virtual environments")
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    (packages / "moorings").mkdir(mode=0o755)
    (packages / "moorings" / "__init__.py").touch(mode=0o644)
    sources = Path(sys.modules["moorings.privileged"].__path__[0])
    shutil.copytree(sources, packages / "moorings" / "privileged", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "shows.py").write_text(SHOWS)
    return packages


def fault_of(packages: Path, *folders: str) -> str:
    venv = packages.parents[2]
    words = [str(venv / "bin" / "python"), "-I", str(venv.parent / "shows.py"), *folders]
    done = subprocess.run(words, capture_output=True, text=True, check=True, umask=0o022)
    return done.stdout.strip()


def test_whatever_the_interpreter_executes_is_looked_at(installed: Path) -> None:
    assert fault_of(installed, "/run/moorings-none") == ""
    assert "/tmp can be written by others" in fault_of(installed, "/tmp/sockets")
    for name, content in (("more.pth", "import os"), ("sitecustomize.py", "")):
        file = installed / name
        file.write_text(content)
        file.chmod(0o664)
        assert f"{name} can be written by others (0664)" in fault_of(installed)
        file.unlink()
    elsewhere = installed.parents[3] / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (installed / "more.pth").write_text(f"{elsewhere}\n")
    os.chown(elsewhere, 61_001, 0)
    assert "elsewhere is user 61001's" in fault_of(installed)
    os.chown(elsewhere, 0, 0)
    (elsewhere / "extra.py").touch(mode=0o644)
    (installed / "more.pth").write_text(f"{elsewhere}\nimport extra\n")
    assert fault_of(installed) == ""
    installed.chmod(0o777)
    assert "site-packages can be written by others" in fault_of(installed)
