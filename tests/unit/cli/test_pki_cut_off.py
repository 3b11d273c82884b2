"""``moor pki`` killed before each thing it does to its folder: said again, it continues or starts again.

Each case is the real command in a process of its own, which kills itself (SIGKILL) at one of its steps.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import ssl
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import pytest

from moorings.cli.main import main
from moorings.client.tls import make_context
from moorings.core.model.errors import MooringsError
from moorings.net.tls import make_server_context
from moorings.pki import files
from moorings.pki.authority import is_signed_by, matches_key, split_bundle
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore

HOST = "pod1.example.org"
STEPS = {"open", "write", "flush", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "chmod", "flock"}
STEPS_MAX = 200

# Words, what was said before in a folder with an authority, a server and Ann, and the fewest steps that it can have.
STORIES = {
    "init": (("init", "--name", HOST), None, 16),
    "issue": (("issue", "bert"), (), 8),
    "rotate a client": (("rotate", "ann"), (), 8),
    "rotate the controllers'": (("rotate", "--controllers"), (), 8),
    "a new authority": (("rotate", "--ca"), (), 8),
    "rotate what is old": (("rotate",), (("rotate", "--ca"),), 16),
    "drop the old": (("rotate", "--drop-old"), (("rotate", "--ca"), ("rotate",)), 4),
}
MADE_ONCE = {"init": "server", "issue": "clients/bert"}  # if that is whole, saying it again is refused


def moor(folder: Path, *words: str) -> int:
    return main(["pki", words[0], "--dir", str(folder), *words[1:]])


def dies_at(step: int) -> Callable[[FrameType, str, object], None]:
    """Counts the calls by which ``files`` changes something, and ends the process before one of them."""
    seen = 0

    def look(frame: FrameType, event: str, called: object) -> None:
        nonlocal seen
        name, module = getattr(called, "__name__", ""), getattr(called, "__module__", None)
        if event != "c_call" or name not in STEPS or module not in ("posix", "fcntl", None):
            return
        within: FrameType | None = frame
        while within is not None and within.f_code.co_filename != files.__file__:
            within = within.f_back
        if within is not None:
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return look


def killed_at(step: int, folder: Path, words: tuple[str, ...]) -> bool:
    """Whether the command had that many steps, and was killed before the last of them."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.setprofile(dies_at(step))
            code = moor(folder, *words)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server and Ann."""
    folder = tmp_path_factory.mktemp("begun") / "pki"
    assert moor(folder, "init", "--name", HOST) == 0
    assert moor(folder, "issue", "ann") == 0
    return folder


def keys_in(folder: Path) -> dict[str, int]:
    """The mode of every file in which a private key stands, or a part of one."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and (b"PRIVATE KEY" in path.read_bytes() or ".key" in path.name):
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


def has_its_key(certificate: Path, key: Path) -> bool:
    """Whether a certificate's key is there, be it as a draft that waits to be put in its place."""
    near = [path for path in (key, files.pending_path(key)) if path.exists()]
    return any(matches_key(certificate.read_bytes(), path.read_bytes()) for path in near)


def shake(server: Path, bundle: Path, certificate: Path, key: Path) -> None:
    """A handshake between a controller with the folder's certificate and who has these files; raises as ``ssl`` does.

    Args:
        server: the folder.
        bundle: whom the client believes.
        certificate: what the client shows, and
        key: its key.
    """
    here = make_server_context(server / "server.pem", server / "server.key", server / "ca.pem")
    there = make_context(str(bundle), str(certificate), str(key))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [here.wrap_bio(up, down, server_side=True), there.wrap_bio(down, up, server_hostname=HOST)]
    for _ in range(6):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert sides == []


@pytest.mark.parametrize("story", STORIES)
def test_said_again_it_goes_on_or_starts_anew(story: str, begun: Path, tmp_path: Path) -> None:
    words, before, fewest = STORIES[story]
    start, old = tmp_path / "start", tmp_path / "old"
    start.mkdir()
    if before is not None:
        shutil.copytree(begun, start, dirs_exist_ok=True)
        for said in before:
            assert moor(start, *said) == 0
    shutil.copytree(start, old)
    step = 0
    while True:
        step += 1
        folder = tmp_path / f"step{step}"
        shutil.copytree(start, folder)
        if not killed_at(step, folder, words):
            break
        see_what_is_left(old, folder)
        done = was_done(story, folder)
        code = moor(folder, *words)
        assert code == (5 if done and story in MADE_ONCE else 0), f"after step {step}"
        if story == "a new authority":
            count = len(split_bundle((folder / "ca.pem").read_bytes()))
            assert count == (3 if done else 2), "one that was begun is finished, and no other made"
        see_that_all_is_well(story, old, folder)
        assert step < STEPS_MAX
    assert step > fewest, "it was killed where it matters"


def was_done(story: str, folder: Path) -> bool:
    """Whether the command was killed when all it makes was in its place."""
    certificate = folder / f"{MADE_ONCE.get(story, 'ca')}.pem"
    key = certificate.with_suffix(".key")
    if story == "a new authority" and len(split_bundle(certificate.read_bytes())) < 2:
        return False
    return certificate.exists() and key.exists() and matches_key(certificate.read_bytes(), key.read_bytes())


def see_what_is_left(old: Path, folder: Path) -> None:
    """What a killed run leaves is safe, and nobody who could get in is shut out permanently."""
    assert set(keys_in(folder).values()) <= {0o600}, keys_in(folder)
    names = {name for name in keys_in(folder) if not name.endswith((".key", ".key.new"))}
    assert names == set(), "keys are only where they are looked for"
    places = [(file, file.with_suffix(".key")) for file in (folder / "server.pem", *(folder / "clients").glob("*.pem"))]
    for certificate, key in [*places, (folder / "ca.pem", folder / "ca.key")]:
        assert not certificate.exists() or has_its_key(certificate, key), f"the key of {certificate.name} is lost"
    if (old / "ca.pem").exists():
        for certificate in (old / "server.pem", client_certificate(old, "ann")):
            assert is_trusted(certificate, folder / "ca.pem"), "who has an old certificate is still believed"


def is_trusted(certificate: Path, bundle: Path) -> bool:
    return any(is_signed_by(certificate.read_bytes(), one) for one in split_bundle(bundle.read_bytes()))


def see_that_all_is_well(story: str, old: Path, folder: Path) -> None:
    """The folder is whole, nothing lies about, and certificates old and new get in as docs/how-to/tls.md says."""
    assert [file.name for file in folder.rglob(".*")] == [".lock"]
    entries = CertificateStore(folder).entries()
    assert all(entry.key_matches for entry in entries)
    subjects = {entry.name for entry in entries if entry.kind == "client"}
    expected = {f"clients/{name}.key" for name in subjects} | {"ca.key", "server.key"}
    assert keys_in(folder) == dict.fromkeys(expected, 0o600)
    newest = split_bundle((folder / "ca.pem").read_bytes())[0]
    assert matches_key(newest, (folder / "ca.key").read_bytes()), "the newest authority can sign"
    if story == "init":
        assert moor(folder, "issue", "ann") == 0
        subjects = {"ann"}
    for name in subjects:
        shake(folder, folder / "ca.pem", client_certificate(folder, name), client_key(folder, name))
    if story not in ("init", "drop the old"):
        shake(folder, folder / "ca.pem", client_certificate(old, "ann"), client_key(old, "ann"))
    if story == "a new authority":
        shake(folder, old / "ca.pem", client_certificate(old, "ann"), client_key(old, "ann"))
        assert moor(folder, "rotate") == 0
        assert moor(folder, "rotate", "--drop-old") == 0
        shake(folder, folder / "ca.pem", client_certificate(folder, "ann"), client_key(folder, "ann"))
        with pytest.raises(ssl.SSLError):
            shake(folder, folder / "ca.pem", client_certificate(old, "ann"), client_key(old, "ann"))


def test_a_key_is_its_owners_alone_from_the_first_byte(tmp_path: Path) -> None:
    seen: list[int] = []
    place = files.KeyPairPaths(tmp_path / "a.pem", tmp_path / "a.key")
    before = os.umask(0)
    try:
        files.replace_pair(place, b"certificate", b"key")
        seen.append(stat.S_IMODE(place.key.stat().st_mode))
        files.replace_pair(place, b"certificate", b"key")
        seen.append(stat.S_IMODE(place.key.stat().st_mode))
    finally:
        os.umask(before)
    assert seen == [0o600, 0o600]


# -- what else may be found ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "pki"))


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqG", b"\0" * 300])
def test_half_a_draft_is_taken_away(folder: Path, content: bytes) -> None:
    before = (folder / "server.key").read_bytes()
    files.pending_path(folder / "server.key").write_bytes(content)
    files.pending_path(client_certificate(folder, "ann")).write_bytes(content)
    CertificateStore(folder).finish_pending()
    assert (folder / "server.key").read_bytes() == before
    assert [file.name for file in folder.rglob(".*")] == [".lock"]


def test_drafts_of_older_releases_are_taken_away(folder: Path) -> None:
    left = [folder / ".ca.key.4711.tmp", folder / "clients" / ".ann.key.1.tmp", folder / ".server.pem.22.tmp"]
    others = [folder / ".notes.tmp", folder / ".ca.key.tmp"]
    for path in (*left, *others):
        path.write_text("PRIVATE KEY")
    CertificateStore(folder).finish_pending()
    assert [path for path in left if path.exists()] == []
    assert [path for path in others if not path.exists()] == [], "what is not ours stays"


def test_an_authoritys_key_elsewhere_waits_for_who_names_it(folder: Path, tmp_path: Path) -> None:
    """Killed between bundle and key: a run that does not know where the key is must not take its draft away."""
    away = tmp_path / "stick" / "ca.key"
    away.parent.mkdir()
    (folder / "ca.key").rename(away)
    there = CertificateStore(folder, away)
    old = away.read_bytes()
    there.renew_authority(datetime.now(UTC))
    shutil.move(away, files.pending_path(away))
    away.write_bytes(old)
    away.chmod(0o600)
    before = (folder / "ca.pem").read_bytes()
    with pytest.raises(MooringsError, match="there is no"):
        CertificateStore(folder).issue("bert", datetime.now(UTC), 1)
    with pytest.raises(MooringsError, match="the key of an older authority"):
        CertificateStore(folder, Path(shutil.copy(away, tmp_path / "copy.key"))).issue("bert", datetime.now(UTC), 1)
    there.issue("bert", datetime.now(UTC), 1)
    assert there.finished == [folder / "ca.pem"]
    assert (folder / "ca.pem").read_bytes() == before
    assert matches_key(before, away.read_bytes())
    assert list(away.parent.iterdir()) == [away]


def test_a_key_that_no_run_can_finish_is_told_and_mended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As releases before this one left it: a newest authority whose key nobody has."""
    old = (folder / "ca.key").read_bytes()
    CertificateStore(folder).renew_authority(datetime.now(UTC))
    (folder / "ca.key").write_bytes(old)
    assert moor(folder, "rotate", "ann") == 2
    assert "moor pki rotate --ca" in capsys.readouterr().err
    assert moor(folder, "rotate", "--drop-old") == 2, "the authority that all certificates are of stays trusted"
    assert len(split_bundle((folder / "ca.pem").read_bytes())) == 2
    for words in (("rotate", "--ca"), ("rotate",), ("rotate", "--drop-old")):
        assert moor(folder, *words) == 0
    shake(folder, folder / "ca.pem", client_certificate(folder, "ann"), client_key(folder, "ann"))


def test_a_key_without_its_authority_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, key = (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
    (folder / "ca.pem").unlink()
    assert moor(folder, "init", "--name", HOST) == 5
    assert "put" in capsys.readouterr().err
    assert (folder / "ca.key").read_bytes() == key
    (folder / "ca.pem").write_bytes(bundle)
    assert moor(folder, "rotate", "ann") == 0


def test_two_runs_do_not_meet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.2)
    with (folder / files.LOCK).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MooringsError, match="another 'moor pki' is at work"):
            CertificateStore(folder).renew_client("ann", datetime.now(UTC), 1)
    CertificateStore(folder).renew_client("ann", datetime.now(UTC), 1)


def test_a_disk_that_is_full_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.name != files.LOCK}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    real = os.fsync
    for count in range(1, 3):
        calls = iter([*[real] * (count - 1), full])
        monkeypatch.setattr(os, "fsync", lambda descriptor, calls=calls: next(calls)(descriptor))
        with pytest.raises(MooringsError, match="cannot be written"):
            CertificateStore(folder).renew_client("ann", datetime.now(UTC), 1)
        monkeypatch.undo()
        assert {path: path.read_bytes() for path in folder.rglob("*.*") if path.name != files.LOCK} == before
