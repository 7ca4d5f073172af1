"""Plots as SVG that belongs to the page: its colours are the page's variables, its letters the page's letters.

Matplotlib draws them, so they need no script. They are drawn at the width of a phone, where letters are as large as
they are here, and grow with the page.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import RuntimeMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.6, 3.1  # inches of 72 points
# colours that stand for the page's, and are replaced by them
_INK, _FAINT = "#010203", "#040506"
_SERIES = ("#010a01", "#010a02", "#010a03", "#010a04")
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--faint)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES, 1)
}
_SHAPES = ("o", "s", "^", "D")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "selfspec",  # the same numbers give the same drawing
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


@dataclass(frozen=True)
class Line:
    """A curve; places where y is None are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True)
class Interval:
    """A median and its interval."""

    median: float
    low: float
    high: float


def lines(name: str, curves: Sequence[Line], x_label: str, y_label: str, top: float | None = None) -> str:
    """Curves over one axis, told apart by colour, shape and dashes; the y axis begins at 0 and ends at ``top``."""

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for number, curve in enumerate(curves):
            known = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
            axes.plot(
                [x for x, _ in known],
                [y for _, y in known],
                color=_SERIES[number % len(_SERIES)],
                marker=_SHAPES[number % len(_SHAPES)],
                linestyle=_DASHES[number % len(_DASHES)],
                markersize=3.5,
                linewidth=1.5,
                label=curve.name,
            )
        axes.set_ylim(0.0, top)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _svg(name, HEIGHT + 0.19 * len(curves), draw)


def intervals(
    name: str, rows: Sequence[tuple[str, Sequence[Interval | None]]], kinds: Sequence[str], x_label: str
) -> str:
    """Medians with their intervals, row by row, beside a line at 1; ``kinds`` name the intervals of a row."""

    def draw(axes: Axes) -> None:
        for row, (label, found) in enumerate(rows):
            axes.text(0.0, row - 0.34, label, va="center", fontsize=9.5, transform=axes.get_yaxis_transform())
            for number, one in enumerate(found):
                if one is not None:
                    axes.errorbar(
                        [one.median],
                        [row + 0.18 * number - 0.02],
                        xerr=[[one.median - one.low], [one.high - one.median]],
                        fmt=_SHAPES[number],
                        color=_SERIES[number],
                        capsize=3.0,
                        markersize=5.0,
                        label=kinds[number] if kinds[number] not in axes.get_legend_handles_labels()[1] else None,
                    )
        axes.axvline(1.0, color=_INK, linewidth=1.0)
        axes.set_ylim(len(rows) - 0.5, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(x_label)

    return _svg(name, 0.6 * len(rows) + 1.1, draw)


def _svg(name: str, height: float, draw: Callable[[Axes], None]) -> str:
    """What ``draw`` draws, as an element of the page; ``name`` makes its ids those of no other drawing."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeMissingError(
            f"{error.name} is missing; install what reports are drawn with: pip install 'selfspec[report]'"
        ) from error
    out = io.StringIO()
    # letters that its font lacks are the reader's font's
    with mpl.rc_context(_STYLE), warnings.catch_warnings(action="ignore", category=UserWarning):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        figure.legend(loc="outside lower center", ncols=1, handlelength=3.0)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _of_the_page(out.getvalue(), name)


def _of_the_page(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true" focusable="false">', svg, count=1
    )
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:)?href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return svg
