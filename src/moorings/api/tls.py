"""Who is connected: it goes into the ASGI scope, where no header can reach it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from moorings.core.model.access import CONTROLLER_URI, SUBJECT_URI, Peer

# In the ASGI scope:
PEER: Final = "moorings.peer"  # the name in the client's certificate, if one is required
PERSON: Final = "moorings.person"  # the uid of the process behind a Unix socket


def peer_of(certificate: Mapping[str, Any]) -> Peer:
    """The name in a certificate, from the result of ``ssl.SSLSocket.getpeercert``.

    The URI ``moorings:subject/<subject>`` among its alternative names, else its common name. Several names count as
    none.
    """
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    subjects = [uri.removeprefix(SUBJECT_URI) for uri in uris if uri.startswith(SUBJECT_URI)]
    controller = CONTROLLER_URI in uris
    if not subjects and not controller:
        pairs = (pair for relative in certificate.get("subject", ()) for pair in relative)
        subjects = [value for kind, value in pairs if kind == "commonName"]
    named = subjects[0] if len(subjects) == 1 and not controller else ""
    return Peer(named, controller, float(ssl.cert_time_to_seconds(certificate["notAfter"])))
