"""examples/unremix_in_one_file.py computes what the library computes."""

from __future__ import annotations

import io
import runpy
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import unremix
from unremix.evaluation.knn import knn_accuracy, usual_neighbors

FILE = Path(__file__).parents[1] / "examples" / "unremix_in_one_file.py"
ALONE = SimpleNamespace(**runpy.run_path(str(FILE)))


def test_it_stands_alone_and_is_short() -> None:
    lines = FILE.read_text().splitlines()
    assert len(lines) <= 350
    assert not [line for line in lines if line.startswith(("import unremix", "from unremix"))]


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_the_loss_is_the_library_s(temperature: float) -> None:
    """In value and gradient, to the encoder and to the mix."""
    torch.manual_seed(0)
    h, z = torch.randn(2, 12, 16), torch.randn(2, 12, 8)
    mix = torch.tensor([0.5, 0.2, 0.3])
    mine, theirs = z.flatten(0, 1).requires_grad_(), z.clone().requires_grad_()
    alone = ALONE.unremix_loss(mine, h.flatten(0, 1), mix, temperature)
    library = unremix.UnReMixLoss(temperature=temperature, mix=mix.tolist())(
        *theirs.unbind(), h0=h[0], h1=h[1]
    )
    torch.testing.assert_close(alone, library, rtol=1e-6, atol=1e-6)
    alone.backward()
    library.backward()
    torch.testing.assert_close(mine.grad.view_as(z), theirs.grad, rtol=1e-4, atol=1e-6)

    attention, z = torch.zeros(3, requires_grad=True), z.requires_grad_()
    learned = unremix.UnReMixLoss(temperature=temperature)
    learned(*z.unbind(), h0=h[0], h1=h[1]).backward()
    z, h = z.flatten(0, 1), h.flatten(0, 1)
    ALONE.unremix_loss(z, h, attention.softmax(0), temperature).backward()
    (parameter,) = learned.parameters()
    torch.testing.assert_close(attention.grad, parameter.grad, rtol=1e-4, atol=1e-6)


def test_knn_is_the_library_s() -> None:
    torch.manual_seed(0)
    labels, asked = torch.randint(0, 5, (300,)), torch.randint(0, 5, (2100,))
    bank = torch.randn(300, 8) + labels[:, None]
    queries = torch.randn(2100, 8) + asked[:, None]
    theirs = knn_accuracy(bank, labels, queries, asked, k=usual_neighbors(labels, 200))
    assert ALONE.knn_accuracy(bank, labels, queries, asked) == pytest.approx(theirs.value)
    assert 0.3 < theirs.value < 0.9


def test_cifar_s_two_forms_are_read_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 3
    rows = np.concatenate([labels[:, None], images.reshape(12, -1)], axis=1)
    parts = {"data_batch_1": rows[:6], "data_batch_2": rows[6:9], "test_batch": rows[9:]}
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for name, part in parts.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = part.size
            archive.addfile(info, io.BytesIO(part.tobytes()))
    with zipfile.ZipFile(tmp_path / "cifar.zip", "w") as archive:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = io.BytesIO()
            Image.fromarray(image.transpose(1, 2, 0)).save(file, "png")
            split = "train" if number < 9 else "test"
            archive.writestr(f"{split}/{'abc'[label]}/{number:02}.png", file.getvalue())
    binary = ALONE.load(str(tmp_path / "cifar.tar.gz"), None)
    zipped = ALONE.load(str(tmp_path / "cifar.zip"), None)
    for one, other in zip(zipped, binary, strict=True):
        assert sorted(one.flatten(1).tolist() if one.ndim > 1 else one.tolist()) == sorted(
            other.flatten(1).tolist() if other.ndim > 1 else other.tolist()
        )
    assert [len(part) for part in binary] == [9, 9, 3, 3]


def test_views_differ_and_stay_in_range() -> None:
    torch.manual_seed(0)
    for channels, size in ((1, 8), (3, 32)):
        images = torch.randint(0, 256, (16, channels, size, size), dtype=torch.uint8)
        first, second = ALONE.view(images), ALONE.view(images)
        assert first.shape == images.shape
        assert first.isfinite().all()
        assert (first != second).flatten(1).any(1).all()
        assert first.abs().max() < 3


@pytest.mark.slow
def test_an_encoder_is_as_good_as_the_library_s(tmp_path: Path) -> None:
    """The accuracy on held-out digits is within the interval of the library's run."""
    alone = ALONE.train(ALONE.arguments(["--epochs", "10", "--width", "32", "--device", "cpu"]))
    run = unremix.train(
        recipe="unremix-simclr", epochs=10, width=32, runs=str(tmp_path), accelerator="cpu",
        probe_epochs=1, progress=False,
    )  # fmt: skip
    knn = run.evaluation["results"]["trained"]["knn"]
    assert knn["low"] <= alone <= knn["high"]
    assert alone > run.evaluation["results"]["untrained"]["knn"]["value"]
