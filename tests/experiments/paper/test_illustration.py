"""Figure 1: what is drawn is what the library picks."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from rich.console import Console

import unremix
from unremix.experiments.paper.illustration import PICKS
from unremix.experiments.reproduce import reproduce


def test_the_picks_are_what_importance_says(tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    assert reproduce("illustration", scale="smoke", output=str(tmp_path), console=quiet) == 0
    folder = tmp_path / "illustration"
    record = json.loads((folder / "results.json").read_text())
    z0, z1 = torch.tensor(record["first"]), torch.tensor(record["second"])
    found = unremix.importance(z0, z1, layout="one-way")
    anchor = record["anchor"]
    for way, scores in (("UnReMix", found.weights), ("similarity", found.similarity)):
        others = [j for j in range(len(z0)) if j != anchor]
        best = sorted(others, key=lambda j: -float(scores[anchor, j]))[:PICKS]
        assert record["picks"][way] == best
    # A similarity is a cosine, here of two numbers each.
    cosine = torch.nn.functional.cosine_similarity(z0[anchor][None], z1)
    assert torch.allclose(cosine[record["picks"]["similarity"]].sort(descending=True).values,
                          cosine[torch.arange(len(z1)) != anchor].topk(PICKS).values)  # fmt: skip
    assert anchor not in record["picks"]["random"]
    labels = record["labels"]
    assert labels[anchor] == 0
    false = sum(labels[j] == 0 for j in record["picks"]["UnReMix"])
    assert f"| UnReMix | {false} of {PICKS} |" in (folder / "table.md").read_text()
    for way, picked in record["everywhere"].items():
        same = [labels[j] == labels[i] for i, row in enumerate(picked) for j in row]
        (line,) = [
            one
            for one in (folder / "table.md").read_text().splitlines()
            if one.startswith(f"| {way} ")
        ]
        assert line.endswith(f" {100 * sum(same) / len(same):.0f} % |")
    for suffix in ("png", "svg"):
        assert (folder / f"illustration.{suffix}").stat().st_size > 1000
