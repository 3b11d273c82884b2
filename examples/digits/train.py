"""Train the digits network as one of a job's processes: `python3 train.py`, started by `moor run job.toml`.

Every rank holds all the weights and computes on its own shard of each batch; the gradients are summed over the ranks
(`rendezvous`), and all take the same step. So one process, two or four learn the same network.

Signals only raise a flag, and the flags travel in the same vector as the gradients. So all ranks learn in the same
step that a checkpoint is wanted or the end is near, whichever of them the signal reached: none is left waiting in an
exchange for a peer that has gone.
"""

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

if __name__ == "__main__":
    # A process for each GCD is the parallelism here. By default NumPy's BLAS starts a thread for each core in every
    # one of them, and they fight over the cores. It reads these variables once, when NumPy is imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

import numpy as np

if TYPE_CHECKING or __package__:
    from examples.digits import checkpoint, data, devices, model, rendezvous
    from examples.digits.job import Job, NotAJobError
else:  # started by its path, as job.toml does: this folder is where Python looks first
    import checkpoint
    import data
    import devices
    import model
    import rendezvous
    from job import Job, NotAJobError

SIZES = model.Sizes(data.PIXELS, 64, data.CLASSES)
MOMENTUM = 0.9
EXIT_TERMINATED = 128 + signal.SIGTERM

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """Ends the program with status 2 if the arguments are wrong."""
        parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
        parser.add_argument("--epochs", type=_positive, default=30)
        parser.add_argument("--batch-size", type=_positive, default=64, help="digits in a step, over all processes")
        parser.add_argument("--learning-rate", type=float, default=0.05)
        parser.add_argument("--seed", type=int, default=0, help="of the first weights and of the order of the digits")
        return cls(**vars(parser.parse_args(arguments)))


@dataclass(frozen=True, slots=True)
class State:
    """All that a step changes, and so all that a checkpoint holds. The same on every rank, bit for bit."""

    step: int
    loss: float  # in nats, summed over the rows seen since the epoch began
    weights: model.Vector
    velocity: model.Vector

    @classmethod
    def initial(cls, seed: int) -> Self:
        return cls(0, 0.0, model.initial_weights(SIZES, seed), np.zeros(SIZES.weights))

    @classmethod
    def resumed(cls, path: Path, settings: Settings) -> Self:
        """The state in the checkpoint at `path`. Raises CheckpointError if these settings cannot resume from it."""
        arrays = checkpoint.load(path)
        try:
            vectors = (np.asarray(arrays[name], dtype=np.float64) for name in ("weights", "velocity"))
            kept = cls(int(arrays["step"]), float(arrays["loss"]), *vectors)
            seed, batch_size = int(arrays["seed"]), int(arrays["batch_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise checkpoint.CheckpointError(f"{path} is not a checkpoint of this program: {error!r}") from error
        if kept.weights.shape != (SIZES.weights,) or kept.velocity.shape != (SIZES.weights,):
            raise checkpoint.CheckpointError(f"{path} is of another network: {kept.weights.shape} weights")
        if (seed, batch_size) != (settings.seed, settings.batch_size):
            raise checkpoint.CheckpointError(
                f"{path} was made with --seed {seed} --batch-size {batch_size}: go on with the same, "
                "or the digits come in another order"
            )
        return kept

    def save(self, folder: Path, settings: Settings) -> None:
        values = {"step": self.step, "loss": self.loss, "seed": settings.seed, "batch_size": settings.batch_size}
        arrays = {name: np.asarray(value) for name, value in values.items()}
        path = checkpoint.path_for(folder, self.step)
        checkpoint.save(path, {**arrays, "weights": self.weights, "velocity": self.velocity})

    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes() + self.velocity.tobytes()).hexdigest()


class Wish(NamedTuple):
    """What somebody outside wants before the next step is taken."""

    checkpoint: bool
    end: bool


class Wishes:
    """What this process's signals have asked for and the group has not heard yet."""

    def __init__(self) -> None:
        self._checkpoint = False
        self._end = False

    def on_checkpoint(self, *_: object) -> None:
        self._checkpoint = True

    def on_end(self, *_: object) -> None:
        self._end = True

    def take(self) -> Wish:
        """The wishes so far. That for a checkpoint is told once; that for the end stands."""
        wish = Wish(self._checkpoint, self._end)
        if wish.checkpoint:  # and only then, so that a signal that comes between these lines is not lost
            self._checkpoint = False
        return wish


@dataclass(frozen=True, slots=True)
class Trainer:
    """This rank's part in the training. Every rank must make the same calls in the same order, as with `Group`."""

    settings: Settings
    digits: data.Digits
    group: rendezvous.Group

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.digits.train_labels) // self.settings.batch_size)

    def is_finished(self, state: State) -> bool:
        return state.step >= self.steps_per_epoch * self.settings.epochs

    def train(self, state: State, wishes: Wishes, report: Report, save: Callable[[State], None]) -> State:
        """The state after the last epoch, or after the step in which some rank was asked to end.

        Saves after every epoch, and whenever a rank was asked to.
        """
        while not self.is_finished(state):
            state, wish = self.step(state, wishes.take())
            epoch, steps_into_next = divmod(state.step, self.steps_per_epoch)
            if steps_into_next == 0:
                loss = state.loss / len(self.digits.train_labels)
                report(f"epoch {epoch}/{self.settings.epochs}  loss {loss:.4f}  accuracy {self.accuracy(state):.4f}")
                state = replace(state, loss=0.0)
            if any(wish) or steps_into_next == 0:
                save(state)
            if any(wish):
                report(f"step {state.step}: asked to {'end' if wish.end else 'checkpoint'}")
            if wish.end:
                break
        return state

    def step(self, state: State, wish: Wish) -> tuple[State, Wish]:
        """The state after one step of the whole group, and what any of its ranks wished for before it."""
        epoch, batch = divmod(state.step, self.steps_per_epoch)
        start = batch * self.settings.batch_size
        order = data.shuffled(len(self.digits.train_labels), self.settings.seed, epoch)
        rows = order[start : start + self.settings.batch_size]
        mine = data.shard(rows, self.group.rank, self.group.world_size)
        images, labels = self.digits.train_images[mine], self.digits.train_labels[mine]

        loss, gradient = model.loss_and_gradient(state.weights, SIZES, images, labels)
        total = self.group.all_reduce(np.concatenate([[loss, *wish], gradient]))
        loss, checkpoint_wishes, end_wishes = map(float, total[:3])
        weights, velocity = model.momentum_step(
            state.weights,
            state.velocity,
            total[3:] / len(rows),
            learning_rate=self.settings.learning_rate,
            momentum=MOMENTUM,
        )
        return State(state.step + 1, state.loss + loss, weights, velocity), Wish(checkpoint_wishes > 0, end_wishes > 0)

    def accuracy(self, state: State) -> float:
        """The share of the test set that the network names rightly; each rank looks at its shard."""
        rows = len(self.digits.test_labels)
        mine = data.shard(np.arange(rows), self.group.rank, self.group.world_size)
        images, labels = self.digits.test_images[mine], self.digits.test_labels[mine]
        correct = model.count_correct(state.weights, SIZES, images, labels)
        return float(self.group.all_reduce(np.array([float(correct)]))[0]) / rows


@contextmanager
def own_devices(job: Job, group: rendezvous.Group, report: Report) -> Iterator[None]:
    """Holds this GCD's devices, once all ranks have shown that theirs are theirs alone. Raises DeviceError."""
    binding = devices.load(job.ipuof_path)
    devices.check(binding, rank=job.rank, world_size=job.world_size, partition_id=job.partition_id, ids=job.device_ids)
    with devices.attached(binding.devices) as real:
        require_same(group, "partition", f"{binding.partition_id} of {binding.partition_size} devices")
        shares = [ids.split(",") for ids in group.all_gather(",".join(binding.ids))]
        devices.check_shares(shares, binding.partition_size)
        report(f"partition {binding.partition_id}: {binding.partition_size} devices, {job.world_size} processes")
        for gcd, ids in enumerate(shares):
            report(f"gcd {gcd}: {', '.join(ids)}")
        if real:
            report(f"note: {', '.join(real)} are real devices; this example computes with NumPy and leaves them alone")
        yield


def require_same(group: rendezvous.Group, what: str, mine: str) -> None:
    """Nothing, if all ranks say the same. Raises RendezvousError naming the first that differs from rank 0."""
    first, *others = group.all_gather(mine)
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise rendezvous.RendezvousError(f"the ranks differ in their {what}: {first} on rank 0, {other} on {rank}")


def first_state(resume_from: Path | None, settings: Settings, group: rendezvous.Group) -> State:
    """Where the training begins, which is the same on every rank. Raises CheckpointError or RendezvousError."""
    state = State.resumed(resume_from, settings) if resume_from else State.initial(settings.seed)
    require_same(group, "settings", str(settings))
    require_same(group, "state at the start", f"step {state.step} {state.digest()}")
    return state


def run(job: Job, settings: Settings) -> int:
    """The exit status of this process: 0 when the network is trained, 143 when it was asked to end before.

    Raises DeviceError, RendezvousError or CheckpointError.
    """
    wishes = Wishes()
    signal.signal(signal.SIGUSR1, wishes.on_checkpoint)
    signal.signal(signal.SIGTERM, _exit_at_once)  # until there is something to save
    report: Report = partial(print, flush=True) if job.rank == 0 else _ignore
    place = rendezvous.Place(job.run_id, job.rank, job.world_size, job.master_address, job.master_port)
    with rendezvous.join(place) as group, own_devices(job, group, report):
        state = first_state(job.resume_from, settings, group)
        if job.resume_from:
            report(f"resuming from {job.resume_from} at step {state.step}")
        save: Callable[[State], None] = _ignore
        if job.checkpoint_folder is None:
            report("no checkpoints: MOORINGS_CHECKPOINT_DIR is not set")
        elif job.rank == 0:
            save = partial(State.save, folder=job.checkpoint_folder, settings=settings)

        trainer = Trainer(settings, data.load(), group)
        signal.signal(signal.SIGTERM, wishes.on_end)
        state = trainer.train(state, wishes, report, save)
        if not trainer.is_finished(state):
            return EXIT_TERMINATED
        require_same(group, "state at the end", state.digest())
        report(f"accuracy {trainer.accuracy(state):.3f}")
    return 0


def main(arguments: Sequence[str]) -> int:
    settings = Settings.parse(arguments)
    try:
        return run(Job.parse(os.environ), settings)
    except NotAJobError as error:
        print(f"error: {error}", file=sys.stderr)
    except (devices.DeviceError, rendezvous.RendezvousError, checkpoint.CheckpointError) as error:
        print(f"error: rank {os.environ['RANK']}: {error}", file=sys.stderr)
    return 1


def _exit_at_once(*_: object) -> None:
    sys.exit(EXIT_TERMINATED)


def _ignore(_: object) -> None:
    pass


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
