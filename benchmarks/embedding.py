"""Images per second of ``unremix embed``, against a plain torch loop and the encoder alone.

    python benchmarks/embedding.py [--quick] [--rounds 5] [--cpu-time] [--strict]

How to read the table. Each contender embeds the same decoded images with the same ResNet-18 of
width 16 at 32 pixels, which starts from the same weights, in float32 and in bfloat16. "encoder
alone" calls it on batches that are normalized beforehand, of the size that suits it best: the
limit. "plain loop" normalizes batches of 256 and calls it, as one does by hand. Contenders
take turns; only ratios mean something elsewhere. Numbers go to benchmarks/results/embedding.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from measuring import conclude, read_options, show_race
from torch import Tensor, nn

from unremix.domains.image.dataset import CachedImages, ImageSet
from unremix.domains.image.encoders import make_encoder
from unremix.domains.image.model import set_features
from unremix.domains.image.views import SETTINGS, plain
from unremix.domains.remembered import forget
from unremix.training.building import embeds_in

LEAST = 0.9
PLAIN = 256
SIZES = (64, 128, 256)  # of batches of the encoder alone


def loop(encoder: nn.Module, batches: list[Tensor], *, normalized: bool, mixed: bool) -> Tensor:
    """Embed batches as a program without this library does."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        ready = batches if normalized else (plain(one, SETTINGS["cifar"]) for one in batches)
        return torch.cat([encoder(one).float() for one in ready])


def main() -> int:
    """Measure, print, save."""
    options = read_options(__doc__ or "", rounds=5)
    count, width = (256, 4) if options.quick else (1024, 16)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    images = ImageSet(CachedImages(pixels), [""] * count, None, None)
    ready = plain(pixels, SETTINGS["cifar"])
    runs: dict[str, Callable[[], object]] = {}
    for numbers in ("32-true", "bf16-mixed"):
        encoder = make_encoder("resnet18", channels=3, image_size=32, width=width).eval()
        encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mixed = numbers == "bf16-mixed"
        embeds_in(numbers, encoder)

        def ours(encoder: nn.Module = encoder) -> Tensor:
            forget(encoder)
            return set_features(encoder, images, SETTINGS["cifar"])

        def theirs(
            batches: list[Tensor], encoder: nn.Module = encoder, mixed: bool = mixed,
            normalized: bool = True,
        ) -> Callable[[], Tensor]:  # fmt: skip
            return lambda: loop(encoder, batches, normalized=normalized, mixed=mixed)

        runs[f"unremix, {numbers}"] = ours
        runs[f"plain loop, {numbers}"] = theirs(list(pixels.split(PLAIN)), normalized=False)
        for size in SIZES:
            runs[f"encoder alone by {size}, {numbers}"] = theirs(list(ready.split(size)))
    found = options.race(runs)
    ratios = show_race(
        found,
        f"Embedding: ResNet-18, width {width}, 32 px",
        reference="plain loop, 32-true",
        column="images/s",
        amount=lambda seconds: f"{count / seconds:,.0f}",
        faster=True,
    )
    targets = {}
    for numbers in ("32-true", "bf16-mixed"):
        alone = max(ratios[f"encoder alone by {size}, {numbers}"].medians for size in SIZES)
        share = ratios[f"unremix, {numbers}"].medians / alone
        targets[f"at least {LEAST} × the encoder alone, {numbers} ({share:.2f})"] = share >= LEAST
    settings = {"images": count, "width": width}
    return conclude("embedding", options, found, ratios, targets, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
