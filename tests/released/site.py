"""The sites that earlier releases left: unpacked, and told of."""

from __future__ import annotations

import json
import tarfile
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = sorted(path.name.removeprefix("site-").removesuffix(".tar.xz") for path in HERE.glob("site-*.tar.xz"))
KEEPS_ALL = ("--keep-runs-days", "0", "--keep-history-days", "0")  # however old the recording is by now


class ReleasedSite:
    """A folder as a controller of that release left it (``tests.released.recording``)."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        with tarfile.open(HERE / f"site-{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")

    @cached_property
    def told(self) -> dict[str, Any]:
        """What that controller told last."""
        found: dict[str, Any] = json.loads((self.folder / "told.json").read_text())
        return found

    def items(self, kind: str) -> dict[str, dict[str, Any]]:
        """Its claims, say, by name."""
        return {item.get("name") or item.get("id"): item for item in self.told[kind]}

    def asked(self, claim: str) -> dict[str, Any]:
        """The body with which that claim was asked for."""
        exchanges = json.loads((HERE / f"wire-{self.name}.json").read_text())["exchanges"]
        made = [one["request"] for one in exchanges if one["operation"] == "POST /v1/claims" and one["status"] == 201]
        (found,) = (body for body in made if body["name"] == claim)
        return dict(found)

    def run(self, job: str) -> Path:
        """The folder of the run of that job."""
        (found,) = (one["id"] for one in self.told["runs"] if one["name"] == job)
        return self.folder / "data" / "runs" / str(found)
