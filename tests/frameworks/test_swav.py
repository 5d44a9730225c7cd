"""SwAV against plain loops; its queue against a deque; two processes against one."""

from __future__ import annotations

import copy
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import reference
import torch
import torch.distributed as dist
from batches import assert_close
from building import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Report, processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unremix.frameworks.base import Batch
from unremix.frameworks.swav import SwAV, SwAVOptions, enqueue, sinkhorn, swapped_prediction

# The processes of test_gather.py and of this file come from one server, on one worker.
pytestmark = pytest.mark.xdist_group("gather")

Matrix = list[list[float]]


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> SwAV:
    """A convolution of images of any size, pooled; embeddings of width 6."""
    options = {"prototypes": 5, "frozen_epochs": 0} | options
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        head = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 6))
        temperature = options.pop("temperature", 0.1)
        return SwAV(
            encoder.to(dtype), head.to(dtype), temperature=temperature,
            options=SwAVOptions(**options),
        )  # fmt: skip


def make_batch(
    n: int = 4, sizes: Sequence[int] = (6, 6), *, seed: int = 0, epoch: int = 0
) -> Batch:
    return Batch(
        views=tuple(draw(n, 1, s, s, seed=100 * seed + v) for v, s in enumerate(sizes)),
        samples=torch.arange(n),
        keys=torch.arange(n),
        batch_key=torch.tensor([seed]),
        epoch=epoch,
    )


def embeddings(views: int, n: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    return [
        (draw(n, 6, seed=10 * seed + v).requires_grad_(), draw(n, 8, seed=v)) for v in range(views)
    ]


def looped_sinkhorn(scores: Matrix, iterations: int, epsilon: float) -> Matrix:
    codes = [[math.exp(score / epsilon) for score in row] for row in scores]
    n, k = len(codes), len(codes[0])
    for _ in range(iterations):
        for column in range(k):
            total = sum(codes[i][column] for i in range(n))
            for i in range(n):
                codes[i][column] /= total * k
        for i in range(n):
            total = sum(codes[i])
            codes[i] = [code / (total * n) for code in codes[i]]
    return [[code * n for code in row] for row in codes]


def looped_scores(views: Sequence[Tensor], prototypes: Tensor) -> list[Matrix]:
    return [
        [[reference.cosine(row, prototype) for prototype in prototypes] for row in z] for z in views
    ]


def looped_loss(
    views: Sequence[Tensor],
    prototypes: Tensor,
    queue: Sequence[Tensor] | None = None,
    *,
    temperature: float = 0.1,
    iterations: int = 3,
    epsilon: float = 0.05,
) -> float:
    """Over samples, full views t and views v, with features of a queue in front of each t's."""
    scores = looped_scores(views, prototypes)
    n, losses = len(views[0]), []
    for t in range(2):
        earlier = [] if queue is None else looped_scores([queue[t]], prototypes)[0]
        codes = looped_sinkhorn(earlier + scores[t], iterations, epsilon)[-n:]
        for v in range(len(views)):
            if v == t:
                continue
            for i in range(n):
                exponentials = [math.exp(score / temperature) for score in scores[v][i]]
                for code, exponential in zip(codes[i], exponentials, strict=True):
                    losses.append(-code * math.log(exponential / sum(exponentials)))
    return sum(losses) / (2 * (len(views) - 1) * n)


def matrices(low: float = -1.0, high: float = 1.0) -> st.SearchStrategy[Tensor]:
    """Scores of 1 to 6 samples with 2 to 5 prototypes."""
    return st.builds(
        lambda n, k, seed: low + (high - low) * draw(n, k, seed=seed).sigmoid(),
        st.integers(1, 6),
        st.integers(2, 5),
        st.integers(0, 100),
    )


class TestSinkhorn:
    @settings(max_examples=50)
    @given(
        scores=matrices(),
        iterations=st.integers(1, 6),
        epsilon=st.sampled_from([0.05, 0.3, 2.0]),
    )
    def test_equals_a_loop(self, scores: Tensor, iterations: int, epsilon: float) -> None:
        codes = sinkhorn(scores, iterations=iterations, epsilon=epsilon)
        expected = looped_sinkhorn(scores.tolist(), iterations, epsilon)
        assert_close(codes, torch.tensor(expected, dtype=torch.float64))

    @settings(max_examples=50)
    @given(scores=matrices(), iterations=st.integers(1, 4))
    def test_rows_sum_to_one_after_any_number_of_iterations(
        self, scores: Tensor, iterations: int
    ) -> None:
        codes = sinkhorn(scores, iterations=iterations, epsilon=0.05)
        assert (codes >= 0).all()
        assert_close(codes.sum(1), torch.ones(len(scores), dtype=torch.float64))

    @settings(max_examples=50)
    @given(scores=matrices())
    def test_columns_sum_alike_after_many(self, scores: Tensor) -> None:
        n, k = scores.shape
        codes = sinkhorn(scores, iterations=500, epsilon=0.5)
        assert_close(codes.sum(0), torch.full((k,), n / k, dtype=torch.float64), 1e-8)

    def test_columns_are_nearer_to_balance_than_a_softmax_after_three(self) -> None:
        features, prototypes = draw(200, 8), draw(10, 8, seed=1)
        features = features + 2 * prototypes[0]  # most samples prefer one prototype
        scores = nn.functional.normalize(features) @ nn.functional.normalize(prototypes).T
        loads = [
            codes.sum(0).max() / 20 for codes in ((scores / 0.05).softmax(1), sinkhorn(scores))
        ]
        assert loads[0] > 5
        assert loads[1] < 1.5

    @settings(max_examples=40)
    @given(
        scores=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
        epsilon=st.sampled_from([0.5, 1.0, 2.0]),
    )
    def test_optimum_of_two_by_two(self, scores: list[float], epsilon: float) -> None:
        """The only balanced codes are (a, 1 - a; 1 - a, a): Σ Q s - ε Σ Q log Q is best where
        log(a/(1 - a)) = (s00 + s11 - s01 - s10)/(2ε)."""
        s00, s01, s10, s11 = scores
        a = 1 / (1 + math.exp(-(s00 + s11 - s01 - s10) / (2 * epsilon)))
        codes = sinkhorn(
            torch.tensor([[s00, s01], [s10, s11]], dtype=torch.float64),
            iterations=500,
            epsilon=epsilon,
        )
        assert_close(codes, torch.tensor([[a, 1 - a], [1 - a, a]], dtype=torch.float64), 1e-6)

    @settings(max_examples=40)
    @given(scores=matrices(), step=st.sampled_from([1e-3, -1e-3]), data=st.data())
    def test_no_balanced_codes_nearby_are_better(
        self, scores: Tensor, step: float, data: st.DataObject
    ) -> None:
        n, k = scores.shape
        if n == 1:
            return
        epsilon = 0.5
        codes = sinkhorn(scores, iterations=500, epsilon=epsilon)

        def value(codes: Tensor) -> float:
            return float((codes * scores).sum() - epsilon * torch.special.xlogy(codes, codes).sum())

        i, j = data.draw(st.permutations(range(n)))[:2]
        a, b = data.draw(st.permutations(range(k)))[:2]
        other = codes.clone()  # row and column sums stay
        other[i, a] += step
        other[i, b] -= step
        other[j, a] -= step
        other[j, b] += step
        if (other >= 0).all():
            assert value(other) < value(codes)

    @settings(max_examples=40)
    @given(scores=matrices(), iterations=st.integers(1, 4), seed=st.integers(0, 20))
    def test_a_number_added_to_a_column_changes_nothing(
        self, scores: Tensor, iterations: int, seed: int
    ) -> None:
        shifted = scores + 3 * draw(scores.shape[1], seed=seed)
        assert_close(
            sinkhorn(shifted, iterations=iterations, epsilon=0.3),
            sinkhorn(scores, iterations=iterations, epsilon=0.3),
        )

    @settings(max_examples=20)
    @given(scores=matrices(), seed=st.integers(0, 20))
    def test_a_number_added_to_a_row_changes_nothing_in_the_limit(
        self, scores: Tensor, seed: int
    ) -> None:
        shifted = scores + draw(len(scores), 1, seed=seed)
        assert_close(
            sinkhorn(shifted, iterations=1000, epsilon=0.5),
            sinkhorn(scores, iterations=1000, epsilon=0.5),
            1e-8,
        )

    def test_but_after_few_iterations_it_does(self) -> None:
        scores = draw(4, 3)
        shifted = scores + torch.tensor([[1.0], [0.0], [0.0], [0.0]])
        difference = sinkhorn(shifted, epsilon=0.3) - sinkhorn(scores, epsilon=0.3)
        assert difference.abs().max() > 1e-3

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_scores_out_of_any_range(self, dtype: torch.dtype) -> None:
        scores = torch.tensor(
            [[1e3, -1e3, 0.0], [-1e3, -1e3, -1e3], [1e3, 1e3, 1e3], [-1e3, 1e3, 0.0]], dtype=dtype
        )
        codes = sinkhorn(scores)
        assert codes.dtype == torch.promote_types(dtype, torch.float32)
        assert codes.isfinite().all()
        assert_close(codes.sum(1), torch.ones_like(codes[:, 0]), 1e-5)

    def test_a_row_that_would_underflow_is_treated_as_any_other(self) -> None:
        scores = draw(3, 2, seed=4)
        lowered = scores - torch.tensor([[0.0], [0.0], [1000.0]])
        assert_close(
            sinkhorn(lowered, iterations=3000, epsilon=1.0),
            sinkhorn(scores, iterations=3000, epsilon=1.0),
            1e-6,
        )

    def test_no_gradient(self) -> None:
        assert not sinkhorn(draw(3, 2).requires_grad_()).requires_grad


class TestLoss:
    @settings(max_examples=30)
    @given(
        n=st.integers(1, 4),
        views=st.integers(2, 4),
        temperature=st.sampled_from([0.1, 0.5]),
        iterations=st.integers(1, 4),
        epsilon=st.sampled_from([0.05, 0.5]),
        seed=st.integers(0, 50),
    )
    def test_equals_a_loop(
        self, n: int, views: int, temperature: float, iterations: int, epsilon: float, seed: int
    ) -> None:
        options = {"temperature": temperature, "iterations": iterations, "epsilon": epsilon}
        model, embedded = make_model(seed, **options), embeddings(views, n, seed)
        loss = model.objective(embedded, make_batch(n))
        expected = looped_loss(
            [z.detach() for z, _ in embedded], model.prototypes.weight.detach(), **options
        )
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)

    def test_forward_is_the_objective_of_all_views(self) -> None:
        model, batch = make_model(), make_batch(3, (6, 6, 4))
        assert model.inputs(batch) is batch.views
        views = [model.embed(view)[0].detach() for view in batch.views]
        expected = looped_loss(views, model.prototypes.weight.detach())
        assert float(model(batch).detach()) == pytest.approx(expected, rel=1e-9)

    def test_small_crops_are_asked_for(self) -> None:
        assert make_model().crops == 0
        assert make_model(crops=6).crops == 6

    def test_gradient_holds_the_codes_fixed(self) -> None:
        model, embedded = make_model(), embeddings(3, 4)
        model.objective(embedded, make_batch()).backward()
        again = [z.detach().clone().requires_grad_() for z, _ in embedded]
        weight = model.prototypes.weight.detach().clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        for t in range(2):
            scores = looped_scores([again[t].detach()], weight.detach())[0]
            codes = looped_sinkhorn(scores, 3, 0.05)
            for v in {0, 1, 2} - {t}:
                for i in range(4):
                    logits = weight @ (again[v][i] / again[v][i].norm()) / 0.1
                    code = torch.tensor(codes[i], dtype=torch.float64)
                    total = total - code @ logits.log_softmax(0) / (2 * 2 * 4)
        total.backward()
        assert model.prototypes.weight.grad is not None
        assert_close(model.prototypes.weight.grad, weight.grad)
        for (z, _), other in zip(embedded, again, strict=True):
            assert z.grad is not None
            assert_close(z.grad, other.grad)

    def test_gradient_reaches_every_parameter(self) -> None:
        model = make_model()
        model(make_batch(4, (6, 6, 4))).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name

    def test_length_of_an_embedding_does_not_count_and_zero_is_finite(self) -> None:
        model, embedded = make_model(), embeddings(2, 3)
        batch = make_batch(3)
        loss = model.objective(embedded, batch)
        longer = [(7 * z, h) for z, h in embedded]
        assert_close(model.objective(longer, batch), loss)
        with torch.no_grad():
            embedded[0][0][1] = 0
        model.objective(embedded, batch).backward()
        for z, _ in embedded:
            assert z.grad is not None
            assert z.grad.isfinite().all()
        assert embedded[0][0].grad is not None
        assert embedded[0][0].grad[1].abs().max() == 0

    def test_perfect_agreement_costs_the_entropy_of_the_codes(self) -> None:
        """Two views alike, τ = ε and one row: the codes are uniform, K log K / K."""
        scores = [torch.zeros(1, 4, dtype=torch.float64)] * 2
        codes = [sinkhorn(score) for score in scores]
        loss = swapped_prediction(scores, codes, temperature=0.1)
        assert float(loss) == pytest.approx(math.log(4))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_embeddings(self, dtype: torch.dtype) -> None:
        model = make_model(dtype=torch.float32)
        embedded = [(z.detach().to(dtype), h) for z, h in embeddings(2, 4)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model.objective(embedded, make_batch())
        assert loss.dtype == torch.float32
        expected = looped_loss(
            [z.double() for z, _ in embedded], model.prototypes.weight.detach().double()
        )
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)

    def test_steps_lower_it(self) -> None:
        model = make_model(dtype=torch.float32)
        views = make_batch(32).views[0].float()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        losses = []
        for step in range(60):
            noise = 0.1 * draw(2, *views.shape, seed=step).float()
            batch = Batch(
                views=(views + noise[0], views + noise[1]),
                samples=torch.arange(32),
                keys=torch.arange(32),
                batch_key=torch.tensor([0]),
                epoch=0,
            )
            losses.append(take_step(model, optimizer, batch))
        assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def take_step(model: SwAV, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
    model.after_step()
    return float(loss.detach())


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters, decay: torch.optim.SGD(
        parameters, 0.5, momentum=0.9, weight_decay=decay
    ),
    "adam": lambda parameters, decay: torch.optim.Adam(parameters, 0.01, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, 0.01, weight_decay=decay),
}


class TestPrototypes:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_unit_length_at_the_start_and_after_every_step(
        self, optimizer: str, dtype: torch.dtype
    ) -> None:
        model = make_model(dtype=dtype)
        optimizer = OPTIMIZERS[optimizer](model.parameters(), 1e-2)
        weight = model.prototypes.weight
        for step in range(5):
            lengths = weight.detach().norm(dim=1)
            assert_close(lengths, torch.ones_like(lengths), 4 * torch.finfo(dtype).eps)
            before = weight.detach().clone()
            batch = make_batch(seed=step)
            views = tuple(view.to(dtype) for view in batch.views)
            batch = Batch(views, batch.samples, batch.keys, batch.batch_key, epoch=0)
            take_step(model, optimizer, batch)
            assert (weight.detach() - before).abs().max() > 1e-4

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_frozen_ones_have_no_gradient_and_hold_still(self, optimizer: str) -> None:
        model = make_model(frozen_epochs=2)
        optimizer = OPTIMIZERS[optimizer](model.parameters(), 0.0)
        weight = model.prototypes.weight
        before = weight.detach().clone()
        encoder = next(model.encoder.parameters()).detach().clone()
        for step in range(4):
            optimizer.zero_grad()
            model(make_batch(seed=step, epoch=step // 2)).backward()
            assert weight.grad is not None
            assert weight.grad.abs().max() == 0
            optimizer.step()
            assert torch.equal(weight, before)
            model.after_step()
            assert torch.equal(weight, before)
        assert not torch.equal(next(model.encoder.parameters()), encoder)
        take_step(model, optimizer, make_batch(epoch=2))
        assert not torch.equal(weight, before)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_frozen_ones_hold_still_under_weight_decay(self, optimizer: str) -> None:
        model = make_model(frozen_epochs=1)
        optimizer = OPTIMIZERS[optimizer](model.parameters(), 0.1)
        before = model.prototypes.weight.detach().clone()
        for step in range(3):
            take_step(model, optimizer, make_batch(seed=step))
            assert torch.equal(model.prototypes.weight, before)

    def test_frozen_or_not_the_loss_and_the_encoder_s_gradient_are_the_same(self) -> None:
        found = []
        for frozen_epochs in (0, 1):
            model = make_model(frozen_epochs=frozen_epochs)
            loss = model(make_batch())
            loss.backward()
            gradient = next(model.encoder.parameters()).grad
            assert gradient is not None
            found.append((loss.detach(), gradient))
        assert_close(found[0][0], found[1][0])
        assert_close(found[0][1], found[1][1])

    def test_a_loss_without_a_step_freezes_nothing(self) -> None:
        model = make_model(frozen_epochs=1, queue=4).eval()
        model(make_batch(epoch=0))
        with torch.no_grad():
            model.prototypes.weight.mul_(3)
        model.after_step()
        assert_close(model.prototypes.weight.norm(dim=1), torch.ones(5, dtype=torch.float64))
        assert int(model.queued) == 0

    def test_type_and_names(self) -> None:
        model = make_model(dtype=torch.float32, queue=3)
        assert model.prototypes.weight.dtype == model.queue.dtype == torch.float32
        state = model.state_dict()
        assert {"prototypes.weight", "queue", "queue_pointer", "queued"} < state.keys()
        assert not any("queue" in name for name in make_model().state_dict())


class TestQueue:
    @settings(max_examples=80)
    @given(length=st.integers(1, 9), batches=st.lists(st.integers(0, 20), max_size=8))
    def test_first_in_first_out_for_any_sizes(self, length: int, batches: list[int]) -> None:
        queue, pointer, count = torch.full((length, 2), -1), 0, 0
        expected: deque[int] = deque([-1] * length, maxlen=length)
        for n in batches:
            rows = torch.arange(count, count + n)
            pointer = enqueue(queue, pointer, torch.stack([rows, rows + 1000], dim=1))
            expected.extend(rows.tolist())
            count += n
            oldest_first = queue.roll(-pointer, 0)
            assert oldest_first[:, 0].tolist() == list(expected)
            fresh = oldest_first[:, 0] >= 0
            assert torch.equal(oldest_first[fresh, 1], oldest_first[fresh, 0] + 1000)

    @settings(max_examples=15)
    @given(
        length=st.integers(1, 7),
        sizes=st.lists(st.integers(1, 10), min_size=1, max_size=5),
        start=st.integers(0, 2),
    )
    def test_loss_of_every_step_equals_a_loop(
        self, length: int, sizes: list[int], start: int
    ) -> None:
        model = make_model(queue=length, queue_from_epoch=start)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        held: list[deque[Tensor]] = [deque(maxlen=length), deque(maxlen=length)]
        for epoch, n in enumerate(sizes):
            batch = make_batch(n, (6, 6, 4), seed=epoch, epoch=epoch)
            views = [model.embed(view)[0].detach() for view in batch.views]
            used = epoch >= start and len(held[0]) == length
            expected = looped_loss(
                views,
                model.prototypes.weight.detach().clone(),
                [torch.stack(list(rows)) for rows in held] if used else None,
            )
            assert take_step(model, optimizer, batch) == pytest.approx(expected, rel=1e-9)
            for rows, view in zip(held, views[:2], strict=True):
                rows.extend(view / view.norm(dim=1, keepdim=True))
            assert int(model.queued) == len(held[0])

    def test_features_are_enqueued_once(self) -> None:
        model = make_model(queue=9)
        model(make_batch(4))
        for _ in range(3):
            model.after_step()
        assert int(model.queued) == int(model.queue_pointer) == 4

    def test_the_queue_changes_the_codes(self) -> None:
        model, other = (make_model(queue=6, queue_from_epoch=e) for e in (0, 1))
        for step in range(2):
            for one in (model, other):
                one(make_batch(seed=step))
                one.after_step()
        batch = make_batch(seed=5)
        assert abs(float((model(batch) - other(batch)).detach())) > 1e-4

    def test_state_goes_on_exactly(self) -> None:
        model = make_model(queue=6, queue_from_epoch=1, frozen_epochs=1)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for step in range(3):
            take_step(model, optimizer, make_batch(seed=step, epoch=step))
        other = make_model(seed=1, queue=6, queue_from_epoch=1, frozen_epochs=1)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        resumed = torch.optim.Adam(other.parameters(), 0.01)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for step in range(3, 6):
            batch = make_batch(seed=step, epoch=step)
            assert take_step(model, optimizer, batch) == take_step(other, resumed, batch)
        ours, theirs = model.state_dict(), other.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


BAD_OPTIONS = {
    "temperature": [0.0, -0.1, math.inf, math.nan],
    "epsilon": [0.0, -1.0, math.inf],
    "prototypes": [1, 0, 2.5, True],
    "iterations": [0, -1, 1.5],
    "frozen_epochs": [-1, 0.5],
    "queue": [-1, 1.5],
    "queue_from_epoch": [-1],
    "crops": [-1, 0.5],
}


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value"),
        [(name, value) for name, values in BAD_OPTIONS.items() for value in values],
    )
    def test_options(self, name: str, value: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=rf"expected {name} to be .*, got "):
            make_model(**{name: value})

    def test_head_without_a_linear_end(self) -> None:
        with pytest.raises(ValueError, match=r"torch\.nn\.Linear, got ReLU"):
            SwAV(nn.Flatten(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ([3], "at least 2 views, got 1"),
            ([], "at least 2 views, got 0"),
            ([3, 2], r"one shape \(N, D\) .* got"),
            ([3, 3, 2], r"one shape \(N, D\) .* got"),
            ([0, 0], r"at least one row, got"),
        ],
    )
    def test_views(self, sizes: list[int], message: str) -> None:
        embedded = [(draw(n, 6), draw(n, 8)) for n in sizes]
        with pytest.raises(ValueError, match=message):
            make_model().objective(embedded, make_batch())


# Two processes.

SIZES = [(2, 2), (3, 2), (1, 4)]
STEPS = 4
OPTIONS: dict[str, Any] = {"queue": 5, "queue_from_epoch": 2, "frozen_epochs": 1}


def part(batch: Batch, sizes: tuple[int, ...]) -> Batch:
    """What this process holds of a joint batch."""
    rank = dist.get_rank()
    views = tuple(view.split(sizes)[rank] for view in batch.views)
    return Batch(
        views, batch.samples.split(sizes)[rank], batch.keys.split(sizes)[rank], batch.batch_key,
        epoch=batch.epoch,
    )  # fmt: skip


def joint_batch(sizes: tuple[int, ...], step: int) -> Batch:
    return make_batch(sum(sizes), (6, 6, 4), seed=step, epoch=step)


def train(sizes: tuple[int, ...], mode: str) -> Report:
    """Losses and state of some steps: alone, averaged by hand, or by the wrapper."""
    model = make_model(**OPTIONS)
    wrapped = DistributedDataParallel(model) if mode == "wrapped" else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        batch = joint_batch(sizes, step)
        if mode != "alone":
            batch = part(batch, sizes)
        optimizer.zero_grad()
        loss = wrapped(batch)
        loss.backward()
        if mode == "by hand":
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        model.after_step()
        value = loss.detach().clone()
        if mode != "alone":
            dist.all_reduce(value)
            value /= dist.get_world_size()
        losses.append(float(value))
    return {"losses": losses, "state": model.state_dict()}


def joint_scores(sizes: tuple[int, ...]) -> Tensor:
    return draw(sum(sizes), 4, seed=sum(sizes)).tanh()


def empty_in_the_first() -> str:
    n = 2 * dist.get_rank()
    try:
        make_model().objective([(draw(n, 6), draw(n, 8))] * 2, make_batch())
    except ValueError as error:
        return str(error)
    return "none"


def in_processes(world: int) -> Report:
    found: Report = {}
    for sizes in SIZES:
        own = joint_scores(sizes).split(sizes)[dist.get_rank()]
        found["codes", sizes] = sinkhorn(own)
        found["extreme codes", sizes] = sinkhorn(1e3 * own)
        found["by hand", sizes] = train(sizes, "by hand")
        found["wrapped", sizes] = train(sizes, "wrapped")
    found["empty"] = empty_in_the_first()
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    return processes(2, in_processes, tmp_path_factory.mktemp("swav"))


class TestTwoProcesses:
    @pytest.mark.parametrize("sizes", SIZES)
    def test_codes_are_those_of_the_joint_batch(
        self, reports: list[Report], sizes: tuple[int, ...]
    ) -> None:
        for name, factor in (("codes", 1.0), ("extreme codes", 1e3)):
            found = torch.cat([report[name, sizes] for report in reports])
            assert_close(found, sinkhorn(factor * joint_scores(sizes)), 1e-9)

    @pytest.mark.parametrize("mode", ["by hand", "wrapped"])
    @pytest.mark.parametrize("sizes", SIZES)
    def test_training_is_that_of_one_process(
        self, reports: list[Report], sizes: tuple[int, ...], mode: str
    ) -> None:
        """Losses, prototypes, encoder and queue, with frozen prototypes and queue on the way."""
        expected = train(sizes, "alone")
        for report in reports:
            found = report[mode, sizes]
            assert found["losses"] == pytest.approx(expected["losses"], rel=1e-9)
            assert found["state"].keys() == expected["state"].keys()
            for name, value in expected["state"].items():
                assert_close(found["state"][name], value, 1e-9)

    def test_an_empty_process_is_an_error_in_both(self, reports: list[Report]) -> None:
        assert re.match("expected embeddings of one shape", reports[0]["empty"])
        assert re.match(r"expected samples in every process, got \[0, 2\]", reports[1]["empty"])
