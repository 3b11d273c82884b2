"""What is found wrong with a job before it is submitted, where it would run here."""

import os
import stat
from dataclasses import replace

import pytest

from moorings.core.model.errors import MooringsError
from moorings.submission.early_checks import check_startable
from moorings.workloads.jobs import JobSpec


@pytest.fixture
def job(tmp_path):
    program = tmp_path / "bin" / "train"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return JobSpec(
        name="n", command=("train",), workdir=str(tmp_path), environment={"PATH": f"/nosuch:{program.parent}"}
    )


def refused(job):
    with pytest.raises(MooringsError) as caught:
        check_startable(job)
    assert caught.value.code == "job.not_startable"
    return f"{caught.value.detail}; {caught.value.hint}"


def test_a_job_that_can_start_is_let_through(job):
    check_startable(job)
    check_startable(replace(job, command=("./bin/train",)))
    check_startable(replace(job, command=("train",), environment={"PATH": "bin"}))
    check_startable(replace(job, command=("sh",), environment={}))
    check_startable(replace(job, checkpoint_directory=f"{job.workdir}/a/b"))


def test_a_program_that_is_not_there_is_named_with_where_it_was_sought(job):
    assert "program trian was not found; looked for in PATH=/nosuch:" in refused(replace(job, command=("trian",)))
    assert "no program ./trian" in refused(replace(job, command=("./trian",)))
    assert "the job has no PATH" in refused(replace(job, environment={}))
    assert "program bin was not found" in refused(replace(job, command=("bin",), environment={"PATH": "/nosuch"}))


def test_a_file_that_is_no_program_is_refused(job, tmp_path):
    (tmp_path / "bin" / "train").chmod(0o644)
    assert "is not executable; chmod +x" in refused(job)
    assert "is not executable" in refused(replace(job, command=("./bin",))), "a folder"


def test_a_first_line_names_an_interpreter_that_is_there(job, tmp_path):
    (tmp_path / "bin" / "train").write_text("#!/nosuch/python3 -u\n")
    assert "there is no /nosuch/python3" in refused(job)
    (tmp_path / "bin" / "train").write_bytes(b"\x7fELF\n#!/nosuch\n")
    check_startable(job)


def test_setup_knows_better_what_there_will_be(job):
    check_startable(replace(job, command=("nosuch",), setup=("module load it",)))


def test_a_working_folder_can_be_entered(job, tmp_path):
    assert "No such file" in refused(replace(job, workdir=f"{tmp_path}/nosuch", setup=("true",)))
    assert "is no folder" in refused(replace(job, workdir=f"{tmp_path}/bin/train"))


def test_a_folder_of_checkpoints_that_nobody_can_make_is_refused(job, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("/nosuch")
    check_startable(replace(job, checkpoint_directory=str(tmp_path / "file")))  # what is there may be read
    if os.geteuid() != 0:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        assert "not yours to write in" in refused(replace(job, checkpoint_directory=str(tmp_path / "a" / "b")))
    else:
        assert "not yours to write in" in refused(replace(job, checkpoint_directory=str(tmp_path / "gone" / "b")))
