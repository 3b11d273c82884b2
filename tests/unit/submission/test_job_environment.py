"""The variables of a job of ``moor run``: by place, flags and files."""

import json
import os

import pytest

from moorings.core.model.errors import MooringsError
from moorings.submission.job_building import JobFlags, build_job
from moorings.submission.job_environment import JobPlace, choose_export, find_place

SHELL = {"PATH": "/bin", "HOME": "/home/ann", "TOKEN": "t", "b-c": "1"}
SERVER = "http://127.0.0.1:8090"


def built(folder, *, file=None, export="ALL", warned=None, **flags):
    said = [] if warned is None else warned
    command = [] if file is not None else ["x"]
    return build_job(
        file, command, JobFlags(**flags), SHELL, folder, "default", usual_export=export, warn=said.append
    ).environment


def test_all_travels_by_ones_own_controller_and_the_rest_is_told(tmp_path):
    warned: list[str] = []
    assert built(tmp_path, warned=warned) == {"PATH": "/bin", "HOME": "/home/ann", "TOKEN": "t"}
    assert warned == ["b-c does not travel: its name is none that every shell knows"]


def test_the_usual_gives_way_to_the_file_and_that_to_the_flag(tmp_path):
    (tmp_path / "job.toml").write_text('command = "x"\n[environment]\nexport = "HOME"\nset = { A = "1" }\n')
    assert built(tmp_path, file="job.toml") == {"HOME": "/home/ann", "A": "1"}
    assert built(tmp_path, file="job.toml", exported="TOKEN") == {"TOKEN": "t", "A": "1"}
    (tmp_path / "job.toml").write_text('command = "x"\n[environment]\npass = ["HOME"]\n')
    assert built(tmp_path, file="job.toml") == {"HOME": "/home/ann"}
    (tmp_path / "job.toml").write_text('command = "x"\n')
    assert built(tmp_path, file="job.toml", export="BASIC") == {"PATH": "/bin", "HOME": "/home/ann"}


def test_a_mistake_in_the_files_rule_is_told_by_its_line(tmp_path):
    (tmp_path / "job.toml").write_text('command = "x"\n[environment]\nexport = "NONE,A"\n')
    with pytest.raises(MooringsError, match=r"job\.toml:3: export: NONE"):
        built(tmp_path, file="job.toml")


def test_files_of_variables_win_over_the_shell_and_flags_over_files(tmp_path):
    (tmp_path / "one.env").write_text("TOKEN=one\nA=1\n")
    (tmp_path / "two.env").write_text("A=2\nB=2\n")
    for name in ("one.env", "two.env"):
        (tmp_path / name).chmod(0o600)
    warned: list[str] = []
    given = built(tmp_path, exported="TOKEN", env_files=("one.env", "two.env"), environment=("B=3",), warned=warned)
    assert given == {"TOKEN": "one", "A": "2", "B": "3"}
    assert warned == []


def test_a_file_that_others_can_read_is_warned_of(tmp_path):
    (tmp_path / "one.env").write_text("A=1\n")
    (tmp_path / "one.env").chmod(0o640)
    warned: list[str] = []
    built(tmp_path, export="NONE", env_files=("one.env",), warned=warned)
    assert len(warned) == 1
    assert "chmod 600" in warned[0]


@pytest.mark.parametrize("name", ["nosuch.env", ".", "pipe"])
def test_a_file_that_cannot_be_read_is_an_error_at_once(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MooringsError, match="cannot be read") as caught:
        built(tmp_path, env_files=(name,))
    assert caught.value.code == "job.invalid"


def test_a_place_is_known_by_what_lies_on_this_machine(tmp_path):
    environment = {"MOORINGS_DATA": str(tmp_path)}
    assert find_place(SERVER, "local", environment) is JobPlace.ELSEWHERE
    (tmp_path / "controller.json").write_text(json.dumps({"pid": 1, "url": f"{SERVER}/"}))
    assert find_place(SERVER, "local", environment) is JobPlace.OWN
    assert find_place("http://127.0.0.1:8091", "local", environment) is JobPlace.ELSEWHERE
    assert find_place(SERVER, "slurm", environment) is JobPlace.ELSEWHERE
    assert find_place("unix:///run/moorings/api", "local", environment) is JobPlace.SHARED
    (tmp_path / "controller.json").write_text("[]")
    assert find_place(SERVER, "local", environment) is JobPlace.ELSEWHERE


def test_all_travels_to_ones_own_and_to_slurm_alone():
    assert choose_export(JobPlace.OWN, "local") == choose_export(JobPlace.ELSEWHERE, "slurm") == "ALL"
    assert choose_export(JobPlace.SHARED, "local") == choose_export(JobPlace.ELSEWHERE, "local") == "BASIC"
    assert choose_export(JobPlace.ELSEWHERE, "kubernetes") == "NONE"
