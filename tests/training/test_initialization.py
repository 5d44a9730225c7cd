"""--init: what is loaded into the encoder, and what is said about it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import small
from torch import Tensor

import unremix
from unremix.domains.image.encoders import make_encoder
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("training")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A trained run whose weights others start from."""
    return unremix.train(small(tmp_path_factory.mktemp("source"), epochs=1))


def begun(folder: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[Run, str]:
    """A run of no epoch, so that its encoder is what it starts from; and what was printed."""
    run = unremix.train(small(folder, epochs=0, progress=True, **options))
    return run, capsys.readouterr().out


def assert_same(run: Run, expected: dict[str, Tensor]) -> None:
    found = load_file(run.path / "encoder.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("recipe", ["unremix-simclr", "moco"])
def test_a_run(
    recipe: str, source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = begun(tmp_path, capsys, init=str(source.path), recipe=recipe, seed=3)
    weights = load_file(source.path / "encoder.safetensors")
    assert_same(run, weights)
    count = len(list(source.encoder().parameters()))
    assert f"--init {source.path}: loaded {count} of {count} parameters\n" in said
    if recipe == "moco":  # the key encoder begins as a copy
        model = run.load_checkpoint()["model"]
        assert torch.equal(*(model[f"{kind}.{next(iter(weights))}"] for kind in
                             ("encoder", "key_encoder")))  # fmt: skip


@pytest.mark.parametrize("form", ["safetensors", "checkpoint", "prefixed", "nested"])
def test_files(form: str, source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(source.path / "encoder.safetensors")
    file = tmp_path / "weights.pt"
    if form == "safetensors":
        file = source.path / "encoder.safetensors"
    elif form == "checkpoint":
        file = source.checkpoint
    elif form == "prefixed":
        torch.save({f"module.backbone.{name}": t for name, t in weights.items()}, file)
    else:
        torch.save({"state_dict": weights | {"fc.weight": torch.zeros(3, 4)}, "epoch": 3}, file)
    run, said = begun(tmp_path, capsys, init=str(file), seed=3)
    assert_same(run, weights)
    assert ("not used: fc.weight" in said) == (form == "nested")


def test_a_torchvision_state_dict_of_another_stem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = make_encoder("resnet18", channels=1, image_size=64, width=4, stem="imagenet")
    file = tmp_path / "resnet18.pth"
    torch.save({**theirs.state_dict(), "fc.weight": torch.zeros(10, 32)}, file)
    options = {"backbone": "resnet18", "width": 4, "stem": "cifar"}
    run, said = begun(tmp_path, capsys, init=str(file), **options)
    assert "loaded 59 of 60 parameters" in said
    assert "conv1.weight (expected (4, 1, 3, 3), got (4, 1, 7, 7))" in said
    assert "not used: fc.weight" in said
    found = load_file(run.path / "encoder.safetensors")
    name = "layer4.1.conv2.weight"
    assert torch.equal(found[name], theirs.state_dict()[name])


def test_nothing_fits(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"other": torch.zeros(3)}, file)
    with pytest.raises(ValueError, match="got none that fit"):
        unremix.train(small(tmp_path / "runs", init=str(file)))
    with pytest.raises(FileNotFoundError, match=r"a run, a state dict or a \.safetensors"):
        unremix.train(small(tmp_path / "runs", init=str(tmp_path / "none.pt")))
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="expected a state dict in"):
        unremix.train(small(tmp_path / "runs", init=str(broken)))
    assert not list((tmp_path / "runs").glob("*"))


def test_timm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for timm, which needs a connection for its weights."""
    with pytest.raises(ValueError, match="--pretrained with --backbone timm:NAME"):
        unremix.train(small(tmp_path, pretrained=True))
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> torch.nn.Module:
        asked.update(options, name=name)
        torch.manual_seed(5)
        return make_encoder("small", channels=1, image_size=8)

    monkeypatch.setitem(
        sys.modules,
        "timm",
        SimpleNamespace(
            create_model=create_model,
            is_model="some_net".__eq__,
            list_models=lambda: ["some_net"],
            models=SimpleNamespace(get_pretrained_cfg=lambda _: None),
        ),
    )
    run, said = begun(tmp_path, capsys, init="timm:some_net")
    assert asked == {"name": "some_net", "pretrained": True, "num_classes": 0, "in_chans": 1}
    assert_same(run, create_model("some_net").state_dict())
    assert "--init timm:some_net: loaded" in said


def test_a_pickle_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    torch.save({"model": Path.touch}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="more than tensors"):
        unremix.train(small(tmp_path, init=str(tmp_path / "weights.pt")))


@pytest.mark.parametrize("name", ["local-dir:weights", "hf-hub:user/name", "../net", "net"])
def test_only_models_of_timm_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """From a folder or a repository, some versions of timm unpickle."""

    def create_model(*_: Any, **__: Any) -> torch.nn.Module:
        raise AssertionError("timm was asked for weights")

    known = SimpleNamespace(
        list_models=list, create_model=create_model, is_model=lambda name: name == "resnet18"
    )
    monkeypatch.setitem(sys.modules, "timm", known)
    with pytest.raises(ValueError, match="name of a timm model"):
        unremix.train(small(tmp_path, init=f"timm:{name}"))
