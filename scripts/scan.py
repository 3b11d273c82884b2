#!/usr/bin/env python3
"""Says what of the images is old, or known to be vulnerable (``make scan``).

Without files it makes the images' bills of materials first, as scripts/image.py does. Each package of Debian in them is
compared with the newest one that Debian has, security fixes included. What is known of vulnerabilities is asked of
grype and trivy, where they are on PATH: they bring their own data, and a network.

usage: scan.py [--fresh] [--architecture arm64] [--kubectl FILE]
       scan.py SBOM...
Exit code: 1, if a package of Debian is older than it need be, or a scanner has found something.
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
    """Say it; the exit code."""
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
            old = any([is_old(file) for file in files])  # noqa: C419  # all are told of
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        if old:
            _say("hint: --fresh makes images with today's packages")
        return 1 if any([old, *(is_vulnerable(name, files) for name in SCANNERS)]) else 0


def is_old(file: Path) -> bool:
    """Whether an image has packages of Debian that could be newer; says which.

    Raises:
        OSError: the file cannot be read.
        ValueError, KeyError: it is not what it should be.
        subprocess.CalledProcessError: Debian's archive cannot be asked.
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
    of_all = asked.pop("all", [])  # they are in every architecture's list
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
    """Whether a scanner has found something; says what it says."""
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
