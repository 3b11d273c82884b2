"""A job on its way to the controller: handed in where people share a machine, its values only where they belong."""

from __future__ import annotations

from dataclasses import replace

from moorings.client import spool
from moorings.client.requests import ApiError
from moorings.client.transport import socket_path
from moorings.core.model.serialization import to_plain
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import RunBody, RunRequest
from moorings.workloads.arrays import parse_array
from moorings.workloads.environment import names_alone
from moorings.workloads.jobs import JobSpec


def hand_in(session: CommandContext, job: JobSpec, request: RunRequest) -> RunRequest:
    """The request, with the job handed in where this machine is one that people share.

    Raises:
        MooringsError: ``spool.refused``, ``engine.unavailable``.
    """
    path = socket_path(session.client.server)
    if path is None or request.engine != "local":
        return request
    daemon, named = spool.submit_socket(path), without_values(request)
    if not job.array:
        return replace(named, spool_entry=spool.hand_in(daemon, to_plain(job)))
    count = len(parse_array(job.array)[0])
    return replace(named, spool_entries=spool.hand_in_copies(daemon, to_plain(job), count))


def without_values(request: RunRequest) -> RunRequest:
    """The request with the names of the job's variables alone."""
    return replace(request, job=replace(request.job, environment=names_alone(request.job.environment)))


def create_run(session: CommandContext, request: RunRequest, key: str) -> RunBody:
    """The new run; a job that was handed in is taken back if there is none.

    Raises:
        MooringsError: as the controller says.
    """
    try:
        return session.client.create_run(request, key)
    except ApiError:
        path = socket_path(session.client.server)
        if path is not None:
            one = (request.spool_entry,) if request.spool_entry is not None else ()
            spool.withdraw(spool.submit_socket(path), *one, *(request.spool_entries or ()))
        raise
