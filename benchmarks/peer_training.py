"""SimCLR as other libraries train it, for benchmarks/training.py; runs in the peers' environment.

    python benchmarks/peer_training.py lightly|lightning --data FOLDER --epochs 2 --workers 1 …

``lightly`` is the SimCLR example of lightly's documentation. ``lightning`` trains as solo-learn
does: Lightning's Trainer, torchvision's transforms on one picture at a time in the workers,
channels-last, a linear classifier on the detached features beside the contrastive loss. solo-learn
itself does not import beside this version of Lightning, so its loop is written out here.

The network, the views, the batch and the optimizer are those of ``unremix train``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "peers"))
import torchvision_operators  # noqa: F401

from unremix.domains.image.encoders import make_encoder
from unremix.domains.image.views import SETTINGS
from unremix.frameworks.heads import projection_head

LR, WEIGHT_DECAY, TEMPERATURE = 1e-3, 1e-6, 0.5


def encoder_and_head(width: int, size: int) -> tuple[nn.Module, nn.Module, int]:
    """The network of ``unremix train --backbone resnet18`` and SimCLR's head."""
    encoder = make_encoder("resnet18", channels=3, image_size=size, width=width)
    features = 8 * width
    return encoder, projection_head(features), features


def lightly_example(given: argparse.Namespace) -> None:
    """lightly's example: SimCLRTransform, a DataLoader with workers, NTXentLoss, a plain loop."""
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    settings = SETTINGS["cifar"]
    brightness, contrast, saturation, hue = settings.jitter
    transform = SimCLRTransform(
        input_size=given.size,
        cj_prob=settings.jitter_probability,
        cj_strength=1.0,
        cj_bright=brightness,
        cj_contrast=contrast,
        cj_sat=saturation,
        cj_hue=hue,
        min_scale=settings.crop_scale[0],
        random_gray_scale=settings.grayscale,
        gaussian_blur=settings.blur,
        sigmas=settings.blur_sigma,
        normalize={"mean": settings.mean, "std": settings.std},
    )
    loader = torch.utils.data.DataLoader(
        LightlyDataset(given.data, transform=transform),
        batch_size=given.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
    )
    encoder, head, _ = encoder_and_head(given.width, given.size)
    model = nn.Sequential(encoder, head)
    criterion = NTXentLoss(temperature=TEMPERATURE)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for _ in range(given.epochs):
        for batch in loader:
            first, second = batch[0]
            with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
                loss = criterion(model(first), model(second))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def lightning_loop(given: argparse.Namespace) -> None:
    """The loop of solo-learn's SimCLR."""
    import lightning
    from lightly.loss import NTXentLoss
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    settings = SETTINGS["cifar"]
    radius = max(1, given.size // 20)
    one = transforms.Compose(
        [
            transforms.RandomResizedCrop(given.size, scale=settings.crop_scale),
            transforms.RandomApply(
                [transforms.ColorJitter(*settings.jitter)], settings.jitter_probability
            ),
            transforms.RandomGrayscale(settings.grayscale),
            transforms.RandomApply(
                [transforms.GaussianBlur(2 * radius + 1, settings.blur_sigma)], settings.blur
            ),
            transforms.RandomHorizontalFlip(settings.flip),
            transforms.ToTensor(),
            transforms.Normalize(settings.mean, settings.std),
        ]
    )

    class SimCLR(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head, features = encoder_and_head(given.width, given.size)
            self.classifier = nn.Linear(features, 10)
            self.criterion = NTXentLoss(temperature=TEMPERATURE)

        def training_step(self, batch: tuple[list[Tensor], Tensor], index: int) -> Tensor:
            views, labels = batch
            features = [self.encoder(view) for view in views]
            contrast: Tensor = self.criterion(*(self.head(one) for one in features))
            logits = self.classifier(torch.cat(features).detach())
            classes = nn.functional.cross_entropy(logits, labels.repeat(2))
            self.log("contrast", contrast, on_epoch=True)
            self.log("classes", classes, on_epoch=True)
            return contrast + classes

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    loader = torch.utils.data.DataLoader(
        ImageFolder(given.data, transform=lambda picture: [one(picture), one(picture)]),
        batch_size=given.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
    )
    model = SimCLR()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainer = lightning.Trainer(
        max_epochs=given.epochs,
        accelerator="cpu",
        precision="bf16-mixed" if given.bf16 else "32-true",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)


LOOPS = {"lightly": lightly_example, "lightning": lightning_loop}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--data", required=True, help="a folder with a folder per class")
    for name in ("epochs", "workers", "width", "size", "batch_size", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--bf16", action="store_true", help="mixed precision, as by autocast")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    LOOPS[given.loop](given)


if __name__ == "__main__":
    main()
