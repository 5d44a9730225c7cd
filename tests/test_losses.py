"""The modules: identities, every option, every preset, and bad input."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import pytest
import reference
import torch
from batches import Batch, assert_close, gradients, make_batch
from building import draw
from torch import Tensor, nn

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.adapters.weighted import weights_of
from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.losses import FORGOTTEN_AFTER

LOSSES = [InfoNCELoss, HCLLoss, UnReMixLoss]


def quiet(loss_fn: nn.Module, *views: Tensor) -> Tensor:
    """The loss, where rows of zero weights are expected."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*only zero weights.*")
        loss: Tensor = loss_fn(*views)
        return loss


def test_uniform_weights_are_nt_xent(batch: Batch) -> None:
    expected = reference.nt_xent_simclr(batch.z0, batch.z1, 0.3)
    expected_gradients = gradients(expected, batch.z0, batch.z1)
    for loss_fn in (
        InfoNCELoss(temperature=0.3),
        HCLLoss(temperature=0.3, hardness=0.0, class_prior=0.0),
        UnReMixLoss(temperature=0.3, components=()),
    ):
        actual = loss_fn(batch.z0, batch.z1)
        assert_close(actual, expected)
        for one, other in zip(
            gradients(actual, batch.z0, batch.z1), expected_gradients, strict=True
        ):
            assert_close(one, other)


@pytest.mark.parametrize("hardness", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("class_prior", [0.0, 0.1, 0.6])
def test_hcl_is_the_published_criterion(batch: Batch, hardness: float, class_prior: float) -> None:
    actual = HCLLoss(temperature=0.4, hardness=hardness, class_prior=class_prior)(
        batch.z0, batch.z1
    )
    expected = reference.hcl_criterion(
        batch.z0, batch.z1, temperature=0.4, hardness=hardness, class_prior=class_prior
    )
    assert_close(actual, expected)
    both = zip(
        gradients(actual, batch.z0, batch.z1), gradients(expected, batch.z0, batch.z1), strict=True
    )
    for one, other in both:
        assert_close(one, other)


def test_debiased_is_info_nce_with_a_class_prior(batch: Batch) -> None:
    actual = InfoNCELoss(temperature=0.4, class_prior=0.1)(batch.z0, batch.z1)
    expected = reference.hcl_criterion(
        batch.z0, batch.z1, temperature=0.4, hardness=0.0, class_prior=0.1
    )
    assert_close(actual, expected)


@pytest.mark.parametrize(
    ("layout", "scaling", "mass", "gradient"),
    list(itertools.product(
        ["both", "one-way"], ["minmax", "zscore-exp", "none"], ["mean", "none"],
        ["pseudo-label", "nt-xent"],
    )),
)  # fmt: skip
def test_unremix_equals_the_loops(
    batch: Batch, layout: str, scaling: str, mass: str, gradient: str
) -> None:
    strength = 1.7 if scaling == "zscore-exp" else None
    for similarity_gradient, class_prior in itertools.product([False, True], [0.0, 0.1]):
        loss_fn = UnReMixLoss(
            layout=layout, scaling=scaling, mass=mass, gradient=gradient, hardness=strength,
            similarity_gradient=similarity_gradient, class_prior=class_prior,
        ).double()  # fmt: skip
        assert loss_fn.mix_parameters is not None
        with torch.no_grad():
            loss_fn.mix_parameters.copy_(torch.tensor([0.3, -0.2, 0.1]))
        mix = loss_fn.mix_parameters.softmax(0)
        expected = reference.batch_loss(
            *batch.views, layout=layout, mix=mix, scaling=scaling, mass=mass, hardness=strength,
            gradient=gradient, similarity_gradient=similarity_gradient, class_prior=class_prior,
            weight=batch.weight, bias=batch.bias,
        )  # fmt: skip
        inputs = (batch.z0, batch.z1, loss_fn.mix_parameters)
        expected_gradients = gradients(expected, *inputs)
        for tile in (1, 3, 6, 100, None, "auto"):
            # ragged, single, larger than the batch, dense
            loss_fn.options = replace(loss_fn.options, tile=tile)
            actual = quiet(loss_fn, *batch.views)
            assert_close(actual, expected)
            both = zip(gradients(actual, *inputs), expected_gradients, strict=True)
            for one, other in both:
                assert_close(one, other, 1e-9)


def test_the_mix_starts_equal_and_learns(batch: Batch) -> None:
    loss_fn = UnReMixLoss()
    assert list(loss_fn.mix.values()) == pytest.approx([1 / 3] * 3)
    assert list(loss_fn.state_dict()) == ["mix_parameters"]
    optimizer = torch.optim.SGD(loss_fn.parameters(), lr=1.0)
    before = loss_fn(*batch.views)
    before.backward()
    optimizer.step()
    assert loss_fn(*batch.views) < before
    assert sum(loss_fn.mix.values()) == pytest.approx(1)
    other = UnReMixLoss()
    other.load_state_dict(loss_fn.state_dict())
    assert other.mix == loss_fn.mix
    assert "uncertainty=" in repr(loss_fn)


def test_the_adversarial_mix_climbs(batch: Batch) -> None:
    kind, opposite = UnReMixLoss(mix="learned"), UnReMixLoss(mix="adversarial")
    for loss_fn in (kind, opposite):
        loss_fn(*batch.views).backward()
    assert kind.mix_parameters is not None
    assert opposite.mix_parameters is not None
    assert kind.mix_parameters.grad is not None
    assert kind.mix_parameters.grad.abs().max() > 0
    assert_close(opposite.mix_parameters.grad, -kind.mix_parameters.grad, 1e-7)


def test_the_free_mix_is_positive_and_unbound(batch: Batch) -> None:
    loss_fn = UnReMixLoss(mix="free").double()
    assert list(loss_fn.mix.values()) == pytest.approx([1 / 3] * 3, rel=1e-6)
    assert_close(loss_fn(*batch.views), UnReMixLoss(mix="fixed").double()(*batch.views), 1e-7)
    assert loss_fn.mix_parameters is not None
    with torch.no_grad():
        loss_fn.mix_parameters.fill_(-50.0)
    assert all(share >= 0 for share in loss_fn.mix.values())
    assert sum(loss_fn.mix.values()) < 0.1
    with pytest.warns(UserWarning, match="shrinking all weights"):
        UnReMixLoss(mix="free", mass="none")


def test_fixed_and_given_mixes_have_no_parameters(batch: Batch) -> None:
    fixed = UnReMixLoss(mix="fixed")
    given = UnReMixLoss(mix=(1 / 3, 1 / 3, 1 / 3))
    assert not list(fixed.parameters())
    assert not list(given.parameters())
    assert not fixed.state_dict()
    assert_close(fixed(*batch.views), given(*batch.views), 1e-7)
    # λ reaches the components in the order they are named in.
    only = UnReMixLoss(mix=(0.0, 1.0, 0.0))(*batch.views)
    assert_close(only, UnReMixLoss(components=["similarity"], mix="fixed")(*batch.views))


CHANGES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.2},
    "components": {"components": ("similarity",)},
    "mix": {"mix": (0.7, 0.2, 0.1)},
    "scaling": {"scaling": "zscore-exp"},
    "mass": {"mass": "none"},
    "hardness": {"scaling": "zscore-exp", "hardness": 3.0},
    "posterior_temperature": {"posterior_temperature": 0.1},
    "gradient": {"gradient": "nt-xent"},
    "layout": {"layout": "one-way"},
    "class_prior": {"class_prior": 0.1},
    "decoupled": {"decoupled": True},
    "symmetric": {"layout": "symmetric"},
    "bias": {"bias": False},
    "sketch": {"sketch": 2},
    "fidelity paper": {"fidelity": "paper"},
    "fidelity code": {"fidelity": "code"},
}


@pytest.mark.parametrize("option", CHANGES)
def test_every_option_changes_the_loss(batch: Batch, option: str) -> None:
    plain = UnReMixLoss()(*batch.views)
    assert (quiet(UnReMixLoss(**CHANGES[option]), *batch.views) - plain).abs() > 1e-6


def test_hardness_changes_the_exponential_weights(batch: Batch) -> None:
    one, default, three = (
        UnReMixLoss(scaling="zscore-exp", hardness=hardness)(*batch.views)
        for hardness in (1.0, None, 3.0)
    )
    assert_close(one, default)
    assert (three - one).abs() > 1e-4
    soft = UnReMixLoss(scaling="zscore-exp", hardness=0.0)(*batch.views)
    assert_close(soft, InfoNCELoss()(*batch.views))


def test_similarity_gradient_changes_the_gradient_only(batch: Batch) -> None:
    for make in (UnReMixLoss, HCLLoss):
        with_flow, without = (
            make(similarity_gradient=flow)(*batch.views) for flow in (True, False)
        )
        assert_close(with_flow, without)
        difference = gradients(with_flow, batch.z0)[0] - gradients(without, batch.z0)[0]
        assert difference.abs().max() > 1e-4
    # As published, HCL lets it flow, and UnReMix does not.
    for make, flows in ((UnReMixLoss, False), (HCLLoss, True)):
        default, told = make(), make(similarity_gradient=flows)
        pair = [gradients(loss_fn(*batch.views), batch.z0)[0] for loss_fn in (default, told)]
        assert torch.equal(*pair)


@pytest.mark.parametrize(
    ("fidelity", "options"),
    [
        ("sound", {"layout": "both", "scaling": "minmax", "mass": "mean",
                   "similarity_gradient": False, "class_prior": 0.0}),
        ("paper", {"layout": "one-way", "scaling": "none", "mass": "none",
                   "similarity_gradient": False, "class_prior": 0.0}),
        ("code", {"layout": "both", "scaling": "none", "mass": "mean",
                  "similarity_gradient": True, "class_prior": 0.1}),
    ],
)  # fmt: skip
def test_presets_are_what_the_table_says(
    batch: Batch, fidelity: str, options: dict[str, Any]
) -> None:
    preset, spelled = UnReMixLoss(fidelity=fidelity), UnReMixLoss(**options)
    losses = [quiet(loss_fn, *batch.views) for loss_fn in (preset, spelled)]
    assert torch.equal(*losses)
    pair = [gradients(loss, batch.z0)[0] for loss in losses]
    assert torch.equal(*pair)
    for name, value in options.items():  # an explicit option wins
        others = {"layout": "both", "scaling": "zscore-exp", "mass": "mean",
                  "similarity_gradient": True, "class_prior": 0.2}  # fmt: skip
        if others[name] == value:
            continue
        override = {name: others[name]}
        changed = quiet(UnReMixLoss(fidelity=fidelity, **override), *batch.views)
        same = quiet(UnReMixLoss(**{**options, **override}), *batch.views)
        assert torch.equal(changed, same)


def test_hcl_fidelity_decides_about_the_exponent(batch: Batch) -> None:
    paper = HCLLoss(temperature=0.4, hardness=1.0, fidelity="paper")(batch.z0, batch.z1)
    same = HCLLoss(temperature=0.4, hardness=0.4)(batch.z0, batch.z1)
    assert_close(paper, same)
    assert torch.equal(HCLLoss(fidelity="code")(batch.z0, batch.z1), HCLLoss()(batch.z0, batch.z1))
    one_way = HCLLoss(layout="one-way")(batch.z0, batch.z1)
    assert (one_way - HCLLoss()(batch.z0, batch.z1)).abs() > 1e-4


@pytest.mark.parametrize("make", LOSSES)
def test_permuting_the_batch_changes_nothing(batch: Batch, make: type[nn.Module]) -> None:
    order = torch.tensor([2, 0, 3, 1])
    assert_close(make()(*(view[order] for view in batch.views)), make()(*batch.views))


@pytest.mark.parametrize("make", LOSSES)
def test_twice_in_one_graph(batch: Batch, make: type[nn.Module]) -> None:
    loss_fn = make()
    once = gradients(loss_fn(*batch.views), batch.z0)[0]
    twice = gradients(loss_fn(*batch.views) + 3 * loss_fn(*batch.views), batch.z0)[0]
    assert_close(twice, 4 * once)
    loss = loss_fn(*batch.views)
    first = torch.autograd.grad(loss, batch.z0, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, batch.z0)[0])


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_second_derivatives(batch: Batch, make: type[nn.Module], layout: str) -> None:
    """With create_graph=True the definition is differentiated, which gradgradcheck confirms."""
    loss_fn = make(layout=layout).double()
    loss = loss_fn(*batch.views)
    (first,) = torch.autograd.grad(loss, batch.z0, create_graph=True)
    assert_close(first, gradients(loss_fn(*batch.views), batch.z0)[0])
    (second,) = torch.autograd.grad(first.square().sum(), batch.z0)
    assert second.abs().max() > 1e-3
    if make is not UnReMixLoss:  # whose weights are constants, so that differences see more
        z0 = batch.z0.detach().requires_grad_()
        assert torch.autograd.gradgradcheck(lambda z: loss_fn(z, batch.z1.detach()), z0)


@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_decoupled_leaves_the_positive_out_of_the_denominator(batch: Batch, layout: str) -> None:
    """Against lightly's definition, written out: log Σ_j e^{s_ij/τ} - s_ip/τ."""
    tau, n = 0.3, batch.z0.shape[0]
    z = torch.cat([batch.z0, batch.z1]) if layout == "both" else batch.z0
    others = z if layout == "both" else batch.z1
    masks = reference.masks_both(n) if layout == "both" else reference.masks_one_way(n)
    logits = reference.similarity(z, others) / tau
    losses = []
    for i in range(len(z)):
        negatives = torch.stack([logits[i, j] for j in reference.members(masks[1], i)])
        losses.append(negatives.logsumexp(0) - logits[i, reference.members(masks[0], i)[0]])
    expected = torch.stack(losses).mean()
    actual = InfoNCELoss(temperature=tau, layout=layout, decoupled=True)(batch.z0, batch.z1)
    assert_close(actual, expected)
    for one, other in zip(
        gradients(actual, batch.z0, batch.z1), gradients(expected, batch.z0, batch.z1), strict=True
    ):
        assert_close(one, other)


@pytest.mark.parametrize("make", LOSSES)
def test_decoupled_and_coupled_agree_by_their_identity(batch: Batch, make: Any) -> None:
    """-log(p/(p + G)) = softplus(log G - log p), anchor by anchor."""
    for row in range(batch.z0.shape[0]):
        order = torch.arange(batch.z0.shape[0]).roll(-row)
        views = [view[order] for view in batch.views]
        pairs = Pairs.from_masks(*(mask[:1] for mask in reference.masks_one_way(len(order))))
        anchors, candidates = Views(views[0][:1], views[2][:1]), Views(views[1], views[3])
        coupled, decoupled = (
            make(decoupled=flag, class_prior=0.0).double().against(anchors, candidates, pairs)
            for flag in (False, True)
        )
        assert_close(coupled, nn.functional.softplus(decoupled))


def test_symmetric_is_the_loss_of_clip(batch: Batch) -> None:
    scale = 1 / 0.07
    f0, f1 = (nn.functional.normalize(z, dim=1) for z in (batch.z0, batch.z1))
    logits, target = scale * f0 @ f1.T, torch.arange(4)
    cross_entropy = nn.functional.cross_entropy
    expected = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
    (expected_gradient,) = gradients(expected, batch.z1)
    for loss_fn in (
        InfoNCELoss(temperature=0.07, layout="symmetric"),
        UnReMixLoss(temperature=0.07, layout="symmetric", components=()),
    ):
        actual = loss_fn(batch.z0, batch.z1)
        assert_close(actual, expected)
        assert_close(gradients(actual, batch.z1)[0], expected_gradient)
    unremix_both = UnReMixLoss(layout="symmetric").double()
    there, back = UnReMixLoss(layout="one-way").double(), UnReMixLoss(layout="one-way").double()
    z0, z1, h0, h1 = batch.views
    assert_close(unremix_both(z0, z1, h0, h1), (there(z0, z1, h0, h1) + back(z1, z0, h1, h0)) / 2)
    with pytest.raises(ValueError, match="layout 'both' or 'one-way'"):
        unremix_both.importance(*batch.views)


@pytest.mark.parametrize("make", LOSSES)
def test_the_temperature_can_be_learned(batch: Batch, make: Any) -> None:
    learned = make(temperature=0.4, learnable_temperature=True).double()
    with torch.no_grad():
        learned.logit_scale.fill_(math.log(1 / 0.4))
    actual = learned(*batch.views)
    assert_close(actual, make(temperature=0.4).double()(*batch.views))
    (gradient,) = torch.autograd.grad(actual, learned.logit_scale)
    step = 1e-6
    up, down = (
        make(temperature=0.4 * math.exp(-each)).double()(*batch.views) for each in (step, -step)
    )
    assert_close(gradient, (up - down) / (2 * step), 1e-7)
    with torch.no_grad():
        learned.logit_scale.fill_(50.0)
    bounded = learned.current_temperature()
    assert bounded.item() == pytest.approx(0.01)  # clamped, as in CLIP
    assert learned.logit_scale.item() == pytest.approx(math.log(100))  # the parameter itself
    assert gradients(bounded, learned.logit_scale)[0] < 0  # and free to return
    tau = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    called = make(temperature=7.0).double()(*batch.views, temperature=tau)
    assert_close(called, actual)
    assert_close(gradients(called, tau)[0], -gradient / 0.4)


def test_a_temperature_that_is_none_is_refused(batch: Batch) -> None:
    loss_fn = InfoNCELoss()
    for value in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="temperature to be a number above 0"):
            loss_fn(batch.z0, batch.z1, temperature=torch.tensor(value))
    with pytest.raises(ValueError, match=r"one number, got .*\(3,\)"):
        loss_fn(batch.z0, batch.z1, temperature=torch.ones(3))


@pytest.mark.parametrize("make", LOSSES)
def test_one_pair_gives_a_loss_of_zero_and_one_warning(make: Any) -> None:
    z0, z1 = torch.randn(2, 1, 4).unbind()
    z0.requires_grad_()
    tau = torch.tensor(0.4, requires_grad=True)
    loss_fn = make()
    with pytest.warns(UserWarning, match="one pair has no negatives"):
        loss = loss_fn(z0, z1, temperature=tau)
    assert loss == 0
    loss.backward()
    assert tau.grad == 0
    assert torch.equal(z0.grad, torch.zeros(1, 4))
    assert all(torch.equal(each.grad, torch.zeros_like(each)) for each in loss_fn.parameters())
    assert loss_fn(z0, z1) == 0  # no further warning: warnings are errors here


@pytest.mark.filterwarnings("ignore:a batch of one pair")
@pytest.mark.parametrize("make", LOSSES)
def test_one_pair_is_checked_as_any_other_batch(make: Any) -> None:
    z, wide = torch.randn(1, 4), torch.randn(2, 4)
    h = torch.randn(1, 3)
    for value in (torch.nan, torch.inf):
        broken = z.clone()
        broken[0, 1] = value
        with pytest.raises(ValueError, match="finite z1, got NaN or infinity in 1 of 1"):
            make()(z, broken)
        with pytest.raises(ValueError, match="finite h0, got NaN or infinity in 1 of 1"):
            make()(z, z, h * value, h)
    for temperature in (0.0, -1.0, torch.tensor(0.0), torch.tensor(torch.nan)):
        with pytest.raises(ValueError, match="temperature to be a number above 0"):
            make()(z, z, temperature=temperature)
    for arguments in ({"h0": h}, {"ids": torch.zeros(2)}, {"labels": torch.tensor([-2])}):
        with pytest.raises(ValueError, match="expected"):
            make()(z, z, **arguments)
    with pytest.raises(ValueError, match="one shape"):
        make()(z, wide)


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.complex64])
def test_ids_are_whole_numbers(make: Any, batch: Batch, kind: torch.dtype) -> None:
    """Cut to whole numbers, .1, .2 and .3 would be one sample, which has no negatives."""
    ids = (torch.arange(len(batch.z0)) / 10).to(kind)
    with pytest.raises(ValueError, match="expected ids to be integers, got"):
        make().double()(batch.z0, batch.z1, ids=ids)


def test_ids_keep_one_sample_from_being_its_own_negative(batch: Batch) -> None:
    twice = [torch.cat([view, view[:1]]) for view in batch.views]
    ids = torch.tensor([5, 1, 2, 3, 5])
    for make in LOSSES:
        loss_fn = make().double()
        found = loss_fn.importance(*twice, ids=ids)
        assert not found.negatives[0, 4]
        assert not found.weights[0, 4]
        assert loss_fn(*twice, ids=ids) < loss_fn(*twice)
    with pytest.raises(ValueError, match=r"ids of shape \(4,\), .* got \(5,\)"):
        InfoNCELoss()(*batch.views, ids=ids)


def test_param_groups_spare_the_mix_from_decay() -> None:
    loss_fn = UnReMixLoss(learnable_temperature=True)
    (group,) = loss_fn.param_groups(lr=0.2)
    assert {id(each) for each in group["params"]} == {id(each) for each in loss_fn.parameters()}
    assert (group["lr"], group["weight_decay"]) == (0.2, 0.0)


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(make: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    z0, z1, h0, h1 = (torch.randn(8, 16).to(dtype).requires_grad_() for _ in range(4))
    loss_fn = make(temperature=0.05)
    with torch.autocast("cpu", dtype=dtype):
        loss = loss_fn(z0, z1, h0, h1)
    assert loss.dtype == torch.float32
    assert_close(loss, loss_fn(*(view.float() for view in (z0, z1, h0, h1))), 1e-6)
    loss.backward()
    assert z0.grad is not None
    assert z0.grad.dtype == dtype
    assert z0.grad.isfinite().all()
    assert h0.grad is None


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("kind", ["two", "equal", "zero", "duplicates"])
@pytest.mark.parametrize("temperature", [0.01, 0.5])
def test_degenerate_batches_are_finite(
    make: type[nn.Module], kind: str, temperature: float
) -> None:
    batch = make_batch(2 if kind == "two" else 5)
    views = [view.detach().float() for view in batch.views]
    if kind == "equal":
        views = [view[:1].repeat(5, 1) for view in views]
        views[1] = views[0].clone()
    elif kind == "zero":
        views[0][:3] = 0
    elif kind == "duplicates":
        views[0][1] = views[0][0]
        views[1] = views[0].clone()
    z0 = views[0].requires_grad_()
    loss = make(temperature=temperature)(*views)
    loss.backward()
    assert loss.isfinite()
    assert z0.grad is not None
    assert z0.grad.isfinite().all()


def test_equal_embeddings_weigh_alike() -> None:
    """No score tells equal embeddings apart, so UnReMix is plain InfoNCE: log(2N - 1)."""
    z = torch.randn(1, 64).repeat(16, 1)
    found = unremix.importance(z, z, z, z)
    assert_close(found.weights, found.negatives.float(), 1e-5)
    assert_close(UnReMixLoss()(z, z, z, z), torch.tensor(31.0).log(), 1e-5)


def test_importance_is_what_the_loss_uses(batch: Batch) -> None:
    loss_fn = UnReMixLoss(temperature=0.3, class_prior=0.1).double()
    assert loss_fn.mix_parameters is not None
    with torch.no_grad():
        loss_fn.mix_parameters.copy_(torch.tensor([1.0, 0.0, -1.0]))
    found = loss_fn.importance(*batch.views)
    assert not found.weights.requires_grad
    z = torch.cat([batch.z0, batch.z1])
    expected = reference.info_nce(
        reference.similarity(z, z) / 0.3, found.positives, found.negatives, found.weights,
        class_prior=0.1, temperature=0.3,
    )  # fmt: skip
    assert_close(loss_fn(*batch.views), expected)
    # HCL and plain InfoNCE show their weights as well.
    assert_close(InfoNCELoss().importance(*batch.views).weights, found.negatives.double())
    hcl = HCLLoss(temperature=0.3, hardness=2.0).importance(*batch.views).weights
    sim = reference.similarity(z, z)
    assert_close(hcl, reference.hcl_weights(sim, found.negatives, hardness=2.0, temperature=0.3))


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_inference_mode(make: type[nn.Module], layout: str) -> None:
    batch = make_batch(7)  # a size no other test uses: what is cached is first made in this mode
    loss_fn = make(layout=layout, class_prior=0.1)
    with torch.inference_mode():
        inside = loss_fn(*batch.views)
    outside = loss_fn(*batch.views)
    assert_close(inside, outside.detach())
    assert gradients(outside, batch.z0)[0].isfinite().all()


def test_sketch_at_full_size_changes_nothing(batch: Batch) -> None:
    assert torch.equal(UnReMixLoss(sketch=6)(*batch.views), UnReMixLoss()(*batch.views))


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0}, "temperature to be a number above 0"),
    ({"temperature": -1.0}, "got -1.0"),
    ({"temperature": float("nan")}, "got nan"),
    ({"temperature": "warm"}, "got 'warm'"),
    ({"scaling": "min-max"}, "did you mean 'minmax'"),
    ({"mass": "sum"}, "mass to be one of mean, none, got 'sum'"),
    ({"mix": "learnt"}, "did you mean 'learned'"),
    ({"mix": (1.0, 2.0)}, "3 numbers"),
    ({"mix": (0.0, 0.0, 0.0)}, "not all 0"),
    ({"mix": (1.0, -1.0, 1.0)}, "at least 0"),
    ({"gradient": "ntxent"}, "did you mean 'nt-xent'"),
    ({"layout": "oneway"}, "did you mean 'one-way'"),
    ({"fidelity": "papers"}, "did you mean 'paper'"),
    ({"components": ("similarty",)}, "did you mean 'similarity'"),
    ({"components": "similarity"}, "sequence of names"),
    ({"components": ("similarity", "similarity")}, "each component once"),
    ({"components": (3,)}, "names or functions, got int"),
    ({"hardness": 2.0}, "only with scaling='zscore-exp'"),
    ({"hardness": -1.0, "scaling": "zscore-exp"}, "hardness to be a number at least 0"),
    ({"posterior_temperature": 0.0}, "posterior_temperature"),
    ({"class_prior": 1.0}, "below 1"),
    ({"class_prior": -0.1}, "at least 0"),
    ({"tile": 0}, "tile to be 'auto', None or a number"),
    ({"tile": "big"}, "got 'big'"),
    ({"sketch": 0}, "sketch"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options_say_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnReMixLoss(**options)


@pytest.mark.parametrize("make", LOSSES)
def test_bad_input_says_what_was_expected(make: type[nn.Module]) -> None:
    loss_fn, z = make(), torch.randn(4, 3)

    def refused(message: str, *views: Tensor | None) -> None:
        with pytest.raises(ValueError, match=message):
            loss_fn(*views)

    refused(r"\(4, 3\) and \(3, 3\)", z, z[:3])
    refused(r"\(4, 3\) and \(4, 2\)", z, z[:, :2])
    refused(r"\(4, 3, 1\)", z[..., None], z[..., None])
    refused(r"at least one row .* \(0, 3\)", z[:0], z[:0])
    refused("float32 and torch.float64", z, z.double())
    refused("int64", z.long(), z.long())
    broken = z.clone()
    broken[1, 2] = float("nan")
    refused("finite z0, got NaN or infinity in 1 of 4 rows", broken, z)
    broken[3, 0] = float("inf")
    refused("finite z1, .* 2 of 4 rows", z, broken)
    refused("h0 and h1 together, got only h0", z, z, z)
    refused("h0 and h1 together, got only h1", z, z, None, z)
    refused("one row per embedding, 4, got 3", z, z, z[:3], z[:3])
    refused("finite h0", z, z, broken, z)


@pytest.mark.parametrize("name", ["z0", "z1", "h0", "h1"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "options",
    [
        *({"scaling": each} for each in ("minmax", "zscore-exp", "none")),
        *({"fidelity": each} for each in ("paper", "code")),
        {"mass": "none"},
        {"layout": "one-way"},
        {"gradient": "nt-xent"},
        {"class_prior": 0.1},
        {"temperature": 0.01},
        {"posterior_temperature": 0.01},
        {"components": ("uncertainty",)},
        {"mix": (0.0, 0.5, 0.5)},
        {"sketch": 2},
    ],
    ids=str,
)
def test_whatever_is_not_finite_is_named(options: dict[str, Any], value: float, name: str) -> None:
    torch.manual_seed(0)
    views = {each: torch.randn(5, 3) for each in ("z0", "z1", "h0", "h1")}
    views[name][3, 1] = value
    with pytest.raises(ValueError, match=f"finite {name}, .* 1 of 5 rows"):
        UnReMixLoss(**options)(**views)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        UnReMixLoss(temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="temprature"):
        unremix.importance(torch.eye(3), torch.eye(3), temprature=0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize("tile", [None, 3])
def test_a_transform_of_torch_func_gives_the_gradients(tile: int | None) -> None:
    loss_fn = UnReMixLoss(tile=tile).double()
    z0, z1 = draw(2, 6, 4)
    mix = {"mix_parameters": torch.zeros(3, dtype=torch.float64)}

    def call(parameters: dict[str, Tensor], first: Tensor) -> Tensor:
        loss: Tensor = torch.func.functional_call(loss_fn, parameters, (first, z1))
        return loss

    found, of_views = torch.func.grad(call, argnums=(0, 1))(mix, z0)
    leaves = [each.clone().requires_grad_() for each in (mix["mix_parameters"], z0)]
    expected = torch.autograd.grad(call({"mix_parameters": leaves[0]}, leaves[1]), leaves)
    torch.testing.assert_close(found["mix_parameters"], expected[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(of_views, expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gather", ["True", "False", "all", 1])
def test_gather_is_a_bool_or_equal(gather: Any) -> None:
    with pytest.raises(ValueError, match=r"gather .*'equal', got"):
        InfoNCELoss(gather=gather)


def test_constructors_show_the_names_and_defaults_of_their_options() -> None:
    shown = signature(UnReMixLoss).parameters
    assert [its.kind for its in shown.values()] == [Parameter.KEYWORD_ONLY] * len(shown)
    assert (shown["temperature"].default, shown["mix"].default) == (0.5, "learned")
    assert signature(HCLLoss).parameters["class_prior"].default == 0.1
    with pytest.raises(TypeError, match=r"among temperature, .*, got tiles; leave"):
        InfoNCELoss(tiles=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        InfoNCELoss(0.5)  # type: ignore[misc]


def test_embeddings_without_gradient_have_no_backward_pass() -> None:
    """As for a loss without parameters, where torch says so; the value can be read."""
    loss_fn = UnReMixLoss()
    with torch.no_grad():
        z0, z1 = torch.randn(2, 6, 4)
    loss = loss_fn(z0, z1)
    assert loss.isfinite()
    with pytest.raises(ValueError, match="expected embeddings with gradient, got none"):
        loss.backward()
    views = Views(z0)
    with pytest.raises(ValueError, match="expected embeddings with gradient, got none"):
        loss_fn.against(views, Views(z1), Pairs.one_way(6)).backward()
    loss_fn(z0.requires_grad_(), z1).backward()  # the mix alone, on purpose
    assert loss_fn.mix_parameters is not None
    assert loss_fn.mix_parameters.grad is not None


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_mix_that_no_optimizer_moves_is_noticed(forgotten: bool) -> None:
    loss_fn, encoder = UnReMixLoss(), torch.nn.Linear(3, 4)
    groups = [{"params": encoder.parameters()}, *(loss_fn.param_groups(0.1) * (not forgotten))]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(FORGOTTEN_AFTER + 5):
            optimizer.zero_grad()
            loss_fn(encoder(torch.randn(4, 3)), encoder(torch.randn(4, 3))).backward()
            optimizer.step()
    said = [str(each.message) for each in caught if "has not moved" in str(each.message)]
    assert len(said) == forgotten


def test_importance_shows_the_weights_of_the_loss_where_negatives_are_not_mutual() -> None:
    loss_fn = UnReMixLoss(mix="fixed")
    views = Views(torch.randn(16, 8), torch.randn(16, 6))
    excluded = torch.arange(16)[None] % 4 == 0
    pairs = replace(Pairs.both_views(8), excluded=excluded, non_negatives=None)

    shown = loss_fn.importance_against(views, views, pairs).weights
    used, _ = weights_of(loss_fn, loss_fn.compare(views, views, pairs))

    assert torch.equal(shown, used)


def test_anchors_and_candidates_are_views() -> None:
    z, pairs = torch.randn(4, 3), Pairs.one_way(4)
    for call in (InfoNCELoss().against, UnReMixLoss().importance_against):
        with pytest.raises(
            ValueError, match=r"expected unremix.core.views.Views, got Tensor; pass"
        ):
            call(z, Views(z), pairs)  # type: ignore[arg-type]
