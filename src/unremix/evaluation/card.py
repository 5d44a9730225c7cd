"""Evaluation cards: a measure is whatever a card gives in the form ``{"value": …}``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unremix.training.run import Run

FEATURES = {"trained": "trained encoder", "untrained": "untrained encoder", "pixels": "raw pixels"}
LABELS = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear.top1": "linear probe",
    "linear.top5": "linear probe, top 5",
    "svm": "SVM",
    "linear_svm": "linear SVM",
    "logistic": "logistic regression",
}


def begin_card(
    run: Run, data: str, facts: Mapping[str, Any], *, layer: str, health: Sequence[str]
) -> dict[str, Any]:
    """A card without results yet.

    Args:
        run: The run that is measured.
        data: What it is measured on.
        facts: About data and model.
        layer: Which output is measured.
        health: The figures to take over from the last row of metrics.
    """
    rows = run.metrics()
    last = rows[-1] if rows else {}
    return {
        "data": data,
        **facts,
        "layer": layer,
        "recipe": run.config.composed_name,
        "seed": run.config.seed,
        "epoch": int(last.get("epoch", 0)),
        "step": int(last.get("step", 0)),
        "protocol": None,
        "health": {name: last[name] for name in health if name in last},
        "results": None,
    }


def label_of(path: str) -> str:
    """What to call a measure.

    Example:
        >>> label_of("linear.top1"), label_of("mrpc.f1")
        ('linear probe', 'mrpc f1')
    """
    return LABELS.get(path, path.replace(".", " "))


def measures_of(result: Mapping[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Every finite measure ``{"value": …}`` in a part of an evaluation card, by its path.

    Example:
        >>> measures_of({"features": 32, "linear": {"top1": {"value": 0.5, "count": 10}}})
        {'linear.top1': {'value': 0.5, 'count': 10}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, item in result.items():
        if not isinstance(item, Mapping):
            continue
        value = item.get("value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                found[f"{prefix}{name}"] = dict(item)
        else:
            found |= measures_of(item, f"{prefix}{name}.")
    return found


def shown(measure: Mapping[str, Any] | None) -> str:
    """A measure as a table shows it: a percentage unless it says otherwise, with its spread.

    Example:
        >>> shown({"value": 0.912, "standard_error": 0.01}), shown(None)
        ('91.2 ± 1.0 %', '–')
        >>> shown({"value": 0.8123, "percent": False})
        '0.812'
    """
    if measure is None:
        return "–"
    spread = measure.get("standard_error", measure.get("std_over_folds"))
    if measure.get("percent") is False:
        return f"{measure['value']:.3f}" + ("" if spread is None else f" ± {spread:.3f}")
    return (
        f"{100 * measure['value']:.1f}"
        + ("" if spread is None else f" ± {100 * spread:.1f}")
        + " %"
    )


def card_table(card: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A card's results as a table: headings, and a row per kind of features.

    Example:
        >>> card_table({"results": {"trained": {"features": 8, "knn": {"value": 0.5}}}})
        (['features', 'size', 'kNN'], [['trained encoder', '8', '50.0 %']])
    """
    found = {kind: measures_of(result) for kind, result in card["results"].items()}
    paths = list(dict.fromkeys(path for measures in found.values() for path in measures))
    headings = ["features", "size", *(label_of(path) for path in paths)]
    rows = [
        [
            FEATURES.get(kind, kind),
            str(card["results"][kind].get("features", "–")),
            *(shown(measures.get(path)) for path in paths),
        ]
        for kind, measures in found.items()
    ]
    return headings, rows


def spread_of(card: Mapping[str, Any]) -> str:
    """What ± means on a card."""
    protocol = card.get("protocol") or {}
    said = protocol.get("standard_error")
    return f"one standard error, {said}" if said else "the standard deviation over folds"
