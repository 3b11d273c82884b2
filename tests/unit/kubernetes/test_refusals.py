"""How long an instance keeps its IPUs while the API server refuses its Pods."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.operator.create_failures import PATIENCE_S, PAUSE_S, PAUSE_S_MAX, ActionFailure, CreateFailures
from moorings.kubernetes.operator.plan import PartitionPause

QUOTA = KubeError(403, "Forbidden", "exceeded quota: few")
TAKEN = MooringsError("ipujob.name_taken", "there is a Pod job-worker-0 already", retryable=True)


@pytest.mark.parametrize(
    "error",
    [
        QUOTA,
        TAKEN,
        KubeError(400, "BadRequest", 'admission webhook "a.b" denied the request: no'),
        KubeError(422, "Invalid", "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"),
        KubeError(500, "InternalError", 'failed calling webhook "a.b": refused'),
        KubeError(429, "TooManyRequests", "later"),
    ],
)
def test_after_a_while_it_pauses_and_then_asks_again(error: MooringsError) -> None:
    refusals = CreateFailures()
    refusals.record({0: True, 1: True}, [ActionFailure(0, error)], 100.0)
    assert refusals.paused(100.0) == ({}, PATIENCE_S)
    refusals.record({0: True}, [ActionFailure(0, error)], 100.0 + PATIENCE_S / 2)
    assert refusals.paused(100.0 + PATIENCE_S / 2) == ({}, PATIENCE_S / 2)
    now = 100.0 + PATIENCE_S
    assert refusals.paused(now) == ({0: PartitionPause(error.detail, starting=True)}, PAUSE_S)
    assert refusals.paused(now + PAUSE_S - 1) == ({0: PartitionPause(error.detail, starting=True)}, 1.0)
    assert refusals.paused(now + PAUSE_S) == ({}, None)


def test_pauses_grow_and_what_waits_in_the_queue_is_no_refusal() -> None:
    refusals, now = CreateFailures(), 0.0
    pauses = []
    for _ in range(6):
        refusals.record({0: True}, [ActionFailure(None, QUOTA)], now)
        now += PATIENCE_S
        held, pause = refusals.paused(now)
        assert held == {0: PartitionPause("exceeded quota: few", starting=True)}
        assert pause is not None
        pauses.append(pause)
        now += pause + 1000.0  # it waits for a partition for long
        assert refusals.paused(now) == ({}, None)
    assert pauses == [min(PAUSE_S_MAX, PAUSE_S * 2**n) for n in range(6)]


def test_pods_that_are_made_end_it() -> None:
    refusals = CreateFailures()
    refusals.record({0: True}, [ActionFailure(0, QUOTA)], 0.0)
    refusals.record({0: True}, [], PATIENCE_S / 2)
    assert refusals.paused(PATIENCE_S * 2) == ({}, None)


@pytest.mark.parametrize(
    "error",
    [
        KubeError(0, "", "unreachable"),
        KubeError(401, "Unauthorized", "who are you"),
        MooringsError("kubernetes.not_leading", "another", retryable=True),
    ],
)
def test_what_says_nothing_of_the_pods_pauses_nothing(error: MooringsError) -> None:
    refusals = CreateFailures()
    refusals.record({0: True}, [ActionFailure(0, error)], 0.0)
    assert refusals.paused(PATIENCE_S * 10) == ({}, None)
    assert refusals.invalid == {}


@pytest.mark.parametrize(
    "error",
    [
        KubeError(422, "Invalid", 'Pod "job-worker-0" is invalid: spec.volumes[0]: Required value'),
        MooringsError("ipujob.invalid", "annotations are too large"),
        KubeError(400, "BadRequest", 'Pod in version "v1" cannot be handled as a Pod'),
    ],
)
def test_an_invalid_pod_is_so_for_ever_and_only_its_own_instance_is_told(error: MooringsError) -> None:
    refusals = CreateFailures()
    refusals.record({0: True, 1: True}, [ActionFailure(1, error)], 0.0)
    assert refusals.invalid == {1: error.detail}
    assert refusals.paused(PATIENCE_S) == ({}, None)


def test_jobs_that_share_a_quota_do_not_try_again_together() -> None:
    pauses = []
    for spread in (0.0, 0.5):
        refusals = CreateFailures()
        refusals.record({0: False}, [ActionFailure(0, QUOTA)], 0.0)
        held, pause = refusals.paused(PATIENCE_S, spread)
        assert held == {0: PartitionPause("exceeded quota: few", starting=False)}
        pauses.append(pause)
    assert pauses == [PAUSE_S, PAUSE_S * 1.25]
