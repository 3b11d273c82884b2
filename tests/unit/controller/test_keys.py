"""Access keys over the real store: what proves who calls, and what no longer does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.app.clock import SystemClock
from moorings.controller import keys as module
from moorings.controller.keys import SECRET_CHARS_MAX, Keys
from moorings.core.access import Caller, Role
from moorings.core.claims import check_owner
from moorings.core.errors import MooringsError
from moorings.ports.store import Seq, Store
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from tests.databases import open_new


@pytest.fixture
def anyio_backend():
    return "asyncio"


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
    return Keys(store, SystemClock(), b"pepper")


async def refused(keys: Keys, secret: str) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        await keys.authenticate(secret)
    assert caught.value.code == "auth.invalid"
    return caught.value


def not_made(keys: Keys, code: str, subject: str, role: Role, prefix: str | None) -> MooringsError:
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
    assert (await Keys(again, SystemClock(), b"pepper").authenticate(secret)).subject == "ann"
    again.close()


async def test_without_the_pepper_the_database_proves_nothing(keys, store):
    _, secret = keys.create("ann", Role.USER, None, "root")
    await refused(Keys(store, SystemClock(), b"another"), secret)


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
    events = [row.event for row in store.events(Seq(0), 100, names=["key.*"])]
    assert [event.name for event in events] == ["key.created", "key.revoked"]
    assert json.loads(events[0].data) == {"key": key.id, "subject": "ann", "role": "user", "by": "root"}
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
    keys = Keys(cast("Store", slow), SystemClock(), b"pepper")
    key, secret = keys.create("ann", Role.USER, None, "root")
    proving = asyncio.create_task(keys.authenticate(secret))
    await asyncio.to_thread(slow.read.wait)
    keys.revoke(key.id, "root")
    slow.gate.set()
    await asyncio.gather(proving, return_exceptions=True)  # it began before, so it may end either way
    await refused(keys, secret)


# -- the cache -----------------------------------------------------------------------------------------------------


async def test_a_key_that_was_proved_costs_no_read(keys, store):
    _, secret = keys.create("ann", Role.USER, None, "root")
    caller = await keys.authenticate(secret)
    store.close()
    assert await keys.authenticate(secret) == caller


async def test_a_secret_is_never_remembered_as_it_is(keys):
    _, secret = keys.create("ann", Role.USER, None, "root")
    await keys.authenticate(secret)
    assert secret.encode() not in b"".join(keys._proved)


async def test_wrong_secrets_are_not_remembered_and_good_ones_not_for_ever(keys, monkeypatch):
    monkeypatch.setattr(module, "CACHE_MAX", 3)
    for _ in range(5):
        await refused(keys, "moor_x_y")
    assert keys._proved == {}
    secrets = [keys.create("ann", Role.USER, None, "root")[1] for _ in range(8)]
    for secret in secrets:
        await keys.authenticate(secret)
        assert len(keys._proved) <= 3
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
    keys = Keys(store, SystemClock(), b"pepper")

    @given(st.text("abcXYZ019._@+- /", max_size=8))
    def is_an_owner(subject):
        with contextlib.suppress(MooringsError):
            key, _ = keys.create(subject, Role.USER, None, "root")
            assert check_owner(key.owner_prefix) == f"user/{subject}"
            assert subject.count("/") == 0

    is_an_owner()
    store.close()
