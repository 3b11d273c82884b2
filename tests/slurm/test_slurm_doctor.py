"""``moor slurm doctor`` beside a real slurmctld, agent and controller: quiet when all is well, and right when not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.doctor.checks import SLURM_CHECKS
from moorings.slurm.host.doctor import PART_S
from moorings.slurm.host.install_plan import VIPU_CONF
from moorings.slurm.host.instance_id import read_instance
from tests.slurm.admin import moor, told
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until, within

PROMISE_S = 10.0


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, nodes=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _mended(site: IpuSite) -> Iterator[None]:
    """After each test: files as they were, daemons up, nothing left."""
    files = {path: (path.read_bytes(), path.stat().st_mode) for path in site.cluster.etc.rglob("*") if path.is_file()}
    yield
    for path, (content, mode) in files.items():
        path.write_bytes(content)
        path.chmod(mode & 0o777)
    if "slurmctld" not in site.cluster.processes:
        site.cluster.start_controller()
    site.cluster.wait_nodes()
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    if not site.agent_lives:
        site.start_agent()
    until(lambda: site.cluster.licenses()["moorings_gate"].reserved == 1, what=site.log)
    site.settle()


def findings(site: IpuSite, *words: str, code: int = 8) -> dict[str, tuple[str, str]]:
    """Verdict and evidence by id."""
    with within(PROMISE_S):
        items = told(site.cluster, "slurm", "doctor", *words, code=code)["items"]
    return {item["id"]: (item["verdict"], item["evidence"]) for item in items}


def test_what_its_two_rounds_may_take_is_less_than_what_is_promised() -> None:
    assert 2 * PART_S < PROMISE_S


def failed(found: dict[str, tuple[str, str]]) -> set[str]:
    return {check for check, (verdict, _) in found.items() if verdict == "FAIL"}


def test_a_site_that_is_well(site):
    found = findings(site, code=0)
    assert list(found) == list(SLURM_CHECKS)
    assert {check for check, (verdict, _) in found.items() if verdict != "PASS"} == {"slurm.accounting", "slurm.nodes"}
    job = site.cluster.sbatch("srun sleep 3600", "--ipus=4", user="games")
    site.cluster.wait_job(job, "RUNNING")
    until(lambda: [claim for claim in site.claims() if claim["state"] == "READY"])
    found = findings(site, code=0)
    assert failed(found) == set()
    assert "1 jobs of IPUs run" in found["slurm.unclaimed"][1]
    assert "12 IPUs now" in found["slurm.reservation"][1]


def test_how_it_is_shown(site):
    done = moor(site.cluster, "slurm", "doctor", "--only", "slurm.agent,slurm.munge")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["RESULT", "CHECK"],
        ["PASS", "slurm.munge"],
        ["PASS", "slurm.agent"],
    ]
    wrong = moor(site.cluster, "slurm", "doctor", "--only", "nonsense")
    assert wrong.returncode == 2
    assert "slurm.agent" in wrong.stderr


def test_an_agent_that_is_away(site):
    site.end_agent()
    assert failed(findings(site)) == {"slurm.agent"}


def test_something_else_at_the_agents_address(site):
    site.end_agent()
    conf = site.cluster.etc / "plugstack.conf"
    conf.write_text(conf.read_text().replace(f":{site.port} ", f":{site.controller.port} "))
    assert failed(findings(site)) == {"slurm.agent"}


def test_each_of_the_agents_hosts_is_asked(site):
    conf = site.cluster.etc / "plugstack.conf"
    text, one = conf.read_text(), f"agent=127.0.0.1:{site.port} "
    assert one in text
    for hosts in ("127.0.0.1,127.0.0.9", "127.0.0.9,127.0.0.1"):  # the second is not listened at
        conf.write_text(text.replace(one, f"agent={hosts}:{site.port} "))
        found = findings(site, code=0)
        assert found["slurm.agent"][0] == "WARN"
        assert "not at 127.0.0.9: " in found["slurm.agent"][1]
    conf.write_text(text.replace(one, f"agent=127.0.0.9:{site.port} "))
    assert failed(findings(site)) == {"slurm.agent"}
    conf.write_text(text.replace(one, "agent=127.0.0.9 "))
    found = findings(site)
    assert failed(found) == {"slurm.agent"}
    assert "8091" in found["slurm.agent"][1]


def test_a_gate_that_is_gone(site):
    site.end_agent()
    site.cluster.check("scontrol", "delete", "reservationname=moorings")
    found = findings(site)
    assert failed(found) == {"slurm.agent", "slurm.reservation"}
    assert "there is no reservation" in found["slurm.reservation"][1]


def test_a_gate_that_slurm_shows_and_does_not_keep(site):
    site.end_agent()
    site.cluster.check("scontrol", "update", "reservationname=moorings", "licenses=ipu_16:16,moorings_gate:1")
    refused = site.cluster.run("scontrol", "update", "reservationname=moorings", "licenses=nosuch:1")
    assert refused.returncode != 0
    shown = site.cluster.check("scontrol", "-o", "show", "reservation")
    assert "ipu_16:16" in shown
    assert site.cluster.licenses()["ipu_16"].reserved == 0
    found = findings(site)
    assert failed(found) == {"slurm.agent", "slurm.reservation"}
    assert "does not keep" in found["slurm.reservation"][1]
    site.start_agent()
    until(lambda: site.cluster.licenses()["moorings_gate"].reserved == 1, what=site.log)
    assert failed(findings(site, code=0)) == set()


def test_a_partition_of_somebody_else_without_an_agent_to_keep_it(site):
    site.end_agent()
    claim = {"accelerator": "ipu", "size": 16, "name": "other"}
    status, made = site.controller.ask("POST", "/v1/claims", claim)
    assert status in (200, 201), made
    try:
        until(lambda: site.controller.ask("GET", f"/v1/claims/{made['id']}")[1]["state"] == "READY")
        found = findings(site)
        assert failed(found) == {"slurm.agent", "slurm.reservation"}
        assert "ipu_1: 16 free, 0 can be formed" in found["slurm.reservation"][1]
    finally:
        site.controller.ask("DELETE", f"/v1/claims/{made['id']}")


def test_a_claim_without_a_job_and_a_job_without_a_claim(site):
    site.end_agent()
    owner = f"slurm/{site.name}/4000000/{secrets.token_hex(8)}/0/{read_instance(site.cluster.folder / 'state')}"
    claim = {"accelerator": "ipu", "size": 1, "name": "left-over", "owner": owner}
    status, made = site.controller.ask("POST", "/v1/claims", claim)
    assert status in (200, 201), made
    job = site.cluster.sbatch("srun sleep 3600", "--ipus=1", user="games")
    site.cluster.wait_job(job, "RUNNING")
    found = findings(site)
    assert {"slurm.orphans", "slurm.unclaimed"} <= failed(found)
    assert "left-over" in found["slurm.orphans"][1]
    assert str(job) in found["slurm.unclaimed"][1]
    site.controller.ask("DELETE", f"/v1/claims/{made['id']}")


def test_claims_of_this_slurm_and_of_another_of_its_name_are_told_apart(site):
    site.end_agent()
    here, made = read_instance(site.cluster.folder / "state"), []
    for name, instance in (("left-over", here), ("theirs", secrets.token_hex(8))):
        owner = f"slurm/{site.name}/4000000/{secrets.token_hex(8)}/0/{instance}"
        claim = {"accelerator": "ipu", "size": 1, "name": name, "owner": owner}
        status, answer = site.controller.ask("POST", "/v1/claims", claim)
        assert status in (200, 201), answer
        made.append(answer["id"])
    try:
        found = findings(site)
        assert "slurm.orphans" in failed(found)
        assert "left-over" in found["slurm.orphans"][1]
        assert "theirs" not in found["slurm.orphans"][1]
        verdict, evidence = found["slurm.foreign"]
        assert (verdict, "theirs" in evidence, "left-over" in evidence) == ("WARN", True, False)
    finally:
        for claim_id in made:
            site.controller.ask("DELETE", f"/v1/claims/{claim_id}")


def test_a_vipu_conf_that_others_can_read(site):
    (site.cluster.etc / "vipu.conf").chmod(0o644)
    found = findings(site)
    assert failed(found) == {"slurm.vipu"}
    assert found["slurm.pool"][0] == "SKIP"


def test_a_node_has_no_vipu_conf(site):
    conf = site.cluster.etc / "vipu.conf"
    content = conf.read_text()
    conf.unlink()
    try:
        found = findings(site, code=0)
        assert found["slurm.vipu"][0] == "SKIP"
        assert found["slurm.plugin"][0] == "PASS"
    finally:
        site.cluster.write_conf("vipu.conf", content, 0o600)


@pytest.mark.parametrize("more", [b"", b"AgentPort=9191\n"])
def test_a_vipu_conf_that_nobody_filled_in(site, more):
    """As an installation leaves it on every machine."""
    (site.cluster.etc / "vipu.conf").write_bytes(VIPU_CONF + more)
    found = findings(site, code=0)
    assert (found["slurm.vipu"][0], found["slurm.pool"][0], found["slurm.plugin"][0]) == ("SKIP", "SKIP", "PASS")


def test_a_key_that_was_revoked(site):
    conf = site.cluster.etc / "vipu.conf"
    conf.write_text(conf.read_text().replace("ApiAccessKey=m", "ApiAccessKey=n"))
    assert failed(findings(site)) == {"slurm.pool"}


def test_a_plugin_of_another_release(site, slurm_release):
    conf = site.cluster.etc / "plugstack.conf"
    path = Path(conf.read_text().split()[1])
    image = path.read_bytes()
    major, minor = (int(part) for part in slurm_release.split("."))
    micro = int(site.cluster.check("sinfo", "--version").split(".")[-1])
    number = bytes([micro, minor, major, 0])
    assert image.count(number) == 1
    other = site.cluster.folder / "other" / path.name
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(image.replace(number, bytes([5, 8, 21, 0])))
    conf.write_text(conf.read_text().replace(str(path), str(other)))
    found = findings(site)
    assert failed(found) == {"slurm.plugin", "slurm.options"}  # Slurm refuses it indeed
    assert "21.08.5" in found["slurm.plugin"][1]
    conf.write_text("")
    assert failed(findings(site)) >= {"slurm.plugin", "slurm.options"}


def test_slurm_conf_differs_here_and_on_a_node(site):
    conf = site.cluster.etc / "slurm.conf"
    text = conf.read_text()
    conf.write_text(f"{text}MinJobAge=301\n")
    assert failed(findings(site)) == {"slurm.conf"}
    site.cluster.kill_node(2)
    site.cluster.start_node(2)  # it reads the new file
    until(lambda: "n2 appears to have a different" in site.cluster.log("slurmctld", 100_000))
    conf.write_text(text)
    verdict, evidence = findings(site, "--only", "slurm.conf", code=0)["slurm.conf"]
    assert (verdict, "n2" in evidence) == ("WARN", True)
    site.cluster.kill_node(2)
    site.cluster.start_node(2)


def test_what_slurm_conf_lacks(site):
    conf = site.cluster.etc / "slurm.conf"
    text = conf.read_text()
    site.cluster.configure("Licenses=ipu:8\nSchedulerParameters=batch_sched_delay=0,bf_licenses\nJobRequeue=0")
    site.cluster.stop_controller()
    site.cluster.start_controller()
    found = findings(site)
    assert {"slurm.submit", "slurm.licenses", "slurm.backfill"} <= failed(found)
    assert "ipu is 8, not 16" in found["slurm.licenses"][1]
    assert found["slurm.requeue"][0] == found["slurm.limits"][0] == "WARN"
    site.end_agent()
    conf.write_text(text)
    site.cluster.stop_controller()
    site.cluster.start_controller()


def test_nodes_that_give_up_before_the_agent(site):
    conf = site.cluster.etc / "plugstack.conf"
    conf.write_text(conf.read_text().replace("wait=60", "wait=50"))
    verdict, evidence = findings(site, code=0)["slurm.waits"]
    assert (verdict, "ApiTimeout=50" in evidence) == ("WARN", True)
    conf.write_text("")
    assert findings(site)["slurm.waits"][0] == "SKIP"


def test_a_slurmctld_that_is_gone(site):
    site.cluster.kill_controller()
    found = findings(site)
    assert failed(found) == {"slurm.controller"}
    assert list(found) == list(SLURM_CHECKS)
    assert {verdict for check, (verdict, _) in found.items() if check != "slurm.controller"} == {"PASS", "SKIP"}


def test_a_controller_that_is_gone(site):
    site.controller.kill()
    try:
        found = findings(site)
        assert "slurm.pool" in failed(found)
        assert found["slurm.plugin"][0] == "PASS"
    finally:
        site.controller.start()


def test_a_site_of_the_select_plugin(site, tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSelectType=select/vipu\n")
    done = moor(site.cluster, "slurm", "doctor", env={"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert done.returncode == 8
    assert "needs a patched Slurm" in done.stdout
    assert "docs/how-to/slurm-from-select-vipu.md" in done.stdout
