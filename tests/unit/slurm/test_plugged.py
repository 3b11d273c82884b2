"""Which nodes are drained because their slurmd has not loaded the plugin, and when they are taken back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Instant
from moorings.slurm.host import hello
from moorings.slurm.host.checks import check_nodes
from moorings.slurm.host.hello import Hello
from moorings.slurm.host.node_watch import NodeWatch, load_hellos
from moorings.slurm.host.plugged import AWAY_S, FEATURE, GRACE_S, LATER_S, REASON, PluggedMemory, plan_plugged
from moorings.slurm.host.troubles import Troubles
from moorings.slurm.node_records import NodeRecord, build_show_nodes, build_undrain, parse_show_nodes
from tests.cases import cases

T = 1_795_600_000
OLD = PluggedMemory(begun_s=-1000.0)


def node(name: str, started: int | None = T, **fields: Any) -> NodeRecord:
    at = None if started is None else Instant(started * SECOND)
    made = NodeRecord(name, f"host-{name}", "IDLE", "", ("big", FEATURE), at)
    return replace(made, **fields)


def drained(*nodes: NodeRecord, hellos: dict[str, int], at_s: float = 100.0) -> tuple[str, ...]:
    """What is drained of nodes that have been seen for long; n8 and n9 are well."""
    every = [*nodes, *(node(name) for name in ("n6", "n7", "n8", "n9"))]
    told = dict.fromkeys(("n6", "n7", "n8", "n9"), T) | hellos
    first = plan_plugged(every, told, OLD, 0.0)
    return first.drain + plan_plugged(every, told, first.memory, at_s).drain


@cases(
    "started, told, lacks",
    [
        (T, T, False),
        (T + 1, T, False),
        (T + LATER_S, T, False),
        (T + LATER_S + 1, T, True),  # a later slurmd, which told nothing
        (T - 1000, T, False),  # slurmctld has not been told yet of the slurmd that told
        (T, None, True),
        (None, None, True),
        (None, T, False),  # slurmctld has just started
    ],
)
def test_a_node_lacks_the_plugin_if_its_slurmd_has_not_told(started: int | None, told: int | None, lacks: bool) -> None:
    hellos = {} if told is None else {"n1": told}
    assert drained(node("n1", started), hellos=hellos) == (("n1",) if lacks else ())


@cases(
    "fields",
    [
        {"features": ("big",)},  # no node of IPU jobs
        {"state": "IDLE+DRAIN", "reason": "disk [root@now]"},
        {"state": "IDLE+CLOUD+POWERED_DOWN"},  # drained, it would never be switched on
    ],
)
def test_a_node_that_gets_no_ipu_job_anyway_is_left_alone(fields: dict[str, Any]) -> None:
    assert drained(node("n1", **fields), hellos={}) == ()


def test_a_node_may_tell_by_the_name_of_its_machine() -> None:
    assert drained(node("n1"), hellos={"host-n1": T}) == ()
    assert drained(node("n1", host="cn1.site.example"), hellos={"cn1": T}) == ()
    assert drained(node("n1", host="cn1.site.example"), hellos={"cn": T}) == ("n1",)


def test_a_slurmd_that_has_just_started_gets_a_moment_to_tell() -> None:
    nodes, told = [node("n1"), node("n2")], {"n1": T, "n2": T}
    memory = plan_plugged(nodes, told, OLD, 0.0).memory
    nodes[0] = node("n1", T + 60)
    first = plan_plugged(nodes, told, memory, 10.0)
    assert first.drain == ()
    assert first.lacking == ("n1",)
    assert plan_plugged(nodes, told, first.memory, 10.0 + GRACE_S / 2).drain == ()
    assert plan_plugged(nodes, told, first.memory, 10.0 + GRACE_S).drain == ("n1",)


def test_a_node_that_an_admin_resumes_is_drained_again_only_after_a_new_start() -> None:
    nodes, told = [node("n1"), node("n2")], {"n2": T}
    first = plan_plugged(nodes, told, OLD, 0.0)
    assert first.drain == ("n1",)
    again = plan_plugged(nodes, told, first.memory, 100.0)
    assert again.drain == ()
    nodes[0] = node("n1", T + 60)
    assert plan_plugged(nodes, told, again.memory, 200.0).drain == ("n1",)


def test_a_new_agent_waits_for_nodes_that_could_not_reach_one() -> None:
    nodes = [node("n1"), node("n2")]
    first = plan_plugged(nodes, {"n1": T}, PluggedMemory(), 50.0)
    assert plan_plugged(nodes, {"n1": T}, first.memory, 50.0 + AWAY_S - 1).drain == ()
    assert plan_plugged(nodes, {"n1": T}, first.memory, 50.0 + AWAY_S).drain == ("n2",)


def test_where_most_nodes_lack_the_plugin_none_is_drained_and_it_is_told_once() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    found = plan_plugged(nodes, {"n1": T}, OLD, 0.0)
    assert (found.drain, found.report, found.lacking) == ((), True, ("n2", "n3"))
    again = plan_plugged(nodes, {"n1": T}, found.memory, 1.0)
    assert (again.drain, again.report) == ((), False)
    assert plan_plugged(nodes, {"n1": T, "n2": T}, again.memory, 2.0).drain == ("n3",)


@cases(
    "fields, told, back",
    [
        ({"reason": f"{REASON} [root@2026-11-25T10:00:00]"}, True, True),
        ({"reason": REASON}, False, False),
        ({"reason": "disk"}, True, False),  # an admin's
        ({"reason": f"{REASON}", "started": None}, True, False),  # slurmctld has just started: not known yet
        ({"reason": REASON, "features": ()}, False, True),  # it is no node of IPU jobs any more
    ],
)
def test_a_node_is_taken_back_when_it_has_told(fields: dict[str, Any], told: bool, back: bool) -> None:
    nodes = [node("n1", state="IDLE+DRAIN", **fields), node("n2"), node("n3")]
    hellos = {"n2": T, "n3": T} | ({"n1": T} if told else {})
    assert plan_plugged(nodes, hellos, OLD, 0.0).take_back == (("n1",) if back else ())


# -- the doctor --------------------------------------------------------------------------------------------------------


@cases(
    "features, told, limits, verdict, evidence",
    [
        ((FEATURE,), ("n1", "n2"), b'feature = "moorings",', "PASS", "2 nodes"),
        ((FEATURE,), ("n1",), b'feature = "moorings",', "FAIL", "not told of its plugin on n2"),
        ((FEATURE,), ("n1", "n2"), b'-- feature = "moorings",', "WARN", "does not ask for it"),
        ((), ("n1", "n2"), b'feature = "moorings",', "FAIL", "no node has it"),
        ((), ("n1",), None, "SKIP", "may start on any; slurmd has not told of its plugin on n2"),
    ],
)
def test_the_doctor_names_the_nodes_that_lack_the_plugin(
    features: tuple[str, ...], told: tuple[str, ...], limits: bytes | None, verdict: str, evidence: str
) -> None:
    nodes = [node("n1", features=features), node("n2", features=features)]
    found = check_nodes(nodes, dict.fromkeys(told, T), limits)
    assert found.verdict == verdict
    assert evidence in found.evidence
    assert (found.fix == "") == (verdict == "PASS")


# -- what is said ------------------------------------------------------------------------------------------------------


def test_a_hello_comes_through() -> None:
    told = Hello("n1.b-2", T, "0123456789abcdef")
    assert hello.parse_request(hello.build_request(told)) == told
    assert hello.build_reply(told, noted=True) == b"node=n1.b-2\nnonce=0123456789abcdef\nstatus=ok\n"


@cases(
    "payload",
    [
        b"moorings 1 hello\n",
        b"moorings 1 hello\nnode=n 1\nstarted=1\nnonce=0123456789abcdef\n",
        b"moorings 1 hello\nnode=n1\nstarted=0\nnonce=0123456789abcdef\n",
        b"moorings 1 hello\nnode=n1\nstarted=1\nnonce=0123456789ABCDEF\n",
        b"moorings 1 hello\nnode=n1\nstarted=1\nnonce=0123456789abcdef\nmore=1\n",
        b"moorings 1 hello\nnode=" + b"n" * 256 + b"\nstarted=1\nnonce=0123456789abcdef\n",
    ],
)
def test_a_hello_that_cannot_be_read_is_refused(payload: bytes) -> None:
    with pytest.raises(MooringsError, match="cannot be read"):
        hello.parse_request(payload)


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
    assert first.started == Instant(1_795_600_853 * SECOND)
    assert first.is_drained
    assert (second.name, second.host, second.features, second.started) == ("n2", "n2", (), None)
    with pytest.raises(MooringsError, match="cannot be read"):
        parse_show_nodes(b"NodeName=n1 State=IDLE\n")
    with pytest.raises(MooringsError):
        build_undrain(["n1", "n2 reason=x"])


# -- the watch ---------------------------------------------------------------------------------------------------------


class FakeSlurm:
    """Shows the nodes."""

    def __init__(self) -> None:
        self.shown = asyncio.Event()

    async def ask(self, argv: list[str]) -> bytes:
        assert argv == build_show_nodes()
        self.shown.set()
        return SHOWN


def test_what_slurmds_told_outlives_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "nodes"

    async def live() -> None:
        slurm = FakeSlurm()
        watch = NodeWatch(slurm, Troubles(), file)  # type: ignore[arg-type]  # as much of it as is used
        assert not watch.note(Hello("n1", T, "0" * 16)), "nothing is known of any node yet"
        task = asyncio.create_task(watch.serve())
        await slurm.shown.wait()
        assert watch.note(Hello("n1", T, "0" * 16))
        assert not watch.note(Hello("n7", T, "0" * 16)), "there is none"
        assert not watch.note(Hello("n1", 1 << 40, "0" * 16)), "its clock is wrong"
        task.cancel()

    asyncio.run(live())
    assert load_hellos(file) == {"n1": T}
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("[]")
    with pytest.raises(MooringsError, match="cannot be read"):
        load_hellos(file)
    assert load_hellos(tmp_path / "none") == {}
