"""What is collected for a page, and what it says; the browser tests look at the page itself."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pages import page_charts, page_data
from scipy.stats import binomtest, ttest_1samp, ttest_ind
from small_runs import COMMON, HOSTILE, digits, graphs, sentences, with_classes

import unremix
from unremix.cli import main
from unremix.domains import DOMAINS
from unremix.domains.graph.show import MOST_NODES, draw_graph, layout
from unremix.domains.options import TrainConfig, make_config
from unremix.domains.sampling import drawn
from unremix.evaluation.verdict import verdict
from unremix.report import storage, write_comparison, write_report
from unremix.report.charts import Chart, Line, draw_intervals, ticks
from unremix.report.collect import take_sample
from unremix.report.comparison import (
    baselines,
    best_baseline,
    gap,
    grouped,
    sentence,
    stored_weights,
)
from unremix.report.page import class_table, training_charts
from unremix.report.pictures import make_atlas
from unremix.report.projection import project
from unremix.report.rendering import as_json, bundle
from unremix.report.storage import Stored
from unremix.report.words import headline, in_python, next_commands
from unremix.training.run import Run
from unremix.training.threads import limited_threads

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return digits(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def stored(run: Run) -> Stored:
    found = Stored.read(run.path)
    assert found is not None
    return found


def test_the_data_of_a_page(run: Run, stored: Stored) -> None:
    about, arrays = stored.about, stored.arrays
    count = len(about["names"])
    assert count == about["total"] == 192
    units = arrays["embeddings"].astype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, atol=2e-3)
    # Neighbors by a loop over all others.
    for item in (0, 50, 191):
        cosines = units @ units[item]
        cosines[item] = -np.inf
        expected = np.sort(cosines)[::-1][:8]
        np.testing.assert_allclose(arrays["cosines"][item], expected, atol=2e-3)
        assert item not in arrays["neighbors"][item]
    labels = np.array(about["labels"])[arrays["batch"]]
    assert np.array_equal(arrays["suspects"] == 1, labels[:, None] == labels[None, :])
    assert not arrays["negatives"].diagonal().any()
    table = class_table(stored)
    assert table is not None
    matrix = np.array(table["matrix"])
    assert matrix.sum() == count
    assert np.array_equal(matrix.sum(1), np.bincount(about["labels"]))
    right = (arrays["predicted"] == np.array(about["labels"])).mean()
    assert matrix.trace() / count == pytest.approx(right)
    assert sum(size * share for _, size, share in table["rows"]) == pytest.approx(matrix.trace())
    assert about["parameters"] == sum(p.numel() for p in run.encoder().parameters())


def test_stored_scores_are_the_librarys(run: Run, stored: Stored) -> None:
    sample = take_sample(run, run.domain.load_for(run, None))
    z0, h0 = sample.anchors.embeddings, sample.anchors.inputs
    z1, h1 = sample.candidates.embeddings, sample.candidates.inputs
    found = unremix.importance(z0, z1, h0, h1, layout="one-way")
    for k, name in enumerate(("uncertainty", "similarity", "representativeness")):
        np.testing.assert_allclose(stored.arrays["scores"][k], getattr(found, name), atol=1e-6)
    assert sample.loss is not None
    own = sample.loss.importance_against(sample.anchors, sample.candidates, sample.pairs)
    torch.testing.assert_close(stored_weights(stored), own.weights, rtol=1e-5, atol=1e-5)
    similarity = torch.nn.functional.normalize(z0) @ torch.nn.functional.normalize(z1).T
    right = (similarity.argmax(1) == torch.arange(len(z0))).float().mean()
    assert stored.about["found_own"] == pytest.approx(float(right))
    assert stored.about["found_by_chance"] == pytest.approx(1 / len(z0))


@pytest.mark.parametrize("recipe", ["hcl", "simclr", "swav"])
def test_other_weightings_are_known(recipe: str, run: Run, tmp_path: Path) -> None:
    other = digits(tmp_path, recipe=recipe, name=recipe, seed=1)
    found = Stored.read(other.path)
    assert found is not None
    kinds = {"hcl": "hcl", "simclr": "uniform", "swav": "none"}
    assert found.about["weighting"]["kind"] == kinds[recipe]
    sample = take_sample(other, other.domain.load_for(other, None))
    weights = stored_weights(found)
    if sample.loss is not None:
        own = sample.loss.importance_against(sample.anchors, sample.candidates, sample.pairs)
        torch.testing.assert_close(weights, own.weights, rtol=1e-5, atol=1e-5)
    # The same items, whatever the recipe and the seed.
    first = Stored.read(run.path)
    assert first is not None
    assert found.about["names"] == first.about["names"]
    assert np.array_equal(found.arrays["batch"], first.arrays["batch"])
    page = (other.path / "report.html").read_text()
    assert ("This recipe has no negatives" in page) == (recipe == "swav")


def test_a_page_is_written_again_without_the_data(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    before = (copied / "report.html").read_text()

    def refuse(*_: Any) -> None:
        raise AssertionError("the data were read again")

    monkeypatch.setitem(DOMAINS, "image", replace(DOMAINS["image"], load_for=refuse))
    after = write_report(copied).read_text()
    assert "<title>run" in after
    assert page_data(after) == page_data(before)
    assert page_charts(after) == page_charts(before)
    assert len(page_charts(after)) > 2


def test_an_old_run_folder_is_collected_or_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    (copied / "report.npz").unlink()
    assert 'id="explorer"' in write_report(copied).read_text()
    assert (copied / "report.npz").exists()
    (copied / "report.npz").write_bytes(b"half a file")

    def gone(*_: Any) -> None:
        raise FileNotFoundError("expected data at <nowhere>, found none")

    monkeypatch.setitem(DOMAINS, "image", replace(DOMAINS["image"], load_for=gone))
    page = write_report(copied).read_text()
    assert "at &lt;nowhere&gt;, found none" in page
    assert 'id="explorer"' not in page
    assert "trained encoder" in page


def test_the_page_of_an_earlier_version_needs_no_data(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    stored = Stored.read(copied)
    assert stored is not None
    # Version 2 said of which kind the data are, not how an item is shown.
    earlier = {k: v for k, v in stored.about.items() if k not in ("shown_as", "finding")}
    monkeypatch.setattr(storage, "VERSION", 2)
    Stored(earlier | {"kind": "image"}, stored.arrays).write(copied)
    monkeypatch.setattr(storage, "VERSION", 3)

    def refuse(*_: Any) -> None:
        raise AssertionError("the data were read again")

    monkeypatch.setitem(DOMAINS, "image", replace(DOMAINS["image"], load_for=refuse))
    page = write_report(copied).read_text()
    assert page_data(page)["shown_as"] == "thumbnail"
    assert 'id="explorer"' in page


def test_the_headline_tells_where_and_when_the_run_was_trained(run: Run, tmp_path: Path) -> None:
    state = run.load_checkpoint()
    assert state["device"] == "CPU, 1 thread"
    until = datetime.fromisoformat(state["date"])
    assert timedelta(0) <= datetime.now(timezone.utc) - until < timedelta(hours=1)
    # Collected later and elsewhere, it is still that of the training.
    copied = Run(shutil.copytree(run.path, tmp_path / "run"))
    (copied.path / "report.npz").unlink()
    os.utime(copied.checkpoint, (0, 0))
    with limited_threads(2):
        page = write_report(copied).read_text()
    assert f'<dt>Finished</dt><dd dir="auto">{until:%Y-%m-%d %H:%M} UTC' in page
    assert '<dt>Device</dt><dd dir="auto">CPU, 1 thread</dd>' in page
    # An earlier version did not record it.
    found = Stored.read(copied.path)
    assert found is not None
    Stored({k: v for k, v in found.about.items() if k != "trained"}, found.arrays).write(
        copied.path
    )
    page = write_report(copied).read_text()
    assert "<dt>Time</dt>" in page
    assert not re.search("<dt>(Device|Finished|Version)", page)


def test_the_page_is_closed(run: Run) -> None:
    page = (run.path / "report.html").read_text()
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert not re.search(r"(src|href)=.?http|url\(.?http|@import", page)
    assert len(re.findall(r"<script\b", page)) == 2


def test_data_cannot_leave_their_element() -> None:
    text = as_json({"name": HOSTILE})
    assert not set("<>&") & set(text)
    assert json.loads(text)["name"] == HOSTILE


def test_scripts_come_after_those_they_import() -> None:
    code = bundle("run")
    assert not re.search(r"^(import|export) ", code, re.MULTILINE)
    assert code.index("modules.weights =") < code.index("modules.explorer =")
    assert code.count("modules.data = ") == 1


def test_graphs_are_drawn() -> None:
    square = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    points = layout(square, 4)
    sides = [np.linalg.norm(points[a] - points[b]) for a, b in square.T]
    assert max(sides) / min(sides) < 1.05
    across = np.linalg.norm(points[0] - points[2])
    assert across / np.mean(sides) == pytest.approx(math.sqrt(2), rel=0.05)
    chain = torch.stack([torch.arange(299), torch.arange(1, 300)])
    drawn = draw_graph(torch.cat([chain, chain.flip(0)], 1), torch.zeros(300, dtype=torch.long), 7)
    assert len(drawn["points"]) == 2 * MOST_NODES
    assert drawn["nodes"] == 300
    assert drawn["marked"] is not None
    assert len(drawn["edges"]) == 2 * (MOST_NODES - 1)  # a chain again, around the marked node
    assert all(0 <= part <= 100 for part in drawn["points"])
    single = draw_graph(torch.zeros(2, 0, dtype=torch.long), torch.tensor([0]))
    assert len(single["points"]) == 2


def test_a_page_of_graphs(tmp_path: Path) -> None:
    run = graphs(tmp_path, "infograph-unremix")
    found = Stored.read(run.path)
    assert found is not None
    drawing = found.about["drawings"][str(found.arrays["batch"][0])]
    assert drawing["marked"] is not None
    assert found.about["node_types"] == sorted(HOSTILE[:3])
    # Their kNN has its error and its lines, though the card measures with classifiers.
    rows = run.metrics()
    chart = training_charts(rows, run.evaluation)["knn"]
    ends = binomtest(round(40 * rows[-1]["knn"]), 40).proportion_ci(method="wilson")
    (band,) = chart.lines[0].band or ()
    assert band == pytest.approx((ends.low, ends.high))
    assert set(chart.levels) == {"untrained encoder", "summed node features"}
    assert run.evaluation is not None
    assert run.evaluation["monitored"]["trained"]["value"] == pytest.approx(rows[-1]["knn"])


def test_projection_keeps_groups_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((4, 16)).astype(np.float32)
    group = np.arange(1700) % 4  # more than there are landmarks
    points = centers[group] + 0.1 * rng.standard_normal((1700, 16)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    # PyPI has a package of UMAP's name that is another.
    monkeypatch.setitem(sys.modules, "umap", ModuleType("umap"))
    positions, how = project(points)
    assert "t-SNE" in how
    assert positions.min() >= 0
    assert positions.max() <= 1

    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (group[distance.argmin(1)] == group).mean() > 0.97


@pytest.mark.parametrize("others", [0, 1])
def test_equal_embeddings_have_places(others: int) -> None:
    """Those of a collapsed encoder: by rounding alone, their deviation is not 0."""
    points = np.full((192, 16), 0.2500001, np.float32)
    points[:, ::3] = 0.7272303
    points = np.vstack([points, -points[:others]])
    positions, _ = project(points)
    assert positions.shape == (192 + others, 2)
    assert np.isfinite(positions).all()


def test_an_atlas_holds_every_picture() -> None:
    from io import BytesIO

    from PIL import Image

    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    atlas = make_atlas(images, 64)
    pixels = np.asarray(Image.open(BytesIO(atlas.data)))
    row, column = divmod(4, atlas.columns)
    tile = pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
    assert np.array_equal(tile, images[4].permute(1, 2, 0).numpy())
    many = make_atlas(torch.full((600, 1, 40, 40), 200, dtype=torch.uint8), 64)
    assert (many.kind, many.tile) == ("image/jpeg", 32)


def test_a_sample_is_drawn_once_and_for_all() -> None:
    first = drawn(1000, 10)
    assert torch.equal(first, drawn(1000, 10))
    assert len(first.unique()) == 10
    assert torch.equal(first, first.sort().values)


def test_charts() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    svg = Chart("kNN", [Line("<b>", [(1, 0.95), (2, 0.951)])], {"<i>": 0.94}, percent=True).svg
    assert svg is not None
    assert "<b>" not in svg
    assert "<i>" not in svg
    # The axis is not zoomed into noise: it spans at least 20 points.
    shown = [float(text) for text in re.findall(r'text-anchor="end">([\d.]+)<', svg)]
    assert max(shown) - min(shown) >= 15
    plot = draw_intervals([("a & b", 0.1, 0.05, 0.2)], factor=100, title="t")
    assert "a &amp; b" in plot
    assert "clear" in plot
    plot = draw_intervals([("a", 0.0, -0.2, 0.2)], factor=100, title="t")
    assert "clear" not in plot
    assert re.findall(r">([−+\d]+)</text>", plot) == ["−20", "−10", "0", "+10", "+20"]
    rows = [{"epoch": 1.0, "knn": 0.9}, {"epoch": 2.0, "knn": 1.0}]
    bare = training_charts(rows, None)["knn"]
    assert bare.good == "Good: it rises."  # there are no lines to rise above
    card = {
        "results": {kind: {"knn": {"value": 1.0, "count": 20}} for kind in ("trained", "pixels")}
    }
    chart = training_charts(rows, card)["knn"]
    assert "above the lines" in chart.good
    ends = binomtest(20, 20).proportion_ci(method="wilson")
    assert chart.lines[0].band is not None
    assert chart.lines[0].band[1] == pytest.approx((ends.low, ends.high))
    (header, *values) = csv.reader(io.StringIO(chart.csv))
    assert header == ["epoch", "kNN", "kNN low", "kNN high"]
    assert [row[:2] for row in values] == [["1", "0.9"], ["2", "1.0"]]
    rows = [{"epoch": 1.0, "loss": float("nan")}, {"epoch": 2.0, "loss": 1.0}]
    assert len(training_charts(rows, None)["loss"].lines[0].points) == 1


def test_headlines() -> None:
    def accuracy(value: float, low: float, high: float) -> dict[str, float]:
        return {"value": value, "low": low, "high": high}

    good, same, bad = accuracy(0.9, 0.89, 0.91), accuracy(0.7, 0.5, 0.9), accuracy(0.2, 0.19, 0.21)
    results = {"trained": {"knn": good}, "untrained": {"knn": bad}, "pixels": {"knn": same}}
    assert headline({"results": results}, {}, None)[1] == "open"  # the best of the others counts
    results["pixels"] = {"knn": bad}
    said, tone = headline({"results": results}, {}, None)
    assert said == verdict({"results": results})[0]  # as the terminal has it
    assert tone == "good"
    results["trained"], results["pixels"] = {"knn": bad}, {"knn": good}
    assert headline({"results": results}, {}, None)[1] == "bad"
    about = {
        "finding": "images find their own second view",
        "unit": "images",
        "found_own": 0.93,
        "found_by_chance": 1 / 256,
        "about_batch": "",
        "batch_size": 256,
    }
    said, tone = headline({"results": None}, {"spread": 0.9, "effective_rank": 20.0}, about)
    for words in ("No sign of collapse", "93 % of images", "among 256 (0.39 %"):
        assert words in said
    assert tone == "open"
    assert headline(None, {"spread": 0.01}, about)[1] == "bad"
    said, tone = headline(None, {"spread": 0.9, "effective_rank": 2.34}, about)
    assert said.startswith("Close to collapse: only 2.3 dimensions are in use; 93 % of images")
    assert tone == "open"


class Told:
    """What a comparison asks of a run."""

    def __init__(self, recipe: str, seed: int, value: float, **options: Any) -> None:
        self.config = TrainConfig(recipe=recipe, seed=seed, **options)
        self.path = Path(f"{recipe}-{seed}")
        self.evaluation = {
            "data": self.config.data,
            "results": {"trained": {"knn": {"value": value}, "sick.mse": {"value": value}}},
        }


def test_a_comparison_has_the_best_of_what_there_is_without_training() -> None:
    runs: Any = [Told(recipe, seed, 0.8) for recipe in ("simclr", "hcl") for seed in (0, 1)]
    for run in runs:
        value = 0.9 + 0.01 * run.config.seed
        run.evaluation["results"] |= {
            "blend": {
                "knn": {"value": value - 0.05 - 0.001 * run.config.seed}
            },  # what such a run is judged by
            "start": {"knn": {"value": value}},
            "untrained": {"knn": {"value": 0.1}},
        }
    groups = grouped(runs)
    assert [one.name for one in baselines(groups)] == ["as it came", "untrained encoder"]
    best = best_baseline(groups, "knn")
    assert best is not None
    assert best.name == "as it came"
    ahead = gap(groups[0], best, "knn")
    assert ahead is not None
    assert ahead.mean == pytest.approx(-0.0505)
    assert ahead.seeds == (2, 2)
    told = sentence(groups[0], best, ahead, {"value": 0.9}, "knn")
    assert told.startswith("as it came is ahead of simclr by 5.")


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = [0.80, 0.83, 0.79], [0.75, 0.80, 0.76]
    runs: Any = [Told("hcl", s, v) for s, v in enumerate(ours)]
    runs += [Told("simclr", s, v) for s, v in enumerate(theirs)]
    hcl, simclr = grouped(runs)
    found = gap(hcl, simclr, "knn")
    assert found is not None
    expected = ttest_1samp(np.subtract(ours, theirs), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    said = sentence(simclr, hcl, gap(simclr, hcl, "knn"), {"value": 0.8}, "knn")  # type: ignore[arg-type]
    low, high = 100 * expected.low, 100 * expected.high
    assert said.startswith(f"hcl is ahead of simclr by 3.7 [{low:.1f}, {high:.1f}] points of kNN")
    worse = gap(hcl, simclr, "sick.mse")  # of which less is better
    assert worse is not None
    assert (worse.low, worse.high) == pytest.approx((-expected.high, -expected.low))
    error = {"value": 0.8, "percent": False}
    assert "0.037 [" in sentence(hcl, simclr, worse, error, "sick.mse")
    assert sentence(hcl, simclr, worse, error, "sick.mse").endswith(" sick mse; 3 seeds.")
    # Two runs with the same options and seed: each stands for itself.
    again: Any = [Told("hcl", 0, 0.8), Told("hcl", 0, 0.7)]
    assert len(grouped(again)) == 2
    with pytest.raises(ValueError, match="at least two runs"):
        write_comparison(["one"], "page.html")


def test_runs_that_differ_in_more_than_the_seed_are_not_one_group() -> None:
    runs: Any = [Told("hcl", 0, 0.8, epochs=3), Told("hcl", 1, 0.7, epochs=9, threads=2)]
    assert [group.name for group in grouped(runs)] == ["hcl epochs=3", "hcl epochs=9"]
    seeds: Any = [Told("hcl", 0, 0.8, threads=1), Told("hcl", 1, 0.7, threads=2)]
    assert [sorted(group.runs) for group in grouped(seeds)] == [[0, 1]]
    elsewhere: Any = [Told("hcl", 0, 0.8), Told("simclr", 0, 0.7, data="photos")]
    assert gap(*grouped(elsewhere), "knn") is None


def test_groups_without_a_common_seed_are_compared_by_welch() -> None:
    ours, theirs = [0.60, 0.91, 0.88], [0.80, 0.52, 0.51, 0.55]
    runs: Any = [Told("hcl", s, v) for s, v in enumerate(ours)]
    runs += [Told("simclr", 10 + s, v) for s, v in enumerate(theirs)]
    hcl, simclr = grouped(runs)
    found = gap(hcl, simclr, "knn")
    assert found is not None
    assert not found.paired
    expected = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert "3 and 4 seeds, not paired" in sentence(hcl, simclr, found, {"value": 0.8}, "knn")


def test_the_command_compares_any_runs(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for name in ("one", "other"):
        shutil.copytree(run.path, tmp_path / "c" / "runs" / name)
        folders.append(str(tmp_path / "c" / "runs" / name))
    page = tmp_path / "page.html"
    assert main(["report", *folders, "-o", str(page)]) == 0
    assert "difference between other and one: +0.0" in page.read_text()
    assert page.read_text().count("another seed may reverse") == 1
    # What the page copies is in the unit that it names.
    copied = unescape(re.findall(r'data-copy-value="([^"]*)"', page.read_text())[0])
    (header, row) = csv.reader(io.StringIO(copied))
    assert header == ["name", "points of kNN accuracy ahead of one", "low", "high"]
    measure = run.evaluation["results"]["trained"]["knn"]  # type: ignore[index]
    # Both predict the same a images right and d wrong: Newcombe's interval for pairs.
    a = round(measure["value"] * measure["count"])
    phi = 1 - measure["count"] / (2 * a * (measure["count"] - a))
    below, above = measure["value"] - measure["low"], measure["high"] - measure["value"]
    half = 100 * math.sqrt(below**2 - 2 * phi * below * above + above**2)
    assert row[0] == "other"
    assert [float(cell) for cell in row[1:]] == pytest.approx([0.0, -half, half])
    assert "2 settings compared on digits" in page.read_text()
    # A comparison's folder names its runs and its reference.
    assert main(["report", str(tmp_path / "c")]) == 1
    assert "config.yaml" in capsys.readouterr().err
    (tmp_path / "c" / "comparison.yaml").write_text("recipes: [one, other]\nreference: other\n")
    assert main(["report", str(tmp_path / "c")]) == 0
    assert "ahead of other" in (tmp_path / "c" / "report.html").read_text()
    shutil.rmtree(folders[0])
    assert main(["report", str(tmp_path / "c")]) == 1
    assert "at least two finished runs" in capsys.readouterr().err
    # One run, at another place.
    elsewhere = tmp_path / "new folder" / "alone.html"
    assert main(["report", folders[1], "-o", str(elsewhere)]) == 0
    page = (Path(folders[1]) / "report.html").read_text()
    assert page_data(elsewhere.read_text()) == page_data(page)


def test_another_comparison_is_not_overwritten(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        shutil.copytree(run.path, tmp_path / name)
    assert main(["report", "a", "b"]) == 0
    page = tmp_path / "comparison.html"
    first = page.read_bytes()
    assert main(["report", "a", "c"]) == 1
    assert re.search(r"no page of other runs at comparison.html, .*-o", capsys.readouterr().err)
    assert page.read_bytes() == first
    assert main(["report", "b", str(tmp_path / "a")]) == 0  # the same runs, however they are named
    assert main(["report", "a", "c", "-o", "other.html"]) == 0
    assert main(["report", "a", "./a"]) == 1
    assert "got 'a' twice" in capsys.readouterr().err


def test_code_that_a_folder_names_does_not_run_for_a_page(run: Run, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    (copied / "report.npz").unlink()
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = (copied / "config.yaml").read_text()
    assert "imports: []" in config
    (copied / "config.yaml").write_text(config.replace("imports: []", f"imports: [{evil}]"))
    page = write_report(copied).read_text()
    assert not (tmp_path / "ran").exists()
    assert 'id="explorer"' not in page
    assert "Items are not shown" in page


def test_what_was_measured_is_kept_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ImportError("cannot import name 'UMAP'")

    monkeypatch.setattr("unremix.report.collect.project", broken)
    run = digits(tmp_path)
    assert (run.path / "evaluation.json").exists()
    page = (run.path / "report.html").read_text()
    assert "Items are not shown" in page
    assert "ImportError: cannot import name" in page
    # No page at all: the card is written, and a warning.
    card = (run.path / "evaluation.json").read_text()
    (run.path / "evaluation.json").unlink()
    monkeypatch.setattr("unremix.pipeline.write_report", broken)
    unremix.evaluate(run.path)
    assert (run.path / "evaluation.json").read_text() == card
    assert any("report.html was not written (ImportError" in line for line in run.warnings)
    again = digits(tmp_path, name="again")
    assert (again.path / "evaluation.json").exists()
    assert any("report.html was not written" in line for line in again.warnings)


def test_thousands_of_classes(run: Run, stored: Stored, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    shutil.copytree(run.path, folder)
    page = write_report(with_classes(stored, 5000, folder))
    assert page.stat().st_size < 3 * 2**20
    text = page.read_text()
    assert "the 4,976 others" in text
    assert text.count("a class with the number 4999") <= 4
    rows = re.search(r'<table id="class-table">.*?</table>', text, re.DOTALL)
    assert rows is not None
    assert rows[0].count("<tr>") == 25


def test_names_of_classes_are_cut_and_never_empty(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    np.savez(
        tmp_path / "names.npz",
        images=rng.integers(0, 256, (24, 8, 8), dtype=np.uint8),
        labels=np.array([" ", "x" * 5000, "plain"])[np.arange(24) % 3],
    )
    run = unremix.train(
        data=str(tmp_path / "names.npz"), runs=str(folder), name="names", batch_size=8,
        head_hidden=(16,), head_output=8, probe_epochs=0, **COMMON,
    )  # fmt: skip
    found = Stored.read(run.path)
    assert found is not None
    assert set(found.about["classes"]) == {"(no name)", "x" * 299 + "…", "plain"}


def test_a_single_class_tells_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", images=images, labels=np.zeros(24, int))
    run = unremix.train(
        data=str(tmp_path / "one.npz"), runs=str(tmp_path), name="one", batch_size=8,
        head_hidden=(16,), head_output=8, probe_epochs=0, **COMMON,
    )  # fmt: skip
    found = Stored.read(run.path)
    assert found is not None
    assert found.about["labels"] is None
    assert not (found.arrays["suspects"] == 1).any()
    assert "24 images, no labels" in (run.path / "report.html").read_text()


def test_sentences_beside_each_other_are_so_in_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sentences(tmp_path)
    data = run.domain.load_for(run, None)
    names = data.names
    whole = take_sample(run, data)
    assert whole.how_drawn == ""
    monkeypatch.setattr("unremix.domains.sentence.show.MOST_ITEMS", 32)
    monkeypatch.setattr("unremix.domains.sentence.show.FIRST_SENTENCES", 80)
    some = take_sample(run, data)
    assert some.how_drawn.endswith("first 80 of 90")
    for sample in (whole, some):
        assert sample.passages is not None
        follow = {(a[:100], b[:100]) for a, b in pairwise(names)}
        shown = [name[:100] for name in sample.names]
        together = 0
        for k in range(len(shown) - 1):
            if sample.passages[k] == sample.passages[k + 1]:
                together += 1
                assert (shown[k], shown[k + 1]) in follow
        assert together >= 24


def test_commands_fit_the_kind_of_data(run: Run) -> None:
    for domain in ("image", "graph", "sentence"):
        config = make_config({"domain": domain, "epochs": 9, "max_minutes": 5.0})
        made = Run.unwritten(Path("runs/it's"), config, None)
        further = next_commands(made, {"epoch": 2})["Train further"]
        assert further == "unremix train --resume 'runs/it'\"'\"'s' --max_minutes 10"
        assert next_commands(made, {"epoch": 9})["Train further"].endswith(" --epochs 18")
        export = next_commands(made, None)["Export the encoder"]
        assert ("onnx" in export) == (domain == "image")
        compile(in_python(made), "page", "exec")
    page = (run.path / "report.html").read_text()
    assert f"unremix export {shlex.quote(str(run.path))} --format onnx" in page


def test_unlabeled_test_images_do_not_hide_the_labels(run: Run) -> None:
    data = run.domain.load_for(run, None)
    assert data.test is not None
    sample = take_sample(run, replace(data, test=replace(data.test, labels=None)))
    assert sample.labels is not None
    assert torch.equal(sample.labels, data.train.labels)
    assert sample.total == len(data.train)
    bare = replace(data, train=replace(data.train, labels=None))
    assert take_sample(run, bare).labels is None
