"""Access keys over the real store: what proves who calls, and what no longer does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.app.clock import SystemClock
from moorings.controller import keys as module
from moorings.controller.keys import SECRET_CHARS_MAX, AccessKeyManager
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import check_owner
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import DAY_S, Timestamp, add_seconds
from moorings.ports.store import Seq, Store
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from tests.databases import open_new


@pytest.fixture
def path(tmp_path):
    return tmp_path / "moorings.db"


@pytest.fixture
def store(path):
    store = open_new(path)
    yield store
    store.close()


@pytest.fixture
def keys(store):
    return AccessKeyManager(store, SystemClock(), b"pepper")


ROOT = Caller("root", Role.ADMIN, "", "rootskey")
NOW = Timestamp(1_800_000_000_000_000)


@dataclass
class Hand:
    """A clock that is moved by hand."""

    at: Timestamp = NOW

    def now(self) -> Timestamp:
        return self.at

    def move(self, seconds: float) -> None:
        self.at = add_seconds(self.at, seconds)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("keys wait for nothing")


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def mortal(store, hand):
    """Keys that live for 90 days if nothing else is asked."""
    return AccessKeyManager(store, hand, b"pepper", 90 * DAY_S)


async def refused(keys: AccessKeyManager, secret: str, code: str = "auth.invalid") -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        await keys.authenticate(secret)
    assert caught.value.code == code
    return caught.value


async def not_rotated(keys: AccessKeyManager, code: str, *given: Any) -> None:
    before = keys._store.access_keys()
    with pytest.raises(MooringsError) as caught:
        keys.rotate(*given)
    assert caught.value.code == code
    assert keys._store.access_keys() == before


def not_made(keys: AccessKeyManager, code: str, subject: str, role: Role, prefix: str | None) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        keys.create(subject, role, prefix, "root")
    assert caught.value.code == code
    assert keys._store.access_keys() == []
    return caught.value


# -- who calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "asked", "prefix"),
    [
        (Role.ADMIN, None, ""),
        (Role.USER, None, "user/ann"),
        (Role.VIEWER, None, "user/ann"),
        (Role.AGENT, "slurm/alpha", "slurm/alpha"),
        (Role.AGENT, "slurm/alpha/", "slurm/alpha"),
        (Role.USER, "", "user/ann"),
    ],
)
async def test_a_key_proves_who_calls_and_for_whom(keys, role, asked, prefix):
    key, secret = keys.create("ann", role, asked, "root")
    assert await keys.authenticate(secret) == Caller("ann", role, prefix, key.id)


async def test_a_key_outlives_the_controller(keys, store, path):
    _, secret = keys.create("ann", Role.USER, None, "root")
    store.close()
    again = open_sqlite(path)
    assert (await AccessKeyManager(again, SystemClock(), b"pepper").authenticate(secret)).subject == "ann"
    again.close()


async def test_without_the_pepper_the_database_proves_nothing(keys, store):
    _, secret = keys.create("ann", Role.USER, None, "root")
    await refused(AccessKeyManager(store, SystemClock(), b"another"), secret)


def test_no_secret_is_in_the_database(keys, store, path):
    _, secret = keys.create("ann", Role.USER, None, "root")
    store.close()
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"ann" in stored
    assert secret.rsplit("_", 1)[1].encode() not in stored


def test_no_two_keys_are_alike(keys):
    made = [keys.create("ann", Role.USER, None, "root") for _ in range(20)]
    assert len({key.id for key, _ in made}) == len({secret for _, secret in made}) == 20
    assert all(secret == f"moor_{key.id}_{secret[-64:]}" for key, secret in made)


async def test_a_secret_that_is_almost_right_is_wrong(keys):
    key, secret = keys.create("ann", Role.USER, None, "root")
    other, _ = keys.create("bob", Role.ADMIN, None, "root")
    almost = [
        secret[:-1],
        secret + "0",
        secret.upper(),
        " " + secret,
        secret + "\n",
        secret.replace("moor", "mooR"),
        secret.replace(key.id, other.id),
        f"moor_{key.id}_",
        f"moor_{key.id}_{key.digest}",
        key.digest,
    ]
    told = {str(await refused(keys, wrong)) for wrong in almost}
    assert told == {"the access key is not valid"}


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "_",
        "__",
        "___",
        "moor",
        "moor__",
        "moor_x_y",
        "\0",
        "ü",
        "\udce9",
        "moor_' OR 1=1 --_x",
        "x" * (SECRET_CHARS_MAX + 1),
        "moor_" + "a" * 1_000_000 + "_b",
    ],
    ids=lambda text: repr(text[:16]),
)
async def test_a_hostile_secret_is_only_not_valid(keys, secret):
    error = await refused(keys, secret)
    assert error.hint
    assert len(str(error)) < 100


# -- revoking ------------------------------------------------------------------------------------------------------


async def test_a_revoked_key_is_worth_nothing_at_once(keys):
    key, secret = keys.create("ann", Role.USER, None, "root")
    await keys.authenticate(secret)
    keys.revoke(key.id, "root")
    await refused(keys, secret)


async def test_revoking_one_key_leaves_the_others(keys):
    gone, _ = keys.create("ann", Role.USER, None, "root")
    _, kept = keys.create("ann", Role.USER, None, "root")
    await keys.authenticate(kept)
    keys.revoke(gone.id, "root")
    assert (await keys.authenticate(kept)).subject == "ann"


@pytest.mark.parametrize("ident", ["nobody", "", "x" * 10_000])
def test_a_key_that_is_not_there_cannot_be_revoked(keys, ident):
    with pytest.raises(MooringsError) as caught:
        keys.revoke(ident, "root")
    assert caught.value.code == "key.unknown"
    assert len(str(caught.value)) < 100


def test_a_key_is_revoked_once(keys):
    key, _ = keys.create("ann", Role.USER, None, "root")
    keys.revoke(key.id, "root")
    with pytest.raises(MooringsError) as caught:
        keys.revoke(key.id, "root")
    assert caught.value.code == "key.unknown"


def test_making_and_revoking_are_told_with_who_did_it(keys, store):
    key, secret = keys.create("ann", Role.USER, None, "root")
    keys.revoke(key.id, "root")
    events = [row.event for row in store.list_events(Seq(0), 100, names=["key.*"])]
    assert [event.name for event in events] == ["key.created", "key.revoked"]
    told = {"key": key.id, "subject": "ann", "role": "user", "by": "root", "expires_at": None}
    assert json.loads(events[0].data) == told
    assert json.loads(events[1].data) == {"key": key.id, "by": "root"}
    assert secret[-64:] not in events[0].data


@dataclass
class SlowStore:
    """The real store, but what was read of a key is told only when the gate opens."""

    store: SqlStore
    read: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def access_key(self, ident: str):
        found = self.store.access_key(ident)
        self.read.set()
        self.gate.wait()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


async def test_a_key_revoked_while_it_is_being_proved_is_not_remembered(store):
    slow = SlowStore(store)
    keys = AccessKeyManager(cast("Store", slow), SystemClock(), b"pepper")
    key, secret = keys.create("ann", Role.USER, None, "root")
    proving = asyncio.create_task(keys.authenticate(secret))
    await asyncio.to_thread(slow.read.wait)
    keys.revoke(key.id, "root")
    slow.gate.set()
    await asyncio.gather(proving, return_exceptions=True)  # it began before, so it may end either way
    await refused(keys, secret)


# -- expiring ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_key_works_until_it_expires_and_not_then(mortal, hand, remembered):
    key, secret = mortal.create("ann", Role.USER, None, "root")
    assert key.expires_at == add_seconds(NOW, 90 * DAY_S)
    hand.move(90 * DAY_S - 1)
    if remembered:
        assert (await mortal.authenticate(secret)).key_expires_at == key.expires_at
    hand.move(1)
    error = await refused(mortal, secret, "auth.expired")
    assert f"moor rotate key {key.id}" in error.hint


async def test_only_who_holds_the_secret_learns_that_it_has_expired(mortal, hand):
    key, secret = mortal.create("ann", Role.USER, None, "root")
    hand.move(91 * DAY_S)
    for wrong in (
        secret[:-1],
        secret + "0",
        f"moor_{key.id}_",
        f"moor_{key.id}_{'0' * 64}",
        f"moor_{key.id}_{key.digest}",
    ):
        assert str(await refused(mortal, wrong)) == "the access key is not valid"
    mortal.revoke(key.id, "root")
    await refused(mortal, secret)


@pytest.mark.parametrize(
    ("role", "asked_s", "lives_s"),
    [
        *((role, None, 90 * DAY_S) for role in (Role.USER, Role.VIEWER, Role.ADMIN)),
        (Role.AGENT, None, None),
        (Role.AGENT, 60.0, 60.0),
        (Role.USER, 0.0, None),
        (Role.USER, 3660 * DAY_S, 3660 * DAY_S),
    ],
)
async def test_how_long_a_key_lives(mortal, role, asked_s, lives_s):
    prefix = "slurm/alpha" if role is Role.AGENT else None
    key, _ = mortal.create("ann", role, prefix, "root", asked_s)
    assert key.expires_at == (None if lives_s is None else add_seconds(NOW, lives_s))
    assert mortal._store.access_key(key.id) == key


@pytest.mark.parametrize("asked_s", [-1.0, 59.0, 3660 * DAY_S + 1, float("inf"), float("nan")])
def test_a_lifetime_has_bounds(mortal, asked_s):
    with pytest.raises(MooringsError) as caught:
        mortal.create("ann", Role.USER, None, "root", asked_s)
    assert caught.value.code == "key.invalid"
    assert "3660 days" in caught.value.hint


async def test_where_it_is_asked_for_an_expired_key_is_taken_and_a_replaced_secret_is_not(mortal, hand):
    key, first = mortal.create("ann", Role.USER, None, "root")
    _, second = mortal.rotate(key.id, ROOT, "", 60)
    hand.move(91 * DAY_S)
    assert (await mortal.authenticate(second, after_expiry=True)).subject == "ann"
    with pytest.raises(MooringsError) as caught:
        await mortal.authenticate(first, after_expiry=True)
    assert caught.value.code == "auth.expired"
    mortal.revoke(key.id, "root")
    with pytest.raises(MooringsError) as caught:
        await mortal.authenticate(second, after_expiry=True)
    assert caught.value.code == "auth.invalid"


# -- rotating ------------------------------------------------------------------------------------------------------


async def test_a_rotated_key_is_the_same_key_and_lives_as_long_again(mortal, hand):
    key, first = mortal.create("ann", Role.USER, None, "root")
    hand.move(80 * DAY_S)
    caller = await mortal.authenticate(first)
    new, second = mortal.rotate(key.id, caller, first)
    assert first != second
    assert (new.id, new.subject, new.role, new.created_at) == (key.id, "ann", Role.USER, key.created_at)
    assert new.expires_at == add_seconds(NOW, 170 * DAY_S)
    assert mortal._store.access_keys() == [new]
    assert await mortal.authenticate(second) == replace(caller, key_expires_at=new.expires_at)
    hand.move(10 * DAY_S)
    third, _ = mortal.rotate(key.id, await mortal.authenticate(second), second)
    assert third.expires_at == add_seconds(NOW, 180 * DAY_S), "never longer than an admin gave it"


@pytest.mark.parametrize(("grace_s", "ends_s"), [(None, DAY_S), (0.0, 0.0), (3600.0, 3600.0), (30 * DAY_S, 10 * DAY_S)])
async def test_the_old_secret_works_for_its_grace_and_never_for_longer_than_it_would_have(
    mortal, hand, grace_s, ends_s
):
    key, first = mortal.create("ann", Role.USER, None, "root")
    hand.move(80 * DAY_S)
    new, second = mortal.rotate(key.id, await mortal.authenticate(first), first, grace_s)
    assert new.previous_valid_until == add_seconds(hand.at, ends_s)
    if ends_s:
        hand.move(ends_s - 1)
        caller = await mortal.authenticate(first)
        assert (caller.is_key_rotated, caller.key_expires_at) == (True, new.previous_valid_until)
        hand.move(1)
    assert "use the new one" in (await refused(mortal, first, "auth.expired")).hint
    await mortal.authenticate(second)


@pytest.mark.parametrize("grace_s", [-1.0, 30 * DAY_S + 1, float("nan"), float("inf")])
async def test_a_grace_has_bounds(mortal, grace_s):
    key, _ = mortal.create("ann", Role.USER, None, "root")
    await not_rotated(mortal, "key.invalid", key.id, ROOT, "", grace_s)


async def test_a_key_that_never_expires_stays_so(mortal):
    key, secret = mortal.create("slurm", Role.AGENT, "slurm/alpha", "root")
    new, second = mortal.rotate(key.id, await mortal.authenticate(secret), secret)
    assert new.expires_at is None
    assert (await mortal.authenticate(second)).owner_prefix == "slurm/alpha"


async def test_a_key_has_two_secrets_at_most(mortal):
    key, first = mortal.create("ann", Role.USER, None, "root")
    _, second = mortal.rotate(key.id, ROOT, "")
    _, third = mortal.rotate(key.id, ROOT, "")
    await refused(mortal, first)
    assert (await mortal.authenticate(second)).is_key_rotated
    assert not (await mortal.authenticate(third)).is_key_rotated
    mortal.revoke(key.id, "root")
    for secret in (first, second, third):
        await refused(mortal, secret)


async def test_a_replaced_secret_rotates_nothing(mortal):
    key, first = mortal.create("ann", Role.USER, None, "root")
    _, second = mortal.rotate(key.id, await mortal.authenticate(first), first)
    await mortal.authenticate(second)
    await not_rotated(mortal, "key.replaced", key.id, await mortal.authenticate(first), first)


async def test_nor_one_that_was_replaced_after_its_request_began(mortal):
    # It may send its body slowly, on a connection that it opened before.
    key, first = mortal.create("ann", Role.USER, None, "root")
    thief = await mortal.authenticate(first)
    _, second = mortal.rotate(key.id, thief, first, 0)
    await mortal.authenticate(second)
    await not_rotated(mortal, "key.replaced", key.id, thief, first)
    _, third = mortal.rotate(key.id, await mortal.authenticate(second), second)
    await not_rotated(mortal, "key.replaced", key.id, thief, first)
    assert (await mortal.authenticate(third)).subject == "ann"


async def test_nor_one_that_an_admin_replaced(mortal):
    key, first = mortal.create("ann", Role.USER, None, "root")
    mortal.rotate(key.id, ROOT, "")
    await not_rotated(mortal, "key.replaced", key.id, await mortal.authenticate(first), first)


async def test_who_lost_the_answer_asks_again_and_the_grace_grows_no_longer(mortal, hand):
    key, first = mortal.create("ann", Role.USER, None, "root")
    lost, second = mortal.rotate(key.id, await mortal.authenticate(first), first, 3600)
    hand.move(60)
    again, third = mortal.rotate(key.id, await mortal.authenticate(first), first, DAY_S)
    assert (again.previous_digest, again.previous_valid_until) == (key.digest, lost.previous_valid_until)
    assert again.expires_at == add_seconds(hand.at, 90 * DAY_S)
    await refused(mortal, second)
    await mortal.authenticate(third)
    await not_rotated(mortal, "key.replaced", key.id, await mortal.authenticate(first), first)


async def test_of_two_who_rotate_at_once_one_does(mortal, store):
    key, _ = mortal.create("ann", Role.USER, None, "root")
    slow = SlowStore(store)
    behind = AccessKeyManager(cast("Store", slow), mortal._clock, b"pepper")
    late = asyncio.create_task(asyncio.to_thread(behind.rotate, key.id, ROOT, ""))
    await asyncio.to_thread(slow.read.wait)
    _, second = mortal.rotate(key.id, ROOT, "")
    slow.gate.set()
    with pytest.raises(MooringsError) as caught:
        await late
    assert caught.value.code == "key.replaced"
    await mortal.authenticate(second)


async def test_who_may_rotate(mortal, hand):
    key, secret = mortal.create("ann", Role.USER, None, "root")
    _, others = mortal.create("bob", Role.USER, None, "root")
    ann, bob = await mortal.authenticate(secret), await mortal.authenticate(others)
    await not_rotated(mortal, "auth.denied", key.id, bob, others)
    await not_rotated(mortal, "auth.denied", key.id, ann, secret, None, 0.0)
    await not_rotated(mortal, "key.unknown", "nobody", ROOT, "")
    hand.move(91 * DAY_S)
    new, fresh = mortal.rotate(key.id, ROOT, "", None, 7 * DAY_S)
    assert new.expires_at == add_seconds(hand.at, 7 * DAY_S)
    await refused(mortal, secret, "auth.expired")
    assert (await mortal.authenticate(fresh)).subject == "ann"
    mortal.revoke(key.id, "root")
    await not_rotated(mortal, "key.unknown", key.id, ROOT, "")


async def test_a_rotation_is_told_without_its_secret(mortal, store, path, caplog):
    caplog.set_level("DEBUG")
    key, first = mortal.create("ann", Role.USER, None, "root")
    new, second = mortal.rotate(key.id, await mortal.authenticate(first), first)
    (event,) = [row.event for row in store.list_events(Seq(0), 100, names=["key.rotated"])]
    told = {"key": key.id, "by": "ann", "expires_at": new.expires_at, "old_until": new.previous_valid_until}
    assert json.loads(event.data) == told
    store.close()
    kept = b"".join(file.read_bytes() for file in path.parent.iterdir()).decode("latin-1")
    kept += "".join(f"{record.__dict__}" for record in caplog.records)
    assert "key.rotated" in kept
    for secret in (first, second):
        assert secret[-64:] not in kept


async def test_rotating_one_key_costs_the_others_no_read(mortal, store):
    gone, _ = mortal.create("ann", Role.USER, None, "root")
    _, kept = mortal.create("bob", Role.USER, None, "root")
    await mortal.authenticate(kept)
    mortal.rotate(gone.id, ROOT, "")
    store.close()
    assert (await mortal.authenticate(kept)).subject == "bob"


# -- the cache -----------------------------------------------------------------------------------------------------


async def test_a_key_that_was_proved_costs_no_read(keys, store):
    _, secret = keys.create("ann", Role.USER, None, "root")
    caller = await keys.authenticate(secret)
    store.close()
    assert await keys.authenticate(secret) == caller


async def test_a_secret_is_never_remembered_as_it_is(keys):
    _, secret = keys.create("ann", Role.USER, None, "root")
    await keys.authenticate(secret)
    assert secret.encode() not in b"".join(keys._callers_by_hash)


async def test_wrong_secrets_are_not_remembered_and_good_ones_not_for_ever(keys, monkeypatch):
    monkeypatch.setattr(module, "CACHE_MAX", 3)
    for _ in range(5):
        await refused(keys, "moor_x_y")
    assert keys._callers_by_hash == {}
    secrets = [keys.create("ann", Role.USER, None, "root")[1] for _ in range(8)]
    for secret in secrets:
        await keys.authenticate(secret)
        assert len(keys._callers_by_hash) <= 3
    assert (await keys.authenticate(secrets[0])).subject == "ann"


# -- what cannot be made -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject", ["", "a b", "a/b", "ü", "a\n", "a\0", "a" * 65, "a" * 100_000, "a:b", "'"], ids=repr
)
def test_a_subject_is_a_name_that_can_be_part_of_an_owner(keys, subject):
    error = not_made(keys, "key.invalid", subject, Role.USER, None)
    assert "64 letters" in error.hint
    assert len(str(error)) < 200


@pytest.mark.parametrize("prefix", [None, ""])
def test_an_agent_names_the_owners_it_acts_for(keys, prefix):
    assert "--owner-prefix" in not_made(keys, "key.invalid", "slurm", Role.AGENT, prefix).hint


@pytest.mark.parametrize("prefix", ["slurm", "bank/x", "/", "slurm//x", "slurm/a b"])
def test_an_agents_prefix_is_an_owner(keys, prefix):
    not_made(keys, "owner.invalid", "slurm", Role.AGENT, prefix)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.USER, Role.VIEWER])
def test_no_other_role_chooses_its_owners(keys, role):
    not_made(keys, "key.invalid", "ann", role, "user/bob")


def test_every_subject_that_is_let_through_has_an_owner_of_its_own(tmp_path):
    store = open_new(tmp_path / "many.db")
    keys = AccessKeyManager(store, SystemClock(), b"pepper")

    @given(st.text("abcXYZ019._@+- /", max_size=8))
    def is_an_owner(subject):
        with contextlib.suppress(MooringsError):
            key, _ = keys.create(subject, Role.USER, None, "root")
            assert check_owner(key.owner_prefix) == f"user/{subject}"
            assert subject.count("/") == 0

    is_an_owner()
    store.close()
