"""The adapters beside their libraries, in an environment of its own; see `make test-peers`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("sentence_transformers") is None or find_spec("lightly") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torchvision_operators  # noqa: F401


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
