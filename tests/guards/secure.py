"""Guards of law 10 in secure mode: certificate and access key are one person's, and each side knows the other."""

from __future__ import annotations

from tests.guards.guard import Guard

ACCESS = "tests/unit/core/test_access.py::"
SERVER = "tests/unit/api/test_tls.py::"
STANDBY = "tests/unit/api/test_standby_tls.py::"
CONTROLLER = "tests/unit/app/test_tls.py::"
CLIENT = "tests/unit/client/test_tls.py::"
AGENT = "tests/unit/slurm/test_agents_tls.py::"
PKI = "tests/unit/cli/test_pki.py::"
CUT_OFF = "tests/unit/cli/test_pki_cut_off.py::"
PROCESSES = "tests/e2e/test_tls.py::"

SECURE = (
    # -- a certificate and a key are of one subject -----------------------------------------------------------------
    Guard(
        law="10",
        what="another subject's certificate does not go with an access key",
        file="core/model/access.py",
        at="check_certificate_binding",
        cut="peer.subject != caller.subject",
        put="False",
        tests=(
            f"{ACCESS}test_an_access_key_goes_with_its_subjects_certificate",
            f"{SERVER}test_the_certificate_must_be_of_the_keys_subject",
        ),
    ),
    Guard(
        law="10",
        what="only a controller's own certificate hands on what others asked it",
        file="core/model/access.py",
        at="check_certificate_binding",
        cut="peer.is_controller and is_forwarded",
        put="is_forwarded",
        tests=(f"{ACCESS}test_an_access_key_goes_with_its_subjects_certificate",),
    ),
    Guard(
        law="10",
        what="a controller's certificate is no person's",
        file="core/model/access.py",
        at="check_certificate_binding",
        cut="peer.is_controller or peer.subject != caller.subject",
        put="not peer.is_controller and peer.subject != caller.subject",
        tests=(f"{ACCESS}test_an_access_key_goes_with_its_subjects_certificate",),
    ),
    Guard(
        law="10",
        what="each request is held against the certificate of its connection",
        file="api/request_context.py",
        at="RequestContext.identify",
        cut="check_certificate_binding(caller, self.peer, is_forwarded=STANDBY_HEADER in self.headers)",
        put="",
        tests=(f"{SERVER}test_the_certificate_must_be_of_the_keys_subject",),
    ),
    Guard(
        law="10",
        what="a connection's certificate reaches its requests",
        file="api/server.py",
        at="ApiProtocol.connection_made",
        cut="self._peer = peer_of(certificate)",
        put="",
        tests=(f"{SERVER}test_the_certificate_must_be_of_the_keys_subject",),
    ),
    Guard(
        law="10",
        what="one that stands by looks at the caller's certificate itself",
        file="api/forwarding.py",
        at="ForwardingApplication._identify",
        cut="check_certificate_binding(caller, scope.get(PEER))",
        put="",
        tests=(f"{STANDBY}test_it_looks_at_the_certificate_itself",),
    ),
    Guard(
        law="10",
        what="a certificate with two subjects names nobody",
        file="api/tls.py",
        at="peer_of",
        cut="len(subjects) == 1",
        put="subjects",
        tests=(f"{SERVER}test_whom_a_certificate_names",),
    ),
    Guard(
        law="10",
        what="a subject that a certificate names is not put aside for its common name",
        file="api/tls.py",
        at="peer_of",
        cut="not subjects",
        put="True",
        tests=(f"{SERVER}test_whom_a_certificate_names",),
    ),
    Guard(
        law="10",
        what="a connection ends with its client's certificate",
        file="api/server.py",
        at="ApiProtocol.close_if_expired",
        cut="self._peer is not None and now_s >= self._peer.expires_at_s",
        put="False",
        tests=(f"{PROCESSES}test_a_connection_ends_with_its_certificate",),
    ),
    # -- nobody gets in without one ---------------------------------------------------------------------------------
    Guard(
        law="10",
        what="a client without a certificate gets no further than the handshake",
        file="net/tls.py",
        at="make_server_context",
        cut="ssl.CERT_REQUIRED",
        put="ssl.CERT_OPTIONAL",
        tests=(
            f"{CLIENT}test_who_shows_no_certificate_is_told_that_one_is_asked_for",
            f"{AGENT}test_without_its_certificate_it_is_let_in_nowhere",
        ),
    ),
    Guard(
        law="10",
        what="an authority that was dropped opens no connection that was there before",
        file="net/tls.py",
        at="ReloadableContext.renew",
        cut="self._latest = self._make()",
        put="self._make()",
        tests=(f"{SERVER}test_a_context_is_renewed_or_stays_as_it_is",),
    ),
    Guard(
        law="10",
        what="beyond this machine nobody listens without TLS unless it is said",
        file="app/tls.py",
        at="make_tls",
        cut="not settings.plain_http and not is_loopback(settings.host)",
        put="False",
        tests=(f"{CONTROLLER}test_other_addresses_do_unless_it_is_said",),
    ),
    Guard(
        law="10",
        what="an authority of clients without a certificate of our own is no plain HTTP",
        file="app/tls.py",
        at="make_tls",
        cut="if given:",
        put="False",
        tests=(f"{CONTROLLER}test_half_of_it_is_refused",),
    ),
    Guard(
        law="10",
        what="a controller does not start with a private key that others can read",
        file="app/tls.py",
        at="TlsContexts.__init__",
        cut="check_private_key(key)",
        put="",
        tests=(f"{CONTROLLER}test_a_key_that_others_can_read_is_refused",),
    ),
    Guard(
        law="10",
        what="a controller does not take over a private key that others can read",
        file="app/tls.py",
        at="TlsContexts.reload",
        cut="check_private_key(self._key)",
        put="",
        tests=(f"{PROCESSES}test_files_that_cannot_be_used_change_nothing",),
    ),
    # -- clients know whom they tell their key ----------------------------------------------------------------------
    Guard(
        law="10",
        what="the command tells its key to no controller whose certificate is not good",
        file="client/tls.py",
        at="make_context",
        cut="ssl.create_default_context",
        put="ssl._create_unverified_context",
        tests=(
            f"{CLIENT}test_a_servers_certificate_that_is_not_good",
            f"{AGENT}test_it_tells_its_key_to_no_controller_of_another_authority",
        ),
    ),
    Guard(
        law="10",
        what="the command tells its key to no controller of another name",
        file="client/tls.py",
        at="make_context",
        cut="context.minimum_version = ssl.TLSVersion.TLSv1_2",
        put="context.check_hostname = False",
        tests=(f"{CLIENT}test_a_servers_certificate_that_is_not_good",),
    ),
    Guard(
        law="10",
        what="the command shows no certificate whose key others can read",
        file="client/tls.py",
        at="make_context",
        cut="check_private_key(Path(key_file or cert_file))",
        put="",
        tests=(f"{CLIENT}test_files_that_cannot_be_used_are_told_before_anything_is_sent",),
    ),
    Guard(
        law="10",
        what="IsSecure in vipu.conf means TLS",
        file="slurm/host/vipu_conf.py",
        at="VipuConf.server",
        cut="f\"{'https' if self.secure else 'http'}://{host}:{self.api_port}\"",
        put='f"http://{host}:{self.api_port}"',
        tests=(
            f"{AGENT}test_it_shows_its_certificate_and_its_key",
            f"{AGENT}test_it_tells_its_key_to_nobody_who_speaks_plain_http",
        ),
    ),
    Guard(
        law="10",
        what="secure mode in vipu.conf is whole (certificate, key, whom to believe), or refused",
        file="slurm/host/vipu_conf.py",
        at="",
        cut='("user", "client_cert", "client_key", "server_cert")',
        put='("user",)',
        tests=(f"{AGENT}test_secure_mode_is_whole_or_refused",),
    ),
    Guard(
        law="10",
        what="the agent shows the certificate that vipu.conf names",
        file="slurm/host/vipu_conf.py",
        at="VipuConf.endpoint",
        cut='cert_file=str(self.client_cert or "")',
        put="",
        tests=(f"{AGENT}test_it_shows_its_certificate_and_its_key",),
    ),
    Guard(
        law="10",
        what="one that stands by hands no access key to a leader it cannot know",
        file="api/forwarding.py",
        at="ForwardingApplication.__init__",
        cut="True if tls is None else tls",
        put="False",
        tests=(f"{STANDBY}test_an_access_key_goes_to_no_leader_of_another_authority",),
    ),
    Guard(
        law="10",
        what="controllers know each other by certificate and name",
        file="net/tls.py",
        at="make_client_context",
        cut="if ca is not None:\n    load_authorities(context, ca)",
        put="context.check_hostname, context.verify_mode = False, ssl.CERT_NONE",
        tests=(
            f"{SERVER}test_a_client_context_checks_names",
            f"{STANDBY}test_an_access_key_goes_to_no_leader_of_another_authority",
        ),
    ),
    # -- what certificates are made for, and where keys lie ----------------------------------------------------------
    Guard(
        law="10",
        what="a client's certificate cannot pass for a controller's",
        file="pki/authority.py",
        at="issue_client",
        cut="return issue(authority, subject, names, [ExtendedKeyUsageOID.CLIENT_AUTH], now, days)",
        put=(
            "usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]\n"
            "return issue(authority, subject, names, usages, now, days)"
        ),
        tests=(f"{PKI}test_certificates_are_what_openssl_takes_them_for",),
    ),
    Guard(
        law="10",
        what="private keys are written for their owner alone",
        file="pki/files.py",
        at="replace_pair",
        cut="_draft(place.key, key, 0o600)",
        put="_draft(place.key, key, 0o644)",
        tests=(f"{CUT_OFF}test_a_key_is_its_owners_alone_from_the_first_byte",),
    ),
    Guard(
        law="10",
        what="no private key is left where nobody looks for it, whenever its making was cut off",
        file="pki/files.py",
        at="finish_replace",
        cut="_remove(waiting)",
        put="",
        tests=(f"{CUT_OFF}test_half_a_draft_is_taken_away",),
    ),
    Guard(
        law="10",
        what="an authority whose key has not got to its place yet is finished, not forgotten",
        file="pki/files.py",
        at="finish_replace",
        cut="if finished:",
        put="False",
        tests=(
            f"{CUT_OFF}test_said_again_it_goes_on_or_starts_anew[a new authority]",
            f"{CUT_OFF}test_an_authoritys_key_elsewhere_waits_for_who_names_it",
        ),
    ),
    Guard(
        law="10",
        what="an older authority's key signs nothing, and drops no newer authority",
        file="pki/folder.py",
        at="CertificateStore._authority",
        cut="if matches_key(newest, key):\n    return newest, key",
        put="for newest in (newest, *older):\n    if matches_key(newest, key):\n        return newest, key",
        tests=(f"{CUT_OFF}test_a_key_that_no_run_can_finish_is_told_and_mended",),
    ),
)
