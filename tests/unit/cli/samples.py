"""One fleet as the API shows it, for every table: a full pool and a broken one, what waits, runs, has ended."""

from datetime import datetime

from moorings.cli.queue_entries import build_queue
from moorings.core.model.timestamps import Timestamp
from moorings.wire.codec import parse_time
from moorings.wire.shapes import (
    AcceleratorsShape,
    CheckpointBody,
    ClaimBody,
    DeviceBody,
    EventBody,
    IdleBody,
    JobShape,
    KeyBody,
    PartitionBody,
    PoolBody,
    ProjectBody,
    QuotaBody,
    ReasonBody,
    RunBody,
    ShareShape,
    TopologyShape,
)

EXPECTED = datetime.fromisoformat("2026-01-31T13:30:00Z").astimezone().strftime("%Y-%m-%d %H:%M")
WAITS = f"position 2, expected by {EXPECTED}: waits for 16 devices in pod64: 28 of 64 free, largest block 8"
NOW: Timestamp = parse_time("2026-01-31T12:00:00Z")
FULL = ReasonBody(
    code="pool.full",
    message="waits for 16 devices in pod64: 28 of 64 free, largest block 8",
    blockers=("claim-aaaa", "claim-bbbb"),
    until="2026-01-31T13:30:00.000000Z",
    hint="it would start now with 8 devices",
)
COMMAND = ("python3", "train.py", "--epochs", "3")
WIRED = TopologyShape(type="power-of-two", domains=4, domain_size=64, max_block=256)


def pool(name="pod256", **more):
    usual = {
        "name": name,
        "accelerator": "ipu",
        "driver": "simulated",
        "reachable": True,
        "devices": 256,
        "free": 28,
        "out_of_service": 1,
        "largest": 8,
        "waiting": 3,
        "partitions": 7,
        "topology": WIRED,
        "available": {"1": 28, "8": 2},
    }
    return PoolBody(**{**usual, **more})


def device(index, state="IN_SERVICE", **more):
    return DeviceBody(id=f"pod64:{index}", pool="pod64", accelerator="ipu", index=index, domain=0, state=state, **more)


def partition(name="p64", **more):
    usual = {
        "id": f"claim-{name}-0",
        "name": name,
        "claim": f"claim-{name}",
        "owner": "user/ann",
        "pool": "pod64",
        "accelerator": "ipu",
        "size": 16,
        "devices": "16-31",
        "gcds": 4,
        "replicas_per_gcd": 2,
        "state": "ACTIVE",
        "since": "2026-01-31T11:20:00.000000Z",
    }
    return PartitionBody(**{**usual, **more})


def claim(name="p64", **more):
    usual = {
        "id": f"claim-{name}",
        "name": name,
        "owner": "user/ann",
        "subject": "ann",
        "state": "READY",
        "accelerator": "ipu",
        "size": 16,
        "gcds": 4,
        "replicas_per_gcd": 2,
        "project": "default",
        "priority": 0,
        "preemptible": False,
        "attempt": 0,
        "created_at": "2026-01-31T11:59:20.000000Z",
    }
    return ClaimBody(**{**usual, **more})


READY = {"pool": "pod64", "partition": "p64", "partition_id": "claim-p64-0", "devices": "16-31"}
TIMES = {"granted_at": "2026-01-31T11:59:30.000000Z", "ready_at": "2026-01-31T11:59:30.400000Z"}


def run(ident="run-7f3kq2m4xw2a", name="digits", command=COMMAND, environment=None, **more):
    job = JobShape(
        name=name,
        command=command,
        environment=environment or {},
        workdir="/home/ann",
        tasks=2,
        accelerators=AcceleratorsShape(size=16),
    )
    usual = {
        "id": ident,
        "name": name,
        "engine": "local",
        "subject": "ann",
        "state": "RUNNING",
        "claim": "claim-digits",
        "attempt": 0,
        "job": job,
        "created_at": "2026-01-28T13:00:00.000000Z",
    }
    return RunBody(**{**usual, **more})


POOLS = (
    pool(),
    pool("wse", accelerator="csx", driver="wafer", reachable=False, devices=2, free=0, problem="no answer"),
)
DEVICES = (
    *(device(index, partition="p64", claim="claim-p64", owner="user/ann") for index in range(4)),
    *(device(index) for index in range(4, 7)),
    device(7, "QUARANTINED", reason="partition p9 broke", since="2026-01-31T09:00:00.000000Z"),
    device(8, "DRAINED", reason="link errors (root)", since="2026-01-30T09:00:00.000000Z"),
    *(device(index) for index in range(9, 12)),
)
PARTITIONS = (
    partition(),
    partition("digits-1", size=64, devices="0-63", state="PROVISIONING", gcds=1, owner="local/run-7f3kq2m4xw2a"),
)
CLAIMS = (
    claim(**READY, **TIMES),
    claim("digits", state="PENDING", reason=FULL, position=2, time_limit_s=7200.0, owner="local/run-7f3kq2m4xw2a"),
)
RUNS = (
    run(),
    run("run-waits4567abc", state="WAITING", reason=FULL, position=2),
    run(
        "run-ended4567abc",
        state="FAILED",
        exit_code=139,
        detail="task 1 was ended by SIGSEGV",
        ended_at="2026-01-31T11:00:00.000000Z",
    ),
)
IDLE = IdleBody(since="2026-01-31T11:32:00.000000Z", shown_to_admins=True)
GRANTED = {"state": "READY", "pool": "pod64", "ready_at": "2026-01-31T11:30:00.000000Z"}
QUEUED_CLAIMS = (
    claim("digits", owner="local/run-7f3kq2m4xw2a", devices="16-31", time_limit_s=7200.0, **GRANTED),
    claim("", id="claim-hidden", owner="local/run-hidden", subject="bartholomew", size=4, **GRANTED),
    claim("byhand", owner="user/carol", subject="agent-of-carol", size=1, **GRANTED),
    claim("slurm-77", owner="slurm/alpha/77/x/0/0", subject="slurm-alpha", size=2, devices="8-9", **GRANTED),
    claim("late", state="PENDING", owner="local/run-late", reason=FULL, position=2, time_limit_s=86400.0),
    claim("first", state="PENDING", owner="local/run-first", subject="bob", size=64, reason=FULL, position=1),
    claim("leaving", id="claim-leaving", state="RELEASING", owner="local/run-leaving", size=0, pool="pod64"),
)
QUEUED_RUNS = (
    run(started_at="2026-01-31T11:31:00.000000Z", idle=IDLE),
    run("run-late", "a-sweep-over-the-learning-rates", state="WAITING", claim="claim-late", reason=FULL, position=2),
    run(
        *("run-first", "first"),
        state="WAITING",
        subject="bob",
        claim="claim-first",
        reason=FULL,
        position=1,
        labels={"team": "nlp"},
    ),
    run("run-ended", claim="claim-that-has-ended-since"),
    run("run-paused", state="PAUSED", claim=None),
    run(
        "run-slurm",
        "queued-there",
        state="WAITING",
        engine="slurm",
        claim=None,
        reference="78",
        reason=ReasonBody(code="engine.waiting", message="Slurm: (Priority)"),
    ),
    run("run-running-there", "there", engine="slurm", claim=None, reference="77", started_at="2026-01-31T11:59:10Z"),
)
QUEUE = build_queue(QUEUED_CLAIMS, QUEUED_RUNS)
PROJECTS = (
    ProjectBody(
        name="lab",
        shares=(ShareShape(pool="gpu", blocks={"1": 24}), ShareShape(pool="pod64", blocks={"4": 1, "16": 2})),
        weight=2.0,
        version=3,
        devices_max=60,
        members=("ann", "bert"),
    ),
    ProjectBody(
        name="lab/vision",
        shares=(ShareShape(pool="pod64", blocks={"16": 1}),),
        weight=0.5,
        version=1,
        user_devices_max=8,
        priority_max=30,
        waiting_max=500,
        waiting_bytes_max=64 << 20,
        aliases=("slurm/alpha/vision",),
        user_limits={"ann": 12, "bob": 0},
    ),
    ProjectBody(name="open", shares=(), weight=1.0, version=1),
)
QUOTAS = (
    QuotaBody(
        project="lab",
        pool="pod64",
        guaranteed=36,
        blocks={"4": 1, "16": 2},
        held=32,
        borrowed=8,
        waiting=2,
        waiting_devices=20,
        used_device_hours=1234.567,
        weight=2.0,
        devices_max=60,
    ),
    QuotaBody(
        project="open",
        pool="",
        guaranteed=0,
        blocks={},
        held=0,
        borrowed=0,
        waiting=0,
        waiting_devices=0,
        used_device_hours=0.0,
        weight=1.0,
    ),
)
KEYS = (
    KeyBody(id="ojgdisubcw", subject="root", role="admin", owner_prefix="", created_at="2026-01-30T12:00:00Z"),
    KeyBody(
        id="g3qs4onwx7",
        subject="ann",
        role="user",
        owner_prefix="user/ann",
        created_at="2026-01-31T11:59:00Z",
        revoked_at="2026-01-31T11:59:30Z",
        expires_at="2027-01-31T11:59:00Z",
    ),
    KeyBody(
        id="q2wsx3edc4",
        subject="bob",
        role="viewer",
        owner_prefix="user/bob",
        created_at="2025-03-01T12:00:00Z",
        rotated_at="2026-01-31T11:00:00Z",
        expires_at="2026-12-31T12:00:00Z",
        old_secret_until="2026-02-01T11:00:00Z",
    ),
    KeyBody(
        id="zxcvb67mnq",
        subject="slurm-alpha",
        role="agent",
        owner_prefix="slurm/alpha",
        created_at="2025-01-30T12:00:00Z",
        expires_at="2026-01-31T11:59:00Z",
    ),
)
EVENTS = (
    EventBody(
        seq=9,
        name="claim.granted",
        at="2026-01-31T11:59:00Z",
        claim="claim-p64",
        pool="pod64",
        data={"devices": "16-31", "name": "p64", "attempt": 0},
    ),
    EventBody(seq=10, name="device.drained", at="2026-01-31T11:59:30Z", device="pod64:8", data={"why": "link errors"}),
    EventBody(seq=11, name="turn.decided", at="2026-01-31T11:59:31Z"),
)
CHECKPOINTS = (
    CheckpointBody(
        run="run-7f3kq2m4xw2a",
        path="/home/ann/checkpoints/step-200.pt",
        step=200,
        size_bytes=3 << 29,
        written_at="2026-01-31T11:59:55.000000Z",
        whole=False,
        rule="zip",
        why="the zip directory at its end is missing",
    ),
    CheckpointBody(
        run="run-7f3kq2m4xw2a",
        path="/home/ann/checkpoints/step-100.pt",
        step=100,
        size_bytes=3 << 29,
        written_at="2026-01-31T11:58:20.000000Z",
        write_s=4.25,
        whole=True,
        rule="zip",
    ),
)

OF_KIND = {
    "pool": POOLS,
    "device": DEVICES,
    "partition": PARTITIONS,
    "claim": CLAIMS,
    "run": RUNS,
    "queue": QUEUE,
    "checkpoint": CHECKPOINTS,
    "project": PROJECTS,
    "quota": QUOTAS,
    "key": KEYS,
    "event": EVENTS,
}
