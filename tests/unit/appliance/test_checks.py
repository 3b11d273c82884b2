"""What is refused before anything is queued, and where the reason is said to stand."""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moorings.appliance.arguments import parse_arguments
from moorings.appliance.checkpoints import find_newest
from moorings.appliance.job_spec import SECTIONS
from moorings.appliance.program import Program
from moorings.appliance.workflow_config import (
    WorkflowConfig,
    build_workflow_config,
    check_pools,
    create_folders,
    requires_memory,
)
from moorings.core.model.errors import MooringsError
from moorings.wire.shapes import PoolBody, TopologyShape

GIB = 1 << 30


class Net:
    @dataclass
    class Params:
        hidden_size: int = 8

        def check(self) -> None:
            if self.hidden_size % 2:
                raise ValueError(f"hidden_size: {self.hidden_size} is odd")

    def __init__(self, params: Any) -> None:
        self.params = params

    def layers(self) -> list[Any]:
        return []


class Data:
    @dataclass
    class Params:
        batch_size: int
        shuffle: bool = True

    def __init__(self, params: Any) -> None:
        self.params = params

    def batch(self, step: int, *, system: int, systems: int) -> Any:
        return step, system, systems


PROGRAM = Program(Net, Data, Data)
PARAMS = """model:
  hidden_size: 8
train_input:
  batch_size: 6
eval_input:
  batch_size: 4
runconfig:
  max_steps: 20
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(PARAMS)
    return tmp_path


def wish(folder: Path, words: str = "--mode train", program: Program = PROGRAM, **environment: str) -> WorkflowConfig:
    arguments = parse_arguments(["CSX", "--params", "p.yaml", *words.split()])
    return build_workflow_config(arguments, program, {"HOME": str(folder), **environment}, folder)


def refused(folder: Path, words: str = "--mode train", program: Program = PROGRAM) -> MooringsError:
    with pytest.raises(MooringsError) as error:
        wish(folder, words, program)
    return error.value


def change(folder: Path, before: str, after: str) -> None:
    text = (folder / "p.yaml").read_text()
    assert before in text
    (folder / "p.yaml").write_text(text.replace(before, after))


def test_everything_has_a_value(folder: Path) -> None:
    made = wish(folder, "--mode train_and_eval --num_csx 2 --job_labels team=nlp --job_priority P1", SLURM_JOB_ID="65")
    assert (made.mode, made.config.num_csx, made.priority, made.last_step) == ("train_and_eval", 2, -199, 20)
    assert made.labels == {"team": "nlp", "SLURM_JOB_ID": "65"}
    assert made.model_dir == folder / "model_dir"
    assert made.compile_dir == folder / ".cache" / "moorings" / "compile"
    assert set(made.params) == set(SECTIONS)
    assert made.params["train_input"] == {"batch_size": 6, "shuffle": True}
    assert made.params["runconfig"]["job_labels"] == ["team=nlp"]
    assert made.params["runconfig"]["mode"] == "train_and_eval"
    assert wish(folder, XDG_CACHE_HOME="/big").compile_dir == Path("/big/moorings/compile")


def test_the_command_line_wins_over_the_file(folder: Path) -> None:
    change(folder, "  max_steps: 20\n", "  max_steps: 20\n  num_csx: 3\n  mode: eval\n  model_dir: here\n")
    assert wish(folder, "--num_csx 2").config.num_csx == 2
    made = wish(folder, "--num_csx 1 --mode train --model_dir /there/")
    assert (made.mode, made.model_dir) == ("train", Path("/there"))
    assert (made.origin_of("num_csx"), made.origin_of("mode")) == ("--num_csx", "--mode")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "p.yaml: no mode is given"),
        ("--mode train --num_csx 0", "--num_csx: 0 is not from 1 to 4096"),
        ("--mode train --num_csx -1", "--num_csx: -1 is not from 1 to 4096"),
        ("--mode train --num_csx 4", "p.yaml:4: train_input.batch_size: 6 cannot be divided by num_csx 4"),
        ("--mode eval --num_csx 3", "p.yaml:6: eval_input.batch_size: 4 cannot be divided by num_csx 3"),
        ("--mode train --num_wgt_servers 0", "--num_wgt_servers: 0 is not from 1 to 64"),
        ("--mode train --job_time_sec 0", "--job_time_sec: 0 is not from 1 to 31622400"),
        ("--mode train --job_priority high", "--job_priority: 'high' is not a priority"),
        ("--mode train --job_labels team", "--job_labels: 'team' is not KEY=VALUE"),
        ("--mode train --job_labels team=a:b", "--job_labels: label team: 'a:b' is not allowed"),
        ("--mode train --mount_dirs /nowhere", "--mount_dirs: there is no /nowhere"),
        ("--mode train --python_paths p.yaml", "--python_paths: {folder}/p.yaml is no folder"),
        ("--mode train --checkpoint_path best.npz", "--checkpoint_path: best.npz is not called checkpoint_STEP.npz"),
        (
            "--mode train --checkpoint_path checkpoint_3.npz",
            "--checkpoint_path: {folder}/checkpoint_3.npz cannot be used: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_is_named(folder: Path, words: str, told: str) -> None:
    assert refused(folder, words).detail == told.format(folder=folder)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("hidden_size: 8", "hidden_sise: 8", "p.yaml:2: the key 'hidden_sise' is not known in model"),
        ("hidden_size: 8", "hidden_size: big", "p.yaml:2: model.hidden_size must be a whole number, not 'big'"),
        ("hidden_size: 8", "hidden_size: 7", "p.yaml:2: model.hidden_size: 7 is odd"),
        ("batch_size: 6", "shuffle: true", "p.yaml:3: train_input.batch_size is missing"),
        ("batch_size: 6", "batch_size: 0", "p.yaml:4: train_input.batch_size: 0 is not at least 1"),
        ("max_steps: 20", "num_csx: 1", "p.yaml:7: runconfig.max_steps is missing"),
        ("max_steps: 20", "max_steps: 0", "p.yaml:8: runconfig.max_steps: 0 is not from 1 to 1000000000"),
        ("max_steps: 20", "max_step: 20", "p.yaml:8: the key 'max_step' is not known in runconfig"),
        (
            "max_steps: 20",
            "max_steps: 20\n  mount_dirs: [/nowhere]",
            "p.yaml:9: mount_dirs: there is no /nowhere",
        ),
        ("runconfig:", "runcfg:", "p.yaml:7: the section 'runcfg' is not known"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_line(folder: Path, before: str, after: str, told: str) -> None:
    change(folder, before, after)
    words = "--mode train" if "runcfg" not in after else "--mode train --max_steps 3"
    assert refused(folder, words).detail == told


def test_more_jobs_than_a_workflow_may_have_are_refused_before_the_first(folder: Path) -> None:
    change(folder, "max_steps: 20", "eval_frequency: 10\n  max_steps: 4991")
    assert refused(folder, "--mode train_and_eval").detail == (
        "p.yaml:8: eval_frequency: 4991 steps with an eval each 10 are 1002 jobs, and a start may have 1000"
    )
    assert wish(folder, "--mode train_and_eval --max_steps 4990").last_step == 4990


def test_a_mode_needs_its_batches(folder: Path) -> None:
    told = refused(folder, "--mode eval", Program(Net, Data, None))
    assert told.detail == "--mode: eval needs a source of batches to eval with, and run.py gives none"
    told = refused(folder, "--mode train_and_eval", Program(Net, None, Data))
    assert "to train with" in told.detail
    told = refused(folder, "--mode train", Program(Net, Data, None))
    assert told.detail == "p.yaml:5: the section 'eval_input' is not known"


def test_what_a_mode_does_not_need_may_be_left_out(folder: Path) -> None:
    change(folder, "eval_input:\n  batch_size: 4\n", "")
    change(folder, "  max_steps: 20\n", "  seed: 1\n")
    (folder / "p.yaml").write_text("eval_input:\n  batch_size: 4\n")
    made = wish(folder, "--mode eval")
    assert made.params["train_input"] == {}
    assert not made.includes_training


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (Program(object, Data), "object is not a class with a method layers()"),  # type: ignore[arg-type]
        (Program(Net, Net), "Net is not a class with a method batch()"),  # type: ignore[arg-type]
        (Program(Net({}), Data), "is not a class"),  # type: ignore[arg-type]
    ],
)
def test_a_program_that_is_none_is_refused(folder: Path, program: Program, told: str) -> None:
    error = refused(folder, program=program)
    assert error.code == "program.invalid"
    assert told in error.detail


def test_sources_name_their_batch_size(folder: Path) -> None:
    class Plain(Data):
        @dataclass
        class Params:
            size: int = 1

    class Bare(Data):
        Params = None  # type: ignore[assignment]

    assert refused(folder, program=Program(Net, Plain)).detail == "Plain.Params has no batch_size"
    assert refused(folder, program=Program(Net, Bare)).detail == "Bare has no dataclass called Params"


# -- pools -------------------------------------------------------------------------------------------------------------


def pool(systems: int, *, kind: str = "csx", memory: int | None = None, sizes: tuple[int, ...] = ()) -> PoolBody:
    return PoolBody(
        name=f"{kind}{systems}",
        accelerator=kind,
        driver="simulated",
        reachable=True,
        devices=systems,
        free=0,
        out_of_service=0,
        largest=0,
        waiting=0,
        partitions=0,
        topology=TopologyShape(type="any-subset", domains=1, domain_size=systems, max_block=systems),
        available={str(size): 0 for size in sizes or range(1, systems + 1)},
        resources={} if memory is None else {"memory": memory * GIB},
    )


def test_pools_that_could_serve_it(folder: Path) -> None:
    two = wish(folder, "--mode train --num_csx 2")
    check_pools(two, [pool(16, kind="ipu"), pool(1), pool(2, memory=67)])
    for pools, told in (
        ([], "the controller has no pool of wafer-scale systems"),
        ([pool(16, kind="ipu")], "the controller has no pool of wafer-scale systems"),
        ([pool(1)], "--num_csx: 2 is more than there are: 1 system in a pool at most"),
        ([pool(8, sizes=(1, 4, 8))], "--num_csx: 2 systems cannot be allocated together; allowed: 1, 4, 8"),
        ([pool(4, memory=66)], "p.yaml:7: compile_memory_gi: 67 GiB is more than the appliance has (66 GiB)"),
        ([pool(1, memory=128), pool(2, memory=31)], "p.yaml:7: execute_memory_gi: 32 GiB is more than the appliance"),
    ):
        with pytest.raises(MooringsError) as refused:
            check_pools(two, pools)
        assert refused.value.detail.startswith(told)


def test_memory_is_asked_for_where_it_is_counted() -> None:
    assert requires_memory([pool(2, memory=1), pool(16, kind="ipu")])
    assert not requires_memory([pool(2)])
    assert not requires_memory([])


# -- folders and checkpoints -------------------------------------------------------------------------------------------


def test_folders_are_made_and_written(folder: Path) -> None:
    create_folders(wish(folder, "--mode train --model_dir a/b --validate_only"))
    assert not (folder / "a").exists(), "nothing is made by a look"
    create_folders(wish(folder, "--mode train --model_dir a/b"))
    assert (folder / "a" / "b").is_dir()
    for words in ("", " --validate_only"):
        with pytest.raises(MooringsError) as refused:
            create_folders(wish(folder, f"--mode train --model_dir p.yaml/x{words}"))
        assert refused.value.detail.startswith(f"--model_dir: {folder}/p.yaml/x cannot be written: ")
    with pytest.raises(MooringsError) as refused:
        create_folders(wish(folder, "--mode train --model_dir /proc/here"))
    assert "/proc/here cannot be written" in refused.value.detail


def test_the_newest_whole_checkpoint_is_found(folder: Path) -> None:
    assert find_newest(folder / "none") == (None, [])
    for step in (3, 20, 100):
        with zipfile.ZipFile(folder / f"checkpoint_{step}.npz", "w") as archive:
            archive.writestr("a.npy", bytes(range(256)) * 40)
    (folder / "checkpoint_007.npz").write_bytes(b"")
    (folder / "checkpoint_200.npz.tmp").write_bytes(b"")
    newest, damaged = find_newest(folder)
    assert newest is not None
    assert (newest.step, damaged) == (100, [])
    content = bytearray((folder / "checkpoint_100.npz").read_bytes())
    content[500] ^= 1
    (folder / "checkpoint_100.npz").write_bytes(content)
    (folder / "checkpoint_300.npz").write_bytes(content[:200])
    (folder / "checkpoint_400.npz").write_bytes(b"")
    newest, damaged = find_newest(folder)
    assert newest is not None
    assert newest.step == 20
    assert [told.split()[0] for told in damaged] == ["checkpoint_400.npz", "checkpoint_300.npz", "checkpoint_100.npz"]
    assert damaged[2] == "checkpoint_100.npz cannot be used: 'a.npy' in it is damaged"


def test_nothing_that_lies_in_a_shared_folder_does_harm(folder: Path) -> None:
    whole = folder / "checkpoint_1.npz"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.npy", bytes(range(256)) * 40)
    os.mkfifo(folder / "checkpoint_20.npz")
    (folder / "checkpoint_19.npz").symlink_to("/dev/zero")
    (folder / "checkpoint_18.npz").symlink_to(whole)
    (folder / "checkpoint_17.npz").mkdir()
    (folder / "checkpoint_16.npz").symlink_to("nothing")
    for step, kind in ((15, zipfile.ZIP_DEFLATED), (14, zipfile.ZIP_LZMA)):
        with zipfile.ZipFile(folder / f"checkpoint_{step}.npz", "w", kind) as archive:
            archive.writestr("a.npy", bytes(range(256)) * 40)
        content = bytearray((folder / f"checkpoint_{step}.npz").read_bytes())
        content[40:80] = bytes(40)
        (folder / f"checkpoint_{step}.npz").write_bytes(content)
    with zipfile.ZipFile(folder / "checkpoint_13.npz", "w") as archive:
        archive.writestr("a.npy", bytes(range(256)) * 40)
        archive.filelist += archive.filelist * 50  # all of them in the same place
    (folder / "checkpoint_12.npz").write_bytes(whole.read_bytes()[:-22])
    with (folder / "checkpoint_11.npz").open("wb") as file:  # with a table of contents of 2 GB
        file.truncate(2 << 30)
        file.seek(2 << 30)
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 2 << 30, 0, 0))
    newest, damaged = find_newest(folder)
    assert newest is not None
    assert newest.path == whole
    assert damaged == [
        f"checkpoint_{step}.npz cannot be used: {why}"
        for step, why in (
            (20, "it is no file"),
            (19, "it is a link"),
            (18, "it is a link"),
            (17, "it is no file"),
            (16, "it is a link"),
            (15, "'a.npy' in it is packed"),
            (14, "'a.npy' in it is packed"),
            (13, "it is shorter than what should be in it"),
            (12, "it is damaged (File is not a zip file)"),
            (11, "it is damaged (a length in it is too large)"),
        )
    ]
