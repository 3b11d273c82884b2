"""The operator's view of partitions: answers race with the watch, and a later term begins with nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from moorings.kubernetes.proxy_api.client import PartitionInformer
from moorings.kubernetes.proxy_api.shapes import ChangeBody, PartitionBody, PartitionsBody
from tests.waiting import patient
from tests.waiting import until_async as until

ONE = PartitionBody(namespace="a", job="j", uid="u", instance=0, state="WAITING", ipus=4, version="abc-2")


class Told:
    """What a proxy tells, when the test lets it."""

    def __init__(self, *items: PartitionBody, version: str = "abc-2") -> None:
        self.listed: asyncio.Queue[PartitionsBody] = asyncio.Queue()
        self.changes: asyncio.Queue[tuple[str, ChangeBody]] = asyncio.Queue()
        self.list_with(*items, version=version)

    def list_with(self, *items: PartitionBody, version: str) -> None:
        self.listed.put_nowait(PartitionsBody(version=version, complete=True, items=items))

    def change(self, version: str, body: PartitionBody, *, gone: bool = False) -> None:
        made = body if gone else replace(body, version=version)
        self.changes.put_nowait((version, ChangeBody(partition=made, gone=gone)))

    async def list(self) -> PartitionsBody:
        return await self.listed.get()

    async def watch(self, _since: str) -> AsyncIterator[tuple[str, ChangeBody]]:
        while True:
            yield await self.changes.get()


def view_of(told: Told) -> PartitionInformer:
    return PartitionInformer(told, lambda _key: None)  # type: ignore[arg-type]


def answer(number: int, state: str, boot: str = "abc") -> PartitionBody:
    return replace(ONE, state=state, version=f"{boot}-{number}")


async def test_an_answer_counts_until_the_watch_tells_more() -> None:
    told = Told(ONE)
    view = view_of(told)
    serving = asyncio.create_task(view.serve())
    await view.ready()

    def state() -> str:
        found = view.get("a", "j").get(0)
        return found.state if found is not None else ""

    view.observe(answer(4, "RELEASING"))
    assert state() == "RELEASING", "it is newer than the watch"
    told.change("abc-3", replace(ONE, state="READY"))
    told.change("abc-5", replace(ONE, job="other"))
    await until(lambda: view.get("a", "other"))
    assert state() == "RELEASING", "the watch told of what was before the answer"
    view.observe(answer(4, "READY"))
    assert state() == "RELEASING", "the watch is further than this answer"
    told.change("abc-6", ONE, gone=True)
    await until(lambda: state() == "")
    view.observe(answer(5, "READY"))
    view.observe(answer(9, "READY", boot="def"))
    assert state() == "", "late answers bring nothing back"
    view.observe(answer(7, "WAITING"))
    assert state() == "WAITING"
    view.observe_gone(answer(6, "READY"))
    assert state() == "WAITING", "another one than was asked of"
    view.observe_gone(answer(7, "WAITING"))
    assert state() == ""
    serving.cancel()


async def test_a_list_that_was_on_its_way_does_not_undo_an_answer() -> None:
    told = Told(ONE)
    view = view_of(told)
    serving = asyncio.create_task(view.serve())
    await view.ready()
    view.observe(replace(answer(8, "READY"), job="new"))
    told.list_with(ONE, version="abc-7")
    await view._list()
    assert view.get("a", "new")
    told.list_with(ONE, version="abc-8")
    await view._list()
    assert not view.get("a", "new")
    serving.cancel()


async def test_a_later_term_calls_nothing_current_that_it_did_not_list() -> None:
    told = Told(ONE)
    view = view_of(told)
    for _ in range(2):
        serving = asyncio.create_task(view.serve())
        waiting = asyncio.create_task(view.ready())
        if view.all():  # the second time there is no list yet
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert (view.is_watching, view.is_complete, view.is_synced, view.listed) == (False, False, False, False)
            told.list_with(ONE, version="abc-9")
        await asyncio.wait_for(waiting, patient(5))
        assert view.is_synced
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert not view.is_synced
