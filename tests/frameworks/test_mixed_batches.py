"""i-Mix and Un-Mix in the frameworks, against plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
from batches import assert_close
from building import (
    LOOPS,
    MAKERS,
    assert_gradients,
    fill,
    forward,
    gradients_of,
    make_batch,
    make_model,
    queries_and_keys,
    queue_loss,
)
from torch import Tensor

from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.frameworks import mixing
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.simclr import SimCLR


def one_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mixing, "beta", lambda numbers, *, alpha: torch.ones(numbers.shape[:-1]).double()
    )


@pytest.mark.parametrize("name", MAKERS)
class TestMixing:
    def test_i_mix_of_one_image_is_one_way(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one_always(monkeypatch)
        batch = make_batch()
        model = make_model(SimCLR, MAKERS[name](), mixing=IMix())
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        expected = MAKERS[name](layout="one-way").double()(z0, z1, h0, h1)
        assert_gradients(model(batch), expected, model)
        moco = make_model(MoCo, MAKERS[name](), mixing=IMix(), queue=5)
        fill(moco, 5, first=2)
        expected = moco.loss.against(
            *(Views(torch.cat(zs), torch.cat(hs) if name == "unremix" else None)
              for zs, hs in self.queued(moco, batch)),
            Pairs.queue(batch.samples, moco.memory.samples, batch_negatives=True),
        )  # fmt: skip
        assert_gradients(moco(batch), expected, moco)

    def queued(self, model: MoCo, batch: Batch) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        z, h, zk, hk = queries_and_keys(model, batch)
        old = model.memory.views
        yield [z], [h]
        yield [zk, old.embeddings], [hk] if old.inputs is None else [hk, old.inputs]

    @pytest.mark.parametrize("cutmix", [0.0, 1.0])
    def test_un_mix_of_one_image_adds_its_base(
        self, name: str, cutmix: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        one_always(monkeypatch)
        batch = make_batch()
        model = make_model(SimCLR, MAKERS[name](), mixing=UnMix(cutmix=cutmix))
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        expected = MAKERS[name]().double()(z0, z1, h0, h1)
        expected = expected + MAKERS[name](layout="one-way").double()(z0, z1, h0, h1)
        assert_gradients(model(batch), expected, model)
        plain, moco = (make_model(MoCo, MAKERS[name](), mixing=m, queue=5)
                       for m in (None, UnMix(cutmix=cutmix)))  # fmt: skip
        for each in (plain, moco):
            fill(each, 5, first=2)
        assert_close(moco(batch), 2 * plain(batch), 1e-14)

    @pytest.mark.parametrize("framework", [SimCLR, MoCo])
    def test_i_mix_equals_the_loops(self, name: str, framework: type[SimCLR | MoCo]) -> None:
        batch = make_batch(5)
        model = make_model(framework, MAKERS[name](), mixing=IMix())
        mixed = IMix()(batch.views[0], batch.keys, batch.batch_key)
        # Which images were mixed, from the images themselves.
        aims: list[dict[int, float]] = []
        flat, images = batch.views[0].flatten(1), mixed.images.flatten(1)
        for i in range(5):
            fits = []
            for j in range(5):
                if j == i:
                    continue
                share = (
                    (images[i] - flat[j]) @ (flat[i] - flat[j]) / (flat[i] - flat[j]).norm() ** 2
                )
                if (share * flat[i] + (1 - share) * flat[j] - images[i]).norm() < 1e-5:
                    fits.append({i: float(share), j: 1 - float(share)})
            aims.append(fits[0] if fits and not torch.equal(images[i], flat[i]) else {i: 1.0})
            assert aims[-1][i] >= 0.5
        assert len({tuple(aim) for aim in aims}) > 1
        z, h = forward(model.encoder, model.head, mixed.images)
        loops = LOOPS[name]
        if framework is MoCo:
            fill(model, 6, first=3)
            _, _, zk, hk = queries_and_keys(model, batch)
            expected = queue_loss(
                model, batch, z, h, zk, hk, aims=aims, batch_negatives=True, **loops
            )
        else:
            z1, h1 = forward(model.encoder, model.head, batch.views[1])
            keys = torch.tensor([[*aim, i][:2] for i, aim in enumerate(aims)])
            shares = torch.tensor([[*aim.values(), 0.0][:2] for aim in aims]).double()
            positives, negatives, share = reference.masks_towards(keys, shares)
            expected = reference.own_loss(
                z, z1, torch.zeros(5, 0, 5).double(), h.detach(), h1.detach(),
                torch.zeros(5, 0, 7).double(), positives, negatives, shares=share,
                positives_in_denominator=True, temperature=0.3, **loops,
            )  # fmt: skip
        # λ was read off the images, in double precision.
        torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)
        one, other = gradients_of(model(batch), model), gradients_of(expected, model)
        for key, gradient in other.items():
            assert_close(one[key], gradient, 1e-7)

    @pytest.mark.parametrize("cutmix", [0.0, 1.0])
    @pytest.mark.parametrize("framework", [SimCLR, MoCo])
    def test_un_mix_equals_the_loops(
        self, name: str, framework: type[SimCLR | MoCo],
        cutmix: float,
    ) -> None:  # fmt: skip
        """L_orig + λ L(mix, k) + (1 - λ) L(flip(mix), k); the partner stays a negative."""
        n, batch = 5, make_batch(5)
        model = make_model(framework, MAKERS[name](), mixing=UnMix(cutmix=cutmix))
        mixed = UnMix(cutmix=cutmix)(batch.views[0], batch.keys, batch.batch_key).images
        flipped = batch.views[0].flip(0)
        if cutmix:
            pasted = (mixed == flipped) & (mixed != batch.views[0])
            lam = 1 - float(pasted[0].double().mean())
        else:
            away = (batch.views[0] - flipped)[0]
            lam = float(((mixed - flipped)[0] * away).sum() / (away**2).sum())
        assert 0 < lam < 1
        loops = LOOPS[name]
        z, h = forward(model.encoder, model.head, mixed)
        if framework is MoCo:
            fill(model, 6, first=3)
            zq, hq, zk, hk = queries_and_keys(model, batch)
            aimed: dict[str, Any] = {
                "own": [{i: 1.0} for i in range(n)],
                "other": [{n - 1 - i: 1.0} for i in range(n)],
            }
            expected = queue_loss(model, batch, zq, hq, zk, hk, **loops)
            expected = expected + lam * queue_loss(
                model, batch, z, h, zk, hk, aims=aimed["own"], **loops
            )
            expected = expected + (1 - lam) * queue_loss(
                model, batch, z, h, zk, hk, aims=aimed["other"], **loops
            )
        else:
            (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
            expected = MAKERS[name]().double()(z0, z1, h0, h1)
            one_way = MAKERS[name](layout="one-way").double()
            expected = expected + lam * one_way(z, z1, h, h1)
            # L(flip(mix), k): the rows in reverse, each against its own key.
            expected = expected + (1 - lam) * one_way(z.flip(0), z1, h.flip(0), h1)
        torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)
        one, other = gradients_of(model(batch), model), gradients_of(expected, model)
        for key, gradient in other.items():
            assert_close(one[key], gradient, 1e-7)
