"""Learning curves: means over seeds, and the figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import same_figures

from unremix.report.charts import Chart, mean_line
from unremix.report.figures import Bars, bar_chart, learning_curves, write_figure
from unremix.report.style import COLORS, looks_of


def test_mean_curves() -> None:
    seeds = [
        [{"epoch": 1.0, "knn": 0.4}, {"epoch": 2.0}, {"epoch": 3.0, "knn": 0.8}],
        [{"epoch": 1.0, "knn": 0.6}, {"epoch": 2.0, "knn": 0.7}],
        [{"epoch": 1.0, "loss": 3.0}],
    ]
    line = mean_line("hcl", seeds, "knn")
    assert line.points == [(1.0, 0.5)]
    half = np.std([0.4, 0.6], ddof=1)
    assert line.band == [pytest.approx([0.5 - half, 0.5 + half])]
    alone = mean_line("hcl", seeds[:1], "knn")
    assert alone.points == [(1.0, 0.4), (3.0, 0.8)]
    assert alone.band is None
    assert mean_line("hcl", seeds, "svm").points == []
    assert (
        mean_line("hcl", [[{"epoch": 1.0, "a": 1.0}], [{"epoch": 2.0, "a": 1.0}]], "a").points == []
    )


def test_settings_have_the_color_of_their_method() -> None:
    recipes = ["unremix-simclr", "hcl", "simclr"]
    settings = [f"{recipe} temperature={n}" for n in range(16) for recipe in recipes]
    looks = looks_of(settings)
    for recipe in recipes:
        own = [looks[name] for name in settings if name.split()[0] == recipe]
        assert {look.color for look in own} == {looks_of([recipe])[recipe].color}
        assert len({(look.dash, look.marker) for look in own}) == 16


def cell(
    mean: float, deviation: float | None = None, paper: float | None = None
) -> dict[str, float | None]:
    ahead = None if paper is None else mean - paper
    return {"mean": mean, "deviation": deviation, "ours_minus_paper": ahead}


def test_a_papers_figures_stand_beside_bars_that_remain_readable() -> None:
    rows = [
        Bars("hcl", [cell(0.4, None, 0.91), cell(0.1, 0.01, 0.12)]),
        Bars("raw pixels", [cell(0.3), cell(0.05)], level=True),
    ]
    figure = bar_chart(["far", "near"], rows)
    far, near = figure.axes
    assert [bar.get_height() for bar in far.patches] == pytest.approx([40])
    assert [bar.get_height() for bar in near.patches] == pytest.approx([10])
    assert "paper" not in far.get_legend_handles_labels()[1]
    (diamonds,) = [line for line in near.get_lines() if line.get_label() == "paper"]
    assert diamonds.get_ydata() == pytest.approx([12])
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("paper") == 1
    (together,) = bar_chart(list("abcd"), [Bars("hcl", [cell(0.4)] * 4)]).axes
    assert len(together.patches) == 4
    assert "paper" not in together.get_legend_handles_labels()[1]


def test_a_band_is_announced_where_there_is_one() -> None:
    """One seed on each of two data sets is no spread."""
    one = [{"epoch": 1.0, "a": 0.1}, {"epoch": 2.0, "a": 0.2}]
    other = [{"epoch": 1.0, "b": 0.1}, {"epoch": 2.0, "b": 0.2}]
    for runs, title in (([one, other], ""), ([one, one], "mean ± standard deviation")):
        figure = learning_curves(Chart(name, [mean_line("hcl", runs, name)]) for name in "ab")
        assert figure is not None
        assert figure.legends[0].get_title().get_text() == title


@pytest.mark.parametrize("name", ["hcl", "unremix-simclr temperature=0.1", "a" * 60])
def test_the_legend_of_the_curves_fits_the_figure(name: str) -> None:
    rows = [{"epoch": 1.0, "knn": 0.1}]
    lines = [mean_line(f"{name}{n}", [rows], "knn") for n in range(5)]
    figure = learning_curves([Chart("kNN", lines)])
    assert figure is not None
    figure.draw_without_rendering()
    (legend,) = figure.legends
    shown = legend.get_window_extent()
    assert shown.x0 >= 0
    assert shown.x1 <= figure.bbox.width


def test_the_figure_shows_twelve_recipes_apart(tmp_path: Path) -> None:
    runs = {
        f"recipe {n}": [[{"epoch": e, "knn": 0.1 * e + 0.01 * n + 0.01 * s} for e in (1.0, 2.0)]
                        for s in (0, 1)]
        for n in range(12)
    }  # fmt: skip
    knn, loss = ([mean_line(one, runs[one], name) for one in runs] for name in ("knn", "loss"))
    charts = [Chart("kNN", knn, {"raw pixels": 0.2}, percent=True), Chart("loss", loss)]
    figure = learning_curves(charts)
    assert figure is not None
    (axes,) = figure.axes  # nobody has a loss
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["recipe 3"].get_ydata() == pytest.approx([13.5, 23.5])
    assert lines["raw pixels"].get_ydata() == pytest.approx([20, 20])
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines.values()}
    assert len(looks) == 13
    assert len(set(COLORS)) == len(COLORS)
    assert len(axes.collections) == 12  # a band each
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(lines)
    write_figure(figure, tmp_path / "one")
    again = learning_curves(charts)
    assert again is not None
    write_figure(again, tmp_path / "two")
    for suffix in (".png", ".svg"):
        first, second = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
        assert same_figures(first, second)
    assert "recipe 11" in (tmp_path / "one.svg").read_text()
    assert learning_curves([]) is None
