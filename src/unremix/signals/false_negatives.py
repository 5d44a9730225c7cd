"""Which negatives are probably false, found without labels: evidence, and a rule that acts on it.

A false negative is a negative of the anchor's own class. Two questions are kept apart:

- **Evidence**: how similar two samples are, a number for every anchor and candidate. It is the
  inner product of their descriptors: the embeddings themselves (``similarity``), their mean over a
  sample's two views (``four-views``), features averaged over the training (``bank``), or the sets
  of nearest neighbors in that bank (``shared-neighbors``).
- **Rule**: what becomes of the evidence; see :mod:`unremix.signals.rules`.

Evidence is not a score of the mix: the mix is not negative, so it could only raise the weight of
negatives that are probably false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from unremix.core.checks import check_choice, check_count, check_number
from unremix.core.gather import JointBatch, gather_rows
from unremix.core.pairs import ContrastInput
from unremix.core.precision import normalize
from unremix.core.problem import Tile, blocks
from unremix.core.scores import Block, inner_products
from unremix.core.views import Views
from unremix.signals.memory import Bank, Thresholds
from unremix.signals.rules import mixture, rank, ring, threshold

Rule = Literal["ring", "threshold", "rank", "mixture"]
Evidence = Literal["similarity", "four-views", "bank", "shared-neighbors"]

RULES: dict[str, Callable[..., Tensor]] = {"ring": ring, "rank": rank, "mixture": mixture}


@dataclass(frozen=True)
class FalseNegatives:
    """What is done about negatives that are probably false.

    Args:
        rule: ``ring``, ``threshold``, ``rank`` or ``mixture``: see the functions of these
            names in :mod:`unremix.signals.rules`.
        evidence: What says how similar two samples are: ``similarity``, ``four-views``, ``bank`` or
            ``shared-neighbors``.
        share: The share of an anchor's negatives that are false: about 1 / (number of classes).
            ``ring`` and ``threshold`` leave out this share, ``rank`` takes it as prior, ``mixture``
            starts from it.
        samples: How many samples the data have, where something is remembered of each: for the rule
            ``threshold``, and for ``bank`` and ``shared-neighbors``. Their ids are 0 … samples - 1.

    Raises:
        ValueError: For names that do not exist and numbers out of range.

    Example:
        >>> FalseNegatives("ring", evidence="four-views", share=0.05).needs_ids
        False
        >>> FalseNegatives("ring", evidence="bank", samples=50_000).needs_ids
        True
    """

    rule: Rule
    evidence: Evidence = "similarity"
    share: float = 0.1
    samples: int | None = None

    def __post_init__(self) -> None:
        check_choice("false_negatives", self.rule, get_args(Rule))
        check_choice("evidence", self.evidence, get_args(Evidence))
        check_number("false_negative_share", self.share, above=0, below=1)
        if self.samples is not None:
            check_count("samples", self.samples, 1, "pass how many samples the data have")

    @classmethod
    def of(cls, given: FalseNegatives | Rule | None) -> FalseNegatives | None:
        """The settings that an option stands for: a rule's name has the usual ones."""
        return given if given is None or isinstance(given, FalseNegatives) else cls(given)

    @property
    def needs_features(self) -> bool:
        """Whether it needs the encoder's features of every batch."""
        return self.evidence in ("bank", "shared-neighbors")

    @property
    def needs_ids(self) -> bool:
        """Whether it remembers something of each sample."""
        return self.needs_features or self.rule == "threshold"

    @property
    def needs_two_views(self) -> bool:
        """Whether it has to see both views of every sample."""
        return self.evidence == "four-views"

    def evidence_of(self, block: Block) -> Tensor:
        """How similar anchors and shared candidates are by the evidence, shape (B, M)."""
        anchors, candidates = block.anchors.descriptors, block.candidates.descriptors
        if anchors is None or candidates is None:
            return block.similarity[:, : len(block.candidates.units)].detach()
        return inner_products(anchors, candidates)

    def __call__(self, block: Block) -> Tensor:
        """The factor on each weight: 1 keeps a negative, 0 leaves it out.

        Args:
            block: Anchors and candidates, with the descriptors and thresholds that are needed.

        Returns:
            Shape (B, M), or (B, M + S) where anchors have S extra negatives: these were
            made to be negatives and are kept.
        """
        evidence = self.evidence_of(block)
        if self.rule == "threshold":
            assert block.anchors.thresholds is not None
            factor = threshold(evidence, block.anchors.thresholds)
        else:
            negatives = block.negatives[:, : evidence.shape[1]]
            factor = RULES[self.rule](evidence, negatives, share=self.share)
        extra = block.negatives.shape[1] - evidence.shape[1]
        return torch.cat([factor, factor.new_ones(len(factor), extra)], dim=1) if extra else factor


def four_views(first: Tensor, second: Tensor) -> Tensor:
    """Descriptors whose inner product is the similarity averaged over the four pairs of views.

    (f_i0 + f_i1)/2 · (f_j0 + f_j1)/2 = mean over views a of i and b of j of f_a · f_b

    Args:
        first: f of the first views, shape (N, D).
        second: f of the second views, shape (N, D).

    Returns:
        Shape (N, D).
    """
    return (first + second) / 2


class FindsFalseNegatives(nn.Module):
    """A loss that finds its false negatives, and what it remembers of each sample for that.

    Args:
        false_negatives: The settings; None: nothing is remembered.
    """

    def __init__(self, false_negatives: FalseNegatives | None) -> None:
        super().__init__()
        self.false_negatives = false_negatives
        self.bank: Bank | None = None
        self.thresholds: Thresholds | None = None
        if false_negatives is not None and false_negatives.needs_features:
            self.bank = Bank(false_negatives.samples)
        if false_negatives is not None and false_negatives.rule == "threshold":
            self.thresholds = Thresholds(false_negatives.samples)

    def check_evidence(self, what: str, *, ids: bool = False) -> None:
        """Refuse evidence that is not available, where anchors are not plain views of samples.

        Args:
            what: What the anchors are, for the message.
            ids: Whether it is at least known which sample each of them shows.

        Raises:
            ValueError: If the evidence or the rule needs more than that.
        """
        settings = self.false_negatives
        if settings is None:
            return
        if settings.needs_two_views or (settings.needs_ids and not ids):
            able = "'similarity', 'bank' or 'shared-neighbors'" if ids else "'similarity'"
            rules = "" if ids else "'ring', 'rank' or 'mixture' and "
            raise ValueError(
                f"expected {rules}evidence {able} for {what}, got {settings.rule!r} and "
                f"{settings.evidence!r}; change false_negatives or evidence"
            )

    def reserve(self, samples: int) -> None:
        """Set the number of samples, for the memories of each sample.

        Args:
            samples: Their number; ids are 0 … samples - 1.
        """
        for memory in (self.bank, self.thresholds):
            if memory is not None:
                memory.reserve(samples)

    def remember(self, ids: Tensor, *features: Tensor) -> None:
        """Store the encoder's features of a batch in the bank; call it before the loss.

        Args:
            ids: Which samples, each once, shape (N,).
            features: Of each view of them, shape (N, F).

        Raises:
            ValueError: If the loss has no bank.

        Example:
            >>> from unremix import UnReMixLoss
            >>> settings = FalseNegatives("ring", evidence="bank", samples=100)
            >>> loss_fn = UnReMixLoss(false_negatives=settings)
            >>> ids, features = torch.arange(8), torch.rand(8, 32)
            >>> loss_fn.remember(ids, features)
            >>> loss = loss_fn(torch.randn(8, 16), torch.randn(8, 16), ids=ids)
        """
        if self.bank is None:
            raise ValueError(
                "expected a loss with evidence 'bank' or 'shared-neighbors', got one that "
                "remembers no features; leave the call out"
            )
        self.bank.add(ids, *features)

    def describe_samples(self, first: Views, second: Views) -> tuple[Views, Views]:
        """Two views of N samples with descriptors of the samples, where they are needed."""
        settings = self.false_negatives
        if settings is not None and settings.needs_two_views:
            units = [normalize(each.embeddings.detach())[0] for each in (first, second)]
            first = replace(first, descriptors=four_views(*units))
        first = self.describe_views(first)
        return first, replace(second, descriptors=first.descriptors)

    def describe_views(self, views: Views) -> Views:
        """Any views with what is remembered of their samples."""
        settings = self.false_negatives
        if settings is None or views.descriptors is not None:
            return views
        self.check_evidence("given anchors and candidates", ids=True)
        if settings.needs_ids and views.ids is None:
            raise ValueError(
                f"expected ids= for false_negatives={settings.rule!r} on evidence "
                f"{settings.evidence!r}, which remember each sample, got none; pass their numbers"
            )
        if self.bank is None or views.ids is None:
            return views
        describe = self.bank.units if settings.evidence == "bank" else self.bank.neighbors
        return replace(views, descriptors=describe(views.ids).to(views.embeddings.dtype))

    @torch.no_grad()
    def find_thresholds(
        self, compared: ContrastInput, *, tile: Tile, update: bool
    ) -> Tensor | None:
        """The threshold of each anchor, shape (N,); None where there are none.

        Args:
            compared: N anchors with M candidates.
            tile: Anchors per block.
            update: Whether the thresholds make a step.
        """
        anchors, candidates, pairs = compared.anchors, compared.candidates, compared.pairs
        memory, settings, ids = self.thresholds, self.false_negatives, anchors.ids
        if memory is None or settings is None:
            return None
        assert ids is not None
        rows, columns = anchors.descriptors, candidates.descriptors
        if rows is None or columns is None:
            rows = normalize(anchors.embeddings)[0]
            columns = normalize(candidates.embeddings)[0]
        levels, limits = [], []
        for which in blocks(pairs.num_anchors, pairs.num_candidates, tile, ids.device):
            evidence = inner_products(rows[which], columns)
            level, limit = memory.find(
                ids[which], evidence, pairs[which].negatives(), settings.share, update=update
            )
            levels.append(level)
            limits.append(limit)
        if update:
            memory.store(*(_of_all(rows, compared.joint) for rows in (ids, torch.cat(levels))))
        return torch.cat(limits)


def _of_all(rows: Tensor, joint: JointBatch | None) -> Tensor:
    """Rows of all processes, where each has one per sample, or one per view, first views first."""
    if joint is None:
        return rows
    return torch.cat([gather_rows(each, joint) for each in rows.split(joint.sizes[joint.rank])])
