from __future__ import annotations

import os
import subprocess

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.munge import Munge
from tests.slurm import programs
from tests.slurm.cluster import new_folder


@pytest.fixture
def munge(slurm) -> Munge:
    return Munge(str(slurm.munge_socket), str(programs.munge_library()))


def code_of(call) -> str:
    with pytest.raises(MooringsError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize("payload", [b"moorings 1 bind\njob=1\n", b"", b"\0\xff\n", b"x" * 700_000])
def test_what_is_sealed_is_read_with_its_maker(munge, payload):
    read = munge.decode(munge.encode(payload))
    assert (read.payload, read.uid) == (payload, os.geteuid())


def test_a_credential_is_one_line_of_ascii(munge):
    text = munge.encode(b"a\nb" * 1000)
    assert text.isascii()
    assert "\n" not in text


def test_a_credential_is_taken_once(munge):
    text = munge.encode(b"once")
    munge.decode(text)
    assert code_of(lambda: munge.decode(text)) == "munge.invalid"


def test_a_credential_for_another_user_is_not_read(munge):
    text = munge.encode(b"for games", for_uid=5)
    assert code_of(lambda: munge.decode(text)) == "munge.invalid"
    assert munge.decode(munge.encode(b"for root", for_uid=0)).payload == b"for root"


@pytest.mark.parametrize("text", ["", "MUNGE:", "MUNGE:AAAA:", "rubbish", "MUNGE:\0:", "MUNGE:ä:", "x" * 2_000_000])
def test_rubbish_is_refused(munge, text):
    assert code_of(lambda: munge.decode(text)) == "munge.invalid"


def test_a_changed_credential_is_refused(munge):
    text = munge.encode(b"honest")
    middle = len(text) // 2
    other = text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
    assert code_of(lambda: munge.decode(other)) == "munge.invalid"


def test_what_another_user_made_says_so(slurm, munge):
    command = programs.munged().parents[1] / "bin" / "munge"
    text = subprocess.run(
        [
            "setpriv",
            "--reuid=games",
            "--regid=games",
            "--clear-groups",
            command,
            f"--socket={slurm.munge_socket}",
            "-n",
        ],
        env=slurm.env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert munge.decode(text).uid == 5


def test_a_munged_that_is_away_is_worth_another_try():
    folder = new_folder()
    try:
        away = Munge(str(folder / "socket"), str(programs.munge_library()))
        with pytest.raises(MooringsError) as caught:
            away.encode(b"x")
    finally:
        folder.rmdir()
    assert (caught.value.code, caught.value.retryable) == ("munge.unavailable", True)


def test_a_missing_library_is_named():
    with pytest.raises(MooringsError, match=r"libnone\.so\.9"):
        Munge(library="libnone.so.9").encode(b"x")
