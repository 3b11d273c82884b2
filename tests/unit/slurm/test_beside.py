"""A command beside the tasks of a run: the step it is, and the variables it takes from task 0."""

import os
import subprocess

from moorings.slurm.engine.beside import build_beside
from tests.waiting import until


def test_step_shares_the_job_and_has_a_terminal_on_request():
    plain = build_beside("17", "run-1", "/srv", ["cat", "-"])
    assert plain[:2] == ["srun", "--jobid=17"]
    assert {"--overlap", "--ntasks=1", "--export=MOORINGS_BESIDE=1", "--unbuffered"} <= set(plain)
    assert plain[-5:] == ["run-1", "/srv", "", "cat", "-"]
    terminal = build_beside("17", "run-1", "/srv", ["vi"], term="xterm", tty=True)
    assert "--pty" in terminal
    assert terminal[-3:] == ["/srv", "xterm", "vi"]


def step_words(*command, run="run-1", term=""):
    """The words of the step itself, without srun."""
    call = build_beside("17", run, "/", command, term=term, tty=bool(term))
    return call[call.index("/bin/bash") :]


def test_command_has_the_variables_of_task_0_as_they_are():
    odd = {"PATH": os.environ["PATH"], "ODD": "two\nlines 'and' $more", "EMPTY": ""}
    ours = {"MOORINGS_RUN_ID": "run-1", "SLURM_JOB_ID": "17"}
    ranks = [subprocess.Popen(["sleep", "60"], env={**odd, **ours, "SLURM_PROCID": str(rank)}) for rank in (1, 0)]
    try:
        until(lambda: all(_name_of(rank.pid) == "sleep" for rank in ranks))
        outer = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "17", "ONLY": "ours"}
        done = subprocess.run(step_words("env", "-0", term="xterm"), env=outer, capture_output=True, check=True)
        assert set(done.stdout.decode().split("\0")[:-1]) == {
            *(f"{name}={value}" for name, value in (odd | ours).items()),
            "SLURM_PROCID=0",
            "TERM=xterm",
        }
        code = step_words("sh", "-c", "cat; exit 9")
        done = subprocess.run(code, env=outer, input=b"given", capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (9, b"given")
        other = subprocess.run(step_words("true", run="run-2"), env=outer, capture_output=True, check=False)
        assert other.returncode == 1
        assert b"not on this node" in other.stderr
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _name_of(pid):
    with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - a file of the kernel's
        return file.read().strip()
