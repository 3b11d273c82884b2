"""Why a job waits, as its user asks the agent: what is said, and to whom."""

from __future__ import annotations

import pytest

from moorings.cli.commands.describe import parse_slurm_job
from moorings.cli.errors import UsageErrorWithHint
from moorings.core.model.errors import MooringsError
from moorings.core.model.queue_reports import QUEUE_JOBS_MAX
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.reclaim import BEHIND, UserNames
from moorings.slurm.host.wait_reason import (
    NOT_YET,
    WaitReasonQuery,
    build_reply,
    build_request,
    find_wait_reason,
    parse_reply,
    parse_request,
)
from moorings.wire.shapes import ReasonBody
from tests.cases import cases
from tests.unit.slurm.test_ledger import HOME, NONCE, a_job

REQUEST = WaitReasonQuery(39, "0123456789abcdef")
ROOT, SLURM, ANN, BERT = 0, 64030, 1001, 1002
ADMINS, PEOPLE = frozenset({ROOT, SLURM}), UserNames(HOME.cluster)
JOB = a_job(39, "PENDING", uid=ANN, reason="Licenses")
REASONS = {JobStart(39, NONCE, 0).owner(HOME): ReasonBody(code="pool.full", message="waits for 4 devices in pod")}


def test_a_question_and_its_answer_are_read_as_they_were_written() -> None:
    assert parse_request(build_request(REQUEST)) == REQUEST
    for told in ("waits for 4 devices", "", None):
        assert parse_reply(build_reply(REQUEST, told), REQUEST) == told


@cases(
    "payload",
    [
        b"moorings 1 why\n",
        b"moorings 1 why\njob=0\nnonce=0123456789abcdef\n",
        b"moorings 1 why\njob=39\nnonce=0123456789abcde\n",
        b"moorings 1 why\njob=39\nnonce=0123456789abcdef\nmore=1\n",
        b"moorings 1 why\njob=39 \nnonce=0123456789abcdef\n",
        b"moorings 1 why\njob=99999999999\nnonce=0123456789abcdef\n",
    ],
)
def test_what_is_no_question_is_refused(payload: bytes) -> None:
    with pytest.raises(MooringsError) as told:
        parse_request(payload)
    assert told.value.code == "node.invalid"


@cases("other", [WaitReasonQuery(40, REQUEST.nonce), WaitReasonQuery(39, "f" * 16)])
def test_an_answer_to_another_question_is_none(other: WaitReasonQuery) -> None:
    with pytest.raises(MooringsError):
        parse_reply(build_reply(other, "x"), REQUEST)


def test_a_user_hears_of_his_own_jobs_and_nothing_at_all_of_others() -> None:
    """Law 10: what a stranger hears of a job that waits is what he hears of none."""
    told = "waits for 4 devices in pod"
    heard = {uid: find_wait_reason(JOB, uid, ADMINS, REASONS, HOME, PEOPLE) for uid in (ANN, ROOT, SLURM, BERT)}
    assert heard == {ANN: told, ROOT: told, SLURM: told, BERT: None}
    assert find_wait_reason(None, ANN, ADMINS, REASONS, HOME, PEOPLE) is None
    assert find_wait_reason(a_job(39, uid=ANN, order=None), ANN, ADMINS, REASONS, HOME, PEOPLE) is None


def test_what_it_lacks_beside_ipus_goes_before_what_the_controller_said() -> None:
    lacks = {JobStart(39, NONCE, 0).owner(HOME): "it also needs the license matlab:1"}
    heard = {uid: find_wait_reason(JOB, uid, ADMINS, REASONS, HOME, PEOPLE, lacks) for uid in (ANN, BERT)}
    assert heard == {ANN: "it also needs the license matlab:1", BERT: None}


def test_each_of_his_jobs_is_told_of() -> None:
    def told(job: int, state: str = "PENDING", reason: str = "Licenses", reasons: int = 1) -> str | None:
        some = {f"slurm/vt/{n}/{NONCE}/0/{HOME.instance}": ReasonBody(code="x", message="y") for n in range(reasons)}
        return find_wait_reason(a_job(job, state, uid=ANN, reason=reason), ANN, ADMINS, some, HOME, PEOPLE)

    assert told(900) == NOT_YET
    assert told(900, reasons=QUEUE_JOBS_MAX) == BEHIND
    assert told(900, reason="Dependency") == "it does not wait for IPUs yet, for Slurm says Dependency"
    assert told(900, "RUNNING") == "it waits no more: Slurm says RUNNING"


@cases(("text", "job"), [("39", ("", 39)), ("c1/39", ("c1", 39)), ("slurm/c1/39", ("c1", 39)), ("slurm/39", ("", 39))])
def test_how_a_job_is_named(text: str, job: tuple[str, int]) -> None:
    assert parse_slurm_job(text) == job


@cases("text", ["", "x", "39_2", "0", "-1", "a/b/39", "c1/", "\u0663", "99999999999"])
def test_what_names_no_job(text: str) -> None:
    with pytest.raises(UsageErrorWithHint):
        parse_slurm_job(text)
