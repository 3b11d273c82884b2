"""``ipujob.md``, and the definitions of IPUJobs that a cluster's administrator applies: both from one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from moorings.app.documents.markdown import GENERATED, code, table
from moorings.core.model.claims import NAME_CHARS_MAX
from moorings.kubernetes.ipujob.fields import COLUMNS, SPEC, STATUS, CrdField, FieldType, build_crd
from moorings.kubernetes.ipujob.names import PREEMPTIBLE, RESUMABLE
from moorings.kubernetes.ipujob.types import API_VERSION, KIND
from moorings.kubernetes.ipujob.validation import OUR_LABELS, OUR_PATHS, OUR_PREFIX, OUR_VARIABLES, OUR_VARIABLES_PREFIX

_PLAIN = "deploy/kubernetes/CRDs/graphcore.ai_ipujobs.yaml"
_CEL = "deploy/kubernetes/CRDs-cel/graphcore.ai_ipujobs.yaml"
_ABOUT = f"""\
`{KIND}` (`{API_VERSION}`) is a job on IPUs in Kubernetes. `kubectl explain ipujob.spec` says what this page
says. `examples/kubernetes` has whole jobs.

Its name has at most {NAME_CHARS_MAX} lower-case letters, digits and `-`: with a longer one the vendor's library fails.
"""
_KINDS = (
    (
        "`spec.launcher.command`",
        "training",
        "A launcher Pod runs the command over the worker Pods, which idle until it uses them.",
    ),
    ("`spec.interactive`", "interactive", "A launcher Pod idles, for `kubectl exec`, and so do the workers."),
    ("neither", "inference", "Worker Pods run their own command; `kubectl scale` sets how many instances."),
)
_CHANGES = """\
## What may be changed

While the job exists: `jobInstances` (not of a job that has ended), `restartPolicy`, `cleanPodPolicy`,
`releaseOnFinish`, `startDeadlineSeconds`, `nodeLostSeconds` and metadata. Everything else is refused with
`ipujob.invalid`: delete the job and create it anew.
"""
_ANNOTATIONS = (
    (PREEMPTIBLE, "It may be preempted by projects that are guaranteed its IPUs, and resumes later."),
    (RESUMABLE, "Its program resumes from a checkpoint: it may also be moved to other IPUs."),
)
_RESERVED_NOTE = """\
A job that has one of these is refused: they would select another partition or separate launcher and workers.

"""
_FILES = f"""\
## Its definition

`{_PLAIN}` is for every Kubernetes since 1.20.
`{_CEL}` has CEL rules besides, which hold even while no webhook listens:
apply it instead on 1.25 and later. kubectl refuses it for older servers. The package of `make dist` has
both, in `CRDs` and `CRDs-cel`.
"""


def definitions() -> dict[str, str]:
    """The text of each definition, by its path in the project."""
    return {
        _PLAIN: _yaml("For Kubernetes 1.20 and later.", build_crd()),
        _CEL: _yaml("With CEL rules, for Kubernetes 1.25 and later.", build_crd(rules=True)),
    }


def _yaml(about: str, definition: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(definition, sort_keys=False, width=110, allow_unicode=True)
    return f"# Made by `make docs` from the code; do not edit. {about}\n{text}"


def ipujob_page() -> str:
    """The page of the IPUJob."""
    text = GENERATED + "# The IPUJob\n\n" + _ABOUT + "\n" + table(("it has", "it is", "what runs"), _KINDS)
    text += "\n## Spec\n\n" + _fields(SPEC)
    text += "\nNumbers may be written with or without quotes.\n\n" + _CHANGES
    text += '\n## Annotations\n\n`"true"` or `"false"`; they count when the partition is asked for.\n\n'
    text += table(("annotation", "meaning"), [(code(name), said) for name, said in _ANNOTATIONS])
    text += "\n## What Moorings sets itself\n\n" + _reserved_names()
    text += "\n## Status\n\nWritten by the operator alone.\n\n"
    text += table(
        ("field", "type", "meaning"), [(code(field.path), field.type.value, field.meaning) for field in STATUS]
    )
    text += "\n## Columns of `kubectl get ipujobs`\n\n"
    text += table(
        ("column", "from", "meaning"), [(name.upper(), code(path), f"{said}.") for name, _, path, said in COLUMNS]
    )
    return text + "\n" + _FILES


def _reserved_names() -> str:
    ours = (
        ("variables of containers and of the launcher", [*sorted(OUR_VARIABLES), f"{OUR_VARIABLES_PREFIX}*"]),
        ("labels and annotations", [f"{OUR_LABELS}*"]),
        ("names of volumes and containers", [f"{OUR_PREFIX}*"]),
        ("places of mounts", list(OUR_PATHS)),
    )
    return _RESERVED_NOTE + table(("what", "which"), [(what, ", ".join(map(code, which))) for what, which in ours])


def _fields(fields: Iterable[CrdField]) -> str:
    rows = [
        (code(field.path), field.type.value.replace("open", "object"), _default(field), _bounds(field), field.meaning)
        for field in fields
    ]
    return table(("field", "type", "default", "may be", "meaning"), rows)


def _default(field: CrdField) -> str:
    if field.required:
        return "required"
    match field.default:
        case None:
            return "none"
        case bool():
            return code(str(field.default).lower())
        case str() if field.type is FieldType.NUMBER:
            return code(f'"{field.default}"')
        case dict():
            return "as below"
        case _:
            return code(field.default)


def _bounds(field: CrdField) -> str:
    least, most = field.schema.get("minimum"), field.schema.get("maximum")
    if words := field.schema.get("enum"):
        return ", ".join(map(code, words))
    if least is not None:
        return f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
    if (items := field.schema.get("minItems")) is not None:
        return f"{items} or more"
    return ""
