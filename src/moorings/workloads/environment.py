"""A job's variables, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def names_alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The names, each with an empty value: what the database, the API and a list know of an environment."""
    return dict.fromkeys(environment, "")


def has_values(environment: Mapping[str, str]) -> bool:
    """Whether it has a value that ``names_alone`` would have removed."""
    return any(environment.values())
