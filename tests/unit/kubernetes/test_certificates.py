"""The webhooks' certificates: judged by OpenSSL and by handshakes, over years of renewals, with rivals."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

from moorings.app.kubernetes_certgen import create, main, make_parser, patch
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import MUTATING_WEBHOOK, SECRET, VALIDATING_WEBHOOK, KubeError
from moorings.kubernetes.kube.certificates import (
    OVERLAP,
    PROPAGATION,
    SKEW,
    CertificateBundle,
    build_secret,
    build_secret_data,
    expires_at,
    make_certificates,
    parse_secret,
    plan_rotation,
    service_names,
)
from moorings.kubernetes.kube.serving_certificate import (
    RECONCILE_S,
    CertificateRotator,
    ConfigMapTrustStore,
    WebhookTrustStore,
    load_certificate,
)
from moorings.kubernetes.proxy_api.trust import ProxyTrustInformer
from moorings.net.tls import make_bare_context
from moorings.pki.authority import AUTHORITY_DAYS, CERTIFICATE_DAYS
from tests.unit.kubernetes.objects_kept import KeptObjects, SetClock
from tests.waiting import patient

START = datetime(2026, 3, 1, tzinfo=UTC)
NAMES = service_names("hooks", "moor", ["10.1.2.3", "fd00::1"])
FULL = "hooks.moor.svc"
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
AUTHORITY_LIFE, SERVING_LIFE = timedelta(days=AUTHORITY_DAYS), timedelta(days=CERTIFICATE_DAYS)


@pytest.fixture(scope="module")
def made():
    return make_certificates(NAMES, START)


def openssl(folder: Path, held: CertificateBundle, at: datetime, *more: str, ca: bytes | None = None) -> str:
    """What OpenSSL says of a certificate at a time; empty: nothing is wrong."""
    (folder / "ca.pem").write_bytes(held.ca if ca is None else ca)
    (folder / "cert.pem").write_bytes(held.cert)
    words = ["openssl", "verify", "-x509_strict", "-no-CApath", "-CAfile", "ca.pem", "-purpose", "sslserver"]
    words += ["-attime", str(int(at.timestamp())), *more, "cert.pem"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=patient(30))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def shake(server: ssl.SSLContext, ca: bytes, name: str) -> str:
    """A handshake in memory with a strict client; empty, or what the client has against it."""
    client = ssl.create_default_context(cadata=ca.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return error.reason or str(error)
    return "" if len(done) == 2 else "it has no end"


def foreign(folder: Path, days: int, names: str = "hooks,hooks.moor.svc") -> CertificateBundle:
    """As kube-webhook-certgen makes them: an authority whose key nobody keeps. They begin now, by the real clock."""
    subject = ",".join(f"DNS:{name}" for name in names.split(","))
    run = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        str(days),
    ]
    usage = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
    ca = ["-subj", "/O=nil1", "-keyout", "ca.key", "-out", "ca.crt", *usage]
    leaf = ["-subj", "/O=nil2", "-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "key", "-out", "cert"]
    leaf += ["-addext", f"subjectAltName={subject}", "-addext", "basicConstraints=critical,CA:false"]
    for words in (ca, leaf):
        subprocess.run([*run, *words], cwd=folder, check=True, capture_output=True, timeout=patient(60))
    return CertificateBundle(*((folder / name).read_bytes() for name in ("ca.crt", "cert", "key")))


# -- what is made ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hooks", "hooks.moor", "hooks.moor.svc", "hooks.moor.svc.cluster.local"])
def test_openssl_takes_it_for_every_name_of_the_service(made, tmp_path, name):
    assert openssl(tmp_path, made, START, "-verify_hostname", name) == ""


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::1"])
def test_and_for_addresses(made, tmp_path, address):
    assert openssl(tmp_path, made, START, "-verify_ip", address) == ""


def test_and_for_nothing_else(made, tmp_path):
    assert "hostname mismatch" in openssl(tmp_path, made, START, "-verify_hostname", "hooks.other.svc")
    assert "expired" in openssl(tmp_path, made, START + SERVING_LIFE + MINUTE)
    assert "not yet valid" in openssl(tmp_path, made, START - SKEW - MINUTE)


def test_a_clock_that_is_behind_takes_it(made, tmp_path):
    assert openssl(tmp_path, made, START - SKEW + MINUTE) == ""


def test_another_authority_is_not_believed(made, tmp_path):
    assert openssl(tmp_path, made, START, ca=make_certificates(NAMES, START).ca) != ""


def test_the_authority_signs_no_other_authority(made, tmp_path):
    (tmp_path / "ca.pem").write_bytes(made.ca)
    words = ["openssl", "x509", "-in", "ca.pem", "-noout", "-ext", "basicConstraints,keyUsage"]
    text = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "CA:TRUE, pathlen:0" in text
    assert "Certificate Sign, CRL Sign" in text


@pytest.mark.parametrize("name", ["hooks:9443", "https://hooks", "", "a b", "x" * 254])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(MooringsError) as caught:
        make_certificates([name], START)
    assert caught.value.code == "webhook.invalid"
    assert "without port" in caught.value.hint


def test_keys_are_not_shown(made):
    assert "PRIVATE" not in f"{made!r} {made}"


def test_a_secret_holds_it_whole(made):
    secret = build_secret("moor", "hooks-tls", build_secret_data(made))
    assert secret["type"] == "Opaque"
    assert set(secret["data"]) == {"ca", "cert", "key", "ca-key"}
    assert parse_secret(secret) == made


# -- when it is renewed ------------------------------------------------------------------------------------------------


def test_it_stays_until_a_third_of_its_life_is_left(made):
    life = SERVING_LIFE + SKEW
    due = START + SERVING_LIFE - life / 3
    assert plan_rotation(made, NAMES, [made.ca], START) is None
    assert plan_rotation(made, NAMES, [made.ca], due - MINUTE) is None
    renewed = plan_rotation(made, NAMES, [made.ca], due + MINUTE)
    assert renewed is not None
    assert renewed.ca == made.ca
    assert renewed.cert != made.cert
    assert expires_at(renewed) == due + MINUTE + SERVING_LIFE


def is_taken(serving: CertificateBundle, believed: CertificateBundle, now: datetime) -> bool:
    """Whether a caller that believes one bundle takes what a replica serves."""
    end = taken_until(serving.cert, believed.ca)
    return end is not None and now < end


@cache  # a history looks at the same two thousands of times
def taken_until(cert: bytes, bundle: bytes) -> datetime | None:
    leaf = load_pem_x509_certificate(cert)
    for authority in load_pem_x509_certificates(bundle):
        with contextlib.suppress(ValueError, InvalidSignature):
            leaf.verify_directly_issued_by(authority)
            return min(leaf.not_valid_after_utc, authority.not_valid_after_utc)
    return None


def test_there_is_no_moment_at_which_a_call_would_fail(made):
    """Thirty years, looked at now and then: whatever a slow replica serves, whoever still believes an old bundle."""
    now, held = START, made
    kept = [(START, made)]  # what the Secret held, and from when on
    steps = [timedelta(minutes=2)] * 5 + [timedelta(hours=7)] * 30 + [timedelta(days=23)] * 9
    for number in range(2500):
        now += steps[number % len(steps)]
        changed = plan_rotation(held, NAMES, [held.ca], now)
        if changed is not None:
            held = changed
            kept.append((now, held))
        slow = [one for at, one in kept if at <= now - OVERLAP + timedelta(hours=12)][-1:]
        late = [one for at, one in kept if at <= now - PROPAGATION + MINUTE][-1:]
        for serving in (held, *slow):
            for believed in (held, *late):
                assert is_taken(serving, believed, now), now
    assert now > START + 2 * AUTHORITY_LIFE
    assert len({one.cert for _, one in kept}) > 30  # the loop has tested something
    assert len({one.ca for _, one in kept}) > 4


def test_a_new_authority_comes_first_then_its_certificate_then_the_old_one_leaves(made, tmp_path):
    now = START + AUTHORITY_LIFE * 2 / 3 + DAY
    old = plan_rotation(made, NAMES, [made.ca], now - 30 * DAY)
    assert old is not None
    assert old.ca == made.ca

    first = plan_rotation(old, NAMES, [old.ca], now)
    assert first is not None
    assert (first.cert, first.key) == (old.cert, old.key)
    assert first.ca.startswith(old.ca)
    assert first.ca_key != old.ca_key

    assert plan_rotation(first, NAMES, [first.ca], now + PROPAGATION - MINUTE) is None, (
        "not every API server has heard of it"
    )
    assert plan_rotation(first, NAMES, [first.ca, old.ca], now + DAY) is None, (
        "one webhook still believes the old one alone"
    )
    later = now + PROPAGATION + MINUTE
    second = plan_rotation(first, NAMES, [first.ca], later)
    assert second is not None
    assert second.ca == first.ca
    for bundle in (first.ca, second.ca):
        assert openssl(tmp_path, second, later, "-verify_hostname", FULL, ca=bundle) == ""
    assert openssl(tmp_path, second, later, ca=old.ca) != "", "it is of the new authority"

    assert plan_rotation(second, NAMES, [second.ca], later + OVERLAP - MINUTE) is None
    third = plan_rotation(second, NAMES, [second.ca], later + OVERLAP + MINUTE)
    assert third is not None
    assert third.cert == second.cert
    assert third.ca == second.ca.removeprefix(old.ca)
    assert openssl(tmp_path, third, later, "-verify_hostname", FULL) == ""
    assert plan_rotation(third, NAMES, [third.ca], later + OVERLAP + DAY) is None


def test_another_name_is_put_in(made):
    more = (*NAMES, "hooks.example.org")
    renewed = plan_rotation(made, more, [made.ca], START + DAY)
    assert renewed is not None
    assert plan_rotation(renewed, more, [renewed.ca], START + DAY) is None


def test_a_clock_that_went_back_changes_nothing(made):
    assert plan_rotation(made, NAMES, [made.ca], START - 400 * DAY) is None


def damaged(made: CertificateBundle) -> dict[str, CertificateBundle]:
    other = make_certificates(NAMES, START)
    return {
        "no certificate": CertificateBundle(made.ca, b"nothing", made.key, made.ca_key),
        "no key": CertificateBundle(made.ca, made.cert, b"nothing", made.ca_key),
        "another's key": CertificateBundle(made.ca, made.cert, other.key, made.ca_key),
        "another's authority": CertificateBundle(other.ca, made.cert, made.key, other.ca_key),
        "no authority": CertificateBundle(b"nothing", made.cert, made.key, made.ca_key),
        "nothing": CertificateBundle(b"x", b"x", b"x", b"x"),
    }


@pytest.mark.parametrize("what", list(damaged(make_certificates(NAMES, START))))
def test_what_nobody_would_take_is_made_anew_at_once(made, what, tmp_path):
    renewed = plan_rotation(damaged(made)[what], NAMES, [], START + DAY)
    assert renewed is not None
    assert openssl(tmp_path, renewed, START + DAY, "-verify_hostname", FULL) == ""
    assert plan_rotation(renewed, NAMES, [renewed.ca], START + DAY) is None


def test_one_that_has_expired_is_made_anew_at_once_by_the_authority_everybody_believes(made, tmp_path):
    renewed = plan_rotation(made, NAMES, [], START + SERVING_LIFE + DAY)
    assert renewed is not None
    assert renewed.ca == made.ca
    assert openssl(tmp_path, renewed, START + SERVING_LIFE + DAY, ca=made.ca) == ""


def test_an_authority_that_has_expired_too(made, tmp_path):
    now = START + AUTHORITY_LIFE + DAY
    renewed = plan_rotation(made, NAMES, [], now)
    assert renewed is not None
    assert made.ca not in renewed.ca
    assert openssl(tmp_path, renewed, now) == ""


# -- somebody else's ---------------------------------------------------------------------------------------------------


def test_one_that_was_deleted_is_believed_while_other_replicas_still_serve_it(made, tmp_path):
    later = START + DAY
    new = plan_rotation(None, NAMES, [made.ca, b"", made.ca], later)
    assert new is not None
    assert openssl(tmp_path, new, later) == ""
    assert openssl(tmp_path, made, later, ca=new.ca) == ""
    assert len(load_pem_x509_certificates(new.ca)) == 2
    gone = plan_rotation(new, NAMES, [new.ca], later + OVERLAP)
    assert gone is not None
    assert openssl(tmp_path, made, later + OVERLAP, ca=gone.ca) != ""
    assert openssl(tmp_path, new, later + OVERLAP, ca=gone.ca) == ""


def test_a_secret_of_kube_webhook_certgen_is_honoured(tmp_path):
    now = datetime.now(UTC)
    held = foreign(tmp_path, 36500)
    assert openssl(tmp_path, held, now + DAY, "-verify_hostname", FULL) == ""
    assert plan_rotation(held, NAMES, [held.ca], now + DAY) is None
    assert plan_rotation(held, NAMES, [held.ca], now + 60 * 365 * DAY) is None


def test_near_its_end_it_is_replaced_with_an_overlap(tmp_path):
    now = datetime.now(UTC) + 70 * DAY
    held = foreign(tmp_path, 100)
    first = plan_rotation(held, NAMES, [held.ca], now)
    assert first is not None
    assert (first.cert, first.key) == (held.cert, held.key)
    assert first.ca.startswith(held.ca)
    second = plan_rotation(first, NAMES, [first.ca, first.ca], now + PROPAGATION + MINUTE)
    assert second is not None
    assert openssl(tmp_path, second, now + DAY, "-verify_hostname", "hooks.moor.svc.cluster.local") == ""
    third = plan_rotation(second, NAMES, [second.ca], now + OVERLAP + DAY)
    assert third is not None
    assert held.ca not in third.ca


def test_one_for_other_names_is_of_no_use_and_goes_at_once(tmp_path):
    now = datetime.now(UTC)
    held = foreign(tmp_path, 100, names="other,other.moor.svc")
    renewed = plan_rotation(held, NAMES, [held.ca], now)
    assert renewed is not None
    assert openssl(tmp_path, renewed, now, "-verify_hostname", FULL) == ""
    assert renewed.ca.startswith(held.ca)


# -- serving -----------------------------------------------------------------------------------------------------------


def test_what_is_taken_is_what_the_next_connection_meets():
    now = datetime.now(UTC)
    first, second = make_certificates(NAMES, now), make_certificates(NAMES, now)
    context = make_bare_context()
    assert shake(context, first.ca, FULL) != ""
    load_certificate(context, first)
    assert shake(context, first.ca, FULL) == ""
    load_certificate(context, second)
    assert shake(context, second.ca, FULL) == ""
    assert shake(context, first.ca, FULL) == "CERTIFICATE_VERIFY_FAILED"


def test_what_cannot_be_served_leaves_it_as_it_is():
    now = datetime.now(UTC)
    first, second = make_certificates(NAMES, now), make_certificates(NAMES, now)
    context = make_bare_context()
    load_certificate(context, first)
    with pytest.raises(MooringsError) as caught:
        load_certificate(context, CertificateBundle(second.ca, second.cert, first.key))
    assert caught.value.code == "webhook.invalid"
    assert "delete the Secret" in caught.value.hint
    assert shake(context, first.ca, FULL) == ""


# -- the keeper --------------------------------------------------------------------------------------------------------


def configuration(kind, count=2):
    hooks = [
        {"name": f"h{number}.graphcore.ai", "failurePolicy": "Ignore", "clientConfig": {"service": {"name": "hooks"}}}
        for number in range(count)
    ]
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "gc-hooks"}, "webhooks": hooks}


def keeper(kube, clock):
    return CertificateRotator(
        kube, clock, namespace="moor", secret="hooks-tls", callers=WebhookTrustStore(kube, "gc-hooks"), names=NAMES
    )


@pytest.fixture
def kube():
    made = KeptObjects()
    for kind in (MUTATING_WEBHOOK, VALIDATING_WEBHOOK):
        made.put(kind, configuration(kind))
    return made


def kept(kube) -> CertificateBundle:
    found = parse_secret(kube.objects["Secret", "moor", "hooks-tls"])
    assert found is not None
    return found


def bundles(kube) -> set[bytes]:
    hooks = (hook for (kind, _, _), one in kube.objects.items() if "Webhook" in kind for hook in one["webhooks"])
    return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks}


async def test_the_first_makes_it_and_tells_the_api_server(kube):
    ours = keeper(kube, SetClock(datetime.now(UTC)))
    assert not ours.is_ready
    await ours.prepare()
    assert ours.is_ready
    held = kept(kube)
    assert bundles(kube) == {held.ca}
    assert shake(ours.context, held.ca, FULL) == ""


async def test_nothing_is_written_where_nothing_has_changed(kube):
    ours = keeper(kube, SetClock(START))
    await ours.prepare()
    kube.calls.clear()
    await ours.reconcile()
    assert {call.split()[0] for call in kube.calls} == {"get"}


async def test_of_many_replicas_one_makes_it_and_all_serve_it(kube):
    replicas = [keeper(kube, SetClock(datetime.now(UTC))) for _ in range(4)]
    await asyncio.gather(*(replica.prepare() for replica in replicas))
    assert kube.calls["create Secret"] == 4, "they did race"
    assert bundles(kube) == {kept(kube).ca}
    for replica in replicas:
        assert shake(replica.context, kept(kube).ca, FULL) == ""


async def test_and_one_of_them_renews_it(kube):
    clock = SetClock(datetime.now(UTC) - 250 * DAY)  # so that what is renewed is good by the real clock
    replicas = [keeper(kube, clock) for _ in range(3)]
    await asyncio.gather(*(replica.prepare() for replica in replicas))
    before = kept(kube)
    kube.calls.clear()
    clock.at = datetime.now(UTC)
    await asyncio.gather(*(replica.reconcile() for replica in replicas))
    after = kept(kube)
    assert kube.calls["replace Secret"] == 3, "they did race"
    assert after.cert != before.cert
    assert after.ca == before.ca
    served = make_bare_context()
    load_certificate(served, after)
    for replica in replicas:
        assert shown(replica.context) == shown(served)


def shown(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a server shows."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = client.wrap_bio(one, other), context.wrap_bio(other, one, server_side=True)
    for side in (ours, theirs, ours, theirs):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return ours.getpeercert(binary_form=True)


async def test_an_authority_is_replaced_step_by_step_while_everybody_is_believed(kube):
    clock = SetClock(datetime.now(UTC) - AUTHORITY_LIFE * 2 / 3 - DAY)
    ours = keeper(kube, clock)
    await ours.prepare()
    first = kept(kube).ca
    clock.at = datetime.now(UTC) - SKEW - PROPAGATION - MINUTE
    for _ in range(2):  # the certificate, long expired, first
        await ours.reconcile()
        assert shake(ours.context, next(iter(bundles(kube))), FULL) == ""
    both = kept(kube).ca
    assert both.startswith(first)
    assert len(both) > len(first)
    assert bundles(kube) == {both}
    clock.at = datetime.now(UTC)
    await ours.reconcile()
    assert shake(ours.context, both.removeprefix(first), FULL) == ""
    clock.at += OVERLAP + DAY
    await ours.reconcile()
    assert bundles(kube) == {both.removeprefix(first)}


async def test_configurations_that_come_later_are_told_then(caplog):
    kube = KeptObjects()
    ours = keeper(kube, SetClock(START))
    await ours.prepare()
    await ours.reconcile()
    missing = [record for record in caplog.records if record.message == "webhook.configuration_missing"]
    assert len(missing) == 2, "each is told once"
    kube.put(VALIDATING_WEBHOOK, configuration(VALIDATING_WEBHOOK, count=1))
    await ours.reconcile()
    assert bundles(kube) == {kept(kube).ca}


async def test_a_config_map_tells_everybody_which_authorities_are_good():
    kube: Any = KeptObjects()
    clock = SetClock(datetime.now(UTC) - AUTHORITY_LIFE * 2 / 3 - 8 * DAY)
    callers = ConfigMapTrustStore(kube, "moor", "proxy-ca")
    ours = CertificateRotator(
        kube, clock, namespace="moor", secret="proxy-tls", callers=callers, names=NAMES, spread=7 * DAY
    )
    told: list[str] = []
    trust = ProxyTrustInformer(kube, "moor", "proxy-ca", told.append)
    await trust.refresh()
    await ours.prepare()
    await trust.refresh()
    await trust.refresh()
    held = parse_secret(kube.objects["Secret", "moor", "proxy-tls"])
    assert held is not None
    assert told == [held.ca.decode()], "when there is news"
    kube.calls.clear()
    await ours.reconcile()
    assert {call.split()[0] for call in kube.calls} == {"get"}

    clock.at = datetime.now(UTC) - 6 * DAY
    await ours.reconcile()  # the certificate, long expired
    await ours.reconcile()
    await trust.refresh()
    both = told[-1]
    assert both.startswith(told[0])
    assert len(both) > len(told[0])
    served = shown(ours.context)
    clock.at = datetime.now(UTC)
    await ours.reconcile()
    assert shown(ours.context) == served, "a launcher made a week ago would not know the new authority"
    clock.at += 2 * DAY
    await ours.reconcile()
    assert shown(ours.context) != served

    del kube.objects["Secret", "moor", "proxy-tls"]
    await ours.reconcile()
    await trust.refresh()
    assert told[-1].startswith(both), "other replicas serve what was there before"


async def test_what_others_wrote_into_the_secret_stays(kube):
    body = build_secret("moor", "hooks-tls", {"ca": "!", "note": "bm90ZQ=="})
    kube.put(SECRET, body | {"metadata": body["metadata"] | {"labels": {"theirs": "yes"}}}, "moor")
    await keeper(kube, SetClock(START)).prepare()
    found = kube.objects["Secret", "moor", "hooks-tls"]
    assert found["data"]["note"] == "bm90ZQ=="
    assert found["metadata"]["labels"] == {"theirs": "yes"}
    assert kept(kube).ca_key


async def test_an_api_server_that_is_away_is_waited_for(kube):
    clock = SetClock(START)
    kube.fail = [KubeError(0, "", "it is away"), KubeError(429, "", "later", retry_after_s=7.0)]
    ours = keeper(kube, clock)
    await ours.prepare()
    assert ours.is_ready
    assert clock.slept_s == [1.0, 7.0]


async def test_a_refusal_ends_the_start_and_says_which_rights_are_missing(kube):
    kube.fail = [KubeError(403, "Forbidden", "secrets is forbidden")]
    with pytest.raises(MooringsError) as caught:
        await keeper(kube, SetClock(START)).prepare()
    assert caught.value.code == "kubernetes.refused"
    assert "get, create and update Secrets in moor" in caught.value.hint


async def test_it_goes_on_looking_whatever_happens(kube, caplog):
    clock = SetClock(START)
    ours = keeper(kube, clock)
    await ours.prepare()
    kube.fail = [KubeError(403, "Forbidden", "no"), KubeError(0, "", "away"), KubeError(500, "", "broken")]
    work = asyncio.create_task(ours.run())
    async with asyncio.timeout(patient(10)):
        while RECONCILE_S not in clock.slept_s:  # noqa: ASYNC110 - the clock's sleep is what is awaited
            await asyncio.sleep(0)
    work.cancel()
    assert clock.slept_s[:4] == [1.0, 2.0, 4.0, RECONCILE_S]
    assert len([record for record in caplog.records if record.message == "certificate.unkept"]) == 3


# -- kube-webhook-certgen's command line -------------------------------------------------------------------------------

HOSTS = "hooks,hooks.moor.svc"
CREATE = ["create", f"--host={HOSTS}", "--namespace=moor", "--secret-name=hooks-tls"]
PATCH = ["patch", "--webhook-name=gc-hooks", "--namespace=moor", "--secret-name=hooks-tls"]


async def test_create_and_patch_as_the_charts_jobs_run_them(kube, tmp_path):
    await create(kube, make_parser().parse_args(CREATE))
    await patch(kube, make_parser().parse_args([*PATCH, "--patch-failure-policy=Fail"]))
    held = kept(kube)
    assert openssl(tmp_path, held, datetime.now(UTC), "-verify_hostname", FULL) == ""
    assert bundles(kube) == {held.ca}
    hooks = kube.objects["MutatingWebhookConfiguration", None, "gc-hooks"]["webhooks"]
    assert [hook["failurePolicy"] for hook in hooks] == ["Fail", "Fail"]
    kube.calls.clear()
    await create(kube, make_parser().parse_args(CREATE))
    await patch(kube, make_parser().parse_args(PATCH))
    assert kept(kube) == held
    assert not {call for call in kube.calls if call.startswith("replace")}
    assert {hook["failurePolicy"] for hook in hooks} == {"Fail"}


async def test_the_operator_goes_on_with_what_create_made(kube):
    await create(kube, make_parser().parse_args(CREATE))
    made = kept(kube)
    ours = keeper(kube, SetClock(datetime.now(UTC)))
    await ours.prepare()
    assert kept(kube) == made
    assert shake(ours.context, made.ca, FULL) == ""


async def test_the_keys_of_the_secret_can_be_called_otherwise(kube):
    names = ["--ca-name", "a.crt", "--cert-name", "tls.crt", "--key-name", "tls.key"]
    await create(kube, make_parser().parse_args([*CREATE, *names]))
    assert set(kube.objects["Secret", "moor", "hooks-tls"]["data"]) == {"a.crt", "tls.crt", "tls.key", "ca-key"}
    await patch(kube, make_parser().parse_args([*PATCH, "--ca-name=a.crt"]))
    assert bundles(kube) != {b""}


@pytest.mark.parametrize("form", [["--patch-mutating=false"], ["--patch-mutating", "false"], ["--patch-mutating=F"]])
async def test_one_of_the_two_can_be_left_out(kube, form):
    await create(kube, make_parser().parse_args(CREATE))
    await patch(kube, make_parser().parse_args([*PATCH, *form, "--patch-validating"]))
    assert kube.calls["replace MutatingWebhookConfiguration"] == 0
    assert kube.calls["replace ValidatingWebhookConfiguration"] == 1


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--patch-mutating=false", "--patch-validating=false"], "webhook.invalid", "nothing to patch"),
        (["--patch-failure-policy=Maybe"], "webhook.invalid", "'Maybe' is no failure policy"),
        (["--secret-name=other"], "webhook.not_found", "no Secret moor/other"),
        (["--webhook-name=other"], "webhook.not_found", "no MutatingWebhookConfiguration other"),
        (["--ca-name=other"], "webhook.not_found", "has no 'other'"),
    ],
)
async def test_what_cannot_be_patched_is_told(kube, more, code, words):
    await create(kube, make_parser().parse_args(CREATE))
    with pytest.raises(MooringsError, match=words) as caught:
        await patch(kube, make_parser().parse_args([*PATCH, *more]))
    assert caught.value.code == code


async def test_no_host_is_no_certificate(kube):
    with pytest.raises(MooringsError, match="names no host"):
        await create(kube, make_parser().parse_args([*CREATE, "--host= ,"]))


async def test_a_race_for_a_configuration_is_run_again(kube):
    await create(kube, make_parser().parse_args(CREATE))
    given = make_parser().parse_args(PATCH)
    await asyncio.gather(
        patch(kube, given), patch(kube, make_parser().parse_args([*PATCH, "--patch-failure-policy=Fail"]))
    )
    assert bundles(kube) == {kept(kube).ca}
    hooks = kube.objects["ValidatingWebhookConfiguration", None, "gc-hooks"]["webhooks"]
    assert {hook["failurePolicy"] for hook in hooks} == {"Fail"}


@pytest.mark.parametrize(
    "words",
    [
        ["--log-level=debug", "--log-format=text", *CREATE],
        [*CREATE, "--log-level", "warn", "--kubeconfig", "/nowhere"],
        ["--kubeconfig=/nowhere", *PATCH],
    ],
)
def test_flags_for_all_commands_stand_before_or_behind(words):
    given = make_parser().parse_args(words)
    assert given.command in ("create", "patch")
    assert getattr(given, "kubeconfig", "/nowhere") == "/nowhere"


@pytest.mark.parametrize("words", [[], ["create"], [*PATCH, "--patch-mutating=perhaps"], [*CREATE, "--hos=a"]])
def test_a_wrong_command_line_is_refused(words):
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args(words)
    assert caught.value.code == 2


def test_the_program_says_what_it_lacks(tmp_path):
    words = ["-m", "moorings.app.kubernetes_certgen", *CREATE, "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run([".venv/bin/python", *words], capture_output=True, text=True, timeout=patient(60))
    assert done.returncode != 0
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["msg"] == "certgen.failed"
    assert said["hint"]


def test_the_program_has_a_version(capsys):
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("moorings ")
