"""Guards of laws 1 and 2, and the fencing: a device is used once, and nothing of it leaks."""

from __future__ import annotations

from tests.guards.guard import FENCING, Guard

TURN = "tests/unit/core/test_turn.py::"
PLACEMENT = "tests/unit/core/test_placement.py::"
RECONCILE = "tests/unit/core/test_reconcile.py::"
LOOP = "tests/unit/controller/test_loop.py::"
HARDWARE = "tests/unit/controller/test_hardware.py::"
RUNNING = "tests/unit/controller/test_running.py::"
RUNS = "tests/unit/workloads/test_turn.py::"
STORE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
DRIVER = "tests/contract/test_driver_simulated.py::TestInstantIpus::"
CONTROLLER = "tests/e2e/test_controller.py::"

FIRST_TABLES = "store/migrations/versions/0001_first_tables.py"

SHARING = (
    # -- law 1: a device is in at most one live partition -----------------------------------------------------------
    Guard(
        law="1",
        what="a device is a primary key of the database",
        file=FIRST_TABLES,
        old='sa.PrimaryKeyConstraint("pool", "device", name="pk_partition_devices")',
        new='sa.PrimaryKeyConstraint("pool", "device", "partition", name="pk_partition_devices")',
        tests=(
            f"{STORE}test_a_device_cannot_be_taken_by_a_later_commit",
            f"{STORE}test_a_device_cannot_be_taken_twice_by_one_commit",
        ),
    ),
    Guard(
        law="1",
        what="a partition that is saved takes its devices",
        file="store/saving.py",
        old="list(chain.from_iterable(map(rows.partition_device_rows, made)))",
        new="[]",
        tests=(f"{STORE}test_a_device_cannot_be_taken_by_a_later_commit",),
    ),
    Guard(
        law="1",
        what="only a free block can be taken",
        file="core/placement.py",
        old='assert higher is not None, f"block {block} is not free"',
        new="higher = level if higher is None else higher",
        tests=(f"{PLACEMENT}test_a_block_that_is_not_free_cannot_be_taken_nor_a_free_one_released",),
    ),
    Guard(
        law="1",
        what="what is free cannot be given back once more",
        file="core/placement.py",
        old='        assert self._around(start, level) is None, f"block {block} is free already"\n',
        new="",
        tests=(f"{PLACEMENT}test_a_block_that_is_not_free_cannot_be_taken_nor_a_free_one_released",),
    ),
    Guard(
        law="1",
        what="what a grant takes is taken from the free map",
        file="core/fleet.py",
        old="                state.free.take(block)\n\n    def _holds",
        new="                pass\n\n    def _holds",
        tests=(f"{TURN}test_a_claim_from_wish_to_release",),
    ),
    Guard(
        law="1",
        what="what a turn grants, the same turn grants to nobody else",
        file="core/queue.py",
        old="            self.trials[name].take(block)\n",
        new="",
        tests=(f"{TURN}test_priority_then_arrival",),
    ),
    Guard(
        law="1",
        what="a device that is out of service is not given back with its block",
        file="core/fleet.py",
        old="kept = {index for index in block if index in state.out or any(",
        new="kept = {index for index in block if any(",
        tests=(f"{TURN}test_a_partition_that_cannot_be_removed_drains_its_devices_and_lets_the_claim_go",),
    ),
    Guard(
        law="1",
        what="a device that a foreign partition uses is not given back with ours",
        file="core/fleet.py",
        old=" or any(index in other for other in state.foreign.values())}",
        new="}",
        tests=(f"{TURN}test_ours_gives_way_to_a_foreign_partition_that_was_there_first",),
    ),
    Guard(
        law="1",
        what="a device that is taken out of service is granted to nobody in the same turn",
        file="core/overlay.py",
        old=(
            "        if device.state is not DeviceState.IN_SERVICE:\n"
            "            if state.free.is_free(alone):\n"
            "                on_trial.take(alone)\n"
        ),
        new="        if device.state is not DeviceState.IN_SERVICE:\n            pass\n",
        tests=(f"{TURN}test_a_device_drained_in_a_turn_is_granted_to_nobody_in_it",),
    ),
    Guard(
        law="1",
        what="a device that is resumed under a partition stays the partition's",
        file="core/fleet.py",
        old=" and not self.holder(device.pool, device.index):",
        new=":",
        tests=(f"{TURN}test_a_device_that_is_resumed_under_a_partition_stays_its",),
    ),
    Guard(
        law="1",
        what="devices in partitions that others made are given to nobody",
        file="core/demands.py",
        old="            if free.is_free(alone):\n                on_trial.take(alone)\n        for partition in",
        new="        for partition in",
        tests=(f"{TURN}test_devices_in_foreign_partitions_are_not_given_out_in_the_turn_that_sees_them",),
    ),
    Guard(
        law="1",
        what="ours gives way to a partition that was there first",
        file="core/demands.py",
        old="            self._step_partition(partition, PartitionEvent.REMOVE, why)\n            claim = self._holder",
        new="            continue\n            claim = self._holder",
        tests=(f"{TURN}test_ours_gives_way_to_a_foreign_partition_that_was_there_first",),
    ),
    Guard(
        law="1",
        what="the simulated vendor puts no device into two partitions",
        file="drivers/simulated/vendor.py",
        old="        if holder is not None:\n",
        new="        if False:\n",
        tests=(f"{DRIVER}test_a_device_is_in_one_partition_only",),
    ),
    # -- law 2: a partition exists if and only if an unreleased claim holds it --------------------------------------
    Guard(
        law="2",
        what="a release orders the partition's removal",
        file="core/demands.py",
        old=(
            "        if partition.state is not PartitionState.REMOVING:\n"
            "            self._step_partition(partition, PartitionEvent.REMOVE, given.why)\n"
        ),
        new="",
        tests=(f"{TURN}test_a_claim_from_wish_to_release",),
    ),
    Guard(
        law="2",
        what="a claim is released only when its partition is gone",
        file="core/demands.py",
        old="if partition is None:\n            return self._freed(claim)\n        if partition.state is not",
        new="if partition is not None:\n            return self._freed(claim)\n        if partition.state is not",
        tests=(f"{TURN}test_a_claim_from_wish_to_release",),
    ),
    Guard(
        law="2",
        what="a partition whose order the driver rejected is removed all the same",
        file="core/answers.py",
        old='            self._step_partition(partition, PartitionEvent.REMOVE, f"rejected: {answer.detail}")\n',
        new="",
        tests=(f"{TURN}test_a_rejected_claim_fails_with_the_driver_s_words_and_leaves_nothing",),
    ),
    Guard(
        law="2",
        what="a broken partition is removed",
        file="core/answers.py",
        old="        self._step_partition(partition, PartitionEvent.REMOVE, detail)\n",
        new="",
        tests=(f"{TURN}test_what_is_left_of_a_broken_block_is_removed",),
    ),
    Guard(
        law="2",
        what="absent in a listing does not end a removal: only the driver's answer to it does",
        file="core/answers.py",
        old='elif answer.seen is Seen.ABSENT and order == "remove":  # a listing may be bad',
        new="elif answer.seen is Seen.ABSENT:",
        tests=(f"{TURN}test_a_word_on_a_state_that_has_passed_changes_nothing",),
    ),
    Guard(
        law="2",
        what="a removal that failed is tried again",
        file="core/demands.py",
        old='return self._step_partition(partition, PartitionEvent.REMOVE, "removal is tried again")',
        new="return partition",
        tests=(f"{TURN}test_a_partition_that_cannot_be_removed_drains_its_devices_and_lets_the_claim_go",),
    ),
    Guard(
        law="2",
        what="failed removals are looked for",
        file="controller/hardware.py",
        old="                    self._loop.tell(RetryRemoval(partition.id))\n",
        new="                    pass\n",
        tests=(f"{HARDWARE}test_a_removal_that_failed_is_tried_again_until_nothing_is_left",),
    ),
    Guard(
        law="2",
        what="an order that could not be given is given again",
        file="controller/hardware.py",
        old="if answer.verdict is not Verdict.UNAVAILABLE:\n                self._ordered",
        new="if True:\n                self._ordered",
        tests=(f"{HARDWARE}test_an_order_that_was_lost_is_given_again",),
    ),
    Guard(
        law="2",
        what="a removal that the driver forgot is ordered again",
        file="core/reconcile.py",
        old=(
            "            if times >= LISTINGS_NEEDED:\n                self.again.append(partition.id)\n\n    def _told"
        ),
        new="\n    def _told",
        tests=(f"{RECONCILE}test_a_removal_that_the_driver_forgot_is_ordered_again",),
    ),
    Guard(
        law="2",
        what="a removal that a listing confirms is asked of the driver once more",
        file="core/reconcile.py",
        old="self.again.append(partition.id)  # the driver's own answer to another removal is what counts\n",
        new="pass\n",
        tests=(f"{RECONCILE}test_a_removal_is_confirmed_by_the_driver_itself_not_by_a_listing",),
    ),
    Guard(
        law="2",
        what="partitions with our mark that nobody holds are found",
        file="core/reconcile.py",
        old="for mark in by_mark if mark not in held}",
        new="for mark in ()}",
        tests=(f"{RECONCILE}test_a_stray_with_our_mark_is_removed_after_three_listings",),
    ),
    Guard(
        law="2",
        what="partitions with our mark that nobody holds are removed",
        file="controller/hardware.py",
        old="for stray in judged.strays:",
        new="for stray in ():",
        tests=(f"{HARDWARE}test_a_stray_is_removed_once_the_database_agrees_that_we_lead",),
    ),
    Guard(
        law="2",
        what="memory is read again after a save that failed or whose answer was lost",
        file="controller/loop.py",
        old="                self._stale = True\n                self.problem",
        new="                self.problem",
        tests=(
            f"{LOOP}test_a_lost_answer_is_no_lost_claim",
            f"{LOOP}test_after_a_conflict_the_turn_decides_on_what_the_other_saved",
        ),
    ),
    Guard(
        law="2",
        what="memory changes only after the commit",
        file="controller/loop.py",
        old=(
            "            if outcome.changes:\n"
            "                self.seq = await self._in_writer(self.store.commit, self._epoch, outcome.changes)\n"
        ),
        new=(
            "            if outcome.changes:\n"
            "                self._announce(Change([one for one, _ in outcome.changes.claims], [], []))\n"
            "                self.seq = await self._in_writer(self.store.commit, self._epoch, outcome.changes)\n"
        ),
        tests=(f"{LOOP}test_listeners_hear_of_what_was_saved_and_only_of_that",),
    ),
    Guard(
        law="2",
        what="a caller is answered only after the commit",
        file="controller/loop.py",
        old="            if outcome.changes:\n                self.seq = await",
        new=(
            "            for letter, reply in zip(letters, outcome.replies, strict=True):\n"
            "                _answer(letter, reply)\n"
            "            if outcome.changes:\n                self.seq = await"
        ),
        tests=(f"{LOOP}test_what_could_not_be_saved_is_told_and_forgotten",),
    ),
    Guard(
        law="2",
        what="a run is saved with its claim, in one transaction",
        file="controller/turns.py",
        old="runs=[(run, Save(expected)) for run, expected in run_turn.changed.values()],",
        new="runs=[],",
        tests=(f"{LOOP}test_a_run_and_its_claim_are_saved_at_once",),
    ),
    Guard(
        law="2",
        what="a run whose claim is refused is not made",
        file="controller/turns.py",
        old="            run_turn.forget(given.id)\n",
        new="",
        tests=(f"{LOOP}test_a_run_whose_claim_is_refused_leaves_nothing",),
    ),
    Guard(
        law="2",
        what="a run that ends gives its claim back",
        file="workloads/turn.py",
        old='        return [ReleaseClaim(run.claim, f"run {run.id} {ended.state}")]\n',
        new="        return []\n",
        tests=(f"{RUNS}test_a_run_ends_with_its_record_and_gives_its_partition_back",),
    ),
    Guard(
        law="2",
        what="a claim whose owner is alive in no listing is an orphan",
        file="core/reconcile.py",
        old="    return tuple(sorted(claim.id for claim in claims if",
        new="    return tuple(sorted(claim.id for claim in () if",
        tests=(f"{RECONCILE}test_a_claim_in_none_of_three_listings_is_an_orphan",),
    ),
    Guard(
        law="2",
        what="orphaned claims are released",
        file="controller/running.py",
        old='                self._loop.tell(ReleaseClaim(claim, "no run holds it"))\n',
        new="",
        tests=(f"{RUNNING}test_a_claim_of_a_run_that_nobody_knows_is_released",),
    ),
    # -- fencing: of several controllers one decides ----------------------------------------------------------------
    Guard(
        law=FENCING,
        what="every commit compares the epoch",
        file="store/sql.py",
        old="    if epoch is None:\n",
        new="    if True:\n",
        tests=(
            f"{STORE}test_an_earlier_leader_saves_nothing_more",
            f"{STORE}test_nobody_saves_before_somebody_leads",
        ),
    ),
    Guard(
        law=FENCING,
        what="a new leader has a new epoch",
        file="store/sql.py",
        old="raised = installation.c.epoch + 1",
        new="raised = installation.c.epoch + 0",
        tests=(f"{STORE}test_an_earlier_leader_saves_nothing_more",),
    ),
    Guard(
        law=FENCING,
        what="an update compares the version it replaces",
        file="store/saving.py",
        old="        if n_changed != len(changed):\n",
        new="        if False:\n",
        tests=(
            f"{STORE}test_a_save_of_another_version_is_a_conflict",
            f"{STORE}test_a_save_of_what_is_not_there_is_a_conflict",
        ),
    ),
    Guard(
        law=FENCING,
        what="a removal compares the version it removes",
        file="store/saving.py",
        old="        if self._remove.run(connection, guards) != len(guards):\n",
        new="        if self._remove.run(connection, guards) < 0:\n",
        tests=(
            f"{STORE}test_a_removal_of_another_version_is_a_conflict",
            f"{STORE}test_a_removal_of_what_is_not_there_is_a_conflict",
        ),
    ),
    Guard(
        law=FENCING,
        what="an update changes nothing of what identifies a record",
        file="store/saving.py",
        old=".where(*(column == value for column, value in zip(kept, same, strict=True)))",
        new=".where(*(c == v for c, v in zip(kept, same, strict=True) if c.name in ('id', 'version')))",
        tests=(f"{STORE}test_what_identifies_a_record_never_changes",),
    ),
    Guard(
        law=FENCING,
        what="a controller that was replaced ends",
        file="controller/loop.py",
        old='                if error.code == "store.fenced":\n                    raise\n',
        new="",
        tests=(f"{LOOP}test_a_controller_that_was_replaced_reads_nothing_again",),
    ),
    Guard(
        law=FENCING,
        what="a controller that was replaced removes no partition of the new leader as a stray",
        file="controller/hardware.py",
        old="            await self._loop.post(StraySeen(pool, stray.name))\n",
        new="",
        tests=(f"{HARDWARE}test_a_replaced_controller_removes_nothing_of_the_new_leader_s",),
    ),
    Guard(
        law=FENCING,
        what="a controller that was replaced resets no partition of the new leader",
        file="controller/hardware.py",
        old="                    await self._loop.confirm()\n",
        new="                    pass\n",
        tests=(f"{HARDWARE}test_a_replaced_controller_resets_nothing",),
    ),
    Guard(
        law=FENCING,
        what="to confirm that one leads is to ask the database",
        file="controller/loop.py",
        old="        await self._in_writer(self.store.commit, self._epoch, Changes())\n",
        new="        await self._in_writer(self.store.ping)\n",
        tests=(f"{LOOP}test_who_was_replaced_cannot_confirm_that_it_leads",),
    ),
    Guard(
        law=FENCING,
        what="a loop that was closed takes nothing more",
        file="controller/loop.py",
        old="        if self._closed:\n            raise _going()\n",
        new="",
        tests=(f"{LOOP}test_who_comes_after_the_end_is_told",),
    ),
    Guard(
        law=FENCING,
        what="who still waits when the loop is closed is told",
        file="controller/loop.py",
        old="        for letter in (*self._under_way, *self._mail):\n",
        new="        for letter in ():\n",
        tests=(f"{LOOP}test_who_waits_in_vain_is_told_at_the_end",),
    ),
    Guard(
        law=FENCING,
        what="whose turn is under way when the loop is closed is told",
        file="controller/loop.py",
        old="        for letter in (*self._under_way, *self._mail):\n",
        new="        for letter in self._mail:\n",
        tests=(f"{LOOP}test_whose_turn_is_under_way_at_the_end_is_told",),
    ),
    Guard(
        law=FENCING,
        what="that a claim has ended is believed only by who leads",
        file="controller/service.py",
        old="        await self._loop.confirm()\n        return await self._find_claim(claim.id)\n",
        new="        return await self._find_claim(claim.id)\n",
        tests=(f"{CONTROLLER}test_a_replaced_controller_does_not_say_that_a_claim_is_released",),
    ),
    Guard(
        law=FENCING,
        what="no run starts under an epoch that has passed",
        file="local/fence.py",
        old="            if epoch < newest:\n",
        new="            if False:\n",
        tests=(
            "tests/unit/local/test_fence.py::test_earlier_leaders_are_stopped_and_later_ones_pass",
            "tests/contract/test_engine_local.py::TestLocalEngine::test_a_leader_that_was_replaced_starts_nothing",
        ),
    ),
    Guard(
        law=FENCING,
        what="an engine's epoch is never lowered",
        file="local/fence.py",
        old="            if epoch > _epoch_in(file):\n",
        new="            if True:\n",
        tests=("tests/unit/local/test_fence.py::test_it_is_never_lowered",),
    ),
    Guard(
        law=FENCING,
        what="a leader starts no run before the engine knows that it leads",
        file="controller/running.py",
        old="        await self._fenced[engine.name].wait()\n",
        new="",
        tests=(f"{RUNNING}test_no_run_starts_before_the_engine_knows_who_leads",),
    ),
)
