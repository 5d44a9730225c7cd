"""Exported encoders carry their preprocessing, and give a run's own embeddings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import assert_close
from pictures import picture, save
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import unremix
from unremix.cli import main
from unremix.training.export import export_encoder
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("export")
FAST: dict[str, Any] = {
    "epochs": 1, "probe_epochs": 1, "batch_size": 8, "head_hidden": (16,), "head_output": 8,
    "progress": False, "accelerator": "cpu", "threads": 1,
}  # fmt: skip


def train(folder: Path, name: str, **options: Any) -> Run:
    return unremix.train(runs=str(folder / "runs"), name=name, **{**FAST, **options})


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("digits"), "gray", limit=32, batch_size=16)


@pytest.fixture(scope="module")
def color(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A ResNet with the small stem and a width of 4, on color pictures."""
    folder = tmp_path_factory.mktemp("color")
    for number in range(16):
        save(folder / "photos" / f"{number}.png", picture(number, (24, 20)))
    return train(
        folder, "color", data=str(folder / "photos"), backbone="resnet18", width=4, image_size=16
    )


@pytest.fixture
def pictures(tmp_path: Path) -> list[Any]:
    """Color and gray, larger and smaller, as a path and as an image."""
    paths = [save(tmp_path / f"{n}.png", picture(n, (20 + 9 * n, 41))) for n in range(3)]
    return [*paths, picture(7, (9, 9), "L"), np.asarray(picture(8, (30, 30)))]


def run_code(code: str, folder: Path) -> torch.Tensor:
    """The embeddings that code makes in a folder, where only third-party packages are installed."""
    hide = "import sys\nfor name in ('unremix', 'torchvision'): sys.modules[name] = None\n"
    show = "\nprint(embeddings.tolist())"
    output = subprocess.run(
        [sys.executable, "-c", hide + code + show],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    return torch.tensor(json.loads(output.stdout))


def test_safetensors_gives_the_runs_embeddings(
    digits: Run, color: Run, pictures: list[Any]
) -> None:
    for run in (digits, color):
        path = run.path / "encoder.safetensors"
        # The file that training leaves, and the one that is exported.
        for file in (path, export_encoder(str(run.path), "safetensors").path):
            exported = unremix.load_exported(file)
            assert_close(exported.embed(pictures), run.embed(pictures), 1e-5)
            assert_close(
                exported.embed(pictures, normalize=True), run.embed(pictures, normalize=True), 1e-5
            )
        settings, shape = run.shape.settings, run.shape
        assert exported.metadata["size"] == shape.image_size
        assert exported.metadata["mean"] == list(settings.mean)
        assert exported.metadata["std"] == list(settings.std)
        assert exported.metadata["layer"] == "backbone"
        assert exported.metadata["crop"] == "center square"
        assert exported.metadata["version"] == unremix.__version__
        assert json.loads((run.path / "preprocess.json").read_text()) == exported.metadata


def test_the_metadata_is_readable_without_this_package(color: Run) -> None:
    with safe_open(color.path / "encoder.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["size"] == "16"
    assert json.loads(metadata["std"]) == [0.2023, 0.1994, 0.2010]
    assert metadata["layer"] == "backbone"


@pytest.mark.slow
def test_onnx_takes_bytes_and_gives_the_runs_embeddings(
    color: Run, pictures: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    target = tmp_path / "out" / "model.onnx"
    command = [sys.executable, "-m", "unremix", "export", str(color.path), "--format", "onnx"]
    done = subprocess.run(
        [*command, "-o", str(target)], check=True, timeout=200, capture_output=True, text=True
    )
    assert done.stderr == ""  # nothing from third parties
    assert "beside it preprocess.json, README.md" in done.stdout
    exported = unremix.load_exported(target)
    assert_close(exported.embed(pictures), color.embed(pictures), 1e-5)
    assert exported.embed([]).shape == (0, 32)
    session = onnxruntime.InferenceSession(str(target))
    assert session.get_inputs()[0].type == "tensor(uint8)"
    facts = session.get_modelmeta().custom_metadata_map
    assert {"size", "crop", "mean", "std", "layer", "version"} <= set(facts)
    # The README's code, without this package and with it.
    picture(3, (140, 100)).save(target.parent / "photo.jpg")  # decoded at a fraction of its size
    blocks = re.findall(
        r"```python\n(.*?)```", (target.parent / "README.md").read_text(), re.DOTALL
    )
    output = run_code("\n".join(blocks[1:]), target.parent)
    monkeypatch.chdir(target.parent)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    expected = color.embed(["photo.jpg"])
    for embeddings in (output, names["embeddings"]):
        assert_close(embeddings, expected, 1e-5)


@pytest.mark.slow
def test_onnx_of_gray_pictures_trained_in_double_precision(
    pictures: list[Any], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    run = train(tmp_path, "double", limit=16, precision="64-true", epochs=0)
    expected = run.embed(pictures)
    for kind in ("onnx", "safetensors"):
        written = export_encoder(str(run.path), kind)  # type: ignore[arg-type]
        assert_close(unremix.load_exported(written.path).embed(pictures), expected, 1e-5)


def test_torchvision_says_what_does_not_fit_and_writes_code(
    color: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "net.torchvision.pt"
    command = ["export", str(color.path), "--format", "torchvision", "-o", str(target)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "(first convolution 3x3" in shown
    assert "width 4 instead of 64" in shown
    assert "net_model.py builds the module" in shown
    clear = picture(5, (40, 30)).convert("RGBA")
    clear.putalpha(picture(6, (40, 30), "L"))
    save(tmp_path / "photo.jpg", clear, format="PNG")
    blocks = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    expected = color.embed([tmp_path / "photo.jpg"])
    assert_close(run_code("\n".join(blocks), tmp_path), expected, 1e-5)


def test_torchvisions_own_shape_needs_no_code(tmp_path: Path) -> None:
    run = train(
        tmp_path, "wide", limit=8, image_size=64, backbone="resnet18", epochs=0,
        data=str(save(tmp_path / "photos" / "a.png", picture(0, (64, 64))).parent),
    )  # fmt: skip
    written = export_encoder(str(run.path), "torchvision")
    assert written.note is None
    assert [path.name for path in written.beside] == ["preprocess.json", "README.md"]
    text = (run.path / "README.md").read_text()
    assert "torchvision.models.resnet18()" in text
    assert "model.fc = torch.nn.Identity()" in text


def test_a_readme_of_someone_else_is_left_alone(color: Run, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My project\n\nIt uses unremix.\n")
    written = export_encoder(str(color.path), "safetensors", str(tmp_path / "net.safetensors"))
    assert (tmp_path / "README.md").read_text().startswith("# My project")
    assert written.beside[1].name == "net-README.md"
    again = export_encoder(str(color.path), "safetensors", str(tmp_path / "net.safetensors"))
    assert again.beside == written.beside


def test_files_that_cannot_be_loaded(color: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.onnx file, got .* unremix\.load"):
        unremix.load_exported(color.path)
    with pytest.raises(FileNotFoundError, match="expected an exported encoder at"):
        unremix.load_exported(tmp_path / "gone.safetensors")
    bare = tmp_path / "bare.safetensors"
    save_file(load_file(color.path / "encoder.safetensors"), bare)
    with pytest.raises(ValueError, match=r"metadata, got .* without"):
        unremix.load_exported(bare)
    bare.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="expected a safetensors file, got"):
        unremix.load_exported(bare)
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match="expected an ONNX file, got"):
        unremix.load_exported(bare.rename(tmp_path / "bare.onnx"))


def test_a_file_cannot_name_code_to_run(tmp_path: Path) -> None:
    run = train(tmp_path, "own", limit=16, backbone="tiny:encoder", epochs=0)
    with pytest.raises(ValueError, match=r"got 'tiny:encoder' .*onnx"):
        unremix.load_exported(run.path / "encoder.safetensors")


def test_graphs(tmp_path: Path) -> None:
    geometric = pytest.importorskip("torch_geometric.data")
    rings = tmp_path / "rings.jsonl"
    rings.write_text('{"edges": [[0, 1], [1, 2], [2, 0]]}\n' * 4)
    run = unremix.train(
        data=str(rings), recipe="infograph", epochs=0, runs=str(tmp_path), name="g",
        graph={"hidden": 4, "layers": 2}, progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    pair = geometric.Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    for file in (run.path / "encoder.safetensors",
                 export_encoder(str(run.path), "safetensors").path):  # fmt: skip
        exported = unremix.load_exported(file)
        assert_close(exported.embed([pair]), run.embed([pair]), 1e-6)
    with pytest.raises(ValueError, match=r"list of torch_geometric\.data\.Data"):
        exported.embed("rings.jsonl")
    with pytest.raises(ValueError, match=r"got one on graphs; export as safetensors"):
        export_encoder(str(run.path), "onnx")


@pytest.mark.parametrize("encoder", ["gru", "bow"])
def test_sentences(encoder: str, tmp_path: Path) -> None:
    text, vectors = tmp_path / "text.txt", tmp_path / "vectors.txt"
    text.write_text("The cat sat.\nThe dog ran.\nA bird sang.\nThe cat ran.\n" * 3)
    words = ["the", "cat", "sat", "dog", "ran", "a", "bird", "sang", "horse"]
    vectors.write_text("".join(f"{word} {n} {n * n % 7} 1\n" for n, word in enumerate(words)))
    run = unremix.train(
        data=str(text), domain="sentence", epochs=0, runs=str(tmp_path), name="s", batch_size=4,
        sentence={"encoder": encoder, "words": 6, "units": 4, "senteval": "none",
                  "expand": str(vectors)},
        progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    sentences = ["The cat sang.", "An unknown word", "A horse"]  # the last by --sentence.expand
    own = unremix.load_exported(run.path / "encoder.safetensors")
    assert_close(own.embed(sentences[:2]), run.embed(sentences[:2]), 1e-6)
    exported = unremix.load_exported(export_encoder(str(run.path), "safetensors").path)
    assert_close(exported.embed(sentences), run.embed(sentences), 1e-6)
    vectors.unlink()  # its words are in the file
    assert exported.embed(sentences).shape[0] == 3
    with pytest.raises(ValueError, match="got one on sentences"):
        export_encoder(str(run.path), "torchvision")


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"domain": "nothing"},
        {"domain": "sentence"},
        {"domain": "image"},
        {"domain": "image", "channels": "1", "size": "8", "mean": "[0]", "std": "[1]",
         "encoder": json.dumps({"name": "small", "width": -1, "stem": "auto"})},
        {"domain": "image", "channels": "x", "size": "8", "mean": "[" * 10**5, "encoder": "[]"},
    ],
)  # fmt: skip
def test_wrong_facts_are_refused_in_words(tmp_path: Path, facts: dict[str, str]) -> None:
    for weights in ({"weight": torch.ones(2)}, {"number": torch.ones(1, dtype=torch.int64)}):
        path = tmp_path / "e.safetensors"
        save_file(weights, path, metadata={"made_by": "unremix 0", **facts})
        with pytest.raises(ValueError, match=r"expected .*, got "):
            unremix.load_exported(path)
