"""Who is whose positive and negative.

A layout of N anchors and M candidates says three things: which candidates are an anchor's
positives, what share each has in the anchor's loss, and which of the other candidates are its
negatives. Two rules decide the last: a candidate that carries one of an anchor's ids is never its
negative, and neither is one that is excluded explicitly. With labels, negatives of the anchor's own
class become its positives. Masks are made for some anchors, or some candidates, at a time: the
whole (N, M) mask is never needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from unremix.core.checks import check_indices, checks_on
from unremix.core.gather import JointBatch, gather_views
from unremix.core.views import ExtraNegatives, Views, stack

Layout = Literal["both", "one-way", "symmetric"]

EVERYTHING = slice(None)
MANY = 16  # positives per anchor; beyond, a whole table of them is cheaper
NO_ID = torch.iinfo(torch.int64).min  # an id that no candidate has


@dataclass(frozen=True)
class Pairs:
    """The positives and negatives of N anchors among M candidates.

    Use one of the constructors: :meth:`both_views`, :meth:`one_way`, :meth:`aimed`,
    :meth:`queue`, :meth:`windows`, :meth:`membership` or :meth:`from_masks`.

    Args:
        positives: The candidates that are positives of each anchor, shape (N, P). Each carries an
            id of the anchor or is excluded, so no positive is ever a negative.
        shares: How much each positive counts among those of its anchor, shape (N, P); the loss
            divides by their sum. 0 marks an unused place.
        anchor_ids: The ids of each anchor, shape (N, K).
        candidate_ids: The id of each candidate, shape (M,). Candidates with an id of the anchor
            are not its negatives.
        excluded: Further candidates that are not negatives, boolean, shape (N, M), or (1, M) where
            they are the same for all anchors.
        non_negatives: The candidates that are not negatives of each anchor, shape (N, E), where
            they are few and as many for every anchor; None where only the mask is known.
        labels: The class of each anchor, shape (N,), and of each candidate, shape (M,), where
            classes are used; see :meth:`labeled`.
    """

    positives: Tensor
    shares: Tensor
    anchor_ids: Tensor
    candidate_ids: Tensor
    excluded: Tensor | None = None
    non_negatives: Tensor | None = None
    labels: tuple[Tensor, Tensor] | None = None

    @property
    def num_anchors(self) -> int:
        """N."""
        return self.positives.shape[0]

    @property
    def num_candidates(self) -> int:
        """M."""
        return self.candidate_ids.shape[0]

    def __getitem__(self, anchors: slice) -> Pairs:
        """The same for some of the anchors, with the positives of their class listed."""
        some = self.map_anchors(lambda rows: rows[anchors])
        if self.labels is None:
            return some
        listed = some.positive_mask() & some.negatives().any(1, keepdim=True)
        columns = torch.arange(self.num_candidates, device=listed.device)
        shares = listed.to(self.shares.dtype)
        return replace(some, positives=columns.expand(listed.shape), shares=shares)

    def map_anchors(self, change: Callable[[Tensor], Tensor]) -> Pairs:
        """The same with other anchors: what has a row for each of them is cut, or gathered."""
        excluded, few, labels = self.excluded, self.non_negatives, self.labels
        if excluded is not None and len(excluded) > 1:
            excluded = change(excluded)
        return replace(
            self,
            positives=change(self.positives),
            shares=change(self.shares),
            anchor_ids=change(self.anchor_ids),
            excluded=excluded,
            non_negatives=None if few is None else change(few),
            labels=None if labels is None else (change(labels[0]), labels[1]),
        )

    def labeled(self, anchors: Tensor, candidates: Tensor) -> Pairs:
        """The same with labels: negatives of an anchor's own class become positives of it.

        All positives of an anchor have equal shares. An anchor that has no negatives left has no
        positives either: it has no loss.

        Args:
            anchors: The class of each anchor, -1 where it is unlabeled, shape (N,).
            candidates: Likewise of each candidate, shape (M,).

        Example:
            >>> labels = torch.tensor([0, 0, -1])
            >>> pairs = Pairs.one_way(3).labeled(labels, labels)
            >>> pairs.positive_mask().int(), pairs.negatives().int()
            (tensor([[1, 1, 0],
                    [1, 1, 0],
                    [0, 0, 1]], dtype=torch.int32), tensor([[0, 0, 1],
                    [0, 0, 1],
                    [1, 1, 0]], dtype=torch.int32))
        """
        known = torch.where(anchors < 0, NO_ID, anchors.long())
        return replace(self, non_negatives=None, labels=(known, candidates))

    def negatives(self, *, candidates: slice = EVERYTHING) -> Tensor:
        """Which candidates are negatives of which anchors, boolean, shape (N, M).

        Args:
            candidates: The columns to make.
        """
        if self.non_negatives is not None and candidates == EVERYTHING:
            shape = self.num_anchors, self.num_candidates
            everything = self.non_negatives.new_ones(shape, dtype=torch.bool)
            return everything.scatter_(1, self.non_negatives, False)
        negatives = self._unlabeled_negatives(candidates)
        if self.labels is None:
            return negatives
        own, others = self.labels
        return negatives & (own[:, None] != others[candidates])

    def _unlabeled_negatives(self, candidates: slice) -> Tensor:
        """Which candidates would be negatives without labels, boolean, shape (N, M)."""
        ids, others = self.anchor_ids, self.candidate_ids[candidates]
        rules = [each[:, None] != others for each in ids.unbind(1)]  # each (N, M)
        if self.excluded is not None:
            rules.append(~self.excluded[:, candidates])
        return reduce(torch.logical_and, rules).expand(self.num_anchors, -1)

    def count_of(self, negatives: Tensor) -> Tensor:
        """How many negatives each anchor has, in a mask (N, M) of them, shape (N, 1)."""
        if self.non_negatives is None:
            return negatives.sum(1, keepdim=True, dtype=torch.int32)
        count = negatives.shape[1] - self.non_negatives.shape[1]  # no need to look
        return self.non_negatives.new_full((self.num_anchors, 1), count, dtype=torch.int32)

    def normalized_shares(self, dtype: torch.dtype) -> Tensor:
        """π: the shares of an anchor's positives, divided by their sum, shape (N, P)."""
        shares = self.shares.to(dtype)
        total = shares.sum(1, keepdim=True)
        return shares / torch.where(total > 0, total, 1.0)

    def targets(self, dtype: torch.dtype) -> Tensor:
        """π as a distribution of each anchor over all candidates, shape (N, M)."""
        shares = self.normalized_shares(dtype)
        nothing = shares.new_zeros(self.num_anchors, self.num_candidates)
        return nothing.scatter_add(1, self.positives, shares)

    def positive_mask(self, candidates: slice = EVERYTHING) -> Tensor:
        """Which candidates are positives of which anchors, boolean, shape (N, M).

        Args:
            candidates: The columns to make.
        """
        listed = self._listed(candidates)
        if self.labels is None:
            return listed
        own, others = self.labels
        same = own[:, None] == others[candidates]
        return listed | (same & self._unlabeled_negatives(candidates))

    def _listed(self, candidates: slice) -> Tensor:
        """Which candidates are listed as positives, boolean, shape (N, M)."""
        if self.positives.shape[1] > MANY:
            return self.targets(torch.float32)[:, candidates] > 0
        columns = torch.arange(self.num_candidates, device=self.positives.device)[candidates]
        mask = torch.zeros((), dtype=torch.bool, device=columns.device)
        for each, share in zip(self.positives.unbind(1), self.shares.unbind(1), strict=True):
            mask = mask | ((each[:, None] == columns) & (share > 0)[:, None])
        return mask

    def has_positives(self) -> bool:
        """Whether any anchor has a positive; waits for the device."""
        return bool((self.shares > 0).any())

    def has_negatives(self) -> bool:
        """Whether any anchor has a negative; waits for the device."""
        starts = range(0, self.num_anchors, 64)  # most often the first few anchors answer it
        return any(bool(self[each : each + 64].negatives().any()) for each in starts)

    @staticmethod
    def both_views(
        n: int,
        *,
        offset: int = 0,
        total: int | None = None,
        ids: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Pairs:
        """Two views of n samples, stacked: every view against all views of other samples (SimCLR).

        Args:
            n: Samples whose views are anchors.
            offset: Where these samples stand among all samples.
            total: Samples whose views are candidates; n by default.
            ids: An id of each of the ``total`` samples, shape (total,): samples with the same id
                are not negatives of each other. By default all differ.
            device: Where the pairs are.

        Example:
            >>> Pairs.both_views(2).negatives().int()
            tensor([[0, 1, 0, 1],
                    [1, 0, 1, 0],
                    [0, 1, 0, 1],
                    [1, 0, 1, 0]], dtype=torch.int32)
        """
        total = n if total is None else total
        sample = torch.arange(n, device=device) + offset
        views = torch.stack([sample, sample + total], dim=1).repeat(2, 1)  # both of each sample
        known = torch.arange(total, device=device) if ids is None else ids
        return Pairs(
            positives=torch.cat([sample + total, sample])[:, None],
            shares=torch.ones(2 * n, 1, device=device),
            anchor_ids=known[offset : offset + n].repeat(2)[:, None],
            candidate_ids=known.repeat(2),
            non_negatives=views if ids is None else None,
        )

    @staticmethod
    def one_way(
        n: int,
        *,
        offset: int = 0,
        total: int | None = None,
        ids: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Pairs:
        """First views against second views (the paper's Eq. 1): the positive is the own one.

        The arguments are those of :meth:`both_views`.

        Example:
            >>> Pairs.one_way(2).negatives()
            tensor([[False,  True],
                    [ True, False]])
        """
        itself, whole = torch.arange(n, device=device)[:, None], torch.ones(n, 1, device=device)
        pairs = Pairs.aimed(itself, whole, offset=offset, total=total, ids=ids)
        return replace(pairs, non_negatives=pairs.positives) if ids is None else pairs

    @staticmethod
    def aimed(
        keys: Tensor,
        shares: Tensor,
        *,
        offset: int = 0,
        total: int | None = None,
        ids: Tensor | None = None,
    ) -> Pairs:
        """Anchors aimed at given keys, with shares (mixed images): all other keys are negatives.

        A key with share 0 is a negative too.

        Args:
            keys: The keys each anchor is aimed at, shape (N, P).
            shares: The share of each in the anchor's loss, shape (N, P).
            offset: Where, among ``total`` keys, number 0 stands.
            total: M; N by default.
            ids: As in :meth:`both_views`.

        Example:
            >>> keys, shares = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.7, 0.3], [1, 0]])
            >>> Pairs.aimed(keys, shares).negatives()
            tensor([[False, False],
                    [ True, False]])
        """
        keys = keys + offset
        if keys.shape[1] > 1:
            shares = _merge_repeats(keys, shares)
        if ids is None:
            ids = torch.arange(keys.shape[0] if total is None else total, device=keys.device)
        return Pairs(keys, shares, torch.where(shares > 0, ids[keys], NO_ID), ids)

    @staticmethod
    def queue(
        sample_ids: Tensor,
        queue_ids: Tensor,
        *,
        batch_negatives: bool = False,
        keys: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> Pairs:
        """Queries against [the batch's keys; queue] (MoCo): the positive is the own key.

        Keys that show the sample of a positive are not negatives.

        Args:
            sample_ids: Which sample each key of the batch shows, shape (N,).
            queue_ids: Which sample each key of the queue shows, shape (Q,).
            batch_negatives: Whether the batch's other keys are negatives as well.
            keys: Which keys of the batch each query is aimed at, shape (N, P); its own by default.
            shares: The share of each in the query's loss, shape (N, P); a key with share 0 is
                not a positive.
        """
        sample_ids, queue_ids = sample_ids.long(), queue_ids.long()
        n, device = sample_ids.shape[0], sample_ids.device
        if keys is None or shares is None:
            keys, shares = torch.arange(n, device=device)[:, None], torch.ones(n, 1, device=device)
        in_batch = torch.arange(n + queue_ids.shape[0], device=device) < n
        return replace(
            Pairs.aimed(keys, shares, ids=sample_ids),
            candidate_ids=torch.cat([sample_ids, queue_ids]),
            excluded=None if batch_negatives else in_batch[None],
        )

    @staticmethod
    def windows(documents: Tensor, *, reach: int = 1, texts: Tensor | None = None) -> Pairs:
        """Consecutive sentences (Quick-Thought): positives are the neighbors within ``reach``.

        A sentence is never its own negative; neighbors never cross a document.

        Args:
            documents: The document of each sentence, in reading order, shape (N,).
            reach: How many sentences on either side are positives.
            texts: An id of each sentence's text, shape (N,): sentences with the same text are not
                negatives of each other.

        Example:
            >>> Pairs.windows(torch.tensor([0, 0, 0, 1])).positive_mask().int()
            tensor([[0, 1, 0, 0],
                    [1, 0, 1, 0],
                    [0, 1, 0, 0],
                    [0, 0, 0, 0]], dtype=torch.int32)
        """
        n, device = documents.shape[0], documents.device
        here = torch.arange(n, device=device)[:, None]  # (N, 1)
        steps = torch.arange(-reach, reach + 1, device=device)
        neighbor = (here + steps).clamp(0, n - 1)  # (N, 2 reach + 1), itself among them
        inside = (here + steps == neighbor) & (documents[neighbor] == documents[here])
        positive = inside & (steps != 0)
        positives = torch.where(positive, neighbor, here)  # itself in unused places
        ids = here[:, 0] if texts is None else texts
        return Pairs(
            positives=positives,
            shares=positive.float(),
            anchor_ids=ids[:, None],
            candidate_ids=ids,
            excluded=torch.zeros(n, n, dtype=torch.bool, device=device).scatter(1, positives, True),
        )

    @staticmethod
    def membership(groups: Tensor, num_groups: int) -> Pairs:
        """Members against groups (InfoGraph's nodes and graphs): the positive is the own group.

        Args:
            groups: The group of each anchor, shape (N,).
            num_groups: M.

        Raises:
            ValueError: For groups outside 0 … M - 1, or of another shape.
        """
        check_indices("groups", groups, num_groups)
        groups = groups.long()[:, None]
        whole = torch.ones(groups.shape, device=groups.device)
        return replace(Pairs.aimed(groups, whole, total=num_groups), non_negatives=groups)

    @staticmethod
    def from_masks(positives: Tensor, negatives: Tensor) -> Pairs:
        """General masks, both boolean of shape (N, M); an anchor's positives have equal shares.

        Raises:
            ValueError: If the masks are not boolean, differ in shape, or overlap.
        """
        if positives.dtype != torch.bool or negatives.dtype != torch.bool:
            raise ValueError(
                f"expected boolean masks, got {positives.dtype} and {negatives.dtype}; use .bool()"
            )
        if positives.dim() != 2 or positives.shape != negatives.shape:
            raise ValueError(
                f"expected two masks of one shape (N, M), got {tuple(positives.shape)} and "
                f"{tuple(negatives.shape)}; make one row per anchor and one column per candidate"
            )
        if checks_on(None, positives) and (both := int((positives & negatives).sum())):
            raise ValueError(
                f"expected disjoint masks, got {both} pairs that are both positive and negative; "
                "clear them in one of the masks"
            )
        candidates = torch.arange(positives.shape[1], device=positives.device)
        return Pairs(
            positives=candidates.expand(positives.shape),
            shares=positives.float(),
            anchor_ids=candidates.new_empty(positives.shape[0], 0),
            candidate_ids=candidates,
            excluded=~negatives,
        )


def _merge_repeats(keys: Tensor, shares: Tensor) -> Tensor:
    """Shares (N, P) in which a key that occurs twice for an anchor keeps all at its first place."""
    first = (keys[:, :, None] == keys[:, None, :]).int().argmax(2)  # (N, P)
    return torch.zeros_like(shares).scatter_add(1, first, shares)


@dataclass(frozen=True)
class ContrastInput:
    """What a loss compares with what: N anchors with M candidates.

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        extra: Further negatives of each anchor alone.
        joint: This process's part, where several share a loss: their mean is the loss of all.
        everyone: The anchors of all processes, where all of them hold the same candidates; the
            candidates themselves where every view is both.
    """

    anchors: Views
    candidates: Views
    pairs: Pairs
    extra: ExtraNegatives | None = None
    joint: JointBatch | None = None
    everyone: Views | None = None


def arrange(
    first: Views,
    second: Views,
    layout: Layout,
    joint: JointBatch | None = None,
    aims: tuple[Tensor, Tensor] | None = None,
) -> ContrastInput:
    """Anchors, candidates and pairs of a layout.

    Args:
        first: First views of N samples.
        second: Their second views.
        layout: ``both``: all 2N views are anchors and candidates; else first views against second
            views.
        joint: This process's part, where the candidates are those of all processes.
        aims: Keys and shares, both (N, P): each first view is aimed at these second views.
    """
    n, device = first.embeddings.shape[0], first.embeddings.device
    offset, total = (0, n) if joint is None else (joint.offset, joint.total)
    all_first, all_second = first, second
    if joint is not None:
        all_first, all_second = gather_views(first, joint), gather_views(second, joint)
    ids = all_first.ids
    if aims is not None:
        pairs = Pairs.aimed(*aims, offset=offset, total=total, ids=ids)
    else:
        make = Pairs.both_views if layout == "both" else Pairs.one_way
        pairs = make(n, offset=offset, total=total, ids=ids, device=device)
    anchors, candidates, everyone = first, all_second, all_first
    if aims is None and layout == "both":
        candidates = everyone = stack(all_first, all_second)
        anchors = candidates if joint is None else stack(first, second)
    return ContrastInput(
        anchors, candidates, pairs, joint=joint, everyone=None if joint is None else everyone
    )


def with_labels(compared: ContrastInput) -> ContrastInput:
    """The same with pairs that follow the labels of the views; see :meth:`Pairs.labeled`."""
    anchors, candidates = compared.anchors.labels, compared.candidates.labels
    if anchors is None or candidates is None:
        return compared
    return replace(compared, pairs=compared.pairs.labeled(anchors, candidates))
