"""A plot of a simulation: devices in use and devices waited for over time, as one self-contained SVG file.

Written by hand: a plotting library would cost every installation more than all the rest of ``moor``. Colours follow the
viewer's preference, light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from moorings.core.forecast.simulation import UsageLevel
from moorings.terminal.text import escape_controls

WIDTH, HEIGHT = 960, 560
LEFT, RIGHT, TOP, GAP, BOTTOM = 84, 24, 72, 44, 56
COLUMNS = 600  # points of a curve: more would not show on a screen, and make the file large
PANEL = (HEIGHT - TOP - GAP - BOTTOM) / 2
SPAN = WIDTH - LEFT - RIGHT

_STYLE = """
svg { background: #ffffff; color: #1b2430; font: 13px system-ui, sans-serif; }
text { fill: currentColor; } .title { font-size: 17px; font-weight: 600; }
.grid { stroke: currentColor; stroke-opacity: .15; } .whole { stroke: currentColor; stroke-dasharray: 5 4; }
.a { stroke: #1f6fb4; } .b { stroke: #c2571a; } .area { fill: #1f6fb4; fill-opacity: .18; }
.curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
  svg { background: #12171e; color: #dfe6ee; }
  .a { stroke: #6db3f2; } .b { stroke: #f0975c; } .area { fill: #6db3f2; fill-opacity: .22; }
}
"""


def timeline(title: str, curves: Sequence[tuple[str, Sequence[UsageLevel]]], n_devices: int) -> str:
    """An SVG document of one or two simulations of the same pools: (name, levels) each."""
    began = min((levels[0].at_s for _, levels in curves if levels), default=0.0)
    ended = max((levels[-1].at_s for _, levels in curves if levels), default=0.0)
    ended = max(ended, began + 1.0)
    busy = [_means([(level.at_s, level.busy) for level in levels], began, ended) for _, levels in curves]
    waiting = [_means([(level.at_s, level.waiting) for level in levels], began, ended) for _, levels in curves]
    words = escape(escape_controls(title), quote=False)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">',
        f'<title id="title">{words}</title>',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="28">{words}</text>',
        *_legend([name for name, _ in curves]),
        *_panel(TOP, "devices in use", busy, n_devices, whole=n_devices),
        *_panel(TOP + PANEL + GAP, "devices waited for", waiting, max((max(one) for one in waiting), default=0.0)),
        *_time_axis(ended - began),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _means(steps: Sequence[tuple[float, int]], began: float, ended: float) -> list[float]:
    """The mean of a step function in each of the columns."""
    width = (ended - began) / COLUMNS
    areas = [0.0] * COLUMNS
    ends = [*(at for at, _ in steps[1:]), ended]
    for (start, value), end in zip(steps, ends, strict=False):
        at = start
        column = min(COLUMNS - 1, int((start - began) / width))
        while value and at < end and column < COLUMNS:
            until = min(end, began + (column + 1) * width)
            areas[column] += value * max(0.0, until - at)
            at = max(at, until)
            column += 1
    return [area / width for area in areas]


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    x = float(LEFT)
    for name, mark in zip(names, "ab", strict=False):
        label = escape(escape_controls(name)[:60], quote=False)
        parts.append(f'<line class="curve {mark}" x1="{x:g}" y1="46" x2="{x + 22:g}" y2="46"/>')
        parts.append(f'<text x="{x + 28:g}" y="50">{label}</text>')
        x += 60 + 8 * len(escape_controls(name)[:60])
    return parts


def _panel(top: float, label: str, curves: Sequence[Sequence[float]], most: float, whole: int = 0) -> list[str]:
    step = _step(most, 5)
    high = step * max(1, -(-most // step))
    bottom = top + PANEL

    def y_of(value: float) -> float:
        return bottom - value / high * PANEL

    middle = top + PANEL / 2
    parts = [f'<text text-anchor="middle" transform="rotate(-90 20 {middle:g})" x="20" y="{middle:g}">{label}</text>']
    for number in range(round(high / step) + 1):
        y = y_of(number * step)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{number * step:g}</text>')
    if whole:
        y = y_of(whole)
        parts.append(f'<line class="whole" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{WIDTH - RIGHT}" y="{y - 5:.1f}">all {whole}</text>')
    for mark, curve in zip("ab", curves, strict=False):
        points = " ".join(
            f"{LEFT + (at + 0.5) * SPAN / COLUMNS:.1f},{y_of(value):.1f}" for at, value in enumerate(curve)
        )
        if len(curves) == 1:
            parts.append(f'<polygon class="area" points="{LEFT},{bottom:.1f} {points} {WIDTH - RIGHT},{bottom:.1f}"/>')
        parts.append(f'<polyline class="curve {mark}" points="{points}"/>')
    return parts


def _time_axis(span_s: float) -> list[str]:
    unit, word = next(
        ((size, word) for size, word in ((86_400, "days"), (3600, "hours"), (60, "minutes")) if span_s >= 2 * size),
        (1, "seconds"),
    )
    step = _step(span_s / unit, 10)
    parts = []
    for number in range(floor(span_s / unit / step + 1e-9) + 1):
        x = LEFT + number * step * unit / span_s * SPAN
        parts += [
            f'<line class="grid" x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{top + PANEL:g}"/>'
            for top in (TOP, TOP + PANEL + GAP)
        ]
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}">{number * step:g}</text>')
    parts.append(f'<text text-anchor="middle" x="{LEFT + SPAN / 2:g}" y="{HEIGHT - 12}">time, {word}</text>')
    return parts


def _step(most: float, marks: int) -> float:
    """A round distance (1, 2 or 5 times a power of ten) so that about ``marks`` of them reach ``most``."""
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most / marks))
    return next((times * power for times in (1, 2, 5) if times * power * marks >= most), 10 * power)
