"""A job's container image: how it is written, and which variables of a shell mean nothing in it. Pure.

One way to write it for every engine: ``registry.example/digits:1`` as on Kubernetes, or the path of a SIF file.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from moorings.core.model.errors import MooringsError

IMAGE_CHARS_MAX = 4096

# A word that no program takes for an option, and that needs no quoting.
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._/:@+=~%-]*")
# They name the programs and files of the machine; the image has its own. Asked for by name, they travel.
MACHINE_VARIABLES = (
    *("PATH", "MANPATH", "LD_*", "LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV*", "CONDA_*", "SHELL"),
    *("MODULE*", "LOADEDMODULES", "_LMFILES_*", "LMOD_*", "BASH_FUNC_*", "BASH_ENV", "ENV", "HOSTNAME", "LOCPATH"),
    *("TMPDIR", "XDG_*", "DBUS_*", "SSH_*", "SSL_CERT_*", "DOCKER_*", "CONTAINER_*", "CONTAINERS_*", "APPTAINER*"),
)


def means_the_machine(name: str) -> bool:
    """Whether a variable names programs or files of the machine, so that an image would be misled by it."""
    return any(fnmatchcase(name, pattern) for pattern in MACHINE_VARIABLES)


def is_image_file(image: str) -> bool:
    """Whether it is the absolute path of a file (SIF), and none in a registry."""
    return image.startswith("/")


def absolute_image(image: str, folder: str) -> str:
    """The image with the path of a file made absolute: ``./digits.sif`` is one, ``digits.sif`` too."""
    if image.startswith(("./", "../")) or (image.endswith(".sif") and "://" not in image and not is_image_file(image)):
        return f"{folder.rstrip('/')}/{image.removeprefix('./')}"
    return image


def check_image(image: str) -> None:
    """Raise unless it can be an image.

    Raises:
        MooringsError: ``job.invalid``.
    """
    if len(image) > IMAGE_CHARS_MAX or not _IMAGE.fullmatch(image.removeprefix("docker://")):
        hint = 'image = "registry.example/digits:1", or the path of a SIF file'
        raise MooringsError("job.invalid", f"the image {image[:80]!r} is none", hint=hint)
