"""What the doctor of a Slurm site says of what was seen."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from moorings.core.model.timestamps import add_seconds
from moorings.doctor.checks import SLURM_CHECKS, SLURM_PAGE
from moorings.doctor.findings import Finding
from moorings.slurm.formats import JobRecord, License, LicenseReservation, SinfoNode, SlurmJobPhase, SubmittedOptions
from moorings.slurm.host import checks
from moorings.slurm.host.checks import AgentProbe
from moorings.slurm.host.install_plan import build_limits
from moorings.slurm.host.job_table import ClusterIdentity
from moorings.slurm.host.plugstack import PluginLine
from moorings.slurm.host.site import at_machine, licenses_wanted
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, PoolBody, ProjectBody, QueueBody, TopologyShape
from tests.cases import cases
from tests.docs.pages import ROOT
from tests.unit.slurm.test_installation import CHOICES, SITE

NONCE = "00112233aabbccdd"
HERE, ELSEWHERE = "0123456789abcdef", "fedcba9876543210"  # instances of two Slurms of one name
READY = dataclasses.replace(SITE, job_submit=("lua",), licenses=licenses_wanted(4, 4))


def pool(available: dict[int, int], name: str = "a") -> PoolBody:
    return PoolBody(
        name=name,
        accelerator="ipu",
        driver="simulated",
        reachable=True,
        devices=4,
        free=available.get(1, 0),
        out_of_service=0,
        largest=4,
        waiting=0,
        partitions=0,
        topology=TopologyShape(type="power-of-two", domains=1, domain_size=4, max_block=4),
        available={str(size): count for size, count in available.items()},
    )


def claim(job: int, nonce: str = NONCE, restarts: int = 0, instance: str = HERE) -> ClaimBody:
    return ClaimBody(
        id=f"c{job}",
        name=f"slurm_{job}",
        owner=f"slurm/c1/{job}/{nonce}/{restarts}/{instance}",
        subject="agent",
        state="READY",
        accelerator="ipu",
        size=1,
        gcds=1,
        replicas_per_gcd=1,
        project="default",
        priority=0,
        preemptible=False,
        attempt=0,
        created_at="2026-11-21T10:00:00Z",
    )


def job(ident: int, state: str = "RUNNING", nonce: str = NONCE) -> JobRecord:
    return JobRecord(
        job_id=ident,
        array_job=None,
        array_tasks="",
        het_job=None,
        het_offset=None,
        state=state,
        phase={"RUNNING": SlurmJobPhase.LIVE, "PENDING": SlurmJobPhase.WAITING}.get(state, SlurmJobPhase.ENDED),
        reason="",
        uid=1,
        user="u",
        account="",
        partition="p",
        qos="",
        priority=1,
        submit_time=None,
        eligible=None,
        start_time=None,
        end_time=None,
        limit_s=None,
        nodes="n1",
        nodes_whole=True,
        restarts=0,
        requeue=True,
        batch=True,
        status=(0, 0),
        order=SubmittedOptions(nonce=nonce, ipus=1, gcds=1, replicas=1),
    )


def is_told(finding: Finding, verdict: str, *words: str) -> None:
    assert finding.id in SLURM_CHECKS
    assert finding.verdict == verdict, finding
    assert all(word in finding.evidence for word in words), finding
    assert finding.fix or verdict == "PASS", finding


def test_another_slurm_of_this_name():
    noon = parse_time("2026-11-21T12:00:00Z")
    alone = QueueBody(queue="slurm/c1", accelerator="ipu", version="v", offer={}, jobs=(), until="")
    contested = dataclasses.replace(alone, contested_at="2026-11-21T12:00:00.000000Z")
    is_told(checks.check_instance("c1", alone, noon), "PASS", "slurm/c1")
    is_told(
        checks.check_instance("c1", contested, add_seconds(noon, 599)), "WARN", "another Slurm called c1", "12:00:00"
    )
    is_told(checks.check_instance("c1", contested, add_seconds(noon, 600)), "PASS")


def test_accounts_that_stand_for_projects():
    def project(name: str, *aliases: str) -> ProjectBody:
        return ProjectBody(name=name, shares=(), weight=1.0, version=1, aliases=aliases)

    loose = dataclasses.replace(SITE, enforces_accounts=False)
    mapped = [project("rich", "kubernetes/k1/team", "slurm/c1/gold", "slurm/c2/other"), project("poor")]
    is_told(checks.check_accounts(SITE, mapped), "PASS", "enforces accounts")
    is_told(checks.check_accounts(loose, mapped), "FAIL", "does not enforce accounts", ": gold (project rich)")
    assert "other" not in checks.check_accounts(loose, mapped).evidence
    is_told(checks.check_accounts(loose, [project("rich", "slurm/c2/gold")]), "WARN", "'default'", "rich")
    is_told(checks.check_accounts(loose, []), "PASS")


def test_select():
    is_told(checks.check_select("select/vipu", Path("/etc/slurm/slurm.conf")), "FAIL", "select/vipu", "patched")
    is_told(checks.check_select("select/cons_tres", Path("/c")), "PASS", "cons_tres")


@pytest.mark.parametrize(
    ("site", "commands", "node", "verdict", "word"),
    [
        ("22.05.8", "22.05.2", "22.05.8", "PASS", "22.05.8"),
        ("22.05.8", "24.11.5", "22.05.8", "FAIL", "24.11.5"),
        ("24.11.5", "24.11.5", "22.05.8", "WARN", "n1 (22.05.8)"),
        ("23.11.1", "23.11.1", "23.11.1", "WARN", "23.11.1"),
        ("22.05.8", "22.05.8", "", "PASS", "1 have not told"),
    ],
)
def test_release(site, commands, node, verdict, word):
    nodes = [SinfoNode("n1", "h1", "idle", node, ())]
    is_told(checks.check_release(dataclasses.replace(SITE, version=site), commands, nodes), verdict, word)


def test_conf():
    other = dataclasses.replace(SITE, conf_hash="Different Ours=0x1 Slurmctld=0x2")
    is_told(checks.check_conf(SITE, set(), log_seen=True), "PASS", "no node has another")
    is_told(checks.check_conf(SITE, set(), log_seen=False), "PASS", "not seen")
    is_told(checks.check_conf(SITE, {"n7"}, log_seen=True), "WARN", "n7")
    is_told(checks.check_conf(other, set(), log_seen=True), "FAIL", "/etc/slurm/slurm.conf")


def test_the_log_is_read_from_the_last_time_the_configuration_was():
    complaint = "[2026-11-21T10:00:00.000] error: Node {} appears to have a different slurm.conf than the slurmctld."
    started = "[2026-11-21T10:00:00.000] slurmctld version 22.05.8 started on cluster c1"
    reread = "[2026-11-21T10:00:00.000] Processing Reconfiguration Request"
    assert checks.parse_differing("\n".join([complaint.format("n1"), "x", complaint.format("n2")])) == {"n1", "n2"}
    assert checks.parse_differing("\n".join([complaint.format("n1"), started, complaint.format("n2")])) == {"n2"}
    assert checks.parse_differing("\n".join([complaint.format("n1"), reread])) == set()


def test_user():
    is_told(checks.check_user(SITE, 64030), "PASS", "slurm", "64030")
    is_told(checks.check_user(SITE, 999), "FAIL", "999", "64030")
    is_told(checks.check_user(SITE, None), "FAIL", "does not exist")


LINE = PluginLine(Path("/etc/slurm/plugstack.conf"), "/x/moorings_spank.so", {})


def test_what_configless_nodes_are_not_handed_out():
    taken_in = dataclasses.replace(LINE, file=Path("/etc/slurm/plugstack.conf.d/moorings.conf"))
    head = dataclasses.replace(SITE, configless=True)
    node = at_machine(head, Path("/run/slurm/conf/slurm.conf"), has_files=False)
    is_told(checks.check_plugin(SITE, [taken_in], None), "FAIL", "is not there")
    is_told(checks.check_plugin(head, [taken_in], None), "FAIL", "does not hand out")
    is_told(checks.check_plugin(head, [LINE], None), "FAIL", "is not there")
    elsewhere = dataclasses.replace(head, plugstack=Path("/srv/plugstack.conf"))  # PlugStackConfig
    is_told(checks.check_plugin(elsewhere, [dataclasses.replace(LINE, file=elsewhere.plugstack)], None), "FAIL", "/srv")
    there = checks.check_plugin(node, [], None)
    is_told(there, "FAIL", "/run/slurm/conf/plugstack.conf")
    assert "beside slurmctld" in there.fix
    is_told(checks.check_plugin(node, [], None, fetched=True), "SKIP", "fetch")


def test_what_was_installed():
    is_told(checks.check_plugin(SITE, [], None), "FAIL", "moorings_spank.so")
    is_told(checks.check_plugin(SITE, [LINE], None), "FAIL", "is not there")
    assert checks.check_plugin(SITE, [LINE], b"no object").verdict == "FAIL"
    is_told(checks.check_plugin(SITE, [LINE, LINE], b""), "FAIL", "loaded twice")
    is_told(checks.check_options("  --ipus=N  IPUs of the job"), "PASS")
    is_told(checks.check_options("--cpus-per-task"), "FAIL", "not loaded")
    is_told(checks.check_submit(SITE, b""), "FAIL", "not set")
    is_told(checks.check_submit(READY, None), "FAIL", "job_submit.lua is not there")
    is_told(checks.check_submit(READY, b"-- theirs"), "FAIL", "does not call ours")
    is_told(checks.check_submit(READY, b'require("moorings_submit")'), "PASS")


@pytest.mark.parametrize(("made_for", "now"), [(True, True), (True, False), (False, True), (False, False)])
def test_limits_that_were_made_for_another_job_requeue(made_for: bool, now: bool):
    limits = build_limits(dataclasses.replace(SITE, job_requeue=made_for), CHOICES)
    found = checks.check_limits(dataclasses.replace(SITE, job_requeue=now), limits)
    is_told(found, "PASS" if made_for == now else "WARN", f"JobRequeue={now:d}", f"made for JobRequeue={made_for:d}")


def test_limits_that_are_not_there_or_the_shipped_ones():
    is_told(checks.check_limits(SITE, None), "WARN", "moorings_limits.lua is missing")
    shipped = (ROOT / "deploy" / "slurm" / "moorings_limits.lua.example").read_bytes()
    assert b"requeue = false" in shipped  # in a comment
    is_told(checks.check_limits(SITE, shipped), "PASS", "JobRequeue=1")
    is_told(checks.check_limits(SITE, b"return { max = 4, requeue=false }"), "WARN", "does not go back")


def test_the_rest_of_slurm_conf():
    is_told(checks.check_accounting(dataclasses.replace(SITE, accounting=False)), "SKIP")
    is_told(checks.check_accounting(SITE), "WARN", "license/ipu")
    is_told(checks.check_accounting(dataclasses.replace(SITE, tres=("license/ipu",))), "PASS")
    is_told(checks.check_backfill(SITE), "PASS")
    is_told(checks.check_backfill(dataclasses.replace(SITE, scheduler=("bf_licenses",))), "FAIL", "half a minute")


def test_what_becomes_of_a_wait_in_vain():
    is_told(checks.check_requeue(SITE), "WARN", "RequeueExit lacks 122")
    is_told(checks.check_requeue(dataclasses.replace(SITE, requeue_exit=("120-130",))), "PASS", "122")
    is_told(checks.check_waits({}, 50), "PASS", "60", "50")
    is_told(checks.check_waits({"wait": "60"}, 60), "WARN", "wait=60", "ApiTimeout=60")
    is_told(checks.check_waits({"wait": "never"}, 60), "WARN", "wait=never")
    is_told(checks.check_waits({"wait": "60"}, None), "SKIP", "60")
    is_told(checks.check_waits(None, 50), "SKIP", "no line that loads the plugin")


@cases(
    ("address", "hosts", "port"),
    [
        ("ctl1:8092", ["ctl1"], "8092"),
        ("ctl1", ["ctl1"], "8091"),
        ("ctl1,ctl2:9", ["ctl1", "ctl2"], "9"),
        ("ctl1,ctl2", ["ctl1", "ctl2"], "8091"),
        ("[::1]", ["::1"], "8091"),
        ("[fe80::1],[::1]:9", ["fe80::1", "::1"], "9"),
        ("", [], "8091"),
    ],
)
def test_the_agents_addresses_are_read_as_the_plugin_reads_them(address, hosts, port):
    assert checks.parse_agents(address) == (hosts, port)


def answer(host: str, uid: int | None, told: str = "", *, listens: bool = True) -> AgentProbe:
    return AgentProbe(host, uid, told, listens)


AWAY = answer("ctl2", None, "refused", listens=False)


@cases(
    ("answers", "allowed", "verdict", "evidence", "fix"),
    [
        ([answer("ctl1", 0)], 0, "PASS", "as uid 0", ""),
        ([answer("ctl1", 64030)], 64030, "PASS", "as uid 64030", ""),
        (
            [answer("ctl1", 64030)],
            0,
            "FAIL",
            "ctl1 runs as uid 64030, and nodes take uid 0's word alone",
            "--agent-uid",
        ),
        ([answer("ctl1", 7)], 0, "FAIL", "ctl1 runs as uid 7", "who listens there"),
        ([answer("ctl1", 7)], 64030, "FAIL", "uid 0's word or 64030", "who listens there"),
        ([answer("ctl1", 0), answer("ctl2", 7)], 0, "FAIL", "ctl2 runs as uid 7", "who listens there"),
        ([answer("ctl1", 0), AWAY], 0, "WARN", "not at ctl2: refused", "there, or take"),
        ([AWAY], 0, "FAIL", "ctl2: refused", "systemctl start"),
        ([], 0, "FAIL", "no host", "agent="),
        ([answer("ctl1", None, "not asked"), AWAY], 0, "SKIP", "something listens", "as root"),
    ],
)
def test_whose_word_nodes_take(answers, allowed, verdict, evidence, fix):
    found = checks.check_agent(SITE, "ctl1,ctl2:8091", answers, allowed)
    is_told(found, verdict, evidence)
    assert fix in found.fix


def test_units_that_are_named_are_there():
    units = {path.stem for path in (ROOT / "deploy" / "systemd").glob("*.service")}
    assert checks.UNIT in units
    named = set(re.findall(r"\bmoorings-[a-z-]*(?:agent|controller)\b", (ROOT / SLURM_PAGE).read_text()))
    assert checks.UNIT in named <= units


def test_licenses():
    is_told(checks.check_licenses(READY, [pool({1: 4})], 256), "PASS", "4 IPUs", "up to 4")
    is_told(checks.check_licenses(READY, [pool({1: 4})], 2), "FAIL", "ipu_4 is 4, not wanted")
    is_told(checks.check_licenses(READY, [pool({}), pool({}, "b")], 256), "FAIL", "ipu is 4, not 8")
    is_told(checks.check_licenses(SITE, [pool({1: 4})], 256), "FAIL", "ipu is missing, not 4")
    is_told(checks.check_licenses(READY, [], 256), "FAIL", "no pool")


# -- the gate: a pool of 4, of which a job of Slurm holds 1 and somebody else the neighbour ----------------------------

HELD = {"ipu_1": 1, "ipu_2": 1, "ipu_4": 3, "moorings_gate": 1}
LICENSES = {
    "ipu": License(4, 1, 0),
    "ipu_1": License(4, 1, 1),
    "ipu_2": License(4, 1, 1),
    "ipu_4": License(4, 1, 3),
    "moorings_gate": License(1, 0, 1),
}
FREE = {1: 2, 2: 1}
FLAGS = frozenset({"ANY_NODES", "IGNORE_JOBS"})


def test_reservation_in_step():
    held = LicenseReservation("moorings", "ACTIVE", FLAGS, HELD)
    is_told(checks.check_reservation(LICENSES, held, [pool(FREE)]), "PASS", "2 IPUs now", "2 free")


def test_less_than_is_free_may_be_let_start():
    kept = LICENSES | {"ipu_1": License(4, 1, 3)}
    held = LicenseReservation("moorings", "ACTIVE", FLAGS, HELD | {"ipu_1": 3})
    assert checks.check_reservation(kept, held, [pool(FREE)]).verdict == "PASS"


def test_a_gate_that_is_missing():
    is_told(checks.check_reservation(LICENSES, None, [pool(FREE)]), "FAIL", "no reservation")


def test_a_gate_that_slurm_does_not_keep():
    open_ = LICENSES | {"ipu_1": License(4, 1, 0)}
    held = LicenseReservation("moorings", "ACTIVE", FLAGS, HELD)
    is_told(checks.check_reservation(open_, held, [pool(FREE)]), "FAIL", "does not keep", "ipu_1")


@pytest.mark.parametrize("size", [1, 2])
def test_a_gate_that_is_open_for_one_size(size):
    free = {1: 2, 2: 1} | {size: 0}
    held = LicenseReservation("moorings", "ACTIVE", FLAGS, HELD)
    is_told(checks.check_reservation(LICENSES, held, [pool(free)]), "FAIL", f"ipu_{size}: 2 free, 0 can be formed")


# -- jobs and claims ---------------------------------------------------------------------------------------------------


def test_orphans():
    claims = [claim(1), claim(2), claim(3), claim(4, "f" * 16)]
    jobs = [job(1), job(2, "COMPLETED"), job(4)]
    orphans = checks.unmatched_claims(claims, jobs)
    assert sorted(start.job_id for start in orphans) == [2, 3, 4]  # ended, unknown, and another job under an old id
    is_told(checks.check_orphans("c1", orphans, 4), "FAIL", "slurm_2 (READY, job 2)", "slurm_3")
    is_told(checks.check_orphans("c1", {}, 4), "PASS", "4 claims of slurm/c1")
    assert (
        checks.unmatched_claims([claim(5, restarts=0)], [job(5, "PENDING")]) == {}
    )  # requeued: its next start may need it


def test_claims_of_another_slurm_of_this_name():
    home, claims = ClusterIdentity("c1", HERE), [claim(1), claim(2, instance=ELSEWHERE), claim(3, instance=ELSEWHERE)]
    found = checks.check_foreign(home, claims)
    is_told(found, "WARN", "another Slurm called c1", "slurm_2 (READY, job 2)", "slurm_3")
    assert "slurm_1" not in found.evidence
    assert "leaves them alone" in found.fix
    assert "'moor delete claim NAME'" in found.fix
    is_told(checks.check_foreign(home, claims[:1]), "PASS", "slurm/c1")
    is_told(checks.check_foreign(None, claims), "SKIP", "it is unknown")
    orphans = checks.unmatched_claims(claims, [])
    assert "another Slurm" in checks.check_orphans("c1", orphans, 3, all_ours=False).fix
    assert "another Slurm" not in checks.check_orphans("c1", orphans, 3).fix


def test_unclaimed():
    is_told(checks.check_unclaimed([job(1), job(2, "PENDING")], [claim(1)]), "PASS", "1 jobs")
    is_told(checks.check_unclaimed([job(1), job(2)], [claim(1)]), "FAIL", "2")
    plain = dataclasses.replace(job(3), order=None)
    assert checks.check_unclaimed([plain], []).verdict == "PASS"
