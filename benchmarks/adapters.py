"""The adapters' losses against those they replace; runs in the peers' environment.

    python benchmarks/adapters.py --cpu-time

A call is forward and backward on random embeddings of 384 dimensions, with each library's own
temperature. ``uniform`` is the adapter with ``components=()``, which equals the library's loss;
``default`` weights the negatives. pytorch-metric-learning's ``NTXentLoss`` compares every positive
pair with all negative pairs of the batch: 2,048 embeddings in classes of 4 would take a mask of
25.7 GB, so that it is timed on 256, and on 2,048 the adapter against ``SupConLoss``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "peers"))
import torchvision_operators  # noqa: F401
from measuring import Options, conclude, read_options, show_race
from timing import Race, Ratio

DIMENSIONS, BATCH, CLASS = 384, 2048, 4
MOST = {"uniform": 1.1, "default": 2.5}  # times the library's loss
Contenders = dict[str, Callable[[], Tensor]]


def two_views(batch: int) -> tuple[Tensor, Tensor]:
    """Embeddings of two views of each sample."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, batch, DIMENSIONS, generator=generator)
    return first.requires_grad_(), second.requires_grad_()


def of_lightly(batch: int) -> Contenders:
    """``NTXentLoss``."""
    from lightly.loss import NTXentLoss

    from unremix.adapters.lightly import UnReMixLoss

    views = two_views(batch)
    return {
        "peer": partial(NTXentLoss(0.5), *views),
        "uniform": partial(UnReMixLoss(0.5, components=()), *views),
        "default": partial(UnReMixLoss(0.5), *views),
    }


def of_open_clip(batch: int) -> Contenders:
    """``ClipLoss``, with a learned temperature, as CLIP trains."""
    from open_clip.loss import ClipLoss

    from unremix.adapters.open_clip import UnReMixClipLoss

    first, second = two_views(batch)
    scale = torch.tensor(14.0, requires_grad=True)

    def of(loss_fn: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return lambda: loss_fn(normalize(first), normalize(second), scale)

    return {
        "peer": of(ClipLoss()),
        "uniform": of(UnReMixClipLoss(components=())),
        "default": of(UnReMixClipLoss()),
    }


def of_sentence_transformers(batch: int) -> Contenders:
    """``MultipleNegativesRankingLoss`` on embeddings, without the model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from unremix.adapters.sentence_transformers import UnReMixLoss

    views = list(two_views(batch))
    model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    return {
        "peer": partial(
            MultipleNegativesRankingLoss(model).compute_loss_from_embeddings, views, None
        ),
        "uniform": partial(UnReMixLoss(model, components=()).compute_loss_from_embeddings, views),
        "default": partial(UnReMixLoss(model).compute_loss_from_embeddings, views),
    }


def of_metric_learning(batch: int, *, peer: str) -> Contenders:
    """A loss of pytorch-metric-learning, by its name."""
    from pytorch_metric_learning import losses

    from unremix.adapters.metric_learning import UnReMixLoss

    embeddings = two_views(batch)[0]
    labels = torch.arange(batch // CLASS).repeat(CLASS)
    return {
        "peer": partial(getattr(losses, peer)(temperature=0.07), embeddings, labels),
        "uniform": partial(UnReMixLoss(0.07, components=()), embeddings, labels),
        "default": partial(UnReMixLoss(0.07), embeddings, labels),
    }


NT_XENT, SUP_CON = "pytorch-metric-learning, NTXentLoss", "pytorch-metric-learning, SupConLoss"
LIBRARIES: dict[str, Callable[[int], Contenders]] = {
    "lightly": of_lightly,
    "open_clip": of_open_clip,
    "sentence-transformers": of_sentence_transformers,
    NT_XENT: partial(of_metric_learning, peer="NTXentLoss"),
    SUP_CON: partial(of_metric_learning, peer="SupConLoss"),
}


def stepping(loss: Callable[[], Tensor]) -> Callable[[], object]:
    """Forward and backward."""
    return lambda: loss().backward()  # type: ignore[no-untyped-call]


def measure(library: str, options: Options) -> tuple[Race, dict[str, Ratio]]:
    """Time the losses of one library in turns."""
    batch = 64 if options.quick else 256 if library == NT_XENT else BATCH
    contenders = {name: stepping(loss) for name, loss in LIBRARIES[library](batch).items()}
    found = options.race(contenders)
    ratios = show_race(
        found,
        f"{library}, {batch:,} pairs" if "metric" not in library else f"{library}, {batch:,}",
        reference="peer",
        column="ms",
        amount=lambda seconds: f"{1e3 * seconds:.1f}",
    )
    return found, ratios


def main() -> int:
    """Measure all."""
    warnings.simplefilter("ignore")
    options = read_options(__doc__ or "", rounds=15)
    seconds, ratios, targets, disturbed = {}, {}, {}, 0
    for library in LIBRARIES:
        found, against = measure(library, options)
        disturbed += found.disturbed
        for name, times in found.seconds.items():
            seconds[f"{library}: {name}"], ratios[f"{library}: {name}"] = times, against[name]
        if library != SUP_CON:  # another loss than the adapter's
            for name, most in MOST.items():
                target = f"{library}: {name} takes at most {most} of the peer's loss"
                targets[target] = against[name].medians <= most
    settings = {"batch": BATCH, "dimensions": DIMENSIONS, "class": CLASS}
    return conclude(
        "adapters", options, Race(seconds, disturbed), ratios, targets, settings=settings
    )


if __name__ == "__main__":
    sys.exit(main())
