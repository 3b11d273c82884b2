"""A controller whose history has left: who asks, watches, goes on, or asks again with an old key, is told the truth."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from moorings.api.application import make_application
from moorings.app.maintenance import archive_history
from moorings.app.settings import Settings
from moorings.cli.event_log import read_log
from moorings.cli.main import main
from moorings.controller.retention import EVENTS_A_FILE
from moorings.core.model.access import Role
from moorings.core.model.claims import ClaimSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import DAY_S, Timestamp, add_seconds
from moorings.ports.store import PageQuery, Seq
from tests.e2e.rig import ADMIN, ANN, POD16, QuickClock, Rig, running
from tests.unit.api.sockets import Served, connected, serving_application

SPEC = ClaimSpec(kind="ipu", size=4)


class LaterClock(QuickClock):
    """Jumps when it is told to."""

    jumped_s = 0.0

    def now(self) -> Timestamp:
        return add_seconds(super().now(), self.jumped_s)


@dataclasses.dataclass
class Asker:
    served: Served
    key: str

    async def get(self, path: str, **headers: str) -> tuple[int, dict]:
        async with connected(self.served) as client:
            client.ask("GET", path, authorization=f"Bearer {self.key}", **headers)
            answer = await client.head()
            if "content-length" not in answer.headers:  # a stream
                return answer.status, {}
            body = await client.reader.readexactly(int(answer.headers["content-length"]))
            return answer.status, json.loads(body)

    async def stream(self, path: str, **headers: str) -> tuple[int, int]:
        """Status, and the number of the first event."""
        async with connected(self.served) as client:
            client.ask("GET", path, authorization=f"Bearer {self.key}", accept="text/event-stream", **headers)
            head = await client.head()
            if head.status != 200:
                return head.status, 0
            text = b""
            while b"id: " not in text:
                text += await client.chunk()
            return head.status, int(text.partition(b"id: ")[2].partition(b"\n")[0])


@contextlib.asynccontextmanager
async def asking(rig: Rig, role: Role = Role.USER):
    key = rig.assembly.keys.create("ann", role, None, "test")[1]
    async with serving_application(make_application(rig.controller)) as served:
        yield Asker(served, key)


async def lived(rig: Rig, clock: LaterClock, folder: Path, monkeypatch) -> Seq:
    """Claims of a day long ago, one with a key, have left; the last event that did."""
    monkeypatch.setattr("moorings.controller.retention.EVENTS_A_FILE", 10)
    made = await rig.controller.create_claim(ANN, SPEC, name="old", owner=None, key="once", wait_s=20)
    await rig.release(made.claim)
    for _ in range(3):
        await rig.release(await rig.claim(4))
    clock.jumped_s += 3 * DAY_S
    await rig.release(await rig.claim(4))
    return rig.assembly.loop.seq


def settings(folder: Path) -> Settings:
    return Settings(data=folder, keep_history_days=2)


async def test_who_asks_after_history_has_left_is_told_the_truth(tmp_path, monkeypatch, capsys):
    clock = LaterClock()
    async with running(tmp_path, POD16, clock) as rig:
        await lived(rig, clock, tmp_path, monkeypatch)
        log = list(rig.assembly.loop.store.list_events(Seq(0), 10_000))
        await archive_history(rig.assembly, settings(tmp_path), clock)
        gone = rig.assembly.loop.archived
        assert 10 < gone < rig.assembly.loop.seq
        kept = list(rig.assembly.loop.store.list_events(Seq(0), 10_000))
        assert kept == [row for row in log if row.seq > gone]

        async with asking(rig) as ask:
            # Lists begin at the oldest there is.
            for query in ("limit=1", "limit=1&after=0", "limit=1&after=3", f"limit=1&after={gone}"):
                status, page = await ask.get(f"/v1/events?{query}")
                assert (status, page["items"][0]["seq"]) == (200, gone + 1), query
            # A watcher that names its last event must not miss a later one.
            for where, headers in ((f"&after={gone - 1}", {}), ("&after=3", {}), ("", {"last_event_id": "1"})):
                status, problem = await ask.get(f"/v1/events?watch=1{where}", **headers)
                assert (status, problem.get("code"), problem.get("retryable")) == (410, "events.gone", False)
                assert str(gone) in problem["hint"]
            for where, headers in ((f"&after={gone}", {}), ("&after=0", {}), ("", {"last_event_id": str(gone)})):
                assert await ask.stream(f"/v1/events?watch=1{where}", **headers) == (200, gone + 1)
            status, problem = await ask.get("/v1/claims/old")
            assert (status, problem.get("code")) == (404, "claim.unknown")

        with pytest.raises(MooringsError) as caught:
            await rig.controller.create_claim(ANN, SPEC, name="old", owner=None, key="once")
        assert caught.value.code == "claim.archived"
        assert len(rig.assembly.loop.store.list_claims(PageQuery())) == 1


async def test_a_page_that_retention_overtook_is_not_gone_on_from(tmp_path, monkeypatch):
    clock = LaterClock()
    async with running(tmp_path, POD16, clock) as rig:
        await lived(rig, clock, tmp_path, monkeypatch)
        async with asking(rig) as ask:
            _, page = await ask.get("/v1/events?limit=2")
            await archive_history(rig.assembly, settings(tmp_path), clock)
            status, problem = await ask.get(f"/v1/events?limit=2&continue={page['continue']}")
            assert (status, problem.get("code")) == (410, "events.gone")


async def test_replay_reads_archives_and_what_is_left_as_one_log(tmp_path, monkeypatch, capsys):
    clock = LaterClock()
    async with running(tmp_path, POD16, clock) as rig:
        await lived(rig, clock, tmp_path, monkeypatch)
        log = tuple(rig.assembly.loop.store.list_events(Seq(0), 10_000))
        await archive_history(rig.assembly, settings(tmp_path), clock)
        gone = rig.assembly.loop.archived
        async with asking(rig, Role.ADMIN) as ask:  # others do not see all of the log
            _, page = await ask.get("/v1/events?limit=1000")
    (tmp_path / "pools.toml").write_text(POD16)
    (tmp_path / "log.json").write_text(json.dumps(page))
    archive = tmp_path / "archive"
    assert read_log(tmp_path / "log.json", archive).rows[: len(log)] == log
    words = ("replay", str(tmp_path / "log.json"), "--pools", str(tmp_path / "pools.toml"), "--archive", str(archive))
    assert main(list(words)) == 0
    assert "all the same, byte for byte" in capsys.readouterr().out

    first, *_, last = sorted(archive.glob("events-*"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    assert main(list(words)) == 1
    assert f"the archive {first} is damaged" in capsys.readouterr().err
    first.write_bytes(whole)
    last.rename(tmp_path / "elsewhere")
    assert main(list(words)) == 1
    missing = capsys.readouterr().err
    begins = int(last.name.split("-")[1])
    assert f"begins with event {gone + 1}, and {archive} has no archive of events {begins} to {gone} (log" in missing
    assert "--archive" in missing


def test_a_file_has_more_events_than_a_page():
    assert EVENTS_A_FILE >= 10_000  # a year of a large site is some thousand files, not a million


async def test_the_doctor_says_that_history_cannot_be_archived(tmp_path, monkeypatch):
    clock = LaterClock()
    async with running(tmp_path, POD16, clock) as rig:
        await lived(rig, clock, tmp_path, monkeypatch)
        folder = settings(tmp_path).archive_folder
        folder.write_text("a file in the place of the folder")
        await archive_history(rig.assembly, settings(tmp_path), clock)
        said = {finding.id: finding for finding in (await rig.controller.run_doctor(ADMIN)).items}["history"]
        assert (said.verdict, str(folder) in said.evidence) == ("WARN", True)
        folder.unlink()
        await archive_history(rig.assembly, settings(tmp_path), clock)
        assert {finding.id: finding.verdict for finding in (await rig.controller.run_doctor(ADMIN)).items}[
            "history"
        ] == "PASS"
