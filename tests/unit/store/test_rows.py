"""Records come back from their rows exactly, whatever people and vendors put into them."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.access import Ownership, Role
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock, QueueMode
from moorings.core.model.devices import Device, DeviceState
from moorings.core.model.events import EVENTS, Event, canonical_json
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, ProjectShare, ProjectUsage, UserLimit
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.ports.store import AccessKey, Changes, ExpectedVersion, IdempotencyRecord, Seq
from moorings.store import rows, tables
from moorings.store.sqlite import open_sqlite
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec, Resources, summarize_job
from moorings.workloads.runs import Run, RunState
from tests.cases import cases
from tests.sampling import examples

RecordT = TypeVar("RecordT")

words = st.text(min_size=1, max_size=20)  # any Unicode
# Others' words may even hold half of a surrogate pair (a file name that is not UTF-8); two halves would mean one whole.
told = st.one_of(
    st.just(""),
    st.text(max_size=30),
    st.builds(lambda text, odd: text + odd, st.text(max_size=9), st.just("\udce9\x00")),
)
instants = st.integers(0, 2**62)
counts = st.integers(0, 2**31 - 1)
seconds = st.one_of(st.integers(0, 10**6), st.floats(0, allow_nan=False, allow_infinity=False))


def maybe(strategy):
    return st.none() | strategy


contracts = st.builds(CheckpointContract, resumable=st.booleans(), warn_signal=told, warn_s=seconds, grace_s=seconds)
specs = st.builds(
    ClaimSpec,
    kind=told,
    size=counts,
    gcds=counts,
    replicas_per_gcd=counts,
    pool=maybe(words),
    resources=st.dictionaries(words, st.integers(0, 2**70), max_size=3),
    project=told,
    priority=st.integers(-(10**6), 10**6),
    time_limit_s=maybe(seconds),
    preemptible=st.booleans(),
    checkpoint=contracts,
    lease_s=maybe(seconds),
    queue=st.sampled_from(QueueMode),
)
reasons = st.builds(
    Reason, told, told, blockers=st.lists(words, max_size=3).map(tuple), until=maybe(instants), hint=told
)
blocks = st.one_of(
    st.builds(lambda start, size: Block.of(range(start, start + size)), st.integers(0, 1000), st.integers(1, 64)),
    st.sets(st.integers(0, 999), max_size=12).map(lambda members: Block.of(list(members))),
)
claims = st.builds(
    Claim,
    id=words,
    name=words,
    owner=words,
    subject=words,
    spec=specs,
    state=st.sampled_from(ClaimState),
    arrival=instants,
    version=counts,
    attempt=counts,
    broken=counts,
    pool=maybe(words),
    partition=maybe(words),
    reason=maybe(reasons),
    granted_at=maybe(instants),
    ready_at=maybe(instants),
    ended_at=maybe(instants),
    lease_until=maybe(instants),
    cell=maybe(blocks),
    checkpoint_at=maybe(instants),
    asked_until=maybe(instants),
    kept=maybe(st.builds(PoolBlock, words, blocks)),
)
partitions = st.builds(
    Partition,
    id=words,
    name=words,
    claim=words,
    pool=words,
    block=blocks,
    gcds=counts,
    replicas_per_gcd=counts,
    state=st.sampled_from(PartitionState),
    since=instants,
    version=counts,
    reason=told,
)
devices = st.builds(Device, words, st.integers(0, 2**20), st.sampled_from(DeviceState), told, instants)
jobs = st.builds(
    JobSpec,
    name=words,
    command=st.lists(told, min_size=1, max_size=4).map(tuple),
    workdir=told,
    environment=st.dictionaries(words, told, max_size=4),
    tasks=counts,
    accelerators=st.builds(
        Accelerators,
        told,
        counts,
        maybe(counts),
        maybe(words),
        resources=st.dictionaries(words, st.integers(0, 2**60), max_size=2),
    ),
    resources=st.builds(Resources, counts, maybe(st.integers(0, 2**60)), counts),
    project=told,
    priority=st.integers(-(10**6), 10**6),
    time_limit_s=maybe(seconds),
    checkpoint=contracts,
    checkpoint_directory=maybe(told),
    image=maybe(told),
    labels=st.dictionaries(words, told, max_size=3),
    lease_s=maybe(seconds),
    appliance=maybe(st.builds(WorkflowPart, st.sampled_from(ApplianceJobType), words)),
    preemptible=st.booleans(),
)
runs = st.builds(
    Run,
    id=words,
    job=st.builds(summarize_job, jobs, counts),
    engine=words,
    subject=words,
    claim=words,
    state=st.sampled_from(RunState),
    created_at=instants,
    version=counts,
    attempt=counts,
    reference=maybe(words),
    started_at=maybe(instants),
    ended_at=maybe(instants),
    exit_code=maybe(st.integers(-128, 255)),
    task_codes=st.lists(maybe(st.integers(-128, 255)), max_size=4).map(tuple),
    stop_reason=told,
    detail=told,
    within=st.booleans(),
    labels=st.dictionaries(words, told, max_size=3),
)
shares = st.builds(ProjectShare, words, st.lists(st.tuples(counts, counts), max_size=3).map(tuple))
projects = st.builds(
    Project,
    name=words,
    shares=st.lists(shares, max_size=3).map(tuple),
    weight=st.integers(0, 10**6) | st.floats(0, 1e6),
    devices_max=maybe(counts),
    user_devices_max=maybe(counts),
    priority_max=maybe(counts),
    waiting_max=maybe(counts),
    waiting_bytes_max=maybe(counts),
    members=st.lists(told, max_size=3).map(tuple),
    aliases=st.lists(told, max_size=3).map(tuple),
    version=counts,
    user_limits=st.lists(st.builds(UserLimit, told, counts), max_size=3).map(tuple),
)
usages = st.builds(ProjectUsage, words, st.integers(0, 2**63 - 1), instants)
events = st.builds(
    Event,
    name=st.sampled_from(sorted(EVENTS)),
    at=instants,
    claim=maybe(words),
    partition=maybe(words),
    run=maybe(words),
    pool=maybe(words),
    device=maybe(words),
    data=st.dictionaries(words, words | st.integers() | st.none(), max_size=4).map(canonical_json),
    ownership=st.builds(Ownership, maybe(words), maybe(words), maybe(words)),
)
key_uses = st.builds(IdempotencyRecord, words, words, words, maybe(words), maybe(words))
access_keys = st.builds(
    AccessKey, words, words, st.sampled_from(Role), words, words, created_at=instants, revoked_at=maybe(instants)
)


def read(reader: Callable[..., RecordT], row: rows.RowTuple) -> RecordT:
    return reader(*row)


@given(claims)
def test_claims(claim):
    assert read(rows.parse_claim, rows.claim_row(claim)) == claim


@given(partitions)
def test_partitions(partition):
    assert read(rows.parse_partition, rows.partition_row(partition)) == partition
    taken = list(rows.partition_device_rows(partition))
    assert taken == [(partition.pool, index, partition.id) for index in partition.block]


@given(devices)
def test_devices(device):
    assert read(rows.parse_device, rows.device_row(device)) == device


@given(runs, jobs)
def test_runs(run, job):
    assert read(rows.parse_run, rows.run_row(run, job)) == run


@given(runs, jobs)
def test_a_row_of_a_release_that_knew_no_heads(run, job):
    row = list(rows.run_row(run, job))
    text = row[tables.runs.c.keys().index("job")]
    assert isinstance(text, str)
    row[tables.runs.c.keys().index("head")] = None
    assert rows.parse_job_text(text) == replace(job, environment=dict.fromkeys(job.environment, ""))
    assert read(rows.parse_run, tuple(row)) == replace(run, job=summarize_job(job))


@given(projects, usages)
def test_projects(project, usage):
    back = read(rows.parse_project, rows.project_row(project))
    assert back == project
    assert repr(back) == repr(project)  # 2 and 2.0 are equal, but a log of decisions shows the difference
    assert read(rows.parse_usage, rows.usage_row(usage)) == usage


def test_a_project_of_another_release_is_read():
    later = (
        '{"colour":"red","weight":2.0}'  # a field that came later is passed over, one that is missing has its default
    )
    assert rows.parse_project("lab", 3, later) == Project(name="lab", weight=2.0, version=3)


@given(st.integers(1, 2**62), events)
def test_events(seq, event):
    found = read(rows.parse_event, rows.event_row(seq, event))
    assert (found.seq, found.event) == (seq, event)


@given(key_uses, access_keys)
def test_keys(use, key):
    assert read(rows.parse_idempotency_record, rows.key_use_row(use)) == use
    assert read(rows.parse_access_key, rows.access_key_row(key)) == key


@given(claims, partitions, runs, jobs, devices, projects, usages)
def test_every_row_can_be_bound_by_a_driver(claim, partition, run, job, device, project, usage):
    made = [rows.claim_row(claim), rows.partition_row(partition), rows.run_row(run, job), rows.device_row(device)]
    made += [rows.project_row(project), rows.usage_row(usage)]
    for value in (value for row in made for value in row):
        assert type(value) in {str, int, type(None)}  # exactly: for subclasses sqlite3 takes a slower path
        if isinstance(value, str):
            value.encode()


@given(specs)
def test_a_number_keeps_its_kind(spec):
    back = read(rows.parse_claim, rows.claim_row(a_claim_with(spec))).spec
    # 60 and 60.0 are equal, but a log of decisions shows the difference.
    assert repr(back.checkpoint) == repr(spec.checkpoint)
    assert repr((back.time_limit_s, back.lease_s)) == repr((spec.time_limit_s, spec.lease_s))


def a_claim_with(spec):
    return Claim(
        id=ClaimId("c"), name="n", owner="o", subject="s", spec=spec, state=ClaimState.PENDING, arrival=Timestamp(0)
    )


def test_equal_records_have_equal_rows():
    one = a_claim_with(ClaimSpec(kind="ipu", size=1, resources={"a": 1, "b": 2}))
    other = a_claim_with(ClaimSpec(kind="ipu", size=1, resources={"b": 2, "a": 1}))
    assert rows.claim_row(one) == rows.claim_row(other)


def test_half_a_surrogate_pair_in_an_event_stays_the_same_json():
    event = Event(name="run.created", at=Timestamp(0), data=canonical_json({"command": "\udce9 é"}))
    data = read(rows.parse_event, rows.event_row(1, event)).event.data
    assert data.encode()
    assert json.loads(data) == {"command": "\udce9 é"}


@cases(
    ("reader", "table"),
    [
        (rows.parse_claim, tables.claims),
        (rows.parse_partition, tables.partitions),
        (rows.parse_device, tables.devices),
        (rows.parse_run, tables.runs),
        (rows.parse_project, tables.projects),
        (rows.parse_usage, tables.project_usage),
        (rows.parse_event, tables.outbox),
        (rows.parse_idempotency_record, tables.idempotency_keys),
        (rows.parse_access_key, tables.access_keys),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_readers_take_the_columns_in_their_order(reader, table):
    # The other half, that rows are written in that order, is what the round trips above then show.
    renamed = {"ident": "id", "index": "device"}
    assert [renamed.get(name, name) for name in inspect.signature(reader).parameters] == table.c.keys()


@settings(max_examples=examples(20), deadline=None)
@given(
    claim=claims,
    made=partitions,
    run=runs,
    job=jobs,
    device=devices,
    project=projects,
    used=usages,
    event=events,
    use=key_uses,
    key=access_keys,
)
def test_the_database_changes_nothing(tmp_path_factory, claim, made, run, job, device, project, used, event, use, key):
    store = open_sqlite(tmp_path_factory.mktemp("rows") / "moorings.db")
    epoch = store.begin_epoch("test", Timestamp(0))
    new = ExpectedVersion(None)
    made = Partition(**{name: getattr(made, name) for name in made.__slots__} | {"claim": claim.id})
    run = Run(**{name: getattr(run, name) for name in run.__slots__} | {"claim": claim.id})
    changes = Changes(claims=[(claim, new)], partitions=[(made, new)], runs=[(run, new)], keys=[use], events=[event])
    changes.jobs[run.id] = job
    changes.projects.append((project, new))
    changes.usage.append(used)
    if device.state is not DeviceState.IN_SERVICE:
        changes.devices.append(device)
    last = store.commit(epoch, changes)
    store.add_access_key(key, event)
    saved = store.load_unended()
    assert store.get_claim(claim.id) == claim
    assert store.get_run(run.id) == run
    assert store.get_jobs([run.id]) == {run.id: replace(job, environment=dict.fromkeys(job.environment, ""))}
    assert saved.partitions == (made,)
    assert list(saved.devices) == changes.devices
    assert saved.projects == (project,)
    assert saved.usage == (used,)
    assert store.find_idempotency_records([(use.subject, use.key)]) == {(use.subject, use.key): use}
    assert store.access_keys() == [key]
    assert [row.event for row in store.list_events(Seq(last - 1), 9)] == [event, event]
    store.close()
