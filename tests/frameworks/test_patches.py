"""Patches of the anchor's own image as negatives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reference
import torch
from building import (
    LOOPS,
    MAKERS,
    assert_gradients,
    draw,
    fill,
    forward,
    make_batch,
    make_model,
    queries_and_keys,
    queue_loss,
)
from torch import Tensor

from unremix.core.views import ExtraNegatives
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import IMix, UnMix, patch_negatives
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import Patches
from unremix.frameworks.randomness import NEGATIVES, NEGATIVES_OF_MIXED, PER_VIEW
from unremix.frameworks.randomness import keys as random_keys
from unremix.frameworks.simclr import SimCLR


class TestPatches:
    def perturbed(self, batch: Batch, row: int) -> Batch:
        views = tuple(view.clone() for view in batch.views)
        views[0][row] += 1.0
        return Batch(views, batch.samples, batch.keys, batch.batch_key, batch.epoch)

    @pytest.mark.parametrize("name", MAKERS)
    def test_a_patch_touches_its_own_anchor_alone(self, name: str) -> None:
        """Another image, the same query: only that anchor's gradient and loss change."""
        model = make_model(loss=MAKERS[name](), negatives=Patches(2, 3), queue=6)
        fill(model, 6)
        batch = make_batch()
        other = self.perturbed(batch, 2)
        z, h = model.embed(batch.views[0])
        z = z.detach().requires_grad_()
        found = []
        for each in (batch, other):
            loss = model.objective([(z, h)], each)
            found.append((loss.detach(), torch.autograd.grad(loss, z)[0]))
        (before, gradient), (after, changed) = found
        assert abs(float(after - before)) > 1e-8
        moved = (gradient - changed).abs().amax(1) > 1e-12
        assert moved.tolist() == [False, False, True, False]

    @pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("name", MAKERS)
    def test_moco_equals_the_loops(self, name: str, factor: float) -> None:
        model = make_model(loss=MAKERS[name](), negatives=Patches(2, 3, factor), queue=6)
        fill(model, 6, first=2)
        batch = make_batch()
        patches = patch_negatives(batch.views[0], batch.keys + NEGATIVES, smallest=2, largest=3)
        with torch.no_grad():
            zp, hp = forward(model.key_encoder, model.key_head, patches)
        own = ExtraNegatives(zp[:, None], hp[:, None], logit_factor=factor)
        expected = queue_loss(
            model, batch, *queries_and_keys(model, batch), extra=own, **LOOPS[name]
        )
        assert_gradients(model(batch), expected, model)

    @pytest.mark.parametrize("layout", ["both", "one-way"])
    @pytest.mark.parametrize("name", MAKERS)
    def test_simclr_equals_the_loops(self, name: str, layout: str) -> None:
        model = make_model(SimCLR, MAKERS[name](layout=layout), negatives=Patches(2, 3))
        batch = make_batch()
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        both = layout == "both"
        zo, ho = [], []
        for view in range(2 if both else 1):
            patches = patch_negatives(
                batch.views[view], batch.keys + PER_VIEW * view + NEGATIVES, smallest=2, largest=3
            )
            z, h = forward(model.encoder, model.head, patches)
            zo.append(z.detach()[:, None])
            ho.append(h.detach()[:, None])
        positives, negatives = reference.masks_both(4) if both else reference.masks_one_way(4)
        za, zc = (torch.cat([z0, z1]),) * 2 if both else (z0, z1)
        ha, hc = (torch.cat([h0, h1]).detach(),) * 2 if both else (h0.detach(), h1.detach())
        expected = reference.own_loss(
            za, zc, torch.cat(zo), ha, hc, torch.cat(ho), positives, negatives, logit_factor=2.0,
            every_view_is_both=both, **{"temperature": 0.3, **LOOPS[name]},
        )  # fmt: skip
        assert_gradients(model(batch), expected, model)

    def patches_of(self, images: Tensor, keys: Tensor, *modules: Any) -> ExtraNegatives:
        tiled = patch_negatives(images, keys, smallest=2, largest=3)
        with torch.no_grad():
            z, h = forward(*modules, tiled)
        return ExtraNegatives(z[:, None], h[:, None], logit_factor=2.0)

    @pytest.mark.parametrize("name", MAKERS)
    def test_mixed_images_are_cut_from_themselves(self, name: str) -> None:
        """Un-Mix on MoCo and i-Mix on SimCLR: each loss has the patches of what it shows."""
        batch = make_batch()
        model = make_model(MoCo, MAKERS[name](), mixing=UnMix(), negatives=Patches(2, 3), queue=6)
        fill(model, 6, first=2)
        z, h, zk, hk = queries_and_keys(model, batch)
        keys = batch.keys + NEGATIVES
        own = self.patches_of(batch.views[0], keys, model.key_encoder, model.key_head)
        expected = queue_loss(model, batch, z, h, zk, hk, extra=own, **LOOPS[name])
        mixed = UnMix()(batch.views[0], batch.keys, batch.batch_key)
        z, h = forward(model.encoder, model.head, mixed.images)
        keys = batch.keys + NEGATIVES_OF_MIXED
        own = self.patches_of(mixed.images, keys, model.key_encoder, model.key_head)
        for target in mixed.targets:
            aims = [{int(key): 1.0} for key in target.keys[:, 0]]
            expected = expected + target.weight * queue_loss(
                model, batch, z, h, zk, hk, extra=own, aims=aims, **LOOPS[name]
            )
        assert_gradients(model(batch), expected, model)

        model = make_model(SimCLR, MAKERS[name](), mixing=IMix(), negatives=Patches(2, 3))
        mixed = IMix()(batch.views[0], batch.keys, batch.batch_key)
        z, h = forward(model.encoder, model.head, mixed.images)
        z1, h1 = forward(model.encoder, model.head, batch.views[1])
        own = self.patches_of(mixed.images, keys, model.encoder, model.head)
        (target,) = mixed.targets
        positives, negatives, shares = reference.masks_towards(target.keys, target.shares)
        expected = reference.own_loss(
            z, z1, own.embeddings, h.detach(), h1.detach(), own.inputs, positives, negatives,
            shares=shares, positives_in_denominator=True, logit_factor=2.0, temperature=0.3,
            **LOOPS[name],
        )  # fmt: skip
        assert_gradients(model(batch), expected, model)

    def test_sizes_follow_the_image(self) -> None:
        seen = []
        model = make_model(negatives=Patches())
        model.embed_keys = lambda images, keys: (  # type: ignore[method-assign]
            seen.append(images), (images.flatten(1)[:, :5], images.flatten(1)[:, :7])
        )[1]  # fmt: skip
        n = 64
        images = torch.arange(n * 36.0).view(n, 1, 6, 6).double()
        keys = random_keys(0, 0, torch.arange(n), 1)
        samples = torch.arange(n)[:, None]
        own = Patches()(model, (draw(n, 5), draw(n, 7)), images, samples, keys, 0)
        assert own.embeddings.shape == (n, 1, 5)
        assert own.inputs is None
        assert own.logit_factor == 2.0
        sides = []
        for i, image in enumerate(seen[0]):
            assert image.min() >= 36 * i  # of its own image
            assert image.max() < 36 * (i + 1)
            # Nine tiles of side 2, each four neighbors of the image, or single pixels.
            corners = image[:, ::2, ::2].repeat_interleave(2, 1).repeat_interleave(2, 2)
            within = image - corners == torch.tensor([[0, 1], [6, 7]]).repeat(3, 3)
            sides.append(2 if within.all() else 1)
            assert len(corners.unique()) > 1  # tiles differ
        assert 16 <= sides.count(2) <= 48  # 6 // 16 → 1 to 6 // 3 = 2, equally often

    def test_the_same_keys_give_the_same_patches(self) -> None:
        model, batch = make_model(negatives=Patches(2, 3)), make_batch()
        samples = batch.samples[:, None]
        first, again, other = (
            Patches(2, 3)(model, model.embed(batch.views[0]), batch.views[0], samples, keys, 0)
            for keys in (batch.keys, batch.keys, batch.keys + PER_VIEW)
        )
        assert torch.equal(first.embeddings, again.embeddings)
        assert not torch.isclose(first.embeddings, other.embeddings).any()

    def test_bad_options(self) -> None:
        for factor in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match="factor to be above 0"):
                Patches(factor=factor)
        model = make_model(negatives=Patches(3, 9))
        with pytest.raises(ValueError, match=r"largest <= 6, the images' side"):
            model(make_batch())
