"""Steps beside the tasks of a run: a command with the variables of task 0, its terminal, and a port of its node."""

import os
import socket
import subprocess
import threading

import pytest

from moorings.slurm.engine.beside import NO_TERMINAL, build_attach, build_beside, build_forward
from tests.procfs import strangers_port
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


def test_attaching_step_has_a_terminal_and_no_devices():
    call = build_attach("17", "run-1")
    assert {"--jobid=17", "--overlap", "--export=MOORINGS_BESIDE=1", "--pty"} <= set(call)


def test_attaching_step_does_what_the_terminals_file_says(tmp_path):
    how = tmp_path / "terminal.0"
    call = build_attach("17", "run-1")
    words = call[-3:]  # in the variables of task 0
    assert words[:2] == ["/bin/sh", "-c"]
    waiting = subprocess.Popen(words, env={"MOORINGS_TERMINAL": str(how), "PATH": os.environ["PATH"]})
    draft = tmp_path / "draft"
    draft.write_text("exit 5\n")
    draft.rename(how)
    assert waiting.wait(30) == 5
    assert subprocess.run(words, env={}, check=False).returncode == NO_TERMINAL


def forward_words(port):
    """The words of a forwarding step itself, without srun."""
    call = build_forward("17", port)
    assert "--unbuffered" in call
    return call[call.index("/bin/bash") :]


def test_forwarding_step_passes_bytes_both_ways_until_the_other_end_closes():
    content = bytes(range(256)) * 2000

    def serve(listening):
        connection, _ = listening.accept()
        with connection:
            found = b""
            while len(found) < len(content):
                found += connection.recv(1 << 16)
            connection.sendall(found[::-1])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,)).start()
        with subprocess.Popen(
            forward_words(listening.getsockname()[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as step:
            assert step.stdin is not None
            assert step.stdout is not None
            step.stdin.write(content)
            step.stdin.flush()
            assert step.stdout.read() == content[::-1]
            assert step.wait(30) == 0


def test_forwarding_step_says_that_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    done = subprocess.run(forward_words(port), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"moorings: nothing listens at port {port}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_forwarding_step_of_another_users_port_is_refused():
    with strangers_port(61001) as port:
        done = subprocess.run(
            forward_words(port), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    assert (done.returncode, "user 61001 listens" in done.stderr) == (1, True)


def _name_of(pid):
    with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - a file of the kernel's
        return file.read().strip()
