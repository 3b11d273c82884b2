#!/usr/bin/env python3
"""Lists the parts of the images that are old, or known to be vulnerable (``make scan``).

Without files it first makes the images' bills of materials, as scripts/image.py does. It compares each package of
Debian in them with Debian's newest one, security fixes included. For known vulnerabilities it runs grype and trivy, if
they are on PATH: they download their own data.

usage: scan.py [--fresh] [--architecture arm64] [--kubectl FILE]
       scan.py SBOM...
Exit code: 1, if Debian has a newer version of a package, or a scanner has found a vulnerability.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import image  # noqa: E402  # the one beside this file

SCANNERS = {
    "grype": ("grype", "--quiet", "--fail-on=high", "sbom:{}"),
    "trivy": ("trivy", "sbom", "--quiet", "--exit-code=1", "--severity=HIGH,CRITICAL", "{}"),
}


def main() -> int:
    """Print the findings; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scan.py", description="Say what of the images is old, or vulnerable.")
    parser.add_argument("files", nargs="*", type=Path, metavar="SBOM", help="in CycloneDX (default: of new images)")
    image.add_options(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            if not given.files:
                images = list(image.IMAGES.values())
                image.write_sboms(Path(work), images, image.make_layers(given), image.version())
            files = given.files or sorted(Path(work).iterdir())
            old = any([is_old(file) for file in files])  # noqa: C419  # report all
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        if old:
            _say("hint: --fresh makes images with today's packages")
        return 1 if any([old, *(is_vulnerable(name, files) for name in SCANNERS)]) else 0


def is_old(file: Path) -> bool:
    """Whether Debian has newer versions of an image's packages; prints which.

    Raises:
        OSError: the file cannot be read.
        ValueError, KeyError: it is no valid document.
        subprocess.CalledProcessError: Debian's archive cannot be read.
    """
    document = json.loads(file.read_text("utf-8"))
    about = document["metadata"]["component"]
    packages = [each for each in document["components"] if each.get("purl", "").startswith("pkg:deb/debian/")]
    newest = newest_of(packages)
    old = [each for each in packages if newest.get(each["name"], each["version"]) != each["version"]]
    for each in old:
        _say(f"{about['name']}: {each['name']} {each['version']} is old: Debian has {newest[each['name']]}")
    gone = [each["name"] for each in packages if each["name"] not in newest]
    for name in gone:
        _say(f"{about['name']}: {name} is in Debian no more")
    _say(
        f"{about['name']}: {len(packages) - len(old) - len(gone)} of {len(packages)} packages of Debian are the newest"
    )
    return bool(old or gone)


def newest_of(packages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The newest version of each package, by its name."""
    found = {}
    asked: dict[str, list[str]] = {}
    for each in packages:
        architecture = parse_qs(urlsplit(each["purl"]).query)["arch"][0]
        asked.setdefault(architecture, []).append(each["name"])
    of_all = asked.pop("all", [])  # every architecture's list has them
    for architecture, names in (asked or {"amd64": []}).items():
        done = subprocess.run(
            [image.RECIPES / "root.sh", "--newest", *names, *of_all],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "ARCHITECTURE": architecture},
        )
        found |= {name: version for name, version, _ in (line.split() for line in done.stdout.splitlines())}
    return found


def is_vulnerable(name: str, files: Sequence[Path]) -> bool:
    """Whether a scanner has found a vulnerability; prints its output."""
    if shutil.which(name) is None:
        _say(f"{name} is not here: it was not asked for known vulnerabilities")
        return False
    commands = [[word.format(file) for word in SCANNERS[name]] for file in files]
    return any([subprocess.run(command, check=False).returncode != 0 for command in commands])  # noqa: C419  # all run


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
