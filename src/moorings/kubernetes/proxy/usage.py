"""IPUs held by jobs, by namespace, and their IPU-seconds; a change costs the same, however many jobs hold IPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class IpuUsage:
    """The number of IPUs that each owner holds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, int]] = {}
        self._used: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._since: dict[str, float] = {}

    @property
    def used(self) -> Mapping[str, int]:
        """IPUs held now, by namespace; without namespaces that hold none."""
        return {namespace: count for namespace, count in self._used.items() if count}

    def set_held(self, owner: str, namespace: str, ipus: int, now: float) -> None:
        """Set how many IPUs an owner holds from ``now`` (seconds) on."""
        _, before = self._held.get(owner, (namespace, 0))
        if before == ipus:
            return
        self._add_up(namespace, now)
        self._used[namespace] += ipus - before
        if ipus:
            self._held[owner] = (namespace, ipus)
        else:
            self._held.pop(owner, None)

    def seconds(self, now: float) -> Mapping[str, float]:
        """IPU-seconds by namespace since this process began."""
        for namespace in list(self._used):
            self._add_up(namespace, now)
        return dict(self._seconds)

    def _add_up(self, namespace: str, now: float) -> None:
        since = self._since.get(namespace, now)
        self._seconds[namespace] = self._seconds.get(namespace, 0.0) + self._used[namespace] * (now - since)
        self._since[namespace] = now
