"""The client's side of TLS: trusted authorities, our own certificate, and the causes of a failed handshake in words.

Separate from ``transport``, which is about connections. OpenSSL's own messages ("tlsv13 alert certificate required")
are correct, but do not help the user.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.client.keyfiles import check_private_key
from moorings.core.model.errors import MooringsError

TLS_ALERT_S = 1.0

CA_HINT = "name the authority's PEM file with --ca-file or MOORINGS_CA_FILE"
CERTIFICATE_HINT = "name certificate and key with cert_file and key_file, or MOORINGS_CERT_FILE and MOORINGS_KEY_FILE"

# X509_V_ERR_... of openssl/x509_vfy.h, as in ssl.SSLCertVerificationError.verify_code.
_NOT_YET_VALID, _HAS_EXPIRED = 9, 10
_WRONG_NAMES = (62, 64)  # for a host, for an address

# The server's alert about our certificate: RFC 8446, section 6.2, with OpenSSL's names.
_CERTIFICATE_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": "it is of an authority that the controller does not know",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not good",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not meant for clients",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the controller cannot use it",
    "TLSV1_ALERT_ACCESS_DENIED": "the controller denies it access",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is wrong",
}
_NONE_SHOWN = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


def make_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """The TLS context for a controller; without ``ca_file`` with the system's authorities.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """
    hint = "see 'moor config view --show-origin'"
    for path in filter(None, (ca_file, cert_file, key_file)):
        if not Path(path).is_file():
            raise MooringsError("config.invalid", f"there is no file {path}", hint=hint)
    if bool(key_file) > bool(cert_file):
        raise MooringsError("config.invalid", f"the key {key_file} has no certificate", hint=CERTIFICATE_HINT)
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert_file:
            check_private_key(Path(key_file or cert_file))
            # An empty password: otherwise OpenSSL asks the terminal for one if the key is encrypted.
            context.load_cert_chain(cert_file, key_file or None, password="")
    except ssl.SSLError as error:
        fault = "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else _words(error)
        named = f"{cert_file} with {key_file or cert_file}" if cert_file else ca_file
        raise MooringsError(
            "config.invalid", f"{named} cannot be used: {fault}", hint=f"unencrypted PEM files are wanted; {hint}"
        ) from error
    except OSError as error:
        raise MooringsError("config.invalid", f"a certificate cannot be used: {format_cause(error)}") from error
    return context


def read_tls_alert(connection: http.client.HTTPConnection, error: Exception) -> Exception:
    """The server's alert before it closed the connection; ``error`` if there was none.

    With TLS 1.3 the server checks a client's certificate after the client regards the handshake as done, so the request
    may meet a closed connection while the alert is still unread.
    """
    sock = connection.sock
    if isinstance(sock, ssl.SSLSocket) and isinstance(error, ssl.SSLEOFError | ConnectionError):
        try:
            sock.settimeout(TLS_ALERT_S)
            sock.recv(1)
        except ssl.SSLError as alert:
            return alert if alert.reason else error
        except OSError:
            pass
    return error


def tls_problem(server: str, error: Exception, *, shown: str) -> MooringsError | None:
    """The meaning of a TLS error; None if it is an ordinary lost connection, or not a TLS error.

    Args:
        server: address of the controller.
        error: from the connection.
        shown: the file of our certificate; empty: none.
    """
    if isinstance(error, http.client.BadStatusLine) and error.args and str(error.args[0]).startswith("\x15\x03"):
        return _unreachable(f"{server} speaks TLS", "write https:// instead of http://")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(server, error)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in _CERTIFICATE_ALERTS and shown:
        detail = f"{server} does not take the certificate {shown}: {_CERTIFICATE_ALERTS[reason]}"
        return MooringsError(
            "auth.certificate_refused", detail, hint="ask an admin: 'moor pki issue SUBJECT' makes one"
        )
    if reason in _NONE_SHOWN and not shown:
        detail = f"{server} asks for a client certificate, and none was shown"
        return MooringsError("auth.certificate_refused", detail, hint=CERTIFICATE_HINT)
    if reason in _NO_TLS:
        return _unreachable(f"{server} does not speak TLS", "write http:// if that is meant, or try another port")
    if reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"):
        return _unreachable(f"{server} speaks another version of TLS", "both sides need TLS 1.2 or newer")
    return None


def _untrusted(server: str, error: ssl.SSLCertVerificationError) -> MooringsError:
    code = error.verify_code
    if code == _HAS_EXPIRED:
        return _unreachable(f"the certificate of {server} has expired", "its admin renews it: moor pki rotate")
    if code == _NOT_YET_VALID:
        return _unreachable(f"the certificate of {server} is not good yet", "is this machine's clock right?")
    if code in _WRONG_NAMES:
        return _unreachable(
            f"the certificate of {server} is for another name: {error.verify_message}",
            "call it by a name that stands in it; its admin adds one: moor pki rotate --name HOST",
        )
    return _unreachable(f"the certificate of {server} is not trusted: {error.verify_message}", CA_HINT)


def _unreachable(detail: str, hint: str) -> MooringsError:
    return MooringsError("controller.unreachable", detail, hint=hint)


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
