"""Which nodes are drained because their slurmd has not loaded the plugin, and when they are taken back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.host import node_monitor, plugin_heartbeat, plugin_nodes
from moorings.slurm.host.checks import check_nodes
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.node_monitor import UNKNOWN_MAX, NodeMonitor
from moorings.slurm.host.node_state_file import NodeState, load_node_state
from moorings.slurm.host.plugin_heartbeat import PluginHeartbeat
from moorings.slurm.host.plugin_nodes import (
    AGAIN_S,
    AWAY_S,
    FEATURE,
    GRACE_S,
    REASON,
    SURE_S,
    LastHeartbeat,
    PluginState,
    SlurmdStart,
    plan_node_drains,
)
from moorings.slurm.node_records import NodeRecord, build_show_nodes, build_undrain, parse_show_nodes
from tests.cases import cases

T = 1_795_600_000
FIRST = SlurmdStart(T, seen_s=-100.0, before_s=-900.0)  # a slurmd that registered 100 s ago, and the one before it
OLD = PluginState(begun_s=-1000.0, starts={f"n{number}": FIRST for number in range(10)})


def told(*names: str, loaded_s: float = -101.0, heard_s: float = -1.0) -> dict[str, LastHeartbeat]:
    """That these nodes have the plugin, said again a moment ago."""
    return {name: LastHeartbeat("0" * 16, loaded_s, heard_s) for name in names}


def node(name: str, started: int | None = T, **fields: Any) -> NodeRecord:
    at = None if started is None else Timestamp(started * SECOND)
    made = NodeRecord(name, f"host-{name}", "IDLE", "", ("big", FEATURE), at)
    return replace(made, **fields)


def drained(
    *nodes: NodeRecord, hellos: dict[str, LastHeartbeat], memory: PluginState = OLD, at_s: float = 100.0
) -> tuple[str, ...]:
    """What is drained of nodes that are looked at twice; n6 to n9 are well."""
    every = [*nodes, *(node(name) for name in ("n6", "n7", "n8", "n9"))]
    hellos = told("n6", "n7", "n8", "n9") | hellos
    first = plan_node_drains(every, hellos, memory, 0.0)
    return first.drain + plan_node_drains(every, hellos, first.memory, at_s).drain


@cases(
    "started, loaded_s, heard_s, lacks",
    [
        (T, -101.0, -1.0, False),
        (T, -101.0, -101.0, False),  # it told, and registered a second later
        (T, -899.0, -899.0, False),  # it told, and then it ran a program for health checks, or slurmctld was away
        (T, -901.0, -101.0, True),  # the one before it told last
        (T + 60, -101.0, -1.0, True),  # a later slurmd, which told nothing
        (T + 60, -60.0, -60.0, False),  # a later slurmd, which told before it registered
        (T - 60, -60.0, -60.0, False),  # the same, and its clock was put back
        (T + 60, -101.0, 1.0, False),  # told after it was seen to have started: only the agent's clock counts
        (T, None, None, True),
        (None, None, None, True),
        (None, -101.0, -1.0, False),  # slurmctld has just started
    ],
)
def test_a_node_lacks_the_plugin_if_its_slurmd_has_not_told(
    started: int | None, loaded_s: float | None, heard_s: float | None, lacks: bool
) -> None:
    hellos = {} if loaded_s is None or heard_s is None else told("n1", loaded_s=loaded_s, heard_s=heard_s)
    assert drained(node("n1", started), hellos=hellos, at_s=10.0) == (("n1",) if lacks else ())


def test_what_was_told_before_slurmd_registered_holds_only_for_a_while() -> None:
    late = told("n1", loaded_s=-60.0, heard_s=-60.0)
    assert drained(node("n1", T + 60), hellos=late, at_s=SURE_S - 1) == ()
    assert drained(node("n1", T + 60), hellos=late, at_s=SURE_S) == ("n1",)


def test_what_was_told_once_after_a_start_holds_for_as_long_as_that_slurmd_runs() -> None:
    every = [node(name) for name in ("n1", "n2", "n3")]
    first = plan_node_drains(every, told("n1", "n2", "n3"), OLD, 0.0)
    assert all(first.memory.starts[name].is_confirmed for name in ("n1", "n2", "n3"))
    read = told("n1", "n2", "n3", heard_s=0.0)  # as from the file: when it was heard is not kept
    later = plan_node_drains(every, read, replace(first.memory, begun_s=None), 1e6)
    assert (later.lacking, later.drain) == ((), ())


@cases(
    "fields",
    [
        {"features": ("big",)},  # no node of IPU jobs
        {"state": "IDLE+DRAIN", "reason": "disk [root@now]"},
        {"state": "IDLE+CLOUD+POWERED_DOWN"},  # drained, it would never be switched on
        {"state": "IDLE+CLOUD+POWERING_UP"},
    ],
)
def test_a_node_that_gets_no_ipu_job_anyway_is_left_alone(fields: dict[str, Any]) -> None:
    assert drained(node("n1", **fields), hellos={}) == ()


def test_a_node_in_the_cloud_that_is_switched_on_is_one_like_others() -> None:
    assert drained(node("n1", state="IDLE+CLOUD"), hellos={}) == ("n1",)


def test_a_node_may_tell_by_the_name_of_its_machine() -> None:
    assert drained(node("n1"), hellos=told("host-n1")) == ()
    assert drained(node("n1", host="cn1.site.example"), hellos=told("cn1")) == ()
    assert drained(node("n1", host="cn1.site.example"), hellos=told("cn")) == ("n1",)


def test_a_slurmd_that_has_just_started_gets_a_moment_to_tell() -> None:
    nodes, hellos = [node("n1", T + 60), node("n2")], told("n1", "n2")
    first = plan_node_drains(nodes, hellos, OLD, 10.0)
    assert first.drain == ()
    assert first.lacking == ("n1",)
    assert plan_node_drains(nodes, hellos, first.memory, 10.0 + GRACE_S / 2).drain == ()
    assert plan_node_drains(nodes, hellos, first.memory, 10.0 + GRACE_S).drain == ("n1",)


def test_a_node_that_an_admin_resumes_is_drained_again_only_after_a_new_start() -> None:
    nodes, hellos = [node("n1"), node("n2")], told("n2")
    first = plan_node_drains(nodes, hellos, OLD, 0.0)
    assert first.drain == ("n1",)
    again = plan_node_drains(nodes, hellos, first.memory, 100.0)
    assert again.drain == ()
    nodes[0] = node("n1", T + 60)
    assert plan_node_drains(nodes, hellos, again.memory, 200.0).drain == ("n1",)


def test_a_new_agent_waits_until_each_slurmd_has_told_again() -> None:
    nodes = [node("n1"), node("n2")]
    first = plan_node_drains(nodes, told("n1"), PluginState(), 50.0)
    assert plan_node_drains(nodes, told("n1"), first.memory, 50.0 + AGAIN_S - 1).drain == ()
    assert plan_node_drains(nodes, told("n1", heard_s=60.0), first.memory, 50.0 + AGAIN_S).drain == ("n2",)


def test_a_slurmd_that_a_new_slurmctld_was_told_of_late_is_not_one_that_started_late() -> None:
    nodes, hellos = [node("n1", None), node("n2")], told("n2")
    first = plan_node_drains(nodes, hellos, PluginState(), 0.0)
    nodes[0] = node("n1")
    later = plan_node_drains(nodes, hellos, first.memory, 10.0)
    assert plan_node_drains(nodes, hellos, later.memory, AGAIN_S - 1).drain == ()


def test_a_new_agent_waits_less_for_a_slurmd_that_starts_after_it() -> None:
    nodes, hellos = [node("n1"), node("n2")], told("n1", "n2")
    first = plan_node_drains(nodes, hellos, replace(OLD, begun_s=None), 0.0)
    nodes[1] = node("n2", T + 60)
    later = plan_node_drains(nodes, hellos, first.memory, 1.0)
    assert plan_node_drains(nodes, hellos, later.memory, AWAY_S - 1).drain == ()
    assert plan_node_drains(nodes, hellos, later.memory, AWAY_S).drain == ("n2",)


def test_where_most_nodes_lack_the_plugin_none_is_drained_and_it_is_told_once() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    found = plan_node_drains(nodes, told("n1"), OLD, 0.0)
    assert (found.drain, found.report, found.lacking) == ((), True, ("n2", "n3"))
    again = plan_node_drains(nodes, told("n1"), found.memory, 1.0)
    assert (again.drain, again.report) == ((), False)
    assert plan_node_drains(nodes, told("n1", "n2"), again.memory, 2.0).drain == ("n3",)


@cases(
    "fields, has_told, back",
    [
        ({"reason": f"{REASON} [root@2026-11-25T10:00:00]"}, True, True),
        ({"reason": REASON}, False, False),
        ({"reason": "disk"}, True, False),  # an admin's
        ({"reason": f"{REASON}", "started": None}, True, False),  # slurmctld has just started: not known yet
        ({"reason": REASON, "features": ()}, False, True),  # it is no node of IPU jobs any more
    ],
)
def test_a_node_is_taken_back_when_it_has_told(fields: dict[str, Any], has_told: bool, back: bool) -> None:
    nodes = [node("n1", state="IDLE+DRAIN", **fields), node("n2"), node("n3")]
    hellos = told("n2", "n3") | (told("n1") if has_told else {})
    assert plan_node_drains(nodes, hellos, OLD, 0.0).undrain == (("n1",) if back else ())


# -- the doctor --------------------------------------------------------------------------------------------------------


@cases(
    "features, names, limits, verdict, evidence",
    [
        ((FEATURE,), ("n1", "n2"), b'feature = "moorings",', "PASS", "2 nodes"),
        ((FEATURE,), ("n1",), b'feature = "moorings",', "FAIL", "not reported its plugin on n2"),
        ((FEATURE,), ("n1", "n2"), b'-- feature = "moorings",', "WARN", "does not ask for it"),
        ((), ("n1", "n2"), b'feature = "moorings",', "FAIL", "no node has it"),
        ((), ("n1",), None, "SKIP", "may start on any; slurmd has not reported its plugin on n2"),
    ],
)
def test_the_doctor_names_the_nodes_that_lack_the_plugin(
    features: tuple[str, ...], names: tuple[str, ...], limits: bytes | None, verdict: str, evidence: str
) -> None:
    nodes = [node("n1", features=features), node("n2", features=features)]
    found = check_nodes(nodes, NodeState(hellos=told(*names), starts=OLD.starts), limits, 0.0)
    assert found.verdict == verdict
    assert evidence in found.evidence
    assert (found.fix == "") == (verdict == "PASS")


# -- what is said ------------------------------------------------------------------------------------------------------


def test_a_hello_comes_through() -> None:
    said = PluginHeartbeat("n1.b-2", "fedcba9876543210", 1500, "0123456789abcdef")
    assert plugin_heartbeat.parse_request(plugin_heartbeat.build_request(said)) == said
    assert plugin_heartbeat.build_reply(said, noted=True) == b"node=n1.b-2\nnonce=0123456789abcdef\nstatus=ok\n"


@cases(
    "payload",
    [
        b"moorings 1 hello\n",
        b"moorings 1 hello\nnode=n 1\nrun=fedcba9876543210\nage_ms=1\nnonce=0123456789abcdef\n",
        b"moorings 1 hello\nnode=n1\nrun=fedcba987654321\nage_ms=1\nnonce=0123456789abcdef\n",
        b"moorings 1 hello\nnode=n1\nrun=fedcba9876543210\nage_ms=-1\nnonce=0123456789abcdef\n",
        b"moorings 1 hello\nnode=n1\nrun=fedcba9876543210\nage_ms=1\nnonce=0123456789ABCDEF\n",
        b"moorings 1 hello\nnode=n1\nrun=fedcba9876543210\nage_ms=1\nnonce=0123456789abcdef\nmore=1\n",
        b"moorings 1 hello\nnode=" + b"n" * 256 + b"\nrun=fedcba9876543210\nage_ms=1\nnonce=0123456789abcdef\n",
    ],
)
def test_a_hello_that_cannot_be_read_is_refused(payload: bytes) -> None:
    with pytest.raises(MooringsError, match="cannot be read"):
        plugin_heartbeat.parse_request(payload)


# -- nodes as Slurm shows them -----------------------------------------------------------------------------------------

SHOWN = (
    b"NodeName=n1 Arch=x86_64 CPUTot=16 AvailableFeatures=moorings,big ActiveFeatures=moorings,big NodeHostName=vm "
    b"State=MIXED+DRAIN ThreadsPerCore=1 BootTime=2026-11-25T09:26:38 SlurmdStartTime=2026-11-25T10:00:53 "
    b"Reason=State=IDLE NodeName=n9 [root@2026-11-25T10:01:00]\n"
    b"NodeName=n2 AvailableFeatures=(null) ActiveFeatures=(null) State=DOWN* SlurmdStartTime=None\n"
)


def test_nodes_are_read_and_the_words_of_a_reason_are_no_fields() -> None:
    first, second = parse_show_nodes(SHOWN)
    assert (first.name, first.host, first.state, first.features) == ("n1", "vm", "MIXED+DRAIN", ("moorings", "big"))
    assert first.reason.startswith("State=IDLE")
    assert first.started == Timestamp(1_795_600_853 * SECOND)
    assert first.is_drained
    assert (second.name, second.host, second.features, second.started) == ("n2", "n2", (), None)
    with pytest.raises(MooringsError, match="cannot be read"):
        parse_show_nodes(b"NodeName=n1 State=IDLE\n")
    with pytest.raises(MooringsError):
        build_undrain(["n1", "n2 reason=x"])


# -- the watch ---------------------------------------------------------------------------------------------------------


class FakeSlurm:
    """Shows the nodes, and keeps what it is asked besides."""

    def __init__(self, shown: bytes = SHOWN) -> None:
        self.shown = shown
        self.lists = 0
        self.listed = asyncio.Condition()
        self.asked: list[list[str]] = []

    async def run_checked(self, argv: list[str]) -> bytes:
        if argv != build_show_nodes():
            self.asked.append(argv)
            return b""
        async with self.listed:
            self.lists += 1
            self.listed.notify_all()
        return self.shown

    async def wait_lists(self, count: int) -> None:
        async with self.listed:
            await self.listed.wait_for(lambda: self.lists >= count)
        await asyncio.sleep(0.01)  # what was found is done then


def said(name: str, *, run: str = "0" * 16, age_ms: int = 1000) -> PluginHeartbeat:
    return PluginHeartbeat(name, run, age_ms, "0" * 16)


@contextlib.asynccontextmanager
async def watching(slurm: FakeSlurm, file: Path) -> AsyncIterator[NodeMonitor]:
    watch = NodeMonitor(slurm, FailureLog(), file)  # type: ignore[arg-type]  # as much of it as is used
    assert not watch.record_heartbeat(said("n1")), "nothing is known of any node yet"
    task = asyncio.create_task(watch.serve())
    await slurm.wait_lists(1)
    yield watch
    task.cancel()


def test_what_slurmds_told_outlives_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "nodes"

    async def live() -> None:
        slurm = FakeSlurm()
        async with watching(slurm, file) as watch:
            assert watch.record_heartbeat(said("n1", age_ms=5000))
            await slurm.wait_lists(2)  # at once
            before = file.stat().st_ino
            assert watch.record_heartbeat(
                said("n1", age_ms=5000)
            )  # again: nothing is new, so nothing is listed or written
            await asyncio.sleep(0.05)
            assert (slurm.lists, file.stat().st_ino) == (2, before)

    asyncio.run(live())
    notes = load_node_state(file)
    assert notes.hellos["n1"].loaded_s == pytest.approx(time.time() - 5, abs=2)
    assert notes.starts["n1"].started_s == 1_795_600_853
    assert notes.starts["n1"].is_confirmed
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("[]")
    with pytest.raises(MooringsError, match="cannot be read"):
        load_node_state(file)
    asyncio.run(live())  # each slurmd tells again: nothing is lost
    assert "n1" in load_node_state(file).hellos
    assert load_node_state(tmp_path / "none") == NodeState()


@pytest.mark.parametrize(("lapse_s", "plugged", "lapsed"), [(0.0, [], ["n1"]), (60.0, ["n1"], [])])
def test_a_slurmd_that_reports_no_more_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lapse_s: float, plugged: list[str], lapsed: list[str]
) -> None:
    async def live() -> None:
        slurm = FakeSlurm()
        async with watching(slurm, tmp_path / "nodes") as watch:
            watch.record_heartbeat(said("n1"))
            await slurm.wait_lists(2)
            assert watch.nodes_with_plugin == frozenset(), "others may yet have to report"
            monkeypatch.setattr(node_monitor, "AGAIN_S", 0.0)
            monkeypatch.setattr(node_monitor, "LAPSE_S", lapse_s)
            assert ([*watch.nodes_with_plugin], [*watch.nodes_gone_silent]) == (plugged, lapsed)
        async with watching(FakeSlurm(), tmp_path / "nodes") as watch:  # the next agent, from whose start it counts
            assert ([*watch.nodes_with_plugin], [*watch.nodes_gone_silent]) == (plugged, lapsed)
            monkeypatch.setattr(node_monitor, "LAPSE_S", 60.0)
            watch.record_heartbeat(said("n1"))
            assert ([*watch.nodes_with_plugin], [*watch.nodes_gone_silent]) == (["n1"], [])

    asyncio.run(live())


def test_a_restarted_agent_does_not_overrule_an_admins_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_nodes, "AGAIN_S", 0.0)
    shown = b"".join(
        b"NodeName=n%d AvailableFeatures=moorings State=IDLE SlurmdStartTime=2026-11-25T10:00:53\n" % number
        for number in (1, 2)
    )

    async def live(hellos: int) -> list[list[str]]:
        slurm = FakeSlurm(shown)
        async with watching(slurm, tmp_path / "nodes") as watch:
            if hellos:
                watch.record_heartbeat(said("n2"))
                await slurm.wait_lists(2)
        return slurm.asked

    drains = asyncio.run(live(1))
    assert ["nodename=n1" in argv for argv in drains] == [True]
    assert asyncio.run(live(0)) == []


def test_names_that_no_node_has_are_logged_once_and_nothing_is_listed_for_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def live() -> None:
        slurm = FakeSlurm()
        async with watching(slurm, tmp_path / "nodes") as watch:
            for number in range(3 * UNKNOWN_MAX):
                assert not watch.record_heartbeat(said(f"x{number % (2 * UNKNOWN_MAX)}"))
            await asyncio.sleep(0.05)
            assert slurm.lists == 1

    asyncio.run(live())
    assert len([one for one in caplog.records if one.message == "node.unknown"]) == UNKNOWN_MAX
