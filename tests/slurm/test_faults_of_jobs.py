"""What happens to IPU jobs: cancelled, requeued, out of time, their node lost, many at once; and nothing is left."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.processes import ControllerProcess
from tests.slurm.ipus import N_IPUS, IpuSite, ipu_site
from tests.waiting import patient, until, within

WHERE = 'echo "$MOORINGS_PARTITION_ID $MOORINGS_DEVICES"'
STORM = 200
# When a job had which devices, by its own clock.
DIARY = """#!/bin/bash
echo "begin $(date +%s.%N) $MOORINGS_DEVICES"
trap 'kill $!; wait $!; echo "end $(date +%s.%N)"; exit 1' TERM
sleep 0.$((RANDOM % 5)) & wait $!
echo "end $(date +%s.%N)"
"""


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()


def claim_of(site: IpuSite, name: str) -> dict[str, str]:
    """The newest claim of that name, ended or not."""
    return [claim for claim in site.claims(every=True) if claim["name"] == name][-1]


def test_jobs_that_are_cancelled_leave_nothing(site: IpuSite) -> None:
    running = site.cluster.sbatch("srun sleep 100 & srun sleep 100; wait", "--ipus=8", "-n2", user="games")
    asked = site.cluster.spawn("srun", "--ipus=4", "sleep", "100")
    until(lambda: [claim["state"] for claim in site.claims()] == ["READY"] * 2, what=site.log)
    pending = [site.cluster.sbatch("true", f"--ipus={size}") for size in (16, 8)]
    until(lambda: {site.cluster.job(job)["Reason"] for job in pending} == {"Licenses"})
    site.cluster.check("scancel", str(pending[0]))
    site.cluster.check("scancel", str(running))
    site.cluster.wait_job(pending[1], "COMPLETED")
    asked.terminate()
    assert asked.wait(patient(20)) != 0
    site.settle()
    assert claim_of(site, f"slurm_{running}")["state"] == "RELEASED"


def test_a_job_whose_node_fails_loses_its_partition_when_slurm_says_so(site: IpuSite) -> None:
    again = site.cluster.sbatch(f"{WHERE}; [ $SLURM_RESTART_COUNT ] || sleep 100", "--requeue", "--ipus=4", "-w", "n2")
    never = site.cluster.sbatch("sleep 100", "--no-requeue", "--ipus=2", "-w", "n2")
    until(lambda: [claim["state"] for claim in site.claims()] == ["READY"] * 2)
    until(lambda: f"slurm_{again} " in site.cluster.output(again))
    held = {claim["name"]: claim["partitionId"] for claim in site.claims()}
    site.cluster.kill_node(2)
    site.cluster.check("srun", "-w", "n1", "true")  # Slurm works on
    assert {claim["name"]: claim["partitionId"] for claim in site.claims()} == held
    site.cluster.check("scontrol", "update", "nodename=n2", "state=down", "reason=power cut")
    site.cluster.wait_job(never, "NODE_FAIL")
    until(lambda: site.claims() == [], what=site.log)
    site.cluster.start_node(2)
    start_now(site, again)
    site.cluster.wait_job(again, "COMPLETED")
    assert site.cluster.output(again).startswith(f"slurm_{again}_r1 ")


def start_now(site: IpuSite, job: int) -> None:
    """A requeued job would wait for two minutes."""
    site.cluster.wait_job(job, "PENDING")
    site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now")


@pytest.mark.smoke
def test_a_requeued_job_gets_another_partition(site: IpuSite) -> None:
    job = site.cluster.sbatch(f"srun sh -c '{WHERE}'; [ $SLURM_RESTART_COUNT ] || sleep 100", "--ipus=4", "-n2")
    until(lambda: site.cluster.output(job).count(f"slurm_{job} ") == 2, what=lambda: site.cluster.output(job))
    site.cluster.check("scontrol", "requeue", str(job))
    until(lambda: site.claims() == [], what=site.log)
    start_now(site, job)
    site.cluster.wait_job(job, "COMPLETED")
    told = site.cluster.output(job).split()
    assert sorted(told) == sorted([f"slurm_{job}_r1"] * 2 + ["pod16:0,pod16:1", "pod16:2,pod16:3"])


def test_each_task_of_an_array_has_its_own_partition(site: IpuSite) -> None:
    job = site.cluster.sbatch(f"{WHERE}; until [ -e go ]; do sleep 0.05; done", "--array=1-5", "--ipus=4")
    outputs = [f"{job}_{task}" for task in range(1, 6)]
    begun = until(lambda: [told for told in map(site.cluster.output, outputs) if told][3:], what=site.log)
    assert len(begun) == 1
    devices = re.findall(r"pod16:\d+", "".join(map(site.cluster.output, outputs)))
    assert len(devices) == len(set(devices)) == N_IPUS
    (site.cluster.work / "go").touch()
    until(lambda: site.cluster.squeue() == [])
    assert len({site.cluster.output(each).split()[0] for each in outputs}) == 5
    (site.cluster.work / "go").unlink()


@pytest.mark.smoke
def test_a_salloc_has_its_partition_before_any_step(site: IpuSite) -> None:
    shell = site.cluster.spawn("salloc", "--ipus=4", "-n2", "sh", user="man")
    until(lambda: [claim["state"] for claim in site.claims()] == ["READY"], what=site.log)
    name = site.claims()[0]["name"]
    assert shell.stdin is not None
    assert shell.stdout is not None
    print(
        "srun -l printenv MOORINGS_DEVICES; srun -n1 printenv MOORINGS_PARTITION_ID; exit", file=shell.stdin, flush=True
    )
    assert sorted(shell.stdout.readlines()) == sorted(["0: pod16:0,pod16:1\n", "1: pod16:2,pod16:3\n", f"{name}\n"])
    assert shell.wait(patient(20)) == 0


def test_who_waits_for_ipus_is_in_nobodys_way(site: IpuSite) -> None:
    holder = site.cluster.sbatch("sleep 3600", f"--ipus={N_IPUS}")
    until(lambda: [claim["state"] for claim in site.claims()] == ["READY"])
    script = "#!/bin/sh\ntrue\n"
    waiting = [
        int(site.cluster.check("sbatch", "--parsable", "--ipus=1", input=script, user="games")) for _ in range(50)
    ]
    until(lambda: site.cluster.job(waiting[-1])["Reason"] in ("Licenses", "Priority"))
    with within(10):
        for _ in range(5):
            site.cluster.check("srun", "true")
    assert {site.cluster.job(each)["JobState"] for each in waiting} == {"PENDING"}, "it did not come after them"
    job = waiting[0]
    opened = site.cluster.run("scontrol", "update", f"jobid={job}", "licenses=", user="games")
    assert opened.returncode != 0
    assert site.cluster.job(job)["JobState"] == "PENDING"
    site.cluster.check("scancel", str(holder), *map(str, waiting[5:]))
    for job in waiting[:5]:
        site.cluster.wait_job(job, "COMPLETED")


@pytest.mark.slow
def test_two_hundred_jobs_at_once_a_third_of_them_cancelled(site: IpuSite) -> None:
    """Beside another user of the pool, who takes and gives back all the time."""
    chance = random.Random(20)
    other = Other(site.controller)
    sizes = chance.choices((1, 2, 4, 8, 16), (50, 25, 15, 7, 3), k=STORM)
    jobs = [site.cluster.sbatch(DIARY, f"--ipus={size}", user=chance.choice(("games", "man"))) for size in sizes]
    cancelled = chance.sample(jobs, STORM // 3)
    while cancelled:
        doomed, cancelled = cancelled[:8], cancelled[8:]
        site.cluster.run("scancel", *map(str, doomed))
        time.sleep(0.2)  # over the time in which they start, run and end
    until(lambda: site.cluster.squeue() == [], 150, what=site.log)
    others = other.end()
    site.settle()
    assert len(others) > 10
    assert "given_up" not in site.log()
    check_diaries([*map(site.cluster.output, jobs), *others])
    ended = [site.cluster.job(job)["JobState"] for job in jobs]
    assert set(ended) <= {"COMPLETED", "CANCELLED"}
    assert ended.count("COMPLETED") >= STORM - STORM // 3


class Other:
    """A user of the pool beside Slurm, with the same log as the jobs."""

    def __init__(self, controller: ControllerProcess) -> None:
        self._controller = controller
        self._over = threading.Event()
        self._diaries: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(21)
        while not self._over.wait(0.1):
            size = chance.choice((1, 2, 4))
            _, claim = self._controller.ask("POST", "/v1/claims?wait=20s", {"size": size, "priority": 9})
            if claim["state"] == "READY":
                begun = time.time()
                binding = self._controller.ask("GET", f"/v1/claims/{claim['id']}/binding")[1]
                self._over.wait(0.3)
                devices = ",".join(device for gcd in binding["gcds"] for device in gcd["devices"])
                self._diaries.append(f"begin {begun:.6f} {devices}\nend {time.time():.6f}\n")
            self._controller.ask("DELETE", f"/v1/claims/{claim['id']}?wait=20s")

    def end(self) -> list[str]:
        """What it had, when it has given all back."""
        self._over.set()
        self._thread.join(patient(60))
        return self._diaries


@pytest.fixture(scope="module")
def limited(slurm_release: str) -> Iterator[tuple[IpuSite, int]]:
    """A job of one minute, on a cluster that nobody else disturbs while it lasts."""
    with ipu_site(slurm_release, nodes=1) as site:
        yield site, site.cluster.sbatch("srun sleep 300", "--ipus=1", "--time=1")


@pytest.fixture(scope="module", autouse=True)
def _begun(limited: tuple[IpuSite, int]) -> None:
    """A minute is Slurm's shortest limit, and it looks every half: it is to pass beside the other tests."""


@pytest.mark.slow
def test_a_job_at_its_time_limit_leaves_nothing(limited: tuple[IpuSite, int]) -> None:
    site, job = limited
    site.cluster.wait_job(job, "TIMEOUT", 120)
    site.settle()
    assert claim_of(site, f"slurm_{job}")["state"] == "RELEASED"


def check_diaries(diaries: list[str]) -> None:
    """At no time two jobs had one device."""
    moments: list[tuple[float, int, list[str]]] = []
    for diary in diaries:
        found = re.match(r"begin (\S+) (\S+)\n(?:.*\n)*?end (\S+)\n", diary)
        if found is not None:
            devices = found[2].split(",")
            moments += [(float(found[1]), 1, devices), (float(found[3]), 0, devices)]
    assert len(moments) > STORM
    taken: set[str] = set()
    for at, begins, devices in sorted(moments):
        if begins:
            assert not taken & set(devices), f"at {at} {devices} are taken twice"
            taken |= set(devices)
        else:
            taken -= set(devices)
