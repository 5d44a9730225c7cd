"""What the tests of several frameworks build: models, batches, losses by the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import reference
import torch
from batches import assert_close
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.pairs import Pairs
from unremix.core.scores import COMPONENTS, Block
from unremix.core.views import ExtraNegatives
from unremix.core.weights import Weighting
from unremix.frameworks.base import Batch
from unremix.frameworks.moco import MoCo, MoCoOptions
from unremix.frameworks.randomness import keys as random_keys
from unremix.frameworks.simclr import SimCLR
from unremix.losses import TwoViewLoss

NAMES = tuple(COMPONENTS)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def draw_rows(count: int, dimensions: int = 8, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def sample_keys(count: int, seed: int = 0, *, epoch: int = 0, view: int = 0) -> Tensor:
    return random_keys(seed, epoch, torch.arange(count), view)


def recorded_ids(seen: list[list[int]]) -> Callable[[Block], Tensor]:
    """A score that writes down the ids of the anchors and candidates it is given."""

    def score(block: Block) -> Tensor:
        assert block.anchors.ids is not None
        assert block.candidates.ids is not None
        seen.extend([block.anchors.ids.tolist(), block.candidates.ids.tolist()])
        return block.similarity

    return score


def reference_weights(
    za: Tensor, zc: Tensor, ha: Tensor, hc: Tensor, pairs: Pairs, mix: Tensor, weighting: Weighting
) -> Tensor:
    """The loops' weights of all three components."""
    negatives, positives = pairs.negatives(), pairs.positive_mask()
    similarity = reference.similarity(za, zc)
    scores = [
        reference.uncertainty(za, zc, ha, hc, negatives, positives),
        similarity if weighting.similarity_gradient else similarity.detach(),
        reference.representativeness(zc, negatives).detach(),
    ]
    return reference.weights(
        scores,
        mix,
        negatives,
        scaling="zscore-exp" if weighting.scaling == "zscore" else weighting.scaling,
        mass=weighting.mass,
        hardness=weighting.sharpness,
    )


@st.composite
def aims(draw: st.DrawFn, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Keys and shares (rows, P), each row of shares summing to 1; keys may repeat in a row."""
    width = draw(st.integers(1, 3))
    numbers = st.integers(0, 4)
    shares = torch.zeros(rows, width, dtype=torch.float64)
    keys = torch.zeros(rows, width, dtype=torch.long)
    for i in range(rows):
        parts = draw(st.lists(numbers, min_size=width, max_size=width).filter(any))
        shares[i] = torch.tensor(parts).double() / sum(parts)
        keys[i] = torch.tensor(
            draw(st.lists(st.integers(0, columns - 1), min_size=width, max_size=width))
        )
    return keys, shares


MAKERS: dict[str, Callable[..., TwoViewLoss]] = {
    "uniform": partial(InfoNCELoss, temperature=0.3),
    "hcl": partial(HCLLoss, temperature=0.3),
    "unremix": partial(UnReMixLoss, temperature=0.3, mix=(0.2, 0.3, 0.5)),
}
LOOPS: dict[str, dict[str, Any]] = {
    "uniform": {"components": (), "mix": torch.zeros(0).double()},
    "hcl": {"components": (), "mix": torch.zeros(0).double(), "scaling": "hcl", "hardness": 1.0,
            "class_prior": 0.1, "similarity_gradient": True},
    "unremix": {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()},
}  # fmt: skip

# Images are (N, 1, 6, 6), features (N, 8), h (N, 7), embeddings (N, 5), in float64.
SIDE = 6


def make_parts(*, batch_norm: bool = False, seed: int = 0) -> tuple[nn.Module, nn.Sequential]:
    norm: list[nn.Module] = [nn.BatchNorm1d(8)] if batch_norm else []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 8), *norm, nn.Tanh())
        head = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 5))
        return encoder.double(), head.double()


def make_model(
    kind: type[SimCLR | MoCo] = MoCo,
    loss: TwoViewLoss | None = None,
    *,
    batch_norm: bool = False,
    seed: int = 0,
    **options: Any,
) -> Any:
    """A framework; the key encoder of MoCo is already away from the encoder it follows."""
    loss = InfoNCELoss(temperature=0.3) if loss is None else loss
    if issubclass(kind, MoCo):
        own = {option.name: options.pop(option.name) for option in fields(MoCoOptions)
               if option.name in options}  # fmt: skip
        options["options"] = MoCoOptions(**own)
    model = kind(*make_parts(batch_norm=batch_norm, seed=seed), loss, **options).double()
    if isinstance(model, MoCo):
        for number, p in enumerate([*model.key_encoder.parameters(), *model.key_head.parameters()]):
            p += 0.1 * draw(*p.shape, seed=number)
    return model


def make_batch(
    n: int = 4, *, seed: int = 0, first: int = 0, epoch: int = 0, rows: slice = slice(None)
) -> Batch:
    """Samples first ... first + n - 1, or some rows of that batch."""
    samples = torch.arange(first, first + n)
    return Batch(
        views=tuple(draw(n, 1, SIDE, SIDE, seed=10 * seed + v)[rows] for v in range(2)),
        samples=samples[rows],
        keys=random_keys(seed, epoch, samples, 4)[rows],
        batch_key=torch.tensor([1000 + seed]),
        epoch=epoch,
    )


def fill(model: MoCo, count: int, *, first: int = 50, seed: int = 99) -> None:
    """Put random keys, of samples from ``first`` on, into the queue."""
    h = model.memory.inputs.shape[1]
    model.memory.add(
        draw(count, 5, seed=seed), draw(count, h, seed=seed + 1), torch.arange(count) + first
    )


def forward(body: nn.Module, head: nn.Sequential, images: Tensor) -> tuple[Tensor, Tensor]:
    h = head[:-1](body(images))
    return head[-1](h), h


def queries_and_keys(model: MoCo, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z and h of the first views as queries, and of the second views as keys."""
    z, h = forward(model.encoder, model.head, batch.views[0])
    with torch.no_grad():
        zk, hk = forward(model.key_encoder, model.key_head, batch.views[1])
    return z, h, zk, hk


def gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Of the parameters that the loss depends on."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}


def all_gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Zeros where the loss does not depend on a parameter."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(named[name]) if part is None else part
        for name, part in zip(named, found, strict=True)
    }


def assert_gradients(actual: Tensor, expected: Tensor, model: nn.Module) -> None:
    assert_close(actual, expected)
    one, other = gradients_of(actual, model), gradients_of(expected, model)
    assert one.keys() == other.keys()
    for name, gradient in other.items():
        assert_close(one[name], gradient, 1e-9)


def queue_loss(
    model: MoCo, batch: Batch, zq: Tensor, hq: Tensor, zk: Tensor, hk: Tensor, *,
    aims: Sequence[dict[int, float]] | None = None, batch_negatives: bool = False,
    extra: ExtraNegatives | None = None, **loops: Any,
) -> Tensor:  # fmt: skip
    """The loops' loss of queries against [keys; queue], and each query's own negatives."""
    old = model.memory.views
    positives, negatives, shares = reference.masks_queue(
        batch.samples.tolist(), model.memory.samples.tolist(), batch_negatives=batch_negatives,
        aims=aims,
    )  # fmt: skip
    with_h = old.inputs is not None
    zo = torch.zeros(len(zq), 0, 5).double() if extra is None else extra.embeddings
    ho = torch.zeros(len(zq), 0, 7).double() if extra is None else extra.inputs
    loops = {"components": (), "mix": torch.zeros(0).double()} | loops
    return reference.own_loss(
        zq, torch.cat([zk, old.embeddings]), zo,
        hq.detach() if with_h else None,
        torch.cat([hk, old.inputs]) if old.inputs is not None else None,
        ho if with_h else None, positives, negatives, shares=shares,
        logit_factor=1.0 if extra is None else extra.logit_factor,
        positives_in_denominator=aims is not None, **{"temperature": 0.3, **loops},
    )  # fmt: skip
