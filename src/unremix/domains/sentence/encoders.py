"""What sentence encoders share, and two simple ones: a bag of words and a small transformer.

A sentence encoder maps numbers of words (n, L), padded at the end, and lengths (n,) to (n, F). F is
its ``features``. Padding changes nothing: a sentence has the same vector in every batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from unremix.core.checks import check_positive, checks_on
from unremix.domains.sentence.word_vectors import INITIAL, word_table

LAYERS, HEADS = 2, 4  # of the transformer
ENCODE = "Vocabulary.encode"


def check_sentences(tokens: Tensor, lengths: Tensor) -> None:
    """Raise ValueError unless tokens (n, L) and lengths (n,) are of sentences of 1 to L words.

    Lengths are read for tokens on the CPU only.
    """
    if tokens.dim() != 2 or lengths.shape != tokens.shape[:1] or not tokens.numel():
        got = f"{tuple(tokens.shape)} and {tuple(lengths.shape)}"
        raise ValueError(f"expected tokens (n, L) and lengths (n,), got {got}; {ENCODE} makes both")
    if not checks_on(None, tokens):
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 1 or longest > tokens.shape[1]:
        got = f"{shortest} to {longest}; an empty sentence is one unknown word, see {ENCODE}"
        raise ValueError(f"expected lengths from 1 to {tokens.shape[1]}, got {got}")


def positions(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Which places of padded tokens (n, L) hold words, given lengths (n,): bool, shape (n, L)."""
    lengths = lengths.to(tokens.device, non_blocking=True)
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]


class BagOfWords(nn.Module):
    """The mean of the vectors of a sentence's words.

    Args:
        vocabulary_size: V, padding and unknown included: ``len(vocabulary)``.
        words: Size of a word's vector.

    Attributes:
        features: Size of the output, that of a word's vector.

    Raises:
        ValueError: If a size is too small.

    Example:
        >>> encoder = BagOfWords(10, words=4)
        >>> encoder(torch.tensor([[2, 3, 0], [4, 0, 0]]), torch.tensor([2, 1])).shape
        torch.Size([2, 4])
    """

    def __init__(self, vocabulary_size: int, *, words: int = 300) -> None:
        super().__init__()
        self.words = word_table(vocabulary_size, words)
        self.features = words

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        check_sentences(tokens, lengths)
        known = positions(tokens, lengths)
        if tokens.device.type != "cpu":  # no shape depends on values there
            shares = known / known.sum(1, keepdim=True)
            return torch.einsum("nl,nlf->nf", shares, self.words(tokens))
        starts = lengths.cumsum(0) - lengths
        return embedding_bag(tokens[known], self.words.weight, starts, mode="mean")


class TransformerEncoder(nn.Module):
    """A small transformer with learned positions; the mean over the words of its last layer.

    Args:
        vocabulary_size: V, padding and unknown included.
        words: Size of a word's vector and of every layer.
        max_length: The longest sentence it takes.

    Attributes:
        features: Size of the output, ``words``.

    Raises:
        ValueError: If a size is too small, or the heads do not divide it.

    Example:
        >>> encoder = TransformerEncoder(10, words=8)
        >>> encoder(torch.tensor([[2, 3, 0], [4, 0, 0]]), torch.tensor([2, 1])).shape
        torch.Size([2, 8])
    """

    def __init__(self, vocabulary_size: int, *, words: int = 300, max_length: int = 30) -> None:
        super().__init__()
        check_positive(max_length=max_length)
        if words % HEADS:
            raise ValueError(f"expected heads that divide words={words}, got {HEADS}; change words")
        self.words = word_table(vocabulary_size, words)
        self.places = nn.Parameter(torch.empty(max_length, words).uniform_(-INITIAL, INITIAL))
        layer = nn.TransformerEncoderLayer(
            words, HEADS, 4 * words, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(words)
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)
        self.features = words

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        check_sentences(tokens, lengths)
        if tokens.shape[1] > len(self.places):
            got = f"{tokens.shape[1]}; cut them by max_length of {ENCODE}"
            raise ValueError(f"expected sentences of at most {len(self.places)} words, got {got}")
        known = positions(tokens, lengths)
        embedded = self.words(tokens) + self.places[: tokens.shape[1]]
        outputs: Tensor = self.layers(embedded, src_key_padding_mask=~known)
        return (outputs * known[:, :, None]).sum(1) / known.sum(1)[:, None]
