"""Two Slurms of one ClusterName with one access key: a cloned head node. Neither harms the other's jobs (law 3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from moorings.controller.queues import REPORT_TTL_S_MIN
from moorings.core.reconcile import MISSING_S_MIN
from moorings.slurm.host.instance_id import FILE
from moorings.slurm.host.queue_sync import YIELD_S
from tests.slurm.admin import moor, told
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.ipus import LICENSES, SIZES, IpuSite, install, ipu_site
from tests.waiting import patient, until

LONG = "srun sh -c 'echo $MOORINGS_PARTITION_ID'; sleep 600"


@pytest.fixture
def first(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, nodes=1) as made:
        yield made


@pytest.fixture
def second(first: IpuSite, slurm_release: str) -> Iterator[IpuSite]:
    """A Slurm that knows nothing of the first one's jobs, and has all else from it; its agent is not started."""
    with clone_of(first, slurm_release) as made:
        yield made


@contextmanager
def clone_of(first: IpuSite, release: str) -> Iterator[IpuSite]:
    cluster = SlurmCluster(new_folder(), 1, licenses=LICENSES, release=release, extra_conf="JobSubmitPlugins=lua\n")
    site = IpuSite(cluster, first.controller, {})
    try:
        install(cluster)
        conf = (first.cluster.etc / "vipu.conf").read_text()
        for mine, its in ((f"AgentPort={first.port}", f"AgentPort={site.port}"), (str(first.ipuof), str(site.ipuof))):
            assert mine in conf
            conf = conf.replace(mine, its)
        cluster.write_conf("vipu.conf", conf, 0o600)
        cluster.start()
        yield site
    finally:
        if site.agent_lives:
            site.end_agent()
        cluster.remove()


def states(site: IpuSite) -> dict[str, str]:
    """The state of each claim, by its owner; both clusters' claims are under one name."""
    return {claim["owner"]: claim["state"] for claim in site.claims()}


def stays(true: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    """Look on for so long: something must not happen, though all it needs is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert true(), what()
        time.sleep(0.5)


def instance_of(site: IpuSite) -> str:
    return (site.cluster.folder / "state" / FILE).read_text().strip()


def logs(*sites: IpuSite) -> str:
    return "\n----\n".join(site.log()[-4000:] for site in sites)


@pytest.mark.slow
def test_a_clone_takes_nothing_from_jobs_that_live_and_starts_none_of_its_own(first: IpuSite, second: IpuSite) -> None:
    running = first.cluster.sbatch(LONG, "--ipus=8")
    until(lambda: list(states(first).values()) == ["READY"], what=first.log)
    (owner,) = states(first)

    second.start_agent()
    until(lambda: second.log().count("code=queue.taken"), what=second.log)
    assert instance_of(first) != instance_of(second)
    until(lambda: second.room() == dict.fromkeys(SIZES, 0), what=second.log)
    waiting = second.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=4")
    until(lambda: second.cluster.job(waiting)["Reason"] == "Licenses", what=second.log)
    verdicts = {item["id"]: item for item in told(second.cluster, "slurm", "doctor", code=8)["items"]}
    assert verdicts["slurm.instance"]["verdict"] == "FAIL"
    assert "another slurm called moorings" in verdicts["slurm.instance"]["evidence"]

    # A controller that was started again knows of neither; and an agent that was killed continues at once.
    first.controller.kill()
    first.controller.start()
    until(lambda: first.room()[8] == 8, what=lambda: logs(first, second))
    first.end_agent()
    first.start_agent()
    until(lambda: first.room()[8] == 8 and "queue.contested" in first.log(), what=lambda: logs(first, second))
    also = first.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=8")
    first.cluster.wait_job(also, "COMPLETED")
    assert first.cluster.output(also).strip() == f"slurm_{also}"
    assert "queue.taken" not in first.log()

    stays(lambda: states(first).get(owner) == "READY", MISSING_S_MIN + 10, what=lambda: logs(first, second))
    assert second.cluster.job(waiting)["JobState"] == "PENDING"
    assert second.room() == dict.fromkeys(SIZES, 0)
    assert "claim.released" not in second.log()
    warnings = [line for line in second.log().splitlines() if "level=warning" in line and "queue.taken" in line]
    assert len(warnings) == 1, warnings
    assert first.cluster.job(running)["JobState"] == "RUNNING"


@pytest.mark.slow
def test_a_clone_takes_over_when_the_first_is_silent_and_spares_its_jobs(first: IpuSite, second: IpuSite) -> None:
    running = first.cluster.sbatch(LONG, "--ipus=8")
    until(lambda: list(states(first).values()) == ["READY"], what=first.log)
    (owner,) = states(first)
    second.start_agent()
    until(lambda: second.log().count("code=queue.taken"), what=second.log)
    waiting = second.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=4")

    first.end_agent()
    forget(first)
    until(lambda: second.room()[4] > 0 or second.cluster.job(waiting)["JobState"] != "PENDING", what=second.log)
    second.cluster.wait_job(waiting, "COMPLETED")
    *_, partition = second.cluster.output(waiting).splitlines()  # before it, after some seconds, what it waits for
    assert partition.startswith("slurm_")
    stays(lambda: states(first).get(owner) == "READY", MISSING_S_MIN + 10, what=lambda: logs(first, second))
    assert second.log().count("claims.of_another") == 1
    everything = second.cluster.sbatch("true", "--ipus=16")
    until(lambda: second.cluster.job(everything)["Reason"] == "Licenses", what=second.log)

    first.start_agent()
    until(lambda: "code=queue.taken" in first.log(), what=first.log)
    until(lambda: "queue.contested" in second.log(), what=lambda: logs(first, second))
    until(lambda: max(first.room().values()) <= 0, what=first.log)
    step = first.cluster.spawn("srun", f"--jobid={running}", "--overlap", "--ipus=8", "true")
    stays(lambda: states(first).get(owner) == "READY", 25, what=lambda: logs(first, second))
    assert first.cluster.job(running)["JobState"] == "RUNNING"
    step.terminate()
    assert step.wait(patient(10)) != 0
    assert step.stderr is not None
    assert "the controller serves another Slurm" in step.stderr.read()


def test_an_agent_that_cannot_tell_which_slurm_it_serves_does_not_start(first: IpuSite) -> None:
    """A new id in the place of one that cannot be read would be another Slurm."""
    first.end_agent()
    file = first.cluster.folder / "state" / FILE
    told = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("nonsense\n")
    done = moor(first.cluster, "slurm", "agent")
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert "hint: " in done.stderr
    assert file.read_text() == "nonsense\n"
    file.write_text(told)
    first.start_agent()
    until(lambda: first.room()[16] == 16, what=first.log)
    assert "queue.taken" not in first.log()


def forget(site: IpuSite) -> None:
    """Have the controller believe its list no longer than it must: as if its agent had said so."""
    told = {
        "queue": "slurm/moorings",
        "instance": instance_of(site),
        "jobs": [{"owner": "slurm/moorings/4000000000/none", "size": 1}],  # another list: it counts from now
        "forS": REPORT_TTL_S_MIN,
    }
    assert site.controller.ask("POST", "/v1/queues", told)[0] == 200
    begun = time.monotonic()
    path = f"/v1/queues/slurm/moorings?instance={instance_of(site)}"
    until(lambda: site.controller.ask("GET", path)[0] != 200, REPORT_TTL_S_MIN + YIELD_S)
    assert time.monotonic() - begun > REPORT_TTL_S_MIN - 2, "it was promised"
