"""The remote-exec script, run by real shells with a kubectl that records what it is given."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.kubernetes.operator.pod_builder import hostfile, kubexec_script
from tests.waiting import patient

KUBECTL = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys
pathlib.Path(os.environ["RECORD"]).write_text(json.dumps({{"argv": sys.argv[1:], "input": sys.stdin.read()}}))
sys.exit(subprocess.run(sys.argv[sys.argv.index("--") + 1:]).returncode)
"""
SHELLS = [path for path in map(shutil.which, ("sh", "dash", "bash", "busybox")) if path is not None]


class Remote:
    """The script in a folder with a space in its name, and a kubectl that runs what it is given right here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's here"
        self.folder.mkdir()
        self.kubectl = self.folder / "kubectl"
        self.kubectl.write_text(KUBECTL)
        self.kubectl.chmod(0o755)
        self.script = self.folder / "kubexec.sh"
        self.script.write_text(kubexec_script("train er's", str(self.kubectl)))
        self.script.chmod(0o755)
        self.record = self.folder / "record.json"

    def __call__(self, *words: str, shell: str = "", stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = [*([shell, *(["sh"] if shell.endswith("busybox") else [])] if shell else []), str(self.script), *words]
        environment = {"RECORD": str(self.record), "PATH": "/usr/bin:/bin", "HERE": "its own"}
        return subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, timeout=patient(30))

    @property
    def told(self):
        return json.loads(self.record.read_text())


@pytest.fixture
def remote(tmp_path):
    return Remote(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_words_come_to_the_other_shell_as_they_were_written(remote, shell):
    done = remote("job-worker-0", "printf", "'%s|'", '"a b"', "'$HERE'", "'x\ny'", "'it'\\''s'", shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a b|$HERE|x\ny|it's|"
    argv = remote.told["argv"]
    assert argv[:6] == ["exec", "job-worker-0", "-c", "train er's", "--", "/bin/sh"]
    assert argv[6] == "-c"
    assert len(argv) == 8


def test_open_mpis_own_words_work(remote):
    """As plm_rsh of release 4.1 hands them over: a subshell with a profile, and parameters that carry their quotes."""
    words = ["( test ! -r ./.profile || . ./.profile;", " PATH=/x:$PATH ; export PATH ;  printf '[%s]'"]
    words += ["-mca", "ess", '"env"', "-mca", "orte_hnp_uri", '"1;tcp://10.0.0.1,10.0.1.1:4711"', ")"]
    done = remote("job-worker-1", *words)
    assert done.returncode == 0
    assert done.stdout == "[-mca][ess][env][-mca][orte_hnp_uri][1;tcp://10.0.0.1,10.0.1.1:4711]"


def test_the_exit_code_is_the_commands(remote):
    assert remote("job-worker-0", "exit 37").returncode == 37


def test_input_is_not_read(remote):
    """mpirun's own input is for rank 0, and orted waits for none."""
    assert remote("job-worker-0", "true", stdin="for somebody else").returncode == 0
    assert remote.told["input"] == ""


def test_options_of_ssh_are_passed_over(remote):
    assert remote("-x", "-q", "job-worker-0", "echo", "-n", "there").stdout == "there"
    assert remote.told["argv"][1] == "job-worker-0"


@pytest.mark.parametrize("words", [(), ("job-worker-0",), ("-x", "job-worker-0")])
def test_without_a_command_nothing_is_run(remote, words):
    done = remote(*words)
    assert done.returncode == 2
    assert "usage: kubexec.sh POD COMMAND..." in done.stderr
    assert not remote.record.exists()


PRINTED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@given(words=st.lists(PRINTED, min_size=1, max_size=5))
def test_whatever_the_words_are_they_are_joined_by_blanks(words, tmp_path_factory):
    remote = Remote(tmp_path_factory.mktemp("remote"))
    remote.kubectl.write_text(KUBECTL.replace("sys.exit", "print #"))  # only record: the words may be no shell
    remote("job-worker-0", *words)
    assert remote.told["argv"][-1] == " ".join(words)


def test_the_hostfile_lists_the_workers_in_order():
    assert hostfile(["job-worker-0", "job-worker-1"], 2) == "job-worker-0 slots=2\njob-worker-1 slots=2\n"
    assert hostfile([], 1) == ""
