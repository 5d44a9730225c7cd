"""Time a step of image encoders in both memory formats, alternating, in one thread.

``python benchmarks/memory_format.py`` prints the median of each and their ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from unremix.domains.image.encoders import make_encoder

ROUNDS = 5
CASES = (("resnet18", 32, 16, 64, 3), ("resnet18", 32, 64, 16, 3), ("small", 8, 64, 256, 1))


def make_step(
    name: str, size: int, width: int, count: int, channels: int, *, last: bool
) -> Callable[[], None]:
    """A step on random images, with the weights channels-last or not."""
    torch.manual_seed(0)
    model = make_encoder(name, channels=channels, image_size=size, width=width)
    if last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(count, channels, size, size)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(images).pow(2).mean().backward()
        optimizer.step()

    return step


def main() -> None:
    """Time all cases."""
    torch.set_num_threads(1)
    for case in CASES:
        steps = [make_step(*case, last=last) for last in (False, True)]
        times: list[list[float]] = [[], []]
        for number in range(ROUNDS + 1):
            for step, took in zip(steps, times, strict=True):
                began = time.perf_counter()
                step()
                if number:  # the first warms up
                    took.append(time.perf_counter() - began)
        plain, last = map(statistics.median, times)
        name, size, width, count, _ = case
        print(
            f"{name}, width {width}, {size} px, batch {count}: contiguous {plain * 1e3:.0f} ms, "
            f"channels-last {last * 1e3:.0f} ms, ratio {plain / last:.2f}"
        )


if __name__ == "__main__":
    main()
