"""Train an encoder on handwritten digits without labels, then see what it has learned.

    python examples/quickstart.py [--epochs 80] [--seed 0]

The data are scikit-learn's 1,797 digits of 8 x 8 pixels, so nothing is downloaded. A quarter of
them is held out. Labels serve only to measure, in two ways: a nearest-neighbor vote with all the
training labels, and one with ten labels per class, averaged over twenty draws.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

import unremix


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n, 1, 8, 8) in [0, 1] and labels (n,): train, then held out."""
    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(labels)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.25, stratify=labels, random_state=seed
    )
    return images[train], labels[train], images[test], labels[test]


def augment(x: Tensor) -> Tensor:
    """A random view of each image (n, 1, 8, 8): rotate, scale, shift, erase a patch, add noise."""
    n = len(x)
    angle = torch.empty(n).uniform_(-0.3, 0.3)  # radians
    scale = torch.empty(n, 2).uniform_(0.85, 1.2)
    shift = torch.empty(n, 2).uniform_(-1, 1) / 4  # one pixel is 2/8 of the range [-1, 1]
    cos, sin = angle.cos(), angle.sin()
    rows = [
        torch.stack([cos * scale[:, 0], -sin * scale[:, 1], shift[:, 0]], dim=1),
        torch.stack([sin * scale[:, 0], cos * scale[:, 1], shift[:, 1]], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)

    corner = torch.randint(0, 7, (n, 2, 1))  # a 2 x 2 patch, erased in half of the images
    inside = (torch.arange(8) >= corner) & (torch.arange(8) < corner + 2)  # (n, 2, 8)
    patch = inside[:, 0, :, None] & inside[:, 1, None, :] & (torch.rand(n, 1, 1) < 0.5)
    x = x.masked_fill(patch[:, None], 0.0)
    return x + 0.05 * torch.randn_like(x)


def make_encoder() -> nn.Module:
    """Images (n, 1, 8, 8) to features (n, 256)."""

    def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32), *block(32, 64, stride=2), *block(64, 64), nn.Flatten(), nn.Linear(1024, 256)
    )


@torch.no_grad()
def knn_accuracy(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, labels: Tensor, *, k: int
) -> float:
    """Share of queries whose k nearest neighbors vote right, by cosine weighted with e^(s/0.1)."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T  # (queries, bank)
    nearest, index = similarity.topk(k, dim=1)
    votes = torch.zeros(len(queries), 10).scatter_add_(1, bank_labels[index], (nearest / 0.1).exp())
    return (votes.argmax(dim=1) == labels).float().mean().item()


def few_label_accuracy(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, labels: Tensor, *, draws: int = 20
) -> float:
    """Mean kNN accuracy with ten labeled examples per class; the draws are the same every time."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(draws):
        order = torch.randperm(len(bank), generator=generator)
        keep = torch.cat([order[bank_labels[order] == digit][:10] for digit in range(10)])
        total += knn_accuracy(bank[keep], bank_labels[keep], queries, labels, k=5)
    return total / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y, x_test, y_test = digits(args.seed)
    encoder = make_encoder()
    head = nn.Sequential(nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))

    def measure(features: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        encoder.eval()
        with torch.no_grad():
            bank, queries = features(x), features(x_test)
        encoder.train()
        return (
            knn_accuracy(bank, y, queries, y_test, k=20),
            few_label_accuracy(bank, y, queries, y_test),
        )

    results = {
        "raw pixels": measure(lambda images: images.flatten(1)),
        "untrained encoder": measure(encoder),
    }

    loss_fn = unremix.UnReMixLoss(temperature=0.5, last_layer=head[-1])
    parameters = [*encoder.parameters(), *head.parameters(), *loss_fn.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    started = time.perf_counter()
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    console = Console()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=args.epochs, loss=float("nan"))
        for epoch in range(1, args.epochs + 1):
            total = 0.0
            batches = torch.randperm(len(x)).split(256)[:-1]  # the last one is smaller: leave it
            for batch in batches:
                view0, view1 = augment(x[batch]), augment(x[batch])
                loss = loss_fn(head(encoder(view0)), head(encoder(view1)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            progress.update(task, advance=1, loss=total / len(batches))
            if not console.is_terminal and (epoch == 1 or epoch % 10 == 0):  # in a log file
                print(f"epoch {epoch}/{args.epochs}, loss {total / len(batches):.3f}", flush=True)
    seconds = time.perf_counter() - started

    results[f"trained encoder ({args.epochs} epochs, {seconds:.0f} s)"] = measure(encoder)

    table = Table(title=f"Accuracy of nearest neighbors on {len(x_test)} held-out digits")
    table.add_column("features")
    table.add_column(f"all {len(y)} labels", justify="right")
    table.add_column("10 labels per class", justify="right")
    for name, accuracies in results.items():
        table.add_row(name, *(f"{accuracy:.1%}" for accuracy in accuracies))
    console.print(table)
    shares = ", ".join(f"{name} {float(share):.2f}" for name, share in loss_fn.mix.items())
    console.print(f"Learned mix: {shares}")


if __name__ == "__main__":
    main()
