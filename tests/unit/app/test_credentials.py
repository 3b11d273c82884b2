"""The first access key: written once, for this controller, and nothing else in the file is touched."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.app import credentials
from moorings.app.clock import SystemClock
from moorings.app.credentials import ensure_admin
from moorings.controller.keys import AccessKeyManager
from moorings.core.model.access import Role
from moorings.core.model.errors import MooringsError
from tests.databases import open_new

URL = "http://127.0.0.1:8090"


@pytest.fixture
def keys(tmp_path):
    store = open_new(tmp_path / "moorings.db")
    yield AccessKeyManager(store, SystemClock(), b"pepper")
    store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "moorings" / "credentials.toml"


def contexts(file: Path) -> Any:
    return tomllib.loads(file.read_text())["contexts"]


def write(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return text


def context(name: str, server: str, key: str) -> str:
    return f'[contexts.{name}]\nserver = "{server}"\naccess_key = "{key}"\n'


async def role_of(keys: AccessKeyManager, file: Path, name: str = "default") -> Role:
    return (await keys.authenticate(contexts(file)[name]["access_key"])).role


async def n_keys(keys: AccessKeyManager) -> int:
    return len(keys._store.access_keys())


async def test_the_first_start_writes_an_admins_key_that_works(keys, file):
    await ensure_admin(keys, file, "default", URL)
    assert set(contexts(file)) == {"default"}
    assert contexts(file)["default"]["server"] == URL
    assert await role_of(keys, file) is Role.ADMIN


async def test_only_its_owner_can_read_it(keys, file):
    await ensure_admin(keys, file, "default", URL)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_the_key_is_in_no_log(keys, file, caplog):
    caplog.set_level("DEBUG")
    await ensure_admin(keys, file, "default", URL)
    secret = contexts(file)["default"]["access_key"]
    told = "".join(f"{record.__dict__}" for record in caplog.records)
    assert "credentials.written" in told
    assert secret not in told


async def test_a_key_that_works_stays(keys, file):
    await ensure_admin(keys, file, "default", URL)
    before = file.read_bytes()
    await ensure_admin(keys, file, "default", URL)
    assert file.read_bytes() == before
    assert await n_keys(keys) == 1


async def test_other_contexts_stay_as_they_are(keys, file):
    others = context("site", "https://site.example", "moor_a_b") + context('"odd name"', "http://127.0.0.1:9", "k")
    write(file, "# mine\n" + others)
    await ensure_admin(keys, file, "default", URL)
    found = contexts(file)
    assert {name: values for name, values in found.items() if name != "default"} == tomllib.loads(others)["contexts"]
    assert await role_of(keys, file) is Role.ADMIN


@pytest.mark.parametrize(
    "server",
    ["https://site.example", "http://127.0.0.1:1", "http://localhost:8090", "http://127.0.0.1@evil.example", ""],
)
async def test_a_context_of_another_controller_is_left_alone(keys, file, server):
    write(file, context("default", server, "moor_a_b"))
    await ensure_admin(keys, file, "default", URL)
    found = contexts(file)
    assert found["default"] == {"server": server, "access_key": "moor_a_b"}
    assert found["default-8090"]["server"] == URL
    assert (await keys.authenticate(found["default-8090"]["access_key"])).role is Role.ADMIN
    before = file.read_bytes()
    await ensure_admin(keys, file, "default", URL)
    assert file.read_bytes() == before
    assert await n_keys(keys) == 1


async def test_a_key_that_works_is_kept_when_the_address_changes(keys, file):
    await ensure_admin(keys, file, "default", URL)
    before = contexts(file)["default"]
    await ensure_admin(keys, file, "default", "http://127.0.0.1:9999")
    assert contexts(file)["default"] == {**before, "server": "http://127.0.0.1:9999"}
    assert await n_keys(keys) == 1


async def test_a_key_that_works_without_an_address_gets_one(keys, file):
    _, secret = keys.create("ann", Role.ADMIN, None, "an admin")
    write(file, f'[contexts.default]\naccess_key = "{secret}"\n')
    await ensure_admin(keys, file, "default", URL)
    assert contexts(file)["default"] == {"access_key": secret, "server": URL}


@pytest.mark.parametrize("dead", ["", "moor_gone_secret", "nonsense"])
async def test_a_dead_key_is_replaced(keys, file, dead):
    write(file, context("default", URL, dead))
    await ensure_admin(keys, file, "default", URL)
    assert await role_of(keys, file) is Role.ADMIN


async def test_a_revoked_key_is_replaced(keys, file):
    await ensure_admin(keys, file, "default", URL)
    (first,) = keys._store.access_keys()
    keys.revoke(first.id, "an admin")
    await ensure_admin(keys, file, "default", URL)
    assert await role_of(keys, file) is Role.ADMIN


async def test_a_key_that_is_not_an_admins_is_replaced(keys, file):
    _, secret = keys.create("ann", Role.USER, None, "an admin")
    write(file, context("default", URL, secret))
    await ensure_admin(keys, file, "default", URL)
    assert await role_of(keys, file) is Role.ADMIN


async def test_a_context_may_have_any_name(keys, file):
    name = 'a "b" ü \U0001f600'
    await ensure_admin(keys, file, name, URL)
    assert await role_of(keys, file, name) is Role.ADMIN


@pytest.mark.parametrize(
    "text",
    [
        "contexts = 1",
        "[contexts]\ndefault = 1",
        "[[contexts]]",
        "x = 1",
        "[contexts.default",
        "\0",
        "a = " + "[" * 10_000,
        "a = " + "9" * 5000,
    ],
    ids=lambda text: repr(text[:20]),
)
async def test_a_file_of_another_kind_is_told_and_left_alone(keys, file, text):
    write(file, text)
    with pytest.raises(MooringsError) as caught:
        await ensure_admin(keys, file, "default", URL)
    assert caught.value.code == "config.invalid"
    assert str(file) in str(caught.value)
    assert file.read_text() == text
    assert await n_keys(keys) == 0


async def test_a_file_that_is_not_text_is_told_and_left_alone(keys, file):
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(MooringsError, match=r"credentials\.toml"):
        await ensure_admin(keys, file, "default", URL)
    assert file.read_bytes() == b"\xff\xfe"


async def test_a_place_that_cannot_be_written_is_told(keys, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MooringsError) as caught:
        await ensure_admin(keys, tmp_path / "file" / "credentials.toml", "default", URL)
    assert caught.value.code == "config.invalid"


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.text(), max_size=3), max_size=3))
def test_whatever_stands_in_the_file_is_written_back_as_it_was(held):
    assert tomllib.loads(credentials._render(held)).get("contexts", {}) == held
