"""A function's files: what is in them, whose they must be, and what of an earlier attempt counts."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.sdk.functions import (
    EXCEPTION,
    FAULT,
    KEEP_ANSWERED_S,
    KEEP_S,
    VALUE,
    call_function,
    find_entry,
    new_entry,
)


@pytest.fixture
def entry(tmp_path):
    return new_entry(tmp_path / "functions")


def called(entry, function, *args):
    """The outcome of a call, and the exit code of its task."""
    entry.save(function, [args], 1)
    code = call_function(entry.path, 0, 0)
    return entry.read_outcome(0, 0), code


def refused(call):
    with pytest.raises(MooringsError) as caught:
        call()
    assert caught.value.code == "function.refused"
    return f"{caught.value.detail}; {caught.value.hint}"


def test_a_value_comes_back(entry):
    outcome, code = called(entry, lambda a, b: {"sum": a + b}, 1, 2)
    assert (outcome.kind, outcome.value, code) == (VALUE, {"sum": 3}, 0)
    assert [entry.read_outcome(*place) for place in ((0, 1), (1, 0))] == [None, None]


def test_an_exception_comes_back_with_its_traceback(entry, capsys):
    class OwnError(Exception):
        pass

    def fail(word):
        raise OwnError(word)

    outcome, code = called(entry, fail, "bad")
    assert (outcome.kind, type(outcome.value), str(outcome.value), code) == (EXCEPTION, OwnError, "bad", 1)
    assert "in fail" in outcome.text
    assert "call_function" not in outcome.text
    assert outcome.text in capsys.readouterr().err


def test_what_cannot_be_sent_back_is_said(entry, tmp_path, capsys):
    outcome, code = called(entry, lambda: (each for each in "ab"))
    assert (outcome.kind, code) == (FAULT, 1)
    assert "returned a generator, which cannot be pickled" in outcome.text
    assert outcome.text in capsys.readouterr().err
    outcome, code = called(new_entry(tmp_path), sys.exit, 3)
    assert (outcome.kind, code) == (FAULT, 1), "raised here, it would end this program"
    assert "SystemExit: 3" in outcome.text


class HardError(Exception):
    """Made of two values, it passes one on: it cannot be made again from that."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_an_exception_that_cannot_be_loaded_is_shown(entry):
    def fail():
        raise HardError("this", "that")

    outcome, _ = called(entry, fail)
    assert outcome.kind == FAULT
    assert "cannot be loaded here: TypeError" in outcome.text
    assert "this and that" in outcome.text


def test_the_result_of_an_earlier_attempt_is_forgotten(entry, tmp_path):
    mark = tmp_path / "mark"

    def die(path):
        if Path(path).exists():
            os._exit(9)
        return "first"

    outcome, _ = called(entry, die, str(mark))
    assert outcome.value == "first"
    mark.touch()
    again = subprocess.run(entry.command, check=False)
    assert (again.returncode, entry.read_outcome(0, 0)) == (9, None)


def test_the_task_finds_the_submitters_modules(entry, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry.save(importlib.import_module("beside").twice, [(2,), (3,)], 1)
    done = subprocess.run(entry.command, cwd="/", env={"MOORINGS_ARRAY_INDEX": "1", "RANK": "4"}, check=False)
    assert (done.returncode, entry.read_outcome(1, 4).value) == (0, 6)


def test_another_python_is_named(entry):
    entry.save(int, [()], 1)
    header = entry.path / "call.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "python": [3, 7]}))
    done = subprocess.run(entry.command, capture_output=True, text=True, check=False)
    here = ".".join(map(str, sys.version_info[:2]))
    assert done.returncode == 1
    assert f"pickled by cpython 3.7, and runs with cpython {here}" in done.stderr
    assert entry.read_outcome(0, 0).text in done.stderr
    assert (entry.path / "result-0-0").stat().st_mode & 0o777 == 0o600


def test_nothing_is_loaded_that_another_user_may_have_written(entry, tmp_path):
    called(entry, int)
    result = entry.path / "result-0-0"
    result.chmod(0o660)
    assert "written by another user" in refused(partial(entry.read_outcome, 0, 0))
    result.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(result, 12, -1)
        assert "written by another user" in refused(partial(entry.read_outcome, 0, 0))
        os.chown(result, 0, -1)
    target = result.rename(tmp_path / "elsewhere")
    result.symlink_to(target)
    assert "cannot be read" in refused(partial(entry.read_outcome, 0, 0))
    result.unlink()
    os.mkfifo(result)
    assert "no regular file" in refused(partial(entry.read_outcome, 0, 0))


def test_files_are_their_persons_alone(entry):
    before = os.umask(0)
    try:
        called(entry, int)
        modes = {path.name: path.stat().st_mode & 0o777 for path in entry.path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("call.json", "function", "arguments-0", "result-0-0"), 0o600)
    assert [path.stat().st_mode & 0o777 for path in (entry.path, entry.path.parent)] == [0o700] * 2
    entry.path.parent.chmod(0o777)
    assert "chmod 700" in refused(partial(new_entry(entry.path.parent).save, int, [()], 1))


def test_a_function_that_cannot_be_pickled_leaves_no_file(entry):
    assert "an argument cannot be pickled: TypeError" in refused(partial(entry.save, int, [(threading.Lock(),)], 1))
    assert not entry.path.exists()


def test_cloudpickle_is_named_where_it_is_missing(entry, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert "moorings[python]" in refused(partial(entry.save, int, [()], 1))


def test_an_entry_is_found_by_its_run(entry):
    entry.save(int, [()], 1)
    entry.link("run-a")
    assert find_entry(entry.path.parent, "run-a") == entry
    assert find_entry(entry.path.parent, "run-b") is None


def test_an_id_leads_to_no_results_elsewhere(entry, tmp_path):
    """The controller says the id, and the results are code."""
    called(entry, int)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "elsewhere" / "run-a").symlink_to("real")
    (entry.path.parent / "run-b").symlink_to("../elsewhere")
    for ident in (str(tmp_path / "elsewhere" / "run-a"), "../elsewhere/run-a", "run-b"):
        assert find_entry(entry.path.parent, ident) is None
    with pytest.raises(MooringsError, match="cannot be the id"):
        entry.link(str(tmp_path / "planted"))
    assert not (tmp_path / "planted").is_symlink()
    entry.link("run-c")
    entry.path.chmod(0o777)
    assert find_entry(entry.path.parent, "run-c") is None


def test_old_entries_are_removed_and_later_if_unanswered(tmp_path):
    answered, waiting, forgotten, fresh = (new_entry(tmp_path) for _ in range(4))
    called(answered, int)
    for each in (waiting, forgotten, fresh):
        each.save(int, [()], 1)
    answered.link("run-a")
    for each, age_s in ((answered, KEEP_ANSWERED_S), (waiting, KEEP_ANSWERED_S), (forgotten, KEEP_S)):
        os.utime(each.path, (0, time.time() - age_s - 60))
    new_entry(tmp_path).save(int, [()], 1)
    assert [each.path.exists() for each in (answered, waiting, forgotten, fresh)] == [False, True, False, True]
    new_entry(tmp_path).save(int, [()], 1)
    assert not (tmp_path / "run-a").is_symlink()
