"""What a wrong temperature costs each method: the plot and table of docs/results.md.

python studies/temperature.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

STUDY = Path(__file__).parent / "weighting" / "results.jsonl"
PLOT = Path(__file__).parents[1] / "docs" / "results" / "temperature.svg"
TEMPERATURES = (0.1, 0.2, 0.25, 0.5)
METHODS = {
    "simclr temperature={}": "SimCLR",
    "hcl temperature={}": "HCL",
    "unremix-simclr fidelity=paper temperature={}": "UnReMix, as printed",
    "unremix-simclr temperature={}": "UnReMix",
}
SEEDS = (0, 1)  # those of the stages that choose; the confirmation has others
COLORS = ("#0072b2", "#d55e00", "#cc79a7", "#009e73")  # Okabe and Ito
GRAY = "#808080"  # readable on white and on black


def accuracies() -> dict[str, list[list[float]]]:
    """kNN accuracy by method, temperature and seed."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in STUDY.read_text().splitlines():
        run = json.loads(line)
        if run["seed"] in SEEDS and run["data"] == "cifar10-images":
            found[run["row"]].append(run["results"]["trained"]["knn"]["value"])
    return {
        name: [found[row.format(temperature)] for temperature in TEMPERATURES]
        for row, name in METHODS.items()
    }


def table(found: dict[str, list[list[float]]]) -> list[str]:
    """A line per method: the mean at each temperature, and best minus worst, in percent."""
    lines = []
    for name, values in found.items():
        means = [100 * fmean(seeds) for seeds in values]
        cells = [*means, max(means) - min(means)]
        # A half is rounded up, as in the study's report.
        lines.append(f"| {name} | {' | '.join(f'{cell + 1e-9:.1f}' for cell in cells)} |")
    return lines


def plot(found: dict[str, list[list[float]]]) -> None:
    """A line per method, with a band from the lower to the higher seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    mpl.rcParams |= {"svg.hashsalt": "unremix", "font.size": 10}
    mpl.rcParams |= dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GRAY
    )
    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    for (name, values), color in zip(found.items(), COLORS, strict=True):
        percent = [[100 * value for value in seeds] for seeds in values]
        means = [fmean(seeds) for seeds in percent]
        low, high = [min(seeds) for seeds in percent], [max(seeds) for seeds in percent]
        axes.fill_between(TEMPERATURES, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(TEMPERATURES, means, color=color, marker="o", markersize=4)
        axes.annotate(name, (0.505, means[-1]), color=color, va="center")
    axes.set(
        xlabel="temperature τ", ylabel="kNN accuracy, %", xticks=TEMPERATURES, xlim=(0.09, 0.62)
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, transparent=True, metadata={"Date": None})


def main() -> None:
    """Print the table and write the plot."""
    found = accuracies()
    print("\n".join(table(found)))
    plot(found)
    print(f"wrote {PLOT}")


if __name__ == "__main__":
    main()
