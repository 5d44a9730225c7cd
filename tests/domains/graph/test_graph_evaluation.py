"""Graphs whose classes are small: told before training, and measured as far as they can be."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import unremix
from unremix.cli import main
from unremix.domains.graph import measure as graphs
from unremix.domains.graph.options import GraphOptions
from unremix.domains.sentence.options import SentenceOptions
from unremix.evaluation.svm import SVMResult
from unremix.pipeline import evaluate
from unremix.training.export import export_encoder
from unremix.training.loop import Training
from unremix.training.progress import Progress

SMALL: dict[str, Any] = {
    "recipe": "infograph", "epochs": 1, "batch_size": 16, "accelerator": "cpu", "threads": 1,
    "progress": False, "name": "run", "graph": GraphOptions(hidden=4, layers=2),
}  # fmt: skip


def write(path: Path, sizes: Sequence[int]) -> Path:
    """Rings, longer ones in later classes; classes of these sizes."""
    rows = [
        {"edges": [[i, (i + 1) % (3 + label)] for i in range(3 + label)], "label": f"class {label}"}
        for label, size in enumerate(sizes)
        for _ in range(size)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ((12, 12, 4), [r"1 of 3 .* \(class 'class 2' has 4\): 4 outer and 3 inner"]),
        ((12, 12, 1), ["1 of 3 classes have fewer than 3 .* 1 of 25 samples left out"]),
        ((12, 4, 2), ["1 of 3 classes have fewer than 3", "1 of 2 classes have fewer than 10"]),
        ((20, 2, 2), ["2 of 3 .* 4 of 24 samples left out", "fewer than two classes have 3"]),
    ],
)
def test_small_classes_are_told_before_training(
    sizes: Sequence[int], messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise RuntimeError("training has begun")

    monkeypatch.setattr(Training, "training_step", stop)
    data = write(tmp_path / "rings.jsonl", sizes)
    with (
        pytest.warns(UserWarning, match="fewer than") as told,
        pytest.raises(RuntimeError, match="training has begun"),
    ):
        unremix.train(data=str(data), runs=str(tmp_path / "runs"), **SMALL)
    assert len(told) == len(messages)
    for warning, message in zip(told, messages, strict=True):
        assert re.match(message, str(warning.message))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": GraphOptions(folds=1)}, r"graph\.folds to be at least 2, got 1"),
        ({"graph": GraphOptions(repeats=0)}, r"graph\.repeats to be at least 1, got 0"),
        ({"graph": GraphOptions(kinds=("nodes",))}, r"--graph\.kinds only with views of graphs"),
        ({"graph": GraphOptions(kinds=())}, "among nodes, edges, .* got none"),
        ({"graph": GraphOptions(kinds=("nodes", "drop"))}, "among nodes, edges, .* got drop"),
        ({"graph": GraphOptions(ratio=0.1)}, r"--graph\.ratio only with views of graphs"),
        ({"backbone": "resnet18"}, "--backbone only .*'resnet18' for graph"),
        ({"probe_epochs": 1}, "--probe_epochs only for image or vectors data"),
        ({"sentence": SentenceOptions(units=4)}, r"--sentence\.units only for sentence data"),
    ],
)
def test_options_without_a_use_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = write(tmp_path / "rings.jsonl", (4, 4))
    with pytest.raises(ValueError, match=message):
        unremix.train(data=str(data), runs=str(tmp_path / "runs"), **{**SMALL, **options})
    assert not (tmp_path / "runs").exists()


def test_one_graph_is_too_few(tmp_path: Path) -> None:
    data = write(tmp_path / "ring.jsonl", (1,))
    with pytest.raises(ValueError, match=r"at least 2 graphs .* got 1"):
        unremix.train(data=str(data), runs=str(tmp_path / "runs"), **SMALL)


def test_what_no_graph_run_can_do_is_told(tmp_path: Path) -> None:
    data = write(tmp_path / "rings.jsonl", (12, 12))
    run = unremix.train(data=str(data), runs=str(tmp_path), **{**SMALL, "epochs": 0})
    for kind in ("onnx", "torchvision"):
        with pytest.raises(ValueError, match=f"images for the format {kind}, .* graphs"):
            export_encoder(str(run.path), kind)  # type: ignore[arg-type]
    pair = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    wrong = (
        (pair, "Data"),
        ("rings.jsonl", "str"),
        ([{"edges": []}], "dict"),
        ([], "an empty list"),
    )
    for items, got in wrong:
        with pytest.raises(ValueError, match=rf"torch_geometric.data.Data, got {got};"):
            run.embed(items)
    assert run.embed([pair]).shape == (1, 8)


def test_graphs_taken_for_images_are_told(tmp_path: Path) -> None:
    data = write(tmp_path / "rings.jsonl", (4, 4))
    with pytest.raises(ValueError, match=r"rings\.jsonl, .* --domain"):
        unremix.train(data=str(data), runs=str(tmp_path), progress=False)
    folder = tmp_path / "RINGS"
    folder.mkdir()
    for kind in ("A", "graph_indicator"):
        (folder / f"RINGS_{kind}.txt").write_text("1\n")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "RINGS")
    for path in (str(folder), packed):
        with pytest.raises(ValueError, match="add --domain graph"):
            unremix.train(data=path, runs=str(tmp_path), progress=False)


def test_small_classes_do_not_fail_the_evaluation(tmp_path: Path) -> None:
    data = write(tmp_path / "rings.jsonl", (12, 12, 4, 1))
    with pytest.warns(UserWarning, match="fewer than") as told:
        run = unremix.train(data=str(data), runs=str(tmp_path / "runs"), **SMALL)
    assert len(told) == 4  # two before training, and again beside the figures
    card = run.evaluation
    assert card is not None
    assert (card["train_graphs"], card["left_out_graphs"]) == (29, 1)
    for measured in card["results"].values():
        assert len(measured["svm"]["accuracies"]) == 4
    assert card["protocol"]["svm"]["outer_folds"] == 4
    assert len(run.warnings) == 2
    assert "1 of 29 samples left out" in (run.path / "report.html").read_text()
    other = write(tmp_path / "others.jsonl", (10, 10, 2))
    with pytest.warns(UserWarning, match="2 of 22 samples left out"):
        card = evaluate(run.path, str(other))
    assert card["left_out_graphs"] == 2
    assert len(run.warnings) == 2  # of the run's own data only
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "others.parquet"
    assert main(["embed", str(run.path), "--data", str(other), "-o", str(out)]) == 0
    table = parquet.read_table(out)
    assert table["labels"].to_pylist() == [0] * 10 + [1] * 10 + [2] * 2  # of all classes
    assert len(table["embeddings"][0]) == 8


def test_labels_that_are_all_different_are_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "rings.jsonl", [1] * 20)
    arguments = [
        "train", "--recipe", "infograph", "--data", str(data), "--runs", str(tmp_path / "runs"),
        "--epochs", "1", "--batch_size", "8", "--graph.hidden", "4", "--accelerator", "cpu",
        "--threads", "1", "--progress", "false", "--name", "run",
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fewer than.*")
        assert main(arguments) == 0
    card = unremix.load(tmp_path / "runs" / "run").evaluation
    assert card is not None
    assert card["results"] is None
    assert "cannot be measured" in card["note"]
    assert "Everything is in" in capsys.readouterr().out


def test_recipes_share_what_is_measured_on_the_untrained_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    real = graphs.svm_accuracy

    def counted(features: Tensor, labels: Tensor, **options: Any) -> SVMResult:
        measured.append(features)
        return real(features, labels, **options)

    monkeypatch.setattr(graphs, "svm_accuracy", counted)
    data = write(tmp_path / "rings.jsonl", (12, 12))
    few = GraphOptions(hidden=4, layers=2, folds=3)
    cards = []
    for name, further in {
        "first": {},
        "second": {"recipe": "infograph-unremix"},
        "seed": {"seed": 1},
        "folds": {"graph": replace(few, folds=4)},
    }.items():
        before = len(measured)
        options = {**SMALL, "name": name, "data": str(data), "runs": str(tmp_path / "runs"),
                   "graph": few}  # fmt: skip
        card = unremix.train(**{**options, **further}).evaluation
        assert card is not None
        cards.append(card["results"])
        assert len(measured) - before == (1 if name == "second" else 3)
    assert cards[0]["untrained"] == cards[1]["untrained"]
    assert cards[0]["summed node features"] == cards[1]["summed node features"]
    # What is kept is what would be measured.
    labels = torch.tensor([0] * 12 + [1] * 12)
    again = real(measured[1], labels, folds=3).accuracies
    assert list(again) == cards[1]["untrained"]["svm"]["accuracies"]


def test_measuring_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Progress, "measured", lambda _, *what: told.append(what))
    data = write(tmp_path / "rings.jsonl", (12, 12))
    run = unremix.train(data=str(data), runs=str(tmp_path / "runs"), **SMALL)
    kinds = ("trained", "untrained", "summed node features")
    measured = [one for one in told if one[0] != "step"]
    assert measured == [(f"{kind}: SVM", fold, 60) for kind in kinds for fold in range(1, 61)]
    told.clear()
    evaluate(run.path)
    assert told == [("trained: SVM", fold, 60) for fold in range(1, 61)]


def test_stopped_while_measuring_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    data = write(tmp_path / "rings.jsonl", (12, 12))
    arguments = [
        "train", "--recipe", "infograph", "--data", str(data), "--runs", str(tmp_path / "runs"),
        "--epochs", "1", "--batch_size", "8", "--graph.hidden", "4", "--accelerator", "cpu",
        "--threads", "1", "--name", "run", "--progress", "false",
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "svm_accuracy", stop)
        assert main(arguments) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "resume with: unremix train --resume" in said
    assert main(["train", "--resume", str(tmp_path / "runs" / "run")]) == 0
    assert unremix.load(tmp_path / "runs" / "run").evaluation is not None


def test_one_class_is_not_called_no_labels(tmp_path: Path) -> None:
    data = write(tmp_path / "rings.jsonl", (12,))
    run = unremix.train(data=str(data), runs=str(tmp_path), **{**SMALL, "epochs": 0})
    card = run.evaluation
    assert card is not None
    assert "same label" in card["note"]


@pytest.mark.parametrize(
    ("further", "which"),
    [
        ({"node_labels": ["a", "b", "c"]}, "labels"),
        ({"node_features": [[1.0], [2.0], [3.0]]}, "features"),
    ],
)
def test_what_an_encoder_of_degrees_does_not_look_at_is_told(
    further: dict[str, Any], which: str, tmp_path: Path
) -> None:
    data = write(tmp_path / "rings.jsonl", (12, 12))
    quick = {**SMALL, "epochs": 0, "graph": GraphOptions(hidden=4, layers=2, folds=2)}
    run = unremix.train(data=str(data), runs=str(tmp_path), **quick)
    other = tmp_path / "others.jsonl"
    other.write_text("\n".join([json.dumps({"edges": [[0, 1], [1, 2]], **further})] * 3))
    with pytest.warns(UserWarning, match=f"{which} of nodes .* not looked at"):
        run.domain.load_for(run, str(other))


def test_a_name_of_graphs_taken_for_images_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tu" / "RINGS"
    folder.mkdir(parents=True)
    (folder / "RINGS_graph_indicator.txt").write_text("1\n")
    monkeypatch.setenv("UNREMIX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="add --domain graph"):
        unremix.train(data="RINGS", runs=str(tmp_path), progress=False)
