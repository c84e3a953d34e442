"""Plots of figures that were measured: one SVG for each JSON file of docs/benchmarks. It knows how
bars are drawn, not how anything was measured; only this needs matplotlib (`tenora[bench]`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tenora_bench.client import BenchError

_OURS, _THEIRS, _MUTED = "#1864ab", "#adb5bd", "#495057"
_BAR_IN, _PANEL_IN, _FRAME_IN = 0.25, 0.36, 0.8  # heights in inches


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured value. `ours`: it is Tenora's. None: the system cannot do it."""

    name: str
    value: float | None
    ours: bool = False
    note: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bars of one load, measured in turns: these may be compared, others may not."""

    name: str
    bars: list[Bar]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one plot shows and where it comes from."""

    title: str
    unit: str
    machine: str
    date: str
    command: str
    source: str  # the page of docs/log that tells how it was measured
    groups: list[Group]
    limit: float | None = None  # where all bars would end


def read_figure(path: Path) -> Figure:
    """Raises BenchError for a file that is not such a figure."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figure)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchError(f"{path} is not a figure: {error}") from error


def plot_all(folder: Path) -> list[Path]:
    """Write the SVG beside each JSON file of `folder`; the paths. Raises BenchError."""
    sources = sorted(folder.glob("*.json"))
    if not sources:
        raise BenchError(f"{folder} holds no *.json")
    written = []
    for source in sources:
        target = source.with_suffix(".svg")
        plot(read_figure(source), target)
        written.append(target)
    return written


def plot(figure: Figure, target: Path) -> None:
    """Horizontal bars, a panel a group, values written beside them. The same figure gives the same
    bytes (with one version of matplotlib). Raises BenchError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise BenchError("plots need matplotlib: pip install 'tenora[bench]'") from error
    sizes = [len(group.bars) for group in figure.groups]
    height = _FRAME_IN + sum(_BAR_IN * size + _PANEL_IN for size in sizes)
    style = {"svg.fonttype": "none", "svg.hashsalt": "tenora", "font.size": 9}
    with rc_context(style):
        canvas = Canvas(figsize=(7.6, height), layout="constrained", facecolor="white")
        FigureCanvasSVG(canvas)
        axes = canvas.subplots(len(sizes), 1, squeeze=False, height_ratios=sizes)
        for axis, group in zip(axes[:, 0], figure.groups, strict=True):
            _panel(axis, group, figure.limit)
        canvas.suptitle(figure.title, fontsize=11, fontweight="bold")
        below = f"{figure.unit}\n{figure.machine}, {figure.date}"
        canvas.supxlabel(below, fontsize=8.5, color=_MUTED)
        canvas.savefig(target, metadata={"Date": None, "Creator": "tenora bench plot"})


def _panel(axis: Any, group: Group, limit: float | None) -> None:
    places = range(len(group.bars))
    values = [bar.value or 0.0 for bar in group.bars]
    colours = [_OURS if bar.ours else _THEIRS for bar in group.bars]
    axis.barh(places, values, color=colours, height=0.72)
    for place, bar in zip(places, group.bars, strict=True):
        shown = "cannot" if bar.value is None else f"{bar.value:g}"
        text = f" {shown} {bar.note}".rstrip()
        axis.text(bar.value or 0.0, place, text, va="center", color=_MUTED)
    axis.set_yticks(places, [bar.name for bar in group.bars])
    axis.invert_yaxis()
    axis.set_title(group.name, loc="left", fontsize=9.5)
    axis.set_xlim(0, 1.22 * max(limit or 0.0, *values, 1e-9))
    hidden = ["top", "right"]
    if limit is not None:
        axis.axvline(limit, color=_MUTED, linestyle=":", linewidth=1)
    else:  # each panel has a scale of its own: a ruler would ask for comparisons across them
        axis.set_xticks([])
        hidden.append("bottom")
    for side in hidden:
        axis.spines[side].set_visible(False)


def write_figure(figure: Figure, path: Path) -> None:
    """As the files of docs/benchmarks are written."""
    path.write_text(json.dumps(msgspec.to_builtins(figure), indent=2) + "\n")
