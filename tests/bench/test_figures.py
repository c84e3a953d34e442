"""`tenora bench plot`: every committed figure has its plot, which says what the figure says, and so
does the page of benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenora_bench.client import BenchError
from tenora_bench.figures import Bar, Figure, Group, plot_all, read_figure, write_figure

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/benchmarks"
COMMITTED = sorted(FOLDER.glob("*.json"))


def texts(svg: Path) -> list[str]:
    """The words of a plot, in order (it keeps them as text)."""
    return [each.strip() for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())]


def shown(bar: Bar) -> str:
    value = "cannot" if bar.value is None else f"{bar.value:g}"
    return f"{value} {bar.note}".strip()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_committed_plot_is_that_of_its_figure(path: Path) -> None:
    figure, found = read_figure(path), texts(path.with_suffix(".svg"))
    assert figure.title in found
    for group in figure.groups:
        assert group.name in found
        for bar in group.bars:
            assert bar.name in found, bar
            assert shown(bar) in found, f"{path.stem}: run `tenora bench plot docs/benchmarks`"
    assert (ROOT / figure.source).is_file()


@pytest.mark.parametrize("name", ["zen4", "zen5"])
def test_the_page_says_what_the_plots_say(name: str) -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    for group in read_figure(FOLDER / f"{name}.json").groups:
        for bar in group.bars:
            assert bar.value is not None
            assert re.search(rf"(?<![\d.]){re.escape(f'{bar.value:g}')}(?![\d.]\d)", page), bar


def test_plots_are_made_beside_their_figures(tmp_path: Path) -> None:
    bars = [Bar("ours", 12.5, ours=True), Bar("theirs", 3.0, note="(4x)"), Bar("other", None)]
    figure = Figure("T < U", "tokens/s", "machine", "today", "command", "page", [Group("g", bars)])
    write_figure(figure, tmp_path / "a.json")
    assert read_figure(tmp_path / "a.json") == figure
    (made,) = plot_all(tmp_path)
    first = made.read_bytes()
    assert made == tmp_path / "a.svg"
    assert {"12.5", "3 (4x)", "cannot", "g"} <= set(texts(made))
    plot_all(tmp_path)
    assert made.read_bytes() == first, "the same figure gives the same plot"


def test_what_is_no_figure_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="holds no"):
        plot_all(tmp_path)
    (tmp_path / "b.json").write_text('{"title": "x"}')
    with pytest.raises(BenchError, match=r"b\.json is not a figure"):
        plot_all(tmp_path)
