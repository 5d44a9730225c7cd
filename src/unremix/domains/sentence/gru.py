"""A recurrent sentence encoder: the last state of a gated recurrent unit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear
from torch.nn.utils.rnn import pack_padded_sequence

from unremix.domains.sentence.encoders import check_sentences, positions
from unremix.domains.sentence.word_vectors import INITIAL, word_table


def final_state(inputs: Tensor, batch_sizes: list[int], weight: Tensor, bias: Tensor) -> Tensor:
    """The last hidden state of each sequence.

    [r, z] = σ(x_rz + W_rz h + b_rz),  c = tanh(x_c + r ∘ (W_c h + b_c)),  h' = c + z ∘ (h - c),
    from h = 0.

    ``torch.nn.GRU`` computes the same with the same parameters. Here the gradient is written out:
    that of W is one product over all steps, where the library makes one per step, and elementwise
    work happens in place. On one thread, forward and backward of ``nn.GRU`` on packed sequences
    take 1.6 times as long at 300 units, 1.5 times at 2 × 300 and 2.0 times at 2 × 600
    (``python benchmarks/handwork.py recurrence``).

    Args:
        inputs: x, the input's share of the gates r, z and c (its products with the input weights,
            bias included) for all steps of all sequences, shape (T, 3 H). The first
            ``batch_sizes[0]`` rows are the first steps of all sequences, the longest sequence
            first; then the second steps of those that have one; and so on, as in
            :class:`torch.nn.utils.rnn.PackedSequence`.
        batch_sizes: How many sequences have a first step, a second step, …; never rising.
        weight: W, shape (3 H, H).
        bias: b, shape (3 H,).

    Returns:
        h' after each sequence's last step, the longest first, shape (batch_sizes[0], H).

    Example:
        >>> x = torch.zeros(3, 6)  # two steps of one sequence, one step of another
        >>> final_state(x, [2, 1], torch.zeros(6, 2), torch.ones(6)).shape
        torch.Size([2, 2])
    """
    state: Tensor = _FinalState.apply(inputs, weight, bias, batch_sizes)  # type: ignore[no-untyped-call]
    return state


class _FinalState(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, batch_sizes: list[int]
    ) -> Tensor:
        size = weight.shape[1]
        steps = inputs.shape[0]
        state = inputs.new_zeros(batch_sizes[0], size)
        gates = torch.empty_like(inputs)  # r, z and c
        before = inputs.new_empty(steps, size)  # h
        pulled = inputs.new_empty(steps, size)  # W_c h + b_c
        across = weight.T
        start = 0
        for count in batch_sizes:
            rows = slice(start, start + count)
            start += count
            h, x, gate = state[:count], inputs[rows], gates[rows]
            before[rows] = h
            recurrent = torch.addmm(bias, h, across)  # (count, 3 H)
            pulled[rows] = recurrent[:, 2 * size :]
            torch.add(x[:, : 2 * size], recurrent[:, : 2 * size], out=gate[:, : 2 * size])
            r_and_z, c = gate[:, : 2 * size].sigmoid_(), gate[:, 2 * size :]
            torch.addcmul(x[:, 2 * size :], r_and_z[:, :size], recurrent[:, 2 * size :], out=c)
            c.tanh_()
            h.sub_(c).mul_(r_and_z[:, size:]).add_(c)
        ctx.save_for_backward(weight, gates, before, pulled)
        ctx.batch_sizes = batch_sizes
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, gates, before, pulled = ctx.saved_tensors
        size = weight.shape[1]
        into_inputs = torch.empty_like(gates)
        into_pulled = torch.empty_like(gates)  # through W h + b
        into_state = gradient.clone()
        stop = gates.shape[0]
        for count in reversed(ctx.batch_sizes):
            rows = slice(stop - count, stop)
            stop -= count
            r, z, c = gates[rows].split(size, dim=1)
            change = into_inputs[rows]
            into_r, into_z, into_c = change.split(size, dim=1)
            into_h = into_state[:count]
            # σ' = σ (1 - σ) and tanh' = 1 - tanh²
            torch.mul(into_h, z, out=into_z)  # what reaches h' = z ∘ h + (1 - z) ∘ c
            kept = into_z.clone()
            torch.sub(into_h, into_z, out=into_c)
            into_c.addcmul_(into_c * c, c, value=-1)
            into_z.mul_(1 - z).mul_(before[rows] - c)
            torch.mul(into_c, r, out=into_pulled[rows, 2 * size :])
            torch.mul(into_c, pulled[rows], out=into_r)
            into_r.mul_(r).mul_(1 - r)
            into_pulled[rows, : 2 * size] = change[:, : 2 * size]
            torch.addmm(kept, into_pulled[rows], weight, out=into_h)
        return into_inputs, into_pulled.T @ before, into_pulled.sum(0), None


class GRUEncoder(nn.Module):
    """The state of a GRU after it has read a sentence.

    Bidirectional, it is the concatenation of one half read forwards and one read backwards. The
    parameters are those of an ``nn.Embedding`` and an ``nn.GRU``, under ``words`` and ``gru``.

    On the CPU the products of the input weights are made once for each distinct word of a batch
    and the recurrence is :func:`final_state`; elsewhere, and under
    autocast, ``nn.GRU`` computes the same.

    Args:
        vocabulary_size: V, padding and unknown included: ``len(vocabulary)``.
        words: Size of a word's vector.
        units: Size of the state, both directions together.
        bidirectional: Whether half of the units read backwards.

    Attributes:
        features: Size of the output, ``units``.

    Raises:
        ValueError: If a size is too small, or ``units`` is odd for two directions.

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
            even = "even " if bidirectional else ""
            raise ValueError(f"expected a positive {even}number of units, got {units}; change it")
        self.words = word_table(vocabulary_size, words)
        self.gru = nn.GRU(words, units // directions, batch_first=True, bidirectional=bidirectional)
        for name, parameter in self.gru.named_parameters():
            if name.startswith("weight"):
                nn.init.uniform_(parameter, -INITIAL, INITIAL)
            else:
                nn.init.zeros_(parameter)
        self.features = units

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        check_sentences(tokens, lengths)
        if tokens.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return self._by_library(tokens, lengths)
        lengths, order = lengths.sort(descending=True, stable=True)
        tokens = tokens[order]
        known = positions(tokens, lengths).T  # (L, n): a step's words lie next to each other
        batch_sizes = known.sum(1).tolist()[: int(lengths[0])]
        states = []
        for direction, weights in enumerate(self.gru.all_weights):
            if direction:  # backwards
                places = lengths[:, None] - 1 - torch.arange(tokens.shape[1])  # (n, L)
                tokens = tokens.gather(1, places.clamp(min=0))
            of_inputs, of_state, input_bias, state_bias = weights
            # Most words of a batch occur often.
            distinct, which = tokens.T[known].unique(return_inverse=True)
            table = linear(self.words(distinct), of_inputs, input_bias)  # a row for each, (·, 3 H)
            states.append(final_state(embedding(which, table), batch_sizes, of_state, state_bias))
        return torch.cat(states, 1)[order.argsort()]

    def _by_library(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words = self.words(tokens)
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, state = self.gru(packed)  # (directions, n, H)
        return torch.cat(list(state), 1)
