"""MoCo: keys, momentum, groups and the loss, against plain loops."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from typing import Any

import pytest
import torch
from batches import assert_close
from building import (
    NAMES,
    SIDE,
    assert_gradients,
    assert_same,
    draw,
    fill,
    forward,
    gradients_of,
    make_batch,
    make_model,
    make_parts,
    queries_and_keys,
    queue_loss,
)
from torch import Tensor, nn

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.frameworks.mixing import UnMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi


class TestMoCo:
    def test_the_key_encoder_starts_equal_and_apart(self) -> None:
        model = MoCo(*make_parts(batch_norm=True), InfoNCELoss())
        for query, key in ((model.encoder, model.key_encoder), (model.head, model.key_head)):
            assert query.state_dict().keys() == key.state_dict().keys()
            for one, other in zip(query.parameters(), key.parameters(), strict=True):
                assert torch.equal(one, other)
                assert one.data_ptr() != other.data_ptr()
                assert not other.requires_grad

    def test_keys_carry_no_gradient(self) -> None:
        model, batch = make_model(), make_batch()
        fill(model, 6)
        views = tuple(view.requires_grad_() for view in batch.views)
        model(batch).backward()
        assert all(p.grad is None for p in model.key_encoder.parameters())
        assert all(p.grad is None for p in model.key_head.parameters())
        assert all(p.grad is not None for p in model.encoder.parameters())
        assert views[0].grad is not None
        assert views[1].grad is None
        assert not model.memory.embeddings.requires_grad

    @pytest.mark.parametrize("queued", [1, 6, 9])
    @pytest.mark.parametrize("weighting", ["uniform", "hcl", "unremix"])
    def test_the_loss_equals_the_loops(self, queued: int, weighting: str) -> None:
        loss, loops = {
            "uniform": (InfoNCELoss(temperature=0.3), {}),
            "hcl": (
                HCLLoss(temperature=0.3, class_prior=0.05),
                {"scaling": "hcl", "hardness": 1.0, "class_prior": 0.05,
                 "similarity_gradient": True},
            ),
            "unremix": (
                UnReMixLoss(temperature=0.3, mix=(0.2, 0.3, 0.5)),
                {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()},
            ),
        }[weighting]  # fmt: skip
        model, batch = make_model(loss=loss, queue=9), make_batch()
        fill(model, queued, first=2)  # samples 2 and 3 stand in the queue and in the batch
        expected = queue_loss(model, batch, *queries_and_keys(model, batch), **loops)
        assert_gradients(model(batch), expected, model)

    @pytest.mark.parametrize("momentum", [0.0, 0.25, 0.99, 1.0])
    def test_the_key_encoder_follows_exactly(self, momentum: float) -> None:
        model, batch = make_model(momentum=momentum), make_batch()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
        expected = [p.detach().clone() for p in model.key_encoder.parameters()]
        expected += [p.detach().clone() for p in model.key_head.parameters()]
        for step in range(3):
            optimizer.zero_grad()
            model(batch if step else make_batch(seed=1)).backward()
            optimizer.step()
            model.after_step()
            leading = [*model.encoder.parameters(), *model.head.parameters()]
            for number, parameter in enumerate(leading):
                old = expected[number].flatten().tolist()
                new = parameter.detach().flatten().tolist()
                followed = [
                    momentum * k + (1 - momentum) * q for k, q in zip(old, new, strict=True)
                ]
                expected[number] = torch.tensor(followed, dtype=torch.float64).view_as(parameter)
            following = [*model.key_encoder.parameters(), *model.key_head.parameters()]
            for found, wanted in zip(following, expected, strict=True):
                if momentum in (0.0, 1.0):
                    assert torch.equal(found, wanted)
                assert_close(found.detach(), wanted, 1e-14)

    def test_running_statistics_of_the_keys_are_their_own(self) -> None:
        model = make_model(batch_norm=True, momentum=1.0, group=0)
        query, key = model.encoder[2], model.key_encoder[2]
        model(make_batch())
        model.after_step()
        assert int(query.num_batches_tracked) == int(key.num_batches_tracked) == 1
        assert not torch.equal(query.running_mean, key.running_mean)

    def test_the_first_batch_takes_its_own_keys(self) -> None:
        model, batch = make_model(), make_batch()
        z, _, zk, _ = queries_and_keys(model, batch)
        expected = InfoNCELoss(temperature=0.3, layout="one-way")(z, zk)
        assert_gradients(model(batch), expected, model)
        model.after_step()
        z, h, zk, hk = queries_and_keys(model, batch)
        expected = queue_loss(model, batch, z, h, zk, hk)  # the batch's keys no more
        assert_close(model(batch), expected)

    def test_symmetric_is_the_mean_of_both_ways(self) -> None:
        model = make_model(symmetric=True)
        one_way = make_model()
        batch = make_batch()
        for each in (model, one_way):
            fill(each, 6)
        turned = copy.copy(batch)
        object.__setattr__(turned, "views", batch.views[::-1])
        expected = (one_way(batch) + one_way(turned)) / 2
        assert_close(model(batch), expected)
        gradients, others = gradients_of(model(batch), model), gradients_of(expected, one_way)
        for name, gradient in others.items():
            assert_close(gradients[name], gradient, 1e-9)
        model.after_step()
        assert len(model.memory) == 6 + 2 * 4
        assert model.memory.samples[6:].tolist() == [*range(4), *range(4)]

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_keys_are_kept_once_per_step_and_after_the_loss(self, symmetric: bool) -> None:
        model, batch = make_model(symmetric=symmetric, queue=64), make_batch(first=7)
        per_step = 8 if symmetric else 4
        first = model(batch)
        assert len(model.memory) == 0
        assert_same(model(batch), first)  # another look changes nothing
        _, _, zk, _ = queries_and_keys(model, batch)
        model.after_step()
        assert len(model.memory) == per_step
        # The keys that the loss saw, not those of the key encoder as it is now.
        assert_close(model.memory.views.embeddings[:4], zk, 1e-12)  # shuffled: rounded otherwise
        assert model.memory.samples[:4].tolist() == [7, 8, 9, 10]
        model.after_step()
        assert len(model.memory) == per_step
        model(batch)
        model.after_step()
        assert len(model.memory) == 2 * per_step

    @pytest.mark.parametrize("queue", [1, 3, 5, 8])
    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_any_batch_and_any_queue(self, queue: int, n: int) -> None:
        model = make_model(queue=queue, loss=UnReMixLoss(temperature=0.3))
        kept: deque[int] = deque(maxlen=queue)
        for step in range(4):
            batch = make_batch(n, seed=step, first=n * step)
            loss = model(batch)
            loss.backward()
            model.after_step()
            kept.extend(batch.samples.tolist())
            assert loss.isfinite()
            assert model.memory.samples.tolist() == list(kept)

    def test_h_is_kept_only_where_weights_need_it(self) -> None:
        assert make_model().memory.inputs.shape[1] == 0
        assert make_model(loss=HCLLoss()).memory.inputs.shape[1] == 0
        similar = UnReMixLoss(components=("similarity", "representativeness"))
        assert make_model(loss=similar).memory.inputs.shape[1] == 0
        assert make_model(loss=UnReMixLoss()).memory.inputs.shape[1] == 7

    @pytest.mark.parametrize("n", [4, 5, 8, 11])
    def test_batch_norm_sees_groups(self, n: int) -> None:
        model = make_model(batch_norm=True, group=4)
        twin = copy.deepcopy(model)
        images = draw(n, 1, SIDE, SIDE)
        z, h = model.embed(images)
        parts = [
            forward(twin.encoder, twin.head, part) for part in images.tensor_split(max(1, n // 4))
        ]
        assert min(len(part) for part, _ in parts) >= 4
        assert_same(z, torch.cat([z for z, _ in parts]))
        assert_same(h, torch.cat([h for _, h in parts]))
        assert_same(model.encoder[2].running_mean, twin.encoder[2].running_mean)
        assert_same(model.encoder[2].running_var, twin.encoder[2].running_var)
        whole = forward(twin.encoder, twin.head, images)[0]
        assert torch.equal(z, whole) == (n < 8)
        model.eval()
        twin.load_state_dict(model.state_dict())
        twin.eval()
        assert_same(model.embed(images)[0], forward(twin.encoder, twin.head, images)[0])
        assert_close(
            model.embed_keys(images, torch.tensor([3]))[0],
            forward(twin.key_encoder, twin.key_head, images)[0],
            1e-14,
        )

    def test_keys_are_shuffled_before_they_are_grouped(self) -> None:
        model = make_model(batch_norm=True, group=4)
        images = draw(8, 1, SIDE, SIDE)
        found = []
        for key in range(4):
            z, _ = model.embed_keys(images, torch.tensor([key]))
            # Which four were normalized together: the only ones whose result fits.
            together = [
                group
                for group in itertools.combinations(range(8), 4)
                if torch.allclose(
                    forward(model.key_encoder, model.key_head, images[list(group)])[0],
                    z[list(group)],
                )
            ]
            assert len(together) == 2
            assert sorted([*together[0], *together[1]]) == list(range(8))
            found.append(together[0])
        assert len(set(found)) > 1
        assert any(group != (0, 1, 2, 3) for group in found)

    @pytest.mark.parametrize("n", [2, 7, 64])
    def test_shuffling_keeps_each_key_with_its_query(self, n: int) -> None:
        model = make_model(group=2)
        images = draw(n, 1, SIDE, SIDE)
        for key in range(3):
            z, h = model.embed_keys(images, torch.tensor([key]))
            expected = forward(model.key_encoder, model.key_head, images)
            assert_close(z, expected[0], 1e-14)
            assert_close(h, expected[1], 1e-14)
            assert not z.requires_grad

    def test_a_model_goes_on_from_its_state(self) -> None:
        def make(seed: int) -> tuple[MoCo, torch.optim.Optimizer]:
            model = make_model(
                loss=UnReMixLoss(temperature=0.3), negatives=MoCHi(4, 3, 2, 0), mixing=UnMix(),
                symmetric=True, queue=11, group=2, batch_norm=True, seed=seed,
            )  # fmt: skip
            return model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad])

        def step(model: MoCo, optimizer: torch.optim.Optimizer, number: int) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(make_batch(5, seed=number, first=3 * number))
            loss.backward()
            optimizer.step()
            model.after_step()
            return loss.detach()

        whole, optimizer = make(0)
        for number in range(3):
            step(whole, optimizer, number)
        state = copy.deepcopy((whole.state_dict(), optimizer.state_dict()))
        expected = [step(whole, optimizer, number) for number in range(3, 6)]
        other, other_optimizer = make(1)
        other.load_state_dict(state[0])
        other_optimizer.load_state_dict(state[1])
        found = [step(other, other_optimizer, number) for number in range(3, 6)]
        assert_same(torch.stack(found), torch.stack(expected))
        for name, tensor in whole.state_dict().items():
            assert_same(other.state_dict()[name], tensor)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"scaling": "zscore-exp", "hardness": 2.0},
            {"mass": "none"},
            {"components": ("uncertainty",), "posterior_temperature": 0.1},
            {"class_prior": 0.02, "similarity_gradient": True},
        ],
        ids=str,
    )
    def test_a_queue_of_the_same_keys_equals_one_way(self, options: dict[str, Any]) -> None:
        """Loss and gradient to the queries; sample ids exclude each key's own anchor."""
        loss = UnReMixLoss(temperature=0.3, layout="one-way", **options)
        model, batch = make_model(loss=loss, queue=6), make_batch(6)
        z, h, zk, hk = queries_and_keys(model, batch)
        order = torch.tensor([4, 0, 5, 2, 1, 3])
        model.memory.add(zk[order], hk[order], batch.samples[order])
        assert_gradients(model(batch), model.loss(z, zk, h, hk), model)  # the mix's as well

    def test_bad_options(self) -> None:
        for options, message in (
            ({"momentum": 1.5}, "momentum to be at most 1, got 1.5"),
            ({"momentum": -0.1}, "got -0.1"),
            ({"group": 1}, "at least 2, or 0 .* got 1"),
            ({"group": -2}, "got -2"),
            ({"queue": 0}, "queue to be at least 1, got 0"),
            ({"loss": UnReMixLoss(gradient="nt-xent")}, "'pseudo-label' with a queue"),
        ):
            with pytest.raises(ValueError, match=message):
                make_model(**options)
        only = UnReMixLoss(gradient="nt-xent", components=("similarity",))
        make_model(loss=only)  # no uncertainty, no contradiction
        encoder, _ = make_parts()
        with pytest.raises(ValueError, match=r"torch.nn.Linear, got Tanh"):
            MoCo(encoder, nn.Sequential(nn.Linear(8, 5), nn.Tanh()), InfoNCELoss())
