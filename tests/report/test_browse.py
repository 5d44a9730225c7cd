"""Neighbors, near-duplicates and clusters of a run: a table and a page each."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import page_data
from PIL import Image
from safetensors.torch import load_file, save_file

from unremix import classify, load
from unremix import encoder as encoder_of
from unremix.cli import main
from unremix.domains import DOMAINS
from unremix.report import sources

SMALL = [
    "--batch_size", "16", "--epochs", "1", "--probe_epochs", "1", "--head_hidden", "[16]",
    "--head_output", "8", "--accelerator", "cpu", "--threads", "1",
]  # fmt: skip
pytestmark = pytest.mark.xdist_group("browse")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures, two of which are copies of others."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for name, color in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (folder / name).mkdir()
        for number in range(12):
            noise = generator.integers(-30, 30, (16, 16, 3))
            pixels = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    for name in ("red", "blue"):
        (folder / name / "copy.png").write_bytes((folder / name / "3.png").read_bytes())
    runs = tmp_path_factory.mktemp("runs")
    words = ["train", "--data", str(folder), "--runs", str(runs), "--name", "<b>", *SMALL]
    assert main(words) == 0
    return runs / "<b>"


def test_neighbors_of_a_name_and_of_a_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside.png"
    Image.new("RGB", (20, 20), (190, 40, 40)).save(outside)
    page = tmp_path / "page.html"
    words = ["neighbors", str(run), "--query", "red/3.png", str(outside), "-k", "3"]
    assert main([*words, "-o", str(page)]) == 0
    found = rows_of(page.with_suffix(".csv"))
    assert [row["query"] for row in found] == ["red/3.png"] * 3 + [str(outside)] * 3
    assert found[0]["name"] == "red/copy.png"
    assert float(found[0]["similarity"]) == pytest.approx(1, abs=1e-5)
    assert all(row["name"] != "red/3.png" for row in found[:3])
    # The same by hand, from the run itself.
    folder = Path(load(run).config.data)
    names = sorted(f"{path.parent.name}/{path.name}" for path in folder.rglob("*.png"))
    corpus = load(run).embed([str(folder / name) for name in names], normalize=True)
    query = load(run).embed([str(outside)], normalize=True)
    values = (query @ corpus.T)[0]
    assert [float(row["similarity"]) for row in found[3:]] == pytest.approx(
        values.sort(descending=True).values[:3].tolist(), abs=1e-4
    )
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 8  # two queries with three neighbors each
    assert "&lt;b&gt;" in text
    text = text.replace("http://www.w3.org/2000/svg", "")  # a name, which nothing loads
    assert not re.search(r"<b>|https?://|<script src", text)
    assert f"Wrote {page}, and beside it page.csv" in capsys.readouterr().out


def test_a_file_of_the_data_is_not_its_own_neighbor(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(load(run).config.data)
    monkeypatch.chdir(folder.parent)
    page = tmp_path / "page.html"
    for query in (folder / "red" / "3.png", Path(folder.name) / "red" / "3.png"):
        assert main(["neighbors", str(run), "--query", str(query), "-k", "2", "-o", str(page)]) == 0
        names = [row["name"] for row in rows_of(page.with_suffix(".csv"))]
        assert names[0] == "red/copy.png"
        assert "red/3.png" not in names
        lines = capsys.readouterr().out.splitlines()
        start = lines.index(f"{query}:")
        assert re.fullmatch(r"  (1\.00000|0\.9999\d)  red/copy\.png \(red\)", lines[start + 1])
        assert lines[start + 2].endswith(f"  {names[1]} (red)")


def test_many_queries_are_not_all_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"red/{number}.png" for number in range(12)]
    assert main(["neighbors", str(run), "--query", *names, "-k", "1"]) == 0
    shown = capsys.readouterr().out
    assert [f"\n{name}:\n" in shown for name in names] == [True] * 10 + [False] * 2
    assert "The others are in neighbors.csv." in shown


def test_a_better_threshold_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def groups(threshold: str) -> tuple[int, str | None]:
        assert main(["duplicates", str(run), "--threshold", threshold]) == 0
        shown = capsys.readouterr().out
        named = re.search(r"Try --threshold (\S+)\.\n", shown)
        return int(shown.split(" group")[0]), named and named[1]

    found, better = groups("-0.9")  # everything is alike
    assert found == 1
    assert better is not None
    assert groups(better)[1] is None  # it stands


def test_duplicates_are_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["duplicates", str(run), "--threshold", "0.999999"]) == 0
    assert re.search(r"Group \d+, 2 alike: red/3\.png \(red\), red/copy", capsys.readouterr().out)
    groups: dict[str, set[str]] = {}
    for row in rows_of(run / "duplicates.csv"):
        groups.setdefault(row["group"], set()).add(row["name"])
    assert {"red/3.png", "red/copy.png"} in groups.values()
    assert {"blue/3.png", "blue/copy.png"} in groups.values()
    assert "2 alike" in (run / "duplicates.html").read_text()


def test_clusters_are_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", str(run), "--clusters", "2"]) == 0
    found = rows_of(run / "clusters.csv")
    assert len(found) == 26
    assert {row["cluster"] for row in found} == {"1", "2"}
    for cluster in ("1", "2"):  # the colors are easily told apart
        assert len({row["label"] for row in found if row["cluster"] == cluster}) == 1
    shown = capsys.readouterr().out
    assert "mutual information with the labels: 1.000" in shown
    sizes = re.findall(r"^Cluster (\d), 13 images: (?:red|blue) 100%$", shown, re.M)
    assert sizes == ["1", "2"]


def test_embeddings_are_computed_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["cluster", str(run), "--clusters", "2"]) == 0

    def refuse(*_: object) -> None:
        raise AssertionError("the embeddings are kept")

    monkeypatch.setitem(DOMAINS, "image", replace(DOMAINS["image"], features=refuse))
    assert main(["duplicates", str(run)]) == 0
    picture = Path(load(run).config.data) / "red" / "1.png"
    picture.write_bytes(picture.read_bytes() + b"\0")  # the data changed
    with pytest.raises(AssertionError, match="are kept"):
        main(["duplicates", str(run)])


def test_sentences_take_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--domain", "sentence", "--runs", str(tmp_path), "--name", "text"]
    options = ["--epochs", "0", "--limit", "400", "--sentence.units", "8", "--sentence.words", "8"]
    assert main([*words, *options]) == 0
    (tmp_path / "asked.txt").write_text("Open a file.\n\nReturn a list.\n")
    run, asked = str(tmp_path / "text"), str(tmp_path / "asked.txt")
    assert main(["neighbors", run, "--query", "Close the file.", asked, "-k", "2"]) == 0
    found = rows_of(tmp_path / "text" / "neighbors.csv")
    queries = ["Close the file."] * 2 + ["Open a file."] * 2 + ["Return a list."] * 2
    assert [row["query"] for row in found] == queries
    assert "Close the file." in (tmp_path / "text" / "neighbors.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--query", "nothing.png"], "expected a picture in the data, or the path of one, got"),
        (
            ["--query", "red/3.png", "-k", "0"],
            "expected k to be a whole number of at least 1, got 0",
        ),
        (["--query", "red/3.png", "-o", "x.csv"], "expected a page that ends in .html, got"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["neighbors", str(run), *words]) == 1
    assert message in capsys.readouterr().err


def test_damaged_embeddings_in_a_run_are_made_again(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("embeddings"))
    assert main(["cluster", str(copy)]) == 0
    (kept,) = (copy / "embeddings").glob("*.npz")
    with np.load(kept) as found:
        sound = dict(found)
    for changed in (
        {"labels": sound["labels"][:2]},
        {"labels": sound["labels"] + 99},
        {"names": np.zeros((len(sound["names"]), 2))},
        {"embeddings": np.zeros(3)},
    ):
        np.savez(kept, **(sound | changed))
        assert main(["cluster", str(copy)]) == 0
        with np.load(kept) as found:
            for name, values in sound.items():
                np.testing.assert_equal(found[name], values)


def test_a_run_without_checkpoints_is_browsed_as_with_them(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one from the Hub is: its encoder alone is enough. Another encoder is not taken for it."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    found = []
    for folder in (run, copy):
        assert main(["neighbors", str(folder), "--query", "red/3.png", "-k", "3"]) == 0
        found.append(capsys.readouterr().out.partition("Wrote")[0])
    assert found[0] == found[1]
    weights = load_file(copy / "encoder.safetensors")
    save_file({name: 2 * one for name, one in weights.items()}, copy / "encoder.safetensors")
    before = sorted((copy / "embeddings").iterdir())
    assert main(["neighbors", str(copy), "--query", "red/3.png", "-k", "3"]) == 0
    assert sorted((copy / "embeddings").iterdir()) != before


def test_a_run_is_explored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", str(run)]) == 0
    text = (run / "explore.html").read_text()
    data = page_data(text)
    assert data["about_batch"].endswith("the second views of all others are its negatives.")
    assert len(data["batches"]) == 1
    assert len(data["names"]) == 26
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    shown = capsys.readouterr().out
    assert "each of 26 images by its 2 nearest others" in shown
    assert "4 images have a near-duplicate" in shown


ENCODER = """
import torch
from torch import nn

def mean_colors(pretrained=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(12, 12))
    model.preprocessing = {"size": 16, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model
"""


def test_data_of_a_ready_encoder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command embeds them once, as the encoder itself does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    photos = load(run).config.data
    (tmp_path / "net.py").write_text(ENCODER)
    encoder = ["--encoder", f"{tmp_path / 'net.py'}:mean_colors"]
    assert main(["duplicates", photos, *encoder]) == 0
    groups: dict[str, set[str]] = {}
    for row in rows_of(tmp_path / "duplicates.csv"):
        groups.setdefault(row["group"], set()).add(row["name"])
    copies = [{f"{color}/3.png", f"{color}/copy.png"} for color in ("blue", "red")]
    assert sorted(groups.values(), key=min) == copies
    (kept,) = (tmp_path / "cache" / "unremix" / "embeddings").iterdir()
    with np.load(kept) as found:
        paths = [str(Path(photos) / name) for name in found["names"]]
        expected = encoder_of(encoder[1]).embed(paths)
        np.testing.assert_allclose(found["embeddings"], expected, atol=1e-5)
    outside = tmp_path / "outside.png"
    Image.new("RGB", (20, 20), (190, 40, 40)).save(outside)
    query = ["--query", str(outside), "-k", "2"]
    assert main(["neighbors", "--data", photos, *encoder, *query]) == 0
    assert {row["label"] for row in rows_of(tmp_path / "neighbors.csv")} == {"red"}
    assert main(["cluster", photos, *encoder, "--clusters", "2"]) == 0
    assert "mutual information with the labels: 1.000" in capsys.readouterr().out
    assert main(["explore", photos, *encoder]) == 0
    data = page_data((tmp_path / "explore.html").read_text())
    assert (data["shown_as"], len(data["names"])) == ("thumbnail", 26)
    labels = {f"{color}/{n}.png": color for color in ("red", "blue") for n in range(4)}
    found_all = classify(labels, photos, encoder=encoder[1])
    assert found_all.predicted == [name.partition("/")[0] for name in found_all.names]
    assert list((tmp_path / "cache" / "unremix" / "embeddings").iterdir()) == [kept]
    # Other code with the same weights is another encoder.
    (tmp_path / "net.py").write_text(ENCODER.replace("nn.AvgPool2d(8)", "nn.MaxPool2d(8)"))
    assert main(["cluster", photos, *encoder]) == 0
    assert len(list(kept.parent.iterdir())) == 2
    # So is the same code with another version of a library.
    monkeypatch.setattr(sources, "version_of", lambda name: "0.1" if name == "timm" else None)
    assert main(["cluster", photos, *encoder]) == 0
    assert len(list(kept.parent.iterdir())) == 3
