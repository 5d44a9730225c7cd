"""Who is whose positive and negative.

Every layout says the same thing in the same words: a candidate of an anchor is its positive, its
negative, or neither. Almost all candidates are negatives, so only the others are stored, as sorted
lists of (anchor, candidate) links; the (N, M) mask is never built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor


@dataclass(frozen=True)
class Links:
    """Pairs (anchor, candidate), sorted by anchor, then candidate.

    Args:
        anchor: Index of the anchor, shape (L,).
        candidate: Index of the candidate, shape (L,).
    """

    anchor: Tensor
    candidate: Tensor

    def __len__(self) -> int:
        return self.anchor.numel()

    @staticmethod
    def sort(anchor: Tensor, candidate: Tensor, num_candidates: int) -> tuple[Links, Tensor]:
        """Sort links and drop repeats.

        Returns:
            The sorted links, and for each given link its position among them.
        """
        key, position = torch.unique(anchor * num_candidates + candidate, return_inverse=True)
        links = Links(key.div(num_candidates, rounding_mode="floor"), key % num_candidates)
        return links, position

    def starts(self, anchors: list[int]) -> list[int]:
        """Where the links of each of the given anchors begin."""
        wanted = torch.tensor(anchors, device=self.anchor.device)
        places: list[int] = torch.searchsorted(self.anchor, wanted).tolist()
        return places

    def transposed(self) -> Links:
        """Anchors and candidates exchanged, sorted anew."""
        if bool((self.candidate[1:] >= self.candidate[:-1]).all()):  # in order already
            return Links(self.candidate, self.anchor)
        candidate, order = torch.sort(self.candidate, stable=True)
        return Links(candidate, self.anchor[order])


def _check_range(name: str, indices: Tensor, count: int) -> None:
    if indices.is_floating_point() or indices.is_complex():
        raise ValueError(f"expected {name} to be integers, received {indices.dtype}; use .long()")
    if indices.numel() == 0:
        return
    least, largest = torch.aminmax(indices)
    if int(least) < 0 or int(largest) >= count:
        raise ValueError(
            f"expected {name} among 0 … {count - 1}, received {int(least)} to {int(largest)}; "
            "number them from 0, and hand over how many there are"
        )


def _check_order(flat: Tensor, size: int) -> None:
    """Compiled code takes on trust that positions are sorted, without repeats, and there."""
    if flat.device.type != "cpu" or flat.numel() == 0:
        return
    sorted_ = bool((flat[1:] > flat[:-1]).all())
    if not sorted_ or int(flat[0]) < 0 or int(flat[-1]) >= size:
        raise ValueError(
            "expected links sorted by anchor, then candidate, each once, received others; "
            "make the pairs with Pairs.build"
        )


Value = TypeVar("Value")


class kept(Generic[Value]):
    """A property of a block, made when first asked for and kept by its pairs."""

    def __init__(self, make: Callable[[Block], Value]) -> None:
        self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

    @overload
    def __get__(self, block: None, owner: type[Block]) -> kept[Value]: ...

    @overload
    def __get__(self, block: Block, owner: type[Block]) -> Value: ...

    def __get__(self, block: Block | None, owner: type[Block]) -> kept[Value] | Value:
        if block is None:
            return self
        key = (self.name, block.first, block.size)
        if key not in block.pairs.made:
            block.pairs.made[key] = self.make(block)
        value: Value = block.pairs.made[key]
        return value


@dataclass(frozen=True)
class Block:
    """Some whole rows of the (N, M) problem: B anchors against all M candidates.

    What is never asked for is never made.

    Args:
        pairs: The whole.
        first: The first anchor.
        size: How many follow one another from there; where anchors have twins, these come after.
    """

    pairs: Pairs
    first: int
    size: int

    @property
    def in_order(self) -> bool:
        """Whether the anchors follow one another."""
        return self.whole or not self.pairs.twins

    @property
    def whole(self) -> bool:
        """Whether these are all anchors, in their order."""
        return self.size * self.pairs.parts == self.pairs.num_anchors

    @kept
    def anchors(self) -> Tensor:
        """Which anchors, shape (B,)."""
        return torch.cat([self.pairs.order[slice(*each)] for each in self._ranges])

    @kept
    def count(self) -> Tensor:
        """How many negatives each has, shape (B, 1)."""
        return self.take(self.pairs.negative_count)[:, None]

    @kept
    def fewest(self) -> int:
        """How many negatives the row with the fewest has."""
        return int(self.count.min())

    @property
    def masked(self) -> Tensor:
        """Flat positions in the (B, M) block that are not negatives, shape (L,)."""
        return self._masked[0]

    @property
    def masked_row(self) -> Tensor:
        """The row of each masked position, shape (L,)."""
        return self._masked[1]

    @kept
    def reference(self) -> Tensor:
        """Flat position of one negative of each row, shape (B,)."""
        negative = self.take(self.pairs.first_negative)
        return negative.add(self.pairs.order[: len(negative)], alpha=self.pairs.num_candidates)

    @property
    def positive(self) -> Tensor:
        """Flat positions of the positives, shape (P,)."""
        return self._positives[0]

    @property
    def positive_row(self) -> Tensor:
        """The row of each positive, shape (P,)."""
        return self._positives[1]

    @kept
    def share(self) -> Tensor:
        """The share of each positive in its anchor's loss, shape (P,)."""
        if self.whole:
            return self.pairs.share
        return torch.cat([self.pairs.share[part] for part in self._where(self.pairs.positives)])

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        """First and one past the last anchor of each part."""
        length = self.pairs.num_anchors // self.pairs.parts
        starts = [self.first + part * length for part in range(self.pairs.parts)]
        return [(start, start + self.size) for start in starts]

    def _where(self, links: Links) -> list[slice]:
        """Which links belong to each part."""
        places = links.starts([edge for each in self._ranges for edge in each])
        return [slice(*edges) for edges in zip(places[::2], places[1::2], strict=True)]

    def _flatten(self, links: Links) -> tuple[Tensor, Tensor]:
        """Flat position and row of the links that fall in this block."""
        row, candidate = links.anchor, links.candidate
        if not self.whole:
            where = self._where(links)
            shifts = [start - part * self.size for part, (start, _) in enumerate(self._ranges)]
            parts = zip(where, shifts, strict=True)
            row = torch.cat([row[part] - shift for part, shift in parts])
            candidate = torch.cat([candidate[part] for part in where])
        flat = candidate.add(row, alpha=self.pairs.num_candidates).long()
        rows = self.size * self.pairs.parts
        _check_order(flat, rows * self.pairs.num_candidates)
        return flat, row

    @kept
    def _masked(self) -> tuple[Tensor, Tensor]:
        return self._flatten(self.pairs.masked)

    @kept
    def _positives(self) -> tuple[Tensor, Tensor]:
        if self.pairs.positives is self.pairs.masked:
            return self._masked
        return self._flatten(self.pairs.positives)

    @kept
    def _filler(self) -> Tensor:
        """Flat position of the negative that stands in for each masked position, shape (L,)."""
        return self.reference.index_select(0, self.masked_row)

    def take(self, values: Tensor) -> Tensor:
        """The rows of this block's anchors, shape (B, ...); no copy where they follow in order."""
        if self.whole:
            return values
        if self.in_order:
            return values.narrow(0, self.first, self.size)
        return values[self.anchors]

    def fill(self, values: Tensor) -> Tensor:
        """Overwrite what is not a negative by the value of a negative of the same row, in place.

        Minimum, maximum and range of a row are then those of its negatives.

        Args:
            values: Shape (B, M), contiguous.
        """
        flat = values.view(-1)
        flat.index_copy_(0, self.masked, flat.index_select(0, self._filler))
        return values

    def blank(self, values: Tensor, value: float = 0.0) -> Tensor:
        """Overwrite what is not a negative by one value, in place. Shape (B, M), contiguous."""
        values.view(-1).index_fill_(0, self.masked, value)
        return values


@dataclass(frozen=True)
class Pairs:
    """The positives and negatives of N anchors among M candidates.

    Use one of the constructors: :meth:`both_views`, :meth:`one_way`, :meth:`queue`,
    :meth:`windows`, :meth:`membership` or :meth:`from_masks`.

    Args:
        num_anchors: N.
        num_candidates: M.
        masked: All links that are not negatives: positives and the excluded.
        positives: The positives.
        told: The share of each positive in its anchor's loss, shape (P,); equal where None.
        twins: Anchors i and N/2 + i are two views of one sample, and the same two candidates, one
            for each, are masked for both.
        own: How many of the candidates, the last ones, are each anchor's own: column M - own + k
            stands for the k-th own candidate, another one in every row, always a negative.
    """

    num_anchors: int
    num_candidates: int
    masked: Links
    positives: Links
    told: Tensor | None = None
    twins: bool = False
    own: int = 0

    @staticmethod
    def build(
        num_anchors: int,
        num_candidates: int,
        positives: tuple[Tensor, Tensor],
        excluded: tuple[Tensor, Tensor] | None = None,
        *,
        share: Tensor | None = None,
        twins: bool = False,
    ) -> Pairs:
        """Build from lists of links.

        Args:
            num_anchors: N.
            num_candidates: M.
            positives: (anchor, candidate) of the positives, each of shape (P,).
            excluded: (anchor, candidate) of those that are neither positive nor negative.
            share: Share of each positive, shape (P,); equal shares by default.
            twins: See :class:`Pairs`.

        Raises:
            ValueError: For a link to an anchor or a candidate that there is not.
        """
        for anchor, candidate in (positives,) if excluded is None else (positives, excluded):
            _check_range("anchors", anchor, num_anchors)
            _check_range("candidates", candidate, num_candidates)
        positives = positives[0].long(), positives[1].long()
        if excluded is not None:
            excluded = excluded[0].long(), excluded[1].long()
        anchor, candidate = positives
        links, position = Links.sort(anchor, candidate, num_candidates)
        shares = None
        if share is not None:
            shares = torch.zeros(len(links), dtype=torch.float64, device=anchor.device)
            shares.index_add_(0, position, share.to(torch.float64))
        if excluded is None:
            masked = links
        else:
            masked, _ = Links.sort(
                torch.cat([anchor, excluded[0]]),
                torch.cat([candidate, excluded[1]]),
                num_candidates,
            )
        return Pairs(num_anchors, num_candidates, masked, links, shares, twins)

    @staticmethod
    def both_views(
        n: int, *, offset: int = 0, total: int | None = None, device: torch.device | None = None
    ) -> Pairs:
        """Two views of n samples, stacked: every view against all views of other samples (SimCLR).

        The n samples may be a part, from ``offset`` on, of ``total`` samples whose views are the
        candidates.

        Example:
            >>> Pairs.both_views(2).negative_mask().int()
            tensor([[0, 1, 0, 1],
                    [1, 0, 1, 0],
                    [0, 1, 0, 1],
                    [1, 0, 1, 0]], dtype=torch.int32)
        """
        total = n if total is None else total
        sample = torch.arange(n, device=device) + offset
        anchors = torch.arange(2 * n, device=device)
        own, other = torch.cat([sample, sample + total]), torch.cat([sample + total, sample])
        return Pairs.build(2 * n, 2 * total, (anchors, other), (anchors, own), twins=True)

    @staticmethod
    def one_way(
        n: int, *, offset: int = 0, total: int | None = None, device: torch.device | None = None
    ) -> Pairs:
        """First views against second views (the paper's Eq. 1): the positive is the own one.

        Example:
            >>> Pairs.one_way(2).negative_mask()
            tensor([[False,  True],
                    [ True, False]])
        """
        anchors = torch.arange(n, device=device)
        return Pairs.build(n, n if total is None else total, (anchors, anchors + offset))

    @staticmethod
    def towards(
        keys: Tensor, shares: Tensor, *, offset: int = 0, total: int | None = None
    ) -> Pairs:
        """Anchors aimed at given keys, with shares (mixed images): all other keys are negatives.

        A key with share 0 is a negative too.

        Args:
            keys: The keys each anchor is aimed at, shape (N, P).
            shares: The share of each in the anchor's loss, shape (N, P).
            offset: Where, among ``total`` keys, number 0 stands.
            total: M; N by default.

        Example:
            >>> keys, shares = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.7, 0.3], [1, 0]])
            >>> Pairs.towards(keys, shares).negative_mask()
            tensor([[False, False],
                    [ True, False]])
        """
        n = keys.shape[0]
        anchor, place = (shares > 0).nonzero(as_tuple=True)
        positives = (anchor, keys[anchor, place] + offset)
        total = n if total is None else total
        return Pairs.build(n, total, positives, share=shares[anchor, place])

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

        Keys that stem from the sample of a positive are excluded.

        Args:
            sample_ids: Which sample each key of the batch shows, shape (N,).
            queue_ids: Which sample each key of the queue shows, shape (Q,).
            batch_negatives: Whether the batch's other keys are negatives as well.
            keys: Which keys of the batch each query is aimed at, shape (N, P); its own by default.
            shares: The share of each in the query's loss, shape (N, P); a key with share 0 is none.
        """
        n, device = sample_ids.numel(), sample_ids.device
        if keys is None or shares is None:
            keys = torch.arange(n, device=device)[:, None]
            shares = torch.ones(n, 1, device=device)
        anchor, place = (shares > 0).nonzero(as_tuple=True)
        candidate = keys[anchor, place]
        everything = torch.cat([sample_ids, queue_ids])
        # Which keys show the sample of any key the query is aimed at, (N, N + Q).
        excluded = torch.zeros(n, everything.numel(), dtype=torch.bool, device=device)
        for aim, share in zip(keys.unbind(1), shares.unbind(1), strict=True):
            excluded |= (sample_ids[aim][:, None] == everything) & (share > 0)[:, None]
        if not batch_negatives:
            excluded[:, :n] = True
        row, column = excluded.nonzero(as_tuple=True)
        return Pairs.build(
            n,
            everything.numel(),
            (anchor, candidate),
            (row, column),
            share=shares[anchor, place],
        )

    @staticmethod
    def windows(documents: Tensor, *, reach: int = 1, texts: Tensor | None = None) -> Pairs:
        """Consecutive sentences (Quick-Thought): positives are the neighbours within ``reach``.

        A sentence is never its own negative; neighbours never cross a document.

        Args:
            documents: The document of each sentence, in reading order, shape (N,).
            reach: How many sentences on either side are positives.
            texts: An id of each sentence's text, shape (N,): sentences of equal text are excluded.

        Example:
            >>> Pairs.windows(torch.tensor([0, 0, 0, 1])).positive_mask().int()
            tensor([[0, 1, 0, 0],
                    [1, 0, 1, 0],
                    [0, 1, 0, 0],
                    [0, 0, 0, 0]], dtype=torch.int32)
        """
        n, device = documents.numel(), documents.device
        anchors = torch.arange(n, device=device)
        rows, columns = [], []
        for step in range(1, min(reach, n - 1) + 1):
            left = anchors[:-step][documents[:-step] == documents[step:]]
            rows += [left, left + step]
            columns += [left + step, left]
        none = anchors[:0]
        positives = (torch.cat([none, *rows]), torch.cat([none, *columns]))
        excluded = (anchors, anchors)
        if texts is not None:
            row, column = (texts[:, None] == texts[None, :]).nonzero(as_tuple=True)
            excluded = (row, column)
        return Pairs.build(n, n, positives, excluded)

    @staticmethod
    def membership(groups: Tensor, num_groups: int) -> Pairs:
        """Members against groups (InfoGraph's nodes and graphs): the positive is the own group.

        Args:
            groups: The group of each anchor, shape (N,).
            num_groups: M.

        Raises:
            ValueError: For a group that is not among 0 … M - 1, or groups of another shape.
        """
        if groups.dim() != 1:
            raise ValueError(
                f"expected a group per member, shape (N,), received {tuple(groups.shape)}; "
                "use .flatten()"
            )
        _check_range("groups", groups, num_groups)
        n, device = groups.numel(), groups.device
        own = Links(torch.arange(n, device=device), groups.long())
        return Pairs(n, num_groups, own, own, torch.ones(n, dtype=torch.float64, device=device))

    @staticmethod
    def from_masks(positives: Tensor, negatives: Tensor) -> Pairs:
        """General masks, both boolean of shape (N, M).

        Raises:
            ValueError: If the masks are not boolean, differ in shape, or overlap.
        """
        if positives.dtype != torch.bool or negatives.dtype != torch.bool:
            raise ValueError(
                "expected boolean masks, received "
                f"{positives.dtype} and {negatives.dtype}; compare with 0 to make them boolean"
            )
        if positives.dim() != 2 or positives.shape != negatives.shape:
            raise ValueError(
                "expected two masks of one shape (N, M), received "
                f"{tuple(positives.shape)} and {tuple(negatives.shape)}"
            )
        both = int((positives & negatives).sum())
        if both:
            raise ValueError(
                f"expected disjoint masks, received {both} pairs that are both positive and "
                "negative; clear them in one of the masks"
            )
        anchor, candidate = positives.nonzero(as_tuple=True)
        neither = (~positives & ~negatives).nonzero(as_tuple=True)
        rows, columns = positives.shape
        return Pairs.build(rows, columns, (anchor, candidate), (neither[0], neither[1]))

    def with_own(self, count: int) -> Pairs:
        """The same, and ``count`` further candidates of each anchor alone, its negatives."""
        return replace(
            self, num_candidates=self.num_candidates + count, own=self.own + count, twins=False
        )

    def transposed(self) -> Pairs:
        """Anchors and shared candidates exchanged; every positive counts equally."""
        shared = self.num_candidates - self.own
        positives = self.positives.transposed()
        masked = positives if self.masked is self.positives else self.masked.transposed()
        return Pairs(
            shared,
            self.num_anchors,
            masked,
            positives,
            twins=self.twins and self.num_anchors == self.num_candidates,
        )

    def among(self, offset: int, total: int) -> Pairs:
        """The same pairs where the candidates are a part, from ``offset`` on, of ``total``."""
        return replace(
            self,
            num_candidates=total,
            masked=Links(self.masked.anchor, self.masked.candidate + offset),
            positives=Links(self.positives.anchor, self.positives.candidate + offset),
            twins=False,
        )

    def with_positives_as_negatives(self) -> Pairs:
        """The same positives, which count among the negatives as well."""
        width = self.num_candidates
        masked_key = self.masked.anchor * width + self.masked.candidate
        positive_key = self.positives.anchor * width + self.positives.candidate
        keep = ~torch.isin(masked_key, positive_key)
        masked = Links(self.masked.anchor[keep], self.masked.candidate[keep])
        return replace(self, masked=masked, twins=False)

    @property
    def device(self) -> torch.device:
        """Where the links are."""
        return self.masked.anchor.device

    @cached_property
    def share(self) -> Tensor:
        """The share of each positive in its anchor's loss, shape (P,); sums to 1 per anchor."""
        if self.told is not None:
            return self.told
        return 1.0 / self.positive_count[self.positives.anchor].to(torch.float64)

    @cached_property
    def one_masked(self) -> bool:
        """Whether each anchor has exactly one candidate that is not its negative."""
        # As many links as anchors, and each anchor has one at least.
        enough = self.most_negatives < self.num_candidates
        return len(self.masked) == self.num_anchors and enough

    @cached_property
    def one_positive(self) -> bool:
        """Whether each anchor has exactly one positive."""
        return len(self.positives) == self.num_anchors == self.answered

    @cached_property
    def negative_count(self) -> Tensor:
        """How many negatives each anchor has, shape (N,)."""
        masked = torch.bincount(self.masked.anchor, minlength=self.num_anchors)
        return self.num_candidates - masked

    @cached_property
    def positive_count(self) -> Tensor:
        """How many positives each anchor has, shape (N,)."""
        return torch.bincount(self.positives.anchor, minlength=self.num_anchors)

    @cached_property
    def most_negatives(self) -> int:
        """How many negatives the anchor with the most has."""
        return int(self.negative_count.max())

    @cached_property
    def answered(self) -> int:
        """How many anchors have a positive."""
        return int((self.positive_count > 0).sum())

    @cached_property
    def first_negative(self) -> Tensor:
        """The first negative of each anchor, shape (N,); 0 where there is none."""
        anchor, candidate = self.masked.anchor, self.masked.candidate
        if self.one_masked:
            return (candidate == 0).long() % max(self.num_candidates, 1)
        masked = self.num_candidates - self.negative_count
        rank = torch.arange(len(self.masked), device=anchor.device)
        rank = rank - (masked.cumsum(0) - masked)[anchor]
        # Sorted and without repeats, the k-th masked candidate is k exactly while all before it
        # are masked, so the number of such hits is the first candidate that is not.
        leading = torch.bincount(anchor[candidate == rank], minlength=self.num_anchors)
        return leading % max(self.num_candidates, 1)

    def negative_mask(self) -> Tensor:
        """The negatives as a boolean mask, shape (N, M)."""
        mask = torch.ones(
            self.num_anchors, self.num_candidates, dtype=torch.bool, device=self.device
        )
        mask[self.masked.anchor, self.masked.candidate] = False
        return mask

    def positive_mask(self) -> Tensor:
        """The positives as a boolean mask, shape (N, M)."""
        mask = torch.zeros(
            self.num_anchors, self.num_candidates, dtype=torch.bool, device=self.device
        )
        mask[self.positives.anchor, self.positives.candidate] = True
        return mask

    def blocks(self, tile: int | None) -> tuple[Block, ...]:
        """Cut the anchors into blocks of at most ``tile`` rows; twins stay together.

        Args:
            tile: Rows per block; None for all rows at once.
        """
        if tile is not None and tile >= self.num_anchors:
            tile = None
        length = self.num_anchors // self.parts
        step = max(1, length if tile is None else tile // self.parts)
        return tuple(
            Block(self, first, min(step, length - first)) for first in range(0, length, step)
        )

    @cached_property
    def made(self) -> dict[tuple[str, int, int], Any]:
        """What blocks have made, by name, first anchor and size."""
        return {}

    @property
    def parts(self) -> int:
        """2 where anchors have twins, which stay in one block; else 1."""
        return 2 if self.twins else 1

    @cached_property
    def order(self) -> Tensor:
        """All anchors, shape (N,)."""
        return torch.arange(self.num_anchors, device=self.device)
