"""Bindings: what a job gets in order to reach its partition and nothing else.

A driver says what its hardware needs (``Binding``); ``task_environment`` turns that into one task's variables. They are
in file form if a folder for files is given, else in API form, never mixed: a PopTorch program fails if it finds
``IPUOF_VIPU_API_HOST`` beside a config file (facts: vipu section 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.model.devices import DeviceId
from moorings.core.model.serialization import OMIT_IF_DEFAULT


@dataclass(frozen=True, slots=True)
class GcdBinding:
    """What one GCD (one task) gets.

    Attributes:
        gcd: its number in the partition.
        devices: its devices, in order.
        file_name: ``<partition>_gcd<N>_ipuof.conf`` for IPUs; empty if the hardware needs no file.
        file_text: the whole content of that file.
        environment: variables of this GCD needed in every form (``CUDA_VISIBLE_DEVICES``).
        device_files: paths of its device files, on a machine where other jobs cannot open them; empty: it has none.
    """

    gcd: int
    devices: tuple[DeviceId, ...]
    file_name: str = ""
    file_text: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    device_files: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class Binding:
    """What the job of a whole partition gets.

    Attributes:
        partition: the partition's name.
        api: variables that name the *vendor's* controller and the partition, without the GCD; empty if it has no API.
        gcds: by number.
    """

    partition: str
    api: Mapping[str, str]
    gcds: tuple[GcdBinding, ...]


NO_BINDING = Binding("", {}, ())  # of a run whose partition the engine's scheduler arranges


def no_devices_binding(tasks: int) -> Binding:
    """The binding of a run without devices: its tasks have their numbers."""
    return Binding("", {}, tuple(GcdBinding(rank, ()) for rank in range(tasks)))


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address where the tasks of a job meet."""

    address: str
    port: int


def task_environment(
    binding: Binding, rank: int, rendezvous: Rendezvous, *, run: str, files_folder: str | None = None
) -> dict[str, str]:
    """The binding's variables for the task ``rank`` (its GCD has the same number).

    Args:
        binding: from the driver.
        rank: the task.
        rendezvous: where task 0 listens.
        run: the run's id (or the job id of another scheduler).
        files_folder: where the files of the binding were written; None for API form.
    """
    gcd = binding.gcds[rank]
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(len(binding.gcds)),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "MOORINGS_RUN_ID": run,
        "MOORINGS_JOB_ID": run,
        "MOORINGS_PARTITION_ID": binding.partition,
        "MOORINGS_DEVICES": ",".join(gcd.devices),
        **gcd.environment,
    }
    if files_folder is not None and gcd.file_name:
        variables["IPUOF_CONFIG_PATH"] = f"{files_folder}/{gcd.file_name}"
    elif binding.api:
        variables |= {**binding.api, "IPUOF_VIPU_API_GCD_ID": str(gcd.gcd)}
    return variables
