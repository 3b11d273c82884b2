"""What this release writes and says: a site with everything that can rest in it, and its messages, kept for ever.

A real controller is asked for everything that its API has, and killed with its jobs. ``site-NAME.tar.xz`` is the folder
as that left it, with a backup and, in ``told.json``, what the controller told of it last. ``wire-NAME.json`` has each
request and answer. Neither ever changes: later code reads them (``tests/e2e/test_released_site.py``,
``tests/unit/wire/test_released.py``). With each release make another one::

    python -m tests.released.recording NAME
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from moorings.app.backup_create import DATABASE
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.drivers.simulated.hardware import SimulatedHardware
from moorings.drivers.simulated.partition import SimulatedPartition
from moorings.engines.fence import FileFence
from moorings.local.records import AttemptEnd, CancelRecord, ProcessIdentity, SupervisorStatus, YieldRecord
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.store import Archive, EndedRecords, Epoch, Seq
from moorings.store.archive import ArchiveFolder
from moorings.store.sqlite import open_sqlite
from moorings.wire.codec import encode
from moorings.wire.errors import ERRORS
from moorings.wire.operations import OPERATIONS
from moorings.wire.shapes import ProblemBody
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Resources
from moorings.workloads.runs import EndReason, EndRecord, RunPhase
from tests.e2e.processes import ControllerProcess
from tests.waiting import until

HERE = Path(__file__).parent
POOLS = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.01
provision_per_device_s = 0.0
remove_s = 0.01
remove_per_device_s = 0.0

[[pool]]
name = "lent"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 4, max_block = 4 }

[[pool]]
name = "moves"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 4, max_block = 4 }

[[pool]]
name = "making"
kind = "gpu"
driver = "simulated"
topology = { type = "any-subset", domain_size = 2 }
[pool.simulated]
provision_s = 3600.0

[[pool]]
name = "leaving"
kind = "gpu"
driver = "simulated"
topology = { type = "any-subset", domain_size = 5 }
[pool.simulated]
remove_s = 3600.0

[[pool]]
name = "wafer"
kind = "csx"
driver = "simulated"
topology = { type = "catalogue", domain_size = 2, blocks = ["0", "1", "0-1"] }
resources = { memory = "64G" }
"""
POLICY = 'min_run = "0s"\nyield = "1d"\nuser_priority_max = 10\n'
FAULTS = """
[[fault]]
kind = "vanishes"
names = ["lost"]
seconds = 0.5

[[fault]]
kind = "reject"
calls = ["create"]
names = ["refused"]

[[fault]]
kind = "breaks_while_provisioning"
names = ["breaks"]
times = 1

[[fault]]
kind = "stray"
names = ["by-hand"]
devices = "12"
times = 1
"""
FLAGS = ("--keep-runs-days", "0", "--keep-history-days", "0", "--policy", "policy.toml")
WORKFLOW = "wflow-abcdefghijklmnopqrstuv"
YIELDS_LATE = "trap '' USR1; echo begun; while :; do sleep 1; done"
KEEPS_ON = "trap '' TERM USR1; echo begun; while :; do sleep 1; done"
LEAVES = "gone"  # a claim and a run that have left the database
NOT_JSON = ("/metrics", "/openapi.json")


class Site(ControllerProcess):
    """A controller; each exchange with it is kept."""

    exchanges: list[dict[str, Any]]

    def say(self, method: str, path: str, body: object = None, *, of: str = "", key: str | None = None, **headers: str):
        """Status and body of an answer; ``of``: the address of the operation, where it has names in it."""
        status, kind, text = fetch(self, method, path, body, key, headers)
        answer = text if kind.startswith(("text/plain", "text/event-stream")) else json.loads(text) if text else None
        operation = f"{method} {of or path.partition('?')[0]}"
        self.exchanges.append(
            {"operation": operation, "path": path, "request": body, "status": status, "type": kind, "answer": answer}
        )
        return status, answer


def fetch(
    site: ControllerProcess, method: str, path: str, body: object, key: str | None, headers: Mapping[str, str]
) -> tuple[int, str, str]:
    """One request: status, media type, text. Of a stream, what comes within its first events."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    given = {"Authorization": f"Bearer {key or site.key}", "Content-Type": "application/json", **headers}
    connection.request(method, path, None if body is None else json.dumps(body), given)
    answer = connection.getresponse()
    kind = answer.getheader("Content-Type") or ""
    if kind.startswith("text/event-stream"):
        lines: list[str] = []
        while "data:" not in "".join(lines[-3:]):
            lines.append(answer.readline().decode())
        text = "".join(lines) + "\n"
    else:
        text = answer.read().decode()
    connection.close()
    return answer.status, kind, text


# -- the story


def live(site: Site) -> None:
    """Everything that the API has is asked for, and everything that can rest is left at rest."""
    _projects_and_keys(site)
    _claims(site)
    _runs(site)
    _lent(site)
    _hardware(site)
    _looks(site)
    _refusals(site)


def claim(site: Site, name: str, size: int, state: str = "READY", **more: object) -> dict[str, Any]:
    """A claim, and that it has come to that state."""
    body = {"name": name, "size": size, **more}
    made = site.say(
        "POST", "/v1/claims?wait=5s" if state == "READY" else "/v1/claims", body, **{"Idempotency-Key": name}
    )
    assert made[0] == 201, made
    return await_state(site, f"/v1/claims/{name}", state)


def run(site: Site, name: str, command: list[str], state: str, job: Mapping[str, object] = {}, **more: object):
    """A run, and that it has come to that state."""
    whole = {"name": name, "command": command, "workdir": "/", "environment": {"PATH": "/usr/bin:/bin"}, **job}
    made = site.say("POST", "/v1/runs", {"job": whole, **more}, **{"Idempotency-Key": f"run-{name}"})
    assert made[0] == 201, made
    return await_state(site, f"/v1/runs/{made[1]['id']}", state)


def await_state(site: Site, path: str, state: str) -> dict[str, Any]:
    """What it is once it has come to that state."""

    def there() -> dict[str, Any] | None:
        found = site.ask("GET", path)[1]
        return found if found.get("state") == state else None

    return until(there, 10.0, what=lambda: (path, state, site.ask("GET", path)[1]))


def output(site: Site, name: str) -> str:
    """What a run has printed."""
    return fetch(site, "GET", f"/v1/runs/{name}/logs", None, None, {})[2]


def _projects_and_keys(site: Site) -> None:
    lab = {
        "shares": [
            {"pool": "lent", "blocks": {"4": 1}},
            {"pool": "leaving", "blocks": {"1": 3}},
            {"pool": "pod16", "blocks": {"4": 1}},
        ],
        "weight": 2.0,
        "devicesMax": 64,
        "userDevicesMax": 32,
        "priorityMax": 20,
        "waitingMax": 100,
        "waitingBytesMax": 1 << 20,
        "aliases": ["slurm/one/lab"],
    }
    site.say("PUT", "/v1/projects/lab", {}, of="/v1/projects/{project}")
    site.say("PUT", "/v1/projects/lab", {**lab, "version": 1}, of="/v1/projects/{project}")
    inner = {"members": ["ann", "root"]}
    site.say("PUT", "/v1/projects/lab/vision", inner, of="/v1/projects/{project}")
    site.say("PUT", "/v1/projects/brief", {}, of="/v1/projects/{project}")
    site.say("DELETE", "/v1/projects/brief", of="/v1/projects/{project}")
    made = {}
    for role in ("admin", "user", "agent", "viewer"):
        prefix = {"ownerPrefix": "slurm/one"} if role == "agent" else {}
        made[role] = site.say("POST", "/v1/keys", {"subject": f"{role}-1", "role": role, "lifetimeS": 0.0, **prefix})[1]
    for name in ("revoked", "rotated"):
        made[name] = site.say("POST", "/v1/keys", {"subject": name, "role": "user", "lifetimeS": 0.0})[1]
    expires = {"subject": "expires", "role": "viewer", "lifetimeS": 86400.0}
    made["expires"] = site.say("POST", "/v1/keys", expires)[1]
    site.say("DELETE", f"/v1/keys/{made['revoked']['id']}", of="/v1/keys/{id}")
    rotate = {"graceS": 60.0, "lifetimeS": 0.0}
    made["new"] = site.say("POST", f"/v1/keys/{made['rotated']['id']}/rotate", rotate, of="/v1/keys/{id}/rotate")[1]
    (site.folder / "keys.json").write_text(json.dumps({name: key["secret"] for name, key in made.items()}))


def _claims(site: Site) -> None:
    wish = {"warnSignal": "TERM", "resumable": True, "warnS": 60.0, "graceS": 10.0}
    whole: dict[str, Any] = {
        "gcds": 2,
        "replicasPerGcd": 2,
        "pool": "pod16",
        "priority": 3,
        "timeLimitS": 86400.0 * 300,
    }
    more: dict[str, Any] = {
        "preemptible": True,
        "checkpoint": wish,
        "leaseS": 604800.0,
        "project": "lab",
        "queue": "never",
    }
    kept = claim(site, "kept", 4, owner=f"user/{_subject(site)}/own", accelerator="ipu", **whole, **more)
    site.say("POST", f"/v1/claims/{kept['id']}/renew", of="/v1/claims/{id}/renew")
    site.say("POST", "/v1/claims/kept/checkpoint", {"at": "2026-01-31T12:00:00Z"}, of="/v1/claims/{id}/checkpoint")
    site.say("GET", "/v1/claims/kept/binding?wait=1s", of="/v1/claims/{id}/binding")
    claim(site, "lost", 1, "LOST")
    claim(site, "breaks", 1, pool="pod16")
    claim(site, "refused", 1, "FAILED", pool="pod16")
    claim(site, "released", 1)
    site.say("DELETE", "/v1/claims/released?wait=5s", of="/v1/claims/{id}")
    claim(site, "waits", 16, "PENDING", priority=7)
    claim(site, "cancelled", 16, "PENDING")
    site.say("DELETE", "/v1/claims/cancelled?onlyWaiting=true", of="/v1/claims/{id}")
    claim(site, "granted", 1, "GRANTED", accelerator="gpu", pool="making")
    claim(site, "releasing", 1, accelerator="gpu", pool="leaving")
    site.say("DELETE", "/v1/claims/releasing", of="/v1/claims/{id}")
    claim(site, "memory", 0, accelerator="csx", resources={"memory": 1 << 30})
    site.say("POST", "/v1/partitions", {"name": "part", "size": 1, "gcds": 1, "pool": "pod16"})
    await_state(site, "/v1/claims/part", "READY")
    site.say("POST", "/v1/partitions/part/reset", of="/v1/partitions/{id}/reset")
    await_state(site, "/v1/partitions/part", "ACTIVE")
    site.say("GET", "/v1/partitions/part", of="/v1/partitions/{id}")
    claim(site, LEAVES, 1)
    site.say("DELETE", f"/v1/partitions/{LEAVES}?wait=5s", of="/v1/partitions/{id}")


def _runs(site: Site) -> None:
    run(site, "succeeded", ["/bin/sh", "-c", "echo hello"], "SUCCEEDED")
    run(site, LEAVES, ["/bin/true"], "SUCCEEDED")
    run(site, "failed", ["/bin/sh", "-c", "echo oh no >&2; exit 3"], "FAILED")
    run(site, "unknown", ["/no/such/command"], "FAILED")
    run(site, "timed-out", ["/bin/sleep", "600"], "TIMED_OUT", {"timeLimitS": 1.0})
    run(site, "cancelled", ["/bin/sleep", "600"], "RUNNING")
    site.say("POST", "/v1/runs/cancelled/cancel?wait=10s", of="/v1/runs/{id}/cancel")
    lost = run(site, "lost", ["/bin/sleep", "600"], "RUNNING")
    kill_run(site.data / "runs" / lost["id"])
    await_state(site, "/v1/runs/lost", "LOST")
    work = {
        "tasks": 2,
        "accelerators": {"kind": "ipu", "size": 2, "replicas": 2, "pool": "pod16"},
        "resources": {"cpus": 1, "memoryBytes": 1 << 20, "nodes": 1},
        "project": "lab",
        "priority": 1,
        "timeLimitS": 86400.0 * 300,
        "checkpoint": {"resumable": True, "warnSignal": "USR2", "warnS": 30.0, "graceS": 5.0},
        "checkpointDirectory": str(site.folder),
        "labels": {"team": "vision", "old": "yes"},
        "leaseS": 604800.0,
        "image": "registry.example/train:1",
        "preemptible": True,
    }
    run(site, "running", ["/bin/sh", "-c", "echo begun; sleep 600"], "RUNNING", work)
    site.say("POST", "/v1/runs/running/labels", {"labels": {"a": "b"}, "remove": ["old"]}, of="/v1/runs/{id}/labels")
    run(site, "queued", ["/bin/true"], "WAITING", {"accelerators": {"size": 16}})
    site.say("POST", "/v1/runs/queued/priority", {"priority": -7}, of="/v1/runs/{id}/priority")
    stops = {"checkpoint": {"graceS": 3600.0}}
    run(site, "stopping", ["/bin/sh", "-c", KEEPS_ON], "RUNNING", stops)
    until(lambda: "begun" in output(site, "stopping"))
    site.say("POST", "/v1/runs/stopping/cancel", of="/v1/runs/{id}/cancel")
    sparse = {"accelerators": {"size": 1, "pool": "moves"}, "checkpoint": {"resumable": True}}
    for name in ("first", "between", "third"):
        run(site, name, ["/bin/sh", "-c", YIELDS_LATE], "RUNNING", sparse)
        until(lambda name=name: "begun" in output(site, name))  # type: ignore[misc]
    site.say("POST", "/v1/runs/between/cancel?wait=10s", of="/v1/runs/{id}/cancel")
    wafer = {
        "accelerators": {"kind": "csx", "size": 1, "resources": {"memory": 1 << 20}},
        "appliance": {"kind": "execute", "workflow": WORKFLOW},
    }
    claim(site, "wafers", 1, accelerator="csx", resources={"memory": 1 << 20})
    run(site, "within", ["/bin/sh", "-c", "echo done"], "SUCCEEDED", wafer, claim="wafers")
    site.say("GET", f"/v1/appliance/jobs?workflow={WORKFLOW}")
    site.say("GET", "/v1/runs/succeeded/logs", of="/v1/runs/{id}/logs")


def _lent(site: Site) -> None:
    """What is lent and asked back, at each point of giving it back."""
    claim(site, "reclaiming", 2, pool="lent", preemptible=True)
    asked = {"accelerators": {"size": 2, "pool": "lent"}, "preemptible": True}
    resumes = {"checkpoint": {"resumable": True, "warnSignal": "USR1"}}
    run(site, "yielding", ["/bin/sh", "-c", YIELDS_LATE], "RUNNING", asked | resumes)
    claim(site, "yielded", 3, accelerator="gpu", pool="leaving", preemptible=True)
    until(lambda: "begun" in output(site, "yielding"))
    claim(site, "owed", 4, "PENDING", pool="lent", project="lab")
    claim(site, "owed-cards", 3, "PENDING", accelerator="gpu", pool="leaving", project="lab")
    await_state(site, "/v1/claims/reclaiming", "RECLAIMING")
    await_state(site, "/v1/runs/yielding", "YIELDING")
    await_state(site, "/v1/claims/yielded", "RECLAIMING")
    site.say("POST", "/v1/claims/yielded/yield", {"why": "saved"}, of="/v1/claims/{id}/yield")
    await_state(site, "/v1/claims/yielded", "YIELDING")


def _hardware(site: Site) -> None:
    for index in (6, 15):
        reason = {"reason": "a fan is broken"}
        site.say("POST", f"/v1/devices/pod16:{index}/drain", reason, of="/v1/devices/{id}/drain")
    site.say("POST", "/v1/devices/pod16:6/resume", of="/v1/devices/{id}/resume")
    devices = {one["id"]: one for one in site.ask("GET", "/v1/devices?limit=100")[1]["items"]}
    assert devices["pod16:15"]["state"] == "DRAINED", devices
    assert "QUARANTINED" in {one["state"] for one in devices.values()}, devices


def _looks(site: Site) -> None:
    job = {"owner": "slurm/one/7/n", "size": 2, "gcds": 1, "pool": "pod16", "since": "2026-01-31T12:00:00Z"}
    told = {"queue": "slurm/one", "jobs": [{**job, "timeLimitS": 60.0, "project": "lab"}], "forS": 60.0}
    site.say("POST", "/v1/queues", {**told, "instance": "00112233445566aa"})
    site.say("GET", "/v1/queues/slurm/one", of="/v1/queues/{kind}/{cluster}")
    for path in ("claims?all=true", "runs?all=true", "partitions", "devices?limit=8", "pools", "projects", "quotas"):
        site.say("GET", f"/v1/{path}")
    for path in ("queues", "keys", "events?limit=20", "doctor"):
        site.say("GET", f"/v1/{path}")
    site.say("GET", "/v1/events?limit=1&name=turn.decided")
    site.say("GET", "/v1/events?after=0&watch=1")
    for path, of in (
        ("claims/waits", "claims/{id}"),
        ("claims/waits/explain?when=true", "claims/{id}/explain"),
        ("claims/kept/explain", "claims/{id}/explain"),
        ("runs/queued", "runs/{id}"),
        ("runs/running", "runs/{id}"),
        ("pools/pod16", "pools/{pool}"),
        ("pools/wafer", "pools/{pool}"),
        ("pools/pod16/capacity?size=4", "pools/{pool}/capacity"),
        ("devices/pod16:0", "devices/{id}"),
        ("projects/lab", "projects/{project}"),
    ):
        site.say("GET", f"/v1/{path}", of=f"/v1/{of}")
    wish = {"size": 4, "kind": "ipu", "pool": "pod16", "gcds": 1, "project": "lab", "priority": 1, "timeLimitS": 60.0}
    site.say("POST", "/v1/estimate", {**wish, "preemptible": True})
    site.say("POST", "/v1/whatif", {"policy": "reserve = false\n"})
    site.say("POST", "/v1/defragment", {"size": 2, "pool": "moves", "dryRun": True, "costMaxS": 1e9})
    site.say("POST", "/v1/defragment", {"size": 2, "pool": "moves"})
    for path in ("/healthz", "/livez", "/readyz", "/version", *NOT_JSON):
        site.say("GET", path)
    for one in site.exchanges[-len(NOT_JSON) :]:
        one["answer"] = None  # large, and each has tests of its own


def _refusals(site: Site) -> None:
    site.say("POST", "/v1/claims", {"size": 3})
    site.say("POST", "/v1/claims", {"size": "many"})
    site.say("POST", "/v1/claims", {"size": 8, "queue": "never", "pool": "pod16"})
    site.say("POST", "/v1/claims", {"name": "kept", "size": 1})
    site.say("POST", "/v1/claims", {"size": 2}, **{"Idempotency-Key": "kept"})
    site.say("GET", "/v1/claims/nobody", of="/v1/claims/{id}")
    site.say("GET", "/v1/claims", key="mk_no_key")
    site.say("GET", "/v1/nothing")


def _subject(site: Site) -> str:
    return str(site.ask("GET", "/v1/keys")[1]["items"][0]["subject"])


def kill_run(folder: Path) -> None:
    """Kill a run's supervisor and tasks, as they would be in a power cut."""
    status = json.loads((folder / "status.json").read_text())
    for one in (status["supervisor"], *status["tasks"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one["pid"], signal.SIGKILL)


# -- each shape whole


def whole_example(kind: Any) -> Any:
    """A value of that type with everything in it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return whole_example(next(one for one in arguments if one is not type(None)))
    if origin is tuple:
        return (whole_example(arguments[0]),)
    if origin is not None and issubclass(origin, Mapping):
        return {"one": whole_example(arguments[1])}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{item.name: whole_example(hints[item.name]) for item in dataclasses.fields(kind)})  # type: ignore[operator]
    return {str: "text", int: 7, float: 1.5, bool: True}.get(kind, {"any": [1, "thing"]})


def whole_messages() -> dict[str, dict[str, Any]]:
    """Of each operation a request and an answer with every field that they may have."""
    found: dict[str, dict[str, Any]] = {"errors": {"answer": encode(whole_example(ProblemBody))}}
    for one in OPERATIONS:
        told = {"request": one.body, "answer": one.response.shape}
        shapes = {part: encode(whole_example(shape)) for part, shape in told.items() if shape is not None}
        found[f"{one.method} {one.path}"] = shapes
    return found


# -- files that the story does not leave


def write_forms(site: Site) -> None:
    """A run's folder with every record in it, another epoch, and a machine with every record in its journal."""
    of = next(path.parent for path in (site.data / "runs").glob("*/cancel.json"))
    folder = LocalRunFolder(site.folder / "forms")
    folder.create()
    order = LocalRunFolder(of).read_order()
    assert order is not None
    job = dataclasses.replace(
        order.job,
        resources=Resources(2, 1 << 30, 2),
        appliance=WorkflowPart(ApplianceJobType.COMPILE, WORKFLOW),
        checkpoint_directory="/srv/saved",
    )
    gcds = tuple(dataclasses.replace(gcd, environment={"A": "b"}) for gcd in order.binding.gcds)
    binding = dataclasses.replace(order.binding, gcds=gcds)
    folder.save(dataclasses.replace(order, attempt=2, job=job, binding=binding, resume_from="/srv/saved/7"))
    tasks = (ProcessIdentity(12, 34), ProcessIdentity(13, 35))
    at = Timestamp(1_700_000_000_000_000)
    folder.save(SupervisorStatus(2, RunPhase.RUNNING, "a boot", ProcessIdentity(11, 33), at, tasks), durable=False)
    folder.save_end(
        AttemptEnd(2, EndRecord(EndReason.YIELDED, 143, (143, None), at, add_seconds(at, 1.0), "it was stopped"))
    )
    folder.save(CancelRecord(2, "enough"))
    folder.save(YieldRecord(2, "needed elsewhere", 12.5))
    FileFence(folder.path).raise_epoch(Epoch(7), 1.0)
    machine = SimulatedHardware(folder.path / "machine")
    part = SimulatedPartition(
        serial=3, name="a", block=Block.of([0, 1]), gcds=2, replicas_per_gcd=2, mark="m-a", ready_at=at
    )
    fated = {
        "was_reset": True,
        "breaks_at": add_seconds(at, 5.0),
        "vanishes_at": add_seconds(at, 6.0),
        "gone_at": add_seconds(at, 7.0),
    }
    with machine.transaction():
        machine.save_partition(dataclasses.replace(part, name="b", block=Block.of([4]), serial=2), "created")
        machine.count_fault("a fault")
        machine.lose_partitions()
        machine.save_partition(dataclasses.replace(part, name="c", block=Block.of([5]), serial=4), "created")
        machine.delete_partition(dataclasses.replace(part, name="c", block=Block.of([5]), serial=4))
        machine.save_partition(dataclasses.replace(part, **fated), "fated")  # type: ignore[arg-type]
        machine.set_down_until(add_seconds(at, 9.0))
        machine.count_fault("another")
        machine.retain_fault_counts(["another"])
        machine.make_device_files([0])
    machine.close()
    told = {"records": [fated_record := dataclasses.replace(part, **fated).record()], "struck": {"another": 1}}  # type: ignore[arg-type]
    assert fated_record["was_reset"]
    (folder.path / "machine.json").write_text(json.dumps({**told, "down_until": add_seconds(at, 9.0)}))


def write_home(site: Site) -> None:
    """What ``moor`` writes for the person who uses it."""
    home = site.folder / "home"
    given = {"HOME": str(home), "MOORINGS_CREDENTIALS": str(site.credentials), "XDG_CACHE_HOME": str(home / ".cache")}
    for words in (
        "config use-context default",
        "pki init --name controller.example.org",
        "pki issue ann",
        f"wafer install-csctl {home}/bin",
        "create key ann --expires never -o json",
    ):
        argv = [sys.executable, "-m", "moorings.cli.main", *words.split()]
        done = subprocess.run(argv, env={**os.environ, **given}, check=True, capture_output=True, text=True)
        if words.startswith("create"):
            (home / "ann.json").write_text(done.stdout)


def write_archive(site: Site) -> None:
    """Some events and one claim leave the database, as all do after a year."""
    now = Timestamp(time.time_ns() // 1000)
    with contextlib.closing(open_sqlite(site.data / DATABASE)) as store:
        epoch, folder = store.get_leader().epoch, ArchiveFolder(site.data / "archive")
        found = store.next_archive_range(20, now)
        assert found is not None
        digest = folder.write_events(*found, [row for row in store.list_events(Seq(0), 1000) if row.seq <= found[1]])
        store.delete_archived_events(epoch, Archive(*found, digest, "recording", now), 1000)
        gone = [claim for claim in store.list_ended(now, 1000).claims if claim.name == LEAVES]
        run = [run for run in store.list_ended(now, 1000).runs if run.job.name == LEAVES]
        folder.write_ended_records(EndedRecords(run, gone), store.get_jobs)
        store.delete_ended(epoch, EndedRecords(run, gone))
        assert gone
        assert run
    with contextlib.closing(sqlite3.connect(site.data / DATABASE)) as database:
        check_filled(database)


def check_filled(database: sqlite3.Connection) -> None:
    """See that no table is empty, and no column of one.

    Raises:
        AssertionError: one is.
    """
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for column in [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]:
            filled = database.execute(f'SELECT count("{column}") FROM "{table}"').fetchone()[0]
            assert filled or f"{table}.{column}" == "runs.reference", f"{table}.{column}"  # of another scheduler


# -- making it


def record(folder: Path) -> list[dict[str, Any]]:
    """Make the site in a folder; the exchanges."""
    (folder / "policy.toml").write_text(POLICY)
    flags = tuple(str(folder / "policy.toml") if flag == "policy.toml" else flag for flag in FLAGS)
    site = Site(folder, POOLS, flags=flags)
    site.exchanges = []
    faults = site.data / "simulated" / "pod16" / "faults.toml"
    faults.parent.mkdir(parents=True, mode=0o700)
    site.data.chmod(0o700)
    faults.write_text(FAULTS)
    site.start()
    live(site)
    told = {}
    for name in ("claims", "runs", "partitions", "devices", "projects", "keys"):
        told[name] = site.ask("GET", f"/v1/{name}?limit=100{'&all=true' if name in ('claims', 'runs') else ''}")[1][
            "items"
        ]
    told["seq"] = site.ask("GET", "/v1/events?limit=1")[1]["items"][0]["seq"]
    (folder / "told.json").write_text(json.dumps(told, indent=1) + "\n")
    write_home(site)
    hand("save", site.data, folder / "backup.tar.gz")
    site.kill()
    for path in (site.data / "runs").glob("*/status.json"):
        kill_run(path.parent)
    write_forms(site)
    write_archive(site)
    again = folder / "restored"
    again.mkdir()
    hand("restore", again / "data", folder / "backup.tar.gz")  # its notes
    kept = {"restored.json", "high-water"}
    for path in [*again.glob("data/*")]:
        if path.name in kept:
            path.rename(again / path.name)
    shutil.rmtree(again / "data")
    return site.exchanges


def hand(what: str, data: Path, file: Path) -> None:
    """``moor backup`` or ``moor restore``."""
    argv = [sys.executable, "-m", "moorings.app.backup", what, "--data", str(data), "--file", str(file)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def main(name: str) -> None:
    """Record both."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "site"
        folder.mkdir()
        exchanges = record(folder)
        (folder / "controller.log").unlink()
        (folder / "data" / f"{DATABASE}-shm").unlink(missing_ok=True)
        with tarfile.open(HERE / f"site-{name}.tar.xz", "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
    asked = {one["operation"] for one in exchanges}
    lacking = [f"{one.method} {one.path}" for one in OPERATIONS if f"{one.method} {one.path}" not in asked]
    assert not lacking, lacking
    codes = {code: [kind.status, int(kind.exit)] for code, kind in ERRORS.items()}
    told = {"exchanges": exchanges, "whole": whole_messages(), "codes": codes}
    (HERE / f"wire-{name}.json").write_text(json.dumps(told, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
