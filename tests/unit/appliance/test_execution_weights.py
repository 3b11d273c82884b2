"""AdamW, shares, and what a weight server keeps."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.appliance.execution.execute import assign_layers
from moorings.appliance.execution.optimizer import AdamW, squares
from moorings.appliance.execution.weights import WeightShard, WorkLostError
from tests.waiting import patient


def array(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_adamw_is_what_the_paper_says_computed_by_hand():
    settings = AdamW(learning_rate=0.1, beta1=0.9, beta2=0.99, eps=1e-3, weight_decay=0.5)
    weight, m, v = array(2.0).reshape(1, 1), array(0.0).reshape(1, 1), array(0.0).reshape(1, 1)
    settings.update(weight, m, v, array(4.0).reshape(1, 1), step=0, scale=0.5)  # the gradient is 2
    assert (m[0, 0], v[0, 0]) == (pytest.approx(0.2), pytest.approx(0.04))
    # 0.2 / 0.1 = 2 and 0.04 / 0.01 = 4 without their bias: 2 - 0.1 * (2 / (2 + 0.001) + 0.5 * 2)
    first = 2 - 0.1 * (2 / 2.001 + 1)
    assert weight[0, 0] == pytest.approx(first, rel=1e-6)
    settings.update(weight, m, v, array(-1.0).reshape(1, 1), step=1, scale=1.0)
    # m = 0.9 * 0.2 - 0.1 = 0.08; v = 0.99 * 0.04 + 0.01 = 0.0496; bias 1 - 0.81 = 0.19 and 1 - 0.9801 = 0.0199
    change = (0.08 / 0.19) / (math.sqrt(0.0496 / 0.0199) + 1e-3)
    assert weight[0, 0] == pytest.approx(first - 0.1 * (change + 0.5 * first), rel=1e-5)


def test_biases_and_gains_do_not_decay():
    settings = AdamW(learning_rate=0.1, weight_decay=0.5)
    bias, matrix = array(1.0), array(1.0).reshape(1, 1)
    for weight in (bias, matrix):
        settings.update(weight, np.zeros_like(weight), np.zeros_like(weight), np.zeros_like(weight), step=0, scale=1.0)
    assert bias[0] == 1.0
    assert matrix[0, 0] == pytest.approx(0.95)


def test_the_learning_rate_grows_in_equal_parts():
    settings = AdamW(learning_rate=0.4, warmup_steps=4)
    assert [settings.rate(step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert AdamW(learning_rate=0.4).rate(0) == 0.4


def test_only_a_norm_that_is_too_large_is_cut():
    settings = AdamW(learning_rate=1, max_gradient_norm=2.0)
    assert settings.scale(1.0) == 1.0
    assert settings.scale(8.0) == pytest.approx(0.25, rel=1e-5)
    assert AdamW(learning_rate=1).scale(1e9) == 1.0
    assert squares({"a": array(3.0), "b": array(4.0)}) == 25.0


def test_an_orders_section_is_read():
    section = {"optimizer_type": "AdamW", "learning_rate": 0.5, "beta1": 0.8, "max_gradient_norm": None}
    assert AdamW.parse(section) == AdamW(learning_rate=0.5, beta1=0.8)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_every_layer_is_kept_once_and_no_server_has_much_more_than_another(sizes: list[int], servers: int):
    shares = assign_layers(sizes, servers)
    assert sorted(layer for share in shares for layer in share) == list(range(len(sizes)))
    assert len(shares) == servers
    loads = [sum(sizes[layer] for layer in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)
    assert shares == assign_layers(sizes, servers)


def share(systems: int, *, learns: bool = True) -> WeightShard:
    found = WeightShard({0: {"w": (1,)}}, systems, AdamW(learning_rate=0.1) if learns else None)
    found.set_weights(0, "w", {"w": array(1.0)})
    found.begin(0)
    return found


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_gradients_are_added_in_the_order_of_the_systems(order: tuple[int, ...]):
    # In another order the small ones would survive next to the large, or not.
    values = [1.0, 1e8, -1e8, 1.0]
    kept = share(4)
    for system in order:
        kept.add_gradients(0, 0, system, {"w": array(values[system])})
    total = np.float32(0)
    for value in values:
        total += np.float32(value)
    assert kept.gradient_squares() == {0: pytest.approx((float(total) / 4) ** 2)}


def test_a_step_is_taken_once_and_with_all_gradients():
    kept = share(2)
    kept.add_gradients(0, 0, 1, {"w": array(1.0)})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(kept.gradient_squares)
        assert not waiting.done()
        kept.add_gradients(0, 0, 0, {"w": array(3.0)})
        assert waiting.result(timeout=patient(20)) == {0: 4.0}
        later = pool.submit(kept.weights, 0, 1)
        kept.apply(0, 1.0)
        assert later.result(timeout=patient(20))["w"][0] == pytest.approx(0.9, abs=1e-4)
    with pytest.raises(WorkLostError, match="step 0 was to be taken when 1 were done"):
        kept.apply(0, 1.0)


def test_gradients_that_come_twice_or_for_another_step_are_refused():
    kept = share(2)
    kept.add_gradients(0, 0, 1, {"w": array(1.0)})
    with pytest.raises(WorkLostError, match="twice"):
        kept.add_gradients(0, 0, 1, {"w": array(1.0)})
    with pytest.raises(WorkLostError, match="gradients of step 3 when 0 were done"):
        kept.add_gradients(0, 3, 0, {"w": array(1.0)})
    with pytest.raises(WorkLostError, match="other names or shapes"):
        kept.add_gradients(0, 0, 0, {"w": array(1.0, 2.0)})


def test_who_waits_is_told_when_the_work_cannot_go_on():
    kept = share(2)
    with ThreadPoolExecutor() as pool:
        asked: list[Callable[[], object]] = [kept.gradient_squares, kept.collect, lambda: kept.wait_for_decision(1)]
        waiting = [pool.submit(each) for each in asked]
        kept.fail("system 1 has gone")
        kept.fail("system 0 has gone")  # a consequence of the first
        for each in waiting:
            with pytest.raises(WorkLostError, match="system 1 has gone"):
                each.result(timeout=patient(20))


def test_weights_that_were_not_given_cannot_be_had():
    kept = WeightShard({0: {"w": (1,)}}, 1, None)
    with pytest.raises(WorkLostError, match="layer 0 has no weights"):
        kept.begin(0)
    with pytest.raises(WorkLostError, match="layer 7 is kept elsewhere"):
        kept.part(7, "w")


def test_the_first_system_goes_last():
    share = WeightShard({0: {"w": (2,)}}, 3, None)
    with ThreadPoolExecutor(1) as threads:
        waited = threads.submit(share.await_leave, 2)
        for system in (1, 2, 1):
            share.remove_connection(system)
        with pytest.raises(TimeoutError):
            waited.result(0.2)
        share.remove_connection(2)
        waited.result(patient(10))


def test_a_system_that_dies_is_not_waited_for():
    share = WeightShard({0: {"w": (2,)}}, 2, None)
    with ThreadPoolExecutor(1) as threads:
        waited = threads.submit(share.await_leave, 2)
        share.fail("system 1 has gone")
        with pytest.raises(WorkLostError, match="system 1 has gone"):
            waited.result(patient(10))
