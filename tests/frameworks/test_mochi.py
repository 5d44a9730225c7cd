"""MoCHi: points between the hardest negatives."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import reference
import torch
from batches import assert_close
from building import (
    NAMES,
    assert_gradients,
    assert_same,
    draw,
    fill,
    gradients_of,
    make_batch,
    make_model,
    queries_and_keys,
    queue_loss,
)
from torch import Tensor

from unremix import InfoNCELoss, UnReMixLoss
from unremix.core.views import ExtraNegatives
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi
from unremix.frameworks.randomness import NEGATIVES
from unremix.frameworks.simclr import SimCLR
from unremix.losses import TwoViewLoss


def generated(
    model: MoCo, batch: Batch, negatives: MoCHi
) -> tuple[ExtraNegatives | None, tuple[Tensor, Tensor]]:
    z, h, _, _ = queries_and_keys(model, batch)
    samples = batch.samples[:, None]
    own = negatives(model, (z, h), batch.views[0], samples, batch.keys, batch.epoch)
    return own, (z.detach(), h.detach())


class TestMoCHi:
    @pytest.mark.parametrize("weighting", ["uniform", "unremix"])
    def test_without_points_it_is_moco(self, weighting: str) -> None:
        make = partial(UnReMixLoss if weighting == "unremix" else InfoNCELoss, temperature=0.3)
        plain = make_model(loss=make(), queue=8)
        mochi = make_model(loss=make(), queue=8, negatives=MoCHi(4, 0, 0, 0))
        for step in range(4):
            batch = make_batch(seed=step, first=3 * step)
            losses = [model(batch) for model in (plain, mochi)]
            assert_same(losses[1], losses[0])
            for model, loss in zip((plain, mochi), losses, strict=True):
                for p, gradient in zip(
                    (p for p in model.parameters() if p.requires_grad),
                    gradients_of(loss, model).values(),
                    strict=True,
                ):
                    p.data -= 0.1 * gradient
                model.after_step()
        for one, other in zip(
            plain.state_dict().values(), mochi.state_dict().values(), strict=True
        ):
            assert_same(other, one)

    @pytest.mark.parametrize("with_inputs", [False, True])
    def test_points_are_mixtures_of_the_hardest(self, with_inputs: bool) -> None:
        """Each lies between two of the hardest keys, or the query and one; |z| and h as well."""
        loss = UnReMixLoss(temperature=0.3) if with_inputs else InfoNCELoss(temperature=0.3)
        model, batch = make_model(loss=loss, queue=12), make_batch(3)
        fill(model, 12, first=2)  # sample 2 is an anchor's own, and its key one of its hardest
        z, _, _, _ = queries_and_keys(model, batch)
        model.memory.embeddings[0] = 3 * z[2].detach() + 0.1
        hardest, pairs, queries = 4, 40, 30
        own, (z, h) = generated(model, batch, MoCHi(hardest, pairs, queries, 0))
        assert own is not None
        assert own.embeddings.shape == (3, pairs + queries, 5)
        assert not own.embeddings.requires_grad
        assert own.logit_factor == 1
        assert (own.inputs is not None) == with_inputs
        assert bool(own.embeddings.isfinite().all())
        old, samples = model.memory.views, model.memory.samples
        f_old, f = reference.unit(old.embeddings), reference.unit(z)
        for i in range(3):
            cosines = [
                (float(f[i] @ f_old[j]), j) for j in range(12) if samples[j] != batch.samples[i]
            ]
            chosen = [j for _, j in sorted(cosines, reverse=True)[:hardest]]
            used = set()
            for point in range(pairs + queries):
                direction = reference.unit(own.embeddings[i, point][None])[0]
                fits = []
                for j, k in itertools.combinations(chosen, 2):
                    if point < pairs:
                        fits.append((f_old[j], f_old[k], ("key", j), ("key", k)))
                for j in chosen:
                    if point >= pairs:
                        fits.append((f[i], f_old[j], ("query", i), ("key", j)))
                shares = []
                for left, right, one, other in fits:
                    basis = torch.stack([left, right], dim=1)  # (D, 2)
                    weights = torch.linalg.lstsq(basis, direction[:, None]).solution[:, 0]
                    if (basis @ weights - direction).norm() < 1e-10:
                        shares.append((float(weights[0] / weights.sum()), one, other))
                assert len(shares) == 1, "one pair of parents explains a point"
                share, one, other = shares[0]
                assert 0 <= share <= (1 if point < pairs else 0.5)
                used |= {one, other}
                parents = []
                for kind, j in (one, other):
                    length = (z if kind == "query" else old.embeddings)[j].norm()
                    inputs = None
                    if old.inputs is not None:
                        inputs = (h if kind == "query" else old.inputs)[j]
                    parents.append((length, inputs))
                length = share * parents[0][0] + (1 - share) * parents[1][0]
                assert_close(own.embeddings[i, point].norm(), length, 1e-8)
                if own.inputs is not None:
                    inputs = share * parents[0][1] + (1 - share) * parents[1][1]
                    assert_close(own.inputs[i, point], inputs, 1e-7)
            assert used == {("key", j) for j in chosen} | {("query", i)}  # all of them, in time

    def test_points_differ_between_steps_and_anchors(self) -> None:
        model = make_model(queue=12)
        fill(model, 12)
        first, _ = generated(model, make_batch(3), MoCHi(4, 5, 5, 0))
        again, _ = generated(model, make_batch(3), MoCHi(4, 5, 5, 0))
        other, _ = generated(model, make_batch(3, epoch=1), MoCHi(4, 5, 5, 0))
        assert first is not None
        assert again is not None
        assert other is not None
        assert_same(first.embeddings, again.embeddings)
        assert not torch.isclose(first.embeddings, other.embeddings).any(-1).all()

    @pytest.mark.parametrize("shape", [(3, 2), (5, 0), (0, 4)])
    @pytest.mark.parametrize("weighting", ["uniform", "unremix"])
    def test_the_loss_equals_the_loops(self, shape: tuple[int, int], weighting: str) -> None:
        loops: dict[str, Any] = {}
        loss: TwoViewLoss = InfoNCELoss(temperature=0.3)
        if weighting == "unremix":
            loss = UnReMixLoss(temperature=0.3, mix=(0.2, 0.3, 0.5))
            loops = {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()}
        negatives = MoCHi(3, *shape, warmup_epochs=0)
        model = make_model(loss=loss, queue=6, negatives=negatives)
        batch = make_batch(3)
        fill(model, 6, first=1)
        z, h, zk, hk = queries_and_keys(model, batch)
        samples = batch.samples[:, None]
        own = negatives(model, (z, h), batch.views[0], samples, batch.keys + NEGATIVES, 0)
        assert own is not None
        expected = queue_loss(model, batch, z, h, zk, hk, extra=own, **loops)
        assert_gradients(model(batch), expected, model)

    def test_points_are_never_enqueued(self) -> None:
        plain = make_model(queue=16)
        model = make_model(queue=16, negatives=MoCHi(3, 4, 2, 0))
        for step in range(3):
            batch = make_batch(seed=step, first=4 * step)
            for each in (plain, model):
                each(batch)
                each.after_step()
        assert_same(model.memory.embeddings, plain.memory.embeddings)
        assert len(model.memory) == 12

    def test_nothing_during_warm_up_or_from_too_small_a_queue(self) -> None:
        negatives = MoCHi(4, 3, 2, warmup_epochs=2)
        model = make_model(queue=12)
        assert generated(model, make_batch(epoch=2), negatives)[0] is None  # an empty queue
        fill(model, 1)
        assert generated(model, make_batch(epoch=2), negatives)[0] is None  # one key
        fill(model, 1, first=51)
        assert generated(model, make_batch(epoch=1), negatives)[0] is None
        found, _ = generated(model, make_batch(epoch=2), negatives)
        assert found is not None
        assert found.embeddings.shape[1] == 5

    def test_it_needs_a_queue(self) -> None:
        model = make_model(SimCLR, negatives=MoCHi())
        with pytest.raises(ValueError, match="a queue, got SimCLR; use MoCo"):
            model(make_batch())

    @pytest.mark.parametrize("mixing_name", ["imix", "unmix"])
    def test_no_point_stems_from_a_sample_that_is_shown(
        self, mixing_name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the mixed image's own sample nor its partner's.

        Keys stand upright on each other, so that a point's coordinates tell what it is made of.
        """
        kind = {"imix": IMix, "unmix": UnMix}[mixing_name]
        negatives = MoCHi(512, 400, 0, 0)
        model, batch = make_model(mixing=kind(), negatives=negatives, queue=5), make_batch(5)
        queued = torch.tensor([3, 0, 4, 2, 1])  # keys of the very samples of the batch
        model.memory.add(torch.eye(5).double(), draw(5, 7), batch.samples[queued])
        found: list[ExtraNegatives] = []

        def keep(*given: Any) -> ExtraNegatives | None:
            own = negatives(*given)
            assert own is not None
            found.append(own)
            return own

        monkeypatch.setattr(model, "negatives", keep)
        model(batch)
        mixed = kind()(batch.views[0], batch.keys, batch.batch_key)
        expected = [[{i} for i in range(5)]] if mixing_name == "unmix" else []
        shown: list[set[int]] = [set() for _ in range(5)]
        for target in mixed.targets:
            for i, (keys, shares) in enumerate(zip(target.keys, target.shares, strict=True)):
                for key, share in zip(keys.tolist(), shares.tolist(), strict=True):
                    if share * target.weight > 0:
                        shown[i].add(key)
        expected.append(shown)
        assert any(len(samples) == 2 for samples in shown)
        assert len(found) == len(expected)
        for own, excluded in zip(found, expected, strict=True):
            for i in range(5):
                used = {int(queued[q]) for q in own.embeddings[i].abs().amax(0).nonzero()[:, 0]}
                assert not used & excluded[i]
                assert len(used) == 5 - len(excluded[i])  # all that are left

    def test_more_hardest_than_there_are_keys(self) -> None:
        model, batch = make_model(queue=12), make_batch()
        fill(model, 5, first=0)  # keys of samples 0 to 4: four are left to each anchor
        own, _ = generated(model, batch, MoCHi(512, 64, 0, 0))
        assert own is not None
        f_old = reference.unit(model.memory.views.embeddings)
        for i in range(4):  # five dimensions: a share in the own key would show
            others = torch.stack([f_old[j] for j in range(5) if j != i], dim=1)
            points = reference.unit(own.embeddings[i]).T
            solved = torch.linalg.lstsq(others, points).solution
            assert (others @ solved - points).abs().max() < 1e-10

    @pytest.mark.parametrize("hardest", [2, 3, 512])
    def test_own_keys_are_left_out_for_each_anchor(self, hardest: int) -> None:
        """An anchor with own keys in the queue has fewer to mix; the others keep theirs.

        Keys stand upright on each other, so that a point's coordinates tell what it is made of.
        """
        model, batch = make_model(queue=5), make_batch(4)
        samples = [0, 0, 0, 1, 7]  # three keys of sample 0, one of 1, none of 2 and 3
        model.memory.add(torch.eye(5).double(), draw(5, 7), torch.tensor(samples))
        own, (z, _) = generated(model, batch, MoCHi(hardest, 200, 0, 0))
        assert own is not None
        for i in range(4):
            left = [j for j in range(5) if samples[j] != i]
            left.sort(key=lambda j: -float(z[i, j]))
            used = set(own.embeddings[i].abs().amax(0).nonzero()[:, 0].tolist())
            assert used == set(left[:hardest])
            assert int((own.embeddings[i] != 0).sum(1).min()) == 2  # of two different keys

    def test_an_anchor_may_have_one_key_or_none(self) -> None:
        """What is made depends on no value that the host would have to wait for."""
        model, batch = make_model(queue=2), make_batch(3)
        model.memory.add(torch.eye(5)[:2].double(), draw(2, 7), torch.tensor([0, 0]))
        own, (z, _) = generated(model, batch, MoCHi(4, 3, 2, 0))
        assert own is not None
        assert torch.equal(own.embeddings[0], -z[:1].detach().expand(5, -1))  # both are its own
        assert own.embeddings[1:].isfinite().all()
        assert own.embeddings[1:, :3, :2].any(-1).all()
        model.memory.add(torch.eye(5)[2:3].double(), draw(1, 7), torch.tensor([1]))
        own, _ = generated(model, batch, MoCHi(4, 3, 0, 0))  # keys of samples 0 and 1
        assert own is not None
        assert not own.embeddings[0, :, 1].any()  # the one key that is left to it
        assert not own.embeddings[1, :, 2].any()
        assert own.embeddings.isfinite().all()
        assert (own.embeddings[0, :, 2] > 0).all()

    def test_bad_options(self) -> None:
        for options in ((1, 2, 3, 0), (4, -1, 3, 0), (4, 1, -3, 0), (4, 1, 3, -1)):
            with pytest.raises(ValueError, match="to be at least"):
                MoCHi(*options)
