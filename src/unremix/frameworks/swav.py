"""SwAV: each view predicts which prototypes the other views are assigned to; no negatives.

The assignments, called codes, share the batch out evenly among the prototypes, so that not all
samples end at the same one. Across processes they are those of the joint batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unremix.console.values import Checked, bounded
from unremix.core.checks import check_number
from unremix.core.gather import JointBatch, find_joint_batch, gather_rows, is_distributed, withdraw
from unremix.core.precision import at_least_float32, normalize
from unremix.frameworks.base import Batch, Embedded, Projecting
from unremix.frameworks.queue import enqueue

FULL_VIEWS = 2  # the views that codes are computed of; further ones are small crops


@torch.no_grad()
def sinkhorn(scores: Tensor, *, iterations: int = 3, epsilon: float = 0.05) -> Tensor:
    """Codes: each sample shared out among the prototypes, each prototype with the same load.

    Q_ik ∝ exp(s_ik/ε), its columns divided by their sums, then its rows, again and again. In the
    limit, of all Q ≥ 0 with row sums 1 and column sums N/K, it maximizes Σ Q s - ε Σ Q log Q.

    Rows sum to 1; columns sum to N/K as far as the iterations went, because rows come last. A
    number added to a column of s changes nothing; one added to a row, nothing in the limit. All is
    computed with logarithms, so that nothing under- or overflows.

    Where a process group runs, the sums of columns are those of all processes: the codes are the
    rows of the joint batch, however its samples are spread. All processes have to call this.

    Args:
        scores: s, of N samples with K prototypes, shape (N, K).
        iterations: How often columns and rows are normalized.
        epsilon: ε; the smaller, the nearer the codes are to 0 and 1.

    Returns:
        Q, without gradient, in float32 or better, shape (N, K).

    Example:
        >>> scores = torch.tensor([[1.0, 0.9], [1.0, 0.2]])
        >>> sinkhorn(scores, iterations=50, epsilon=0.5)
        tensor([[0.3318, 0.6682],
                [0.6682, 0.3318]])

    Reference:
        Caron et al. 2020, Section 3.1; Cuturi 2013.
    """
    logs = at_least_float32(scores) / epsilon
    for _ in range(iterations):
        logs = (logs - _log_column_sums(logs)).log_softmax(dim=1)
    return logs.exp()


def _log_column_sums(logs: Tensor) -> Tensor:
    """The log of the sums of exp(logs) over the rows of all processes: (N, K) to (K,)."""
    sums = logs.logsumexp(dim=0)
    if is_distributed():
        one_row_each = JointBatch((1,) * dist.get_world_size(), dist.get_rank())
        sums = gather_rows(sums[None], one_row_each).logsumexp(dim=0)
    return sums


def swapped_prediction(
    scores: Sequence[Tensor], codes: Sequence[Tensor], *, temperature: float
) -> Tensor:
    """How badly the views predict each other's codes.

    The mean over samples i, views t with codes, and views v ≠ t, of
    -Σ_k Q^t_ik log softmax(s^v_i/τ)_k.

    Args:
        scores: s of V views with K prototypes, each of shape (N, K).
        codes: Q of the first of these views, each of shape (N, K), rows summing to 1.
        temperature: τ.

    Returns:
        A scalar.

    Example:
        >>> scores = [torch.tensor([[0.3, 0.1]]), torch.tensor([[0.2, 0.2]])]
        >>> codes = [torch.tensor([[1.0, 0.0]])]
        >>> swapped_prediction(scores, codes, temperature=0.1)  # log 2: the second view is unsure
        tensor(0.6931)
    """
    predictions = [(score / temperature).log_softmax(dim=1) for score in scores]
    terms = [
        -(code * prediction).sum(dim=1).mean()
        for t, code in enumerate(codes)
        for v, prediction in enumerate(predictions)
        if v != t
    ]
    return torch.stack(terms).mean()


@dataclass(frozen=True)
class SwAVOptions(Checked):
    """Options of SwAV.

    Args:
        prototypes: K, the number of prototypes.
        iterations: Of Sinkhorn's algorithm.
        epsilon: ε of the codes.
        frozen_epochs: Epochs during which the prototypes stay where they are.
        queue: Earlier samples, over all processes, that help to make the codes; 0 for none.
        queue_from_epoch: The first epoch to use the queue; it fills from the beginning.
        crops: Small crops beside the two views.

    Raises:
        ValueError: If an option is out of range.
    """

    prototypes: int = bounded(100, least=2)
    iterations: int = bounded(3, least=1)
    epsilon: float = bounded(0.05, above=0, below=inf)
    frozen_epochs: int = bounded(1, least=0)
    queue: int = bounded(0, least=0)
    queue_from_epoch: int = bounded(15, least=0)
    crops: int = bounded(0, least=0)


class SwAV(Projecting):
    """An encoder, a projection head, and prototypes on the unit sphere.

    Full views have codes; every view predicts the codes of the full views other than itself.

    The queue, for batches too small to be shared out evenly: full views of earlier samples join the
    codes' computation, as soon as there are as many as the queue holds. It is the same in every
    process, which takes a part of it into the joint codes.

    Args:
        encoder: Images (N, C, S, S) to features (N, F); of any S, where small crops are used.
        head: Features to embeddings (N, D); its last module is ``nn.Linear``.
        temperature: τ of the predictions.
        options: Prototypes, codes, queue and crops. While the prototypes are frozen, their gradient
            is 0, and :meth:`after_step` takes back what weight decay or momentum did to them. The
            loss takes as many crops as come.

    Raises:
        ValueError: If the head does not end in a linear layer.

    Reference:
        Caron et al. 2020.
    """

    summary = "SwAV: codes, no negatives"
    section = "swav"
    Options = SwAVOptions
    is_divisible = False  # each prototype is normalized whole

    queue: Tensor
    queue_pointer: Tensor
    queued: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Sequential,
        *,
        temperature: float = 0.1,
        options: SwAVOptions | None = None,
    ) -> None:
        super().__init__(encoder, head)
        self.options = options = options or SwAVOptions()
        last = self.last_layer
        self.temperature = check_number("temperature", temperature, above=0)
        self.crops = options.crops
        prototypes = nn.Linear(last.out_features, options.prototypes, bias=False)
        self.prototypes = prototypes.to(last.weight)
        if not last.weight.is_meta:  # in an outline there are no numbers to normalize
            self._to_sphere()
        if options.queue:
            shape = (options.queue, FULL_VIEWS, last.out_features)
            self.register_buffer("queue", last.weight.new_zeros(shape))
            self.register_buffer("queue_pointer", torch.tensor(0))
            self.register_buffer("queued", torch.tensor(0))
        self._pointer = self._queued = 0  # the same on the host: nothing waits
        # From an objective to the step that follows it.
        self._held: Tensor | None = None  # prototypes that must not move, (K, D)
        self._fresh: Tensor | None = None  # features to enqueue, (N, 2, D)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images to embed: all views."""
        return batch.views

    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss of a batch, whose first two views are the full ones; h is not used.

        Returns:
            A scalar in float32 or better; the mean over processes is the loss of the joint batch.

        Raises:
            ValueError: If there is no second view, or the views are not of the same samples.
        """
        views = [z for z, _ in embedded]
        weight = self.prototypes.weight
        try:
            _check_views(views)
        except ValueError:
            withdraw()
            raise
        joint = find_joint_batch(views[0]) if is_distributed() else None
        with torch.autocast(device_type=weight.device.type, enabled=False):
            features = [normalize(at_least_float32(z))[0] for z in views]  # each (N, D)
            frozen = batch.epoch < self.options.frozen_epochs
            directions = (weight.detach() if frozen else weight).to(features[0].dtype)
            scores = [feature @ directions.T for feature in features]  # each (N, K)
            earlier = self._earlier(batch.epoch, joint).to(directions.dtype)  # (n, 2, D)
            codes = [
                self._codes(score, earlier[:, t] @ directions.detach().T)
                for t, score in enumerate(scores[:FULL_VIEWS])
            ]
            loss = swapped_prediction(scores, codes, temperature=self.temperature)
            if frozen:
                loss = loss + 0.0 * weight.sum()  # DistributedDataParallel waits for a gradient
            if joint is not None:
                loss = loss * (joint.processes * len(views[0]) / joint.total)
        if self.training:
            self._held = weight.detach().clone() if frozen else None
            if self.options.queue:
                fresh = torch.stack([f.detach() for f in features[:FULL_VIEWS]], dim=1)
                self._fresh = fresh if joint is None else gather_rows(fresh, joint)
        return loss

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self.options.queue:
            self._pointer, self._queued = int(self.queue_pointer), int(self.queued)

    @torch.no_grad()
    def after_step(self) -> None:
        """Bring the prototypes back to the sphere, or where they were, and fill the queue.

        To be called after every step of the optimizer, and before the state is saved.
        """
        if self._held is None:
            self._to_sphere()
        else:
            self.prototypes.weight.copy_(self._held)
        if self._fresh is not None:
            self._pointer = enqueue(self.queue, self._pointer, self._fresh)
            self._queued = min(self._queued + len(self._fresh), self.options.queue)
            self.queue_pointer.fill_(self._pointer)
            self.queued.fill_(self._queued)
        self._held = self._fresh = None

    @torch.no_grad()
    def _to_sphere(self) -> None:
        self.prototypes.weight.copy_(normalize(self.prototypes.weight)[0])

    def _codes(self, scores: Tensor, earlier: Tensor) -> Tensor:
        """Codes of the batch, shape (N, K), from its scores and those of earlier samples."""
        joint = torch.cat([earlier, scores.detach()])
        codes = sinkhorn(joint, iterations=self.options.iterations, epsilon=self.options.epsilon)
        return codes[len(earlier) :]

    def _earlier(self, epoch: int, joint: JointBatch | None) -> Tensor:
        """This process's part of the queue, shape (n, 2, D); empty while it is not in use."""
        if not self.options.queue:
            return self.prototypes.weight.new_zeros(0, FULL_VIEWS, self.prototypes.in_features)
        if epoch < self.options.queue_from_epoch or self._queued < self.options.queue:
            return self.queue[:0]
        if joint is None:
            return self.queue
        return self.queue.tensor_split(joint.processes)[joint.rank]


def _check_views(views: Sequence[Tensor]) -> None:
    if len(views) < FULL_VIEWS:
        raise ValueError(
            f"expected at least {FULL_VIEWS} views, got {len(views)}; one predicts another's codes"
        )
    shapes = [tuple(view.shape) for view in views]
    if len(set(shapes)) > 1 or views[0].dim() != 2 or views[0].numel() == 0:
        raise ValueError(
            f"expected embeddings of one shape (N, D) for all views, with at least one row, "
            f"got {shapes}; give every sample all views, and skip empty batches"
        )
