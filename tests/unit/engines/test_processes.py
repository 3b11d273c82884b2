"""What /proc says, of processes that are really there."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from moorings.engines.processes import (
    Process,
    boot_id,
    descendants,
    find_signal_receivers,
    find_warning_receivers,
    handles_signal,
    has_file_open_below,
    has_variable,
    list_processes,
    open_for_writing,
    open_pidfd,
    parse_stat,
    read_process,
    send_signal,
)

LISTENER = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: None); print(flush=True); signal.pause()"


@pytest.fixture
def start():
    """Starts a program whose first line of output says that it is ready."""
    started = []

    def begin(*command, **options):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **options)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        for pid in (process.pid, *(child.pid for child in descendants([process.pid], list_processes()))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_name_with_parentheses_and_spaces_confuses_nobody():
    text = b"42 (a) S 1 (b c) Z 7 42 43 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 200\n"
    assert parse_stat(text) == Process(
        pid=42, ticks=98765, parent=7, group=42, session=43, state="Z", name="a) S 1 (b c"
    )


def test_we_are_there_and_our_parent_is_our_parent():
    us = read_process(os.getpid())
    assert us is not None
    assert (us.parent, us.session, us.has_exited) == (os.getppid(), os.getsid(0), False)
    assert list_processes()[os.getpid()].ticks == us.ticks
    assert len(boot_id()) == 36


def test_nobody_has_an_id_that_cannot_be():
    assert read_process(2**30) is None
    assert open_pidfd(2**30, 1) is None


def test_a_zombie_is_dead_and_takes_no_signal(start):
    process = start("/bin/echo")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    zombie = read_process(process.pid)
    assert zombie is not None
    assert zombie.has_exited
    assert process.pid not in list_processes()
    assert open_pidfd(zombie.pid, zombie.ticks) is None


def test_a_signal_reaches_only_the_process_that_was_meant(start):
    process = start("/bin/sh", "-c", "echo; exec sleep 3600")
    there = list_processes()[process.pid]
    assert not send_signal(Process(there.pid, there.ticks + 1, 0, 0, 0, "S"), signal.SIGKILL)
    assert process.poll() is None
    assert send_signal(there, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_descendants_are_found_across_sessions(start):
    process = start("/bin/sh", "-c", "setsid sh -c 'sh -c \"echo; exec sleep 3600\"; :' & wait")
    table = list_processes()
    found = descendants([process.pid], table)
    assert len(found) == 2
    assert found[0].parent == process.pid
    assert found[1].parent == found[0].pid
    assert found[0].session != process.pid
    assert {p.pid for p in found} < {p.pid for p in descendants([os.getpid()], table)}


def test_marks_of_a_process(start, tmp_path):
    inside, outside = tmp_path / "logs", tmp_path / "logs-of-others"
    inside.mkdir()
    outside.mkdir()
    log = inside / "0.log"
    log.touch()
    with log.open("ab") as output:
        writer = start("/bin/sh", "-c", "echo; exec sleep 3600", stderr=output, env={"MOORINGS_RUN_ID": "run-7"})
    with log.open("rb") as source:
        reader = start("/bin/sh", "-c", "echo; exec sleep 3600", stdin=source, env={"MOORINGS_RUN_ID": "run-77"})
    assert has_variable(writer.pid, "MOORINGS_RUN_ID", "run-7")
    assert not has_variable(reader.pid, "MOORINGS_RUN_ID", "run-7")
    assert has_file_open_below(writer.pid, inside)
    assert not has_file_open_below(writer.pid, outside)
    assert not has_file_open_below(reader.pid, inside)


def test_who_listens_for_a_signal(start):
    deaf = start("/bin/sh", "-c", "trap '' USR1; echo; exec sleep 3600")
    listening = start(sys.executable, "-c", LISTENER)
    holding = start(
        sys.executable,
        "-c",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); print(flush=True); signal.pause()",
    )
    assert not handles_signal(deaf.pid, signal.SIGUSR1)
    assert handles_signal(listening.pid, signal.SIGUSR1)
    assert not handles_signal(listening.pid, signal.SIGUSR2)
    assert handles_signal(holding.pid, signal.SIGUSR1)


def test_a_signal_is_for_the_program_in_the_script_and_not_for_its_workers(start):
    program = (
        "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: None);"
        " worker = os.fork(); worker and print(worker, flush=True); signal.pause()"
    )
    script = start("/bin/sh", "-c", f'"{sys.executable}" -c "{program}"; exit 0')
    told = find_signal_receivers(script.pid, signal.SIGUSR1, list_processes())
    assert len(told) == 1
    assert told[0].parent == script.pid
    assert find_signal_receivers(2**30, signal.SIGUSR1, list_processes()) == []


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_term_that_warns_passes_over_torchrun_and_reaches_its_workers(launcher, start, tmp_path):
    """torchrun's agent, which accelerate runs in itself, ends its workers at a TERM."""
    handles = "signal.signal(signal.SIGTERM, lambda *_: None); signal.signal(signal.SIGUSR2, lambda *_: None)"
    (tmp_path / "worker.py").write_text(f"import signal; {handles}; print(flush=True); signal.pause()")
    worker = f"worker = subprocess.Popen([sys.executable, {str(tmp_path / 'worker.py')!r}], stdout=subprocess.PIPE)"
    (tmp_path / launcher).write_text(
        f"import signal, subprocess, sys; {handles}; {worker}; worker.stdout.readline(); "
        "print(flush=True); signal.pause()"
    )
    agent = start(sys.executable, str(tmp_path / launcher), "launch")
    table = list_processes()
    assert [process.pid for process in find_warning_receivers(agent.pid, signal.SIGUSR2, table)] == [agent.pid]
    told = find_warning_receivers(agent.pid, signal.SIGTERM, table)
    assert [process.parent for process in told] == [agent.pid]
    for process in told:
        send_signal(process, signal.SIGKILL)


def test_files_that_are_open_for_writing_are_found(start, tmp_path):
    (tmp_path / "read").write_text("")
    program = "import sys; a = open('written', 'w'); b = open('read'); print(flush=True); sys.stdin.read()"
    process = start(sys.executable, "-c", program, cwd=tmp_path, stdin=subprocess.PIPE)
    assert open_for_writing([process.pid, 2**30], str(tmp_path)) == {str(tmp_path / "written")}
    assert open_for_writing([process.pid], str(tmp_path / "else")) == frozenset()
