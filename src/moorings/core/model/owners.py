"""What the name of a project or an owner says. Apart from ``claims``, which costs a command more than its own work."""

from __future__ import annotations

HIDDEN = "(hidden)"  # in place of a name that a caller does not see


def is_within(project: str, other: str) -> bool:
    """Whether a claim's project is another one, or below it: ``lab/vision`` is below ``lab``."""
    return project == other or project.startswith(f"{other}/")


def external_job_id(owner: str) -> str:
    """The id that another scheduler has for the job of a claim with that owner; empty: no such job."""
    parts = owner.split("/")
    if parts[0] == "slurm" and len(parts) > 2:
        return parts[2]
    return "/".join(parts[2:4]) if parts[0] == "kubernetes" and len(parts) > 3 else ""


def external_job_name(owner: str) -> str:
    """The name that users of another scheduler know its job by, from the owner of its claim; empty: no such job."""
    parts = owner.split("/")
    if parts[0] == "slurm" and len(parts) > 2:
        return f"job {parts[2]} on slurm/{parts[1]}"
    if parts[0] == "kubernetes" and len(parts) > 3:
        return f"{parts[2]}/{parts[3]} on kubernetes/{parts[1]}"
    return ""
