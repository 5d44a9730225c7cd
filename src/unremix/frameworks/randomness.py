"""Random numbers as a function of (seed, epoch, sample, view), and of nothing else.

No generator carries state from one sample to the next. So resuming, the composition of a batch and
the number of processes change nothing: a sample's view in an epoch is always the same.

The numbers are those of splitmix64: the n-th number of key k is mix(k + n g) for an odd constant g.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Which of a sample's random streams makes what.
VIEWS = (0, 1)  # the two views of training
OTHER_VIEWS = (2, 3)  # the two views that are measured and shown
MIXING = 4
CROPS = 8  # the first small crop; the others follow

# What a step draws from a sample's key of the stream MIXING: offsets from it, for each view.
MIXED, NEGATIVES, NEGATIVES_OF_MIXED, PER_VIEW = range(4)
SHUFFLED = 1 << 32  # the order in which MoCo groups keys, out of the reach of other draws

_WEYL = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio, odd
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_SEEDS = (1 << 63) - 1  # what torch takes as a seed
_BITS = 24  # a float32 represents every multiple of 2⁻²⁴ in [0, 1)


def keys(seed: int, epoch: int, samples: Tensor, view: int) -> Tensor:
    """One key per sample: key = mix(h + sample g), with h mixed from seed, epoch and view in turn.

    Args:
        seed: Of the run; any integer, taken modulo 2⁶⁴.
        epoch: Counted from 0.
        samples: Numbers of the samples in the data set, an integer tensor of shape (B,).
        view: Which view of the sample, counted from 0.

    Returns:
        Keys, int64, shape (B,), on the device of ``samples``.

    Raises:
        ValueError: If ``samples`` does not hold integers.

    Example:
        >>> both = keys(0, 3, torch.tensor([7, 8]), view=1)
        >>> bool(both[1] == keys(0, 3, torch.tensor([8]), view=1))
        True
    """
    if samples.is_floating_point() or samples.is_complex() or samples.dtype == torch.bool:
        raise ValueError(
            f"expected samples as integers, got {samples.dtype}; pass the samples' indices"
        )
    start = 0
    for part in (seed, epoch, view):
        start = _mix_int(start + _WEYL + part)
    return _mix((samples.long() * _signed(_WEYL)).add_(_signed(start)))


def scramble(*numbers: int) -> int:
    """One seed made of several numbers.

    It differs from :func:`keys`, so that no seed equals a key. Changing either function changes the
    random numbers of every run.
    """
    state = 0x243F6A8885A308D3
    for number in numbers:
        state = ((state ^ (number & _SEEDS)) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & _SEEDS
        state ^= state >> 29
    return state


def uniforms(keys: Tensor, count: int) -> Tensor:
    """Independent numbers, uniform on the multiples of 2⁻²⁴ in [0, 1).

    A column does not depend on ``count``: asking for more appends columns.

    Args:
        keys: From :func:`keys`, shape (B,).
        count: Numbers per key.

    Returns:
        float32, shape (B, count).

    Example:
        >>> uniforms(keys(0, 0, torch.arange(2), view=0), 3).shape
        torch.Size([2, 3])
    """
    steps = torch.arange(1, count + 1, device=keys.device).mul_(_signed(_WEYL))
    bits = _mix(keys[:, None] + steps)  # (B, count)
    return _shift_right(bits, 64 - _BITS).to(torch.float32).mul_(2.0**-_BITS)


def _mix(words: Tensor) -> Tensor:
    """The finaliser of splitmix64, in place; int64 products wrap around."""
    words ^= _shift_right(words, 30)
    words *= _signed(_FIRST)
    words ^= _shift_right(words, 27)
    words *= _signed(_SECOND)
    words ^= _shift_right(words, 31)
    return words


def _mix_int(word: int) -> int:
    """The same for one number, from 0 to 2⁶⁴ - 1."""
    word &= _WORD
    word = (word ^ (word >> 30)) * _FIRST & _WORD
    word = (word ^ (word >> 27)) * _SECOND & _WORD
    return word ^ (word >> 31)


def _shift_right(words: Tensor, places: int) -> Tensor:
    """Shift zeros in from the left; ``>>`` on signed numbers copies the sign."""
    return (words >> places).bitwise_and_((1 << (64 - places)) - 1)


def _signed(word: int) -> int:
    """The number from -2⁶³ to 2⁶³ - 1 with the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word
