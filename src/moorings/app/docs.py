"""Writes the pages and manual pages generated from the code: ``python -m moorings.app.docs`` (``make docs``).

Their text is made in ``moorings.app.documents``; here they only get their names. A test fails if a committed page
differs from the generated one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from moorings.api import openapi
from moorings.app.documents.api import api_page
from moorings.app.documents.errors import errors_page
from moorings.app.documents.files import job_page, pools_page
from moorings.app.documents.ipujob import definitions, ipujob_page
from moorings.app.documents.manual import manual_pages
from moorings.app.documents.settings import events_page, settings_page
from moorings.app.documents.states import states_page
from moorings.app.documents.tables import checks_page, environment_page, limits_page, metrics_page
from moorings.cli.main import root
from moorings.cli.reference import build_reference

FOLDER = Path("docs")


def pages() -> dict[str, str]:
    """The text of every generated file, by its path below ``docs``."""
    reference = {
        "api.md": api_page(),
        "checks.md": checks_page(),
        "cli.md": build_reference(root),
        "environment.md": environment_page(),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "ipujob.md": ipujob_page(),
        "job-file.md": job_page(),
        "limits.md": limits_page(),
        "metrics.md": metrics_page(),
        "openapi.json": openapi.document_text(),
        "pools-file.md": pools_page(),
        "settings.md": settings_page(),
        "states.md": states_page(),
    }
    manual = manual_pages()
    return {
        **{f"reference/{name}": text for name, text in reference.items()},
        **{f"man/man{name.rsplit('.', 1)[1]}/{name}": text for name, text in manual.items()},
    }


def deployment_files() -> dict[str, str]:
    """The text of every generated file for a site to copy, by its path in the project."""
    return definitions()


def main() -> int:
    """Write every file, below the current folder; remove manual pages of commands that no longer exist."""
    made = pages()
    texts = {
        **{FOLDER / name: text for name, text in made.items()},
        **{Path(name): text for name, text in deployment_files().items()},
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (FOLDER / "man").glob("man*/*"):
        if str(path.relative_to(FOLDER)) not in made:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
