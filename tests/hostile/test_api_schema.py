"""The whole API, from its own description: nothing that fits it breaks, and nothing that does not fit is taken.

Schemathesis makes the requests from the OpenAPI document and sends them to a real controller over HTTP. What it cannot
ask for here: streams and long waits (``test_starving``), and bodies of hundreds of megabytes, which it would build to
try the limits of a command's arguments (``tests/unit/api/test_bad_requests.py`` has those).
"""

import copy
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode

from moorings.api import openapi
from moorings.core.model.access import Role
from moorings.wire.codec import decode
from moorings.wire.errors import ERRORS
from moorings.wire.shapes import ProblemBody
from tests.hostile.effort import tried
from tests.hostile.harbour import Harbour
from tests.waiting import patient

LARGE = 1000
# The core refuses what the document cannot say (64 devices in 48 GCDs); these say that the form itself was not read.
OF_FORM = {"body.invalid", "page.invalid", "key.invalid"}  # the last also of a subject of an access key: not there
STREAMS = ("watch", "follow", "wait")
CHECKS = {"positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", "422", "503"]}}


def lightened(node: Any) -> Any:
    """The document without limits so large that trying them costs more than it tells."""
    if isinstance(node, dict):
        limits = ("maxLength", "maxItems", "maxProperties")
        return {name: lightened(value) for name, value in node.items() if name not in limits or value <= LARGE}
    return [lightened(value) for value in node] if isinstance(node, list) else node


schema = schemathesis.openapi.from_dict(
    lightened(copy.deepcopy(openapi.document())), config=SchemathesisConfig.from_dict({"checks": CHECKS})
)


@schema.parametrize()
@tried(10)
def test_every_operation_keeps_its_word(case: schemathesis.Case, role: Role, port_of_call: Harbour) -> None:
    send(case, port_of_call, role)


def send(case: schemathesis.Case, found: Harbour, role: Role) -> Response | None:
    """Send a request and check the answer; None: it is one that cannot be sent."""
    dropped = [case.query.pop(name) for name in STREAMS if name in case.query]
    if None in case.query.values():
        return None  # would be left out on the way
    if dropped and not positive(case):
        return None  # what was wrong with it may have been just that
    case.headers.pop("Accept", None)  # it may ask for a stream
    if positive(case):
        case.body = whole(case.body)
    answer = case.call(base_url=found.url, headers=found.bearer(role), timeout=patient(60))
    case.validate_response(answer, headers=found.bearer(role))
    if answer.status_code >= 400 and case.method != "HEAD":
        told = decode(ProblemBody, answer.json())
        assert told.code in ERRORS
        assert told.status == answer.status_code
        if positive(case) and told.code in OF_FORM and case.path != "/v1/keys":
            assert "continue" in case.query, f"fits the description, and was refused: {told.detail}"
    return answer


def whole(node: Any) -> Any:
    """JSON Schema takes 4.0 for an integer; the API says that it does not (``EventKey`` in the document)."""
    if isinstance(node, dict):
        return {name: whole(value) for name, value in node.items()}
    if isinstance(node, list):
        return [whole(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def positive(case: schemathesis.Case) -> bool:
    return case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
