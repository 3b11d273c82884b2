"""What a benchmark reports, as a table for people and one line of JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Report:
    """The result of one benchmark.

    Attributes:
        name: of the benchmark.
        figures: what was measured.
        bounds: what could be reached at best, measured in the same run, under the figure's name.
        anchors: what others publish, or what we promise, under the figure's name.
        notes: how it was measured; shown to people only.
    """

    name: str
    figures: dict[str, float]
    bounds: dict[str, float] = field(default_factory=dict)
    anchors: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def table(self) -> str:
        """The figures beside their bounds and anchors."""
        names = list(dict.fromkeys([*self.figures, *self.bounds, *self.anchors]))
        rows: list[tuple[str, ...]] = [("", "ours", "bound", "anchor")]
        rows += [
            (name, *(_number(column.get(name)) for column in (self.figures, self.bounds, self.anchors)))
            for name in names
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [self.name, *("  " + _aligned(row, widths) for row in rows), *(f"  {note}" for note in self.notes)]
        return "\n".join(lines)

    def json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "name": self.name,
                "figures": {name: round(value, 3) for name, value in self.figures.items()},
                "bounds": {name: round(value, 3) for name, value in self.bounds.items()},
                "anchors": self.anchors,
            }
        )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    return "   ".join(
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    )
