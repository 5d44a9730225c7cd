"""The evaluation card of a run before its results: facts about data and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unremix.domains.base import Trained


def begin_card(
    run: Trained,
    data: str,
    facts: Mapping[str, Any],
    *,
    layer: str,
    health: Sequence[str],
    own: bool,
) -> dict[str, Any]:
    """A card without results yet, with facts about data and model.

    ``health`` names figures of the last row of metrics to take over, if the data are the run's own.
    """
    rows = run.metrics()
    last = rows[-1] if rows else {}
    return {
        "data": data,
        "own_data": own,
        **facts,
        "layer": layer,
        "recipe": run.config.composed_name,
        "labels_used": run.config.composition().labels,
        "seed": run.config.seed,
        "batch_size": run.config.batch_size,
        "epoch": int(last.get("epoch", 0)),
        "epochs": run.config.epochs,
        "step": int(last.get("step", 0)),
        "protocol": None,
        "health": {name: last[name] for name in health if own and name in last},
        "results": None,
    }
