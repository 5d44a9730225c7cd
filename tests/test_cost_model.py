"""What a step of several processes costs, by formula, against counts made one by one."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).parents[1] / "benchmarks" / "cost_model.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cost_model", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["cost_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cost_model = load()
JOB = cost_model.Job(batch=64, embedding=8, inputs=16, parameters=1000, sample_operations=1e6)
MACHINE = cost_model.Machine(operations=1e9, latency=1e-4, bandwidth=1e8)


@given(size=st.integers(1, 50), processes=st.integers(1, 6))
def test_a_ring_moves_these_bytes(size: int, processes: int) -> None:
    """Every process passes on what it received last, until all have everything."""
    have = [{rank} for rank in range(processes)]
    last, received = list(range(processes)), 0
    while any(len(parts) < processes for parts in have):
        last = [last[rank - 1] for rank in range(processes)]
        for rank, part in enumerate(last):
            have[rank].add(part)
        received += size
    assert cost_model.all_gather_bytes(size * processes, processes) == pytest.approx(received)
    assert cost_model.all_reduce_bytes(size * processes, processes) == pytest.approx(2 * received)


def test_the_bytes_of_two_processes() -> None:
    """Counted row by row: the other one's 64 views, of D, H and δ; then gradients of all z."""
    forward = 64 * (8 + 16 + 8) * 4
    backward = 2 * 128 * 8 * 4 / 2
    assert cost_model.gathered_bytes(JOB, 2) == forward + backward
    assert cost_model.gathered_bytes(replace(JOB, inputs=0), 2) == 64 * 8 * 4 + backward
    assert cost_model.gathered_bytes(JOB, 1) == 0


@given(processes=st.integers(1, 9))
def test_work_is_divided(processes: int) -> None:
    """All processes together do what one would; the loss makes 7 products at H = D."""
    square = replace(JOB, inputs=8)
    whole = 7 * 2 * 128 * 128 * 8
    assert processes * cost_model.loss_operations(square, processes) == pytest.approx(whole)
    assert processes * cost_model.encoder_operations(JOB, processes) == pytest.approx(64e6)


@given(processes=st.integers(1, 64))
def test_without_a_network_only_work_counts(processes: int) -> None:
    free = cost_model.Machine(operations=1e9)
    one, several = (cost_model.step_seconds(JOB, count, free).total for count in (1, processes))
    assert several == pytest.approx(one / processes)
    shared = replace(free, at_once=2)  # two cores
    found = cost_model.step_seconds(JOB, processes, shared).total
    assert found == pytest.approx(one / min(2, processes))


@given(processes=st.integers(2, 512), faster=st.floats(1.1, 10))
def test_a_better_network_never_slows_a_step(processes: int, faster: float) -> None:
    better = replace(MACHINE, latency=MACHINE.latency / faster)
    wider = replace(MACHINE, bandwidth=MACHINE.bandwidth * faster)
    hidden = replace(MACHINE, hidden=1.0)
    here = cost_model.step_seconds(JOB, processes, MACHINE).total
    for machine in (better, wider):
        assert cost_model.step_seconds(JOB, processes, machine).total < here
    assert cost_model.step_seconds(JOB, processes, hidden).total <= here


def test_nodes_pay_for_the_network_between_them() -> None:
    machine = replace(MACHINE, per_node=8, node_latency=1e-3, node_bandwidth=1e7)
    inside, across = (cost_model.step_seconds(JOB, count, machine) for count in (8, 16))
    size = cost_model.gathered_bytes(JOB, 16)
    assert inside == cost_model.step_seconds(JOB, 8, MACHINE)
    assert across.gather == pytest.approx(11 * 4 * 1e-3 + size / 1e7)
    assert math.isclose(across.loss, inside.loss / 2)
