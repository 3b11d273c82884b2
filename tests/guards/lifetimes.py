"""Guards of how long access keys live: they expire, a rotation multiplies none, and nothing is lost with them."""

from __future__ import annotations

from tests.guards.guard import Guard

KEYS = "tests/unit/controller/test_keys.py::"
SECURITY = "tests/unit/api/test_security.py::"
STORE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
BERTHS = "tests/unit/slurm/test_berths.py::"
BACKUP = "tests/e2e/test_backup.py::"
LIFETIMES = "tests/e2e/test_key_lifetimes.py::"
TWINS = "tests/e2e/test_two_controllers.py::"
ROTATE = "tests/unit/cli/test_rotate.py::"

LIVES = (
    Guard(
        law="10",
        what="an access key is worth nothing once it has expired",
        file="controller/keys.py",
        at="AccessKeyManager.authenticate",
        cut="_check_current(caller, self._clock.now())",
        put="",
        tests=(f"{KEYS}test_a_key_works_until_it_expires_and_not_then",),
    ),
    Guard(
        law="10",
        what="a secret that a rotation replaced works for its grace alone",
        file="controller/keys.py",
        at="AccessKeyManager._prove",
        cut="replace(caller, key_expires_at=key.previous_valid_until, is_key_rotated=True)",
        put="replace(caller, is_key_rotated=True)",
        tests=(
            f"{KEYS}test_the_old_secret_works_for_its_grace_and_never_for_longer_than_it_would_have",
            f"{LIFETIMES}test_a_holder_rotates_over_the_api_and_the_doctor_warns_in_time",
        ),
    ),
    Guard(
        law="10",
        what="a grace is no longer than the secret would have worked",
        file="core/model/access.py",
        at="grace_end",
        cut="min(end, expires_at)",
        put="end",
        tests=(f"{KEYS}test_the_old_secret_works_for_its_grace_and_never_for_longer_than_it_would_have",),
    ),
    Guard(
        law="10",
        what="a secret that was replaced rotates nothing, not by a request that began before either",
        file="controller/keys.py",
        at="AccessKeyManager.rotate",
        cut="own and self._is_repeated_rotation(key, shown)",
        put="own and caller.is_key_rotated",
        tests=(
            f"{KEYS}test_a_replaced_secret_rotates_nothing",
            f"{KEYS}test_nor_one_that_was_replaced_after_its_request_began",
        ),
    ),
    Guard(
        law="10",
        what="a lost answer of a rotation can be requested again until the new secret is used",
        file="controller/keys.py",
        at="AccessKeyManager._prove",
        cut="self._unused_rotations.discard(key.id)",
        put="",
        tests=(f"{KEYS}test_a_replaced_secret_rotates_nothing",),
    ),
    Guard(
        law="10",
        what="a key that was proved is forgotten when it is rotated",
        file="controller/keys.py",
        at="AccessKeyManager.rotate",
        cut="self._invalidate(ident)",
        put="",
        tests=(f"{LIFETIMES}test_a_holder_rotates_over_the_api_and_the_doctor_warns_in_time",),
    ),
    Guard(
        law="10",
        what="only an admin rotates another's key, or changes a key's lifetime",
        file="controller/keys.py",
        at="AccessKeyManager.rotate",
        cut="not own or lifetime_s is not None",
        put="False",
        tests=(f"{KEYS}test_who_may_rotate",),
    ),
    Guard(
        law="10",
        what="one of two concurrent rotations of a key is saved",
        file="store/sql.py",
        at="SqlStore.rotate_access_key",
        cut="access_keys.c.digest == replaced",
        put="access_keys.c.id == key.id",
        tests=(
            f"{STORE}test_an_access_key_gets_a_new_secret_once",
            f"{KEYS}test_of_two_who_rotate_at_once_one_does",
        ),
    ),
    Guard(
        law="10",
        what="a request is held against its key once more when its body is there",
        file="api/request_context.py",
        at="RequestContext.serve",
        cut="await self.identify()",
        put="",
        tests=(f"{SECURITY}test_a_key_that_ends_while_the_body_comes_does_nothing",),
    ),
    Guard(
        law="10",
        what="an expired key renews leases and nothing else",
        file="api/request_context.py",
        at="RequestContext.identify",
        cut="after_expiry=self.operation.after_expiry",
        put="after_expiry=True",
        tests=(f"{SECURITY}test_with_an_expired_key_leases_are_renewed_and_nothing_else",),
    ),
    Guard(
        law="10",
        what="a secret that was replaced renews no lease after its grace",
        file="controller/keys.py",
        at="AccessKeyManager.authenticate",
        cut="after_expiry and not caller.is_key_rotated",
        put="after_expiry",
        tests=(
            f"{KEYS}test_where_it_is_asked_for_an_expired_key_is_taken_and_a_replaced_secret_is_not",
            f"{LIFETIMES}test_a_lease_is_renewed_with_a_key_that_has_expired_but_with_no_revoked_or_replaced_one",
        ),
    ),
    Guard(
        law="10",
        what="a secret that was replaced since a backup stays replaced after a restore",
        file="app/backup.py",
        at="_carry_over_revocations",
        cut='column[1] == "rotated_at"',
        put="False",
        tests=(f"{BACKUP}test_a_secret_replaced_since_the_backup_stays_replaced",),
    ),
    Guard(
        law="10",
        what="a new secret that was written to the credentials file is not shown",
        file="cli/commands/rotate.py",
        at="_rotate_in_file",
        cut="replace(key, secret=None)",
        put="key",
        tests=(f"{ROTATE}test_as_json_the_secret_is_not_shown_either",),
    ),
    Guard(
        law="3",
        what="a lease outlives its owner's key",
        file="wire/operations.py",
        at="",
        cut="after_expiry=True",
        put="after_expiry=False",
        tests=(
            f"{SECURITY}test_with_an_expired_key_leases_are_renewed_and_nothing_else",
            f"{LIFETIMES}test_a_lease_is_renewed_with_a_key_that_has_expired_but_with_no_revoked_or_replaced_one",
        ),
    ),
    Guard(
        law="3",
        what="a controller that stands by hands on what is asked with an expired key",
        file="app/controller.py",
        at="serve",
        cut="partial(keys.authenticate, after_expiry=True)",
        put="keys.authenticate",
        tests=(f"{TWINS}test_keys_are_rotated_and_expire_at_every_address",),
    ),
    Guard(
        law="3",
        what="an agent's key does not expire unless that was asked for",
        file="core/model/access.py",
        at="key_expiry",
        cut="role is Role.AGENT",
        put="False",
        tests=(f"{KEYS}test_how_long_a_key_lives",),
    ),
    Guard(
        law="3",
        what="that the agent's key is refused ends no step of a job",
        file="slurm/host/claim_table.py",
        at="ClaimTable._bind_until",
        cut='not error.retryable and not error.code.startswith("auth.")',
        put="not error.retryable",
        tests=(f"{BERTHS}test_a_job_that_holds_its_partition_waits_for_the_agents_next_key",),
    ),
)
