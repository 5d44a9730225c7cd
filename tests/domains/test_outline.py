"""Outlines have the shapes of their models, take no memory, and refuse what is too large."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from unremix.domains import find_domain
from unremix.domains.options import TrainConfig, make_config
from unremix.recipes import RECIPES
from unremix.training import building
from unremix.training.building import (
    build_model,
    outline_model,
    outlined,
    refuse_giant,
    refuse_other,
)

SHAPES: dict[str, dict[str, Any]] = {
    "image": {"channels": 3, "image_size": 64, "augmentation": "cifar"},
    "graph": {"encoding": {"kind": "degree", "max_degree": 4}},
    "sentence": {"words": ["a", "b"], "counts": [2, 1], "unknown": 0},
    "vectors": {"columns": [{"name": "a", "values": []}], "notes": []},
}
GIANTS: list[dict[str, Any]] = [
    {"width": 10**9},
    {"width": 2**62},
    {"backbone": "resnet50", "width": 10**5},
    {"head_output": 10**12},
    {"head_hidden": (10**9, 10**9)},
    {"backbone": "torchvision:resnet18", "head_output": 10**12},
    {"recipe": "moco", "moco": {"queue": 10**12}},
    {"recipe": "swav", "swav": {"prototypes": 10**12}},
    {"recipe": "swav", "swav": {"queue": 10**12}},
    {"recipe": "infograph", "graph": {"hidden": 10**9}},
    {"recipe": "graphcl", "graph": {"hidden": 10**6, "layers": 1000}},
    {"recipe": "quickthought", "sentence": {"units": 10**9}},
    {"recipe": "quickthought", "sentence": {"words": 10**13}},
    {"recipe": "quickthought", "sentence": {"output": 10**13}},
    {"recipe": "quickthought", "sentence": {"encoder": "transformer", "max_length": 10**14}},
]


def shape_of(config: TrainConfig) -> Any:
    single = {"single": True} if config.recipe.startswith("simcse") else {}
    return find_domain(config.domain).shape_from({**SHAPES[config.domain], **single})


OTHERS: list[dict[str, Any]] = [
    {"recipe": "quickthought", "sentence": {"encoder": "bow", "output": 3}},
    {"recipe": "quickthought", "sentence": {"encoder": "transformer", "words": 8}},
    {"recipe": "simclr", "precision": "64-true", "backbone": "resnet50"},
    {"recipe": "swav", "swav": {"queue": 4}},
]


@pytest.mark.parametrize("options", [*({"recipe": name} for name in RECIPES), *OTHERS], ids=str)
def test_an_outline_has_the_shapes_of_its_model(options: dict[str, Any]) -> None:
    usual = {"width": 4} if RECIPES[options["recipe"]].domain == "image" else {}
    config = make_config({**usual, **options})
    shape = shape_of(config)
    found, real = outline_model(config, shape), build_model(config, shape)
    assert found is not None
    told = {name: (one.shape, one.dtype) for name, one in found.state_dict().items()}
    assert told == {name: (one.shape, one.dtype) for name, one in real.state_dict().items()}
    assert all(one.is_meta for one in found.state_dict().values())


def test_an_outline_leaves_randomness_alone() -> None:
    torch.manual_seed(0)
    config = make_config({"width": 4})
    before = torch.get_rng_state()
    outline_model(config, shape_of(config))
    assert torch.equal(torch.get_rng_state(), before)


def test_outlines_import_nothing() -> None:
    """Filling tensors of the meta device would import sympy, which takes seconds."""
    code = (
        "import sys; from unremix.domains.options import make_config\n"
        "from unremix.domains import find_domain\n"
        "from unremix.training.building import outline_model\n"
        f"shapes = {SHAPES!r}\n"
        "for recipe in ('moco', 'swav', 'graphcl', 'infograph', 'quickthought'):\n"
        "    config = make_config({'recipe': recipe})\n"
        "    domain = find_domain(config.domain)\n"
        "    assert outline_model(config, domain.shape_from(shapes[config.domain]))\n"
        "assert 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("options", GIANTS, ids=str)
def test_giants_are_refused(options: dict[str, Any]) -> None:
    config = make_config(options)
    with pytest.raises(ValueError, match=r"expected a model that fits into memory.*; lower "):
        build_model(config, shape_of(config))


def test_the_memory_of_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1000, 1000, bias=False)  # 4,000,000 bytes
    monkeypatch.setattr(building, "machine_memory", lambda: 4_000_000)
    refuse_giant(model, "width")
    monkeypatch.setattr(building, "machine_memory", lambda: 3_999_999)
    with pytest.raises(ValueError, match=r"which has 3\.8 MiB, got one of 3\.8 MiB; lower width"):
        refuse_giant(model, "width")
    monkeypatch.setattr(building, "machine_memory", lambda: None)
    refuse_giant(model, "width")


def test_a_model_that_computes_while_it_is_made_has_no_outline() -> None:
    def make() -> nn.Module:
        return nn.Linear(1, round(float(torch.ones(()))))

    assert outlined(make, "width") is None
    refuse_giant(None, "width")
    refuse_other(None, {}, "nowhere")


def test_weights_that_repeat_a_number_do_not_count_as_many() -> None:
    """A checkpoint of a few bytes may show one number as a tensor of any shape."""
    with torch.device("meta"):
        model = nn.Linear(10**6, 10**6, bias=False)
    with pytest.raises(ValueError, match=r"1,000,000,000,000 .* last\.ckpt, got 1;"):
        refuse_other(model, {"weight": torch.ones(1).expand(10**6, 10**6)}, "last.ckpt")
    refuse_other(nn.Linear(3, 2, bias=False), {"weight": torch.ones(2, 3)}, "last.ckpt")
