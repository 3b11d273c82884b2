"""Why a job waits, asked by its user on any machine of the cluster: what he and the agent say, and who may ask.

One line each, as between a node and the agent (``nodes``): munge tells the agent who asks, so no access key is needed,
and only he can read the answer. He hears of his own jobs. Of others' root and SlurmUser hear; whoever else asks is told
what he would be told of a job that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moorings.core.announced import QUEUE_JOBS_MAX
from moorings.core.errors import MooringsError
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.slurm.host.ledger import ClusterIdentity, JobStart
from moorings.slurm.host.reclaim import UserNames, default_wait_note, format_note, wait_note
from moorings.wire.shapes import ReasonBody

GREETING = b"moorings 1 why\n"
NOT_YET = "nothing is known of it yet: ask again in a moment"
_REQUEST = re.compile(rb"moorings 1 why\njob=([1-9][0-9]{0,9})\nnonce=([0-9a-f]{16})\n")
_REPLY = re.compile(rb"job=([0-9]+)\nnonce=([0-9a-f]{16})\nknown=([01])\nwhy=([ -~]{0,2000})\n")


@dataclass(frozen=True, slots=True)
class WaitReasonQuery:
    """A question: the number of a job, and 16 hexadecimal digits, new for each."""

    job: int
    nonce: str


def build_request(request: WaitReasonQuery) -> bytes:
    """The payload of a user's credential."""
    return GREETING + f"job={request.job}\nnonce={request.nonce}\n".encode("ascii")


def parse_request(payload: bytes) -> WaitReasonQuery:
    """A user's question.

    Raises:
        MooringsError: ``node.invalid``.
    """
    found = _REQUEST.fullmatch(payload)
    if found is None:
        raise MooringsError("node.invalid", "the question cannot be read", hint="is 'moor' of the agent's release?")
    return WaitReasonQuery(int(found[1]), found[2].decode())


def build_reply(request: WaitReasonQuery, why: str | None) -> bytes:
    """The payload of the agent's credential; None: there is no such job for who asks."""
    return f"job={request.job}\nnonce={request.nonce}\nknown={why is not None:d}\nwhy={why or ''}\n".encode("ascii")


def parse_reply(payload: bytes, request: WaitReasonQuery) -> str | None:
    """The answer to ``request``; None: there is no such job for who asks.

    Raises:
        MooringsError: ``node.invalid``: it is no answer to this question.
    """
    found = _REPLY.fullmatch(payload)
    if found is None or (int(found[1]), found[2].decode()) != (request.job, request.nonce):
        raise MooringsError("node.invalid", "that is no answer to this question", hint="who listens at 'agent='?")
    return found[4].decode() if found[3] == b"1" else None


def find_wait_reason(
    job: JobRecord | None,
    uid: int,
    admins: frozenset[int],
    reasons: Mapping[str, ReasonBody],
    home: ClusterIdentity,
    people: UserNames,
    withheld: Mapping[str, str] | None = None,
) -> str | None:
    """Why a job waits, for who asks; None: it is not his, or there is none.

    Args:
        job: of a good listing; None: it is in none.
        uid: who asks, by munge.
        admins: who may ask of others' jobs.
        reasons: of those that the controller is told of, by the owner of their next claims.
        home: of the jobs.
        people: whose the jobs are.
        withheld: why no devices are kept for a job, by the owner of its next claim.
    """
    if job is None or job.order is None or (uid != job.uid and uid not in admins):
        return None
    if job.phase is not SlurmJobPhase.WAITING:
        return f"it waits no more: Slurm says {job.state}"
    owner = JobStart.of(job, job.order).owner(home)
    if withheld is not None and owner in withheld:
        return format_note(withheld[owner], people)
    reason = reasons.get(owner)
    if reason is not None:
        return wait_note(reason, people)
    return default_wait_note(job, crowded=len(reasons) >= QUEUE_JOBS_MAX) or NOT_YET
