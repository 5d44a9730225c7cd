"""Every framework with every mixing, negatives and weighting."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from building import fill, gradients_of, make_batch, make_model, make_parts
from torch import Tensor

from unremix.domains.options import TrainConfig
from unremix.frameworks import mixing
from unremix.frameworks import negatives as further_negatives
from unremix.frameworks.base import Framework
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.moco import MoCo, MoCoOptions
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.parts import option_fields, section_of
from unremix.frameworks.randomness import uniforms
from unremix.frameworks.simclr import SimCLR
from unremix.frameworks.swav import SwAVOptions
from unremix.recipes import (
    PARTS,
    RECIPES,
    compose,
    sections,
)


@pytest.mark.parametrize("symmetric", [None, False, True])  # None: SimCLR
@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
@pytest.mark.parametrize("negatives", ["none", "mochi", "patch"])
def test_no_two_streams_of_a_step_are_equal(
    symmetric: bool | None, mixing_name: str, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is drawn from twice, be it a sample's or the batch's."""
    if symmetric is None and negatives == "mochi":
        pytest.skip("no queue")
    options: dict[str, Any] = {
        "mixing": {"none": None, "imix": IMix(), "unmix": UnMix()}[mixing_name],
        "negatives": {"none": None, "mochi": MoCHi(4, 3, 2, 0), "patch": Patches(2, 3)}[negatives],
    }
    if symmetric is None:
        model = make_model(SimCLR, **options)
    else:
        model = make_model(symmetric=symmetric, group=2, queue=8, **options)
        fill(model, 8)
    batch = make_batch(4)
    embedded = [model.embed(images) for images in model.inputs(batch)]
    drawn: list[int] = []

    def recorded(keys: Tensor, count: int) -> Tensor:
        drawn.extend(keys.tolist())
        return uniforms(keys, count)

    for module in (mixing, further_negatives):
        monkeypatch.setattr(module, "uniforms", recorded)
    model.objective(embedded, batch)
    assert len(set(drawn)) == len(drawn)
    ways, mixes = 1 + bool(symmetric), mixing_name != "none"
    assert len(drawn) >= ways * (mixes + (symmetric is not None))


FREE = [
    (framework, mixing_name, negatives, weighting)
    for framework in ("simclr", "moco")
    for mixing_name in ("none", "imix", "unmix")
    for negatives in ("none", "mochi", "patch")
    for weighting in ("uniform", "hcl", "unremix")
]
SMALL = {
    "moco": dict(queue=9, group=2),
    "mochi": MoCHi(hardest=4, pairs=3, queries=2, warmup_epochs=0),
}


def composed(
    framework: str, mixing_name: str, negatives: str, weighting: str, **options: Any
) -> Framework:
    used = {
        "moco": {"moco": SMALL["moco"]} if framework == "moco" else {},
        "mochi": {"mochi": SMALL["mochi"]} if negatives == "mochi" else {},
    }
    changes: dict[Any, str | None] = {
        "framework": framework, "mixing": mixing_name, "negatives": negatives,
        "weighting": weighting,
    }  # fmt: skip
    composition = compose(
        RECIPES["simclr"], changes=changes, options={**used["moco"], **used["mochi"], **options}
    )
    assert composition.parts == changes
    return composition.make_framework(*make_parts(batch_norm=True)).double()


def assert_trains(model: Framework, steps: int = 3) -> None:
    for step in range(steps):
        loss = model(make_batch(seed=step, first=3 * step))
        found = gradients_of(loss, model)
        assert loss.isfinite()
        assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
        for name, gradient in found.items():
            assert gradient.isfinite().all()
            # The mix and the bias before BatchNorm have none, or next to none.
            assert gradient.any() or "mix" in name or name == "encoder.1.bias"
        model.after_step()


@pytest.mark.parametrize(("framework", "mixing_name", "negatives", "weighting"), FREE)
def test_every_composition_trains(
    framework: str, mixing_name: str, negatives: str, weighting: str
) -> None:
    if framework == "simclr" and negatives == "mochi":
        with pytest.raises(ValueError, match=r"queue .*got 'simclr'; use moco"):
            composed(framework, mixing_name, negatives, weighting)
        return
    assert_trains(composed(framework, mixing_name, negatives, weighting))


@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
@pytest.mark.parametrize("negatives", ["none", "patch"])
@pytest.mark.parametrize(
    "option",
    [
        dict(layout="one-way"),
        dict(scaling="zscore-exp", hardness=2.0, similarity_gradient=True),
        dict(fidelity="paper"),
        dict(fidelity="code"),
        dict(mix="adversarial", mass="none", sketch=3),
        dict(components=("uncertainty",), mix="free", posterior_temperature=0.1),
        dict(components=("representativeness", "similarity"), class_prior=0.1),
    ],
    ids=str,
)
def test_options_of_the_weights_in_every_composition(
    mixing_name: str, negatives: str, option: dict[str, Any]
) -> None:
    for framework in ("simclr", "moco"):
        if framework == "simclr" or "layout" not in option:
            assert_trains(composed(framework, mixing_name, negatives, "unremix", loss=option), 2)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [0, 3])
@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
def test_options_of_moco_in_every_composition(
    symmetric: bool, group: int, mixing_name: str
) -> None:
    option = dict(queue=5, momentum=0.5, symmetric=symmetric, group=group)
    for negatives in ("mochi", "patch"):
        model = composed("moco", mixing_name, negatives, "unremix", moco=option)
        assert isinstance(model, MoCo)
        assert (model.memory.size, model.options.momentum) == (5, 0.5)
        assert (model.options.symmetric, model.options.group) == (symmetric, group)
        assert_trains(model)


SWAV_MIXES = {
    "mixing": ["imix", "unmix"], "negatives": ["mochi", "patch"],
    "weighting": ["uniform", "hcl", "unremix"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, names in SWAV_MIXES.items() for n in names]
)
def test_swav_has_no_negatives_to_change(kind: Any, name: str) -> None:
    message = rf"with negatives for {kind}, got 'swav'.*simclr or moco"
    with pytest.raises(ValueError, match=message):
        compose(RECIPES["swav"], changes={kind: name})
    with pytest.raises(ValueError, match=message):
        compose(RECIPES["simclr"], changes={"framework": "swav", kind: name})
    assert compose(RECIPES["simclr"], changes={"framework": "swav"}).parts["weighting"] == "none"


@pytest.mark.parametrize("recipe", ["imix", "mochi", "patch", "unmix"])
def test_a_recipe_with_parts_does_not_turn_into_swav(recipe: str) -> None:
    with pytest.raises(ValueError, match=r"with negatives .*got 'swav'"):
        compose(RECIPES[recipe], changes={"framework": "swav"})
    bare: dict[Any, str | None] = {"framework": "swav", "mixing": "none", "negatives": "none"}
    assert compose(RECIPES[recipe], changes=bare).make_loss() is None


def test_unknown_parts_are_refused() -> None:
    for kind, name, near in (
        ("framework", "mocco", "moco"), ("mixing", "unmixed", "unmix"), ("weighting", "hlc", "hcl"),
        ("negatives", "patches", "patch"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"a {kind} among .*did you mean '{near}'"):
            compose(RECIPES["simclr"], changes={kind: name})  # type: ignore[dict-item]
    for kind in ("framework", "weighting"):
        with pytest.raises(ValueError, match=f"expected a {kind} among .*got 'none'"):
            compose(RECIPES["simclr"], changes={kind: "none"})  # type: ignore[dict-item]


def test_contradicting_parts_are_refused() -> None:
    for change in ({"framework": "moco"}, {"negatives": "patch"}):
        composition = compose(RECIPES["unremix-nt-xent"], changes=change)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"gradient='pseudo-label' .*got 'nt-xe"):
            composition.make_framework(*make_parts())


IMAGE_RECIPES = [
    "simclr", "debiased", "hcl", "moco", "mochi", "swav", "imix", "patch", "unmix", "unremix",
    "unremix-simclr", "unremix-moco", "unremix-u", "unremix-s", "unremix-r", "unremix-fixed",
    "unremix-nt-xent", "supcon", "supcon-hcl", "supcon-unremix",
]  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "loss": {
        "components": ("similarity",), "mix": "fixed", "scaling": "minmax", "mass": "mean",
        "hardness": 1.0, "posterior_temperature": 1.0, "gradient": "pseudo-label",
        "class_prior": 0.1, "similarity_gradient": True, "sketch": 8, "layout": "both",
        "fidelity": "sound", "decoupled": True, "false_negatives": "ring", "evidence": "bank",
        "false_negative_share": 0.2, "negative_classes": 2, "same_class": "excluded",
        "learnable_temperature": True,
    },
    "moco": {"queue": 8, "momentum": 0.9, "symmetric": False, "group": 2},
    "swav": vars(SwAVOptions(5, 3, 0.05, 0, 0, 15, 0)),
    "mixture": {"alpha": 1.0, "cutmix": 0.5},
    "mochi": vars(MoCHi(4, 4, 4, 0)),
    "patch": vars(Patches(1, 2, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("recipe", IMAGE_RECIPES)
def test_options_that_do_nothing_are_refused(recipe: str) -> None:
    """And no others: each option of each section by itself."""
    for section, kind in sections().items():
        if section in OPTIONS:
            assert set(OPTIONS[section]) == {option.name for option in fields(kind)}
    parts = RECIPES[recipe].parts
    used = {
        (section_of(part), option)
        for kind, name in parts.items()
        if name != "none"
        for part in [PARTS[kind][name]]
        for option in option_fields(part)
    }
    for section, whole in OPTIONS.items():
        for option, value in whole.items():
            assert value is not None
            given = {option: value}
            if (section, option) in used:
                chosen = compose(RECIPES[recipe], options={section: given}).options[section]
                assert chosen[option] == value
                continue
            message = rf"'{recipe}' uses .*got --{section}\.{option}"
            with pytest.raises(ValueError, match=message):
                compose(RECIPES[recipe], options={section: given})


def test_options_reach_their_parts() -> None:
    config = TrainConfig(
        recipe="unremix-simclr", framework="moco", mixing="unmix", negatives="mochi",
        temperature=0.7, loss=dict(mix=(0.1, 0.2, 0.7), mass="none"),
        moco=dict(queue=17, momentum=0.3, symmetric=True, group=5),
        mixture=dict(alpha=2.0, cutmix=0.25), mochi=MoCHi(5, 6, 7, 8),
    )  # fmt: skip
    model = config.composition().make_framework(*make_parts(), gather=True)
    assert isinstance(model, MoCo)
    assert model.memory.size == 17
    assert model.options == MoCoOptions(queue=17, momentum=0.3, symmetric=True, group=5)
    assert model.mixing == UnMix(alpha=2.0, cutmix=0.25)
    assert model.negatives == MoCHi(5, 6, 7, 8)
    assert model.loss.temperature == 0.7
    assert model.loss.gather
    assert model.loss.weighting.mass == "none"
    assert list(model.mix.values()) == pytest.approx([0.1, 0.2, 0.7])
    assert config.composed_name == "unremix-simclr+moco+unmix+mochi"


def test_recipes_are_what_their_papers_say() -> None:
    settings = {name: compose(RECIPES[name]) for name in IMAGE_RECIPES}
    parts = {name: tuple(found.parts.values()) for name, found in settings.items()}
    assert parts["simclr"] == parts["debiased"] == ("simclr", "none", "none", "uniform")
    assert parts["hcl"] == ("simclr", "none", "none", "hcl")
    assert parts["moco"] == ("moco", "none", "none", "uniform")
    assert parts["mochi"] == ("moco", "none", "mochi", "uniform")
    assert parts["swav"] == ("swav", "none", "none", "none")
    assert parts["imix"] == ("moco", "imix", "none", "uniform")
    assert parts["patch"] == ("moco", "none", "patch", "uniform")
    assert parts["unmix"] == ("simclr", "unmix", "none", "uniform")
    assert parts["unremix"] == ("simclr", "unmix", "none", "unremix")
    assert parts["unremix-simclr"] == ("simclr", "none", "none", "unremix")
    assert parts["unremix-moco"] == ("moco", "none", "none", "unremix")
    temperatures = {name: found.temperature for name, found in settings.items()}
    assert temperatures["moco"] == temperatures["swav"] == temperatures["mochi"] == 0.1
    assert temperatures["imix"] == temperatures["patch"] == 0.2
    assert temperatures["unmix"] == temperatures["unremix"] == 0.5
    model = settings["imix"].make_framework(*make_parts())
    assert isinstance(model, MoCo)
    assert (model.options.momentum, model.memory.size) == (0.999, 4096)
    model = settings["patch"].make_framework(*make_parts())
    assert isinstance(model, MoCo)
    assert (model.options.momentum, model.memory.size) == (0.99, 16384)
    assert model.negatives == Patches(factor=2.0)
    model = settings["mochi"].make_framework(*make_parts())
    assert model.negatives == MoCHi(512, 512, 64, 10)
    assert settings["debiased"].make_loss().class_prior == 0.1  # type: ignore[union-attr]


def test_a_changed_part_leaves_its_preset_behind() -> None:
    assert compose(RECIPES["imix"], changes={"framework": "simclr"}).options["moco"] == {}
    assert compose(RECIPES["unremix-u"], changes={"weighting": "hcl"}).options["loss"] == {}
    kept = compose(RECIPES["debiased"], changes={"weighting": "unremix"})
    assert kept.options["loss"] == {"class_prior": 0.1}
    told = compose(RECIPES["imix"], options={"moco": dict(momentum=0.5)})
    assert told.options["moco"] == {"momentum": 0.5}
