"""Which k candidates of a pool become the negatives: the three scores, and a greedy choice.

Letters: B anchors, P candidates in the pool of each, D dimensions, k chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unremix.core.scores import COMPONENTS, Block, output_gradients
from unremix.core.views import Vectors
from unremix.core.weights import scale

GREEDY = "representativeness"


class Chosen(NamedTuple):
    """The choice for B anchors.

    Args:
        places: Where in the pool, in the order of choice, shape (B, k); -1 for missing choices.
        scores: The value each was chosen by, shape (B, k); NaN for missing choices.
        components: The score of each component that was mixed, before scaling, each (B, k).
    """

    places: Tensor
    scores: Tensor
    components: dict[str, Tensor]


def pool_scores(
    anchors: Tensor, pool: Tensor, valid: Tensor, names: Sequence[str], *, temperature: float
) -> dict[str, Tensor]:
    """The scores of UnReMix with an anchor's pool as its negatives.

    The anchor and its pool stand for a batch: Neg(i) is the pool. The classes of the anchor's
    pseudo-posterior are the candidates, and those of a candidate are the other candidates of the
    same pool. No last layer is known, so the uncertainty is u_ij = δ_i · δ_j; embeddings count by
    their direction, so |z| = 1.

    Args:
        anchors: f of the anchors, shape (B, D).
        pool: f of their candidates, shape (B, P, D).
        valid: Which candidates count, boolean, shape (B, P).
        names: Components, of :data:`unremix.core.scores.COMPONENTS`.
        temperature: t of the pseudo-posterior.

    Returns:
        Each component's score, shape (B, P); arbitrary for candidates that do not count.
    """
    size = pool.shape[1]
    others = ~torch.eye(size, dtype=torch.bool)
    needs_gradients = any(COMPONENTS[name].needs_gradients for name in names)
    lengths = torch.ones(size)

    def of_one(anchor: Tensor, candidates: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        query, negatives = anchor[None], counts[None]  # (1, D), (1, P)
        of_query = of_pool = None
        if needs_gradients:
            of_query, of_pool = (
                output_gradients(
                    units, lengths[: len(units)], candidates,
                    torch.where(classes, units @ candidates.T / temperature, -torch.inf),
                    temperature=temperature,
                )
                for units, classes in ((query, negatives), (candidates, others & negatives))
            )  # fmt: skip
        block = Block(
            anchors=Vectors(query, lengths[:1], output_gradients=of_query),
            candidates=Vectors(candidates, lengths, output_gradients=of_pool),
            extra=None,
            negatives=negatives,
            count=negatives.sum(1, keepdim=True),
            non_negatives=None,
            similarity=query @ candidates.T,
        )
        return tuple(COMPONENTS[name].score(block)[0] for name in names)

    scores = torch.vmap(of_one)(anchors, pool, valid)
    return dict(zip(names, scores, strict=True))


def choose_greedily(
    scores: Mapping[str, Tensor], products: Tensor, valid: Tensor, mix: Sequence[float], k: int
) -> Chosen:
    """Take the best candidate, then the best beside those taken, and so on.

    The t-th choice maximizes Σ_c λ_c C^c_ij over the candidates that are left, with C^c the score
    of component c, scaled to [0, 1] over the pool. For the first choice, representativeness is
    Eq. 4 over the pool. For the others its set is what has been chosen:
    r_ij = mean over chosen j' of (1 - f_j · f_j'), scaled over the candidates that are left.

    Args:
        scores: By component, each (B, P).
        products: f_j · f_j' within each pool, shape (B, P, P).
        valid: Which candidates count, boolean, shape (B, P).
        mix: λ, one per component.
        k: How many.
    """
    names = list(scores)
    lambdas = dict(zip(names, mix, strict=True))
    left, rows = valid.clone(), torch.arange(len(valid))
    fixed = torch.zeros(valid.shape)
    for name in names:
        if name != GREEDY:
            fixed += lambdas[name] * _scaled(name, scores[name], valid)
    spread = scores.get(GREEDY)  # (B, P)
    to_chosen = torch.zeros(valid.shape)  # Σ over chosen j' of f_j · f_j'
    nothing = torch.full((len(valid), k), torch.nan)
    found = Chosen(
        torch.full_like(nothing, -1, dtype=torch.int64),
        nothing.clone(),
        {name: nothing.clone() for name in names},
    )
    for taken in range(min(k, valid.shape[1])):
        total = fixed
        if spread is not None:
            if taken:
                spread = 1 - to_chosen / taken
            total = fixed + lambdas[GREEDY] * _scaled(GREEDY, spread, left)
        value, best = torch.where(left, total, -torch.inf).max(1)  # the first among equals
        some = value > -torch.inf
        found.places[:, taken] = torch.where(some, best, -1)
        found.scores[:, taken] = torch.where(some, value, torch.nan)
        for name in names:
            score = spread if name == GREEDY and spread is not None else scores[name]
            found.components[name][:, taken] = torch.where(some, score[rows, best], torch.nan)
        left[rows, best] = False
        to_chosen += products[rows, best]
    return found


def choose_largest(keys: Tensor, similarity: Tensor, valid: Tensor, k: int) -> Chosen:
    """Take the k valid candidates with the largest keys; they come in the order of the pool.

    Keys, similarity to the anchor and validity have shape (B, P).
    """
    width = min(k, valid.shape[1])
    order = torch.where(valid, keys, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    taken = torch.zeros_like(valid).scatter(1, order[:, :width], True) & valid
    places = taken.sort(dim=1, descending=True, stable=True).indices[:, :width]
    some = taken.gather(1, places)
    scores = torch.where(some, similarity.gather(1, places), torch.nan)
    scores = torch.nn.functional.pad(scores, (0, k - width), value=torch.nan)
    places = torch.nn.functional.pad(torch.where(some, places, -1), (0, k - width), value=-1)
    return Chosen(places, scores, {})


def _scaled(name: str, score: Tensor, among: Tensor) -> Tensor:
    count = among.sum(1, keepdim=True)
    return scale(score, among, count, "minmax", COMPONENTS[name].magnitude)
