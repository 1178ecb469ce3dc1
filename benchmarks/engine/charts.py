"""Plain SVG charts, so that a report needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 46, 44
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#222222", "#ee7733", "#999999", "#009988")

Point = tuple[float, float]


def line_chart(
    title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], *, marks: bool = False
) -> str:
    """One line a series, in the order given; both axes begin at 0."""
    points = [point for line in series.values() for point in line]
    frame = _Frame(
        title, x_label, y_label, max((x for x, _ in points), default=1), max((y for _, y in points), default=1)
    )
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line)
        frame.add(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if marks:
            for x, y in line:
                frame.add(f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{colour}"/>')
        frame.legend(number, name, colour)
    return frame.svg()


def area_chart(
    title: str, x_label: str, y_label: str, xs: Sequence[float], layers: Mapping[str, Sequence[float]]
) -> str:
    """Layers on top of each other; each has a value for every x."""
    totals = [sum(values) for values in zip(*layers.values(), strict=True)] or [1.0]
    frame = _Frame(title, x_label, y_label, max(xs, default=1.0), max(totals))
    below = [0.0] * len(xs)
    for number, (name, values) in enumerate(layers.items()):
        above = [low + value for low, value in zip(below, values, strict=True)]
        edge = [(x, y) for x, y in zip(xs, above, strict=True)] + list(zip(reversed(xs), reversed(below), strict=True))
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in edge)
        colour = COLOURS[number % len(COLOURS)]
        frame.add(f'<polygon points="{path}" fill="{colour}" fill-opacity="0.75"/>')
        frame.legend(number, name, colour)
        below = above
    return frame.svg()


def bar_chart(title: str, y_label: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Bars of each series side by side in every group; None leaves its place empty. A group's name breaks at its last
    hyphen."""
    highest = max((value for values in series.values() for value in values if value is not None), default=1.0)
    frame = _Frame(title, "", y_label, float(max(len(groups), 1)), highest, x_ticks=False)
    width = (WIDTH - LEFT - RIGHT) / max(len(groups), 1) * 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        for group, value in enumerate(values):
            if value is not None:
                x, y = frame.x(group + 0.1) + number * width, frame.y(value)
                height = frame.y(0.0) - y
                frame.add(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')
        frame.legend(number, name, colour)
    for group, name in enumerate(groups):
        for line, part in enumerate(name.rsplit("-", 1)):
            frame.text(frame.x(group + 0.5), HEIGHT - BOTTOM + 16 + 13 * line, part, "middle")
    return frame.svg()


class _Frame:
    """Title, axes with ticks, and room for a legend at the right."""

    def __init__(
        self, title: str, x_label: str, y_label: str, x_most: float, y_most: float, *, x_ticks: bool = True
    ) -> None:
        self._x_step, self._y_step = tick_step(x_most), tick_step(y_most)
        self._x_most = x_most if not x_ticks else self._x_step * math.ceil(x_most / self._x_step - 1e-9) or 1.0
        self._y_most = self._y_step * math.ceil(y_most / self._y_step - 1e-9) or 1.0
        self._parts: list[str] = []
        # What a chart is of and what it was measured on: one line is too long for both.
        for line, part in enumerate(title.split(": ", 1)):
            self.text(LEFT, 18 + 16 * line, part, "start", size=13 - 2 * line)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle")
        self.add(
            f'<text transform="translate(14,{(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
            f'text-anchor="middle" font-size="11">{escape(y_label)}</text>'
        )
        for step in range(round(self._y_most / self._y_step) + 1):
            y = self.y(step * self._y_step)
            self.add(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.text(LEFT - 6, y + 4, f"{step * self._y_step:g}", "end")
        for step in range(round(self._x_most / self._x_step) + 1) if x_ticks else ():
            self.text(self.x(step * self._x_step), HEIGHT - BOTTOM + 16, f"{step * self._x_step:g}", "middle")

    def x(self, value: float) -> float:
        return LEFT + value / self._x_most * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self._y_most * (HEIGHT - TOP - BOTTOM)

    def add(self, part: str) -> None:
        self._parts.append(part)

    def text(self, x: float, y: float, text: str, anchor: str, size: int = 11) -> None:
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>')

    def legend(self, number: int, name: str, colour: str) -> None:
        y = TOP + 6 + 18 * number
        self.add(f'<rect x="{WIDTH - RIGHT + 12}" y="{y}" width="10" height="10" fill="{colour}"/>')
        self.text(WIDTH - RIGHT + 27, y + 9, name, "start")

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">'
        return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *self._parts, "</svg>\n"])


def tick_step(most: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are three to eight ticks up to `most`."""
    if most <= 0.0:
        return 1.0
    base = 10.0 ** math.floor(math.log10(most / 4.0))
    return next(base * factor for factor in (1.0, 2.0, 5.0, 10.0) if most / (base * factor) <= 6.0)
