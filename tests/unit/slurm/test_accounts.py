"""Law 10: an account says whose a job is only where Slurm says so, and not before it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import CommandResult, SlurmCommands
from moorings.slurm.host.agent import AgentSettings, SlurmAgent
from moorings.slurm.host.controller_client import ControllerClient
from moorings.wire.shapes import ClaimBody, QueueRequest
from tests.unit.slurm.test_formats import recorded
from tests.unit.slurm.test_ledger import HOME
from tests.waiting import until_async as until

ENFORCED = b"AccountingStorageEnforce = associations,limits\nAccountingStorageType = accounting_storage/slurmdbd\n"
LOOSE = b"AccountingStorageEnforce = none\nAccountingStorageType = accounting_storage/slurmdbd\n"
# The recorded job that waits for licenses has an account.
JOBS = recorded("22.05", "jobs")
ACCOUNT = JOBS.index(b"(null)", JOBS.index(b"|Licenses "))
LISTED = JOBS[:ACCOUNT] + b"gold  " + JOBS[ACCOUNT + 6 :]
AWAY = MooringsError("slurm.unavailable", "no answer", retryable=True)


class Slurm:
    """Answers with the recorded lists, and tells none of its rules (no slurmdbd) but ``config``; None: nor that."""

    def __init__(self, config: bytes | None) -> None:
        self.config = config
        self.asked: list[str] = []

    async def run_checked(self, argv: Sequence[str]) -> bytes:
        return (await self.run(argv)).output

    async def run(self, argv: Sequence[str]) -> CommandResult:
        words = " ".join(argv)
        self.asked.append(words)
        if words == "scontrol show config" and self.config is not None:
            return CommandResult(self.config, "", 0)
        if argv[0] == "squeue":
            return CommandResult(LISTED, "", 0)
        if words.startswith("scontrol show licenses"):
            return CommandResult(b"", "", 0)
        raise AWAY


class Controller:
    """Keeps what it is told of the queue, and does not answer."""

    is_full = False

    def __init__(self) -> None:
        self.told: list[QueueRequest] = []

    async def __call__(self, ask: Callable[[Client], Any], *, waits: bool = False) -> Any:
        await asyncio.sleep(0.01)
        ask(cast(Client, self))
        raise MooringsError("controller.unreachable", "no answer", retryable=True)

    def report_queue(self, request: QueueRequest) -> None:
        self.told.append(request)

    def list_claims(self, _: object) -> tuple[ClaimBody, ...]:
        return ()

    def queue(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.parametrize(("config", "project"), [(ENFORCED, "gold"), (LOOSE, "default")])
async def test_no_job_is_told_of_before_it_is_known_whether_its_account_is_its_users(
    config: bytes, project: str
) -> None:
    slurm, controller = Slurm(None), Controller()
    agent = SlurmAgent(
        AgentSettings(cluster=HOME.cluster, instance=HOME.instance),
        cast(SlurmCommands, slurm),
        cast(ControllerClient, controller),
    )
    work = asyncio.ensure_future(agent.serve())
    await until(lambda: slurm.asked.count("scontrol show config") >= 2)
    assert not any(words.startswith("squeue") for words in slurm.asked)
    assert controller.told == []
    slurm.config = config
    await until(lambda: controller.told)
    assert [job.project for job in controller.told[0].jobs] == [project]
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
