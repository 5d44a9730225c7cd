"""Whether two runs are the same, to the bit."""

from __future__ import annotations

from typing import Any

import torch

from unremix.training.checkpoints import read_safetensors
from unremix.training.run import Run

WHEN = ("seconds", "date")  # of checkpoints: they differ between runs that are the same


def plain(value: Any) -> Any:
    """Something that can be compared, with tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().view(-1).numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in WHEN}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def assert_same(run: Run, whole: Run) -> None:
    for name in ("metrics.csv", "shape.json", "evaluation.json"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    encoder, other = (read_safetensors(each.path / "encoder.safetensors") for each in (run, whole))
    assert plain(encoder) == plain(other)  # the order of its metadata is any
    assert plain(run.load_checkpoint()) == plain(whole.load_checkpoint())
    assert {file.name for file in run.path.rglob("*")} == {
        file.name for file in whole.path.rglob("*")
    }  # no temporary file is left
