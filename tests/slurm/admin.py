"""The ``moor`` command as an admin of the cluster runs it: another process, with the cluster's variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.slurm.cluster import SlurmCluster
from tests.waiting import patient

MOOR = Path(sys.executable).with_name("moor")


def surroundings(cluster: SlurmCluster) -> dict[str, str]:
    """Its variables; the compiler finds the headers of the cluster's release."""
    path = f"{cluster.env['PATH']}:{os.environ['PATH']}"
    return {**os.environ, **cluster.env, "PATH": path, "CPATH": str(cluster.programs.headers)}


def moor(
    cluster: SlurmCluster,
    *words: str,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """What came of it; ``before`` are words before the command, as of ``cluster.words_at``."""
    switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"] if user else []
    return subprocess.run(
        [*before, *switch, str(MOOR), *words],
        env={**surroundings(cluster), **(env or {})},
        cwd=cluster.work,  # a release in a chroot sees this folder too
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )


def told(cluster: SlurmCluster, *words: str, code: int = 0, before: Sequence[str] = ()) -> dict[str, Any]:
    """The document it prints; it must end with ``code``."""
    done = moor(cluster, *words, "-o", "json", before=before)
    assert done.returncode == code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document
