"""How each kind of data is measured, by its name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from unremix.domains.base import Measuring, Observer
from unremix.options.config import TrainConfig

if TYPE_CHECKING:
    from unremix.training.run import Run

OBSERVERS = {
    "image": ("unremix.evaluation.images", "ImageObserver"),
    "graph": ("unremix.evaluation.graphs", "GraphObserver"),
    "sentence": ("unremix.evaluation.sentences", "SentenceObserver"),
}


def make_observer(
    data: Any, shape: Any, config: TrainConfig, say: Callable[[str], None]
) -> Observer:
    """What is measured at an epoch's end; ``say`` shows a message."""
    module, name = OBSERVERS[config.domain]
    observer: Observer = getattr(import_module(module), name)(data, shape, config, say)
    return observer


def evaluate_run(
    run: Run, data: Any, *, own: bool = True, progress: Measuring | None = None
) -> dict[str, Any]:
    """The evaluation card of a run: what was measured, on what layer, after which epoch.

    Args:
        run: The run.
        data: What to measure on.
        own: Whether these are the data the run was trained on.
        progress: Told how far it is.
    """
    module, _ = OBSERVERS[run.config.domain]
    card: dict[str, Any] = import_module(module).evaluate_run(run, data, own=own, progress=progress)
    return card
