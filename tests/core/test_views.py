"""Views and vectors as a whole: no tensor is lost on the way."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from unremix.core.views import ExtraNegatives, Vectors, Views, map_tensors, stack


def filled(kind: type[Any], rows: int) -> Any:
    """Views or vectors in which every tensor is given, each with values of its own."""
    return kind(**{field.name: torch.rand(rows, 3) for field in fields(kind)})


def test_stacked_views_hold_every_tensor() -> None:
    first, second = filled(Views, 2), filled(Views, 3)
    both = stack(first, second)
    for field in fields(Views):
        expected = torch.cat([getattr(first, field.name), getattr(second, field.name)])
        assert torch.equal(getattr(both, field.name), expected)


def test_some_vectors_hold_every_tensor() -> None:
    vectors = filled(Vectors, 5)
    for field in fields(Vectors):
        assert torch.equal(getattr(vectors[1:3], field.name), getattr(vectors, field.name)[1:3])


def test_what_one_lacks_the_result_lacks() -> None:
    ones = torch.ones(2, 3)
    made = map_tensors(torch.add, Views(ones, ones), Views(ones))
    assert torch.equal(made.embeddings, 2 * ones)
    assert made.inputs is None


def test_stacked_own_candidates_keep_their_factor() -> None:
    own = ExtraNegatives(torch.ones(2, 3, 4), torch.ones(2, 3, 5), logit_factor=2.0)
    both = stack(own, own)
    assert both.embeddings.shape == (4, 3, 4)
    assert both.inputs is not None
    assert both.inputs.shape == (4, 3, 5)
    assert both.logit_factor == 2.0


@pytest.mark.parametrize("shape", [(2, 3), (2, 0, 3)])
def test_own_candidates_have_three_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="extra negatives of shape"):
        ExtraNegatives(torch.zeros(shape))
