"""The digits example: its parts one by one, then the whole program as real processes on hand-made bindings."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from examples.digits import checkpoint, data, devices, model, rendezvous, train
from examples.digits.job import Job, NotAJobError
from moorings.workloads.jobs import parse_job
from tests.cases import cases
from tests.waiting import patient

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "digits"
TINY = model.Sizes(inputs=5, hidden=4, classes=3)

T = TypeVar("T")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given while the test runs: bound, but not listened at, it stays free for rank 0."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def place(port: int, rank: int, world_size: int, run_id: str = "run-abc") -> rendezvous.Place:
    return rendezvous.Place(run_id, rank, world_size, "127.0.0.1", port)


def together(port: int, world_size: int, work: Callable[[rendezvous.Group], T]) -> list[T]:
    """What `work` returns on each rank of a group whose ranks are threads, connected by real sockets."""

    def process(rank: int) -> T:
        with rendezvous.join(place(port, rank, world_size), timeout_s=20, exchange_timeout_s=20) as group:
            return work(group)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(process, range(world_size)))


# model


def random_digits(rows: int, sizes: model.Sizes = TINY) -> tuple[model.Matrix, model.Labels]:
    random = np.random.default_rng(7)
    return random.uniform(0, 1, (rows, sizes.inputs)), random.integers(0, sizes.classes, rows)


def test_the_gradient_is_the_slope_of_the_loss():
    weights = model.initial_weights(TINY, seed=3) + 0.1
    images, labels = random_digits(6)
    _, gradient = model.loss_and_gradient(weights, TINY, images, labels)

    def loss(at: model.Vector) -> float:
        return model.loss_and_gradient(at, TINY, images, labels)[0]

    small = 1e-6
    directions = np.eye(TINY.weights) * small
    slope = [(loss(weights + d) - loss(weights - d)) / (2 * small) for d in directions]
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-8)


def test_sums_over_shards_add_up_to_the_sum_over_the_batch():
    weights = model.initial_weights(TINY, seed=3)
    images, labels = random_digits(7)
    whole_loss, whole_gradient = model.loss_and_gradient(weights, TINY, images, labels)
    parts = [
        model.loss_and_gradient(weights, TINY, images[rows], labels[rows])
        for rows in (data.shard(np.arange(7), rank, 3) for rank in range(3))
    ]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole_loss, rel=1e-13)
    np.testing.assert_allclose(sum(gradient for _, gradient in parts), whole_gradient, rtol=1e-12, atol=1e-14)


def test_a_shard_without_rows_adds_nothing():
    images, labels = random_digits(0)
    loss, gradient = model.loss_and_gradient(model.initial_weights(TINY, seed=3), TINY, images, labels)
    assert loss == 0.0
    assert not gradient.any()


def test_momentum_keeps_a_part_of_the_last_step():
    weights, velocity = np.array([1.0]), np.array([0.0])
    gradient = np.array([2.0])
    weights, velocity = model.momentum_step(weights, velocity, gradient, learning_rate=0.1, momentum=0.5)
    assert weights[0] == pytest.approx(0.8)
    weights, velocity = model.momentum_step(weights, velocity, gradient, learning_rate=0.1, momentum=0.5)
    assert weights[0] == pytest.approx(0.5)  # 0.8 - 0.1 * 2 - 0.5 * 0.2


def test_the_first_weights_come_from_the_seed_alone():
    assert np.array_equal(model.initial_weights(TINY, seed=3), model.initial_weights(TINY, seed=3))
    assert not np.array_equal(model.initial_weights(TINY, seed=3), model.initial_weights(TINY, seed=4))


# data


def test_the_split_is_fixed_and_fair_to_every_class():
    digits, again = data.load(), data.load()
    assert np.array_equal(digits.test_images, again.test_images)
    assert (len(digits.train_labels), len(digits.test_labels)) == (1347, 450)
    shares = np.bincount(digits.test_labels) / np.bincount(np.r_[digits.train_labels, digits.test_labels])
    assert len(shares) == data.CLASSES
    assert np.all(np.abs(shares - data.TEST_SHARE) < 0.005)
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)


@pytest.mark.parametrize(("rows", "world_size"), [(64, 1), (64, 2), (64, 3), (2, 4), (0, 2)])
def test_shards_are_disjoint_and_complete(rows: int, world_size: int):
    order = data.shuffled(rows, seed=1, epoch=2)
    shards = [data.shard(order, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(shards), order)
    assert sorted(order) == list(range(rows))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_every_epoch_has_its_own_order():
    assert not np.array_equal(data.shuffled(64, seed=1, epoch=0), data.shuffled(64, seed=1, epoch=1))


# rendezvous


def test_a_sum_is_added_in_the_order_of_the_ranks(port: int):
    # In another order the 1s would survive next to a number 1e16 times as large, or not.
    parts = [np.array([1.0, 0.1]), np.array([1e16, 0.2]), np.array([-1e16, 0.3]), np.array([1.0, 0.4])]
    expected = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    for total in together(port, 4, lambda group: group.all_reduce(parts[group.rank])):
        assert total.tobytes() == expected.tobytes()


def test_everyone_learns_what_everyone_says(port: int):
    says = ["zero", "ünö", "", "three"]
    assert together(port, 4, lambda group: group.all_gather(says[group.rank])) == [says] * 4


def test_a_group_of_one_needs_no_network():
    with rendezvous.join(place(port=0, rank=0, world_size=1)) as group:
        assert group.all_reduce(np.array([1.5])) == [1.5]
        assert group.all_gather("alone") == ["alone"]


def test_strangers_are_refused_and_the_group_still_meets(port: int):
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rendezvous.join, place(port, 0, 2), timeout_s=20)
        with pytest.raises(rendezvous.RendezvousError, match="belongs to run run-abc, not to run run-old"):
            rendezvous.join(place(port, 1, 2, run_id="run-old"), timeout_s=20)
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            socket.create_connection(("127.0.0.1", port)) as browser,
        ):
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with rendezvous.join(place(port, 1, 2), timeout_s=20), first.result():
                silent.settimeout(patient(20))
                assert silent.recv(1) == b""  # rank 0 forgets those who never said who they are


@cases(
    ("greeting", "verdict"),
    [
        ({}, 2),
        ({"run": "other"}, "it belongs to run run-abc, not to run other"),
        ({"world_size": 4}, "it expects 3 processes, not 4"),
        ({"rank": 1}, "rank 1 has joined already"),
        ({"rank": 0}, "there is no rank 0 to join it"),
        ({"rank": 3}, "there is no rank 3 to join it"),
        ({"rank": "2"}, "there is no rank 2 to join it"),
        ({"protocol": "x"}, "it speaks moorings-digits/1, not x"),
    ],
)
def test_a_greeting_is_judged(greeting: dict[str, object], verdict: int | str):
    usual = {"protocol": rendezvous.PROTOCOL, "run": "run-abc", "rank": 2, "world_size": 3}
    assert rendezvous.judge(json.dumps(usual | greeting).encode(), place(0, 0, 3), joined=[1]) == verdict


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'"run"'])
def test_what_is_no_greeting_is_said_to_be_none(text: bytes):
    assert rendezvous.judge(text, place(0, 0, 3), joined=[]) == "that was no greeting"


def test_waiting_for_a_peer_that_never_comes_ends(port: int):
    with pytest.raises(rendezvous.RendezvousError, match=r"rank 1, 2 did not come within 0\.2 s"):
        rendezvous.join(place(port, 0, 3), timeout_s=0.2)


def test_waiting_for_a_rank_0_that_never_listens_ends(port: int):
    with pytest.raises(rendezvous.RendezvousError, match=rf"127\.0\.0\.1:{port} within 0\.2 s.*refused"):
        rendezvous.join(place(port, 1, 2), timeout_s=0.2)


def test_a_taken_port_is_named(port: int):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(rendezvous.RendezvousError, match=f"cannot listen at 127.0.0.1:{port}"),
    ):
        rendezvous.join(place(port, 0, 2))


def test_a_peer_that_ends_before_all_have_come_is_seen_at_once(port: int):
    greeting = {"protocol": rendezvous.PROTOCOL, "run": "run-abc", "rank": 1, "world_size": 3}
    text = json.dumps(greeting).encode()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rendezvous.join, place(port, 0, 3), timeout_s=60)
        link = rendezvous._connect(place(port, 1, 3), timeout_s=20, deadline=time.monotonic() + 20)
        with link:
            link.sendall(rendezvous.HEADER.pack(rendezvous.GREETING, len(text)) + text)
        with pytest.raises(rendezvous.RendezvousError, match="rank 1 has gone"):
            first.result(timeout=patient(20))


def test_a_silent_peer_is_not_awaited_for_ever(port: int):
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rendezvous.join, place(port, 0, 2), timeout_s=20, exchange_timeout_s=0.2)
        with (
            rendezvous.join(place(port, 1, 2), timeout_s=20),
            first.result() as group,
            pytest.raises(rendezvous.RendezvousError, match=r"nothing from rank 1 for 0\.2 s"),
        ):
            group.all_gather("anyone?")


def test_ranks_that_make_different_calls_are_told(port: int):
    def work(group: rendezvous.Group) -> None:
        if group.rank == 0:
            group.all_gather("text")
        else:
            group.all_reduce(np.zeros(1))

    with pytest.raises(rendezvous.RendezvousError, match="rank 1 has lost step"):
        together(port, 2, work)


def test_sums_of_different_lengths_are_refused(port: int):
    with pytest.raises(rendezvous.RendezvousError, match="rank 1 sent 16 bytes to a sum of 8"):
        together(port, 2, lambda group: group.all_reduce(np.zeros(1 + group.rank)))


def test_why_a_rank_failed_reaches_every_other(port: int):
    def process(rank: int) -> None:
        with rendezvous.join(place(port, rank, 3), timeout_s=20, exchange_timeout_s=20) as group:
            if rank == 1:
                raise ValueError("out of paper")
            group.all_gather("ready")

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(process, rank) for rank in range(3)]
        first, second, third = [future.exception(timeout=patient(20)) for future in futures]
    assert isinstance(second, ValueError)
    assert str(first) == str(third) == "rank 1 has stopped: out of paper"


@pytest.mark.parametrize(("killed", "survivor"), [(0, 1), (1, 0)])
def test_the_sudden_end_of_a_process_ends_the_exchange_at_once(port: int, killed: int, survivor: int):
    code = textwrap.dedent(f"""
        import signal
        from examples.digits import rendezvous
        with rendezvous.join(rendezvous.Place("run-abc", {killed}, 2, "127.0.0.1", {port}), timeout_s=20):
            print("joined", flush=True)
            signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            with rendezvous.join(place(port, survivor, 2), timeout_s=60, exchange_timeout_s=3600) as group:
                assert process.stdout is not None
                assert process.stdout.readline() == "joined\n"
                process.kill()
                with pytest.raises(rendezvous.RendezvousError, match=f"rank {killed} has gone"):
                    group.all_reduce(np.zeros(3))
        finally:
            process.kill()


# devices


def write_binding(folder: Path, gcd: int, gcds: int, ids: list[str], partition_size: int) -> Path:
    """An IPUoF file as a simulated pool gives it; the device files are made if they are not there."""
    (folder / "devices").mkdir(exist_ok=True)
    entries = []
    for index, device_id in enumerate(ids):
        simulated = folder / "devices" / device_id.replace(":", "-")
        simulated.touch()
        entries.append(
            {"id": device_id, "host": "10.1.0.1", "port": 50052, "index": index, "simulated": str(simulated)}
        )
    attributes = {
        "Partition Id": "run-abc",
        "GCD Id": str(gcd),
        "Num GCDs": str(gcds),
        "Num Replicas": "1",
        "Partition Size": str(partition_size),
    }
    path = folder / f"run-abc_gcd{gcd}_ipuof.conf"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"attributes": attributes, "devices": entries}))
    return path


@pytest.fixture
def binding(tmp_path: Path) -> devices.Binding:
    return devices.load(write_binding(tmp_path, 0, 2, ["pod64:0", "pod64:1"], 4))


def is_free(device: devices.Device) -> bool:
    assert device.simulated is not None
    with device.simulated.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_binding_is_read(binding: devices.Binding, tmp_path: Path):
    assert (binding.partition_id, binding.gcd, binding.gcds, binding.partition_size) == ("run-abc", 0, 2, 4)
    assert binding.ids == ("pod64:0", "pod64:1")
    assert binding.devices[0].simulated == tmp_path / "devices" / "pod64-0"


def test_devices_are_held_while_attached(binding: devices.Binding):
    with devices.attached(binding.devices) as real:
        assert real == ()
        assert not any(map(is_free, binding.devices))
        with (
            pytest.raises(devices.DeviceError, match="device pod64:1 is already attached by another process"),
            devices.attached(binding.devices[1:]),
        ):
            pass
    assert all(map(is_free, binding.devices))


def test_if_one_device_cannot_be_attached_none_is(binding: devices.Binding):
    first, second = binding.devices
    assert second.simulated is not None
    second.simulated.unlink()
    with pytest.raises(devices.DeviceError, match="cannot open device pod64:1"), devices.attached(binding.devices):
        pass
    assert is_free(first)


def test_real_devices_are_named_not_attached():
    with devices.attached([devices.Device("pod64:9", simulated=None)]) as real:
        assert real == ("pod64:9",)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o440])
def test_a_file_that_others_could_touch_is_refused(tmp_path: Path, mode: int):
    path = write_binding(tmp_path, 0, 1, ["pod64:0"], 1)
    path.chmod(mode)
    with pytest.raises(devices.DeviceError, match=f"has mode {mode:04o}: other users"):
        devices.load(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(devices.DeviceError, match=r"cannot read the IPUoF file .*/absent\.conf"):
        devices.load(tmp_path / "absent.conf")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"attributes": {"GCD Id": "0"}, "devices": []}', "\udcff"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "some.conf"
    path.touch(mode=0o600)
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(devices.DeviceError, match=r"some\.conf"):
        devices.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 1}, "GCD Id 0, but RANK is 1"),
        ({"world_size": 4}, "Num GCDs 2, but WORLD_SIZE is 4"),
        ({"partition_id": "run-xyz"}, "Partition Id run-abc, but MOORINGS_PARTITION_ID is run-xyz"),
        ({"ids": ["pod64:0"]}, "devices pod64:0,pod64:1, but MOORINGS_DEVICES is pod64:0"),
        ({"ids": ["pod64:1", "pod64:0"]}, "devices pod64:0,pod64:1, but MOORINGS_DEVICES is pod64:1,pod64:0"),
    ],
)
def test_a_file_that_contradicts_the_environment_is_refused(
    binding: devices.Binding, change: dict[str, Any], message: str
):
    usual: dict[str, Any] = {"rank": 0, "world_size": 2, "partition_id": "run-abc", "ids": ["pod64:0", "pod64:1"]}
    devices.check(binding, **usual)
    with pytest.raises(devices.DeviceError, match=message):
        devices.check(binding, **(usual | change))


def test_shares_must_be_disjoint_and_make_up_the_partition():
    devices.check_shares([["a", "b"], ["c", "d"]], partition_size=4)
    with pytest.raises(devices.DeviceError, match="device b was given more than once, to ranks 0 and 1"):
        devices.check_shares([["a", "b"], ["b", "c"]], partition_size=4)
    with pytest.raises(devices.DeviceError, match="3 devices together, but the partition has 4"):
        devices.check_shares([["a", "b"], ["c"]], partition_size=4)


# checkpoints


def test_a_checkpoint_gives_back_what_it_was_given(tmp_path: Path):
    path = checkpoint.path_for(tmp_path / "new" / "folder", step=12)
    checkpoint.save(path, {"weights": np.arange(3.0), "step": np.asarray(12)})
    kept = checkpoint.load(path)
    assert sorted(kept) == ["step", "weights"]
    assert np.array_equal(kept["weights"], np.arange(3.0))
    assert int(kept["step"]) == 12
    assert [file.name for file in path.parent.iterdir()] == ["step-00000012.npz"]


def test_a_write_that_fails_midway_leaves_the_last_checkpoint_whole(tmp_path: Path):
    path = tmp_path / "kept.npz"
    checkpoint.save(path, {"weights": np.ones(10)})
    code = textwrap.dedent(f"""
        import resource
        from pathlib import Path
        import numpy as np
        from examples.digits import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a disk that is full after a page
        try:
            checkpoint.save(Path({str(path)!r}), {{"weights": np.zeros(100_000)}})
        except checkpoint.CheckpointError as error:
            print(error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=patient(60)
    )
    assert "cannot write the checkpoint" in done.stdout
    assert np.array_equal(checkpoint.load(path)["weights"], np.ones(10))


def test_what_is_not_a_whole_checkpoint_is_refused(tmp_path: Path):
    path = tmp_path / "whole.npz"
    checkpoint.save(path, {"weights": np.ones(1000)})
    (tmp_path / "half.npz").write_bytes(path.read_bytes()[:4000])
    np.save(tmp_path / "array.npz.npy", np.ones(3))
    np.savez(tmp_path / "pickled.npz", weights=np.array([object()]))
    for name in ("half.npz", "array.npz.npy", "pickled.npz", "absent.npz"):
        with pytest.raises(checkpoint.CheckpointError, match=name):
            checkpoint.load(tmp_path / name)


# the job's environment


ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "MOORINGS_RUN_ID": "abc",
    "MOORINGS_PARTITION_ID": "run-abc",
    "MOORINGS_DEVICES": "pod64:2,pod64:3",
    "IPUOF_CONFIG_PATH": "/run/run-abc_gcd1_ipuof.conf",
}


def test_the_environment_is_read():
    job = Job.parse(ENVIRONMENT | {"MOORINGS_CHECKPOINT_DIR": "/keep", "MOORINGS_RESUME_FROM": ""})
    assert (job.rank, job.world_size, job.master_port) == (1, 2, 29500)
    assert job.device_ids == ("pod64:2", "pod64:3")
    assert (job.checkpoint_folder, job.resume_from) == (Path("/keep"), None)


@cases("name", ENVIRONMENT)
def test_a_missing_variable_is_named_with_the_way_to_get_it(name: str):
    with pytest.raises(NotAJobError, match=f"{name} is not set.*moor run"):
        Job.parse({key: value for key, value in ENVIRONMENT.items() if key != name})


def test_a_number_that_is_none_is_named():
    with pytest.raises(NotAJobError, match="MASTER_PORT is not a number: 'http'"):
        Job.parse(ENVIRONMENT | {"MASTER_PORT": "http"})


def test_the_job_file_asks_for_what_the_program_needs():
    job = parse_job((FOLDER / "job.toml").read_text(), source="job.toml", folder=str(FOLDER), submitter={})
    assert (job.tasks, job.accelerators.size, job.accelerators.replicas) == (2, 4, 2)
    assert (Path(job.workdir) / job.command[1]).resolve() == FOLDER / "train.py"
    assert train.Settings.parse(job.command[2:]) == train.Settings.parse([])  # the README's figures are of these


# training


SHORT = train.Settings(epochs=2, batch_size=100, learning_rate=0.05, seed=5)


def nothing(_: object) -> None: ...


def trained(group: rendezvous.Group) -> train.State:
    trainer = train.Trainer(SHORT, data.load(), group)
    return trainer.train(train.State.initial(SHORT.seed), train.Wishes(), nothing, nothing)


def alone(settings: train.Settings) -> train.Trainer:
    return train.Trainer(settings, data.load(), rendezvous.join(place(port=0, rank=0, world_size=1)))


def test_the_training_is_plain_descent_over_all_the_digits_in_their_order():
    told: list[str] = []
    state = alone(SHORT).train(train.State.initial(SHORT.seed), train.Wishes(), told.append, nothing)

    digits = data.load()
    weights = model.initial_weights(train.SIZES, SHORT.seed)
    velocity = np.zeros_like(weights)
    expected = []
    for epoch in (0, 1):
        order = data.shuffled(1347, SHORT.seed, epoch)
        epoch_loss = 0.0
        for rows in np.split(order, range(100, 1347, 100)):
            loss, gradient = model.loss_and_gradient(
                weights, train.SIZES, digits.train_images[rows], digits.train_labels[rows]
            )
            epoch_loss += loss
            velocity = 0.9 * velocity - 0.05 * gradient / len(rows)
            weights = weights + velocity
        right = model.count_correct(weights, train.SIZES, digits.test_images, digits.test_labels)
        expected.append(f"epoch {epoch + 1}/2  loss {epoch_loss / 1347:.4f}  accuracy {right / 450:.4f}")
    np.testing.assert_allclose(state.weights, weights, rtol=0, atol=1e-12)
    assert told == expected


def test_one_process_two_or_four_learn_the_same(port: int):
    one, *two_and_four = (together(port, world_size, trained) for world_size in (1, 2, 4))
    for states in two_and_four:
        assert {state.digest() for state in states} == {states[0].digest()}  # the same bits on every rank
        assert states[0].digest() != one[0].digest()  # it was another order of adding, so this compares something
        np.testing.assert_allclose(states[0].weights, one[0].weights, rtol=0, atol=1e-11)


def test_more_processes_than_rows_in_the_last_batch_do_no_harm(port: int):
    settings = train.Settings(epochs=1, batch_size=1346, learning_rate=0.05, seed=5)  # the second batch has one row

    def work(group: rendezvous.Group) -> train.State:
        return train.Trainer(settings, data.load(), group).train(
            train.State.initial(5), train.Wishes(), nothing, nothing
        )

    expected = work(rendezvous.join(place(port=0, rank=0, world_size=1)))
    for state in together(port, 3, work):
        np.testing.assert_allclose(state.weights, expected.weights, rtol=0, atol=1e-12)


def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path: Path):
    whole_story: list[str] = []
    uninterrupted = alone(SHORT).train(train.State.initial(SHORT.seed), train.Wishes(), whole_story.append, nothing)

    story: list[str] = []
    wishes = train.Wishes()
    wishes.on_end()
    state = train.State.initial(SHORT.seed)
    for step in (1, 2, 3):  # each attempt is asked to end at once, and still takes one step
        state = alone(SHORT).train(state, wishes, nothing, lambda state: state.save(tmp_path, SHORT))
        assert state.step == step
        state = train.State.resumed(checkpoint.path_for(tmp_path, step), SHORT)
    resumed = alone(SHORT).train(state, train.Wishes(), story.append, nothing)

    assert resumed.digest() == uninterrupted.digest()
    assert story == whole_story
    assert story[-1].startswith("epoch 2/2  loss ")


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    train.State.initial(SHORT.seed).save(tmp_path, SHORT)
    path = checkpoint.path_for(tmp_path, 0)
    other = train.Settings(epochs=9, batch_size=50, learning_rate=0.1, seed=5)
    with pytest.raises(checkpoint.CheckpointError, match="made with --seed 5 --batch-size 100"):
        train.State.resumed(path, other)
    kept = checkpoint.load(path)
    checkpoint.save(path, kept | {"weights": np.zeros(3)})
    with pytest.raises(checkpoint.CheckpointError, match="of another network"):
        train.State.resumed(path, SHORT)
    del kept["velocity"]
    checkpoint.save(path, kept)
    with pytest.raises(checkpoint.CheckpointError, match="not a checkpoint of this program"):
        train.State.resumed(path, SHORT)


def test_a_wish_for_a_checkpoint_is_told_once_and_that_for_the_end_stands():
    wishes = train.Wishes()
    assert wishes.take() == (False, False)
    wishes.on_checkpoint()
    assert [wishes.take(), wishes.take()] == [(True, False), (False, False)]
    wishes.on_end()
    assert [wishes.take(), wishes.take()] == [(False, True), (False, True)]


def test_ranks_that_differ_are_told_how(port: int):
    with pytest.raises(rendezvous.RendezvousError, match="differ in their flavour: sweet on rank 0, sour on 1"):
        together(port, 2, lambda group: train.require_same(group, "flavour", "sour" if group.rank else "sweet"))


def test_ranks_with_different_settings_or_states_do_not_start(port: int, tmp_path: Path):
    def with_other_settings(group: rendezvous.Group) -> train.State:
        return train.first_state(None, replace(SHORT, epochs=2 + group.rank), group)

    with pytest.raises(rendezvous.RendezvousError, match=r"differ in their settings: .*epochs=2.*, .*epochs=3.* on 1"):
        together(port, 2, with_other_settings)

    train.State.initial(seed=6).save(tmp_path, SHORT)
    kept = checkpoint.path_for(tmp_path, 0)
    with pytest.raises(rendezvous.RendezvousError, match="differ in their state at the start"):
        together(port, 2, lambda group: train.first_state(kept if group.rank else None, SHORT, group))


def own(folder: Path, shares: list[list[str]], partition_size: int) -> Callable[[rendezvous.Group], list[str]]:
    """What a rank reports that holds its share of real devices, as its IPUoF file and its environment say."""

    def work(group: rendezvous.Group) -> list[str]:
        path = write_binding(folder, group.rank, len(shares), shares[group.rank], partition_size)
        document = json.loads(path.read_text())
        for entry in document["devices"]:
            del entry["simulated"]
        path.write_text(json.dumps(document))
        environment = ENVIRONMENT | {
            "RANK": str(group.rank),
            "MOORINGS_DEVICES": ",".join(shares[group.rank]),
            "IPUOF_CONFIG_PATH": str(path),
        }
        told: list[str] = []
        with train.own_devices(Job.parse(environment), group, told.append):
            return told

    return work


def test_the_ranks_tell_each_other_their_devices(tmp_path: Path, port: int):
    told = together(port, 2, own(tmp_path, [["a"], ["b"]], partition_size=2))
    assert told[0][:3] == told[1][:3] == ["partition run-abc: 2 devices, 2 processes", "gcd 0: a", "gcd 1: b"]
    assert told[1][3].startswith("note: b are real devices")


def test_a_device_given_to_two_ranks_is_found(tmp_path: Path, port: int):
    with pytest.raises(devices.DeviceError, match="device b was given more than once, to ranks 0 and 1"):
        together(port, 2, own(tmp_path, [["a", "b"], ["b"]], partition_size=3))


def test_a_device_given_to_nobody_is_missed(tmp_path: Path, port: int):
    with pytest.raises(devices.DeviceError, match="2 devices together, but the partition has 4"):
        together(port, 2, own(tmp_path, [["a"], ["b"]], partition_size=4))


# the whole program


class Gang:
    """All processes of one job, on the four devices of one partition."""

    def __init__(self, folder: Path, port: int, world_size: int, *arguments: str, **more: Path) -> None:
        folder.mkdir(exist_ok=True)
        ids = [f"pod64:{number}" for number in range(4)]
        shares = [list(map(str, share)) for share in np.array_split(ids, world_size)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-W", "error", FOLDER / "train.py", *arguments],
                cwd=folder,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(folder),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "MOORINGS_RUN_ID": "abc",
                    "MOORINGS_PARTITION_ID": "run-abc",
                    "MOORINGS_DEVICES": ",".join(share),
                    "IPUOF_CONFIG_PATH": str(write_binding(folder, rank, world_size, share, len(ids))),
                }
                | {name: str(path) for name, path in more.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, share in enumerate(shares)
        ]

    def __enter__(self) -> "Gang":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def await_line(self, pattern: str) -> str:
        """The next line of rank 0 that matches."""
        output = self.processes[0].stdout
        assert output is not None
        for line in output:
            if re.search(pattern, line):
                return line
        raise AssertionError(f"rank 0 ended without a line like {pattern}: {self.finish()}")

    def finish(self) -> list[tuple[int, list[str], str]]:
        """Each rank's exit status, the lines of its output that were not awaited, and its complaints."""
        with ThreadPoolExecutor() as pool:
            outputs = list(pool.map(lambda process: process.communicate(timeout=patient(60)), self.processes))
        return [
            (process.returncode, output.splitlines(), complaints)
            for process, (output, complaints) in zip(self.processes, outputs, strict=True)
        ]


def final_loss(checkpoints: Path, settings: train.Settings) -> float:
    """The mean loss over the training set of the newest weights that were kept."""
    digits = data.load()
    state = train.State.resumed(max(checkpoints.iterdir()), settings)
    loss, _ = model.loss_and_gradient(state.weights, train.SIZES, digits.train_images, digits.train_labels)
    return loss / len(digits.train_labels)


def test_two_processes_learn_the_digits_and_what_one_would_learn(tmp_path: Path, port: int):
    told: dict[int, list[str]] = {}
    for world_size in (1, 2):
        folder = tmp_path / str(world_size)
        with Gang(folder, port, world_size, MOORINGS_CHECKPOINT_DIR=folder / "kept") as gang:
            (code, told[world_size], complaints), *others = gang.finish()
        assert (code, complaints) == (0, "")
        assert others == [(0, [], "")] * (world_size - 1)  # rank 0 speaks for all

    assert told[2][:3] == [
        "partition run-abc: 4 devices, 2 processes",
        "gcd 0: pod64:0, pod64:1",
        "gcd 1: pod64:2, pod64:3",
    ]
    epochs = [line for line in told[2] if re.fullmatch(r"epoch \d+/30  loss \d\.\d{4}  accuracy [01]\.\d{4}", line)]
    assert len(epochs) == 30
    assert told[2][-31:] == [*epochs, told[2][-1]]
    assert told[2][-31:] == told[1][-31:]

    accuracy = re.fullmatch(r"accuracy ([01]\.\d{3})", told[2][-1])
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.93
    losses = [final_loss(tmp_path / str(world_size) / "kept", train.Settings.parse([])) for world_size in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-9)


def test_a_job_that_is_asked_to_end_keeps_its_work_and_can_go_on(tmp_path: Path, port: int):
    kept = tmp_path / "kept"
    with Gang(tmp_path, port, 2, "--epochs", "1000000", MOORINGS_CHECKPOINT_DIR=kept) as gang:
        gang.await_line(r"^epoch 1/")
        gang.processes[1].send_signal(signal.SIGUSR1)  # to one rank that does not write checkpoints: all hear of it
        step = int(gang.await_line(r"^step \d+: asked to checkpoint")[5:].partition(":")[0])
        assert checkpoint.path_for(kept, step).exists()
        gang.processes[1].send_signal(signal.SIGTERM)
        step = int(gang.await_line(r"^step \d+: asked to end")[5:].partition(":")[0])
        assert gang.finish() == [(143, [], ""), (143, [], "")]

    newest = max(kept.iterdir())
    assert newest == checkpoint.path_for(kept, step)
    epochs = str(step // 22 + 2)  # 22 steps an epoch
    with Gang(tmp_path / "resumed", port, 2, "--epochs", epochs, MOORINGS_RESUME_FROM=newest) as gang:
        (code, resumed, complaints), _ = gang.finish()
    assert (code, complaints) == (0, "")
    assert f"resuming from {newest} at step {step}" in resumed
    with Gang(tmp_path / "straight", port, 2, "--epochs", epochs) as gang:
        (_, straight, _), _ = gang.finish()
    assert resumed[-3:] == straight[-3:]


def test_a_device_that_a_stranger_holds_ends_the_job_for_all(tmp_path: Path, port: int):
    (tmp_path / "devices").mkdir()
    with (tmp_path / "devices" / "pod64-2").open("w") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with Gang(tmp_path, port, 2) as gang:
            first, second = gang.finish()
    message = "device pod64:2 is already attached by another process"
    assert (first[0], second[0]) == (1, 1)
    assert second[2].startswith(f"error: rank 1: {message}")
    assert first[2].startswith(f"error: rank 0: rank 1 has stopped: {message}")


def test_the_sudden_end_of_one_process_ends_the_job_for_all(tmp_path: Path, port: int):
    with Gang(tmp_path, port, 2, "--epochs", "1000000") as gang:
        gang.await_line(r"^epoch 1/")
        gang.processes[1].kill()
        (code, _, complaints), _ = gang.finish()
    assert code == 1
    assert complaints.startswith("error: rank 0: rank 1 has gone")


@pytest.mark.parametrize("start", [["-m", "examples.digits.train"], [str(FOLDER / "train.py")]])
def test_without_a_partition_it_says_how_to_get_one(start: list[str]):
    done = subprocess.run(
        [sys.executable, *start], cwd=ROOT, env={}, check=False, capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: IPUOF_CONFIG_PATH is not set, so there are no accelerators to train on")
    assert "moor run job.toml" in done.stderr


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--batch-size", "many"], ["--speed", "high"]])
def test_wrong_arguments_are_a_usage_error(arguments: list[str]):
    with pytest.raises(SystemExit) as caught:
        train.main(arguments)
    assert caught.value.code == 2
