"""What of Ray's engine needs no Ray."""

from __future__ import annotations

import pytest

from unremix.cluster.ray_engine import places_for


def test_a_worker_that_fits_no_node_is_warned_of() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}]
    assert places_for(nodes, cpus=2, gpus=1.0) == 1
    with pytest.warns(UserWarning, match="4 CPUs and 2 GPUs.*got 2 CPUs and 0 GPUs"):
        assert places_for(nodes, cpus=4, gpus=2.0) == 0
