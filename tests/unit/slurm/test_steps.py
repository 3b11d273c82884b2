"""What the steps of a job get of its partition."""

from __future__ import annotations

import asyncio

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.step_allocations import (
    BusyError,
    StepAllocation,
    StepAllocations,
    choose_gcds,
    first_port,
    free_port,
)
from moorings.slurm.step_records import build_nodelist, build_steps, parse_nodes_of, parse_steps

START = JobStart(39, "0123456789abcdef", 0)


def shared(tasks, n_gcds, *held):
    return choose_gcds(tasks, n_gcds, [StepAllocation(step, gcds, "n1", 1) for step, gcds in held])


@pytest.mark.parametrize(
    ("tasks", "n_gcds", "held", "gcds"),
    [
        (1, 1, (), (0,)),
        (1, 2, (), (0,)),
        (2, 2, (), (0, 1)),
        (2, 4, (), (0, 2)),  # as it gets them alone
        (4, 4, (), (0, 1, 2, 3)),
        (8, 4, (), (0, 1, 2, 3)),  # more tasks than GCDs: all of them, each for two
        (1, 2, [(0, (0,))], (1,)),
        (2, 4, [(0, (0, 2))], (1, 3)),
        (2, 4, [(0, (1, 3))], (0, 2)),
        (2, 4, [(0, (0,))], (1, 2)),
        (1, 2, [(0, (0,)), (1, (1,))], None),
        (4, 4, [(0, (3,))], None),
        (8, 4, [(0, (3,))], None),
        (3, 4, [(0, (1,)), (1, (2,))], None),
    ],
)
def test_who_gets_which_gcds(tasks, n_gcds, held, gcds):
    assert shared(tasks, n_gcds, *held) == gcds


def test_no_two_steps_of_a_job_meet_at_one_port():
    held: list[StepAllocation] = []
    for step in range(200):
        held.append(StepAllocation(step, (step,), "n1", free_port(39_999, held)))
    assert held[0].port == first_port(39_999) == 39_999
    assert len({share.port for share in held}) == 200
    assert all(20_000 <= share.port < 40_000 for share in held)


class Slurm:
    """Which steps Slurm has, and how often it was asked."""

    def __init__(self, *running):
        self.running = running
        self.asked = 0

    async def __call__(self):
        self.asked += 1
        return self.running


async def take(steps, step, tasks, slurm, n_gcds=2):
    async def master():
        return f"n{step}"

    return await steps.allocate(START, step, tasks, n_gcds, master, slurm)


async def test_every_node_of_a_step_is_told_the_same(tmp_path):
    steps = StepAllocations(tmp_path / "steps")
    told = await asyncio.gather(*(take(steps, 0, 2, Slurm()) for _ in range(8)))
    assert len(set(told)) == 1


async def test_slurm_is_asked_only_where_a_step_would_have_to_wait(tmp_path):
    steps, slurm = StepAllocations(tmp_path / "steps"), Slurm(1, 2)
    await take(steps, 0, 2, slurm)
    assert slurm.asked == 0
    assert (await take(steps, 1, 2, slurm)).gcds == (0, 1)  # step 0 has ended
    assert slurm.asked == 1
    steps._looked_at.clear()
    with pytest.raises(BusyError, match=r"1 of the job's 2 GCDs: step 1 has 0, 1"):
        await take(steps, 2, 1, slurm)
    with pytest.raises(BusyError):
        await take(steps, 2, 1, slurm)
    assert slurm.asked == 2, "once a second at most"


@pytest.mark.parametrize("listed", [(), (0,), (5,)])
async def test_a_list_without_the_step_that_asks_ends_nothing(tmp_path, listed):
    steps = StepAllocations(tmp_path / "steps")
    await take(steps, 0, 2, Slurm())
    with pytest.raises(BusyError):
        await take(steps, 1, 1, Slurm(*listed))
    assert await take(steps, 0, 2, Slurm()) == StepAllocation(0, (0, 1), "n0", first_port(39))


async def test_a_long_list_of_nodes_is_asked_for_once(tmp_path):
    steps, asked = StepAllocations(tmp_path / "steps"), []

    async def find():
        asked.append(1)
        await asyncio.sleep(0)
        return ("n1", "n2")

    found = await asyncio.gather(*(steps.nodes(START, find) for _ in range(20)))
    assert (set(found), len(asked)) == ({("n1", "n2")}, 1)


async def test_what_is_held_outlives_the_agent_and_goes_with_the_claim(tmp_path):
    folder = tmp_path / "steps"
    first = await take(StepAllocations(folder), 0, 1, Slurm(0))
    assert len(list(tmp_path.glob("steps/*"))) == 1
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600]
    again = StepAllocations(folder)
    assert await take(again, 0, 1, Slurm(0)) == first
    assert (await take(again, 1, 1, Slurm(0, 1))).gcds == (1,)
    again.retain([START])
    assert len(list(folder.iterdir())) == 1
    again.retain([])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{}x", '{"asked": null, "steps": [{"step": 0}]}', "[1]", '{"a": 1}', '{"asked": 1, "steps": []}']
)
async def test_a_damaged_file_gives_nothing_out(tmp_path, text):
    folder = tmp_path / "steps"
    await take(StepAllocations(folder), 0, 1, Slurm(0))
    next(folder.iterdir()).write_text(text)
    with pytest.raises(MooringsError) as caught:
        await take(StepAllocations(folder), 1, 1, Slurm(0, 1))
    assert (caught.value.code, caught.value.retryable) == ("slurm.unreadable", True)
    assert "remove that file" in caught.value.hint


def test_who_asked_outlives_the_agent_and_goes_with_the_start(tmp_path):
    steps = StepAllocations(tmp_path / "steps")
    steps.record_request(START, "n1")
    assert steps.asked == {}, "an agent before this one served it: who asked then is not known"
    steps.track_start(START)
    steps.record_request(START, "n2")
    steps.save()
    again = StepAllocations(tmp_path / "steps")
    assert again.asked == steps.asked == {START: frozenset({"n1", "n2"})}
    again.track_start(START)
    assert again.asked == steps.asked
    again.retain([])
    assert (again.asked, list((tmp_path / "steps").iterdir())) == ({}, [])


async def test_who_asked_stands_beside_what_steps_hold(tmp_path):
    steps = StepAllocations(tmp_path / "steps")
    steps.track_start(START)
    share = await take(steps, 0, 1, Slurm(0))
    steps.record_request(START, "n1")
    steps.save()
    again = StepAllocations(tmp_path / "steps")
    assert again.asked == {START: frozenset({"n1"})}
    assert await take(again, 0, 1, Slurm(0)) == share


def test_nobody_is_judged_by_what_could_not_be_written_down(tmp_path):
    (tmp_path / "steps").write_text("a file in its place")
    steps = StepAllocations(tmp_path / "steps")
    steps.track_start(START)
    steps.save()
    assert steps.asked == {}


async def test_what_cannot_be_written_down_is_not_given_out(tmp_path):
    (tmp_path / "steps").write_text("a file in its place")
    steps = StepAllocations(tmp_path / "steps")
    for _ in range(2):
        with pytest.raises(MooringsError) as caught:
            await take(steps, 0, 1, Slurm(0))
        assert caught.value.retryable


def row(*fields):
    return ("".join(f"{text:{width}}|" for text, width in fields) + "\n").encode()


def step_row(job, step, nodes="n1"):
    return row((str(job), 12), (step, 64), (nodes, 1024))


def test_steps_with_tasks():
    names = ("1_2.0", "1_2.batch", "1_2.extern", "1_2.interactive", "1_2.TBD", "1_2.3+1")
    found = parse_steps(b"".join(step_row(1, name, "n[1-2]") for name in names) + step_row(2, "2.7", "n" * 1024))
    assert [(one.job_id, one.number, one.nodes) for one in found] == [
        (1, 0, ("n1", "n2")),
        (1, None, ("n1", "n2")),
        (1, 3, ("n1", "n2")),
        (2, 7, ()),
    ]
    assert build_steps([1, 2])[-2] == "--jobs=1,2"


def test_nodes_of_a_job_whose_list_is_long():
    names = ",".join(f"a-long-name-{number * 7:05}" for number in range(100))
    assert len(names) > 512
    answer = row(("5", 12), (names, 65_536))
    assert len(parse_nodes_of(answer, 5)) == 100
    assert parse_nodes_of(row(("6", 12), ("n[2-3]", 65_536)), 6, 1) == ("n2", "n3")
    assert parse_nodes_of(answer, 6) == ()
    assert "--steps=6.1" in build_nodelist(6, 1)
    with pytest.raises(MooringsError):
        parse_nodes_of(row(("5", 12), ("n" * 65_536, 65_536)), 5)
