"""What ``moorings.submit`` refuses before it asks a controller, and how its options become a job."""

import functools
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

import moorings
from moorings.core.model.errors import MooringsError
from tests.cases import cases


def refused(*args, **options):
    with pytest.raises((MooringsError, TypeError)) as caught:
        moorings.submit(*args, **options)
    return f"{caught.value}; {getattr(caught.value, 'hint', '')}"


async def waits(rate):
    return rate


async def yields(rate):
    yield rate


class Awaiting:
    async def __call__(self):
        return 1


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    """A home without a controller."""
    for name, value in (("HOME", str(tmp_path)), ("MOORINGS_SERVER", "http://127.0.0.1:9")):
        monkeypatch.setenv(name, value)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "MOORINGS_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@cases(
    ("args", "options", "text"),
    [
        ((int,), {"lr": 1}, "no option 'lr' of a job; functools.partial(function, lr=...)"),
        ((int,), {"time": 30}, "time=30 has no unit: write '30m', '30h' or a timedelta"),
        ((int,), {"ipus": 2, "size": 2}, "ipus=N means kind='ipu', size=N"),
        ((int,), {"time": "soon"}, "'soon' is not a duration"),
        ((int,), {"memory": "much"}, "'much'"),
        ((int,), {"engine": "kubernetes"}, "Pods do not see the files"),
        ((int,), {"image": "a"}, "which an image does not have"),
        ((int,), {}, "not seen to run jobs as you on this machine"),
        ((["true"], 1), {}, "only a function has arguments"),
        ((3,), {}, "a int is no function, command, job file or dictionary of one"),
        (("python3 train.py",), {}, "a command is a list of words"),
        (({"comand": ["true"]},), {}, "the job: command is missing"),
        (({"command": ["true"], "tasks": "2"},), {}, "the job: tasks must be a whole number"),
        (({"command": ["true"], "array": "0-3"},), {}, "map_array() calls a function"),
        ((["true"],), {"env": {"A B": "1"}}, "A B"),
        ((["sleep", 60],), {}, "word 2 of the command must be text, not int"),
        ((waits,), {}, "waits is an async function"),
        ((functools.partial(yields, 1),), {}, "yields is an async function"),
        ((Awaiting(),), {}, "Awaiting is an async function"),
    ],
)
def test_what_cannot_be_a_job_is_refused(args, options, text):
    assert text in refused(*args, **options)


@cases(
    ("option", "value", "text"),
    [
        ("memory", 4, "memory must be a size such as '4G', not int"),
        ("ipus", "2", "ipus must be a whole number, not str"),
        ("size", 2.0, "size must be a whole number, not float"),
        ("tasks", True, "tasks must be a whole number, not bool"),
        ("cpus", "1", "cpus must be a whole number, not str"),
        ("replicas", [1], "replicas must be a whole number, not list"),
        ("priority", "high", "priority must be a whole number, not str"),
        ("retries", False, "retries must be a whole number, not bool"),
        ("name", 3, "name must be text, not int"),
        ("project", 3, "project must be text, not int"),
        ("pool", ["a"], "pool must be text, not list"),
        ("kind", 3, "kind must be text, not int"),
        ("engine", 3, "engine must be text, not int"),
        ("export", ["A"], "export must be text such as 'NONE', not list"),
        ("time", True, "time must be a duration such as '1h', or a timedelta, not bool"),
        ("preemptible", "no", "preemptible must be True or False, not str"),
        ("env", ["A=1"], "env must be a dictionary such as {'A': '1'}, not list"),
        ("labels", "team=nlp", "labels must be a dictionary such as {'team': 'nlp'}, not str"),
        ("setup", 3, "setup must be text, or a list of them, not int"),
        ("setup", ["a", 3], "setup must be text, or a list of them, and number 2 is int"),
        ("env_files", {"A": "1"}, "env_files must be a path, or a list of them, not dict"),
        ("env_files", b"x.env", "env_files must be a path, or a list of them, not bytes"),
        ("after", 3, "after must be a run, an id or a name, or a list of them, not int"),
        ("after", [None], "after must be a run, an id or a name, or a list of them, and number 1 is NoneType"),
        ("chdir", 3, "chdir must be a path, not int"),
        ("image", 3, "image must be an image or a path, not int"),
        ("resume", ["run-a"], "resume must be a run, an id or a name, not list"),
        ("resume_from", 3, "resume_from must be the path or the name of a checkpoint, as text, not int"),
    ],
)
def test_an_option_of_another_type_is_named(option, value, text):
    for submit in (
        lambda **given: moorings.submit(["true"], **given),
        lambda **given: moorings.map_array(int, **given),
    ):
        with pytest.raises(TypeError) as caught:
            submit(**{option: value})
        assert str(caught.value) == text


@cases(
    ("args", "options", "text"),
    [
        ((["true"], [1]), {}, "map_array() calls a function, and a list is none"),
        ((int,), {}, "map_array() needs the function's arguments"),
        ((waits, []), {}, "waits is an async function"),
        ((int, [1]), {"at_once": "2"}, "at_once must be a whole number, not str"),
    ],
)
def test_what_cannot_be_an_array_is_refused(args, options, text):
    with pytest.raises(TypeError) as caught:
        moorings.map_array(*args, **options)
    assert text in str(caught.value)


@cases("timeout", ["3", True, timedelta(seconds=3)])
def test_a_timeout_is_a_number(timeout):
    run: moorings.Run[None] = moorings.Run("run-a", {}, 1)
    for wait in (run.wait, run.result, run.results, run.exception):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not "):
            wait(timeout)


def test_without_a_controller_a_submission_fails_at_once_and_leaves_no_files(tmp_path, monkeypatch):
    from moorings.sdk import submitting
    from moorings.submission.job_environment import JobPlace

    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    assert "nothing listens at http://127.0.0.1:9" in refused(["true"], size=0)
    monkeypatch.setattr(submitting, "find_place", lambda *_: JobPlace.OWN)
    assert "nothing listens at http://127.0.0.1:9" in refused(int, size=0)
    assert list(tmp_path.glob(".local/state/moorings/functions/*")) == []
    with pytest.raises(MooringsError, match="nothing listens"):
        moorings.find_run("run-a")


def test_no_elements_are_no_runs():
    assert moorings.map_array(int, []) == []


def test_none_is_as_if_left_out():
    from moorings.sdk.submitting import JobOptions, _check_options, _flags_of

    nothing = cast("JobOptions", dict.fromkeys(JobOptions.__optional_keys__))
    assert _check_options(nothing) == {}
    assert _flags_of(nothing, None, None) == _flags_of({}, None, None)
    assert "nothing listens" in refused(["true"], **nothing)


def test_one_of_several_needs_no_list():
    from moorings.sdk.submitting import JobOptions, _check_options, _flags_of

    def flags_of(**options):
        return _flags_of(_check_options(cast("JobOptions", options)), None, None)

    flags = flags_of(setup="module load x", env_files="x.env", after="prepare")
    assert (flags.setup, flags.env_files, flags.after) == (("module load x",), ("x.env",), ("prepare",))
    flags = flags_of(setup=["a", "b"], env_files=(Path("x.env"), "y.env"), after=iter(["c", "d:any"]))
    assert (flags.setup, flags.env_files, flags.after) == (("a", "b"), ("x.env", "y.env"), ("c", "d:any"))
    assert flags_of(env_files=Path("x.env"), image=Path("x.sif")).env_files == ("x.env",)


def test_all_runs_of_an_array_are_waited_for_as_one():
    from moorings.sdk.submitting import _after_of

    runs: list[moorings.Run[None]] = [
        moorings.Run(f"run-a-{index}", {}, 1, None, index, ("run-a", 20)) for index in range(20)
    ]
    assert _after_of(runs) == ("run-a",)
    assert _after_of(["prepare", *runs[10:], "fetch:any", *runs[:10]]) == ("prepare", "run-a", "fetch:any")
    assert _after_of([*runs[1:3], runs[1]]) == ("run-a-1", "run-a-2")
    assert _after_of(runs[1:]) == tuple(run.id for run in runs[1:]), "one is not waited for"


def test_options_become_a_job(tmp_path):
    from moorings.sdk.submitting import _flags_of, _function_name

    run: moorings.Run[None] = moorings.Run("run-a", {}, 1)
    flags = _flags_of(
        {
            "ipus": 4,
            "time": timedelta(minutes=90),
            "env": {"A": "1=2"},
            "after": [run, "b:any"],
            "labels": {"team": "nlp"},
            "env_files": [tmp_path / "x"],
        },
        "name",
        "0-3%2",
    )
    assert (flags.kind, flags.size, flags.time, flags.environment) == ("ipu", 4, "5400.000s", ("A=1=2",))
    assert (flags.after, flags.labels, flags.env_files) == (("run-a", "b:any"), ("team=nlp",), (f"{tmp_path}/x",))
    assert (flags.name, flags.array) == ("name", "0-3%2")
    assert _function_name(functools.partial(functools.partial(refused, 1), b=2)) == "refused"


def test_the_package_imports_nothing_until_a_name_is_used():
    code = "import sys; before = set(sys.modules); import moorings; print(sorted(set(sys.modules) - before))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "['moorings']"
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        moorings.sumbit  # noqa: B018
    assert all(getattr(moorings, name) for name in moorings.__all__)


def test_a_program_imports_no_library_of_servers_nor_cloudpickle():
    code = "import sys, moorings; moorings.submit; print(' '.join(sys.modules))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert loaded & {"asyncio", "click", "cloudpickle", "cryptography", "fastapi", "pydantic", "sqlalchemy"} == set()
