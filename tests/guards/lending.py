"""Guards of law 6: a project gets its guaranteed share in bounded time, whatever was lent."""

from __future__ import annotations

from tests.guards.guard import Guard

CELLS = "tests/unit/core/test_cells.py::"
RECLAIMS = "tests/unit/core/test_reclaims.py::"
LIMITS = "tests/unit/core/test_limits.py::"
LAW6 = "tests/unit/core/test_law6.py::"
HISTORIES = "tests/unit/core/test_law6_histories.py::"
RUNS = "tests/unit/workloads/test_turn.py::"

LENDING = (
    # -- what is promised fits beside everything firm -----------------------------------------------------------------
    Guard(
        law="6",
        what="who cannot be asked back borrows a block only if every guarantee fits beside it",
        file="core/cells.py",
        old="        return self._fits_beside(block, None)\n",
        new="        return True\n",
        tests=(f"{LAW6}test_what_cannot_be_asked_back_is_not_lent",),
    ),
    Guard(
        law="6",
        what="who cannot be asked back borrows of any devices only what no guarantee needs",
        file="core/cells.py",
        old="        return self._room - len(block) >= self._owed\n",
        new="        return True\n",
        tests=(f"{CELLS}test_a_number_counts_what_is_left_of_it",),
    ),
    Guard(
        law="6",
        what="cells that become empty are owed again",
        file="core/cells.py",
        old="return self._fits_beside(block, None, emptied)",
        new="return self._fits_beside(block, None)",
        tests=(f"{CELLS}test_who_may_have_a_block_when_it_is_empty",),
    ),
    Guard(
        law="6",
        what="a borrower is taken into a cell only where the other cells still fit",
        file="core/cells.py",
        old="if self._firm.is_free(cell) and self._fits_beside(cell, (owner, size)):",
        new="if self._firm.is_free(cell):",
        tests=(f"{CELLS}test_a_borrower_is_in_a_cell_only_where_the_others_still_fit",),
    ),
    # -- who is asked, and when ---------------------------------------------------------------------------------------
    Guard(
        law="6",
        what="nobody is asked to yield before it has run for a while",
        file="core/reclaims.py",
        old="when = max(now, after(tenant.since, policy.min_run_s))",
        new="when = now",
        tests=(
            f"{LAW6}test_nobody_is_asked_before_it_has_run_so_long",
            f"{RECLAIMS}test_nobody_is_asked_before_its_time_if_another_can_be",
        ),
    ),
    Guard(
        law="6",
        what="nobody is asked to yield while its partition is being made",
        file="core/reclaims.py",
        old="when = after(now, max(policy.min_run_s, MAKING_S_MIN))",
        new="when = now",
        tests=(f"{RECLAIMS}test_who_is_being_made_ready_is_asked_later_even_if_nobody_need_run",),
    ),
    Guard(
        law="6",
        what="of borrowers those are asked that lose least work",
        file="core/reclaims.py",
        old="return when, tenant.lost(now) + len(tenant.block) * policy.move_s",
        new="return when, len(tenant.block) * policy.move_s",
        tests=(
            f"{LAW6}test_who_lost_least_work_yields",
            f"{RECLAIMS}test_four_small_claims_that_have_just_saved_lose_less_than_a_large_one_that_did_not",
        ),
    ),
    Guard(
        law="6",
        what="within a guarantee only who said that it can yield makes room for a higher priority",
        file="core/cells.py",
        old="(tenant.preemptible and tenant.priority < priority)",
        new="tenant.priority < priority",
        tests=(f"{CELLS}test_only_lower_priorities_of_the_same_guarantee_make_room",),
    ),
    Guard(
        law="6",
        what="within a guarantee only a higher priority has others make room",
        file="core/cells.py",
        old="(tenant.preemptible and tenant.priority < priority)",
        new="tenant.preemptible",
        tests=(f"{CELLS}test_only_lower_priorities_of_the_same_guarantee_make_room",),
    ),
    Guard(
        law="6",
        what="who is within its guarantee has borrowers yield",
        file="core/queue.py",
        old="return _Got.SERVED if waits and self._take_back(claim, able, ()) else _Got.LATER",
        new="return _Got.LATER",
        tests=(f"{LAW6}test_borrowers_yield_and_keep_their_places",),
    ),
    # -- limits do not keep a project's parts from what they are guaranteed -------------------------------------------
    Guard(
        law="6",
        what="who is kept from its guarantee by a project's limit has borrowers under that yield",
        file="core/queue.py",
        old="return _Got.SERVED if waits and self._take_back(claim, able, owed) else _Got.LATER",
        new="return _Got.LATER",
        tests=(f"{LIMITS}test_a_part_has_its_guarantee_though_others_borrowed_up_to_the_limit",),
    ),
    Guard(
        law="6",
        what="what a limit lacks is asked of borrowers beside those in the way",
        file="core/limits.py",
        old="return tuple((name, devices) for name, devices in found if devices > 0)",
        new="return ()",
        tests=(f"{LIMITS}test_a_part_has_its_guarantee_though_others_borrowed_up_to_the_limit",),
    ),
    Guard(
        law="6",
        what="what is on its way back is asked for only once",
        file="core/limits.py",
        old="held - self._leaving.get(name, 0) + size - most",
        new="held + size - most",
        tests=(f"{LIMITS}test_two_parts_that_are_owed_ask_for_twice_as_much_and_only_once",),
    ),
    Guard(
        law="6",
        what="who is asked to yield under a limit is reckoned with before the next is asked",
        file="core/queue.py",
        old="                self._limits.leave(tenant)\n        until",
        new="                pass\n        until",
        tests=(f"{LIMITS}test_two_parts_that_ask_in_one_turn_have_no_more_yield_than_the_limit_needs",),
    ),
    Guard(
        law="6",
        what="who is within a guarantee borrows only when all others that are have theirs",
        file="core/queue.py",
        old="            if first:\n                continue\n",
        new="",
        tests=(f"{HISTORIES}test_nobody_waits_long_in_a_crowd[31]",),
    ),
    Guard(
        law="6",
        what="nobody has to yield for the limit of somebody else's subject",
        file="core/limits.py",
        old="if size > most or (subject and (key in self._closed or held + size > most)):",
        new="if size > most:",
        tests=(f"{LIMITS}test_a_subject_s_own_limit_is_no_reason_to_ask_others",),
    ),
    Guard(
        law="6",
        what="who cannot be asked back gets what a limit leaves beside the guarantees under it",
        file="core/limits.py",
        old="        return next(found, None)\n",
        new="        return None\n",
        tests=(f"{LIMITS}test_what_cannot_be_asked_back_is_lent_only_beside_the_guarantees_under_a_limit",),
    ),
    Guard(
        law="6",
        what="a guarantee further up is used only beside those under a limit",
        file="core/limits.py",
        old="            if not self._leaves_room(limited, most, devices):\n",
        new="            if False:\n",
        tests=(f"{LIMITS}test_a_guarantee_further_up_is_used_only_beside_those_under_a_limit",),
    ),
    Guard(
        law="6",
        what="under a limit nobody yields who is within a guarantee",
        file="core/reclaims.py",
        old="return tenant.cell is None and tenant.preemptible and not tenant.leaving",
        new="return tenant.preemptible and not tenant.leaving",
        tests=(f"{LIMITS}test_a_part_that_is_within_its_guarantee_yields_to_no_other_under_a_limit",),
    ),
    # -- yielding ends in time, and only then is anything taken -------------------------------------------------------
    Guard(
        law="6",
        what="a claim by hand is taken when its time to yield is over",
        file="core/scheduling.py",
        old="for ident in filter(lambda ident: not in_use(ident), self._overdue()):",
        new="for ident in ():",
        tests=(f"{LAW6}test_a_claim_by_hand_that_does_not_yield_in_time_is_taken",),
    ),
    Guard(
        law="6",
        what="of a job its engine says when it has yielded",
        file="core/scheduling.py",
        old="            and claim.owner.startswith(BY_HAND)\n",
        new="",
        tests=(f"{LAW6}test_a_claim_by_hand_that_does_not_yield_in_time_is_taken",),
    ),
    Guard(
        law="6",
        what="a clock that was set back lets nobody run longer before it is asked",
        file="core/scheduling.py",
        old="                ready_at = self.now\n            if claim.state",
        new="                pass\n            if claim.state",
        tests=(
            f"{LAW6}test_a_clock_that_was_set_back_lets_nobody_run_longer_before_it_is_asked_nor_take_longer_to_yield",
        ),
    ),
    Guard(
        law="6",
        what="a clock that was set back lets nobody take longer to yield",
        file="core/scheduling.py",
        old="                until = latest\n",
        new="                pass\n",
        tests=(
            f"{LAW6}test_a_clock_that_was_set_back_lets_nobody_run_longer_before_it_is_asked_nor_take_longer_to_yield",
        ),
    ),
    Guard(
        law="6",
        what="a run has yielded only when nothing of it runs",
        file="workloads/turn.py",
        old="        else:\n            return []\n        assert claim is not None\n        waiting",
        new='        else:\n            why = "it was asked"\n        assert claim is not None\n        waiting',
        tests=(f"{RUNS}test_nothing_is_given_back_while_processes_may_be_there",),
    ),
    Guard(
        law="6",
        what="a run that ends on its own while it is to yield has ended",
        file="workloads/turn.py",
        old="            if not asked or seen.end.ending not in _STOPPED:\n",
        new="            if not asked:\n",
        tests=(f"{RUNS}test_a_run_that_ends_on_its_own_while_it_is_to_yield_has_ended",),
    ),
    Guard(
        law="6",
        what="a run uses its partition until nothing of it runs",
        file="workloads/turn.py",
        old="run is not None and not run.ended and run.state is not RunState.WAITING",
        new="run is not None and run.state is RunState.RUNNING",
        tests=(f"{RUNS}test_a_run_uses_its_partition_until_nothing_of_it_runs",),
    ),
)
