"""The orders to V-IPU controllers (``drivers.vipu.intents``), in a backup and out of it.

Without its list of orders, a V-IPU pool takes our own partitions for foreign ones: after a restore on a new disk their
jobs would lose them (law 3), and nothing would remove them (law 2). So a backup has the lists. They belong to the
hardware rather than to the records, so a restore does not turn them back: an existing, intact list is newer and stays.
It is replaced only if it is damaged, or if the replaced records were another installation's: then its partitions are
foreign either way, and the backup's are not.
"""

from __future__ import annotations

import re
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.drivers.vipu.intents import FILE, is_readable
from moorings.files import fsync_path

_MEMBER = re.compile(r"vipu-orders\.([a-z0-9](?:[a-z0-9.-]{0,30}[a-z0-9])?)\.json")


def is_member(name: str) -> bool:
    """Whether a backup's member is a list of orders."""
    return _MEMBER.fullmatch(name) is not None


def find_vipu_files(data: Path) -> dict[str, Path]:
    """The lists of a data folder, by the names of their members in a backup.

    Raises:
        MooringsError: ``backup.invalid``: one is damaged.
    """
    found = {f"vipu-orders.{path.parent.name}.json": path for path in sorted((data / "vipu").glob(f"*/{FILE}"))}
    for path in found.values():
        if not is_readable(path):
            raise MooringsError(
                "backup.invalid",
                f"{path} is damaged: the backup would not be whole",
                hint="put it back from an earlier backup: moor restore FILE; or from a copy of your own",
            )
    return {name: path for name, path in found.items() if is_member(name)}


def restore_vipu_files(data: Path, work: Path, aside: Path, *, from_other_installation: bool) -> list[str]:
    """Restore the lists of an unpacked backup; return the pools whose list is now the backup's. May be repeated.

    Args:
        data: the data folder.
        work: the folder of the unpacked backup; no list is left there.
        aside: the folder for replaced lists.
        from_other_installation: whether those in ``data`` are of another installation.
    """
    taken = []
    for path in sorted(work.iterdir()):
        member = _MEMBER.fullmatch(path.name)
        if member is None:
            continue
        place = data / "vipu" / member[1] / FILE
        if place.exists() and is_readable(place) and not from_other_installation:
            path.unlink()
            continue
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.exists() and not (aside / path.name).exists():
            aside.mkdir(mode=0o700, exist_ok=True)
            place.rename(aside / path.name)
        path.rename(place)
        fsync_path(place.parent)
        taken.append(member[1])
    return taken
