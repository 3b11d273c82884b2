"""``moor rotate key``: where the new secret goes, and that the key is never lost on the way."""

import os
import stat

import pytest

from moorings.terminal.console import Console
from moorings.wire.codec import encode
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, listing, problem

OLD, NEW = f"moor_q2wsx3edc4_{'a' * 64}", f"moor_q2wsx3edc4_{'b' * 64}"
PATH = "/v1/keys/q2wsx3edc4/rotate"
ROTATED = {**encode(samples.KEYS[2]), "secret": NEW}


@pytest.fixture
def file(server, tmp_path, monkeypatch):
    """A credentials file whose key is used."""
    path = tmp_path / "credentials.toml"
    path.write_text(
        f'# mine\n[contexts.default]\nserver = "{server.url}"\naccess_key = "{OLD}" # my key\n'
        f'[contexts.spare]\nserver = "http://spare:8090"\naccess_key = "{OLD}"\n'
        '[contexts.other]\naccess_key = "moor_other_x"\n'
    )
    path.chmod(0o600)
    monkeypatch.setenv("MOORINGS_CREDENTIALS", str(path))
    server.on("POST", PATH, Reply(ROTATED))
    server.on("GET", "/v1/pools", listing("Pool", []))
    return path


def only_the_secret_changed(path, before):
    return path.read_text() == before.replace(OLD, NEW)


def test_the_new_secret_takes_the_old_one_s_place_in_the_file_and_is_tried(server, moor, file):
    before = file.read_text()
    code, out, err = moor("rotate", "key", "--grace", "1h")
    assert (code, err) == (0, "")
    assert out.startswith("key/q2wsx3edc4 rotated, works until 2026-12-31T12:00:00Z; the old secret works until ")
    assert NEW not in out
    assert only_the_secret_changed(file, before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file], "no draft is left"
    assert [(seen.method, seen.path, seen.headers["authorization"]) for seen in server.seen] == [
        ("POST", PATH, f"Bearer {OLD}"),
        ("GET", "/v1/pools", f"Bearer {NEW}"),
    ]
    assert server.seen[0].json == {"graceS": 3600.0}


def test_as_json_the_secret_is_not_shown_either(moor, file):
    code, out, _ = moor("rotate", "key", "key/q2wsx3edc4", "-o", "json")
    assert (code, '"id": "q2wsx3edc4"' in out, NEW in out) == (0, True, False)
    assert NEW in file.read_text()


def test_a_link_stays_a_link(moor, file, tmp_path, monkeypatch):
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    monkeypatch.setenv("MOORINGS_CREDENTIALS", str(link))
    assert moor("rotate", "key")[0] == 0
    assert link.is_symlink()
    assert NEW in file.read_text()


def test_where_the_file_cannot_be_replaced_nothing_is_asked(server, moor, file, monkeypatch):
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    code, _, err = moor("rotate", "key")
    assert (code, "cannot be replaced" in err) == (2, True)
    assert server.seen == []


def test_a_file_that_cannot_be_written_after_all_does_not_lose_the_secret(moor, file, monkeypatch):
    before = file.read_text()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    code, out, err = moor("rotate", "key")
    assert (code, out) == (0, f"{NEW}\n")
    assert "put the new secret there yourself" in err
    assert file.read_text() == before


def test_a_file_that_somebody_changed_meanwhile_does_not_lose_the_secret_either(server, moor, file):
    def change(_seen):
        file.write_text("# another key was put here\n")
        return Reply(ROTATED)

    server.on("POST", PATH, change)
    code, out, err = moor("rotate", "key")
    assert (code, out, "put the new secret there yourself" in err) == (0, f"{NEW}\n", True)
    assert file.read_text() == "# another key was put here\n"


def test_a_refusal_leaves_the_file_as_it_is(server, moor, file):
    before = file.read_text()
    server.on("POST", PATH, problem("key.replaced", "it was given a new secret", 409))
    assert moor("rotate", "key")[0] == 5
    assert file.read_text() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_lost_answer_says_to_ask_again(server, moor, file):
    server.on("POST", PATH, Reply(ROTATED, cut=True))
    code, _, err = moor("rotate", "key")
    assert (code, "ask again" in err) == (7, True)
    assert OLD in file.read_text()


def test_a_key_from_the_environment_is_shown_once(moor, file, monkeypatch):
    monkeypatch.setenv("MOORINGS_ACCESS_KEY", OLD)
    code, out, err = moor("rotate", "key")
    assert (code, out, "only now" in err) == (0, f"{NEW}\n", True)
    assert OLD in file.read_text()


def test_an_admin_rotates_another_s_key(server, moor, file):
    ended = {"id": "other", "oldSecretUntil": ROTATED["rotatedAt"]}
    server.on("POST", "/v1/keys/other/rotate", Reply({**ROTATED, **ended}))
    code, out, err = moor("rotate", "key", "other", "--expires", "never", "--grace", "0")
    assert (code, out, "the old secret works no longer" in err) == (0, f"{NEW}\n", True)
    assert OLD in file.read_text()
    assert server.seen[0].json == {"graceS": 0.0, "lifetimeS": 0.0}


def test_without_a_key_there_is_nothing_to_rotate(server, moor):
    code, _, err = moor("rotate", "key")
    assert (code, "auth.missing" in err) == (4, True)


def test_a_person_is_told_once_that_his_key_expires_soon(server, moor, file, monkeypatch):
    monkeypatch.setattr("moorings.terminal.context.CommandContext.now", lambda _: samples.NOW)
    soon = Reply({"apiVersion": "moorings/v1", "kind": "PoolList", "items": []}, headers={})
    for at, told in (("2026-02-05T12:00:00Z", 1), ("2026-02-20T12:00:00Z", 0), ("2026-01-01T00:00:00Z", 0), ("x", 0)):
        server.on("GET", "/v1/pools", Reply(soon.body, headers={"Moorings-Key-Expires": at}))
        for tty in (True, False):
            monkeypatch.setattr(Console, "err_is_tty", tty)
            _, _, err = moor("get", "pools")
            assert err.count("your access key expires in") == (told if tty else 0), at
    monkeypatch.setattr(Console, "err_is_tty", True)
    server.on("GET", "/v1/pools", Reply(soon.body, headers={"Moorings-Key-Expires": "2026-02-05T12:00:00Z"}))
    assert "expires" not in moor("-q", "get", "pools")[2]
