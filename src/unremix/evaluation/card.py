"""Evaluation cards: a measure is whatever a card gives in the form ``{"value": …}``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FEATURES = {
    "trained": "trained encoder",
    "blend": "average with the start",
    "start": "as it came",
    "untrained": "untrained encoder",
    "pixels": "raw pixels",
}
LABELS = {
    "knn": "kNN",
    "neighbors.top5": "kNN, top 5",
    "linear": "linear probe",
    "linear.top1": "linear probe",
    "linear.top5": "probe, top 5",
    "svm": "SVM",
    "linear_svm": "linear SVM",
    "logistic": "logistic regression",
}
# What is shown beside a measure, the first that it has.
SPREADS = {
    "low": "[ ] is a 95 % interval (Wilson)",
    "standard_error": "± is one standard error",
    "std_over_folds": "± is the standard deviation over folds",
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
    measures: dict[str, dict[str, Any]] = {}
    for name, item in result.items():
        if not isinstance(item, Mapping):
            continue
        value = item.get("value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                measures[f"{prefix}{name}"] = dict(item)
        else:
            measures |= measures_of(item, f"{prefix}{name}.")
    return measures


def subject_of(results: Mapping[str, Any]) -> str:
    """Which results a run is judged by: the average's, if there is one, else the trained encoder's.

    Example:
        >>> subject_of({"trained": {}, "blend": {}, "start": {}})
        'blend'
    """
    return "blend" if "blend" in results else "trained"


def judged(results: Mapping[str, Any] | None) -> dict[str, Any]:
    """Results of a run for a comparison: the one it is judged by as ``trained``, and the others.

    Example:
        >>> judged({"trained": {"knn": 1}, "blend": {"knn": 2}, "start": {"knn": 3}})
        {'trained': {'knn': 2}, 'start': {'knn': 3}}
    """
    if not results:
        return {}
    others = {kind: one for kind, one in results.items() if kind not in ("trained", "blend")}
    return {"trained": results[subject_of(results)], **others}


def in_percent(measure: Mapping[str, Any]) -> bool:
    """Whether a measure is a share, to be shown in percent."""
    return measure.get("percent") is not False


def scale_of(measure: Mapping[str, Any]) -> tuple[int, int]:
    """The factor and the number of decimals that a measure is shown with."""
    return (100, 1) if in_percent(measure) else (1, 3)


def shown(measure: Mapping[str, Any] | None) -> str:
    """A measure as a table shows it, without unit: its value, and its interval or spread.

    Example:
        >>> shown({"value": 0.0, "low": 0.0, "high": 0.215}), shown(None)
        ('0.0 [0.0–21.5]', '–')
        >>> shown({"value": 0.912, "std_over_folds": 0.01})
        '91.2 ± 1.0'
        >>> shown({"value": 0.8123, "percent": False})
        '0.812'
    """
    if measure is None:
        return "–"
    factor, digits = scale_of(measure)

    def number(value: float) -> str:
        return f"{factor * value:.{digits}f}"

    value, spread = number(measure["value"]), _spread_in(measure)
    if spread == "low":
        return f"{value} [{number(measure['low'])}–{number(measure['high'])}]"
    return value if spread is None else f"{value} ± {number(measure[spread])}"


def _spread_in(measure: Mapping[str, Any]) -> str | None:
    """The interval or spread that is shown beside a measure, if it has one."""
    return next((name for name in SPREADS if measure.get(name) is not None), None)


def card_table(card: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A card's results as a table: headings, and a row per measure.

    Example:
        >>> card_table({"results": {"trained": {"features": 8, "knn": {"value": 0.5}}}})
        (['', 'trained encoder'], [['features', '8'], ['kNN, %', '50.0']])
    """
    results = card["results"]
    by_kind = [measures_of(result) for result in results.values()]
    rows = [["features", *(str(result.get("features", "–")) for result in results.values())]]
    for path in dict.fromkeys(path for measures in by_kind for path in measures):
        cells = [measures.get(path) for measures in by_kind]
        percent = all(in_percent(cell) for cell in cells if cell is not None)
        rows.append([label_of(path) + ", %" * percent, *map(shown, cells)])
    return ["", *(FEATURES.get(kind, kind) for kind in results)], rows


def spread_of(card: Mapping[str, Any]) -> str:
    """A sentence that says what [ ] and ± mean on a card."""
    results = (card.get("results") or {}).values()
    found = {_spread_in(one) for result in results for one in measures_of(result).values()}
    parts = [meaning for spread, meaning in SPREADS.items() if spread in found]
    said = (card.get("protocol") or {}).get("standard_error")
    return "; ".join(parts) + (f": {said}." if said else ".")
