"""What the page on job files says for each framework stands in a training that is tested."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-a-job-file.md"
SCRIPTS = {
    "PyTorch": "torch_train.py",
    "Lightning": "lightning_train.py",
    "Hugging Face Trainer": "hf_train.py",
    "JAX with Orbax": "orbax_train.py",
}


@cases(("framework", "script"), list(SCRIPTS.items()))
def test_each_line_stands_in_a_training_that_is_disturbed(framework: str, script: str) -> None:
    section = PAGE.read_text().partition("## With your framework")[2].partition("\n## ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| {framework} |"))
    (advice,) = re.findall(
        rf"^- \*\*{framework.removeprefix('JAX with ')}\.\*\* (.*?)(?=^- |\Z)", section, re.MULTILINE | re.DOTALL
    )
    lines = re.findall(r"`([^`]+)`", row)
    assert len(lines) == 2
    code = (ROOT / "tests" / "e2e" / script).read_text()
    more = [each for each in re.findall(r"`([^`]+)`", advice) if "(" in each]
    assert [line for line in (*lines, *more) if line not in code] == []
