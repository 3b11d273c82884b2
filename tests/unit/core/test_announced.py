"""Jobs that wait in another scheduler hold their place beside claims, and their scheduler is offered what is free."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import ObservedState
from moorings.core.model.inputs import PoolReachability, QueueReported
from moorings.core.model.policy import Policy
from moorings.core.model.queue_reports import CONFLICT_EVENT_S, QueueConflictError, QueuedJob, QueueReport
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.scheduling.explain import explain_wait
from tests.unit.core.worlds import CROSS, POD, World

HERE, THERE = "slurm/here", "slurm/there"
BELIEVED_S = 120.0


def told(world: World, *sizes: int, queue: str = HERE, ago_s: int = 0, first: int = 1) -> QueueReported:
    """A list of jobs of these sizes, which came one after another, ``ago_s`` ago, but after all that came before."""
    jobs = tuple(
        QueuedJob(
            f"{queue}/{first + number}/nonce",
            ClaimSpec(kind="ipu", size=size, gcds=2 if size > 8 else 1),
            Timestamp(world.now - ago_s * SECOND + number + 1),
        )
        for number, size in enumerate(sizes)
    )
    return QueueReported(QueueReport(queue, "ipu", jobs, add_seconds(world.now, BELIEVED_S)))


def offer(world: World, queue: str = HERE, pool: PoolName = POD.name) -> dict[int, int]:
    """How many partitions of each size a queue's scheduler may start."""
    return next((dict(one.counts) for one in world.fleet.offers if (one.queue, one.pool) == (queue, pool)), {})


def test_a_queue_in_which_nothing_waits_is_offered_all_that_is_free() -> None:
    world = World(POD, CROSS)
    world.step(told(world))
    assert offer(world) == {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}
    assert {one.pool for one in world.fleet.offers} == {POD.name}, "only pools of its jobs' kind"
    claim = world.ready(4)
    assert offer(world) == {1: 12, 2: 6, 4: 3, 8: 1}
    world.end(claim)
    assert offer(world) == {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}


def test_what_is_told_stands_behind_what_was_started_before_it_was_told() -> None:
    """A job that starts at once is claimed before those submitted with it are told, which came a moment earlier."""
    world = World(POD)
    others = world.ready(8)
    world.step(told(world))
    world.ready(8, owner=f"{HERE}/1/nonce")
    started = world.create(8, owner=f"{HERE}/2/nonce")
    world.step(told(world, 8, 8, ago_s=10, first=3))
    world.end(others)
    assert world.claim(started.id).state is ClaimState.GRANTED
    assert offer(world) == {}, "and nothing is kept for the others"


def test_a_job_that_waits_elsewhere_is_never_granted_and_never_loses_its_place() -> None:
    world = World(POD)
    holder = world.ready(16, gcds=2)
    world.step(told(world, 8))
    later = world.create(8)
    last = world.create(8)
    assert offer(world) == {}
    world.end(holder)
    assert world.claim(later.id).state is ClaimState.GRANTED, "there is room for both"
    assert world.claim(last.id).state is ClaimState.PENDING, "the other half is kept for who came before it"
    assert offer(world) == {1: 8, 2: 4, 4: 2, 8: 1}
    assert explain_wait(world.fleet, world.claim(last.id), world.now).reasons[0].code == "queue.reserved"
    assert len(world.fleet.claims) == 2, "an announced job is nothing that could be left behind"


def test_who_came_first_gets_it_first_whatever_scheduler_it_waits_in() -> None:
    world = World(POD)
    holder = world.ready(16, gcds=2)
    early = world.create(16, gcds=2)
    world.step(told(world, 16))
    world.end(holder)
    assert world.claim(early.id).state is ClaimState.GRANTED
    assert offer(world) == {}


def test_a_claim_that_has_waited_before_has_the_place_of_then() -> None:
    world = World(POD)
    holder = world.ready(16, gcds=2)
    then = world.now
    early = world.create(16, gcds=2)
    back = world.create(16, gcds=2, since=then)
    world.end(holder)
    assert world.claim(back.id).state is ClaimState.GRANTED
    assert world.claim(early.id).state is ClaimState.PENDING
    assert world.create(16, gcds=2, since=add_seconds(world.now, 3600)).arrival > early.arrival, (
        "nobody waits since later"
    )


def test_what_is_kept_for_a_claim_is_not_offered() -> None:
    world = World(POD)
    small = world.ready(4)
    large = world.create(16, gcds=2)
    assert large.state is ClaimState.PENDING
    world.step(told(world, 4))
    assert offer(world) == {}, "twelve are free, all of them kept for the claim of sixteen"
    job = next(world.fleet.queue_reports[HERE].to_claims())
    wait = explain_wait(world.fleet, job, world.now)
    assert wait.reasons[0].code == "queue.kept_for_other"
    world.end(small)
    assert world.claim(large.id).state is ClaimState.GRANTED


def test_what_is_kept_for_a_large_job_elsewhere_is_offered_to_no_small_one() -> None:
    """Law 7: its own scheduler would let them pass for ever."""
    world = World(POD)
    small = world.ready(4)
    world.step(told(world, 16, 4))
    assert offer(world) == {}
    world.end(small)
    assert offer(world)[16] == 1


def test_other_schedulers_jobs_are_called_as_their_users_know_them() -> None:
    """Their subject is an agent's, who is nobody."""
    world = World(POD)
    nonce, uid = "00c0ffee00c0ffee", "0123456789abcdef"
    for number, (owner, called) in enumerate(
        (
            (f"slurm/c1/17/{nonce}/0/{uid}", "job 17 on slurm/c1"),
            ("kubernetes/k1/team/train/uid/0", "team/train on kubernetes/k1"),
            ("user/ann", "(ann)"),
        )
    ):
        holder = world.ready(16, gcds=2, owner=owner)
        waiting = world.create(16, gcds=2)
        why = explain_wait(world.fleet, world.claim(waiting.id), world.now).reasons[0].message
        assert called in why, why
        assert ("ann" in why) is (number == 2), why
        world.end(world.claim(waiting.id))
        world.end(holder)


def test_its_order_is_its_scheduler_s() -> None:
    """The list is in that queue's order; the second came first, and does not pass the first."""
    world = World(POD)
    world.ready(8)
    both = told(world, 8, 8).told
    swapped = replace(both, jobs=tuple(reversed(both.jobs)))
    world.step(QueueReported(swapped))
    first, second = swapped.to_claims()
    assert first.queue_key < second.queue_key
    assert (first.id, first.arrival) == (swapped.jobs[0].owner, swapped.jobs[1].since)
    kept = {r.claim for r in world.fleet.reserved_blocks if not r.until}
    assert kept == {first.id}


def test_a_job_that_its_scheduler_started_keeps_its_place() -> None:
    """Between its start there and its claim here somebody else asked; and others of its queue came before it."""
    world = World(POD)
    holder = world.ready(16, gcds=2)
    world.step(told(world, 8, 8, 8))
    rival = world.create(16, gcds=2)
    world.end(holder)
    assert rival.state is ClaimState.PENDING
    started = world.create(8, owner=f"{HERE}/2/nonce")
    assert started.state is ClaimState.GRANTED
    assert [job.owner for job in world.fleet.queue_reports[HERE].jobs] == [f"{HERE}/1/nonce", f"{HERE}/3/nonce"]
    assert world.claim(rival.id).state is ClaimState.PENDING
    assert offer(world) == {1: 8, 2: 4, 4: 2, 8: 1}, "the first of the list may start"


def test_a_job_that_was_never_announced_stands_before_those_that_wait_there() -> None:
    """It started at once: Slurm had room for it, and it must not wait for the partition of one that has not started."""
    world = World(POD)
    world.ready(8)
    world.step(told(world, 8))
    started = world.create(8, owner=f"{HERE}/9/other")
    assert started.state is ClaimState.GRANTED
    assert started.arrival < world.fleet.queue_reports[HERE].jobs[0].since


def test_a_silent_queue_is_no_longer_reckoned_with() -> None:
    world = World(POD)
    world.step(told(world, 16))
    waiting = world.create(8)
    assert waiting.state is ClaimState.PENDING
    world.now = add_seconds(world.now, BELIEVED_S)
    world.step()
    assert world.claim(waiting.id).state is ClaimState.GRANTED
    assert world.fleet.queue_reports == {}
    assert world.fleet.offers == ()
    assert world.names().count("queue.silent") == 1


def test_a_list_that_says_nothing_new_is_not_told_again() -> None:
    world = World(POD)
    first = told(world, 16)
    world.step(first)
    world.step(first)
    again = replace(first.told, until=add_seconds(first.told.until, 59))
    world.step(QueueReported(again))
    assert world.fleet.queue_reports[HERE].until == first.told.until
    world.step(QueueReported(replace(again, until=add_seconds(first.told.until, 60))))
    assert world.fleet.queue_reports[HERE].until > first.told.until, "it counts for longer"
    assert world.names().count("queue.told") == 1


ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


def by(instance: str, given: QueueReported) -> QueueReported:
    return QueueReported(replace(given.told, instance=instance))


def test_while_one_instance_is_believed_another_is_refused() -> None:
    """Law 3: two schedulers of one name would take each other's claims for what is left of their own."""
    world = World(POD)
    assert world.step(by(ONE, told(world, 4))) == [None]
    since = world.fleet.queue_reports[HERE].since
    assert since == world.now
    (refused,) = world.step(by(OTHER, told(world)))
    assert isinstance(refused, QueueConflictError)
    assert refused.code == "queue.taken"
    believed = world.fleet.queue_reports[HERE]
    assert (believed.instance, len(believed.jobs), believed.since) == (ONE, 1, since), "it stands as it was"
    assert isinstance(world.step(by("", told(world)))[0], QueueConflictError), "who does not say who it is, is another"
    assert world.step(by(OTHER, told(world, queue=THERE))) == [None], "another queue is another matter"
    assert world.step(by(ONE, told(world, 8))) == [None]
    assert world.fleet.queue_reports[HERE].since == since


def test_another_instance_is_believed_once_the_first_is_silent() -> None:
    world = World(POD)
    world.step(by(ONE, told(world, 4)))
    until = world.fleet.queue_reports[HERE].until
    world.now = Timestamp(until - 2 * SECOND)
    assert isinstance(world.step(by(OTHER, told(world, 4)))[0], QueueConflictError)
    assert world.now < until
    assert world.step(by(OTHER, told(world, 4))) == [None], "now nobody is believed"
    believed = world.fleet.queue_reports[HERE]
    assert (believed.instance, believed.since, believed.rival) == (OTHER, world.now, None)
    assert believed.until > until
    assert isinstance(world.step(by(ONE, told(world, 4)))[0], QueueConflictError), "and the first has lost its place"


def test_whoever_says_who_it_is_takes_the_place_of_who_does_not() -> None:
    world = World(POD)
    world.step(told(world, 4))
    assert world.step(by(ONE, told(world, 4))) == [None]
    assert world.fleet.queue_reports[HERE].instance == ONE


def test_who_is_believed_learns_of_its_rival_but_not_at_each_of_its_words() -> None:
    world = World(POD)
    world.step(by(ONE, told(world, 4)))
    assert world.fleet.queue_reports[HERE].rival is None
    for _ in range(CONFLICT_EVENT_S):
        world.step(by(OTHER, told(world)))
    first = world.fleet.queue_reports[HERE].rival
    assert first is not None
    assert world.names().count("queue.contested") == 1
    world.step(by(OTHER, told(world)))
    assert world.fleet.queue_reports[HERE].rival == first + CONFLICT_EVENT_S * SECOND == world.now
    assert world.names().count("queue.contested") == 2
    world.step(by(ONE, told(world, 8)))
    assert world.fleet.queue_reports[HERE].rival == first + CONFLICT_EVENT_S * SECOND, (
        "a new list of its own does not hide it"
    )


@given(
    words=st.lists(
        st.tuples(st.sampled_from([ONE, OTHER, ""]), st.sampled_from([(), (4,), (8, 1)]), st.integers(0, 70)),
        max_size=12,
    )
)
def test_no_two_instances_are_believed_in_the_same_moment(words: list[tuple[str, tuple[int, ...], int]]) -> None:
    """An accepted report was not refused, and is accepted for the promised time."""
    world = World(POD)
    promised: dict[str, Timestamp] = {}
    for instance, sizes, pause_s in words:
        world.now = add_seconds(world.now, pause_s)
        before = world.fleet.queue_reports.get(HERE)
        (reply,) = world.step(by(instance, told(world, *sizes)))
        if isinstance(reply, QueueConflictError):
            assert before is not None
            assert before.instance not in ("", instance)
            assert world.now < promised[before.instance]
        else:
            promised = {instance: world.fleet.queue_reports[HERE].until}
        assert set(promised) == {world.fleet.queue_reports[HERE].instance}


def test_nothing_is_offered_of_a_pool_that_cannot_be_reached() -> None:

    world = World(POD)
    world.step(told(world, 4))
    assert offer(world)
    world.step(PoolReachability(POD.name, "no answer"))
    assert offer(world) == {}


SIZES = st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=5)
WIDE = Pool(PoolName("wide"), "ipu", "simulated", PowerOfTwo(3, 8, 8))


@given(held=SIZES, waiting=SIZES, here=SIZES, there=SIZES, reserve=st.booleans())
def test_no_device_is_offered_twice_and_what_is_offered_fits(
    held: list[int], waiting: list[int], here: list[int], there: list[int], reserve: bool
) -> None:
    """Both schedulers may start all they are offered, in any sizes, at the same moment: each gets its partition."""
    world = World(POD, WIDE, policy=Policy(reserve=reserve))
    for size in held:
        world.create(size, gcds=2 if size > 8 else 1)
    for size in waiting:
        world.create(size, gcds=2 if size > 8 else 1)
    world.step(told(world, *here), told(world, *there, queue=THERE))
    before = {claim.id for claim in world.fleet.claims.values() if claim.state is ClaimState.PENDING}
    for pool in (POD, WIDE):  # partitions of one device: as many as devices are offered
        offered = sum(offer(world, queue, pool.name).get(1, 0) for queue in (HERE, THERE))
        assert offered <= world.fleet.pools[pool.name].free.n_free
    started: list[Claim] = []
    for queue in (HERE, THERE):
        for pool in (POD, WIDE):
            for size, _ in sorted(offer(world, queue, pool.name).items(), reverse=True):
                while offer(world, queue, pool.name).get(size):
                    owner = f"{queue}/{100 + len(started)}/x"
                    claim = world.create(size, owner=owner, pool=pool.name, gcds=2 if size > 8 else 1)
                    assert claim.state is ClaimState.GRANTED, f"{size} was offered to {queue} in {pool.name}"
                    started.append(claim)
    after_all = {claim.id for claim in world.fleet.claims.values() if claim.state is ClaimState.PENDING}
    assert after_all <= before, "who waited has not lost by it"


def test_a_started_job_s_partition_is_made_like_any_other() -> None:
    world = World(POD)
    world.step(told(world, 4))
    claim = world.create(4, owner=f"{HERE}/1/nonce")
    world.says(world.partition(claim), ObservedState.ACTIVE)
    assert world.claim(claim.id).state is ClaimState.READY
    world.end(world.claim(claim.id))
    assert offer(world)[16] == 1
