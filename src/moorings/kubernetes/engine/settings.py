"""The settings of the cluster for runs: the table ``[kubernetes]`` of the controller's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.model.toml_table import TomlTable
from moorings.workloads.jobs import JobSpec

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VOLUME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_PATH = re.compile(r"(/[^/:\0]+)+")
_IMAGE = re.compile(r"[\w.:/@-]{1,500}", re.ASCII)
_ABSOLUTE = re.compile(r"/[^\0]*")
_ID_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that tasks see at a path of their containers.

    Attributes:
        path: where they see it; absolute.
        claim: a PersistentVolumeClaim of the run's namespace; empty: ``host_path``.
        host_path: a folder of every node; empty: ``claim``.
        read_only: whether they may only read.
    """

    path: str
    claim: str = ""
    host_path: str = ""
    read_only: bool = False

    def holds(self, folder: str) -> bool:
        """Whether a folder is in it."""
        return folder == self.path or folder.startswith(f"{self.path}/")

    @property
    def origin(self) -> str:
        """Its source, in words."""
        return f"the claim {self.claim}" if self.claim else f"its node's {self.host_path}"


@dataclass(frozen=True, slots=True)
class KubernetesEngineSettings:
    """The cluster.

    Attributes:
        namespace: of the IPUJobs.
        kubeconfig: a file; empty: as kubectl finds it.
        context: of the kubeconfig; empty: its current one.
        projects: namespaces of projects with their own.
        volumes: the site's file systems, as tasks see them.
        user: user id of tasks; None: the image's.
        group: their group id; None: the image's.
        request_cpus: whether a task's CPUs are requested from Kubernetes' scheduler.
        checkpoint_image: an image of Moorings that looks at checkpoints in the Pods; empty: nobody looks.
    """

    namespace: str
    kubeconfig: str = ""
    context: str = ""
    projects: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    user: int | None = None
    group: int | None = None
    request_cpus: bool = True
    checkpoint_image: str = ""

    @classmethod
    def read(cls, table: TomlTable) -> KubernetesEngineSettings:
        """Read the settings from a table ``[kubernetes]``.

        Raises:
            MooringsError: with the table's code, naming file and line.
        """
        projects = table.named("projects", _namespace)
        found = cls(
            namespace=_namespace(table),
            kubeconfig=table.matched("kubeconfig", _ABSOLUTE, "an absolute path") if table.has("kubeconfig") else "",
            context=table.text("context", ""),
            projects=projects,
            volumes=_volumes(table),
            user=_number(table, "user"),
            group=_number(table, "group"),
            request_cpus=table.boolean("request_cpus", default=True),
            checkpoint_image=table.matched("checkpoint_image", _IMAGE, "an image's name")
            if table.has("checkpoint_image")
            else "",
        )
        table.reject_unknown_keys()
        return found

    def namespace_of(self, project: str) -> str:
        """The namespace of a project's jobs."""
        return self.projects.get(project, self.namespace)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of all projects."""
        return tuple(dict.fromkeys((self.namespace, *self.projects.values())))

    def sees_checkpoints_of(self, job: JobSpec) -> bool:
        """Whether a job's checkpoints are looked at."""
        folder = job.checkpoint_directory
        seen = bool(self.checkpoint_image) and job.checkpoint.resumable  # others gain nothing, and may have no shell
        return seen and folder is not None and self.volume_of(folder) is not None

    def volume_of(self, folder: str) -> Volume | None:
        """The volume with this folder of a task; None: the folder is in its container, and is lost with it."""
        holding = [volume for volume in self.volumes if volume.holds(folder)]
        return max(holding, key=lambda volume: len(volume.path), default=None)


def _namespace(table: TomlTable) -> str:
    return table.matched("namespace", _NAME, "a namespace's name")


def _volumes(table: TomlTable) -> tuple[Volume, ...]:
    found: list[Volume] = []
    for one in table.tables("volumes"):
        volume = Volume(
            path=one.matched("path", _PATH, "an absolute path without ':', and not / itself"),
            claim=one.matched("claim", _VOLUME, "a claim's name") if one.has("claim") else "",
            host_path=one.matched("host_path", _ABSOLUTE, "an absolute path") if one.has("host_path") else "",
            read_only=one.boolean("read_only", default=False),
        )
        if bool(volume.claim) == bool(volume.host_path):
            one.fail_at(None, "a volume is either a claim or a host_path", hint='path = "/work"\nclaim = "work"')
        if any(volume.path == other.path for other in found):
            one.fail_at("path", f"{volume.path} is there twice")
        found.append(volume)
        one.reject_unknown_keys()
    return tuple(found)


def _number(table: TomlTable, key: str) -> int | None:
    if not table.has(key):
        return None
    number = table.integer(key)
    if not 0 <= number <= _ID_MAX:
        table.fail_at(key, f"{key} {number} is no number of a user or group")
    return number
