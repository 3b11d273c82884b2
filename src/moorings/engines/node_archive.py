"""Programs for nodes where Moorings is not installed: our own modules as one file that ``python3`` runs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from importlib.resources import files

TOO_OLD = 9  # exit code of a Python that is too old

# Older Pythons must be able to parse this file.
_MAIN = """import sys

if sys.version_info < (3, 11):
    sys.stderr.write("moorings: {lost} with Python %d.%d: 3.11 is needed\\n" % sys.version_info[:2])
    sys.exit({too_old})
from moorings.{module} import main

main(sys.argv[1:])
"""


def pack(module: str, modules: Sequence[str], lost: str) -> bytes:
    """A program for nodes, as one file: the same bytes for the same code.

    Args:
        module: the one with its ``main``, which gets the arguments.
        modules: all that it needs, itself and the ``__init__`` of each folder among them.
        lost: what cannot be had with a Python that is too old.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("__main__", *modules):
            path = f"moorings/{name.replace('.', '/')}.py" if name != "__main__" else "__main__.py"
            main_code = _MAIN.format(lost=lost, too_old=TOO_OLD, module=module).encode()
            code = main_code if name == "__main__" else files("moorings").joinpath(path[9:]).read_bytes()
            archive.writestr(zipfile.ZipInfo(path), code, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
