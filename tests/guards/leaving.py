"""Guards of what leaves the database: nothing without an archive, and never a key."""

from __future__ import annotations

from tests.guards.guard import FENCING, Guard

STORE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
RETENTION = "tests/unit/controller/test_retention.py::"
WHOLE = "tests/e2e/test_retention.py::"

LEAVING = (
    Guard(
        law="5",
        what="a key whose record has left is still a used one",
        file="store/sql.py",
        at="SqlStore.find_idempotency_records",
        cut="used |= history.find_spent_keys(connection, [pair for pair in pairs if pair not in used])",
        put="",
        tests=(
            f"{STORE}test_a_key_stays_used_when_what_it_made_has_left",
            f"{RETENTION}test_a_key_whose_claim_has_left_makes_no_second_one",
        ),
    ),
    Guard(
        law="5",
        what="when a record leaves, its key does not leave with it",
        file="store/history.py",
        at="_spend",
        cut="connection.execute(insert(spent_keys), values)",
        put="",
        tests=(
            f"{STORE}test_a_key_stays_used_when_what_it_made_has_left",
            f"{RETENTION}test_a_key_whose_claim_has_left_makes_no_second_one",
        ),
    ),
    Guard(
        law="5",
        what="a repeated key of an archived record is refused, whatever the request",
        file="controller/loop.py",
        at="TurnLoop._repeated_reply",
        cut="not use.digest",
        put="False",
        tests=(f"{RETENTION}test_a_key_whose_claim_has_left_makes_no_second_one",),
    ),
    Guard(
        law="9",
        what="an archive ends with a turn",
        file="store/history.py",
        at="next_archive_range",
        cut="outbox.c.name == TURN",
        put='outbox.c.name != ""',
        tests=(
            f"{STORE}test_a_stretch_is_the_oldest_events_up_to_the_end_of_a_turn",
            f"{RETENTION}test_archives_and_database_are_one_log_byte_for_byte",
        ),
    ),
    Guard(
        law="9",
        what="only the oldest events leave, so that what is left is one log with the archives",
        file="store/history.py",
        at="delete_archived_events",
        cut="archive.first != oldest or archive.first <= last_archived_seq(connection)",
        put="False",
        tests=(f"{STORE}test_only_the_oldest_events_leave_and_only_once",),
    ),
    Guard(
        law="9",
        what="no archive is written over by another one",
        file="store/archive.py",
        at="ArchiveFolder._write",
        cut="path.exists() and _digest(path) != digest",
        put="False",
        tests=(f"{RETENTION}test_an_archive_is_never_written_over_by_another_one",),
    ),
    Guard(
        law="9",
        what="a watcher is never led across a gap in the log",
        file="controller/service.py",
        at="Controller.list_events",
        cut="LOG_START < after < self._loop.archived",
        put="False",
        tests=(
            f"{WHOLE}test_who_asks_after_history_has_left_is_told_the_truth",
            f"{WHOLE}test_a_page_that_retention_overtook_is_not_gone_on_from",
        ),
    ),
    Guard(
        law=FENCING,
        what="a replaced leader removes no events",
        file="store/sql.py",
        at="SqlStore.delete_archived_events",
        cut="_allocate_seq(connection, 0, LogPosition(after, epoch))",
        put="",
        tests=(
            f"{STORE}test_who_leads_no_longer_removes_nothing",
            f"{STORE}test_who_knows_of_more_than_the_database_removes_nothing",
        ),
    ),
    Guard(
        law=FENCING,
        what="nor any records",
        file="store/sql.py",
        at="SqlStore.delete_ended",
        cut="_allocate_seq(connection, 0, LogPosition(after, epoch))",
        put="",
        tests=(f"{STORE}test_who_leads_no_longer_removes_nothing",),
    ),
    Guard(
        law="2",
        what="a run does not leave before its claim has ended",
        file="store/history.py",
        at="list_ended",
        cut="or_(runs.c.claim.is_(None), runs.c.within == 1, ~own)",
        put="or_(runs.c.claim.is_(None), runs.c.within == 1, True)",
        tests=(f"{STORE}test_records_leave_that_ended_long_ago_and_are_referred_to_by_nothing",),
    ),
)
