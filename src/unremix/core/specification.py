"""UnReMix in one function, as one would first write it: the specification.

Dense, differentiable and written straight from the paper for its main setting: two views of each
sample (layout ``both``), scores scaled to [0, 1], average weight 1. It shares no code with the rest
of the core, which computes the same block by block and for every other setting; the tests hold the
two against each other. Letters: N pairs of views, D dimensions of z, H dimensions of h.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def unremix(
    z0: Tensor,
    z1: Tensor,
    h0: Tensor,
    h1: Tensor,
    mix: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 0.5,
    posterior_temperature: float = 1.0,
) -> Tensor:
    """UnReMix: the mean over anchors i, and over the positives p of each, of the following.

    L_ip = -log( e^{s_ip/τ} / (Σ_{q in Pos(i)} e^{s_iq/τ} + Σ_{j in Neg(i)} w_ij e^{s_ij/τ}) )

    Without labels, the other view of its sample is an anchor's only positive.

    Args:
        z0: Embeddings of the first views, shape (N, D); N ≥ 3, all different and none 0. A
            specification has no special cases: with N = 2, r is constant and its scaling 0/0.
        z1: Embeddings of the second views, shape (N, D).
        h0: Inputs of the last layer, z = W h + b, for the first views, shape (N, H).
        h1: Likewise for the second views.
        mix: λ of uncertainty, similarity and representativeness, shape (3,).
        labels: The class of each sample, -1 where it has none, shape (N,): views of one class are
            positives of each other. Every class lacks at least three views.
        temperature: τ.
        posterior_temperature: t.

    Returns:
        The loss, a scalar; autograd differentiates it any number of times.

    Example:
        >>> z0, z1, h0, h1 = torch.randn(4, 8, 5).unbind()
        >>> bool(unremix(z0, z1, h0, h1, torch.ones(3) / 3) > 0)
        True

    Reference:
        Tabassum et al. 2022, Eq. 1 to 5 and Algorithm 1.
    """
    z, h = torch.cat([z0, z1]), torch.cat([h0, h1])  # all 2N views are anchors and candidates
    sample = torch.arange(len(z0), device=z.device)
    group = sample if labels is None else torch.where(labels < 0, -1 - sample, labels)
    group = group.repeat(2)
    negative = group[:, None] != group  # Neg(i): the views of other samples or classes, (2N, 2N)
    positive = ~negative & ~torch.eye(len(z), dtype=torch.bool, device=z.device)  # Pos(i)
    count = negative.sum(1, keepdim=True)
    f = normalize(z, dim=1)
    s = f @ f.T  # similarity: s_ij = f_i · f_j

    with torch.no_grad():  # the scores carry no gradient
        # Uncertainty: u_ij = <g_i, g_j>, g the gradient at (W, b) of the cross-entropy of the
        # pseudo-posterior p over Neg(i) against its most confident class y (Eq. 2 and 3).
        p = (s / posterior_temperature).masked_fill(~negative, -torch.inf).softmax(1)
        y = f[p.argmax(1)]
        d = (p @ f - y) / posterior_temperature  # at f
        delta = (d - (d * f).sum(1, keepdim=True) * f) / z.norm(dim=1, keepdim=True)  # at z
        u = (delta @ delta.T) * (h @ h.T + 1)  # at (W, b): g = (δ hᵀ, δ)

        # Representativeness: r_ij = mean over j' in Neg(i), j' ≠ j, of 1 - f_j · f_j' (Eq. 4).
        total = negative.to(f.dtype) @ f  # Σ_{j' in Neg(i)} f_j'
        r = 1 - (total @ f.T - 1) / (count - 1)

        # Each score to [0, 1] over Neg(i).
        scaled = []
        for score in (u, s, r):
            low = score.masked_fill(~negative, torch.inf).amin(1, keepdim=True)
            high = score.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
            scaled.append((score - low) / (high - low))

    # Weights: w_ij = Σ_k λ_k C^k_ij over Neg(i), of mean 1 (Eq. 5).
    mixed = mix[0] * scaled[0] + mix[1] * scaled[1] + mix[2] * scaled[2]
    w = mixed.masked_fill(~negative, 0.0)
    w = w / (w.sum(1, keepdim=True) / count)

    # The loss (Eq. 1), with labels in SupCon's outer form.
    denominator = ((positive + w) * (s / temperature).exp()).sum(1, keepdim=True)
    losses = (denominator.log() - s / temperature).masked_fill(~positive, 0.0)
    return (losses.sum(1) / positive.sum(1)).mean()
