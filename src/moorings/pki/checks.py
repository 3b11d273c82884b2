"""Checks of certificates for the doctors; values in, findings out. Nothing here loads ``cryptography``."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from moorings.doctor.findings import FAIL, PASS, WARN, Finding

CERTIFICATE_DAYS_WARN = 30


def check_certificate_expiry(check: str, certificate: str, days_left: int, fix: str) -> Finding:
    """Whether a certificate is valid for long enough; ``days_left`` is negative if it has expired."""
    if days_left < 0:
        return Finding(check, FAIL, f"{certificate} has ended {-days_left} days ago", fix)
    if days_left < CERTIFICATE_DAYS_WARN:
        return Finding(check, WARN, f"{certificate} ends in {days_left} days", fix)
    return Finding(check, PASS, f"{certificate} is good for {days_left} days")


def check_client_certificate(file: str, problem: str, days_left: int) -> Finding:
    """Whether this command's client certificate is valid for long enough.

    Args:
        file: its path.
        problem: the fault of its key's file; empty: none.
        days_left: until it expires.
    """
    if problem:
        return Finding("certificate.client", FAIL, problem, "chmod 600 the key, and have a new one issued")
    fix = "ask an admin to renew it: moor pki rotate SUBJECT"
    return check_certificate_expiry("certificate.client", f"the certificate {file}", days_left, fix)


def check_tls(names: Sequence[str], wanted: Sequence[str], fits: bool, key_fault: str, days_left: int) -> Finding:
    """Whether clients can trust the controller's certificate, now and for long enough.

    Args:
        names: hosts and addresses in the certificate.
        wanted: hosts and addresses at which clients reach the controller.
        fits: whether the key belongs to this certificate.
        key_fault: the fault of the key's file, as the end of a sentence; empty: none.
        days_left: until it expires.
    """
    check = "host.tls"
    missing = [host for host in wanted if not is_name_covered(names, host)]
    if not fits:
        return Finding(check, FAIL, "tls_key is not the key of tls_cert", "moor pki rotate --controllers")
    if key_fault:
        return Finding(check, FAIL, f"tls_key {key_fault}", "chmod 600 it, then moor pki rotate --controllers")
    if missing:
        fix = f"moor pki rotate {' '.join(f'--name {host}' for host in [*names, *missing])}"
        return Finding(check, FAIL, f"the certificate does not name {', '.join(missing)}", fix)
    return check_certificate_expiry(check, "the controller's certificate", days_left, "moor pki rotate")


def is_name_covered(names: Sequence[str], host: str) -> bool:
    """Whether a certificate for ``names`` covers a host or an address; ``*`` stands for one first label."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        wanted = host.lower().rstrip(".")
        known = {name.lower() for name in names}
        return wanted in known or f"*.{wanted.partition('.')[2]}" in known
    return str(address) in names
