"""A recurrent sentence encoder: the last state of a gated recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from torch.nn.utils.rnn import pack_padded_sequence

from unremix.encoders.recurrence import final_state
from unremix.encoders.text import check_sentences, positions
from unremix.encoders.word_vectors import INITIAL, word_table


class GRUEncoder(nn.Module):
    """The state of a GRU after it has read a sentence.

    Bidirectional, it is the concatenation of one half read forwards and one read backwards. The
    parameters are those of an ``nn.Embedding`` and an ``nn.GRU``, under ``words`` and ``gru``.

    On the CPU the products of the input weights are made once for each distinct word of a batch
    and the recurrence is :func:`unremix.encoders.recurrence.final_state`; elsewhere, and under
    autocast, ``nn.GRU`` computes the same.

    Args:
        vocabulary_size: V, padding and unknown included: ``len(vocabulary)``.
        words: Size of a word's vector.
        units: Size of the state, both directions together.
        bidirectional: Whether half of the units read backwards.

    Attributes:
        features: Size of the output, ``units``.

    Raises:
        ValueError: If a size is too small, or ``units`` is odd where it has to be halved.

    Example:
        >>> encoder = GRUEncoder(10, words=4, units=6, bidirectional=True)
        >>> encoder(torch.tensor([[2, 3, 0], [4, 0, 0]]), torch.tensor([2, 1])).shape
        torch.Size([2, 6])

    Reference:
        Quick-Thought (Logeswaran and Lee 2018): words 620, units 1200, 50,000 words.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        words: int = 300,
        units: int = 300,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        if units < directions or units % directions:
            raise ValueError(
                f"expected a positive {'even ' if bidirectional else ''}number of units, "
                f"got {units}"
            )
        self.words = word_table(vocabulary_size, words)
        self.gru = nn.GRU(words, units // directions, batch_first=True, bidirectional=bidirectional)
        with torch.no_grad():
            for name, parameter in self.gru.named_parameters():
                if name.startswith("weight"):
                    parameter.uniform_(-INITIAL, INITIAL)
                else:
                    parameter.zero_()
        self.features = units

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        check_sentences(tokens, lengths)
        if tokens.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return self._by_library(tokens, lengths)
        lengths, order = lengths.sort(descending=True, stable=True)
        tokens = tokens[order]
        known = positions(tokens, lengths).T  # (L, n): a step's words lie next to each other
        batch_sizes = known.sum(1).tolist()
        batch_sizes = batch_sizes[: int(lengths[0])]
        places = torch.arange(tokens.shape[1])
        states = []
        for suffix in ("_l0", "_l0_reverse")[: 1 + self.gru.bidirectional]:
            if suffix.endswith("reverse"):
                places = (lengths[:, None] - 1 - places).clamp(min=0)  # (n, L)
                tokens = tokens.gather(1, places)
            gates = self._gates(tokens.T[known], suffix)  # (T, 3 H)
            weight = getattr(self.gru, f"weight_hh{suffix}")
            bias = getattr(self.gru, f"bias_hh{suffix}")
            states.append(final_state(gates, batch_sizes, weight, bias))
        return torch.cat(states, 1)[order.argsort()]

    def _gates(self, packed: Tensor, suffix: str) -> Tensor:
        """The products of the input weights with the vectors of words, (T,) to (T, 3 H)."""
        weight = getattr(self.gru, f"weight_ih{suffix}")
        bias = getattr(self.gru, f"bias_ih{suffix}")
        # Most words of a batch occur often.
        distinct, which = packed.unique(return_inverse=True)
        return embedding(which, linear(self.words(distinct), weight, bias))

    def _by_library(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.words(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, state = self.gru(packed)  # (directions, n, H)
        return torch.cat(list(state), 1)
