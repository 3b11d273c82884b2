"""Files of ours that a disk, an editor or somebody's script has damaged, and files that look like ours and are not.

What a file cannot tell any more must never become a partition that is not there, or an end that did not happen.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moorings.core.model.devices import PoolName, device_id
from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.drivers.simulated.driver import DeviceLayout, build_binding
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.local.records import AttemptEnd, CancelRecord, ProcessIdentity, RecordUnreadableError, SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.testing.engine_suite import make_order
from moorings.wire.errors import ERRORS
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase
from tests.hostile.effort import fuzzing, tried
from tests.hostile.mutation import mutations
from tests.unit.drivers.simulated_rig import MARK, SimulatedRig, order

JSON = [
    b"null",
    b"{}",
    b"[]",
    b'"x"',
    b"-1",
    b"1e999",
    b"NaN",
    b"\n",
    b"\x00",
    b"\xff",
    b"[" * 2000,
    b"0" * 5000,
    b"true",
]


# -- the simulated machine's journal ----------------------------------------------------------------------------------


async def _lived(folder: Path) -> bytes:
    rig = SimulatedRig(folder)
    driver = rig.restart()
    for name, devices in (("a", "0-1"), ("b", "2-3"), ("c", "4-7")):
        await driver.create(order(name, devices))
    rig.clock.forward(60)
    await driver.reset("b", MARK)
    await driver.remove("a", MARK)
    machine = driver._machine
    machine.set_down_until(Timestamp(5))
    machine.count_fault("f")
    machine.retain_fault_counts(())
    rig.kill()
    return (folder / "journal.jsonl").read_bytes()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The journal of a machine that has seen something of everything."""
    return asyncio.run(_lived(tmp_path_factory.mktemp("machine")))


def put(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "journal.jsonl").write_bytes(content)


async def drive(folder: Path, content: bytes) -> Sequence[str] | None:
    """Names of the partitions of a machine with that journal; None: it refuses to begin."""
    put(folder, content)
    rig = SimulatedRig(folder)
    try:
        listing = await rig.restart().list_partitions()
        devices = [index for sighting in listing for index in sighting.block or ()]
        assert len(set(devices)) == len(devices), "no device in two partitions, whatever the journal says"
        return [sighting.name for sighting in listing]
    except MooringsError as error:
        assert error.code in ERRORS
        assert len(error.detail) < 1500
        return None
    finally:
        rig.kill()


async def test_a_journal_cut_off_anywhere_is_what_was_written_before(journal: bytes, tmp_path: Path) -> None:
    known = {"a", "b", "c"}
    for length in range(0, len(journal), 1 if fuzzing() else 7):
        found = await drive(tmp_path / "machine", journal[:length])
        assert found is not None, "a torn last line is a write that was never answered"
        assert set(found) <= known


@tried(200)
@given(data=st.data())
async def test_a_damaged_journal_is_read_or_refused(
    journal: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged-machine"
    await drive(folder, data.draw(mutations([journal], JSON)))


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 5000,
        b"SQLite format 3\0" * 100,
        b"\xff\xfe\n" * 50,
        b"[" * 100_000 + b"\n",
        b"{}\n" * 1000,
        b"null\n",
        b'{"is":"machine","version":99}\n',
        b'{"is":"%s"}\n' % (b"x" * 5000),
        b'{"is":"strikes","struck":"%s"}\n' % (b"x" * 5000),
        b'{"is":"strikes","struck":{"%s":"%s"}}\n' % (b"x" * 5000, b"x" * 5000),
        b'{"is":"partition","serial":"%s"}\n' % (b"x" * 5000),
        b'{"is":"partition","serial":1,"name":[%s]}\n' % (b"[]," * 2000 + b"[]"),
        b'{"is":"partition","serial":1,"name":"a","block":"%s"}\n' % (b"0," * 2000),
    ],
)
async def test_a_journal_that_is_something_else_is_refused_or_empty(content: bytes, tmp_path: Path) -> None:
    assert not await drive(tmp_path / "machine", content)


# -- a run's folder ---------------------------------------------------------------------------------------------------


def filled(path: Path) -> LocalRunFolder:
    path.mkdir(exist_ok=True)
    folder = LocalRunFolder(path)
    folder.save(make_order(("true",), "/", tasks=2))
    folder.save(
        SupervisorStatus(
            0,
            RunPhase.RUNNING,
            "boot",
            ProcessIdentity(1, 2),
            Timestamp(3),
            (ProcessIdentity(4, 5), ProcessIdentity(6, 7)),
        ),
        durable=False,
    )
    folder.save(CancelRecord(0, "asked"))
    folder.save_end(AttemptEnd(0, EndRecord(EndReason.EXITED, 0, (0, 0))))
    return folder


@pytest.mark.parametrize("name", ["order", "status", "cancel", "end"])
def test_a_record_with_any_byte_lost_is_never_a_wrong_end(name: str, tmp_path: Path) -> None:
    folder = filled(tmp_path / "run")
    path: Path = getattr(folder, name)
    whole, said = path.read_bytes(), folder.read_records()
    assert said is not None
    assert said.end is not None
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        assert_harmless(folder, name)


@tried(300)
@given(data=st.data())
def test_a_damaged_run_folder_is_surveyed_all_the_same(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "run"
    folder = LocalRunFolder(path) if path.exists() else filled(path)
    name = data.draw(st.sampled_from(["order", "status", "cancel", "end"]))
    record: Path = getattr(folder, name)
    whole = record.read_bytes()
    record.write_bytes(data.draw(mutations([whole], JSON)))
    try:
        assert_harmless(folder, name)
    finally:
        record.write_bytes(whole)


def assert_harmless(folder: LocalRunFolder, damaged: str) -> None:
    found = folder.read_records()
    assert found is not None, "two other records are whole"
    if found.end is not None and damaged != "end":
        assert found.end.record == EndRecord(EndReason.EXITED, 0, (0, 0))
    for read in (
        lambda: folder.read(SupervisorStatus, 0),
        lambda: folder.read(CancelRecord, 0),
        lambda: folder.read(AttemptEnd, 0),
    ):
        try:
            read()
        except RecordUnreadableError as error:
            assert len(str(error)) < 1500


@pytest.mark.parametrize("run", ["..", ".", "", "a/b", "/etc", "a\0b", "a\n", "-a", "x" * 101, "é", "a/../b"])
def test_an_id_that_would_leave_the_folder_has_none(run: str, tmp_path: Path) -> None:
    assert LocalRunFolder.find(tmp_path, RunId(run)) is None


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".hidden", "a\0", "a\n", "x" * 201, "é.conf", "-rf"]
)
def test_a_binding_whose_file_would_leave_the_folder_is_not_written(name: str, tmp_path: Path) -> None:
    made = make_order(("true",), "/")
    gcd = made.binding.gcds[0].__class__(0, made.binding.gcds[0].devices, file_name=name, file_text="x")
    odd = made.__class__(made.run, 0, made.job, made.binding.__class__("p", {}, (gcd,)))
    (tmp_path / "run").mkdir()
    with pytest.raises(RecordUnreadableError):
        LocalRunFolder(tmp_path / "run").write_bindings(odd)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


# -- IPUoF files ------------------------------------------------------------------------------------------------------

POOL = Pool(PoolName("pod64"), "ipu", "simulated", PowerOfTwo(2, 32, 64))


def strictly(text: str) -> dict[str, object]:
    """What a parser reads that takes JSON at its word: no name twice, no NaN, nothing behind it."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    found = json.loads(text, object_pairs_hook=unique, parse_constant=lambda word: pytest.fail(word))
    assert isinstance(found, dict)
    return found


@tried(300)
@given(
    st.text(min_size=1, max_size=40) | st.sampled_from(['a"b', "a\\", "a\nb", "\ud800", "\u2028", "{}", "$(id)", "%s"]),
    st.sampled_from([(0, 1), (0, 2), (4, 4), (8, 8), (32, 32), (0, 64)]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
)
def test_an_ipuof_file_says_what_it_is_for_whatever_the_name(
    name: str, place: tuple[int, int], gcds: int, replicas: int
) -> None:
    start, size = place
    assume(size % gcds == 0)
    wanted = PartitionSpec(name, Block.of(range(start, start + size)), gcds, replicas, "ours")
    binding = build_binding(wanted, POOL, SimulatedSettings(), DeviceLayout(POOL, 1), lambda index: Path(f"/d/{index}"))
    seen: list[object] = []
    for gcd in binding.gcds:
        assert gcd.file_text.isascii(), "whatever locale reads it"
        told = strictly(gcd.file_text)
        attributes, devices = told["attributes"], told["devices"]
        assert isinstance(attributes, dict)
        assert isinstance(devices, list)
        assert all(isinstance(value, str) for value in attributes.values()), "as PopTorch reads them"
        assert (attributes["Partition Id"], attributes["GCD Id"]) == (name, str(gcd.gcd))
        assert attributes["Num Replicas"] == str(gcds * replicas)
        seen += [device["id"] for device in devices]
    assert seen == [device_id(POOL.name, index) for index in range(start, start + size)]
