"""The one place for every derived name, label and annotation."""

from __future__ import annotations

from moorings.kubernetes.ipujob.types import GROUP

CONFIG_DIR = "/etc/moorings"
BIN_DIR = "/opt/moorings/bin"

JOB = f"{GROUP}/job-name"
ROLE = f"{GROUP}/job-role"
INSTANCE = f"{GROUP}/instance"
WORKER = f"{GROUP}/worker"
RESTART = f"{GROUP}/restart"
PARTITION = f"{GROUP}/partition"  # annotation of a Pod: the partition it was made for
IPUOF = f"{GROUP}/ipuof"  # annotation of a worker: the file that reaches its GCD, where no API does
PROXY_CA = f"{GROUP}/proxy-ca"  # annotation of a launcher: the proxy's authorities
PROXY = f"{GROUP}/proxy"  # annotation of a launcher: a hash of how it reaches the proxy
PREEMPTIBLE = f"{GROUP}/preemptible"  # annotation of a job: it may be preempted, and resumes later
RESUMABLE = f"{GROUP}/resumable"  # annotation of a job: it resumes from a checkpoint, so it may also be moved
CHECKPOINTS = "task-checkpoints"  # a container beside a run's task, whose end says nothing of the task's
LAUNCHER_ROLE, WORKER_ROLE = "launcher", "worker"

OWNER_KIND = "kubernetes"


def worker_name(job: str, number: int) -> str:
    """The ``number``-th worker Pod of a job, over all instances."""
    return f"{job}-worker-{number}"


def worker_names(job: str, instance: int, workers: int) -> list[str]:
    """The worker Pods of an instance with so many workers."""
    return [worker_name(job, number) for number in range(instance * workers, (instance + 1) * workers)]


def launcher_name(job: str, instance: int) -> str:
    """The launcher Pod of an instance."""
    return f"{job}-launcher" if instance == 0 else f"{job}-launcher-{instance}"


def config_name(job: str, instance: int = 0) -> str:
    """The ConfigMap of an instance's launcher; the first one also has the entries that all launchers share."""
    return f"{job}-config" if instance == 0 else f"{job}-config-{instance}"


def account_name(job: str) -> str:
    """The name of the launchers' ServiceAccount, Role and RoleBinding."""
    return f"{job}-launcher"


def owner(cluster: str, namespace: str, job: str, uid: str, instance: int) -> str:
    """The holder of an instance's claim."""
    return f"{OWNER_KIND}/{cluster}/{namespace}/{job}/{uid}/{instance}"
