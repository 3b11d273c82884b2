"""Why a job waits, asked by its user on any machine of the cluster: the messages, and the rights.

One line each way, as between a node and the agent (``bind_protocol``). Munge tells the agent the user, so no access key
is needed, and only that user can read the answer. Users may ask about their own jobs, root and SlurmUser about all. For
another user's job the answer is the same as for a job that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.core.model.queue_reports import QUEUE_JOBS_MAX
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.slurm.host.job_table import ClusterIdentity, JobStart
from moorings.slurm.host.reclaim import UserNames, default_wait_note, format_note, wait_note
from moorings.wire.shapes import ReasonBody

GREETING = b"moorings 1 why\n"
NOT_YET = "nothing is known of it yet: ask again in a moment"
_REQUEST = re.compile(rb"moorings 1 why\njob=([1-9][0-9]{0,9})\nnonce=([0-9a-f]{16})\n")
_REPLY = re.compile(rb"job=([0-9]+)\nnonce=([0-9a-f]{16})\nknown=([01])\nwhy=([ -~]{0,2000})\n")


@dataclass(frozen=True, slots=True)
class WaitReasonQuery:
    """A request: the id of a job, and 16 hexadecimal digits, new for each."""

    job: int
    nonce: str


def build_request(request: WaitReasonQuery) -> bytes:
    """Return the payload of a user's credential."""
    return GREETING + f"job={request.job}\nnonce={request.nonce}\n".encode("ascii")


def parse_request(payload: bytes) -> WaitReasonQuery:
    """Parse a user's request.

    Raises:
        MooringsError: ``node.invalid``.
    """
    found = _REQUEST.fullmatch(payload)
    if found is None:
        raise MooringsError("node.invalid", "the question cannot be read", hint="is 'moor' of the agent's release?")
    return WaitReasonQuery(int(found[1]), found[2].decode())


def build_reply(request: WaitReasonQuery, why: str | None) -> bytes:
    """Return the payload of the agent's credential; None: no such job for this user."""
    return f"job={request.job}\nnonce={request.nonce}\nknown={why is not None:d}\nwhy={why or ''}\n".encode("ascii")


def parse_reply(payload: bytes, request: WaitReasonQuery) -> str | None:
    """Parse the answer to ``request``; None: no such job for this user.

    Raises:
        MooringsError: ``node.invalid``: not an answer to this request.
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
    """Return why a job waits, for a user; None: no such job, or another user's.

    Args:
        job: of a complete listing; None: not listed.
        uid: the user's, by munge.
        admins: uids of users allowed to ask about others' jobs.
        reasons: of the jobs reported to the controller, by the owner of their next claims.
        home: the jobs' cluster.
        people: names of the jobs' users.
        withheld: why no devices are reserved for a job, by the owner of its next claim.
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
