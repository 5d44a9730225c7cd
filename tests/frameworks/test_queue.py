"""The queue of old keys."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from batches import assert_close
from building import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unremix.frameworks.queue import Queue


@settings(max_examples=60)
@given(
    st.integers(1, 7),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_the_queue_is_first_in_first_out(
    size: int, batches: list[int], dtype: torch.dtype, with_inputs: bool
) -> None:
    memory = Queue(size, width=2, input_width=3 if with_inputs else 0).to(dtype)
    kept: deque[tuple[list[float], list[float], int]] = deque(maxlen=size)
    number = 0
    for step, count in enumerate(batches):
        z, h = draw(count, 2, seed=step).to(dtype), draw(count, 3, seed=step + 50).to(dtype)
        samples = torch.arange(number, number + count)
        number += count
        memory.add(z, h if with_inputs else None, samples)
        kept.extend(zip(z.tolist(), h.tolist(), samples.tolist(), strict=True))
        if step % 2:  # as a checkpoint in between would
            fresh = Queue(size, width=2, input_width=3 if with_inputs else 0).to(dtype)
            fresh.load_state_dict(memory.state_dict())
            memory = fresh
        assert len(memory) == len(kept)
        assert memory.samples.tolist() == [sample for _, _, sample in kept]
        assert memory.views.embeddings.tolist() == [z for z, _, _ in kept]
        if with_inputs:
            assert memory.views.inputs is not None
            assert memory.views.inputs.tolist() == [h for _, h, _ in kept]
        else:
            assert memory.views.inputs is None


def test_the_queue_moves_between_precisions() -> None:
    memory = Queue(3, width=2, input_width=1)
    memory.add(draw(2, 2), draw(2, 1), torch.tensor([5, 2**40]))
    assert memory.embeddings.dtype == torch.float32
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        memory.to(dtype)
        assert memory.views.embeddings.dtype == dtype
        assert memory.samples.tolist() == [5, 2**40]  # whole numbers stay whole
        assert len(memory) == 2
    memory.add(draw(2, 2, seed=1).half(), draw(2, 1).half(), torch.tensor([1, 2]))
    assert memory.samples.tolist() == [2**40, 1, 2]
    assert_close(memory.views.embeddings[1:].double(), draw(2, 2, seed=1).half().double(), 1e-3)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Queue(0, width=2)


def test_the_queue_keeps_copies() -> None:
    memory = Queue(2, width=2).double()
    z = draw(2, 2).requires_grad_()
    memory.add(z, None, torch.arange(2))
    kept = memory.views.embeddings.clone()
    with torch.no_grad():
        z.zero_()
    assert torch.equal(memory.views.embeddings, kept)
    assert not memory.embeddings.requires_grad
    before = memory.views.embeddings
    memory.add(z, None, torch.arange(2))
    assert torch.equal(before, kept)  # what was read is not overwritten


def pickled(memory: Queue) -> Queue:
    copy: Queue = pickle.loads(pickle.dumps(memory))
    return copy


def saved(memory: Queue) -> Queue:
    file = io.BytesIO()
    torch.save(memory, file)
    file.seek(0)
    found: Queue = torch.load(file, weights_only=False)
    return found


def loaded(memory: Queue) -> Queue:
    fresh = Queue(memory.size, width=2).double()
    fresh.load_state_dict(memory.state_dict())
    return fresh


def loaded_as_part(memory: Queue) -> Queue:
    whole, fresh = nn.ModuleDict({"memory": memory}), Queue(memory.size, width=2).double()
    nn.ModuleDict({"memory": fresh}).load_state_dict(whole.state_dict())
    return fresh


@pytest.mark.parametrize("duplicate", [deepcopy, pickled, saved, loaded, loaded_as_part])
@pytest.mark.parametrize("count", [0, 2, 3, 7])
def test_the_count_survives_copies(duplicate: Callable[[Queue], Queue], count: int) -> None:
    """Kept on the host, it must follow what is copied, and go its own way from there."""
    memory = Queue(3, width=2).double()
    memory.add(draw(count, 2), None, torch.arange(count))
    twin = duplicate(memory)
    assert len(twin) == len(memory) == min(count, 3)
    assert torch.equal(twin.samples, memory.samples)
    twin.add(draw(1, 2, seed=1), None, torch.tensor([99]))
    assert len(memory) == min(count, 3)
    assert int(memory.added) == count
    assert int(twin.added) == count + 1
    assert twin.samples.tolist() == [*range(max(0, count - 2), count), 99]
    assert torch.equal(twin.views.embeddings[:-1], draw(count, 2)[max(0, count - 2) :])


def test_a_smaller_count_can_be_loaded() -> None:
    memory = Queue(4, width=2).double()
    before = deepcopy(memory.state_dict())
    memory.add(draw(3, 2), None, torch.arange(3))
    memory.load_state_dict(before)
    assert len(memory) == 0
    assert memory.samples.tolist() == []


def test_the_queue_does_not_wait_for_the_device() -> None:
    """Tensors on ``meta`` have no values to wait for."""
    memory = Queue(5, width=2, input_width=3).to("meta")
    for count in (3, 4, 7):
        z, h = (torch.empty(count, width, device="meta") for width in (2, 3))
        memory.add(z, h, torch.empty(count, dtype=torch.long, device="meta"))
    assert len(memory) == 5
    assert memory.views.embeddings.shape == (5, 2)
    assert memory.samples.shape == (5,)
