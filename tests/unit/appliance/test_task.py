"""What runs in a job before the work begins: an order that is refused, a script that does not do what it should."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.appliance.job_spec import ApplianceJobSpec, write_job_spec
from moorings.appliance.jobs import build_appliance_job
from moorings.appliance.schemas import RunConfig
from moorings.appliance.workflow_config import WorkflowConfig

TELL = """import sys
from moorings.appliance import entry
print(__name__, sys.argv, sys.path[0], entry._order.act)
"""


@pytest.fixture
def order(tmp_path: Path) -> ApplianceJobSpec:
    params: dict[str, dict[str, object]] = {
        name: {} for name in ("model", "train_input", "eval_input", "optimizer", "runconfig")
    }
    return ApplianceJobSpec(
        act="compile",
        program="train",
        params=params,
        model_dir=str(tmp_path),
        compile_dir=str(tmp_path),
        folder=str(tmp_path / "jobs"),
        systems=1,
        weight_servers=1,
    )


def run_task(script: Path, order: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "moorings.appliance.task", "--script", str(script), "--order", str(order)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")


def run_job(
    order: ApplianceJobSpec, script: Path, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The order's job as an engine would run it: its command, its folder, its variables."""
    wish = WorkflowConfig(
        mode="train",
        config=RunConfig(max_steps=1),
        origins={},
        source="p.yaml",
        params=order.params,
        model_dir=Path(order.model_dir),
        compile_dir=Path(order.compile_dir),
        mount_dirs=(),
        python_paths=(),
        labels={},
        priority=-299,
        checkpoint=None,
        compile_only=False,
        validate_only=False,
    )
    write_job_spec(order)
    job = build_appliance_job(
        order,
        wish,
        script=script,
        folder=folder,
        workflow="wflow-" + "a" * 22,
        environment=environment,
        lease_s=60.0,
        memory=False,
        time_limit_s=None,
    )
    return subprocess.run(
        job.command, capture_output=True, text=True, check=False, cwd=job.workdir, env=dict(job.environment)
    )


def test_the_script_runs_as_it_would_by_itself(tmp_path: Path, order: ApplianceJobSpec) -> None:
    script = tmp_path / "run.py"
    script.write_text(TELL)
    done = run_task(script, write_job_spec(order))
    assert done.stdout == f"__main__ ['{script}', 'CSX'] {tmp_path} compile\n"
    assert done.returncode == 2
    assert done.stderr == f"error: {script} came to its end without calling moorings.appliance.run\n"


def test_a_job_imports_nothing_from_its_working_folder(tmp_path: Path, order: ApplianceJobSpec) -> None:
    for name in ("work", "home", "lib"):
        (tmp_path / name).mkdir()
    for name in ("json", "argparse", "runpy", "moorings", "mine"):
        (tmp_path / "work" / f"{name}.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "home" / "mine.py").write_text("")
    (tmp_path / "lib" / "other.py").write_text("")
    script = tmp_path / "home" / "run.py"
    script.write_text("import sys, mine, other; print(sys.path[0], mine.__file__, other.__file__); sys.exit(0)")
    done = run_job(order, script, tmp_path / "work", PYTHONPATH="../lib")
    assert (done.returncode, done.stderr) == (0, "")
    path, mine, other = done.stdout.split()
    assert (path, mine) == (str(tmp_path / "home"), str(tmp_path / "home" / "mine.py"))
    assert Path(other).samefile(tmp_path / "lib" / "other.py"), "PYTHONPATH is the user's wish"


def test_its_own_exit_code_is_kept(tmp_path: Path, order: ApplianceJobSpec) -> None:
    script = tmp_path / "run.py"
    script.write_text("raise SystemExit(7)")
    assert run_task(script, write_job_spec(order)).returncode == 7


def test_what_cannot_be_used_is_refused(tmp_path: Path, order: ApplianceJobSpec) -> None:
    script = tmp_path / "run.py"
    script.write_text("print('ran')")
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    for path, told in (
        (damaged, f"error: {damaged}: it is not JSON (order.invalid)"),
        (
            write_job_spec(replace(order, mount_dirs=("/nowhere",))),
            "error: /nowhere is not to be seen where the job runs",
        ),
    ):
        done = run_task(script, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(told)
    done = run_task(tmp_path / "none.py", write_job_spec(order))
    assert "none.py is not to be seen where the job runs" in done.stderr


def test_the_client_needs_neither_jax_nor_numpy() -> None:
    code = "import sys, moorings.appliance.client, moorings.appliance as a; a.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "moorings" in loaded
    assert not loaded & {"jax", "numpy", "fastapi", "pydantic", "sqlalchemy"}
