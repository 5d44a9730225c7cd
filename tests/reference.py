"""The slow, plain reference: loops over anchors and candidates, autograd per sample.

Everything is written straight from the definitions, to be read against them. Letters: N anchors,
M candidates, D embedding size, H input size of the last layer. `positives` and `negatives` are
disjoint boolean masks (N, M); a candidate in neither (the anchor itself, say) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_NORM = 1e-12


def members(mask: Tensor, i: int) -> list[int]:
    """Columns set in row i of a boolean mask (N, M), ascending."""
    return [j for j in range(mask.shape[1]) if bool(mask[i, j])]


def zeros(mask: Tensor, like: Tensor) -> list[list[Tensor]]:
    """Nested lists of constant zeros in the shape of mask (N, M), to be filled and stacked."""
    return [[like.new_zeros(()) for _ in row] for row in mask]


def grid(entries: list[list[Tensor]]) -> Tensor:
    """Nested lists of scalars as a tensor (N, M), keeping the graph."""
    return torch.stack([torch.stack(row) for row in entries])


def dots(a: Tensor, c: Tensor) -> Tensor:
    """Inner products (N, M) of a (N, D) with c (M, D); differentiable in both."""
    return grid([[torch.dot(row, other) for other in c] for row in a])


def masks_both(n: int) -> tuple[Tensor, Tensor]:
    """Positives and negatives (2n, 2n); anchors = candidates = [z0; z1]."""
    views = range(2 * n)
    positives = [[i % n == j % n and i != j for j in views] for i in views]
    negatives = [[i % n != j % n for j in views] for i in views]
    return torch.tensor(positives), torch.tensor(negatives)


def masks_one_way(n: int) -> tuple[Tensor, Tensor]:
    """Positives and negatives (n, n); anchors = z0, candidates = z1."""
    positives = torch.tensor([[i == j for j in range(n)] for i in range(n)])
    return positives, ~positives


def with_classes(
    positives: Tensor, negatives: Tensor, anchor_labels: Tensor, candidate_labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Both masks (N, M) when negatives of the anchor's class become positives; -1 has no class."""
    positives, negatives = positives.clone(), negatives.clone()
    for i, own in enumerate(anchor_labels.tolist()):
        for j in members(negatives, i):
            if own != -1 and own == int(candidate_labels[j]):
                positives[i, j], negatives[i, j] = True, False
    return positives, negatives


def unit(z: Tensor) -> Tensor:
    """Rows of z (N, D) over their norm; a row of norm <= 1e-12 gives a constant 0."""
    tiny = [float(row.detach().norm()) <= SMALLEST_NORM for row in z]
    rows = [torch.zeros_like(z[i]) if tiny[i] else z[i] / z[i].norm() for i in range(len(tiny))]
    return torch.stack(rows)


def similarity(za: Tensor, zc: Tensor) -> Tensor:
    """Cosines (N, M) of za (N, D) with zc (M, D); differentiable in both."""
    return dots(unit(za), unit(zc))


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two vectors, as Python's numbers have it."""
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def representativeness(zc: Tensor, negatives: Tensor) -> Tensor:
    """r_ij = mean over j' in Neg(i), j' != j, of 1 - f_j . f_j' (N, M), else 0; zc is (M, D)."""
    f = unit(zc)
    r = zeros(negatives, zc)
    for i in range(len(r)):
        for j in members(negatives, i):
            distances = [1 - torch.dot(f[j], f[k]) for k in members(negatives, i) if k != j]
            if distances:
                r[i][j] = torch.stack(distances).mean()
    return grid(r)


def last_layer_gradients(
    h: Tensor | None, z: Tensor, classes: Sequence[Sequence[int]], class_units: Tensor,
    weight: Tensor | None, bias: Tensor | None,
    *, temperature: float, labels: Sequence[Sequence[int]] | None = None,
) -> Tensor:  # fmt: skip
    """Per-sample gradients (N, P) of the pseudo-posterior's cross-entropy, by autograd.

    Args:
        h: inputs of the last layer (N, H); None: the gradient is with respect to z itself.
        z: outputs of the last layer (N, D); unused where h and weight give them.
        classes: for each sample the rows of `class_units` (C, D), constants, that it may be.
        weight: the layer's (D, H); None though h is given: zeros and a constant offset per sample
            that restores z, since the gradient depends on z and h alone.
        bias: the layer's (D,), or None for a layer without bias (no gradient entries for it).
        labels: positions in `classes[j]`, the target being uniform over them (none: gradient 0).
            None: the target is the first most likely class.

    Returns:
        Rows [weight gradient, bias gradient] flattened; zeros without class or for a zero z.
    """
    rows = []
    for j in range(z.shape[0]):
        if h is None:
            output = z[j].detach().clone().requires_grad_()
            parameters = [output]
        else:
            w = z.new_zeros(z.shape[1], h.shape[1]) if weight is None else weight
            parameters = [w.detach().clone().requires_grad_()]
            output = parameters[0] @ h[j].detach()
            if bias is not None:
                parameters.append(bias.detach().clone().requires_grad_())
                output = output + parameters[1]
            if weight is None:
                output = output + (z[j] - output).detach()

        no_class = not classes[j] or (labels is not None and not labels[j])
        if no_class or float(output.detach().norm()) <= SMALLEST_NORM:
            rows.append(torch.cat([torch.zeros_like(p).flatten() for p in parameters]))
            continue
        f = output / output.norm()
        logits = torch.stack([torch.dot(f, class_units[k].detach()) for k in classes[j]])
        log_posterior = functional.log_softmax(logits / temperature, dim=0)
        first_largest = logits.tolist().index(max(logits.tolist()))
        target = [first_largest] if labels is None else labels[j]
        loss = -sum(log_posterior[y] for y in target) / len(target)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows).detach()


def uncertainty(
    za: Tensor, zc: Tensor, ha: Tensor | None, hc: Tensor | None, negatives: Tensor,
    positives: Tensor,
    *, weight: Tensor | None = None, bias: Tensor | None = None, use_bias: bool = True,
    posterior_temperature: float = 1.0, gradient: str = "pseudo-label", temperature: float = 0.5,
) -> Tensor:  # fmt: skip
    """u_ij = <g_i, g_j> (N, M) for every pair, negative or not; carries no gradient.

    Classes of anchor i are Neg(i), those of candidate j the anchors i with j in Neg(i). With
    `gradient='nt-xent'` the positives are classes too, and the labels, and `temperature`
    replaces `posterior_temperature`.

    Args:
        za, zc: (N, D), (M, D); ha, hc: (N, H), (M, H), or both None: no layer is known.
        weight, bias: the layer's (D, H) and (D,). Without weight, z is taken as it is.
        use_bias: False: no gradient of the bias. A known weight with bias None says so too.
    """
    assert gradient in ("pseudo-label", "nt-xent"), gradient
    assert use_bias or bias is None, "a layer without bias has no bias vector"
    if weight is None and use_bias:
        bias = za.new_zeros(za.shape[1])

    def gradients(z: Tensor, h: Tensor | None, others: Tensor, neg: Tensor, pos: Tensor) -> Tensor:
        rows, labels, t = range(z.shape[0]), None, posterior_temperature
        classes = [members(neg, i) for i in rows]
        if gradient == "nt-xent":
            classes = [members(neg | pos, i) for i in rows]
            labels = [[classes[i].index(p) for p in members(pos, i)] for i in rows]
            t = temperature
        f = unit(others)
        return last_layer_gradients(h, z, classes, f, weight, bias, temperature=t, labels=labels)

    anchor_gradients = gradients(za, ha, zc, negatives, positives)
    return dots(anchor_gradients, gradients(zc, hc, za, negatives.T, positives.T))


def scale(score: Tensor, negatives: Tensor, scaling: str) -> Tensor:
    """Scale a score (N, M) over each Neg(i): 'minmax', 'zscore' or 'none'; 0 outside Neg(i).

    A row constant over Neg(i), that is max - min <= 64 eps max(1, max|x|), becomes 1 (minmax) or
    0 (zscore). The deviation divides by n. Differentiable in `score`.
    """
    assert scaling in ("minmax", "zscore", "none"), scaling
    scaled = zeros(negatives, score)
    for i in range(len(scaled)):
        values = {j: score[i, j] for j in members(negatives, i)}
        if not values:
            continue
        low, high = min(values.values()), max(values.values())
        size = max(1.0, abs(float(low.detach())), abs(float(high.detach())))
        constant = float((high - low).detach()) <= 64 * torch.finfo(score.dtype).eps * size
        mean = sum(values.values()) / len(values)
        variance = sum((x - mean) ** 2 for x in values.values()) / len(values)
        for j, x in values.items():
            if scaling == "none":
                scaled[i][j] = x
            elif scaling == "minmax":
                scaled[i][j] = torch.ones_like(x) if constant else (x - low) / (high - low)
            else:
                scaled[i][j] = torch.zeros_like(x) if constant else (x - mean) / variance.sqrt()
    return grid(scaled)


def weights(
    scores: Sequence[Tensor], mix: Tensor, negatives: Tensor,
    *, scaling: str, mass: str, hardness: float | None = None,
) -> Tensor:  # fmt: skip
    """w_ij = sum_k mix_k score_k,ij after scaling (N, M); 0 outside Neg(i).

    Args:
        scores: K raw scores (N, M); none: weight 1 on every negative.
        mix: (K,), used as it is. Differentiable in mix and scores.
        scaling: 'minmax'; 'zscore-exp', exp(hardness * mix of the standardized scores); or
            'none', the mix of raw scores clamped at 0.
        mass: 'mean' divides by the mean weight over Neg(i), an all-zero row becoming 1; 'none'.
        hardness: only with 'zscore-exp', where None is 1.
    """
    assert mass in ("mean", "none"), mass
    if hardness is not None and scaling != "zscore-exp":
        raise ValueError("hardness is only used with scaling='zscore-exp'")
    component = {"minmax": "minmax", "zscore-exp": "zscore", "none": "none"}[scaling]
    scaled = [scale(score, negatives, component) for score in scores]
    w = zeros(negatives, mix)
    for i in range(len(w)):
        columns = members(negatives, i)
        for j in columns:
            w[i][j] = sum((mix[k] * scaled[k][i, j] for k in range(len(scaled))), w[i][j])
            if not scaled:
                w[i][j] = mix.new_ones(())
            elif scaling == "zscore-exp":
                w[i][j] = torch.exp((1.0 if hardness is None else hardness) * w[i][j])
            elif scaling == "none":
                w[i][j] = torch.clamp(w[i][j], min=0)
        if mass == "mean" and columns:
            mean = sum(w[i][j] for j in columns) / len(columns)
            empty = all(float(w[i][j].detach()) == 0 for j in columns)
            for j in columns:
                w[i][j] = mix.new_ones(()) if empty else w[i][j] / mean
    return grid(w)


def hcl_weights(sim: Tensor, negatives: Tensor, *, hardness: float, temperature: float) -> Tensor:
    """exp(hardness s/temperature) over its mean on Neg(i) (N, M); differentiable in sim (N, M)."""
    w = zeros(negatives, sim)
    for i in range(len(w)):
        raw = {j: torch.exp(hardness * sim[i, j] / temperature) for j in members(negatives, i)}
        for j in raw:
            w[i][j] = raw[j] / (sum(raw.values()) / len(raw))
    return grid(w)


def info_nce(
    logits: Tensor, positives: Tensor, negatives: Tensor, weights: Tensor,
    *, class_prior: float = 0.0, temperature: float, positives_in_denominator: bool = False,
    positive_weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Mean over the anchors with positives of the mean over p of -log(e^{l_p}/(e^{l_p} + G)).

    G = sum_j w_ij e^{l_ij}, or with a class prior, n_i being the number of negatives,
    G = max((sum_j w_ij e^{l_ij} - class_prior n_i e^{l_p})/(1 - class_prior), n_i e^{-1/tau}).
    With `positives_in_denominator` the other positives join the denominator, and e^{l_p} in G is
    the mean over the positives.

    Args:
        logits, weights: (N, M); the logits are already divided by `temperature`, which itself
            enters the floor of G only.
        positive_weights: (N, M), rows summing to 1, in place of the mean over positives.
    """
    losses = []
    for i in range(logits.shape[0]):
        pos, neg = members(positives, i), members(negatives, i)
        e = {j: torch.exp(logits[i, j]) for j in pos + neg}
        loss = logits.new_zeros(())
        for p in pos:
            g = sum((weights[i, j] * e[j] for j in neg), logits.new_zeros(()))
            if class_prior > 0:
                same = sum(e[q] for q in pos) / len(pos) if positives_in_denominator else e[p]
                g = (g - class_prior * len(neg) * same) / (1 - class_prior)
                g = torch.clamp(g, min=len(neg) * math.exp(-1 / temperature))
            top = sum(e[q] for q in pos) if positives_in_denominator else e[p]
            share = 1 / len(pos) if positive_weights is None else positive_weights[i, p]
            loss = loss - share * torch.log(e[p] / (top + g))
        if pos:
            losses.append(loss)
    return torch.stack(losses).mean()


def jsd(scores_raw: Tensor, positives: Tensor, negatives: Tensor, weights: Tensor) -> Tensor:
    """Mean over anchors of (mean over Neg(i) of w E-) - (mean over Pos(i) of E+); all (N, M).

    E+ = log 2 - softplus(-x), E- = softplus(-x) + x - log 2. An absent part counts as 0.
    """
    losses = []
    for i in range(scores_raw.shape[0]):
        loss = scores_raw.new_zeros(())
        pos, neg = members(positives, i), members(negatives, i)
        for j in neg:
            x = scores_raw[i, j]
            loss = loss + weights[i, j] * (functional.softplus(-x) + x - math.log(2)) / len(neg)
        for j in pos:
            loss = loss - (math.log(2) - functional.softplus(-scores_raw[i, j])) / len(pos)
        losses.append(loss)
    return torch.stack(losses).mean()


def nt_xent_simclr(z0: Tensor, z1: Tensor, temperature: float) -> Tensor:
    """SimCLR's NT-Xent of two views (n, D): cross-entropy of the other view against the rest."""
    n = z0.shape[0]
    f = unit(torch.cat([z0, z1]))
    losses = []
    for i in range(2 * n):
        others = [j for j in range(2 * n) if j != i]
        logits = torch.stack([torch.dot(f[i], f[j]) / temperature for j in others])
        target = torch.tensor(others.index((i + n) % (2 * n)))
        losses.append(functional.cross_entropy(logits, target))
    return torch.stack(losses).mean()


def hcl_criterion(
    z0: Tensor, z1: Tensor, *, temperature: float, hardness: float, class_prior: float
) -> Tensor:
    """HCL's loss of two views (n, D), 2n anchors, the gradient flowing through its weights."""
    n = z0.shape[0]
    f = unit(torch.cat([z0, z1]))
    losses = []
    for i in range(2 * n):
        pos = torch.exp(torch.dot(f[i], f[(i + n) % (2 * n)]) / temperature)
        cosines = [torch.dot(f[i], f[j]) for j in range(2 * n) if j % n != i % n]
        w = [torch.exp(hardness * c / temperature) for c in cosines]
        neg = [torch.exp(c / temperature) for c in cosines]
        total = sum(a * b for a, b in zip(w, neg, strict=True)) / (sum(w) / len(w))
        g = (total - class_prior * len(neg) * pos) / (1 - class_prior)
        g = torch.clamp(g, min=len(neg) * math.exp(-1 / temperature))
        losses.append(-torch.log(pos / (pos + g)))
    return torch.stack(losses).mean()


def batch_loss(
    z0: Tensor, z1: Tensor, h0: Tensor | None, h1: Tensor | None,
    *, layout: str = "both",
    components: Sequence[str] = ("uncertainty", "similarity", "representativeness"), mix: Tensor,
    scaling: str = "minmax", mass: str = "mean", hardness: float | None = None,
    temperature: float = 0.5, class_prior: float = 0.0, similarity_gradient: bool = False,
    normalize: bool = True, positives_in_denominator: bool = False, labels: Tensor | None = None,
    **uncertainty_options: Any,
) -> Tensor:  # fmt: skip
    """Weighted InfoNCE of a two-view batch: scores, weights, loss.

    Args:
        z0, z1: (n, D); h0, h1: (n, H) or None. layout: 'both' or 'one-way'.
        components: the scores, in the order of `mix` (K,), which is used as it is.
        similarity_gradient: let the gradient to z flow through the similarity score too.
        normalize: logits are cosines, or else raw products, over `temperature`.
        labels: (n,), -1 for none.
        uncertainty_options: weight, bias, use_bias, posterior_temperature, gradient.
    """
    if layout == "both":
        positives, negatives = masks_both(z0.shape[0])
        za = zc = torch.cat([z0, z1])
        ha = hc = None if h0 is None or h1 is None else torch.cat([h0, h1])
    else:
        assert layout == "one-way", layout
        positives, negatives = masks_one_way(z0.shape[0])
        za, zc, ha, hc = z0, z1, h0, h1
    if labels is not None:
        of_views = labels.repeat(2) if layout == "both" else labels
        positives, negatives = with_classes(positives, negatives, of_views, of_views)
    options = {"temperature": temperature, **uncertainty_options}
    score = {
        "uncertainty": lambda: uncertainty(za, zc, ha, hc, negatives, positives, **options),
        "similarity": lambda: similarity(za, zc),
        "representativeness": lambda: representativeness(zc, negatives),
    }
    scores = [score[name]() for name in components]
    for k, name in enumerate(components):
        if not (name == "similarity" and similarity_gradient):
            scores[k] = scores[k].detach()
    w = weights(scores, mix, negatives, scaling=scaling, mass=mass, hardness=hardness)
    logits = (similarity(za, zc) if normalize else dots(za, zc)) / temperature
    loss = {"class_prior": class_prior, "positives_in_denominator": positives_in_denominator}
    return info_nce(logits, positives, negatives, w, temperature=temperature, **loss)


def audit(
    weights: Tensor, negatives: Tensor, anchor_labels: Tensor, candidate_labels: Tensor, k: int
) -> dict[str, Any]:
    """How often heavy negatives share the anchor's label, and how spread the weights are.

    weights, negatives: (N, M); anchor_labels: (N,); candidate_labels: (M,). Anchors without
    negatives are skipped; among equal weights the lower index comes first in either order. The
    k heaviest negatives count for false_negative_rate and distinct_class_share; deciles ascend in
    weight and are pooled (NaN if empty); an all-zero row has 0 effective negatives.
    """
    shares, distinct, effective = [], [], []
    deciles: list[list[bool]] = [[] for _ in range(10)]
    for i in range(negatives.shape[0]):
        pairs = [(float(weights[i, j]), int(candidate_labels[j])) for j in members(negatives, i)]
        if not pairs:
            continue
        own = int(anchor_labels[i])
        top = [label for _, label in sorted(pairs, key=lambda pair: -pair[0])[:k]]
        shares.append(sum(label == own for label in top) / len(top))
        distinct.append(len(set(top)) / len(top))
        for rank, (_, label) in enumerate(sorted(pairs, key=lambda pair: pair[0])):
            deciles[rank * 10 // len(pairs)].append(label == own)
        squares = sum(w**2 for w, _ in pairs)
        effective.append(sum(w for w, _ in pairs) ** 2 / squares if squares > 0 else 0.0)
    return {
        "false_negative_rate": sum(shares) / len(shares),
        "decile_false_negative_rate": [sum(d) / len(d) if d else math.nan for d in deciles],
        "distinct_class_share": sum(distinct) / len(distinct),
        "effective_negatives": sum(effective) / len(effective),
    }


def matched_rate(
    similarity: Tensor, weights: Tensor, negatives: Tensor, labels: Tensor, k: int, *,
    samples: int, window: int = 2,
) -> float:  # fmt: skip
    """Share of an anchor's label among the negatives as similar as its k heaviest.

    similarity, weights, negatives: (N, M); labels: (M,), of anchors and candidates alike.
    Candidates j and j' show the same sample if they are equal modulo `samples`. Of each heavy
    negative the matches are as many negatives just above as just below it in similarity, at most
    `window`, of other samples; one without matches is its own.
    """
    rates = []
    for i in range(negatives.shape[0]):
        columns = members(negatives, i)
        by_similarity = sorted(columns, key=lambda j: -float(similarity[i, j]))
        own = []
        for j in sorted(columns, key=lambda j: -float(weights[i, j]))[:k]:
            place = by_similarity.index(j)
            reach = min(window, place, len(columns) - 1 - place)
            near = by_similarity[place - reach : place + reach + 1]
            found = [bool(labels[m] == labels[i]) for m in near if m % samples != j % samples]
            found = found or [bool(labels[j] == labels[i])]
            own.append(sum(found) / len(found))
        if own:
            rates.append(sum(own) / len(own))
    return sum(rates) / len(rates) if rates else math.nan


def area_under_curve(values: Tensor, negatives: Tensor, labels: Tensor) -> float:
    """How often a negative of the anchor's label has a larger value than another, ties as half."""
    areas = []
    for i in range(negatives.shape[0]):
        same = [float(values[i, j]) for j in members(negatives, i) if labels[j] == labels[i]]
        other = [float(values[i, j]) for j in members(negatives, i) if labels[j] != labels[i]]
        if same and other:
            wins = sum((a > b) + (a == b) / 2 for a in same for b in other)
            areas.append(wins / (len(same) * len(other)))
    return sum(areas) / len(areas) if areas else math.nan


def masks_towards(
    keys: Tensor, shares: Tensor, *, offset: int = 0, total: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Positives, negatives and shares (N, M) of anchors aimed at keys (N, P) with shares (N, P)."""
    n, total = keys.shape[0], keys.shape[0] if total is None else total
    share = torch.zeros(n, total, dtype=torch.float64)
    for i in range(n):
        for key, part in zip(keys[i].tolist(), shares[i].tolist(), strict=True):
            share[i, key + offset] += part
    return share > 0, share == 0, share


def masks_queue(
    samples: Sequence[int], queue: Sequence[int],
    *, batch_negatives: bool = False, aims: Sequence[dict[int, float]] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Positives, negatives and shares (N, N + Q) of queries against [batch keys; queue].

    Args:
        samples: what each key of the batch shows; queue: what each key of the queue shows.
        aims: for each query its keys of the batch and their shares; its own by default. Keys that
            show the sample of a key aimed at, with a share above 0, are no negatives.
    """
    n, everything = len(samples), [*samples, *queue]
    positives = torch.zeros(n, len(everything), dtype=torch.bool)
    negatives, share = torch.zeros_like(positives), torch.zeros(n, len(everything)).double()
    for i in range(n):
        aim = {i: 1.0} if aims is None else {k: part for k, part in aims[i].items() if part > 0}
        shown = {samples[k] for k in aim}
        for j, sample in enumerate(everything):
            if j in aim:
                positives[i, j], share[i, j] = True, aim[j]
            elif sample not in shown:
                negatives[i, j] = j >= n or batch_negatives
    return positives, negatives, share


def with_own(mask: Tensor, count: int, value: bool) -> Tensor:
    """A mask (N, M) with `count` columns of `value` to its right."""
    return torch.cat([mask, torch.full((mask.shape[0], count), value)], dim=1)


def own_scores(
    za: Tensor, zc: Tensor, zo: Tensor, ha: Tensor | None, hc: Tensor | None, ho: Tensor | None,
    positives: Tensor, negatives: Tensor,
    *, use_bias: bool = True, posterior_temperature: float = 1.0, every_view_is_both: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The three scores (N, M + S) where anchor i has S further negatives zo[i] of its own.

    The classes of an anchor are all its negatives, its own ones included; those of a candidate the
    anchors it is a negative of; those of an own negative all anchors.

    Args:
        za: (N, D); zc: (M, D); zo: (N, S, D); ha, hc, ho: likewise with H, or all None.
        every_view_is_both: zc is za, and a view has one gradient, that of the anchor.
    """
    n, m, s = za.shape[0], zc.shape[0], zo.shape[1]
    fa, fc = unit(za), unit(zc)
    fo = [unit(zo[i].detach()) if s else zo[i] for i in range(n)]
    sim = [[torch.dot(fa[i], f) for f in [*fc, *fo[i]]] for i in range(n)]

    r = [[za.new_zeros(()) for _ in range(m + s)] for _ in range(n)]
    for i in range(n):
        mine = {j: fc[j] for j in members(negatives, i)} | {m + k: fo[i][k] for k in range(s)}
        for j, f in mine.items():
            distances = [1 - torch.dot(f, other) for k, other in mine.items() if k != j]
            if distances:
                r[i][j] = torch.stack(distances).mean()

    bias = za.new_zeros(za.shape[1]) if use_bias else None
    options: dict[str, Any] = {"temperature": posterior_temperature}
    everyones = torch.cat([fc, *fo])
    ga = last_layer_gradients(
        ha, za, [members(negatives, i) + [m + i * s + k for k in range(s)] for i in range(n)],
        everyones, None, bias, **options,
    )  # fmt: skip
    gc = ga
    if not every_view_is_both:
        classes = [members(negatives.T, j) for j in range(m)]
        gc = last_layer_gradients(hc, zc, classes, fa, None, bias, **options)
    go = [
        last_layer_gradients(
            None if ho is None else ho[i], zo[i], [range(n)] * s, fa, None, bias, **options
        )
        if s
        else ga[:0]
        for i in range(n)
    ]
    u = [[torch.dot(ga[i], g) for g in [*gc, *go[i]]] for i in range(n)]
    return {"uncertainty": grid(u), "similarity": grid(sim), "representativeness": grid(r)}


def own_loss(
    za: Tensor, zc: Tensor, zo: Tensor, ha: Tensor | None, hc: Tensor | None, ho: Tensor | None,
    positives: Tensor, negatives: Tensor,
    *, components: Sequence[str], mix: Tensor, scaling: str = "minmax", mass: str = "mean",
    hardness: float | None = None, similarity_gradient: bool = False, temperature: float = 0.5,
    class_prior: float = 0.0, products: str = "cosine", logit_factor: float = 1.0,
    shares: Tensor | None = None, positives_in_denominator: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    """Weighted InfoNCE where anchor i has the further negatives zo[i] (S, D), constants.

    Args:
        scaling: those of `weights`, or 'hcl': exp(hardness s/temperature).
        logit_factor: multiplies the logits of the own negatives.
        shares: (N, M), in place of the mean over positives.
        options: those of `own_scores`.
    """
    n, m, s = za.shape[0], zc.shape[0], zo.shape[1]
    scores = own_scores(za, zc, zo, ha, hc, ho, positives, negatives, **options)
    flowing = scores["similarity"]
    if not similarity_gradient:
        scores["similarity"] = flowing.detach()
    scores["representativeness"] = scores["representativeness"].detach()
    pos, neg = with_own(positives, s, False), with_own(negatives, s, True)
    if scaling == "hcl":
        assert hardness is not None
        w = hcl_weights(scores["similarity"], neg, hardness=hardness, temperature=temperature)
    else:
        chosen = [scores[name] for name in components]
        w = weights(chosen, mix, neg, scaling=scaling, mass=mass, hardness=hardness)
    logits = flowing
    if products == "dot":
        logits = grid([[torch.dot(za[i], z) for z in [*zc, *zo[i].detach()]] for i in range(n)])
    factor = torch.tensor([1.0] * m + [logit_factor] * s, dtype=za.dtype)
    if shares is not None:
        shares = torch.cat([shares, shares.new_zeros(n, s)], dim=1)
    return info_nce(
        logits * factor / temperature, pos, neg, w, class_prior=class_prior,
        temperature=temperature, positives_in_denominator=positives_in_denominator,
        positive_weights=shares,
    )  # fmt: skip


def hard_jsd(x: Tensor, groups: Sequence[int], *, hardness: float, class_prior: float) -> Tensor:
    """HCL on the Jensen-Shannon estimate, as its paper has it; x (N, M), the own group per member.

    Negatives by exp(2 hardness x / max|x|), of mean 1; the debiased part kept at or above 0.
    """
    n, m = x.shape
    sizes = [x[i, j].abs() for i in range(n) for j in range(m) if j != groups[i]]
    largest = torch.stack(sizes).amax()
    total = x.new_zeros(())
    for i in range(n):
        neg = [j for j in range(m) if j != groups[i]]
        factors = [torch.exp(2 * hardness * x[i, j] / largest) for j in neg]
        mean = torch.stack(factors).mean()
        hard = x.new_zeros(())
        for j, factor in zip(neg, factors, strict=True):
            hard = hard + factor / mean * functional.softplus(x[i, j]) / len(neg)
        own = x[i, groups[i]]
        rest = (hard - class_prior * functional.softplus(own)) / (1 - class_prior)
        if float(rest.detach()) < 0:
            rest = x.new_zeros(())
        total = total + rest - math.log(2) - (math.log(2) - functional.softplus(-own))
    return total / n


def hard_jsd_public(
    x: Tensor, groups: Sequence[int], *, hardness: float, class_prior: float
) -> Tensor:
    """HCL on the Jensen-Shannon estimate, as its public code computes it, constants included.

    Every pair has a part in both sums: x counts as 0 for the own group among the negatives, and for
    the other groups among the positives. The exponent is negative.
    """
    n, m = x.shape
    total = x.new_zeros(())
    masked = [[x.new_zeros(()) if j == groups[i] else x[i, j] for j in range(m)] for i in range(n)]
    largest = grid(masked).abs().amax()
    for i in range(n):
        factors = [torch.exp(-2 * hardness * entry / largest) for entry in masked[i]]
        mean = torch.stack(factors).mean()
        for j in range(m):
            weighted = factors[j] / mean * functional.softplus(masked[i][j])
            expectation = weighted / (1 - class_prior) - math.log(2)
            total = total + expectation / (n * (m - 1))
            own = x[i, j] if j == groups[i] else x.new_zeros(())
            correction = class_prior / (1 - class_prior) * functional.softplus(own)
            total = total - (math.log(2) - functional.softplus(-own) - correction) / n
    return total


def masks_windows(
    documents: Sequence[int], *, reach: int = 1, texts: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Positives and negatives (n, n) of n consecutive sentences.

    A neighbor up to `reach` away in the same document is a positive; the sentence itself and, if
    `texts` are given, those of the same text that are no neighbors are neither.
    """
    n = len(documents)
    positives = torch.zeros(n, n, dtype=torch.bool)
    negatives = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            near = i != j and abs(i - j) <= reach and documents[i] == documents[j]
            same = i == j or (texts is not None and texts[i] == texts[j])
            positives[i, j], negatives[i, j] = near, not near and not same
    return positives, negatives


def quickthought(f: Tensor, g: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Cross-entropy (f, g (n, D)) of f_i . g_j over j against a uniform target over Pos(i).

    Neither positive nor negative: -inf. The mean over sentences that have a neighbor.
    """
    losses = []
    for i in range(f.shape[0]):
        window = members(positives, i)
        if window:
            known = members(positives | negatives, i)
            scores = torch.stack([torch.dot(f[i], g[j]) for j in known])
            log_probability = dict(zip(known, functional.log_softmax(scores, dim=0), strict=True))
            losses.append(-sum(log_probability[p] for p in window) / len(window))
    return torch.stack(losses).mean()
