"""The job file: everything it may hold, and the line of everything it may not."""

from __future__ import annotations

import contextlib
import math
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import WARN_SIGNALS, CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.workloads.commands import COMMAND_ARGS_MAX
from moorings.workloads.environment import ENVIRONMENT_CHARS_MAX, SETUP_LINES_MAX, VARIABLE_BYTES_MAX
from moorings.workloads.jobs import (
    JOB_NAME_CHARS_MAX,
    TASKS_MAX,
    Accelerators,
    JobSpec,
    Resources,
    check_job,
    claim_spec_for,
    counted_claim_spec,
    parse_job,
)
from tests.cases import cases

COMMAND = 'command = ["python3", "train.py"]\n'  # line 1
SUBMITTER = {"PATH": "/usr/bin", "HOME": "/home/ann", "RANK": "3", "SECRET": "hunter2"}


def parse(text: str) -> JobSpec:
    return parse_job(text, source="job.toml", folder="/home/ann/digits", submitter=SUBMITTER)


def complaint(text: str, code: str = "job.invalid") -> tuple[str, str]:
    with pytest.raises(MooringsError) as caught:
        parse(text)
    assert caught.value.code == code
    return str(caught.value), caught.value.hint


def job(**more: Any) -> JobSpec:
    return replace(JobSpec(name="digits", command=("python3", "train.py"), workdir="/home/ann"), **more)


def refused(code: str = "job.invalid", **more: Any) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        check_job(job(**more))
    assert caught.value.code == code
    assert len(str(caught.value)) < 300
    return caught.value


# -- what may be written -------------------------------------------------------------------------------------------


def test_a_command_is_enough():
    assert parse(COMMAND) == JobSpec(
        name="job",
        command=("python3", "train.py"),
        workdir="/home/ann/digits",
        environment={"PATH": "/usr/bin", "HOME": "/home/ann"},
    )


def test_everything_that_may_be_written():
    text = """
    name = "Digits_1.b"
    command = "python3 train.py --words 'two of them'"
    tasks = 2
    time = "10:00"
    workdir = "src"
    project = "vision"
    priority = -5
    setup = ["module load cuda", "source venv/bin/activate"]
    preemptible = true
    [accelerators]
    kind = "gpu"
    size = 8
    replicas = 4
    pool = "hgx"
    [resources]
    cpus = 3
    memory = "4G"
    nodes = 2
    [environment]
    export = "NONE"
    pass = ["HOME", "MISSING"]
    set = { OMP_NUM_THREADS = "1" }
    [checkpoint]
    directory = "checkpoints"
    resumable = true
    warn_signal = "SIGUSR2"
    warn = "2:00"
    grace = 45
    [kubernetes]
    image = "registry.example/digits:1"
    """
    assert parse(text) == JobSpec(
        name="Digits_1.b",
        command=("python3", "train.py", "--words", "two of them"),
        workdir="/home/ann/digits/src",
        environment={"HOME": "/home/ann", "OMP_NUM_THREADS": "1"},
        tasks=2,
        accelerators=Accelerators("gpu", 8, 4, "hgx"),
        resources=Resources(3, 4 << 30, 2),
        project="vision",
        priority=-5,
        time_limit_s=600.0,
        checkpoint=CheckpointContract(resumable=True, warn_signal="USR2", warn_s=120.0, grace_s=45.0),
        checkpoint_directory="/home/ann/digits/checkpoints",
        image="registry.example/digits:1",
        preemptible=True,
        setup=("module load cuda", "source venv/bin/activate"),
    )


def test_nothing_of_the_submitters_surroundings_gets_in_but_what_is_named():
    assert parse(COMMAND + "[environment]\npass = []\n").environment == {}


@pytest.mark.parametrize(
    ("written", "folder"),
    [(".", "/home/ann/digits"), ("sub", "/home/ann/digits/sub"), ("/data", "/data"), ("..", "/home/ann/digits/..")],
)
def test_folders_are_relative_to_the_job_file(written, folder):
    assert parse(COMMAND + f'workdir = "{written}"').workdir == folder


@pytest.mark.parametrize(("written", "seconds"), [('"10:00"', 600), ('"2h"', 7200), ("90", 90), ("1.5", 1.5)])
def test_a_limit_is_a_duration_or_a_number_of_seconds(written, seconds):
    assert parse(COMMAND + f"time = {written}").time_limit_s == seconds


@given(st.lists(st.text(min_size=1).filter(lambda word: "\0" not in word), min_size=1, max_size=5))
def test_a_command_line_is_the_command_as_one_would_type_it(words):
    assert tuple(shlex.split(job(command=tuple(words)).command_line)) == tuple(words)


# -- what is refused, with its line --------------------------------------------------------------------------------


@cases(
    ("text", "told"),
    [
        ('name = "x"\n', "job.toml: command is missing"),
        (COMMAND + "tasks = '2'\n", "job.toml:2: tasks must be a whole number, not a string"),
        (COMMAND + "tasks = 2.0\n", "job.toml:2: tasks must be a whole number, not a number"),
        (COMMAND + "name = 1\n", "job.toml:2: name must be a string, not a number"),
        (COMMAND + "priority = true\n", "job.toml:2: priority must be a whole number, not true or false"),
        (COMMAND + "workdir = []\n", "job.toml:2: workdir must be a string, not a list"),
        (COMMAND + "accelerators = 4\n", "job.toml:2: accelerators must be a table, not a number"),
        (COMMAND + "[accelerators]\nsize = '4'\n", "job.toml:3: size must be a whole number, not a string"),
        (COMMAND + "[accelerators]\nreplicas = []\n", "job.toml:3: replicas must be a whole number, not a list"),
        (COMMAND + "[resources]\nmemory = 4\n", "job.toml:3: memory must be a string, not a number"),
        (COMMAND + "[environment]\npass = 'PATH'\n", "job.toml:3: pass must be a list of strings, not a string"),
        (COMMAND + "[environment.set]\nA = 1\n", "job.toml:3: A must be a string, not a number"),
        (COMMAND + "[checkpoint]\nresumable = 1\n", "job.toml:3: resumable must be true or false, not a number"),
        (COMMAND + "[kubernetes]\nimage = 1\n", "job.toml:3: image must be a string, not a number"),
        ("command = 1\n", "job.toml:1: command must be a string or a list of strings"),
        ("command = []\n", "job.toml:1: command must be a string or a list of strings"),
        ('command = ["a", 1]\n', "job.toml:1: command must be a string or a list of strings"),
        ("command = 'a \"b'\n", "job.toml:1: the command cannot be read: No closing quotation"),
        (COMMAND + "time = 'soon'\n", "job.toml:2: 'soon' is not a duration"),
        (COMMAND + "time = true\n", "job.toml:2: time must be a duration"),
        (COMMAND + "time = " + "9" * 400 + "\n", "job.toml:2: time is too large"),
        (COMMAND + "[checkpoint]\nwarn = 'x'\n", "job.toml:3: 'x' is not a duration"),
        (COMMAND + "[checkpoint]\n\ngrace = []\n", "job.toml:4: grace must be a duration"),
        (COMMAND + "[resources]\nmemory = 'much'\n", "job.toml:3: 'much' is not a size"),
        (COMMAND + "[resources]\nmemory = '4000'\n", "job.toml:3: '4000' has no unit"),
    ],
)
def test_a_wrong_value_is_told_with_its_line(text, told):
    assert complaint(text)[0] == told


@cases(
    ("text", "told", "known"),
    [
        (COMMAND + "taks = 2\n", "job.toml:2: 'taks' is not known here", "tasks"),
        (COMMAND + "[accelerators]\nipus = 2\n", "job.toml:3: 'ipus' is not known here", "size"),
        (COMMAND + "[resources]\nmem = '4G'\n", "job.toml:3: 'mem' is not known here", "memory"),
        (COMMAND + "[environment]\nA = '1'\n", "job.toml:3: 'A' is not known here", "pass, set"),
        (COMMAND + "[checkpoint]\ndir = 'x'\n", "job.toml:3: 'dir' is not known here", "directory"),
        (COMMAND + "[kubernetes]\nimgae = 'x'\n", "job.toml:3: 'imgae' is not known here", "image"),
        (COMMAND + "[slurm]\nqos = 'x'\n", "job.toml:2: 'slurm' is not known here", "kubernetes"),
    ],
)
def test_an_unknown_key_is_told_with_those_that_are_known(text, told, known):
    message, hint = complaint(text)
    assert message == told
    assert known in hint


@cases(
    ("numbers", "code", "line"),
    [
        ("[accelerators]\nsize = 0\nreplicas = 2\n", "claim.replicas_invalid", 4),
        ("[accelerators]\nsize = -4\n", "claim.size_invalid", 3),
        ("[accelerators]\nsize = " + "9" * 60 + "\n", "claim.size_invalid", 3),
        ("tasks = 3\n[accelerators]\nsize = 4\n", "claim.gcds_invalid", 2),
        ("tasks = 2\n[accelerators]\nsize = 4\nreplicas = 3\n", "claim.replicas_invalid", 5),
        ("tasks = 2\n[accelerators]\nsize = 4\nreplicas = 1\n", "claim.replicas_invalid", 5),
        ("[accelerators]\nsize = 4\nreplicas = 0\n", "claim.replicas_invalid", 4),
        ("[accelerators]\nsize = 4\nreplicas = -2\n", "claim.replicas_invalid", 4),
        ("[accelerators]\nsize = 4\nreplicas = 8\n", "claim.replicas_invalid", 4),
    ],
)
def test_numbers_that_cannot_work_are_told_with_their_line(numbers, code, line):
    told, hint = complaint(COMMAND + numbers, code)
    assert told.startswith(f"job.toml:{line}: ")
    assert hint


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (COMMAND + "time = -5\n", "claim.invalid"),
        (COMMAND + "time = nan\n", "claim.invalid"),
        (COMMAND + "priority = 99999999\n", "claim.invalid"),
        (COMMAND + "[environment]\npass = ['RANK']\n", "job.invalid"),
        (COMMAND + 'name = "a\\u0000"\n', "job.invalid"),
    ],
)
def test_what_is_wrong_with_the_whole_job_is_told_with_the_file(text, code):
    told, hint = complaint(text, code)
    assert told.startswith("job.toml: ")
    assert hint


@pytest.mark.parametrize(
    "text",
    [
        COMMAND + "\0",
        "a = " + "[" * 100_000,
        COMMAND + "tasks = " + "9" * 5000,
        "#" * (1 << 20) + "\n",
        "command =",
        "x",
    ],
    ids=range(6),
)
def test_what_is_not_toml_is_refused_by_its_name(text):
    assert complaint(text)[0].startswith("job.toml")


def test_what_is_in_the_submitters_environment_is_never_told():
    told, hint = complaint(COMMAND + "[environment]\npass = ['SECRET', 'RANK']\n")
    assert "hunter2" not in told + hint


# -- what no engine takes ------------------------------------------------------------------------------------------


@cases("name", ["", ".a", "a.", "-a", "a b", "a/b", "ä", "a\n", "a\0", "a" * (JOB_NAME_CHARS_MAX + 1)])
def test_a_job_has_a_name_that_can_be_a_file_and_a_label(name):
    assert "letters" in refused(name=name).hint


def test_a_name_may_have_63_characters():
    check_job(job(name="A" * JOB_NAME_CHARS_MAX))


@pytest.mark.parametrize("command", [(), ("",), ("", "x")])
def test_a_job_has_a_command(command):
    assert "COMMAND" in refused(command=command).hint


@pytest.mark.parametrize("command", [("x",) * (COMMAND_ARGS_MAX + 1), ("x" * 200_000,)], ids=["many", "long"])
def test_a_command_has_an_end(command):
    assert "script" in refused(command=command).hint


def test_a_job_file_may_lie_in_the_root_folder():
    job = parse_job(COMMAND, source="job.toml", folder="/", submitter={})
    assert job.workdir == "/"


@pytest.mark.parametrize("workdir", ["", ".", "src", "~/x"])
def test_a_working_folder_is_absolute(workdir):
    refused(workdir=workdir)


@pytest.mark.parametrize(
    "where",
    [
        {"command": ("x", "a\0b")},
        {"workdir": "/a\0"},
        {"checkpoint_directory": "/\0"},
        {"environment": {"A": "\0"}},
        {"setup": ("\0",)},
    ],
)
def test_nothing_holds_a_nul(where):
    assert "NUL" in str(refused(**where))


@pytest.mark.parametrize("tasks", [0, -1, TASKS_MAX + 1, 10**30])
def test_tasks_are_a_sane_number(tasks):
    assert str(TASKS_MAX) in refused(tasks=tasks).hint


@pytest.mark.parametrize(
    "resources", [Resources(cpus=0), Resources(nodes=0), Resources(memory_bytes=0), Resources(cpus=-1)]
)
def test_a_task_needs_something_of_its_host(resources):
    refused(resources=resources)


@cases("signal", ["KILL", "STOP", "SIGUSR1", "usr1", "", "10", "x" * 1000])
def test_a_warning_is_a_signal_a_job_can_catch(signal):
    assert ", ".join(WARN_SIGNALS) in refused("claim.invalid", checkpoint=CheckpointContract(warn_signal=signal)).hint


@pytest.mark.parametrize("length_s", [-1, math.nan, math.inf, 1e300])
def test_warning_and_grace_have_a_length(length_s):
    assert "warn" in str(refused(checkpoint=CheckpointContract(warn_s=length_s)))
    assert "grace" in str(refused(checkpoint=CheckpointContract(grace_s=length_s)))


@cases("name", ["", "A B", "1A", "A=B", "A\n", "Ä", "A" * 257])
def test_a_variable_has_a_name_a_shell_could_read(name):
    assert "variable" in str(refused(environment={name: "1"}))


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_PORT", "MOORINGS_RUN_ID", "IPUOF_CONFIG_PATH", "IPUOF_"]
)
def test_a_job_cannot_set_what_moorings_sets(name):
    assert "leave it out" in refused(environment={name: "1"}).hint


def test_setup_has_an_end():
    check_job(job(setup=("true",) * SETUP_LINES_MAX))
    refused(setup=("true",) * (SETUP_LINES_MAX + 1))
    refused(setup=("x" * 16_385,))


def test_an_environment_has_an_end():
    refused(environment={"A": "x" * ENVIRONMENT_CHARS_MAX})
    half = ENVIRONMENT_CHARS_MAX // 2 - 3
    check_job(job(environment={"A": "x" * half, "B": "x" * half}))
    assert "Linux" in str(refused(environment={"A": "x" * (VARIABLE_BYTES_MAX - 1)}))
    check_job(job(environment={"A": "x" * (VARIABLE_BYTES_MAX - 2)}))


# -- what it asks of the queue -------------------------------------------------------------------------------------


def test_a_claim_has_a_gcd_for_every_task_and_a_replica_in_each():
    spec = claim_spec_for(job(tasks=4, accelerators=Accelerators(size=8)))
    assert (spec.size, spec.gcds, spec.replicas_per_gcd) == (8, 4, 1)


def test_the_jobs_replicas_are_shared_among_its_tasks():
    assert claim_spec_for(job(tasks=2, accelerators=Accelerators(size=8, replicas=4))).replicas_per_gcd == 2


def test_a_claim_asks_what_the_job_says():
    contract = CheckpointContract(resumable=True)
    asked = claim_spec_for(
        job(
            accelerators=Accelerators("gpu", 2, None, "hgx"),
            project="p",
            priority=3,
            time_limit_s=60,
            checkpoint=contract,
            preemptible=True,
        )
    )
    assert asked.preemptible
    assert (asked.kind, asked.pool, asked.project, asked.priority) == ("gpu", "hgx", "p", 3)
    assert (asked.time_limit_s, asked.checkpoint) == (60, contract)


@cases(
    ("text", "amounts"),
    [
        ("", {"cpus": 1}),
        ("[resources]\ncpus = 3\n", {"cpus": 3}),
        ("[resources]\nmemory = '1G'\n", {"cpus": 1, "memory": 1 << 30}),
    ],
)
def test_a_job_without_devices_asks_for_cpus_and_memory_of_the_machine(text, amounts):
    spec = claim_spec_for(parse(f"{COMMAND}tasks = 2\n[accelerators]\nsize = 0\n{text}"))
    assert (spec.kind, spec.size, spec.gcds) == ("machine", 0, 1)
    assert spec.resources == {name: 2 * amount for name, amount in amounts.items()}
    assert not spec.machine


def test_a_job_without_devices_is_in_no_pool():
    told, hint = complaint(f"{COMMAND}[accelerators]\nsize = 0\npool = 'pod16'\n")
    assert "pool" in told
    assert hint


def test_a_job_with_devices_is_counted_with_what_it_names():
    assert counted_claim_spec(job(tasks=4, accelerators=Accelerators(size=8))).machine == {}
    told = counted_claim_spec(job(tasks=4, accelerators=Accelerators(size=8), resources=Resources(cpus=2)))
    assert told.machine == {"cpus": 8}
    told = counted_claim_spec(job(accelerators=Accelerators(size=8), resources=Resources(memory_bytes=5)))
    assert told.machine == {"cpus": 1, "memory": 5}


@given(st.integers(-2, 70), st.integers(1, 20), st.none() | st.integers(-2, 70))
def test_a_claim_of_a_job_divides_without_rest(size, tasks, replicas):
    with contextlib.suppress(MooringsError):
        spec = claim_spec_for(job(tasks=tasks, accelerators=Accelerators(size=size, replicas=replicas)))
        if not size:  # a claim of the machine: nothing to divide
            return
        assert size % (spec.gcds * spec.replicas_per_gcd) == 0
        assert spec.gcds * spec.replicas_per_gcd == (tasks if replicas is None else replicas)
