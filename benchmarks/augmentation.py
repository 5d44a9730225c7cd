"""Time the views of images against PIL, one image at a time, and against kornia, batched.

    python benchmarks/augmentation.py [--quick] [--rounds 15] [--threads 2] [--cpu-time] [--strict]

How to read the tables. All contenders do the same: SimCLR's views of CIFAR, with crop, flip, color
jitter in random order (hue included), gray, blur and normalization. They take turns, so that what
else the machine does hits all alike; only the ratios mean something elsewhere. "PIL" is one process
that treats one image after the other, as a worker of a data loader does. "Ours is × 5" says that
unremix makes five times as many views per second. Ratios are of medians over the rounds; that of
minima stands beside it, and where the two differ much the machine was busy: a call waits for its
slowest thread, so that ours and kornia's suffer most from company. `--cpu-time` therefore counts
the processor's time on one thread; it is the fairer measure on a shared machine. The second table
splits ours by operation. All numbers go to benchmarks/results/augmentation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import kornia
import kornia.augmentation as K
import numpy as np
import PIL
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from rich.console import Console
from rich.table import Table
from timing import Clock, Race, race, ratio
from torch import Tensor, nn

from unremix.domains.image import views as image
from unremix.domains.image.views import SETTINGS, Augmentation, augment
from unremix.frameworks.randomness import keys

RESULTS = Path(__file__).parent / "results"
OURS, PIL_LOOP, KORNIA = "unremix", "PIL, one process", "kornia"
TARGET = 4.0  # times the views per second of one PIL process, at 32 pixels

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Size and number of the images."""

    size: int
    batch: int


@dataclass
class Report:
    """What goes into the file."""

    machine: dict[str, object]
    clock: Clock
    cases: list[dict[str, object]] = field(default_factory=list)


class OneByOne:
    """The same views through PIL, in Python, one image after the other."""

    def __init__(self, settings: Augmentation, size: int, seed: int = 0) -> None:
        self.settings, self.size, self.random = settings, size, random.Random(seed)
        self.mean = np.array(settings.mean, dtype=np.float32)
        self.std = np.array(settings.std, dtype=np.float32)

    def __call__(self, pictures: list[Image.Image]) -> Tensor:
        """Views of the pictures, shape (B, 3, S, S)."""
        return torch.stack([self.view(picture) for picture in pictures])

    def view(self, picture: Image.Image) -> Tensor:
        settings, draw = self.settings, self.random.random
        picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, self.box())
        if draw() < settings.flip:
            picture = ImageOps.mirror(picture)
        if draw() < settings.jitter_probability:
            picture = self.jitter(picture)
        if draw() < settings.grayscale:
            picture = picture.convert("L").convert("RGB")
        if draw() < settings.blur:
            sigma = self.random.uniform(*settings.blur_sigma)
            picture = picture.filter(ImageFilter.GaussianBlur(sigma))
        array = (np.asarray(picture, dtype=np.float32) / 255 - self.mean) / self.std
        return torch.from_numpy(array).permute(2, 0, 1)

    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of a crop, as torchvision draws it."""
        low, high = np.log(self.settings.crop_ratio)
        for _ in range(10):
            area = self.size**2 * self.random.uniform(*self.settings.crop_scale)
            shape = np.exp(self.random.uniform(low, high))
            width, height = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
            if 0 < width <= self.size and 0 < height <= self.size:
                left = self.random.randint(0, self.size - width)
                top = self.random.randint(0, self.size - height)
                return left, top, left + width, top + height
        return 0, 0, self.size, self.size

    def jitter(self, picture: Image.Image) -> Image.Image:
        *strengths, hue = self.settings.jitter
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for operation in self.random.sample(range(4), 4):
            if operation == image.HUE:
                shift = int(self.random.uniform(-hue, hue) * 255)
                h, s, v = picture.convert("HSV").split()
                levels = (np.asarray(h).astype(np.int16) + shift).astype(np.uint8)
                picture = Image.merge("HSV", (Image.fromarray(levels), s, v)).convert("RGB")
            else:
                strength = strengths[operation]
                factor = self.random.uniform(max(0.0, 1 - strength), 1 + strength)
                picture = enhancers[operation](picture).enhance(factor)
        return picture


def with_kornia(settings: Augmentation, size: int) -> nn.Module:
    """The same views through kornia, with parameters of its own for every sample."""
    kernel = 2 * max(1, size // 10 // 2) + 1
    return nn.Sequential(
        K.RandomResizedCrop((size, size), settings.crop_scale, settings.crop_ratio),
        K.RandomHorizontalFlip(p=settings.flip),
        K.ColorJitter(*settings.jitter, p=settings.jitter_probability),
        K.RandomGrayscale(p=settings.grayscale),
        K.RandomGaussianBlur((kernel, kernel), settings.blur_sigma, p=settings.blur),
        K.Normalize(torch.tensor(settings.mean), torch.tensor(settings.std)),
    )


def photographs(case: Case) -> Tensor:
    """Smooth colors with some noise: uint8, shape (B, 3, S, S)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(case.batch, 3, 6, 6, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=(case.size, case.size), mode="bicubic")
    noise = 0.05 * torch.randn(smooth.shape, generator=generator)
    return ((smooth + noise).clamp(0, 1) * 255).to(torch.uint8)


def contenders(case: Case, settings: Augmentation) -> dict[str, Run]:
    """Each makes one view of every image; every call draws new ones."""
    images = photographs(case)
    pictures = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in images]
    samples = torch.arange(case.batch)
    epochs = iter(range(10**9))
    one_by_one, batched = OneByOne(settings, case.size), with_kornia(settings, case.size)

    @torch.no_grad()
    def through_kornia() -> Tensor:
        views: Tensor = batched(images.float() / 255)
        return views

    return {
        OURS: lambda: augment(images, settings, keys(0, next(epochs), samples, view=0)),
        PIL_LOOP: lambda: one_by_one(pictures),
        KORNIA: through_kornia,
    }


def operations(case: Case, settings: Augmentation) -> dict[str, Run]:
    """The operations of one batch, each alone and on the samples it befalls."""
    images, view_keys = photographs(case), keys(0, 0, torch.arange(case.batch), view=0)
    draws = image.draw(settings, view_keys, case.size)
    x = image.crop(images, draws.boxes, draws.flip, case.size)
    jittered, greyed, blurred = (
        chosen.nonzero()[:, 0] for chosen in (draws.jitter, draws.grayscale, draws.blur)
    )
    pixels, shifts = x[jittered].flatten(2), draws.factors[jittered, image.HUE]

    def gray() -> Tensor:
        return x.index_copy_(0, greyed, image.gray(x.index_select(0, greyed)))

    def blur() -> Tensor:
        # The result is dropped, lest the images be blurred more in every round.
        return image.blur(x.index_select(0, blurred), draws.sigmas[blurred])

    return {
        "draw": lambda: image.draw(settings, view_keys, case.size),
        "crop and flip": lambda: image.crop(images, draws.boxes, draws.flip, case.size),
        "jitter": lambda: image.jitter(x, draws.jitter, draws.factors, draws.orders),
        "of which hue": lambda: image.shift_hue(pixels, shifts),
        "gray": gray,
        "blur": blur,
        "normalize": lambda: image.plain(images, settings),
    }


def measure(case: Case, rounds: int, *, clock: Clock, console: Console) -> dict[str, object]:
    """Time one size, print its tables, and return what goes into the file."""
    settings = SETTINGS["cifar"]
    whole = race(contenders(case, settings), rounds, clock=clock)
    parts = race(operations(case, settings), rounds, clock=clock)
    table = Table(title=f"{case.size} pixels, batch {case.batch}")
    for heading in ("", "ms a batch", "images/s", "ours is ×", "by minima"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {}
    for name, seconds in whole.seconds.items():
        against = ratio(seconds, whole.seconds[OURS])
        rows[name] = {
            "seconds": median(seconds),
            "fastest": min(seconds),
            "images_per_second": case.batch / median(seconds),
            "ours_is_faster_by": asdict(against),
        }
        table.add_row(
            name,
            f"{1e3 * median(seconds):.1f}",
            f"{case.batch / median(seconds):,.0f}",
            f"{against.medians:.2f}",
            f"{against.minima:.2f}",
        )
    console.print(table)
    shares = share_of_each(parts)
    table = Table(title=f"Ours by operation, {case.size} pixels")
    for heading in ("", "ms a batch", "share"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, share in shares.items():
        table.add_row(name, f"{1e3 * median(parts.seconds[name]):.2f}", f"{share:.0%}")
    console.print(table)
    return {
        "case": asdict(case),
        "rounds": rounds,
        "disturbed": whole.disturbed + parts.disturbed,
        "contenders": rows,
        "shares": shares,
        "operations_ms": {name: 1e3 * median(s) for name, s in parts.seconds.items()},
    }


def share_of_each(parts: Race) -> dict[str, float]:
    """Of the sum of the operations; the hue is part of the jitter."""
    medians = {name: median(seconds) for name, seconds in parts.seconds.items()}
    total = sum(value for name, value in medians.items() if not name.startswith("of which"))
    return {name: value / total for name, value in medians.items()}


def save(report: Report, path: Path) -> None:
    """Write the report; an interrupted run leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small batches, a smoke test")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=2, help="of ours and of kornia")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread, CPU time: for a machine that is busy"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if the target is missed")
    arguments = parser.parse_args()
    clock: Clock = "cpu" if arguments.cpu_time else "wall"
    threads = 1 if arguments.cpu_time else arguments.threads
    torch.set_num_threads(threads)
    rounds = arguments.rounds or (3 if arguments.quick else 15)
    cases = [Case(32, 64), Case(96, 16)] if arguments.quick else [Case(32, 256), Case(96, 128)]
    report = Report(
        machine={
            "cores": os.cpu_count(),
            "threads": threads,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "kornia": kornia.__version__,
            "pillow": PIL.__version__,
            "load_at_start": round(os.getloadavg()[0], 2),
        },
        clock=clock,
    )
    console = Console()
    for case in cases:
        result = measure(case, rounds, clock=clock, console=console)
        report.cases.append(result)
    reached = report.cases[0]["contenders"][PIL_LOOP]["ours_is_faster_by"]["medians"]  # type: ignore[index]
    met = reached >= TARGET
    console.print(
        f"{'✓' if met else '✗'} {reached:.1f} times the views per second of one PIL process at "
        f"{cases[0].size} pixels; target {TARGET:.0f}"
    )
    # Neither overwrites the results of a proper run.
    suffix = "-quick" * arguments.quick + "-cpu-time" * arguments.cpu_time
    save(report, RESULTS / f"augmentation{suffix}.json")
    return int(arguments.strict and not met)


if __name__ == "__main__":
    raise SystemExit(main())
