"""Which signal tells false negatives from true ones, on encoders of different quality.

    UNREMIX_DATA=... python benchmarks/signals.py [--epochs 6] [--measure 0 2 6] [--folder F]

How to read the tables. SimCLR is trained on a few thousand images, and stopped after some epochs.
Each time, every signal is asked of all negatives of a batch: is this one of the anchor's class? The
area under the curve (AUC) is 0.5 for a signal that does not know and 1 for one that always does;
"hard" is the same among the tenth of the negatives that is most similar to the anchor. Labels are
used for this alone. Below, each rule: what share of the weight it takes from false and from true
negatives. Memories are fed after every epoch with the encoder as it is then, by two views of every
image. All numbers go to benchmarks/results/signals.json. The folder keeps the checkpoint of every
epoch; those that are there are not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

import torch
from torch import Tensor

import unremix
from unremix.audit import separation
from unremix.domains.image.model import features_of
from unremix.domains.image.views import augment
from unremix.domains.sampling import permuted
from unremix.frameworks.base import Projecting
from unremix.frameworks.randomness import keys
from unremix.losses import InfoNCELoss, UnReMixLoss
from unremix.signals.false_negatives import Evidence, FalseNegatives, Rule
from unremix.signals.memory import Bank
from unremix.training.building import build_model
from unremix.training.run import Run

Seen = tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]], Tensor | None]
"""Ids of a batch; features, z and h of each view; features of the images as they are."""

RESULTS = Path(__file__).parent / "results" / "signals.json"
HARD = 0.1  # share of the negatives that is most similar
SHARE = 0.1  # of false negatives: ten classes
VIEWS = (16, 17)  # streams of views that training does not use


class Measurement:
    """What the memories hold, and the areas under the curve.

    Args:
        run: What was trained.
        batches: How many batches are measured.
    """

    def __init__(self, run: Run, batches: int) -> None:
        self.run, self.batches = run, batches
        self.data = run.domain.load_for(run, None).train
        self.samples = samples = len(self.data)
        self.scores = {
            "u, uncertainty (influence)": UnReMixLoss(),
            "u at t = 0.1": UnReMixLoss(posterior_temperature=0.1),
        }
        self.filters = {
            (rule, evidence): InfoNCELoss(
                false_negatives=FalseNegatives(rule, evidence, SHARE, samples)
            )
            for evidence in get_args(Evidence)
            for rule in get_args(Rule)
            if evidence != "shared-neighbors" or rule == "ring"
        }
        self.bank = Bank(samples)  # one for all
        for loss in self.filters.values():
            loss.bank = None if loss.bank is None else self.bank

    @torch.no_grad()
    def feed(self, state: dict[str, Any], epoch: int) -> list[Seen]:
        """Feed the memories with the encoder of a checkpoint, or the untrained one for epoch 0."""
        run, settings = self.run, self.run.shape.settings
        model = build_model(run.config, run.shape)
        assert isinstance(model, Projecting)
        if epoch:
            run.restore(model, state)
        model.eval()
        size = run.config.batch_size
        steps = self.samples // size
        seen = []
        for step in range(steps):
            ids = permuted(self.samples, size, 99, epoch * steps + step)
            images = self.data.images.batch(ids)
            views = []
            for stream in VIEWS:
                view = augment(images, settings, keys(run.config.seed, epoch, ids, stream))
                features = model.encoder(view)
                h = model.head[:-1](features)
                views.append((features, model.head[-1](h), h))
            self.bank.add(ids, *(features for features, _, _ in views))
            whole = None
            if step >= steps - self.batches:
                whole = features_of(model.encoder, images, settings)
            seen.append((ids, views, whole))
        for ids, ((_, z0, _), (_, z1, _)), _ in seen:  # now that the bank is complete
            for (rule, _), loss in self.filters.items():
                if rule == "threshold":
                    loss.train()(z0, z1, ids=ids)
        return seen

    @torch.no_grad()
    def measure(self, seen: list[Seen]) -> dict[str, list[float]]:
        """All figures of the last batches."""
        found: dict[str, list[float]] = defaultdict(list)
        for ids, views, whole in seen[-self.batches :]:
            assert whole is not None
            labels = self.data.labels[ids]
            for name, value in self.measured(ids, views, whole, labels).items():
                found[name].append(value)
        return found

    def measured(
        self,
        ids: Tensor,
        views: list[tuple[Tensor, Tensor, Tensor]],
        whole: Tensor,
        labels: Tensor,
    ) -> dict[str, float]:
        """Areas under the curve of a batch, and what each rule takes away."""
        (f0, z0, h0), (f1, z1, h1) = views
        given = (z0, z1, h0, h1)
        scores = {name: loss.importance(*given) for name, loss in self.scores.items()}
        first = next(iter(scores.values()))
        signals = {name: each.uncertainty for name, each in scores.items()}
        signals["r, representativeness"] = first.representativeness
        signals["s, similarity"] = first.similarity
        negatives = first.negatives
        same = (labels.repeat(2)[:, None] == labels.repeat(2)) & negatives
        result = {}
        for (rule, evidence), loss in self.filters.items():
            each = loss.importance(*given, ids=ids)
            assert each.evidence is not None
            assert each.keep is not None
            if evidence != "similarity":
                signals[evidence] = each.evidence
            for name, which in (("false", same), ("true", negatives & ~same)):
                result[f"{rule} of {evidence}|{name}"] = float(1 - each.keep[which].mean())
        unit = torch.nn.functional.normalize
        features = unit(torch.cat([f0, f1]), dim=1)
        signals["features of these views"] = features @ features.T
        plain = unit(whole, dim=1).repeat(2, 1)
        signals["features, not augmented"] = plain @ plain.T
        ranked = first.similarity.masked_fill(~negatives, -torch.inf)
        count = int(HARD * int(negatives.sum(1)[0]))
        hard = torch.zeros_like(negatives).scatter(1, ranked.topk(count, dim=1).indices, True)
        for name, values in signals.items():
            result[f"{name}|auc"] = separation(values, same, negatives)
            result[f"{name}|hard"] = separation(values, same, hard)
        return result


def show(epoch: int, accuracy: float, found: dict[str, float]) -> None:
    """Both tables of an epoch."""
    print(f"\nafter {epoch} epochs, kNN {100 * accuracy:.1f} %")
    names = dict.fromkeys(name.split("|")[0] for name in found)
    for one, other, title in (("auc", "hard", "signal"), ("false", "true", "rule")):
        print(f"{title:32} {one:>8} {other:>8}")
        for name in names:
            if f"{name}|{one}" in found:
                print(f"{name:32} {found[f'{name}|{one}']:8.3f} {found[f'{name}|{other}']:8.3f}")


def trained(asked: argparse.Namespace) -> Run:
    """The run, with a checkpoint of every epoch beside it."""
    runs = Path(asked.folder)
    names = ("data", "recipe", "temperature", "limit", "width", "batch_size")
    options = {name: getattr(asked, name) for name in names}
    options |= {"backbone": "resnet18", "runs": str(runs), "name": "encoder", "threads": 1}
    options |= {"probe_epochs": 0, "evaluate_every": 100, "progress": False}
    for epoch in range(1, asked.epochs + 1):
        kept = runs / f"epoch-{epoch}.ckpt"
        if kept.exists():
            continue
        if epoch == 1:
            run = unremix.train(epochs=1, **options)
        else:
            run = unremix.train(resume=str(runs / "encoder"), epochs=epoch, progress=False)
        shutil.copy(run.checkpoint, kept)
    return Run(runs / "encoder")


def main() -> None:
    """Train, and measure after some of the epochs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="cifar10-images.zip")
    parser.add_argument("--recipe", default="simclr")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--measure", type=int, nargs="+", default=[0, 2, 6])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--folder", default="runs/signals")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    run = trained(asked)
    assert run.evaluation is not None
    accuracy = {int(row["epoch"]): row.get("knn", math.nan) for row in run.metrics()}
    accuracy[0] = run.evaluation["results"]["untrained"]["knn"]["value"]
    measurement, measured = Measurement(run, asked.batches), {}
    started = time.process_time()
    for epoch in range(asked.epochs + 1):
        kept = Path(asked.folder) / f"epoch-{epoch}.ckpt"
        state = torch.load(kept, weights_only=True) if epoch else {}
        seen = measurement.feed(state, epoch)
        if epoch in asked.measure:
            found = measurement.measure(seen)
            means = {name: mean(values) for name, values in found.items()}
            errors = {name: stdev(values) / len(values) ** 0.5 for name, values in found.items()}
            measured[epoch] = {"knn": accuracy[epoch], "means": means, "standard_errors": errors}
            show(epoch, accuracy[epoch], means)
        print(f"(epoch {epoch}, {time.process_time() - started:.0f} s)", flush=True)
    settings = {
        name: value for name, value in vars(asked).items() if name not in ("output", "folder")
    }
    report = {
        "machine": {"torch": torch.__version__, "python": platform.python_version()},
        "settings": settings,
        "measuring_cpu_seconds": round(time.process_time() - started),
        "epochs": measured,
    }
    asked.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
