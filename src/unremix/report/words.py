"""The sentences of a page: its headline, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from unremix.evaluation.card import in_percent, label_of
from unremix.evaluation.health import COLLAPSED_SPREAD
from unremix.evaluation.verdict import is_worth_more, more_epochs, outcomes
from unremix.training.run import Run

TONES = {"better": "good", "worse": "bad", "behind": "bad", "unclear": "open"}
NO_ACCURACIES = ("f1", "pearson", "spearman")
FEW_DIMENSIONS = 2.0  # in use: below, the embeddings lie on a line
LOW_RANK = 4.0  # dimensions in use: below, a collapse is near


def headline(
    card: Mapping[str, Any] | None,
    last: Mapping[str, float],
    about: Mapping[str, Any] | None,
) -> tuple[str, str]:
    """A verdict in one sentence, and its tone: good, bad or open.

    Example:
        >>> trained, pixels = {"value": 0.9, "low": 0.88, "high": 0.92}, {"value": 0.7}
        >>> results = {
        ...     "trained": {"knn": trained},
        ...     "pixels": {"knn": {**pixels, "low": 0.67, "high": 0.73}},
        ... }
        >>> headline({"results": results}, {}, None)
        ('Training helped: better than raw pixels (kNN 90.0 % against 70.0 %).', 'good')
    """
    found = outcomes((card or {}).get("results") or {})
    if found:
        helped, said = found[0]
        return said, TONES[helped]
    spread, rank = last.get("spread"), last.get("effective_rank")
    if (spread is not None and spread < COLLAPSED_SPREAD) or (
        rank is not None and rank < FEW_DIMENSIONS
    ):
        return "The embeddings have collapsed: all items look alike to the encoder", "bad"
    said = "No sign of collapse" if last else "Not trained: the encoder as it was initialized"
    if rank is not None and rank < LOW_RANK:
        said = f"Close to collapse: only {rank:.1f} dimensions are in use"
    if about is not None:
        among = len(about["batch"]) if "batch" in about else about["batch_size"]
        said += f"; {_percent(about['found_own'])} of {about['finding']} among {among}"
        said += f" ({_percent(about['found_by_chance'])} would by chance)"
    return said, "open"


def _percent(share: float) -> str:
    """A share in percent, small ones with two digits."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def named(path: str, measure: Mapping[str, Any]) -> str:
    """What a measure is called in a sentence.

    Example:
        >>> named("knn", {"value": 0.9}), named("sick_r.mse", {"value": 0.4, "percent": False})
        ('kNN accuracy', 'sick_r mse')
    """
    accuracy = in_percent(measure) and path.rpartition(".")[2] not in NO_ACCURACIES
    return label_of(path) + " accuracy" * accuracy


def difference_named(path: str, measure: Mapping[str, Any]) -> str:
    """What follows the size of a difference: of shares, points.

    Example:
        >>> difference_named("knn", {"value": 0.9})
        'points of kNN accuracy'
    """
    return "points of " * in_percent(measure) + named(path, measure)


def next_commands(run: Run, card: Mapping[str, Any] | None) -> dict[str, str]:
    """What to do with a run next, and the command for it; the card says how far it came."""
    path, config = quote(str(run.path)), run.config
    trust = " --trust" if config.code else ""
    exports = run.domain.exports
    onnx = " --format onnx" * (exports is not None and "onnx" in exports.formats)
    commands = {
        "Embed data": f"unremix embed {path} --data {quote(config.data)} -o features.npz{trust}",
        "Export the encoder": f"unremix export {path}{onnx}{trust}",
    }
    if is_worth_more(card):
        epochs = (None if card is None else more_epochs(card)) or 2 * config.epochs or 100
        longer = f"--epochs {epochs}"
        if card is not None and card["epoch"] < config.epochs and config.max_minutes is not None:
            longer = f"--max_minutes {2 * config.max_minutes:g}"
        commands["Train further"] = f"unremix train --resume {path} {longer}{trust}"
    return commands


def in_python(run: Run) -> str:
    """How a program embeds items with a run."""
    items = run.domain.items
    load = f"unremix.load({str(run.path)!r}{', trust=True' if run.config.code else ''})"
    return f"import unremix\n{items.before}embeddings = {load}.embed({items.example})"
