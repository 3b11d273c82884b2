"""Asks the agent why a job waits, as the job's user, from any machine with Slurm's commands."""

from __future__ import annotations

import asyncio
import secrets

from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.host.checks import parse_agents
from moorings.slurm.host.doctor import plugin_line
from moorings.slurm.host.install import find_site
from moorings.slurm.host.plugstack import agent_uid_of
from moorings.slurm.host.site import Site
from moorings.slurm.host.wait_reason import WaitReasonQuery, build_request, parse_reply
from moorings.slurm.munge import Munge

ANSWER_S = 5.0  # timeout of each of the agent's addresses
_LINE_BYTES_MAX = 16 << 10


async def get_wait_reason(commands: SlurmCommands, job: int, cluster: str = "") -> tuple[str, str]:
    """Return the cluster's name, and why one of its jobs waits.

    Args:
        commands: Slurm's.
        job: its id.
        cluster: its cluster; empty: this machine's.

    Raises:
        MooringsError: ``slurm.job_unknown``: no such job, or another user's; ``slurm.unavailable``: no agent
        answers; and the errors of Slurm's commands and munge.
    """
    site = await find_site(commands)
    if cluster not in ("", site.cluster):
        problem = f"this machine is of cluster '{site.cluster}', not of '{cluster[:64]}'"
        raise MooringsError("slurm.job_unknown", problem, hint="ask there, or with an access key (MOORINGS_ACCESS_KEY)")
    line = await asyncio.to_thread(plugin_line, site)
    arguments = line.arguments if line is not None else {}
    hosts, port = parse_agents(arguments.get("agent") or ",".join(site.controllers))
    trusted = {0, agent_uid_of(site, line)}
    problems = []
    for host in hosts:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await _request_reason(host, int(port), site, job, trusted)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:  # TimeoutError is an OSError
            problems.append(f"{host}: {str(error) or 'it took too long'}")
            continue
        if found is None:
            hint = "of a job of an array ask by its own number ('squeue -O jobid'); 'sacct' knows what has ended"
            problem = f"no job {job} of yours with IPUs waits or runs in '{site.cluster}'"
            raise MooringsError("slurm.job_unknown", problem, hint=hint)
        return site.cluster, found
    problem = f"the agent does not answer at port {port} ({'; '.join(problems) or 'no host is named'})"
    raise MooringsError("slurm.unavailable", problem, hint="the admins: 'moor slurm doctor'", retryable=True)


async def _request_reason(host: str, port: int, site: Site, job: int, trusted: set[int]) -> str | None:
    request = WaitReasonQuery(job, secrets.token_hex(8))
    munge = Munge(site.munge_socket)
    sealed = await asyncio.to_thread(munge.encode, build_request(request))
    reader, writer = await asyncio.open_connection(host, port, limit=_LINE_BYTES_MAX)
    try:
        writer.write(sealed.encode("ascii") + b"\n")
        line = await reader.readuntil(b"\n")
    finally:
        writer.close()
    credential = await asyncio.to_thread(munge.decode, line.decode("ascii").strip())
    if credential.uid not in trusted:
        problem = f"what answers at {host} runs as uid {credential.uid}, and is not believed"
        raise MooringsError("slurm.unavailable", problem, hint="the admins: 'moor slurm doctor --only slurm.agent'")
    return parse_reply(credential.payload, request)
