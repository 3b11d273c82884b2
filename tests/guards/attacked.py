"""Guards of several laws that broke, or that no test missed, when the controller was attacked from outside."""

from __future__ import annotations

from tests.guards.guard import FENCING, Guard

TURN = "tests/unit/core/test_turn.py::"
HOLDS = "tests/unit/core/test_holds.py::"
PRIORITIES = "tests/unit/core/test_priorities.py::"
LOOP = "tests/unit/controller/test_loop.py::"
HARDWARE = "tests/unit/controller/test_hardware.py::"
TURNED_BACK = "tests/unit/app/test_turned_back.py::"
WATER = "tests/unit/app/test_high_water.py::"
SQLITE = "tests/contract/test_store_sqlite.py::"
STORE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
OUTPUT = "tests/unit/local/test_output.py::"
ENGINE = "tests/unit/local/test_engine.py::"
MACHINES = "tests/contract/test_driver_vipu_two_machines.py::"
RUNS = "tests/unit/workloads/test_turn.py::"

ATTACKED = (
    Guard(
        law="2",
        what="no partition is made before it is noted how far the database had come",
        file="controller/hardware.py",
        at="Hardware._ask",
        cut='order in ("create", "reset") and self._note is not None',
        put="False",
        tests=(f"{HARDWARE}test_no_partition_is_made_before_the_high_water_mark_is_noted",),
    ),
    Guard(
        law="3",
        what="a database that went back is made ready before anybody leads from it",
        file="app/turned_back.py",
        at="_take_up",
        cut="not known.is_reached_by(at) or _unready(folder)",
        put="False",
        tests=(f"{TURNED_BACK}test_one_that_went_back_is_made_ready_and_nothing_is_removed",),
    ),
    Guard(
        law="3",
        what="who died while a database was made ready does it again",
        file="app/turned_back.py",
        at="_take_up",
        cut="not known.is_reached_by(at) or _unready(folder)",
        put="not known.is_reached_by(at)",
        tests=(f"{TURNED_BACK}test_what_died_while_it_made_it_ready_does_it_again",),
    ),
    Guard(
        law="3",
        what="a folder that is new to a database removes nothing that its records do not know",
        file="app/turned_back.py",
        at="_take_up",
        cut="not ours and why_spared(folder) is None",
        put="False",
        tests=(f"{TURNED_BACK}test_a_folder_without_a_mark_spares_what_it_does_not_know",),
    ),
    Guard(
        law="3",
        what="a partition that another machine ordered is known as ours",
        file="controller/hardware.py",
        at="Hardware._follow",
        cut="change.reloaded",
        put="False",
        tests=(f"{HARDWARE}test_drivers_are_told_what_the_database_holds",),
    ),
    Guard(
        law="3",
        what="a name that is used again is whose the database says, not this machine's list",
        file="drivers/vipu/sight.py",
        at="ordered_elsewhere",
        cut="record is not None and record.order.mark == order.mark",
        put="record is not None",
        tests=(f"{MACHINES}test_a_name_that_is_used_again_is_whose_the_database_says",),
    ),
    Guard(
        law="2",
        what="one on other IPUs than the database holds is a stranger's",
        file="drivers/vipu/sight.py",
        at="ordered_elsewhere",
        cut="sight.record is not None and not sight.misplaced",
        put="sight.record is not None",
        tests=(f"{MACHINES}test_one_on_other_ipus_is_left_alone",),
    ),
    Guard(
        law="3",
        what="the high-water mark only rises",
        file="app/high_water.py",
        at="HighWaterMark._write",
        cut="_higher(before, at) or at",
        put="at",
        tests=(f"{WATER}test_it_only_rises_whoever_writes",),
    ),
    Guard(
        law=FENCING,
        what="nothing is saved in a database that has come less far than its leader knows",
        file="store/sql.py",
        at="",
        cut='installation.c.seq >= bindparam("after")',
        put='installation.c.seq >= 0 * bindparam("after")',
        tests=(f"{STORE}test_nobody_saves_who_knows_of_more_than_the_database",),
    ),
    Guard(
        law=FENCING,
        what="nothing is read from a database that has come less far than its leader knows",
        file="controller/loop.py",
        at="Loop.load",
        cut="saved.seq < self.seq",
        put="False",
        tests=(f"{LOOP}test_a_database_that_went_back_under_it_ends_it",),
    ),
    Guard(
        law="2",
        what="nothing is saved in a file that nobody will find",
        file="store/sqlite.py",
        at="SqliteDatabase.begin_write",
        cut="self.check_place()",
        put="",
        tests=(f"{SQLITE}test_a_file_that_was_removed_or_replaced_takes_no_save",),
    ),
    Guard(
        law="2",
        what="an idle controller sees that its database's file is gone",
        file="controller/loop.py",
        at="Loop.serve",
        cut="not self._under_way",
        put="False",
        tests=(f"{LOOP}test_a_database_whose_file_is_gone_ends_it_while_nobody_asks",),
    ),
    Guard(
        law="7",
        what="nobody asks for a higher priority than his role and project may",
        file="core/priorities.py",
        at="check_priority",
        cut="most is not None and asked > most",
        put="False",
        tests=(f"{PRIORITIES}test_nobody_goes_before_all_others_who_may_not",),
    ),
    Guard(
        law="7",
        what="nor is the priority of what waits raised above it",
        file="core/demands.py",
        at="Demands.prioritise",
        cut="given.priority > claim.spec.priority",
        put="False",
        tests=(f"{PRIORITIES}test_what_waits_with_an_old_priority_keeps_it_and_may_only_be_lowered",),
    ),
    Guard(
        law="10",
        what="of two who begin a workflow at once it is one's",
        file="workloads/turn.py",
        at="RunTurn._create",
        cut="self._check_workflow(given)",
        put="",
        tests=(f"{RUNS}test_of_two_who_begin_a_workflow_in_one_turn_it_is_his_who_came_first",),
    ),
    Guard(
        law="2",
        what="the letters of a turn that failed are tried alone",
        file="controller/loop.py",
        at="Loop._take_mail",
        cut="1 if self._mail and self._mail[0].tries else INPUTS_A_TURN_MAX",
        put="INPUTS_A_TURN_MAX",
        tests=(f"{LOOP}test_a_fault_that_one_demand_brings_is_that_one_s_alone",),
    ),
    Guard(
        law="2",
        what="a job's output does not fill the disk for all",
        file="local/output.py",
        at="Output._look_at",
        cut="os.ftruncate(file, self._most + len(told))",
        put="",
        tests=(f"{OUTPUT}test_what_is_beyond_the_limit_is_cut_and_a_line_says_so",),
    ),
    Guard(
        law="2",
        what="a wish to stop that cannot be written down is told to the supervisor",
        file="local/engine.py",
        at="_cancel",
        cut="written and not found.damage",
        put="not found.damage",
        tests=(f"{ENGINE}test_a_run_is_stopped_though_the_wish_cannot_be_written_down",),
    ),
    Guard(
        law="1",
        what="ours gives way to a partition of others that took its name",
        file="core/demands.py",
        at="Demands._occupied",
        cut="partition.block.overlaps(block) or partition.name == name",
        put="partition.block.overlaps(block)",
        tests=(f"{TURN}test_ours_gives_way_to_a_foreign_partition_that_took_its_name",),
    ),
    Guard(
        law="3",
        what="a claim that is released has no lease",
        file="core/demands.py",
        at="Demands.renew",
        cut="claim is None or claim.spec.lease_s is None or claim.ended or claim.state is ClaimState.RELEASING",
        put="claim is None or claim.spec.lease_s is None or claim.ended",
        tests=(f"{TURN}test_a_claim_that_is_released_has_no_lease_to_renew",),
    ),
    Guard(
        law="7",
        what="who was asked to yield by a new time is expected by then",
        file="core/fleet.py",
        at="PoolState.hold",
        cut="self.overdue.discard(ident)",
        put="",
        tests=(f"{HOLDS}test_an_end_that_passed_in_vain_is_expected_no_more_until_there_is_a_new_one",),
    ),
    Guard(
        law="7",
        what="a partition that has gone is expected by nobody",
        file="core/fleet.py",
        at="Fleet._drop",
        cut="state.overdue.discard(partition.id)",
        put="",
        tests=(f"{HOLDS}test_what_has_gone_is_expected_by_nobody_when_the_clock_is_set_back",),
    ),
)
