"""An admin's settings of the cluster for runs: the table ``[slurm]`` of the controller's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorings.core.model.toml_table import TomlTable

DEFAULT_PYTHON = "python3"

RUNS_FOLDER = re.compile(r"(/[A-Za-z0-9._@+-]+)+")  # sbatch and srun expand % and \ in the names of output files
_PYTHON = re.compile(r"[A-Za-z0-9_+.-]{1,64}|(/[A-Za-z0-9_+.-]+)+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LISTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(,[A-Za-z0-9][A-Za-z0-9._-]{0,63})*")


@dataclass(frozen=True, slots=True)
class SubmitTarget:
    """Where a job goes in Slurm; empty: Slurm's own default."""

    account: str = ""
    partition: str = ""
    qos: str = ""


@dataclass(frozen=True, slots=True)
class SlurmEngineSettings:
    """The cluster.

    Attributes:
        folder: the runs' folder; controller and nodes see it under this path, and the controller's user, who submits
            all jobs, can write there. None: people submit their jobs themselves, each with their own ``moor``.
        conf: the cluster's slurm.conf; None: the default of Slurm's commands.
        default_target: the default target of jobs.
        python: Python 3.11 or later on the nodes, by name or path, which looks at checkpoints there.
        projects: the target of a project's jobs, where it differs from ``default_target``. The account of a project not
            listed is the project's name; for the project ``default`` it is the user's own.
    """

    folder: Path | None = None
    conf: Path | None = None
    default_target: SubmitTarget = SubmitTarget()
    python: str = DEFAULT_PYTHON
    projects: Mapping[str, SubmitTarget] = field(default_factory=dict)

    @classmethod
    def read(cls, table: TomlTable) -> SlurmEngineSettings:
        """Return the settings of a table ``[slurm]``.

        Raises:
            MooringsError: with the table's code, naming file and line.
        """
        path = "an absolute path of letters, digits and . _ @ + -"
        folder = table.matched("folder", RUNS_FOLDER, path) if table.has("folder") else None
        conf = table.matched("conf", re.compile(r"/.*"), "an absolute path") if table.has("conf") else None
        usual = _place(table, SubmitTarget())
        python = (
            table.matched("python", _PYTHON, "a name or an absolute path") if table.has("python") else DEFAULT_PYTHON
        )
        projects = table.named("projects", lambda project: _place(project, usual))
        table.reject_unknown_keys()
        return cls(
            Path(folder) if folder is not None else None,
            Path(conf) if conf is not None else None,
            usual,
            python,
            projects,
        )

    def target_for(self, project: str) -> SubmitTarget:
        """Return the target of a project's jobs."""
        if project in self.projects:
            return self.projects[project]
        account = self.default_target.account or ("" if project == "default" else project)
        return SubmitTarget(account, self.default_target.partition, self.default_target.qos)


def _place(table: TomlTable, usual: SubmitTarget) -> SubmitTarget:
    one = "a name that Slurm knows"
    return SubmitTarget(
        account=table.matched("account", _NAME, one) if table.has("account") else usual.account,
        partition=table.matched("partition", _LISTS, f"{one}, or several with commas")
        if table.has("partition")
        else usual.partition,
        qos=table.matched("qos", _NAME, one) if table.has("qos") else usual.qos,
    )
