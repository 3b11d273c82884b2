"""Looks for a job's container image before the job is queued, and fetches it: devices never wait for a registry.

Only where the job would run on this machine as this user, with podman: apptainer fetches when the job starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from moorings.core.model.errors import MooringsError
from moorings.engines.containers import (
    PAUSE,
    RuntimeKind,
    build_look,
    build_pull,
    build_variables,
    find_own_runtime,
    remove_stale_records,
)
from moorings.engines.processes import adopt_orphans, descendants, list_processes, send_signal
from moorings.workloads.images import is_image_file


def fetch_image(image: str, environment: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Have the image here.

    Args:
        image: of a checked job.
        environment: of this command.
        report: gets a sentence before a long wait.

    Raises:
        MooringsError: ``container.no_runtime``, ``container.no_image``.
    """
    if is_image_file(image) and not os.path.exists(image):  # noqa: PTH110 - a Path raises where a folder is closed
        raise MooringsError("container.no_image", f"there is no image file {image}", hint="is its path right?")
    runtime = find_own_runtime(image)
    if is_image_file(image) or runtime.kind is not RuntimeKind.PODMAN:
        return
    variables = {**environment, **build_variables(runtime, environment, {})}
    run = partial(subprocess.run, env=variables, stdout=subprocess.DEVNULL, check=False)
    with _without_pause():
        remove_stale_records(runtime, variables)
        if run(build_look(runtime, image)).returncode == 0:
            return
        report(f"pulling image {image}")
        if run(build_pull(runtime, image)).returncode == 0:
            return
    hint = f"podman pull {image}"
    raise MooringsError("container.no_image", f"the image {image} could not be pulled", hint=hint)


@contextlib.contextmanager
def _without_pause() -> Iterator[None]:
    """End the process that a podman in here leaves behind for the next one, if it began one."""
    adopt_orphans()
    try:
        yield
    finally:
        for process in descendants([os.getpid()], list_processes()):
            if process.name == PAUSE:
                send_signal(process, signal.SIGKILL)
                os.waitpid(process.pid, 0)
