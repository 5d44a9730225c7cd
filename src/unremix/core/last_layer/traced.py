"""The input h that a weight was multiplied with, read from autograd's graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import linear

# Nodes of autograd's graph that multiply by a weight: where they keep h, and which parent is W.
MULTIPLICATIONS = {
    "AddmmBackward0": ("_saved_mat1", 2),
    "MmBackward0": ("_saved_self", 1),
    "LinearBackward0": ("_saved_input", 1),
}
# Nodes that leave every row in its place: normalization, activations, arithmetic.
ROW_BY_ROW = {
    *("Add", "Clamp", "ClampMax", "ClampMin", "Div", "Elu", "Gelu", "Hardswish", "LeakyRelu"),
    *("CudnnBatchNorm", "MiopenBatchNorm", "NativeBatchNorm", "NativeLayerNorm", "NativeDropout"),
    *("Mul", "Relu", "Sigmoid", "Silu", "Softplus", "Sub", "Tanh", "ToCopy"),
}


@dataclass(frozen=True)
class LayerInputs:
    """What is known of the layer that embeddings come from.

    Args:
        inputs: h, shape (N, H), without gradient.
        outputs: W h + b, shape (N, D), where the embeddings are made of it and may differ from it;
            None where they are the same.
    """

    inputs: Tensor
    outputs: Tensor | None = None


def traced(
    given: Tensor, leaf: Tensor, weight: Tensor, bias: Tensor | None = None
) -> LayerInputs | None:
    """What autograd's graph knows of z = W h + b, possibly followed by operations row by row.

    Args:
        given: z, shape (N, D).
        leaf: W or its transpose, as the model holds it.
        weight: W, shape (D, H).
        bias: b, shape (D,).

    Returns:
        h and, where z may be something else, W h + b; None if the graph does not show it.
    """
    top: Any = given.grad_fn  # its saved values are attributes that types do not know
    start, step, size = 0, 1, given.shape[0]
    if top is not None and top.name() == "_DDPSinkBackward":  # a copy of each output of a model
        top = top.next_functions[given.output_nr][0]
    part = top is not None and top.name() in ("SplitBackward0", "SliceBackward0")
    if part:  # z is some rows of what was made in one call
        if top._saved_dim not in (0, 2**64 - given.dim()):
            return None
        whole = top.name() == "SplitBackward0"
        start = given.output_nr * top._saved_split_size if whole else top._saved_start
        step = 1 if whole else top._saved_step
        top = top.next_functions[0][0]
    while top is not None and top.name() == "ToCopyBackward0":  # the same in another precision
        top = top.next_functions[0][0]
    products = _products(top, leaf)
    if len(products) != 1:  # none, or a mixture of several calls
        return None
    ((node, chosen),) = products
    try:
        h = getattr(node, MULTIPLICATIONS[node.name()][0])
    except RuntimeError:  # freed by a backward pass
        return None
    if h is None or h.dim() != 2:
        return None
    if chosen is not None:
        h = h[chosen * size : (chosen + 1) * size]
    if not (part or h.shape[0] == size):
        return None
    if start >= 2**63:  # counted from the end
        start += h.shape[0] - 2**64
    h = h[start : start + size * step : step].detach()
    if h.shape[0] != size:
        return None
    made = None if node is top else linear(h.to(weight), weight, bias).to(given.dtype)
    return LayerInputs(h.to(given.dtype), made)


def _products(top: Any, leaf: Tensor) -> list[tuple[Any, int | None]]:
    """The nodes that multiply by a leaf, from which operations row by row lead to a node.

    With each, which of the tokens is chosen where rows are tokens, as in attention that pools: the
    rows of the first token of all samples come first. None where rows are samples.
    """
    products: list[tuple[Any, int | None]] = []
    waiting: list[Any] = [top]
    seen: set[Any] = set()
    chosen = None
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() in MULTIPLICATIONS:
            weight = node.next_functions[MULTIPLICATIONS[node.name()][1]][0]
            if _leads_to(weight, leaf):
                products.append((node, chosen))
        elif node.name() == "SelectBackward0" and node._saved_dim == 0:
            view = node.next_functions[0][0]
            if view is not None and view.name() == "ViewBackward0":
                chosen = node._saved_index
                waiting.append(view.next_functions[0][0])
        elif node.name().rstrip("0123456789").removesuffix("Backward") in ROW_BY_ROW:
            waiting += [parent for parent, _ in node.next_functions]
    return products


def _leads_to(node: Any, leaf: Tensor) -> bool:
    """Whether a node of the graph is a leaf, up to its precision and its transpose."""
    same = ("TBackward0", "ToCopyBackward0", "TransposeBackward0")
    while node is not None and node.name() in same:
        node = node.next_functions[0][0]
    return node is not None and getattr(node, "variable", None) is leaf
