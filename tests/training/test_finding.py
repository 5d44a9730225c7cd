"""Ready encoders by name: their embeddings are those of the network used by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import assert_close
from pictures import picture, save
from PIL import Image

import unremix
from unremix.cli import main
from unremix.domains.image.encoders import External, make_encoder
from unremix.domains.image.views import prepared
from unremix.evaluation.knn import knn_predict

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
OWN = f"""
import torch
from torch import nn

class Net(nn.Module):
    preprocessing = {{"size": 12, "resize": 16, "mean": {MEAN}, "std": {STD}}}

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, images):
        return self.conv(images).relu().mean((2, 3))

asked = []

def net(pretrained=True):
    asked.append(pretrained)
    torch.manual_seed(7 if pretrained else 8)
    return Net()

def silent(channels, image_size):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1))

def wrong(channels):
    made = silent(channels, 1)
    made.preprocessing = {{"size": 12, "pixels": 3}}
    return made
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of encoders in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_nets.py"
    file.write_text(OWN)
    yield file
    for name in ("my_nets", str(file)):
        sys.modules.pop(name, None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(8):
        shape = (20 + number, 31)
        save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", picture(number, shape))
    return tmp_path / "photos"


def by_hand(network: torch.nn.Module, files: list[Path]) -> torch.Tensor:
    """Short side to 16, middle 12, normalized: in PIL and numpy alone."""
    rows = []
    for file in files:
        image = Image.open(file).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        pixels = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC, reducing_gap=2.0))
        rows.append((pixels[2:14, 2:14] / 255 - np.array(MEAN)) / np.array(STD))
    with torch.no_grad():
        return network(torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float())


def test_a_callable_in_a_file_is_the_network_used_by_hand(own: Path, photos: Path) -> None:
    encoder = unremix.encoder("my_nets.py:net")
    network = sys.modules["my_nets"].net()
    files = sorted(photos.rglob("*.png"))
    expected = by_hand(network, files)
    assert_close(encoder.embed(files), expected, 1e-5)
    assert encoder.features == 5
    assert "resized to 16, its middle 12 pixels; mean 0.4 0.5 0.6" in repr(encoder)
    assert True in sys.modules["my_nets"].asked
    assert main(["embed", "--encoder", "my_nets.py:net", "--data", "photos", "-o", "x.npz"]) == 0
    with np.load("x.npz") as arrays:
        assert list(arrays["names"]) == [str(file.relative_to(photos)) for file in files]
        assert_close(torch.from_numpy(arrays["embeddings"]), expected, 1e-5)
        labels = torch.from_numpy(arrays["labels"])
        found = knn_predict(torch.from_numpy(arrays["embeddings"]), labels, k=1)
    assert torch.equal(found.argmax(1), knn_predict(expected, labels, k=1).argmax(1))
    data = encoder.embed_data("photos")
    assert_close(data.embeddings, expected, 1e-5)


def test_weights_of_a_file_take_the_place_of_the_callables(own: Path, photos: Path) -> None:
    first = unremix.encoder("my_nets.py:net")
    other = sys.modules["my_nets"].net(pretrained=False)
    torch.save({"state_dict": other.state_dict()}, "weights.pt")
    files = sorted(photos.rglob("*.png"))
    found = unremix.encoder("my_nets.py:net:weights.pt").embed(files)
    assert_close(found, by_hand(other, files), 1e-5)
    assert not torch.allclose(found, first.embed(files))
    torch.save({"conv.weight": other.conv.weight}, "part.pt")
    with pytest.raises(ValueError, match=r"expected all weights .* none that fit for .*bias"):
        unremix.encoder("my_nets.py:net:part.pt")


def test_what_is_not_stated_is_said(own: Path) -> None:
    encoder = unremix.encoder("my_nets.py:silent")
    assert "224 pixels; mean 0.485 0.456 0.406" in repr(encoder)
    assert "ImageNet's, as the encoder states none" in repr(encoder)
    with pytest.raises(ValueError, match=r"expected a preprocessing of mean, resize, size, std"):
        unremix.encoder("my_nets.py:wrong")
    with pytest.raises(ValueError, match="got"):
        prepared(size=32, resize=16)


def test_names_that_cannot_be_found(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("resnet18", r"timm:NAME, torchvision:NAME, .*package\.module:callable"),
        ("my_nets.py:nett", "found none; did you mean 'net'"),
        ("other_nets:net", "importable"),
        ("gone.safetensors", "found no file"),
        ("tim:resnet18", "did you mean 'timm'"),
        ("sentence-transformer:all-MiniLM", "did you mean 'sentence-transformers'"),
        ("efficientnet_lite_pytorh:efficientnet-lite0", "did you mean 'efficientnet_lite_pytorch'"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            unremix.encoder(name)
    (own.parent / "hidden_nets.py").write_text(OWN)
    with pytest.raises(ValueError, match=r"name hidden_nets\.py:net"):
        unremix.encoder("hidden_nets:net")
    assert main(["embed", "runs/x", "--encoder", "timm:x", "--data", "digits"]) == 2
    assert "got both" in capsys.readouterr().err
    assert main(["embed", "--encoder", "my_nets.py:net"]) == 1
    assert "name the data" in capsys.readouterr().err


def test_a_run_and_an_exported_file_are_ready_encoders(tmp_path: Path) -> None:
    run = unremix.train(
        runs=str(tmp_path), name="r", limit=16, epochs=0, width=4, head_hidden=(4,),
        head_output=4, probe_epochs=0, progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    pictures = [picture(number, (9, 9), "L") for number in range(3)]
    for name in (str(run.path), str(run.path / "encoder.safetensors")):
        assert_close(unremix.encoder(name).embed(pictures), run.embed(pictures), 1e-6)


def test_a_run_starts_from_a_ready_encoder(own: Path, photos: Path) -> None:
    run = unremix.train(
        data="photos", encoder="my_nets.py:net", epochs=0, runs="runs", name="r", head_hidden=(4,),
        head_output=4, probe_epochs=0, progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    assert run.config.own.backbone == run.config.encoder == f"{own}:net"  # found from anywhere
    assert run.config.own.image_size == 16
    files = sorted(photos.rglob("*.png"))
    expected = by_hand(sys.modules["my_nets"].net(), files)
    assert_close(run.embed(files), expected, 1e-5)
    assert_close(unremix.load(run.path, trust=True).embed(files), expected, 1e-5)
    longer = unremix.train(
        data="photos", encoder="my_nets.py:net", epochs=1, runs="runs", name="longer", seed=1,
        batch_size=4, head_hidden=(4,), head_output=4, probe_epochs=0, progress=False,
        accelerator="cpu", threads=1,
    )  # fmt: skip
    again = unremix.train(
        resume=str(longer.path), epochs=2, trust=True, progress=False, accelerator="cpu"
    )
    assert again.metrics()[-1]["epoch"] == 2
    for options in ({"backbone": "small"}, {"init": "x.pt"}, {"domain": "vectors"}):
        with pytest.raises((ValueError, FileNotFoundError), match="expected"):
            unremix.train(data="photos", encoder="my_nets.py:net", name="x", **options)


def test_timm_says_its_preprocessing_and_which_weights_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for timm; tests/peers has the real one."""
    settings = SimpleNamespace(
        input_size=(3, 12, 12), crop_pct=0.75, mean=MEAN, std=STD, fixed_input_size=False,
        hf_hub_id=None, url="https://example.org/net-1234.pth",
    )  # fmt: skip

    def create_model(name: str, **options: Any) -> torch.nn.Module:
        assert options["pretrained"] is False  # nothing is downloaded
        return make_encoder("small", channels=3, image_size=12, width=4)

    library = SimpleNamespace(
        is_model="net".__eq__,
        list_models=lambda: ["net"],
        models=SimpleNamespace(get_pretrained_cfg=lambda _: settings),
        create_model=create_model,
    )
    monkeypatch.setitem(sys.modules, "timm", library)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"python -c .*create_model\('net', pretrained=Tr"):
        unremix.encoder("timm:net")
    torch.manual_seed(3)
    network = create_model("net", pretrained=False).eval()
    (tmp_path / "checkpoints").mkdir()
    torch.save(network.state_dict(), tmp_path / "checkpoints" / "net-1234.pth")
    encoder = unremix.encoder("timm:net")
    assert isinstance(encoder.network, External)
    file = save(tmp_path / "a.png", picture(0, (30, 40)))
    assert_close(encoder.embed([file]), by_hand(network, [file]), 1e-5)
    for name in ("local-dir:/tmp/net", "hf-hub:someone/net"):
        with pytest.raises(ValueError, match="the name of a timm model"):
            unremix.encoder(f"timm:{name}")
