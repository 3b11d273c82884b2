"""What ``moorings.submit`` refuses before it asks a controller, and how its options become a job."""

import functools
import subprocess
import sys
from datetime import timedelta

import pytest

import moorings
from moorings.core.model.errors import MooringsError
from tests.cases import cases


def refused(*args, **options):
    with pytest.raises((MooringsError, TypeError)) as caught:
        moorings.submit(*args, **options)
    return f"{caught.value}; {getattr(caught.value, 'hint', '')}"


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
    ],
)
def test_what_cannot_be_a_job_is_refused(args, options, text):
    assert text in refused(*args, **options)


def test_no_elements_are_no_runs():
    assert moorings.map_array(int, []) == []


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
    assert _flags_of({"after": run}, None, None).after == ("run-a",)
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
