"""What an agent that is started on a recorded state of a Slurm decides, in words that outlive the code's names.

A recording holds what Slurm and the controller answered, byte for byte, and the agent's files (``slurm_record``).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.slurm.engine.run_folder import SlurmRunFolder
from moorings.slurm.engine.run_status import JobEnd, RunObservation, build_end_record, has_ended, observe_run
from moorings.slurm.formats import build_admin_comment, parse_jobs, parse_licenses
from moorings.slurm.host.instance_id import read_instance
from moorings.slurm.host.job_table import ClusterIdentity, JobStart
from moorings.slurm.host.license_gate import QueueOffer
from moorings.slurm.host.node_state_file import load_node_state
from moorings.slurm.host.plan import (
    AgentAction,
    AllowRequeue,
    AnnounceQueue,
    CancelJob,
    ClusterState,
    ListDevices,
    ListSteps,
    LogWarning,
    PreemptJobs,
    PutBackJob,
    ReleaseIfJobGone,
    ReleaseJobClaim,
    RequeueJob,
    ServeJob,
    StopUnboundJob,
    UpdateReservation,
    WriteNote,
    plan,
)
from moorings.slurm.host.plugin_nodes import PluginState, plan_node_drains
from moorings.slurm.host.reclaim import WarnJob
from moorings.slurm.host.step_allocations import StepAllocations
from moorings.slurm.node_records import parse_show_nodes
from moorings.wire.codec import encode
from moorings.wire.operations import parse_body
from moorings.wire.shapes import ClaimBody, QueueBody

SLURM = Path(__file__).with_name("slurm")
CLUSTER = "moorings"
LISTINGS = 12  # one a second, all of them alike


def put_files(recording: Mapping[str, Any], folder: Path) -> None:
    """The files of StateSaveLocation as they were left."""
    for name, text in recording["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read_files(folder: Path, shares: Collection[tuple[JobStart, int]] = ()) -> dict[str, Any]:
    """What the agent's files say.

    Args:
        folder: StateSaveLocation.
        shares: steps to ask for: what each of them holds.
    """
    steps, notes = StepAllocations(folder / "moorings_steps"), load_node_state(folder / "moorings_nodes")

    async def held(start: JobStart, step: int) -> list[Any]:
        async def unasked() -> Any:
            raise AssertionError(f"what step {step} of job {start.job_id} holds is not read")

        share = await steps.allocate(start, step, 1, 2, unasked, unasked)
        return [start.job_id, step, list(share.gcds), share.master, share.port]

    async def all_held() -> list[list[Any]]:
        return [await held(*one) for one in shares]

    return {
        "instance": read_instance(folder),
        "asked": sorted([start.job_id, start.nonce, start.restarts, sorted(who)] for start, who in steps.asked.items()),
        "held": asyncio.run(all_held()),
        "reported": {name: [one.run, one.loaded_s] for name, one in sorted(notes.hellos.items())},
        "started": {
            name: [one.started_s, one.seen_s, one.before_s, one.is_confirmed]
            for name, one in sorted(notes.starts.items())
        },
        "drained": dict(sorted(notes.drained.items())),
    }


def shares_of(recording: Mapping[str, Any]) -> list[tuple[JobStart, int]]:
    """The steps that hold something, as the files name them."""
    found = []
    for name, text in recording["files"].items():
        folder, _, file = name.partition("/")
        if folder == "moorings_steps" and not file.endswith(".draft"):
            job, nonce, restarts = file.split("-")
            found += [(JobStart(int(job), nonce, int(restarts)), one["step"]) for one in json.loads(text)["steps"]]
    return found


def decide(recording: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What an agent finds on that state, and what it does about it within ``LISTINGS`` alike listings."""
    files = read_files(folder, shares_of(recording))
    home = ClusterIdentity(CLUSTER, files["instance"])
    now = Timestamp(recording["now"])
    jobs = {job.job_id: job for text in recording["jobs"] for job in parse_jobs(text.encode())}
    claims = {one["owner"]: parse_body(ClaimBody)(one) for one in recording["claims"]}
    queue = parse_body(QueueBody)(recording["queue"])
    sums: dict[str, dict[int, int]] = {"offer": {}, "held": {}}
    for kind, told in (("offer", queue.offer), ("held", queue.held)):
        for sizes in told.values():
            for size, count in sizes.items():
                sums[kind][int(size)] = sums[kind].get(int(size), 0) + count
    notes = load_node_state(folder / "moorings_nodes")
    nodes = parse_show_nodes(recording["nodes"].encode())
    memory = PluginState(starts=notes.starts, drained=notes.drained)
    plugged = plan_node_drains(nodes, notes.hellos, memory, now / 1e6)
    view = ClusterState(
        home=home,
        at_s=1000.0,
        jobs=jobs,
        listed_at=1000.0,
        claims_before=claims,
        claims=claims,
        claims_listed=True,
        is_accepted=True,
        licenses=parse_licenses(recording["licenses"].encode()),
        bound_nodes=StepAllocations(folder / "moorings_steps").asked,
        nodes_with_plugin=plugged.plugged,
        n_nodes=len(nodes),
        offer=QueueOffer(
            counts=sums["offer"],
            asked_at=1000.0,
            held_counts=sums["held"],
            is_sole_queue=not queue.others_wait,
            reasons={job.owner: job.reason for job in queue.jobs if job.reason is not None},
            offered=frozenset(job.owner for job in queue.jobs if job.offered),
        ),
    )
    acts: list[list[Any]] = []
    for number in range(LISTINGS):
        at_s = 1000.0 + number
        found = plan(replace(view, at_s=at_s, listed_at=at_s, licenses_at=at_s), now)
        view = replace(view, memory=found.memory)
        acts += [told for told in map(neutral, found.acts) if told not in acts]
    return {
        "files": files,
        "comments": {
            job.job_id: build_admin_comment(job.order, job.asked, job.note) for job in jobs.values() if job.order
        },
        "acts": acts,
        "drain": sorted(plugged.drain),
        "take_back": sorted(plugged.undrain),
    }


def neutral(act: AgentAction) -> list[Any]:
    """An act as a kind and what it is done to."""
    match act:
        case ServeJob(job):
            assert job.order is not None
            return ["claim a partition", job.job_id, job.order.nonce, job.restarts]
        case ReleaseJobClaim(claim, why):
            return ["release", claim.owner, why]
        case ReleaseIfJobGone(claim, why):
            return ["release if gone", claim.owner, why]
        case AnnounceQueue(queue):
            return ["announce", encode(queue)]
        case UpdateReservation(licenses, closed):
            return ["reserve", dict(licenses), dict(closed)]
        case WarnJob(job, asked, note):
            assert job.order is not None
            return ["warn", job.job_id, build_admin_comment(job.order, asked, note)]
        case WriteNote(job, text):
            return ["note", job.job_id, text]
        case LogWarning():
            return ["report", act.event, act.claim]
        case StopUnboundJob(job, on_nodes):
            return ["stop unbound", job.job_id, sorted(on_nodes)]
        case ListSteps(numbers):
            return ["list steps", sorted(numbers)]
        case _:
            of = getattr(act, "job", None)
            return [KINDS[type(act)], *([of.job_id] if of is not None else [])]


KINDS: Mapping[type, str] = {
    AllowRequeue: "allow requeue",
    RequeueJob: "requeue",
    CancelJob: "cancel",
    PutBackJob: "set aside",
    PreemptJobs: "preempt",
    ListDevices: "list devices",
}


def read_run(recording: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the engine sees of a recorded run, and what end it would write down if it is over."""
    for name, file in recording["files"].items():
        path = folder / recording["run"] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"], errors="surrogateescape")
        os.utime(path, ns=(file["at_ns"], file["at_ns"]))
    attempt = SlurmRunFolder(folder / recording["run"]).newest_attempt()
    assert attempt is not None
    facts = attempt.read_state()
    job = next(iter(parse_jobs(recording["jobs"].encode())), None)
    seen = observe_run(facts, job)
    end = facts.end
    if seen is RunObservation.OVER:
        word = JobEnd(job.job_id, job.state, job.end_time) if job is not None and not has_ended(facts) else None
        end = build_end_record(
            facts, attempt.tasks(facts.asked), word, attempt.last_error_line(), Timestamp(recording["now"])
        )
    return {
        "asked": to_plain(facts.asked),
        "job": facts.job,
        "cancel": facts.cancel,
        "began": {str(number): at for number, at in sorted(facts.began.items())},
        "seen": str(seen),
        "end": to_plain(end) if end is not None else None,
        "logs": {file.name: file.read_text() for file in sorted((attempt.path / "logs").glob("*"))},
    }
