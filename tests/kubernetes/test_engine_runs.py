"""``moor run --engine kubernetes``: the whole way from a command to its exit code, through controller and operator."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorings.kubernetes.engine.submission import ATTENDED_S
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.site import Site, ipu_site
from tests.kubernetes.test_engine import RUNNER, give_rights
from tests.procfs import HEARING
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

Start = Callable[..., subprocess.Popen[str]]
Run = dict[str, Any]

NAMESPACE, VISION = "runs", "vision"
MOOR = (sys.executable, "-m", "moorings.cli.main")
RUN = (*MOOR, "run", "--engine", "kubernetes", "--env", "PATH=/bin")
TERMINALS = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "terminals.md"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A site whose controller makes IPUJobs in its own cluster."""
    with KubernetesCluster(new_folder()) as cluster:
        node = cluster.with_node()
        node.import_image(images.busybox())
        cluster.kubectl("label", "node", node.name, "ipunode=pod1")
        for name in (NAMESPACE, VISION):
            cluster.kubectl("create", "namespace", name)
            give_rights(cluster, name)
        with ipu_site(cluster, flags=["--privileged"]) as made:
            work = made.folder / "work"
            work.mkdir()
            settings = made.folder / "controller.toml"
            settings.write_text(
                f'[kubernetes]\nnamespace = "{NAMESPACE}"\nkubeconfig = "{cluster.make_kubeconfig(RUNNER)}"\n'
                f'request_cpus = false\n[[kubernetes.volumes]]\npath = "/work"\nhost_path = "{work}"\n'
                f'[kubernetes.projects.vision]\nnamespace = "{VISION}"\n'
            )
            made.pod.stop()
            made.pod.flags = ("--config", str(settings))
            made.pod.start()
            yield made


@pytest.fixture(scope="module")
def key(site: Site) -> str:
    """Of ann, who may start runs and is nobody in the cluster."""
    return str(site.pod.ask("POST", "/v1/keys", {"subject": "ann", "role": "user"})[1]["secret"])


@pytest.fixture(scope="module")
def environment(site: Site, key: str) -> dict[str, str]:
    """ann's variables; in the cluster she may use the terminals of one namespace, as the page says."""
    (text,) = re.findall(r"```yaml\n(.*?)```", TERMINALS.read_text(), re.DOTALL)
    site.cluster.apply(text, "-n", NAMESPACE)
    site.cluster.kubectl("create", "rolebinding", "ann", "-n", NAMESPACE, "--role=moorings-terminals", "--user=ann")
    return site.cluster.env(site.cluster.make_kubeconfig("ann")) | {
        "HOME": str(site.folder),
        "TERM": "vt220",
        "MOORINGS_SERVER": f"http://127.0.0.1:{site.pod.port}",
        "MOORINGS_ACCESS_KEY": key,
    }


@pytest.fixture
def start(site: Site, environment: dict[str, str]) -> Iterator[Start]:
    """ann's ``moor run --engine kubernetes``; what a test leaves running ends with it."""
    started: list[subprocess.Popen[str]] = []

    def start_it(*words: str, image: str = images.busybox().name) -> subprocess.Popen[str]:
        argv = [*HEARING, *RUN, *(("--image", image) if image else ()), *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=site.folder)
        started.append(process)
        return process

    yield start_it
    for process in started:
        process.kill()
        with process:  # closes its pipes
            pass


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and what was said meanwhile."""
    output, said = process.communicate(timeout=patient(120))
    return process.returncode, output, said


def runs(site: Site) -> list[Run]:
    """All runs, the oldest first."""
    items: list[Run] = site.pod.ask("GET", "/v1/runs?all=1&limit=1000")[1]["items"]
    return sorted(items, key=lambda run: run["createdAt"])


def one_more(site: Site, than: list[Run], true: Callable[[Run], object] = lambda _: True) -> Run:
    """The one run that is not among the others, as soon as it is as it shall be."""
    known = {run["id"] for run in than}

    def look() -> Run | None:
        fresh = [run for run in runs(site) if run["id"] not in known]
        return fresh[0] if fresh and true(fresh[0]) else None

    found = until(look, 60, what=lambda: f"{runs(site)[-1:]}")
    assert found is not None
    return found


@pytest.mark.smoke
def test_a_command_runs_on_a_partition_of_its_own_and_its_exit_code_is_ours(site: Site, start: Start) -> None:
    before = runs(site)
    script = 'echo "$RANK of $WORLD_SIZE in $MOORINGS_PARTITION_ID"; pwd; exec sleep $((1 + RANK * 8))'
    code, output, said = finish(start("--ipus", "4", "-n", "2", "--chdir", "/work", "--", "sh", "-c", script))
    assert code == 0, said
    run = one_more(site, before)
    lines = sorted(output.splitlines())
    assert [line.split(" in ")[0] for line in lines] == ["[0] /work", "[0] 0 of 2", "[1] /work", "[1] 1 of 2"]
    assert (run["state"], run["exitCode"], run["taskCodes"]) == ("SUCCEEDED", 0, [0, 0])
    assert run["reference"] == f"{NAMESPACE}/{run['id']}"
    assert "claim" not in run
    assert f"an IPUJob of the namespace {NAMESPACE}, image {images.busybox().name}" in said
    assert "its working folder /work is in /work, which is its node's " in said
    site.await_empty()


def test_what_it_waits_for_is_told_and_it_starts_when_there_is_room(site: Site, start: Start) -> None:
    before = runs(site)
    site.submit(NAMESPACE, "blocker", ipusPerJobInstance="16")
    site.await_pods(NAMESPACE, "blocker", "blocker-worker-0")
    waiting = start("--ipus", "8", "--", "sh", "-c", "echo ran")
    run = one_more(site, before, lambda run: "waiting for a partition" in str(run.get("reason")))
    assert (run["state"], run["reason"]["code"]) == ("WAITING", "engine.waiting")
    site.delete(NAMESPACE, "blocker")
    code, output, said = finish(waiting)
    assert (code, output) == (0, "ran\n"), said


def test_an_interrupted_one_has_its_grace_period(site: Site, start: Start) -> None:
    before = runs(site)
    script = "trap 'echo saved; exit 0' TERM; echo ready; sleep 300 & wait"
    process = start("--ipus", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    code, output, said = finish(process)
    assert (code, output) == (130, "saved\n"), said
    run = one_more(site, before)
    assert (run["state"], run["taskCodes"]) == ("CANCELLED", [0])


def test_a_project_has_a_namespace_of_its_own(site: Site, start: Start) -> None:
    before = runs(site)
    code, _, said = finish(start("--ipus", "1", "--project", "vision", "--", "true"))
    assert code == 0, said
    assert one_more(site, before)["reference"].startswith(f"{VISION}/run-")


@pytest.mark.parametrize(
    ("words", "image", "told"),
    [
        ((), "", "a run on Kubernetes needs a container image"),
        (("--pool", "pool1"), "busybox", "a job on Kubernetes cannot choose a pool"),
    ],
)
def test_what_kubernetes_cannot_do_is_refused_before_there_is_a_run(
    site: Site, start: Start, words: tuple[str, ...], image: str, told: str
) -> None:
    before = runs(site)
    code, output, said = finish(start("--ipus", "1", *words, "--", "true", image=image))
    assert (code, output) == (1, "")
    assert told in said
    assert "hint: " in said
    assert runs(site) == before


def _holds(folder: Path, files: int) -> bool:
    return len(list(folder.iterdir())) >= files


def test_a_controller_that_is_killed_starts_nothing_twice_and_loses_nothing(site: Site, start: Start) -> None:
    """Killed while it submits, and while they run; each command ran once, and each run has its end and its output."""
    known = {run["id"] for run in runs(site)}
    marks = site.folder / "work" / "marks"
    marks.mkdir()
    script = "echo begun; mktemp /work/marks/{0}.XXXXXX > /dev/null; sleep 4; echo ended"
    started = [start("--ipus", "1", "--", "sh", "-c", script.format(number)) for number in range(5)]
    for process in started:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("run-")  # it knows that it has a run
    for wanted in (0, 1, 5):
        until(partial(_holds, marks, wanted), 90, what=lambda: str(runs(site)[-5:]))
        site.pod.kill()
        site.pod.start()
    ended = [finish(process) for process in started]
    assert [(code, output) for code, output, _ in ended] == [(0, "begun\nended\n")] * 5, ended
    assert sorted(path.name.partition(".")[0] for path in marks.iterdir()) == [str(number) for number in range(5)]
    fresh = [run for run in runs(site) if run["id"] not in known]
    assert {run["state"] for run in fresh} == {"SUCCEEDED"}
    site.await_empty()


def moor(environment: dict[str, str], *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """ann's ``moor``, without a terminal."""
    call = [*MOOR, *words]
    return subprocess.run(
        call, env=environment, input=given, capture_output=True, text=True, timeout=patient(60), check=False
    )


def running(site: Site, than: list[Run]) -> str:
    """The id of the one run that is not among the others, once it runs."""
    return str(one_more(site, than, lambda run: run["state"] == "RUNNING")["id"])


def test_commands_and_ports_of_a_run_are_reached_by_the_persons_own_rights(
    site: Site, start: Start, environment: dict[str, str]
) -> None:
    before = runs(site)
    serve = "echo served > /tmp/index.html; exec httpd -f -p 8000 -h /tmp"
    served = start("--ipus", "1", "--env", "MARK=ours", "--chdir", "/work", "--", "sh", "-c", serve)
    run = running(site, before)
    done = moor(
        environment, "exec", run, "--", "sh", "-c", "cat; pwd; echo $MARK; echo no >&2; exit 9", given="given\n"
    )
    assert (done.returncode, done.stdout) == (9, "given\n/work\nours\n"), done.stderr
    assert done.stderr.startswith("no\n")
    with Pseudoterminal([*MOOR, "exec", run, "--", "sh"], environment) as terminal:
        terminal.type("stty size; exit $((3 + 4))\r")
        terminal.wait_for("24 80")
        assert terminal.wait() == 7
    refused = moor(environment, "port-forward", run, "none")
    assert (refused.returncode, "port.invalid" in refused.stderr) == (2, True), refused.stderr
    forwarding = subprocess.Popen(
        [*HEARING, *MOOR, "port-forward", run, "0:8000"], env=environment, stdout=subprocess.PIPE, text=True
    )
    with forwarding:
        assert forwarding.stdout is not None
        (port,) = re.findall(r"Forwarding from 127\.0\.0\.1:(\d+) -> 8000\n", forwarding.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=patient(20)) as answer:
            assert answer.read() == b"served\n"
        served.send_signal(signal.SIGTERM)
        forwarding.stdout.read()
        assert forwarding.wait(patient(60)) == 0
    finish(served)
    late = moor(environment, "exec", run, "--", "true")
    assert "run.not_running" in late.stderr, late.stderr


def test_rights_that_are_missing_in_a_namespace_are_told_at_once(
    site: Site, start: Start, environment: dict[str, str]
) -> None:
    before = runs(site)
    sleeper = start("--ipus", "1", "--project", "vision", "--", "sleep", "100")
    run = running(site, before)
    for words in (("exec", run, "--", "true"), ("port-forward", run, "8000")):
        denied = moor(environment, *words)
        assert denied.returncode == 4, denied.stderr
        assert "kubernetes.denied" in denied.stderr
        assert f"in the namespace {VISION}" in denied.stderr
    before = runs(site)
    interactive = [*RUN, "-i", "--image", images.busybox().name, "--ipus", "1", "--project", "vision", "--", "sh"]
    with Pseudoterminal(interactive, environment) as terminal:
        terminal.wait_for("may not create pods/attach")
        assert terminal.wait() == 4
    assert one_more(site, before, lambda run: "endedAt" in run)["state"] == "CANCELLED"
    sleeper.send_signal(signal.SIGTERM)
    finish(sleeper)


def test_a_shell_has_its_terminal_and_ends_once_that_was_closed_for_too_long(
    site: Site, environment: dict[str, str]
) -> None:
    before = runs(site)
    script = "echo begun in $TERM; stty size; sh; echo after $?; exec sh"
    words = [*RUN, "-i", "--keep", "1s", "--image", images.busybox().name, "--ipus", "2", "-n", "2", "--", "sh", "-c"]
    with Pseudoterminal([*words, script], environment, columns=99) as terminal:
        terminal.wait_for("close the terminal to detach")
        terminal.wait_for("begun in vt220")  # it waited for us
        terminal.wait_for("24 99")
        run = running(site, before)
        terminal.type("sh -c 'echo 1$((1 + 1))3; exec sleep 100'\r")
        terminal.wait_for("123")
        terminal.type("\x03")
        terminal.type("exit 5\r")  # Ctrl-C is the program's
        terminal.wait_for("after 5")
        terminal.type(f"sleep {ATTENDED_S + 2:g}; echo a''wake\r")  # longer than it may be unattended
        terminal.wait_for("awake", ATTENDED_S + 20)
        terminal.close()
        assert terminal.process.wait(patient(30)) == 129
    with Pseudoterminal([*MOOR, "attach", run], environment) as terminal:
        terminal.wait_for("after 5")  # what it printed before
        terminal.type("echo 4$((2 + 3))6\r")
        terminal.wait_for("456")
        terminal.close()
        terminal.process.wait(patient(30))
    ended = one_more(site, before, lambda run: "endedAt" in run)
    assert ended["state"] == "CANCELLED"
    assert "its terminal was unattended" in str(ended.get("detail"))
    site.await_empty()


def test_a_shell_ends_with_its_own_exit_code(site: Site, environment: dict[str, str]) -> None:
    before = runs(site)
    words = [*MOOR, "shell", "--engine", "kubernetes", "--image", images.busybox().name, "--ipus", "1"]
    with Pseudoterminal(words, environment) as terminal:
        terminal.wait_for("# ")
        settings = terminal.settings()
        terminal.type("exit 6\r")
        terminal.wait_for("exit code 6")
        assert terminal.wait() == 6
        assert terminal.settings() != settings  # no longer raw
    assert one_more(site, before)["exitCode"] == 6
