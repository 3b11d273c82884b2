"""The specification of one job: a file in the model's folder, written by the client, read where the job runs.

A file rather than arguments: params may be long, and command lines are visible to all users.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from moorings.core.model.errors import MooringsError
from moorings.files import write_atomically

JobAction = Literal["compile", "train", "eval"]
DataSplit = Literal["train", "eval"]

FILE_NAME: Final = "order.json"
BYTES_MAX: Final = 4 << 20
SECTIONS: Final = ("model", "train_input", "eval_input", "optimizer", "runconfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceJobSpec:
    """One job.

    Attributes:
        act: compile, train or evaluate.
        program: with the backward pass (``train``), or forward only (``eval``).
        params: the params file's sections, checked, with defaults; JSON values.
        model_dir: absolute folder of checkpoints.
        compile_dir: absolute folder of compiled programs.
        folder: this order's own folder, absolute; the job's result goes there.
        systems: how many execute it; for a compile job, the number to compile for.
        weight_servers: processes that hold the weights.
        artifact: key of the compiled program; None for a compile job.
        first_step: steps done before.
        last_step: train: the last step; eval: the number of batches.
        checkpoint: absolute path of the file to start from, or None.
        mount_dirs: absolute folders that the program needs to see.
        label: the beginning of a progress line.
    """

    act: JobAction
    program: DataSplit
    params: Mapping[str, Mapping[str, Any]]
    model_dir: str
    compile_dir: str
    folder: str
    systems: int
    weight_servers: int
    artifact: str | None = None
    first_step: int = 0
    last_step: int = 0
    checkpoint: str | None = None
    mount_dirs: tuple[str, ...] = ()
    label: str = ""
    version: int = field(default=1)

    @property
    def spec_file(self) -> Path:
        """The path of its file."""
        return Path(self.folder) / FILE_NAME

    @property
    def result_file(self) -> Path:
        """The path of the job's result."""
        name = f"compiled-{self.program}" if self.act == "compile" else {"train": "trained"}.get(self.act, "evaluated")
        return Path(self.folder) / f"{name}.json"


def write_job_spec(order: ApplianceJobSpec) -> Path:
    """Write it into its folder, which is made; return the file.

    Raises:
        OSError: it cannot be written.
    """
    Path(order.folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(order.spec_file, json.dumps(asdict(order)).encode())
    return order.spec_file


def read_job_spec(path: Path) -> ApplianceJobSpec:
    """Read and check the order in a file.

    Raises:
        MooringsError: ``order.invalid``: it is missing, damaged, or another user's.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid not in (os.getuid(), 0):
                raise _invalid(path, "another user wrote it")
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _invalid(path, f"it cannot be read: {error.strerror or error}") from error
    if len(text) > BYTES_MAX:
        raise _invalid(path, f"it is longer than {BYTES_MAX} bytes")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, "it is not JSON") from error
    return _build(path, record)


def _build(path: Path, record: object) -> ApplianceJobSpec:
    known = {each.name for each in fields(ApplianceJobSpec)}
    if not isinstance(record, dict) or not known >= record.keys() or known - record.keys():
        raise _invalid(path, "it has not the fields of an order")
    paths = [record[name] for name in ("model_dir", "compile_dir", "folder")]
    paths += [record["checkpoint"]] if record["checkpoint"] is not None else []
    params, mounts = record["params"], record["mount_dirs"]
    counts = [record[name] for name in ("systems", "weight_servers", "first_step", "last_step")]
    sound = (
        record["version"] == 1
        and record["act"] in get_args(JobAction)
        and record["program"] in get_args(DataSplit)
        and isinstance(params, dict)
        and params.keys() == set(SECTIONS)
        and all(isinstance(section, dict) for section in params.values())
        and isinstance(mounts, list)
        and all(isinstance(each, str) and each.startswith("/") for each in (*paths, *mounts))
        and all(type(each) is int and each >= 0 for each in counts)
        and record["systems"] >= 1
        and record["weight_servers"] >= 1
        and (record["artifact"] is None or isinstance(record["artifact"], str))
        and isinstance(record["label"], str)
    )
    if not sound:
        raise _invalid(path, "one of its fields has a value that it cannot have")
    return ApplianceJobSpec(**{**record, "mount_dirs": tuple(mounts)})


def _invalid(path: Path, why: str) -> MooringsError:
    return MooringsError("order.invalid", f"{path}: {why}", hint="start run.py again: it writes a new one")
