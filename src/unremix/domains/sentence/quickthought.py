"""Quick-Thought: find the neighbors of a sentence among all sentences of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.values import Checked, bounded
from unremix.core.checks import checks_on
from unremix.core.gather import find_joint_batch, gather_rows, gather_views, is_distributed
from unremix.core.pairs import Pairs
from unremix.core.views import ExtraNegatives, Views
from unremix.domains.sentence.corpus import SentenceBatch
from unremix.frameworks.base import Batch, Framework, refuse_nt_xent
from unremix.losses import Fidelity, TwoViewLoss


class TwinEncoder(nn.Module):
    """Two encoders f and g with parameters of their own; a sentence's embedding is [f; g].

    Args:
        first: f.
        second: g.
        maps: Linear maps after f and g, if any; what f and g give is then h of their last layer.

    Attributes:
        features: Size of [f; g].
    """

    def __init__(
        self, first: nn.Module, second: nn.Module, maps: tuple[nn.Linear, nn.Linear] | None = None
    ) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.maps = None if maps is None else nn.ModuleList(maps)
        sizes: list[Any] = [one.features for one in (first, second)]
        self.features: int = sum(sizes if maps is None else [one.out_features for one in maps])

    def both(
        self, tokens: Tensor, lengths: Tensor
    ) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
        """Z and, where there is a last linear map, h of f and of g."""
        inputs = (self.first(tokens, lengths), self.second(tokens, lengths))
        if self.maps is None:
            return (inputs[0], None), (inputs[1], None)
        return (self.maps[0](inputs[0]), inputs[0]), (self.maps[1](inputs[1]), inputs[1])

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The embeddings [f; g], shape (n, features), of sentences (n, L) of lengths (n,)."""
        (f, _), (g, _) = self.both(tokens, lengths)
        return torch.cat([f, g], dim=1)


@dataclass(frozen=True)
class QuickThoughtOptions(Checked):
    """Options of Quick-Thought.

    Args:
        reach: How many sentences on either side are positives.
        mask_repeats: Whether sentences of the same text as the anchor are left out.
        fidelity: code keeps the sentence itself in the denominator, with a score of 0, as the
            public code does; sound and paper leave it out.
    """

    reach: int = bounded(1, least=1)
    mask_repeats: bool = True
    fidelity: Fidelity = "sound"


class QuickThought(Framework):
    """Anchors are f of all sentences of a batch, candidates g of the same; scores are f · g.

    The positives of a sentence are its neighbors in the same document; the sentence itself is
    left out, and so are, unless told otherwise, sentences of the same text. The other positives
    stand in the denominator, so that uniform weights give Quick-Thought's cross-entropy against a
    uniform target over the window.

    Where processes share a batch and the loss gathers, all embeddings are gathered and every
    process computes the loss of the joint batch: neighbors meet across processes, and the mean of
    the gradients over processes is the joint gradient.

    Args:
        encoder: f and g.
        loss: Weights the negatives.
        labels: Whether sentences of one topic are positives of each other, beside neighbors.
        options: What counts as a positive.

    Raises:
        ValueError: For a loss that does not fit.

    Reference:
        Logeswaran and Lee 2018.
    """

    summary = "Quick-Thought: neighboring sentences"
    section = "quickthought"
    Options = QuickThoughtOptions
    domains = ("sentence",)
    takes_views = False

    encoder: TwinEncoder

    def __init__(
        self,
        encoder: TwinEncoder,
        loss: TwoViewLoss,
        *,
        labels: bool = False,
        options: QuickThoughtOptions | None = None,
    ) -> None:
        super().__init__()
        self.labels_are_positives = labels
        self.options = options or QuickThoughtOptions()
        if not isinstance(encoder, TwinEncoder):
            raise ValueError(
                f"expected two encoders, got one ({type(encoder).__name__}); choose a simcse recipe"
            )
        if loss.class_prior:
            got = f"{loss.class_prior}, but its products are not bounded; leave it out"
            raise ValueError(f"expected class_prior=0 on Quick-Thought, got {got}")
        loss.check_evidence("sentences")
        refuse_nt_xent(loss, "on Quick-Thought, where a lonely sentence has no positive")
        self.encoder = encoder
        self.loss = loss
        self.gather, loss.gather = loss.gather, False  # done here, for sentences and not views
        if encoder.maps is not None:
            loss.options = replace(loss.options, bias=encoder.maps[0].bias is not None)

    def read_labels(self, labels: Tensor | None) -> None:
        """Refuse a text without topics, where they are asked for; batches have the documents."""
        if self.labels_are_positives and labels is None:
            raise ValueError("expected a text with topics for --labels use, got none; leave it out")

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch of consecutive sentences; 0 where none has a neighbor."""
        sentences: SentenceBatch = batch.views[0]
        documents, texts = sentences.documents, sentences.texts
        (f, f_inputs), (g, g_inputs) = self.encoder.both(sentences.tokens, sentences.lengths)
        anchors = Views(f, f_inputs, batch.samples)
        candidates = Views(g, g_inputs, batch.samples)
        if self.gather and is_distributed():
            joint = find_joint_batch(f, equal=self.gather == "equal")
            documents, texts = (gather_rows(rows, joint) for rows in (documents, texts))
            anchors, candidates = (gather_views(views, joint) for views in (anchors, candidates))
        pairs = self.pairs(documents, texts)
        if checks_on(None, f) and not (pairs.has_positives() and pairs.has_negatives()):
            return self.loss.nothing(f, g)
        extra = None
        if self.options.fidelity == "code":  # each sentence itself, with a score of 0
            z, h = anchors.embeddings, anchors.inputs
            inputs = None if h is None else torch.zeros_like(h)[:, None]
            extra = ExtraNegatives(torch.zeros_like(z)[:, None], inputs)
        return self.loss.against(
            anchors,
            candidates,
            pairs,
            labels=documents if self.labels_are_positives else None,
            extra=extra,
            logits="dot",
            positives_in_denominator=True,
        )

    def pairs(self, documents: Tensor, texts: Tensor) -> Pairs:
        """What is a positive and a negative of what, given the sentences' documents and texts."""
        repeats = texts if self.options.mask_repeats else None
        return Pairs.windows(documents, reach=self.options.reach, texts=repeats)
