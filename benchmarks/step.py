"""Time a training step: UnReMix against SimCLR and HCL, and the share of each stage.

    python benchmarks/step.py [--quick] [--rounds 7] [--threads 2] [--cpu-time] [--strict]

How to read the tables. The recipes take turns on the same batch: two views, both through ResNet-18
of width 16 and the head, loss, gradient, Adam. Only ratios mean something elsewhere; they are of
medians, with those of minima beside them. The second table splits UnReMix's step into its stages;
"reading" is taking the batch from the decoded images, before anything is done to it. All numbers go
to benchmarks/results/step.json.
"""

from __future__ import annotations

import sys
from statistics import median

import torch
from measuring import Options, conclude, read_options, show_race, show_shares
from torch import Tensor

from unremix.domains.image.dataset import CachedImages
from unremix.domains.image.views import ImageShape, augment
from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Batch, Embedded
from unremix.frameworks.randomness import keys
from unremix.training.building import build_model
from unremix.training.optimizers import make_optimizer

RECIPES = ("simclr", "hcl", "unremix-simclr")
MOST_OVER_SIMCLR = 1.03
MOST_READING = 0.10


class Step:
    """A training step of one recipe.

    Args:
        recipe: Which.
        images: The decoded images.
        batch_size: Images per step.
        width: Channels of the ResNet's first stage.
    """

    def __init__(self, recipe: str, images: CachedImages, batch_size: int, width: int) -> None:
        config = TrainConfig(recipe=recipe, backbone="resnet18", width=width)
        self.images = images
        shape = ImageShape(3, images.size, "cifar")
        self.settings = shape.settings
        self.indices = torch.arange(batch_size)
        self.model = build_model(config, shape)
        self.optimizer = make_optimizer(
            self.model,
            self.model.undecayed(),
            name="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
        )
        self.batch = self.read()
        self.views: Batch = self.view()
        self.embedded = self.embed()
        self.loss = self.lose()

    def read(self) -> Tensor:
        """Take the batch from memory."""
        self.batch = self.images.batch(self.indices)
        return self.batch

    def view(self) -> Batch:
        """Make two views."""
        key = [keys(0, 0, self.indices, view) for view in (0, 1)]
        views = tuple(augment(self.batch, self.settings, one) for one in key)
        self.views = Batch(views, self.indices, key[0], key[0][:1])
        return self.views

    def embed(self) -> list[Embedded]:
        """Both views through encoder and head."""
        self.embedded = [self.model.embed(images) for images in self.model.inputs(self.views)]
        return self.embedded

    def lose(self) -> Tensor:
        """The loss, which makes its own gradient."""
        self.loss = self.model.objective(self.embedded, self.views)
        return self.loss

    def learn(self) -> None:
        """Backward and a step of the optimizer."""
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()

    def __call__(self) -> None:
        """All of it."""
        for stage in (self.read, self.view, self.embed, self.lose, self.learn):
            stage()


def stage_seconds(step: Step, options: Options) -> dict[str, float]:
    """Median seconds of each stage. Backward needs a fresh graph, so it comes with its forward."""
    forward = {
        "reading": step.read,
        "views": step.view,
        "encoder and head": step.embed,
        "loss and its gradient": step.lose,
    }
    seconds = {name: median(times) for name, times in options.race(forward).seconds.items()}

    def forward_and_learn() -> None:
        step.embed()
        step.lose()
        step.learn()

    both = median(options.race({"both": forward_and_learn}).seconds["both"])
    before = seconds["encoder and head"] + seconds["loss and its gradient"]
    seconds["backward and optimizer"] = max(0.0, both - before)
    return seconds


def main() -> int:
    """Measure, print, save."""
    options = read_options(__doc__ or "", rounds=7)
    batch_size, width = (32, 4) if options.quick else (256, 16)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2 * batch_size, 3, 32, 32), generator=generator)
    images = CachedImages(pixels.to(torch.uint8))
    steps = {name: Step(name, images, batch_size, width) for name in RECIPES}
    found = options.race(steps)
    ratios = show_race(
        found,
        f"A step: ResNet-18, width {width}, 32 px, batch {batch_size}",
        reference="simclr",
        column="ms",
        amount=lambda seconds: f"{1000 * seconds:.0f}",
    )
    seconds = stage_seconds(steps["unremix-simclr"], options)
    shares = show_shares(seconds, sum(seconds.values()))
    targets = {
        f"UnReMix at most {MOST_OVER_SIMCLR} × SimCLR": ratios["unremix-simclr"].medians
        <= MOST_OVER_SIMCLR,
        f"reading at most {MOST_READING:.0%}": shares["reading"] <= MOST_READING,
    }
    settings = {"batch": batch_size, "width": width}
    return conclude(
        "step", options, found, ratios, targets, settings=settings, further={"shares": shares}
    )


if __name__ == "__main__":
    sys.exit(main())
