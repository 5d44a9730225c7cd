"""How far an encoder has moved from the one that it started from, measured without labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unremix.domains.base import Observer, evaluating, fixed_views
from unremix.domains.sampling import evenly_spaced, permuted
from unremix.evaluation.health import effective_rank
from unremix.frameworks.base import Framework
from unremix.training.adapting import neighbors_kept, views_found
from unremix.training.building import build_model
from unremix.training.ready import ReadyEncoder
from unremix.training.run import Run

WATCHED = 2000  # samples whose neighbors are compared
VIEWED = 256  # training samples, two views of each


class WithoutLabels:
    """Measures of encoders without labels, compared with the one that a run started from.

    Args:
        run: The run, whose start is in memory or in its folder.
        data: Its data.
    """

    def __init__(self, run: Run, data: Any) -> None:
        self.run, self.data = run, data
        start = run.started()
        assert start is not None
        self.start = self._features(start)

    def _features(self, encoder: nn.Module) -> Tensor:
        run = self.run
        reader = ReadyEncoder(str(run.path), run.config, run.shape, encoder, "")
        features = run.domain.features(reader, self.data).embeddings
        return features[evenly_spaced(len(features), WATCHED)]

    def observing(self, observe: Observer) -> Observer:
        """An observer that also measures how many neighbors an encoder has kept."""

        def both(model: Framework, epoch: int) -> dict[str, float]:
            row = observe(model, epoch)
            if self.run.config.evaluates_after(epoch):
                row["neighbors_kept"] = neighbors_kept(self.start, self._features(model.encoder))
            return row

        return both

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """Neighbors kept, effective rank and, where single views can be made, those found."""
        run, features = self.run, self._features(encoder)
        found = {
            "neighbors_kept": neighbors_kept(self.start, features),
            "effective_rank": effective_rank(features),
        }
        if run.domain.has_views:
            count = run.domain.size(self.data)
            indices = permuted(count, min(VIEWED, count), seed=0, step=0)
            # Views depend on what the model is, not on its weights, which may be gone.
            model = build_model(run.config, run.shape) if run.model is None else run.model
            view = fixed_views(self.data, run.shape, run.config)
            with evaluating(encoder):
                first, second = (encoder(view(model, indices, number)) for number in (0, 1))
            found["views_found"] = views_found(first, second)
        return found
