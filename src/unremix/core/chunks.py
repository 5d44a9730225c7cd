"""A whole batch in the memory of a part: activations are made part by part, twice.

The loss sees the embeddings of all samples. In the backward pass each part is embedded once more,
with the same random numbers, and passes on what the loss derived for it (gradient caching). It is
one graph of autograd, so whatever averages gradients over processes works as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from unremix.core.checks import check_count
from unremix.core.last_layer.recorded import recording


def embed_in_chunks(
    embed: Callable[[Any], Any], inputs: Any, size: int, module: nn.Module
) -> tuple[Tensor, ...]:
    """What ``embed`` makes of N inputs, so many at a time, with the gradient of all.

    Args:
        embed: Inputs to a tensor, or to several, each with a row per sample.
        inputs: A tensor (N, ...), or tensors by name, such as the tokens of texts.
        size: Inputs at a time.
        module: Has the layers that ``embed`` calls. BatchNorm normalizes each part by its own
            statistics, and moves its running ones once.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Around the first pass over a part, and around the second."""
        return recording("parts"), _again(module)

    made = []
    for part in _parts(inputs, size):
        with recording("parts"):
            if torch.is_grad_enabled():
                outputs = checkpoint(embed, part, use_reentrant=False, context_fn=contexts)
            else:
                outputs = embed(part)
        made.append(outputs if isinstance(outputs, tuple) else (outputs,))
    return tuple(torch.cat(each) for each in zip(*made, strict=True))


class InChunks(nn.Module):
    """An encoder that embeds so many inputs at a time, for large batches in small memory.

    Memory for the activations of a chunk, the gradient of the whole batch, and one more forward
    pass. Wrap the encoder before it is handed to Lightning, Accelerate or DistributedDataParallel.

    Args:
        module: Inputs to embeddings (N, D).
        chunk: Inputs at a time.

    Example:
        >>> encoder = InChunks(nn.Linear(5, 3), chunk=2)
        >>> encoder(torch.randn(7, 5)).shape
        torch.Size([7, 3])

    Reference:
        Gao et al. 2021 (GradCache), arXiv 2101.06983.
    """

    def __init__(self, module: nn.Module, *, chunk: int) -> None:
        super().__init__()
        check_count("chunk", chunk, 1, "use a number of inputs that fit into memory")
        self.chunk = chunk
        self.module = module

    def forward(self, inputs: Any) -> Any:
        """Embeddings, shape (N, D), or several tensors if the encoder returns several."""
        outputs = embed_in_chunks(self.module, inputs, self.chunk, self.module)
        return outputs[0] if len(outputs) == 1 else outputs


def cached(
    loss_fn: Callable[..., Tensor], encoder: nn.Module, *, chunk: int
) -> Callable[..., Tensor]:
    """A loss of inputs in place of embeddings, that embeds so many of them at a time.

    Args:
        loss_fn: Embeddings of two views to a loss, such as :class:`unremix.UnReMixLoss`; it may
            watch the encoder's last layer.
        encoder: Inputs of a view to embeddings (N, D).
        chunk: Inputs at a time.

    Returns:
        A function of two views' inputs, and of what else ``loss_fn`` takes, by name. Its gradient
        is that of ``loss_fn(encoder(x0), encoder(x1))``.

    Example:
        >>> from unremix import UnReMixLoss
        >>> encoder = nn.Linear(5, 3)
        >>> loss_fn = cached(UnReMixLoss(last_layer=encoder), encoder, chunk=4)
        >>> loss_fn(torch.randn(9, 5), torch.randn(9, 5)).backward()
        >>> encoder.weight.grad.shape
        torch.Size([3, 5])

    Reference:
        Gao et al. 2021 (GradCache), arXiv 2101.06983.
    """
    in_chunks = InChunks(encoder, chunk=chunk)

    def loss(*views: Any, **given: Any) -> Tensor:
        return loss_fn(*(in_chunks(view) for view in views), **given)

    return loss


def _parts(inputs: Any, size: int) -> list[Any]:
    """So many inputs at a time."""
    if isinstance(inputs, Tensor):
        return list(inputs.split(size))
    if isinstance(inputs, Mapping) and all(isinstance(each, Tensor) for each in inputs.values()):
        columns = [each.split(size) for each in inputs.values()]
        return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=True)]
    raise ValueError(
        "expected inputs to be a tensor (N, ...), or tensors by name, got "
        f"{type(inputs).__name__}; make a module that takes such inputs"
    )


@contextmanager
def _again(module: nn.Module) -> Iterator[None]:
    """The second pass records nothing, and moves no running statistics."""
    every = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    layers = [layer for layer in every if layer.training and layer.track_running_stats]
    momenta = [layer.momentum for layer in layers]
    counts = [layer.num_batches_tracked.clone() for layer in layers]  # type: ignore[union-attr]
    for layer in layers:
        layer.momentum = 0.0
    try:
        with recording("none"):
            yield
    finally:
        for layer, momentum, count in zip(layers, momenta, counts, strict=True):
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(count)  # type: ignore[union-attr]
