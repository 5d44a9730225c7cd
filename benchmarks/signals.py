"""Which signal tells false negatives from true ones, on encoders of different quality.

    UNREMIX_DATA=... python benchmarks/signals.py [--epochs 6] [--measure 0 2 6]

How to read the tables. SimCLR is trained on a few thousand images, and stopped after some epochs.
Each time, every signal is asked of all negatives of a batch: is this one of the anchor's class? The
area under the curve (AUC) is 0.5 for a signal that does not know and 1 for one that always does;
"hard" is the same among the tenth of the negatives that is most similar to the anchor. Labels are
used for this alone. Below, each rule: what share of the weight it takes from false and from true
negatives. Memories are fed after every epoch with the encoder as it is then, by two views of every
image. All numbers go to benchmarks/results/signals.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

import torch
from torch import Tensor

from unremix.audit import separation
from unremix.core.signals import Evidence, FalseNegatives, Rule
from unremix.domains.image import features_of
from unremix.evaluation.images import measure_knn
from unremix.frameworks.base import Framework, Projecting
from unremix.losses import InfoNCELoss, UnReMixLoss
from unremix.training.config import make_config
from unremix.training.loop import fit
from unremix.training.preparation import Prepared, prepare
from unremix.training.progress import Progress
from unremix.training.sampling import permuted
from unremix.views.image import augment
from unremix.views.randomness import keys

RESULTS = Path(__file__).parent / "results" / "signals.json"
HARD = 0.1  # share of the negatives that is most similar
SHARE = 0.1  # of false negatives: ten classes
VIEWS = (16, 17)  # streams of views that training does not use


class Measurement:
    """What the memories hold, and the areas under the curve; observes a training.

    Args:
        prepared: The training.
        epochs: When to measure.
        batches: How many batches are measured.
    """

    def __init__(self, prepared: Prepared, epochs: list[int], batches: int) -> None:
        self.prepared, self.epochs, self.batches = prepared, epochs, batches
        self.samples = samples = len(prepared.data.train)
        self.batch_size = prepared.config.batch_size
        self.report: dict[int, Any] = {}
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
        }

    @torch.no_grad()
    def __call__(self, model: Framework, epoch: int) -> dict[str, float]:
        """Feed the memories with the encoder as it is; measure if it is time."""
        assert isinstance(model, Projecting)
        data, config, shape = self.prepared.data, self.prepared.config, self.prepared.run.shape
        labels, started = data.train.labels, time.process_time()
        model.eval()
        steps = self.samples // self.batch_size
        seen = []
        for step in range(steps):
            ids = permuted(self.samples, self.batch_size, 99, epoch * steps + step)
            images = data.train.images.batch(ids)
            views = []
            for stream in VIEWS:
                view = augment(images, shape.settings, keys(config.seed, epoch, ids, stream))
                features = model.encoder(view)
                h = model.head[:-1](features)
                views.append((features, model.head[-1](h), h))
            for loss in self.filters.values():
                if loss.bank is not None:
                    loss.remember(ids, *(features for features, _, _ in views))
            seen.append((ids, views))
        for ids, ((_, z0, _), (_, z1, _)) in seen:  # now that the bank is complete
            for (rule, _), loss in self.filters.items():
                if rule == "threshold":
                    loss.train()(z0, z1, ids=ids)
        if epoch in self.epochs:
            found: dict[str, list[float]] = defaultdict(list)
            for ids, views in seen[-self.batches :]:
                whole = features_of(model.encoder, data.train.images.batch(ids), shape.settings)
                for name, value in self.measured(ids, views, whole, labels[ids]).items():
                    found[name].append(value)
            accuracy = measure_knn(model.encoder, data, shape, config).value
            means = {name: mean(values) for name, values in found.items()}
            errors = {name: stdev(values) / len(values) ** 0.5 for name, values in found.items()}
            self.report[epoch] = {"knn": accuracy, "means": means, "standard_errors": errors}
            show(epoch, accuracy, means)
        print(f"(epoch {epoch}: {time.process_time() - started:.0f} s of measuring)", flush=True)
        model.train()
        return {}

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
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(asked).items() if name != "output"}
    options = {name: settings[name] for name in settings if name not in ("measure", "batches")}
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            options
            | {"backbone": "resnet18", "runs": folder, "name": "signals", "threads": 1}
            | {"progress": False}
        )
        prepared = prepare(config)
        measurement = Measurement(prepared, asked.measure, asked.batches)
        assert prepared.model is not None
        started = time.process_time()
        measurement(prepared.model, 0)
        fit(prepared, measurement, Progress(config))
        report = {
            "machine": {"torch": torch.__version__, "python": platform.python_version()},
            "settings": settings,
            "cpu_seconds": round(time.process_time() - started),
            "epochs": measurement.report,
        }
    asked.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
