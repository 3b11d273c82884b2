"""A run of real processes, from the start to its recorded end, with jobs that do not behave."""

import asyncio
import os
import signal
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.engines.processes import list_processes, read_process
from moorings.local.supervisor import describe_failure
from moorings.testing.engine_suite import (
    READY,
    make_order,
    observe_run,
    read_output,
    wait_for_end,
    wait_for_output,
    wait_for_phase,
    with_contract,
)
from moorings.workloads.runs import EndReason, RunPhase
from tests.unit.local.local_rig import alive, eventually

# Makes itself a daemon in every way it knows, says who it is, and ignores whatever can be ignored.
DAEMON = """
import os, signal, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.chdir("/")
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
nothing = os.open(os.devnull, os.O_RDWR)
for fd in range(3):
    os.dup2(nothing, fd)
with open(sys.argv[1] + ".draft", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".draft", sys.argv[1])
while True:
    signal.pause()
"""


def python(*arguments):
    return (sys.executable, *arguments)


async def test_a_task_gets_exactly_what_the_job_and_its_binding_say(rig, engine, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    order = make_order(("/usr/bin/env",), rig.workdir, tasks=4)
    job = replace(
        order.job,
        environment={"PATH": "/usr/bin:/bin", "GREETING": "bonjour à tous\tet 'à toutes'"},
        checkpoint_directory=f"{rig.workdir}/made/for/it",
    )
    await engine.submit(replace(order, job=job, resume_from="/somewhere/step-7"))
    assert (await wait_for_end(engine, order.run)).exit_code == 0
    ports = set()
    for rank in range(4):
        output = (await read_output(engine, order.run, task=rank)).decode()
        variables = dict(line.split("=", 1) for line in output.splitlines())
        ports.add(variables.pop("MASTER_PORT"))
        assert variables == {
            "PATH": "/usr/bin:/bin",
            "GREETING": "bonjour à tous\tet 'à toutes'",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MOORINGS_RUN_ID": order.run,
            "MOORINGS_JOB_ID": order.run,
            "MOORINGS_PARTITION_ID": order.binding.partition,
            "MOORINGS_DEVICES": f"pod:{rank}",
            "MOORINGS_CHECKPOINT_DIR": f"{rig.workdir}/made/for/it",
            "MOORINGS_RESUME_FROM": "/somewhere/step-7",
            "IPUOF_CONFIG_PATH": f"{rig.of(order.run).bindings}/{order.binding.partition}_gcd{rank}_ipuof.conf",
        }
    assert len(ports) == 1
    assert 1024 <= int(ports.pop()) < 65536
    assert (rig.work / "made/for/it").is_dir()


GIVEN = "from $MOORINGS_RESUME_FROM step ${MOORINGS_RESUME_STEP:-none}"


@pytest.mark.parametrize(
    ("resumable", "since", "told"),
    [
        (True, None, "from {}/step-5.pt step 5"),
        (True, 2**60, "from /gone/step-4.pt step 4"),  # a user's choice, and nothing has been saved since
        (False, None, "from /gone/step-4.pt step 4"),
    ],
)
async def test_a_later_attempt_is_given_the_newest_whole_checkpoint_that_is_there(rig, engine, resumable, since, told):
    (rig.work / "step-5.pt").write_bytes(b"PK\x05\x06" + bytes(18))
    order = make_order(("/bin/sh", "-c", f"echo {GIVEN}"), rig.workdir)
    contract = replace(order.job.checkpoint, resumable=resumable)
    order = replace(order, job=replace(order.job, checkpoint=contract, checkpoint_directory=rig.workdir))
    order = replace(order, attempt=1, resume_from="/gone/step-4.pt", resume_step=4, resume_since=since)
    await engine.submit(order)
    assert (await wait_for_end(engine, order.run)).exit_code == 0
    assert (await read_output(engine, order.run)).decode() == told.format(rig.workdir) + "\n"
    given = (await observe_run(engine, order.run)).resumed_from
    assert (given.path if given is not None else None) == (f"{rig.workdir}/step-5.pt" if "-5" in told else None)


@pytest.mark.parametrize("attempt", [0, 1])
async def test_a_torn_checkpoint_is_not_given_though_its_user_chose_it(rig, engine, attempt):
    torn = rig.work / "step-5.pt"
    torn.write_bytes(b"PK\x05\x06" + bytes(17))
    order = make_order(rig.programs.prints("ran"), rig.workdir)
    contract = replace(order.job.checkpoint, resumable=True)
    order = replace(order, job=replace(order.job, checkpoint=contract, checkpoint_directory=rig.workdir))
    await engine.submit(replace(order, attempt=attempt, resume_from=str(torn), resume_step=5))
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 126)
    assert f"checkpoint {torn} is not whole: " in end.detail
    assert await read_output(engine, order.run) == b""


async def test_in_api_form_there_are_no_files(rig, engine):
    order = make_order(("/usr/bin/env",), rig.workdir)
    gcd = replace(order.binding.gcds[0], file_name="", file_text="")
    binding = replace(order.binding, api={"IPUOF_VIPU_API_HOST": "vipu"}, gcds=(gcd,))
    await engine.submit(replace(order, binding=binding))
    await wait_for_end(engine, order.run)
    output = (await read_output(engine, order.run)).decode().splitlines()
    assert "IPUOF_VIPU_API_HOST=vipu" in output
    assert "IPUOF_VIPU_API_GCD_ID=0" in output
    assert not any(line.startswith("IPUOF_CONFIG_PATH") for line in output)


async def test_a_task_inherits_nothing_from_us(rig, engine):
    script = (
        "import os; print(sorted(os.listdir('/proc/self/fd'))); print(open('/proc/self/status').read(), os.getcwd())"
    )
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for fd in held:
        os.set_inheritable(fd, True)
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        order = make_order(python("-c", script), rig.workdir)
        await engine.submit(order)
    finally:
        signal.signal(signal.SIGHUP, old)
        for fd in held:
            os.close(fd)
    await wait_for_end(engine, order.run)
    fds, *status = (await read_output(engine, order.run)).decode().splitlines()
    assert fds == "['0', '1', '2', '3']"  # 3 is the listing itself
    masks = dict(line.split(":\t") for line in status if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    assert not int(masks["SigIgn"], 16) & 1 << (signal.SIGHUP - 1)
    assert status[-1].strip() == rig.workdir


async def test_a_supervisor_is_nobodys_child_and_carries_no_secrets(rig, engine, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    order = replace(order, job=replace(order.job, environment={"PATH": "/usr/bin:/bin", "TOKEN": "s3cret"}))
    await engine.submit(order)
    pid = rig.status(order.run).supervisor.pid
    process = read_process(pid)
    assert process is not None
    assert process.parent != os.getpid()
    assert process.session != os.getsid(0)
    proc = Path("/proc") / str(pid)
    for told in ("environ", "cmdline"):
        text = (proc / told).read_bytes()
        assert b"hunter2" not in text
        assert b"s3cret" not in text
    opened = {fd.name: str(fd.readlink()) for fd in (proc / "fd").iterdir()}
    folder = rig.of(order.run)
    assert opened.pop("0") == "/dev/null"
    log = str(folder.supervisor_log)
    of_terminals = ["anon_inode:[eventfd]", "socket"]
    known = [log, log, str(folder.path / "life"), *of_terminals]
    assert sorted(path.partition(":[")[0] if path.startswith("socket") else path for path in opened.values()) == sorted(
        known
    )
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)


async def test_the_files_are_the_owners_alone_and_the_bindings_go_with_the_run(rig, engine):
    order = make_order(rig.programs.shell("cat $IPUOF_CONFIG_PATH; echo ready; exec sleep 3600"), rig.workdir, tasks=2)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY, task=1)
    folder = rig.of(order.run)
    assert (await read_output(engine, order.run, task=1)) == b'{"gcd": 1}\nready\n'
    assert len(list(folder.bindings.iterdir())) == 2
    for path in folder.path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)
    assert not folder.bindings.exists()


@pytest.mark.parametrize("tasks", [1, 2])
async def test_a_daemon_is_dead_when_the_run_has_ended(rig, engine, tasks):
    daemon = rig.script("daemon.py", DAEMON)
    script = f'"{sys.executable}" {daemon} "$PWD/pid-$RANK"; while [ ! -e pid-$RANK ]; do sleep 0.01; done; exit 0'
    order = make_order(rig.programs.shell(script), rig.workdir, tasks=tasks)
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
    assert not any(alive(int((rig.work / f"pid-{rank}").read_text())) for rank in range(tasks))


async def test_a_tree_of_processes_is_dead_when_the_run_has_ended(rig, engine):
    grow = "#!/bin/sh\ntrap '' TERM\n[ $1 -gt 0 ] || exec sleep 3600\nsetsid $0 $(($1-1)) & $0 $(($1-1)) & wait\n"
    tree = rig.script("tree.sh", grow)
    root = rig.script("root.sh", f"#!/bin/sh\n{tree} 5 &\necho ready\nexec sleep 3600\n")
    order = with_contract(make_order((root,), rig.workdir), grace_s=0.1)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await eventually(lambda: len(rig.left()) > 20)
    await engine.cancel(order.run, "seen enough")
    assert (await wait_for_end(engine, order.run)).ending is EndReason.CANCELLED
    assert [command for command in rig.left().values() if "supervisor" not in command] == []


async def test_a_program_in_a_script_may_use_its_grace_period(rig, engine):
    program = rig.script(
        "program.sh",
        "#!/bin/sh\ntrap 'sleep 0.1; echo saved; exit 0' TERM\necho ready\nwhile :; do sleep 3600 & wait; done\n",
    )
    order = make_order(rig.programs.shell(f"{program}; exit 1"), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)
    assert await read_output(engine, order.run) == b"ready\nsaved\n"


async def test_a_stopped_process_is_woken_to_end(rig, engine):
    order = make_order(rig.programs.shell("echo ready; kill -STOP $$"), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await eventually(lambda: list_processes()[rig.status(order.run).tasks[0].pid].state == "T")
    await engine.cancel(order.run, "seen enough")
    assert (await wait_for_end(engine, order.run)).exit_code == 143


async def test_a_run_that_leaves_well_at_its_time_limit_ends_with_124(rig, engine):
    order = make_order(rig.programs.exits_zero_at_term(), rig.workdir, time_limit_s=1.0)
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.TIMED_OUT, 124, (0,))


async def test_a_warning_kills_nobody_who_does_not_listen(rig, engine):
    order = with_contract(make_order(rig.programs.runs_until_stopped(), rig.workdir, time_limit_s=0.6), warn_s=0.5)
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.TIMED_OUT, 143)  # not 138, which is USR1


async def test_who_asks_for_a_signal_gets_it_even_if_nobody_listens(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await engine.signal(order.run, "SIGUSR1")
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.EXITED, 138)
    assert "SIGUSR1" in end.detail


async def test_a_supervisor_that_is_told_to_stop_stops_its_run(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGTERM)
    end = await wait_for_end(engine, order.run)
    assert end.ending is EndReason.CANCELLED
    assert "SIGTERM" in end.detail


@pytest.mark.parametrize(
    ("text", "mode", "code", "told"),
    [
        ("#!/bin/sh\n", 0o644, 126, "Permission denied"),
        ("no first line\n", 0o755, 126, "Exec format error"),
        ("#!/no/such/interpreter\n", 0o755, 127, "interpreter"),
    ],
)
async def test_a_program_that_cannot_be_started(rig, engine, text, mode, code, told):
    order = make_order((rig.script("program", text, mode),), rig.workdir, tasks=2)
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.NOT_STARTED, code, (None, None))
    assert told in end.detail
    assert "program" in end.detail
    assert not rig.of(order.run).bindings.exists()


async def test_a_program_is_looked_for_on_the_jobs_own_path(rig, engine):
    rig.script("greet", "#!/bin/sh\necho hello\n")
    order = make_order(("greet",), rig.workdir)
    order = replace(order, job=replace(order.job, environment={"PATH": rig.workdir}))
    await engine.submit(order)
    assert await read_output(engine, order.run, follow=True) == b"hello\n"
    assert (await wait_for_end(engine, order.run)).exit_code == 0


@pytest.mark.parametrize("workdir", ["/no/such/folder", "/etc/passwd"])
async def test_a_working_folder_that_is_none(rig, engine, workdir):
    order = make_order(rig.programs.exits(0), workdir)
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 126)
    assert workdir in end.detail


async def test_a_checkpoint_folder_that_cannot_be_made(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    order = replace(order, job=replace(order.job, checkpoint_directory="/etc/passwd/checkpoints"))
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 126)
    assert "/etc/passwd/checkpoints" in end.detail


async def test_an_end_that_cannot_be_recorded_is_recorded_when_it_can(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    folder = rig.of(order.run)
    folder.end.mkdir()  # nothing can be renamed onto a folder
    await engine.cancel(order.run, "seen enough")
    await eventually(lambda: "cannot be recorded" in folder.supervisor_log.read_text())
    assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
    folder.end.rmdir()
    assert (await wait_for_end(engine, order.run)).ending is EndReason.CANCELLED


async def test_much_output_arrives_whole(rig, engine):
    script = "import sys; [sys.stdout.write(f'{n:09d}\\n') for n in range(1_000_000)]"
    order = make_order(python("-c", script), rig.workdir, tasks=2)
    await engine.submit(order)
    one, merged = await asyncio.gather(
        read_output(engine, order.run, task=1, follow=True), read_output(engine, order.run, follow=True)
    )
    assert one.splitlines() == [b"%09d" % number for number in range(1_000_000)]
    for rank in range(2):
        assert merged.count(b"[%d] " % rank) == 1_000_000
    assert (await wait_for_end(engine, order.run)).exit_code == 0


async def test_a_new_attempt_leaves_the_old_ones_output(rig, engine):
    order = make_order(rig.programs.prints("first"), rig.workdir)
    again = replace(order, attempt=1, job=replace(order.job, command=rig.programs.prints("second")))
    await engine.submit(order)
    await wait_for_end(engine, order.run)
    await engine.submit(again)
    await wait_for_end(engine, order.run)
    folder = rig.of(order.run)
    assert folder.log_path(0, 0).read_bytes() == b"first\n"
    assert folder.log_path(1, 0).read_bytes() == b"second\n"


async def test_how_a_run_goes_is_seen(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    running = await wait_for_phase(engine, order.run, RunPhase.RUNNING)
    assert running.started_at is not None
    assert running.end is None
    await engine.cancel(order.run, "seen enough")
    end = await wait_for_end(engine, order.run)
    assert end.started_at == running.started_at


def test_a_failure_is_told_by_name():
    assert describe_failure(3, 1) == "task 3 exited with 1"
    assert describe_failure(0, -11) == "task 0 was killed by SIGSEGV"
    assert describe_failure(0, -40) == "task 0 was killed by signal 40"
