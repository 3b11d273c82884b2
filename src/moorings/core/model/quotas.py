"""The quotas file of a machine that people share: how many devices each of them holds at once, at most.

::

    [devices]
    everyone = 4
    ann = 8
    "@students" = 2      # each member of the Unix group
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from moorings.core.model.projects import LIMIT_MAX, USER_LIMITS_MAX, UserLimit
from moorings.core.model.toml_table import TomlTable

QUOTAS_BYTES_MAX: Final = 1 << 18
EVERYONE: Final = "everyone"
GROUP_MARK: Final = "@"
_REMOVE = "correct it, or remove the line"


@dataclass(frozen=True, slots=True)
class DeviceQuotas:
    """What a quotas file says.

    Attributes:
        user_devices_max: devices of each person who is not in ``user_limits``; None: no limit.
        user_limits: of those with a limit of their own, by their line or as a member of a group.
    """

    user_devices_max: int | None = None
    user_limits: tuple[UserLimit, ...] = ()


def parse_quotas(
    text: str,
    *,
    source: str,
    find_account: Callable[[str], str | None],
    list_members: Callable[[str], Collection[str] | None],
) -> DeviceQuotas:
    """The quotas in a text: a person's own line comes before groups; of several groups the highest counts.

    Args:
        text: TOML.
        source: name of the file, for messages.
        find_account: gives the name of the account that a name means; None: there is none.
        list_members: gives the names of a group's members; None: there is no such group.

    Raises:
        MooringsError: ``quotas.invalid``; the message names file, line and key.
    """
    top = TomlTable.parse(text, source=source, code="quotas.invalid")
    table = top.table("devices")
    top.reject_unknown_keys()
    usual: int | None = None
    own: dict[str, int] = {}
    of_groups: dict[str, int] = {}
    for key in table.keys():
        most = _limit(table, key)
        if key == EVERYONE:
            usual = most
        elif key.startswith(GROUP_MARK):
            members = list_members(key.removeprefix(GROUP_MARK))
            if members is None:
                table.fail_at(key, f"there is no group {key[1:81]!r} on this machine", _REMOVE)
            of_groups |= {name: max(most, of_groups.get(name, 0)) for name in members}
        else:
            account = find_account(key)
            if account is None:
                table.fail_at(key, f"there is no account {key[:80]!r} on this machine", _REMOVE)
            own[account] = most
    limits = of_groups | own
    if len(limits) > USER_LIMITS_MAX:
        hint = f"set {EVERYONE} to what most may hold, and name only the others"
        table.fail_at(None, f"{len(limits)} people have a limit of their own; at most {USER_LIMITS_MAX} may", hint)
    return DeviceQuotas(usual, tuple(UserLimit(name, limits[name]) for name in sorted(limits)))


def _limit(table: TomlTable, key: str) -> int:
    if isinstance(table.raw_value(key), dict):
        table.fail_at(key, f"{key[:80]} must be a number, not a table", "write a name with a dot in quotes")
    return table.within(key, table.integer(key), 0, LIMIT_MAX)
