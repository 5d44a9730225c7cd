"""Whether the three scores deliver the properties that the paper wants of negatives, P1 to P3.

    UNREMIX_DATA=... python benchmarks/properties.py RUN [RUN ...] [--k 10] [--batches 16]

Each RUN is a folder of `unremix train` on labeled images, of any recipe. For the untrained and the
trained encoder, and for each score, the k negatives that the score ranks highest are looked at:

- P1, true negatives: how many share the anchor's class, beside the rate among all negatives;
- P2, near the anchor: their mean percentile of similarity among the anchor's negatives;
- P3, representative: how many classes are among them, and how far their mean lies from the mean of
  all negatives, both beside k random negatives (1 is as representative as a random sample).

"Exceptions" are the case of the paper's limitations section: of the k most similar negatives, how
many have an uncertainty above the anchor's median, of all and of those that are false; chance is a
half. Labels are used for this alone.

A last line is about the weights of the run's own loss, with the mix that it has learned: how they
correlate with the similarity over an anchor's negatives, and which share of the negatives is
effective. All numbers go to benchmarks/results/properties.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from ledger import to_markdown
from torch import Tensor

from unremix.audit import effective_negatives, separation
from unremix.core.contrast import Importance
from unremix.domains.image.views import augment
from unremix.domains.sampling import permuted
from unremix.frameworks.base import Projecting
from unremix.frameworks.contrastive import Contrastive
from unremix.frameworks.randomness import keys
from unremix.losses import UnReMixLoss
from unremix.report.style import AS_PRINTED
from unremix.training.building import build_model
from unremix.training.run import Run

RESULTS = Path(__file__).parent / "results" / "properties.json"
VIEWS = (16, 17)  # streams of views that training does not use
SCORES = ("uncertainty", "similarity", "representativeness", "weights", "random")


def look(z: Tensor, h: Tensor, labels: Tensor, k: int) -> dict[str, float]:
    """All figures of a batch.

    Args:
        z: Embeddings of both views, shape (2, N, D).
        h: Inputs of the last layer, shape (2, N, H).
        labels: Shape (N,).
        k: How many negatives to look at, per anchor.
    """
    scored = UnReMixLoss(mix="fixed").importance(*z, *h)
    negatives, similarity = scored.negatives, scored.similarity
    labels = labels.repeat(2)
    same = (labels[:, None] == labels) & negatives  # (2N, 2N)
    count = int(negatives[0].sum())
    unit = torch.nn.functional.normalize(z.flatten(0, 1), dim=1)
    middle = (negatives.to(unit.dtype) @ unit) / count  # of each anchor's negatives, (2N, D)
    rank = similarity.masked_fill(~negatives, -torch.inf).argsort(1).argsort(1)
    percentile = (rank - (rank.shape[1] - count)) / (count - 1)
    found = {"base": float(same.sum() / negatives.sum())}
    for name in SCORES:
        score = torch.rand_like(similarity) if name == "random" else getattr(scored, name)
        top = score.masked_fill(~negatives, -torch.inf).topk(k, dim=1).indices  # (2N, k)
        shift = (unit[top].mean(1) - middle).norm(dim=1)
        classes = torch.nn.functional.one_hot(labels[top]).amax(1).sum(1)
        found |= {
            f"{name}|false": float(same.gather(1, top).float().mean()),
            f"{name}|percentile": float(percentile.gather(1, top).mean()),
            f"{name}|classes": float(classes.float().mean()),
            f"{name}|shift": float(shift.mean()),
            f"{name}|auc": separation(score, same, negatives),
        }
    uncertainty = scored.uncertainty.masked_fill(~negatives, torch.nan)
    high = uncertainty > uncertainty.nanmedian(1, keepdim=True).values
    near = similarity.masked_fill(~negatives, -torch.inf).topk(k, dim=1).indices
    false, uncertain = same.gather(1, near), high.gather(1, near)
    found["exceptions|all"] = float(uncertain.float().mean())
    found["exceptions|false"] = float(uncertain[false].float().mean())
    found["exceptions|anchors"] = float((false & uncertain).any(1).float().mean())
    return found


def look_at_own(scored: Importance) -> dict[str, float]:
    """What the weights of a loss follow, and how sharp they are: means over anchors."""
    anchors = len(scored.weights)
    weights, similarity = (
        values[scored.negatives].view(anchors, -1)  # as many negatives for each
        for values in (scored.weights, scored.similarity)
    )
    centered = (values - values.mean(1, keepdim=True) for values in (weights, similarity))
    correlation = torch.nn.functional.cosine_similarity(*centered, dim=1)  # (A,)
    return {
        "own|correlation": float(correlation.mean()),
        "own|effective": effective_negatives(weights) / weights.shape[1],
    }


@torch.no_grad()
def measure(run: Run, trained: bool, batches: int, k: int) -> dict[str, list[float]]:
    """All figures of some batches of a run's training images."""
    data = run.domain.load_for(run, None).train
    model = build_model(run.config, run.shape)
    assert isinstance(model, Projecting)
    if trained:
        run.restore(model, torch.load(run.checkpoint, weights_only=True))
    model.eval()
    torch.manual_seed(0)  # of the random negatives
    found: dict[str, list[float]] = defaultdict(list)
    for step in range(batches):
        ids = permuted(len(data), run.config.batch_size, 99, step)
        images = data.images.batch(ids)
        parts = []
        for stream in VIEWS:
            view = augment(images, run.shape.settings, keys(run.config.seed, 0, ids, stream))
            parts.append(model.embed(view))
        z, h = (torch.stack([part[which] for part in parts]) for which in (0, 1))
        figures = look(z, h, data.labels[ids], k)
        if isinstance(model, Contrastive):
            figures |= look_at_own(model.loss.importance(*z, *h))
        for name, value in figures.items():
            found[name].append(value)
    return found


def table(title: str, found: dict[str, float], k: int) -> str:
    """The figures of an encoder."""
    rows = [
        [
            name,
            f"{found[f'{name}|auc']:.3f}",
            f"{100 * found[f'{name}|false']:.1f}",
            f"{100 * found[f'{name}|percentile']:.0f}",
            f"{found[f'{name}|classes']:.2f}",
            f"{found[f'{name}|shift'] / found['random|shift']:.2f}",
        ]
        for name in SCORES
    ]
    heading = ["score", "AUC", "false, %", "similarity, percentile", "classes", "shift of the mean"]
    own = ""
    if "own|correlation" in found:
        own = (
            f"\nits own weights: correlation with the similarity {found['own|correlation']:.2f}, "
            f"{100 * found['own|effective']:.0f} % of the negatives effective"
        )
    return (
        f"\n{title}: the {k} highest negatives by each score; of all negatives "
        f"{100 * found['base']:.1f} % are false\n\n{to_markdown(heading, rows)}\n"
        f"exceptions: {100 * found['exceptions|all']:.1f} % of the most similar, "
        f"{100 * found['exceptions|false']:.1f} % of the false ones among them; "
        f"{100 * found['exceptions|anchors']:.1f} % of the anchors have one that is false" + own
    )


def main() -> None:
    """Measure every run, untrained and trained."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"k": asked.k, "batches": asked.batches, "encoders": []}
    for folder in asked.runs:
        run = Run(folder)
        assert run.evaluation is not None
        for kind in ("untrained", "trained"):
            accuracy = run.evaluation["results"][kind]["knn"]["value"]
            found = measure(run, kind == "trained", asked.batches, asked.k)
            means = {name: mean(values) for name, values in found.items()}
            errors = {name: stdev(values) / len(values) ** 0.5 for name, values in found.items()}
            printed = f" ({AS_PRINTED})" if run.config.loss.fidelity == "paper" else ""
            own = run.config.temperature  # None: the recipe's
            set_to = "" if own is None else f", τ = {own:g}"
            title = f"{run.config.recipe}{printed}{set_to}, {kind}"
            print(table(f"{title}, kNN {100 * accuracy:.1f} %", means, asked.k), flush=True)
            report["encoders"].append(
                {"run": title, "knn": accuracy, "means": means, "standard_errors": errors}
            )
    asked.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
