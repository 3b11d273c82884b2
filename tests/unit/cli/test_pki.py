"""``moor pki``: a folder of certificates from its beginning through every change, judged by OpenSSL."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorings.cli.main import main
from moorings.core.model.errors import MooringsError
from moorings.doctor.findings import CheckStatus
from moorings.pki.authority import (
    AUTHORITY_DAYS,
    KeyPair,
    is_signed_by,
    issue_client,
    issue_server,
    load_key,
    make_authority,
    matches_key,
    parse_certificate,
    split_bundle,
)
from moorings.pki.checks import check_certificate_expiry, check_client_certificate, check_tls, is_name_covered
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore
from tests.cases import cases

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority():
    return make_authority(NOW)


@pytest.fixture
def pki(tmp_path):
    made = CertificateStore(tmp_path / "pki")
    made.create(["pod1.example.org", "127.0.0.1"], NOW, 365)
    made.issue("ann", NOW, 365)
    return made


@pytest.fixture
def moor(capsys, monkeypatch, tmp_path):
    """Runs a command on a folder of its own; (exit code, stdout, stderr)."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def call(*words):
        code = main(["pki", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def verified(bundle: Path, file: Path, purpose: str, at: datetime = NOW + timedelta(days=1)) -> bool:
    """Whether OpenSSL believes a certificate, by the strict rules of RFC 5280."""
    argv = ["openssl", "verify", "-x509_strict", "-attime", str(int(at.timestamp())), "-purpose", purpose]
    return subprocess.run([*argv, "-CAfile", bundle, file], capture_output=True, check=False).returncode == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- certificates ----------------------------------------------------------------------------------------------------


def test_certificates_are_what_openssl_takes_them_for(pki):
    server, ann = pki.folder / "server.pem", client_certificate(pki.folder, "ann")
    assert verified(pki.bundle, server, "sslserver")
    assert verified(pki.bundle, server, "sslclient"), "a controller asks the one that leads"
    assert verified(pki.bundle, ann, "sslclient")
    assert not verified(pki.bundle, ann, "sslserver"), "a client cannot pass for a controller"
    assert not verified(pki.bundle, ann, "sslclient", NOW + timedelta(days=366))
    assert not verified(pki.bundle, ann, "sslclient", NOW - timedelta(days=1))


def test_what_stands_in_them(authority):
    made = issue_client(authority, "ann@x+y", NOW, 9)
    facts = parse_certificate(made.certificate)
    assert (facts.subject, facts.is_controller, facts.names) == ("ann@x+y", False, ())
    assert facts.not_after == NOW + timedelta(days=9)
    assert facts.not_before < NOW
    assert matches_key(made.certificate, made.key)
    assert is_signed_by(made.certificate, authority.certificate)
    names = ["pod1.example.org", "*.example.org", "10.0.0.1", "::1"]
    facts = parse_certificate(issue_server(authority, names, NOW, 9).certificate)
    assert sorted(facts.names) == sorted(names)
    assert facts.is_controller


def test_two_are_never_alike(authority):
    one, two = issue_client(authority, "ann", NOW), issue_client(authority, "ann", NOW)
    assert one.key != two.key
    assert parse_certificate(one.certificate).serial != parse_certificate(two.certificate).serial
    assert not matches_key(one.certificate, two.key)
    assert not is_signed_by(one.certificate, make_authority(NOW).certificate)


def test_none_outlives_its_authority():
    short = make_authority(NOW - timedelta(days=AUTHORITY_DAYS - 10))
    assert parse_certificate(issue_client(short, "ann", NOW).certificate).not_after == NOW + timedelta(days=10)
    with pytest.raises(MooringsError) as caught:
        issue_client(short, "ann", NOW + timedelta(days=11))
    assert (caught.value.code, caught.value.hint) == ("pki.invalid", "make a new one: moor pki rotate --ca")


@pytest.mark.parametrize(
    "name", ["", "a b", "pod1:8090", "https://pod1", "-pod1", "pod1..org", "x" * 254, "é", "a/b", "*"]
)
def test_what_is_no_host(authority, name):
    with pytest.raises(MooringsError) as caught:
        issue_server(authority, [name], NOW)
    assert caught.value.code == "pki.invalid"


@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\0" * 9]
)
def test_garbage_is_told_as_such(authority, content):
    for read in (
        lambda: parse_certificate(content),
        lambda: split_bundle(content),
        lambda: load_key(content),
        lambda: matches_key(content, authority.key),
        lambda: issue_client(KeyPair(content, authority.key), "ann", NOW),
    ):
        with pytest.raises(MooringsError) as caught:
            read()
        assert caught.value.code == "pki.invalid"


# -- the folder ------------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_keys(pki):
    assert [mode(pki.folder), mode(pki.folder / "clients")] == [0o700, 0o700]
    keys = [pki.folder / "ca.key", pki.folder / "server.key", client_key(pki.folder, "ann")]
    assert [mode(key) for key in keys] == [0o600] * 3
    left = [file.name for file in pki.folder.rglob(".*")]
    assert left == [".lock"], "no drafts"


def test_nothing_is_made_twice(pki):
    before = {file: file.read_bytes() for file in pki.folder.rglob("*.*")}
    for again in (lambda: pki.create(["x"], NOW, 1), lambda: pki.issue("ann", NOW, 1)):
        with pytest.raises(MooringsError) as caught:
            again()
        assert caught.value.code == "pki.exists"
    assert before == {file: file.read_bytes() for file in pki.folder.rglob("*.*")}


def test_a_wrong_name_leaves_nothing_behind(tmp_path):
    made = CertificateStore(tmp_path / "pki")
    with pytest.raises(MooringsError):
        made.create(["good.example.org", "not good"], NOW, 1)
    assert not made.folder.exists()


@pytest.mark.parametrize("subject", ["../ann", "a/b", "", ".."])
def test_a_subject_is_no_path(pki, subject):
    with pytest.raises(MooringsError) as caught:
        pki.issue(subject, NOW, 1)
    assert caught.value.code == "key.invalid"


def test_an_authority_is_changed_step_by_step(pki):
    ann, server = client_certificate(pki.folder, "ann"), pki.folder / "server.pem"
    pki.renew_authority(NOW)
    assert [entry.is_current for entry in pki.entries()] == [True, False, False, False]
    assert verified(pki.bundle, ann, "sslclient"), "the old ones are still believed"
    with pytest.raises(MooringsError, match="would not be trusted any more"):
        pki.drop_old_authorities()
    pki.renew_server([], NOW, 365)
    pki.renew_client("ann", NOW, 365)
    assert verified(pki.bundle, ann, "sslclient")
    assert pki.drop_old_authorities() == 1
    assert len(split_bundle(pki.bundle.read_bytes())) == 1
    assert verified(pki.bundle, ann, "sslclient")
    assert verified(pki.bundle, server, "sslserver")
    assert all(entry.is_current and entry.key_matches for entry in pki.entries())


def test_the_authoritys_key_may_be_elsewhere(pki, tmp_path):
    away = tmp_path / "away.key"
    (pki.folder / "ca.key").rename(away)
    with pytest.raises(MooringsError, match="there is no"):
        pki.issue("bert", NOW, 1)
    CertificateStore(pki.folder, away).issue("bert", NOW, 1)
    assert verified(pki.bundle, client_certificate(pki.folder, "bert"), "sslclient", NOW + timedelta(hours=1))


def test_the_key_of_another_authority_is_refused(pki, authority):
    (pki.folder / "ca.key").write_bytes(authority.key)
    with pytest.raises(MooringsError, match="is the key of no authority"):
        pki.issue("bert", NOW, 1)


def test_an_authoritys_key_that_others_can_read_is_refused(pki):
    (pki.folder / "ca.key").chmod(0o644)
    with pytest.raises(MooringsError) as caught:
        pki.issue("bert", NOW, 1)
    assert caught.value.code == "credentials.unsafe"


# -- the command -----------------------------------------------------------------------------------------------------


def test_from_nothing_to_a_table(moor, tmp_path):
    code, out, err = moor("show")
    assert (code, out) == (2, "")
    assert "moor pki init" in err
    assert moor("init", "--name", "pod1.example.org")[0] == 0
    assert moor("issue", "ann")[0] == 0
    assert moor("issue", "bert", "--days", "20")[0] == 0
    code, out, err = moor("show")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["KIND", "NAME", "SERIAL", "ENDS", "STATE", "HOSTS"]
    assert [row[0] for row in rows[1:]] == ["authority", "server", "client", "client"]
    assert ["VALID" in row for row in rows[1:]] == [True, True, True, False]
    assert err == "warning: the certificate of client bert ends in 19 days: 'moor pki rotate' renews it\n"
    assert (tmp_path / "moorings" / "pki" / "clients" / "ann.key").exists()


def test_what_ends_soon_is_renewed_and_no_more(moor):
    moor("init")
    moor("issue", "ann")
    moor("issue", "bert", "--days", "20")
    before = {item["name"]: item["serial"] for item in json.loads(moor("show", "-o", "json")[1])["items"]}
    assert moor("rotate")[1].startswith("the certificate of bert is new")
    after = {item["name"]: item["serial"] for item in json.loads(moor("show", "-o", "json")[1])["items"]}
    assert {name for name in before if before[name] != after[name]} == {"bert"}
    assert "Nothing ends within 30 days" in moor("rotate")[2]
    assert moor("rotate", "ann")[1].startswith("the certificate of ann is new")
    assert len(moor("rotate", "--all")[1].splitlines()) == 3
    assert moor("rotate", "carl")[0] == 2


def hosts_of(moor):
    items = json.loads(moor("show", "-o", "json")[1])["items"]
    return next(item["hosts"] for item in items if item["kind"] == "server")


def test_a_name_more_is_beside_those_that_were_there(moor):
    moor("init", "--name", "pod1.example.org", "--name", "10.0.0.5")
    code, out, _ = moor("rotate", "--name", "new.example.org", "--name", "10.0.0.5")
    hosts = ["pod1.example.org", "localhost", "new.example.org", "10.0.0.5", "127.0.0.1", "::1"]
    assert (code, out) == (0, f"the controllers' certificate is new, for {', '.join(hosts)}\n")
    assert hosts_of(moor) == hosts
    assert moor("rotate", "--controllers")[1] == out
    assert hosts_of(moor) == hosts


def test_a_name_is_taken_out_and_loopback_stays(moor):
    moor("init", "--name", "pod1.example.org", "--name", "old.example.org")
    code, out, _ = moor("rotate", "--only", "--name", "pod1.example.org")
    hosts = ["pod1.example.org", "localhost", "127.0.0.1", "::1"]
    assert (code, out) == (0, f"the controllers' certificate is new, for {', '.join(hosts)}\n")
    assert hosts_of(moor) == hosts


def test_a_certificate_that_has_lost_its_loopback_names_gets_them_back(pki):
    names = pki.renew_server([], NOW, 365)
    assert names == ("pod1.example.org", "localhost", "127.0.0.1", "::1")


def test_a_lost_certificate_is_made_anew_for_the_names_that_are_said(moor, tmp_path):
    moor("init", "--name", "pod1.example.org")
    (tmp_path / "moorings" / "pki" / "server.pem").unlink()
    assert moor("rotate", "--controllers")[0] == 2
    assert moor("rotate", "--name", "pod2.example.org")[0] == 0
    assert hosts_of(moor) == ["pod2.example.org", "localhost", "127.0.0.1", "::1"]


def test_a_key_that_does_not_fit_is_shown_and_mended(moor, tmp_path):
    moor("init")
    moor("issue", "ann")
    folder = tmp_path / "moorings" / "pki"
    client_key(folder, "ann").write_bytes((folder / "server.key").read_bytes())
    assert "WRONG_KEY" in moor("show")[1]
    assert moor("rotate")[1].startswith("the certificate of ann is new")
    assert "WRONG_KEY" not in moor("show")[1]


def test_what_cannot_be_asked_together(moor):
    moor("init")
    assert moor("rotate", "--ca", "--drop-old")[0] == 2
    assert moor("rotate", "--ca", "ann")[0] == 2
    assert moor("rotate", "--only")[0] == 2
    assert moor("init", "/a", "--dir", "/b")[0] == 2
    assert moor("issue", "ann", "--days", "0")[0] == 2


def test_no_other_command_pays_for_it():
    code = "import sys, moorings.cli.main, moorings.cli.commands.pki; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- what the doctor says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "verdict"), [(-1, CheckStatus.FAIL), (0, CheckStatus.WARN), (29, CheckStatus.WARN), (30, CheckStatus.PASS)]
)
def test_how_long_is_long_enough(days, verdict):
    assert check_certificate_expiry("host.tls", "it", days, "renew it").verdict is verdict
    assert check_client_certificate("f", "", days).verdict is verdict
    assert check_client_certificate("f", "the key has mode 0644", days).verdict is CheckStatus.FAIL
    assert check_tls(["a"], ["a"], fits=True, key_fault="", days_left=days).verdict is verdict


def test_what_is_wrong_with_a_controllers_certificate():
    good: dict[str, Any] = {"names": ["a.org"], "wanted": ["a.org"], "fits": True, "key_fault": "", "days_left": 99}
    assert check_tls(**good).verdict is CheckStatus.PASS
    for wrong, told in (
        ({"fits": False}, "tls_key is not the key"),
        ({"key_fault": "has mode 0644"}, "mode 0644"),
        ({"wanted": ["a.org", "10.0.0.1"]}, "does not name 10.0.0.1"),
    ):
        found = check_tls(**{**good, **wrong})
        assert found.verdict is CheckStatus.FAIL
        assert told in found.evidence
    assert "--name a.org --name 10.0.0.1" in check_tls(**{**good, "wanted": ["10.0.0.1"]}).fix


@cases(
    ("names", "host", "same"),
    [
        (["a.example.org"], "A.example.org", True),
        (["a.example.org"], "a.example.org.", True),
        (["*.example.org"], "a.example.org", True),
        (["*.example.org"], "a.b.example.org", False),
        (["*.example.org"], "example.org", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["10.0.0.1"], "10.0.0.10", False),
        (["*.0.0.1"], "10.0.0.1", False),
        (["::1"], "0:0::1", True),
        ([], "a", False),
    ],
)
def test_which_hosts_a_certificate_is_for(names, host, same):
    assert is_name_covered(names, host) is same
