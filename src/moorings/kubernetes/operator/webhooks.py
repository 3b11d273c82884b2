"""The admission webhooks of IPUJobs. Every replica serves them.

``admit`` decides: an AdmissionReview in, its response out; ``AdmissionRules`` are the rules for a job. A stored job can
always be finished: an update that leaves the spec unchanged passes, so a job that an older release admitted can still
lose its finalizer. An internal error is a refusal with a message, never a status of 500: the API server would retry
that repeatedly.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.pod_security import NO_LIMITS, AdmissionLimits
from moorings.kubernetes.ipujob.types import API_VERSION, GROUP, KIND
from moorings.kubernetes.ipujob.validation import check_ipujob, check_update, default_ipujob
from moorings.kubernetes.kube.api import KubeObject
from moorings.net.bodies import BodyBounds, ClientGoneError, read_body
from moorings.net.limits import BufferedBody, ClientLimit
from moorings.net.problems import problem_response
from moorings.wire.errors import error_kind

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger("moorings.kubernetes.webhooks")

MUTATE = "/mutate-graphcore-ai-v1alpha1-ipujob"
VALIDATE = "/validate-graphcore-ai-v1alpha1-ipujob"
REVIEW = "admission.k8s.io/v1"
BODY_BYTES_MAX = (2 * 3 * 1024 + 64) * 1024  # the old and the new object; the API server takes 3 MiB each
BODY_S = 10.0
BODY_BOUNDS = BodyBounds(BODY_BYTES_MAX, BODY_BYTES_MAX, BODY_S, "review")
BODIES_BYTES_MAX = 64 * 1024 * 1024  # of all requests under way; of one address: half
SMALL_BYTES = 64 * 1024  # larger ones are handled in a thread, one at a time
JSON_VALUES_MAX = 200_000  # of "[", "{" and ",": 0.1 s to parse, while no other thread runs, and 40 MiB of objects
WARNING_CHARS_MAX = 256  # the API server cuts off the rest of longer ones

_FIELD = re.compile(r"(spec|metadata)[][.\w-]*: ")

OLDER = {
    "modelReplicas": "modelReplicasPerWorker and workerPerJobInstance",
    "ipusPerModelReplica": "ipusPerJobInstance",
}


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The rules for a job; each raises MooringsError for a forbidden one.

    Attributes:
        defaults: the JSON patch that adds the defaults of a new job.
        check: checks a new job.
        check_update: checks a change of a spec: the old job, the new one.
    """

    defaults: Callable[[KubeObject], Sequence[KubeObject]]
    check: Callable[[KubeObject], object]
    check_update: Callable[[KubeObject, KubeObject], object]


def make_rules(limits: AdmissionLimits) -> AdmissionRules:
    """The rules with these limits."""
    return AdmissionRules(
        partial(default_ipujob, limits=limits),
        partial(check_ipujob, limits=limits),
        partial(check_update, limits=limits),
    )


RULES = make_rules(NO_LIMITS)
Admit = Callable[
    [AdmissionRules, KubeObject], KubeObject
]  # the request of an AdmissionReview -> its response without the uid


def mutate(rules: AdmissionRules, review: KubeObject) -> KubeObject:
    """The response of the defaulting webhook."""
    if review["operation"] != "CREATE" or not _is_validated(review):
        return {"allowed": True}
    patch = list(rules.defaults(review["object"]))
    if not patch:
        return {"allowed": True}
    text = json.dumps(patch, separators=(",", ":")).encode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}


def validate(rules: AdmissionRules, asked: KubeObject) -> KubeObject:
    """The response of the validating webhook."""
    if not _is_validated(asked):
        return {"allowed": True}
    job = asked["object"]
    if asked["operation"] == "CREATE":
        rules.check(job)
    else:
        rules.check_update(asked["oldObject"], job)
    warnings = list_warnings(job)
    return {"allowed": True, "warnings": warnings} if warnings else {"allowed": True}


def list_warnings(job: KubeObject) -> list[str]:
    """Warnings that kubectl shows for a job that is allowed but odd."""
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return []
    found = [f"spec.{old} is an older name: use {new}" for old, new in OLDER.items() if old in spec]
    policy = spec.get("restartPolicy")
    restarts = isinstance(policy, dict) and policy.get("type") not in (None, "Never")
    if restarts and spec.get("cleanPodPolicy") == "All":
        found.append("spec.cleanPodPolicy All overrides spec.restartPolicy: nothing will be started anew")
    return [text[:WARNING_CHARS_MAX] for text in found]


def admit(decide: Admit, rules: AdmissionRules, review: object) -> KubeObject:
    """The response to an AdmissionReview; errors become refusals.

    Raises:
        MooringsError: ``body.invalid``: it is no AdmissionReview that we know.
    """
    asked = _parse_review(review)
    try:
        answer = decide(rules, asked)
    except MooringsError as error:
        answer = _denied(error_kind(error.code).status, error, asked)
        where = f"{asked.get('namespace')}/{asked.get('name')}"
        log.info("webhook.denied", extra={"job": where, "code": error.code, "detail": error.detail})
    except Exception:
        log.exception("webhook.failed", extra={"uid": asked["uid"], "operation": asked["operation"]})
        fault = MooringsError(
            "internal.error",
            "internal error in the operator's webhook",
            hint=f"its log has it, under the uid {asked['uid']}",
        )
        answer = _denied(500, fault, asked)
    return {"apiVersion": REVIEW, "kind": "AdmissionReview", "response": {"uid": asked["uid"], **answer}}


def _is_validated(asked: KubeObject) -> bool:
    """Whether the request has rules: new jobs, and changes of a spec."""
    job, old = asked.get("object"), asked.get("oldObject")
    if asked["operation"] not in ("CREATE", "UPDATE") or asked.get("subResource") or not isinstance(job, dict):
        return False
    if job.get("kind") != KIND or job.get("apiVersion") != API_VERSION:
        return False  # another kind: a configuration that sends it to us must not block it
    if asked["operation"] == "CREATE":
        return True
    return isinstance(old, dict) and job.get("spec") != old.get("spec")


def _denied(status: int, error: MooringsError, asked: KubeObject) -> KubeObject:
    message = f"{error.detail}; {error.hint}" if error.hint else error.detail
    found = {"status": "Failure", "code": status, "message": message}
    if status != 422:
        return {"allowed": False, "status": found | {"reason": "InternalError" if status >= 500 else "Forbidden"}}
    # For "Invalid" kubectl shows the causes, not the message; each as its field, a colon and its message.
    named = _FIELD.match(message)
    field, rest = (named[0].rstrip(": "), message[named.end() :]) if named else ("spec", message)
    cause = {"reason": "FieldValueInvalid", "field": field, "message": rest}
    details = {"group": GROUP, "kind": KIND, "name": str(asked.get("name") or ""), "causes": [cause]}
    return {"allowed": False, "status": found | {"reason": "Invalid", "details": details}}


def _parse_review(review: object) -> KubeObject:
    asked = review.get("request") if isinstance(review, dict) else None
    if not isinstance(review, dict) or not isinstance(asked, dict):
        raise MooringsError(
            "body.invalid", "this is no AdmissionReview with a request", hint="only API servers ask here"
        )
    if review.get("apiVersion") != REVIEW or review.get("kind") != "AdmissionReview":
        version = str(review.get("apiVersion"))[:80]
        hint = f"the configuration's admissionReviewVersions must have v1, for {REVIEW}"
        raise MooringsError("body.invalid", f"reviews of version {version} are not answered", hint=hint)
    for field in ("uid", "operation"):
        if not isinstance(asked.get(field), str) or not asked[field]:
            raise MooringsError(
                "body.invalid", f"the review's request has no {field}", hint="only API servers ask here"
            )
    return asked


# -- serving -----------------------------------------------------------------------------------------------------------


class ReviewBytes(ClientLimit):
    """The bytes of all reviews under way."""

    def build_refusal(self) -> MooringsError:
        return MooringsError("controller.busy", "too many bytes of reviews are under way", retryable=True)


def make_webhook_app(
    *, is_ready: Callable[[], bool], rules: AdmissionRules = RULES, room: ClientLimit | None = None
) -> Starlette:
    """The webhooks, ``/healthz`` and ``/readyz``.

    Args:
        is_ready: whether this replica is ready.
        rules: the rules for a job.
        room: limits the bytes of reviews under way.
    """
    answering = WebhookHandler(rules, room or ReviewBytes(BODIES_BYTES_MAX))

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        ready = is_ready()
        return PlainTextResponse("ok\n" if ready else "there is no certificate yet\n", 200 if ready else 503)

    return Starlette(
        routes=[
            Route(MUTATE, answering.handler_for(mutate), methods=["POST"]),
            Route(VALIDATE, answering.handler_for(validate), methods=["POST"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )


class WebhookHandler:
    """Handles reviews; large ones do not block the event loop."""

    def __init__(self, rules: AdmissionRules, room: ClientLimit) -> None:
        self._rules = rules
        self._room = room
        self._large = asyncio.Lock()

    def handler_for(self, decide: Admit) -> Callable[[Request], Awaitable[Response]]:
        """The request handler of one webhook."""

        async def serve(request: Request) -> Response:
            kept = BufferedBody(self._room, request.client.host if request.client else "")
            try:
                body = await read_body(request.receive, dict(request.headers.raw), BODY_BOUNDS, kept)
                return JSONResponse(await self._decide(decide, body))
            except ClientGoneError:
                return Response()
            except MooringsError as error:
                log.warning("webhook.unreadable", extra={"code": error.code, "detail": error.detail})
                # Every unreadable body is a 400 here: the API server reports no more detail to the user.
                status = {"body.too_large": 413, "controller.busy": 503}.get(error.code, 400)
                answer = problem_response(error, status=status)
                # The rest of a refused body is read and dropped, so that its sender sees the response.
                del answer.headers["connection"]
                return answer
            finally:
                kept.release()

        return serve

    async def _decide(self, decide: Admit, body: bytes) -> KubeObject:
        if len(body) <= SMALL_BYTES:
            return _admit_json(decide, self._rules, body)
        async with self._large:
            return await asyncio.to_thread(_admit_json, decide, self._rules, body)


def _admit_json(decide: Admit, rules: AdmissionRules, body: bytes) -> KubeObject:
    return admit(decide, rules, _parse_json(body))


def _parse_json(body: bytes) -> object:
    # Counted first: the decoder holds the interpreter lock until its end, and two bytes may become a hundred.
    if sum(body.count(mark) for mark in b"[{,") > JSON_VALUES_MAX:
        raise MooringsError("body.too_large", f"the review has more than {JSON_VALUES_MAX} values")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MooringsError("body.not_json", "the review is not JSON") from error
