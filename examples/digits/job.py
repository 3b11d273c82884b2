"""What Moorings gives each process of a job: read from its environment, once.

Everything else takes plain values, so it can be tested, and reused, without pretending to be a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START_IT = "start this program with `moor run job.toml`"


class NotAJobError(Exception):
    """The environment is not that of a job's process."""


@dataclass(frozen=True, slots=True)
class Job:
    """One process's place in the job, and where its binding and its checkpoints are."""

    run_id: str
    rank: int
    world_size: int
    master_address: str
    master_port: int
    partition_id: str
    device_ids: tuple[str, ...]
    ipuof_path: Path
    checkpoint_folder: Path | None
    resume_from: Path | None

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> Self:
        """Raises NotAJobError naming the variable that is missing or wrong."""
        if "IPUOF_CONFIG_PATH" not in environ:
            raise NotAJobError(f"IPUOF_CONFIG_PATH is not set, so there are no accelerators to train on: {START_IT}")
        try:
            return cls(
                run_id=environ["MOORINGS_RUN_ID"],
                rank=_number(environ, "RANK"),
                world_size=_number(environ, "WORLD_SIZE"),
                master_address=environ["MASTER_ADDR"],
                master_port=_number(environ, "MASTER_PORT"),
                partition_id=environ["MOORINGS_PARTITION_ID"],
                device_ids=tuple(environ["MOORINGS_DEVICES"].split(",")),
                ipuof_path=Path(environ["IPUOF_CONFIG_PATH"]),
                checkpoint_folder=_path(environ, "MOORINGS_CHECKPOINT_DIR"),
                resume_from=_path(environ, "MOORINGS_RESUME_FROM"),
            )
        except KeyError as error:
            raise NotAJobError(f"{error.args[0]} is not set: {START_IT}") from None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise NotAJobError(f"{name} is not a number: {environ[name]!r}") from None


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
