"""Makes an owner's claim on one controller, whatever was made, lost or ended before; idempotent."""

from __future__ import annotations

from collections.abc import Mapping

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.claims import NAMES_MAX, InstanceKey, claim_key, claim_request
from moorings.kubernetes.proxy.observed import ClaimPhase, observe_body
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from moorings.wire.shapes import ClaimBody


def make_claim(
    client: Client,
    request: PartitionRequest,
    place: InstanceKey,
    cluster: str,
    projects: Mapping[str, str],
    *,
    waits: bool,
    mark: str = "",
) -> ClaimBody:
    """The owner's unended claim; makes one if there is none. Runs in a thread; idempotent.

    Raises:
        MooringsError: the controller's error.
    """
    owner = place.owner(cluster)
    ended = attempt = 0
    for _ in range(NAMES_MAX):
        wanted = claim_request(request, place, cluster, projects, waits=waits, attempt=attempt, mark=mark)
        try:
            claim = client.create_claim(wanted, claim_key(owner, ended))
        except MooringsError as error:
            if error.code == "claim.name_taken":
                attempt += 1
                continue
            if error.code != "key.conflict":
                raise
        else:
            if observe_body("", claim).phase is not ClaimPhase.ENDED:
                return claim
        found = client.list_claims(ClaimFilter(owner_prefix=owner, all=True))
        own = [one for one in found if one.owner == owner]
        for one in own:
            if observe_body("", one).phase is not ClaimPhase.ENDED:
                return one
        ended = len(own)
    raise MooringsError("controller.busy", f"no claim could be made for {owner}", retryable=True)
