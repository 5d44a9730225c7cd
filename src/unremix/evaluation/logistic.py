"""Logistic regression for many subsets and penalties of the same samples at once.

Cross-validation fits hundreds of problems that differ only in which samples they train on and how
strongly they are penalized. Their weights are columns of one matrix here, so an iteration of all
of them is two matrix products.

Measured on one thread for the nested 10 folds of SentEval's CR (3775 samples), scikit-learn's
``GridSearchCV`` over ``LogisticRegression`` takes 7.0 times as long with 600 features and 5.2 times
with 2400: ``python benchmarks/handwork.py logistic``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HISTORY = 16  # pairs of steps and gradient changes that L-BFGS remembers
MOST_ITERATIONS = 500
LINE_TRIALS = 12
FLATTER = 0.5  # a step is long enough once the slope along it has fallen to this share


@dataclass(frozen=True)
class Fits:
    """What :func:`fit_logistic` found.

    Args:
        logits: Of every sample, also of those not trained on, shape (n, P) for two classes (the
            logit of class 1) and (n, P, K) for more.
        iterations: How many it took until the last problem had converged.
        converged: Whether all did.
    """

    logits: Tensor
    iterations: int
    converged: bool

    @property
    def predictions(self) -> Tensor:
        """The likeliest class of every sample in every problem, int64, shape (n, P)."""
        return self.logits.argmax(2) if self.logits.dim() == 3 else (self.logits > 0).long()


@torch.no_grad()
def fit_logistic(
    features: Tensor,
    labels: Tensor,
    train: Tensor,
    strengths: Tensor,
    *,
    tolerance: float = 1e-10,
    basis: Tensor | None = None,
) -> Fits:
    """Minimize, for each problem p, ½ |W|² + C_p Σ_{i in train_p} -log softmax(W x_i + b)_{y_i}.

    The bias b is not penalized. Two classes have one logit, of class 1; more have one each. This
    is the objective of scikit-learn's ``LogisticRegression(C=C_p)``.

    Solved by L-BFGS in the eigenbasis of the features' covariance: the penalty is the same in
    every orthonormal basis, and there the curvature is close to its diagonal, which makes a few
    dozen iterations enough. A step's length is found from logits alone, without another matrix
    product.

    Args:
        features: x, shape (n, D), float32 or float64; computation uses this type.
        labels: y, integers from 0 to K - 1, shape (n,). K is one more than the highest.
        train: Which samples each problem trains on, bool, shape (n, P).
        strengths: C, positive, shape (P,).
        tolerance: A problem is solved when the mean loss over its samples can fall by no more than
            about this. In float32, rounding lets nothing below 1e-9 be reached.
        basis: ``eigenbasis(features)``, where several calls share the features.

    Returns:
        The logits of all samples in all problems.

    Raises:
        ValueError: If shapes do not fit, or a problem has no sample of one of the classes.

    Example:
        >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1])
        >>> fits = fit_logistic(x.double(), y, torch.ones(4, 2).bool(), torch.tensor([0.1, 10.0]))
        >>> fits.predictions.T
        tensor([[0, 0, 1, 1],
                [0, 0, 1, 1]])
    """
    count, problems = train.shape
    if features.shape[:1] != (count,) or labels.shape != (count,) or strengths.shape != (problems,):
        raise ValueError(
            "expected features (n, D), labels (n,), train (n, P) and strengths (P,), got "
            f"{tuple(features.shape)}, {tuple(labels.shape)}, {tuple(train.shape)} and "
            f"{tuple(strengths.shape)}"
        )
    classes = int(labels.max()) + 1
    for label in range(classes):
        if not bool(train[labels == label].any(0).all()):
            raise ValueError(
                f"expected samples of every class in every training set, got one without "
                f"class {label}; use fewer folds, or leave the class out"
            )
    inputs = eigenbasis(features) if basis is None else basis
    solver = _Solver(inputs, labels, classes, train, strengths.to(inputs))
    iterations = solver.run(tolerance)
    logits = solver.found
    return Fits(logits.squeeze(2) if classes == 2 else logits, iterations, solver.all_converged)


def eigenbasis(features: Tensor) -> Tensor:
    """The features in the eigenbasis of their covariance.

    Subtracting the mean changes nothing but the bias. Directions in which nothing varies are left
    out: the penalty keeps their weights at 0.

    Returns:
        Shape (n, R + 1), the last column 1 for the bias.
    """
    count, size = features.shape
    exact = features.double()
    exact = exact - exact.mean(0)
    if size <= count:
        values, vectors = torch.linalg.eigh(exact.T @ exact)
    else:
        values, vectors = torch.linalg.eigh(exact @ exact.T)
    kept = values > values[-1].clamp(min=0) * 1e-14 * max(count, size)
    values, vectors = values[kept], vectors[:, kept]
    rotated = exact @ vectors if size <= count else vectors * values.sqrt()
    return torch.cat([rotated, rotated.new_ones(count, 1)], 1).to(features.dtype)


class _Solver:
    """The state of L-BFGS on the problems that have not converged.

    Shapes: R features with the bias, A active problems, K logits (1 for two classes); weights
    (R, A, K), logits (n, A, K).
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        classes: int,
        train: Tensor,
        strengths: Tensor,
    ) -> None:
        count, problems = train.shape
        outputs = 1 if classes == 2 else classes
        self.inputs = inputs
        if outputs == 1:
            self.targets = labels.to(inputs.dtype)[:, None, None]
        else:
            self.targets = torch.nn.functional.one_hot(labels, classes).to(inputs.dtype)[:, None]
        self.spread = inputs.square().mean(0)[:, None, None]  # the bias's is 1
        self.penalized = inputs.new_ones(inputs.shape[1], 1, 1)
        self.penalized[-1] = 0
        # Divided by C and by the number of samples, so that all problems are of one scale:
        # mean loss + |W|² / (2 C n).
        sizes = train.sum(0).to(inputs.dtype)
        self.share = (train / sizes).to(inputs.dtype)[:, :, None]  # (n, A, 1)
        self.penalty = (1 / (strengths * sizes))[None, :, None]
        self.weights = inputs.new_zeros(inputs.shape[1], problems, outputs)
        self.logits = inputs.new_zeros(count, problems, outputs)
        self.active = torch.arange(problems)
        self.history: list[tuple[Tensor, Tensor, Tensor]] = []
        self.found = torch.empty_like(self.logits)
        self.all_converged = True

    def run(self, tolerance: float) -> int:
        """Iterate until all problems are solved; how many iterations that took."""
        gradient = self._gradient(self._residual(self.logits))
        for iteration in range(MOST_ITERATIONS):
            if iteration & (iteration - 1) == 0:  # 0, 1, 2, 4, 8, …
                self._measure_curvature()
            # Half of gᵀ H⁻¹ g is the decrease that a Newton step promises.
            unsolved = (gradient * self._precondition(gradient)).sum((0, 2)) > 2 * tolerance
            if not bool(unsolved.any()):
                self.found[:, self.active] = self.logits
                return iteration
            # Moving the others together copies everything, so it waits for a worthwhile number.
            if int(unsolved.sum()) <= 0.75 * len(unsolved):
                gradient = self._set_aside(~unsolved, gradient)
                unsolved = unsolved[unsolved]
            direction = -self._approximate_newton(gradient) * unsolved[None, :, None]
            along = (self.inputs @ direction.flatten(1)).reshape(-1, *direction.shape[1:])
            slope = (gradient * direction).sum((0, 2))
            step, residual = self._search(direction, along, slope)
            self.weights += step * direction
            self.logits += step * along
            before, gradient = gradient, self._gradient(residual)
            self._remember(step * direction, gradient - before)
        self.found[:, self.active] = self.logits
        self.all_converged = False
        return MOST_ITERATIONS

    def _chances(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if logits.shape[2] == 1 else logits.softmax(2)

    def _residual(self, logits: Tensor) -> Tensor:
        """The gradient of the mean loss with respect to the logits, (n, A, K)."""
        return self._chances(logits).sub_(self.targets).mul_(self.share)

    def _measure_curvature(self) -> None:
        """Approximate the Hessian where the weights are now.

        It is S ⊗ X, the mean of diag(p) - p pᵀ over samples and the features' mean products, which
        is diagonal in their eigenbasis and that of S.
        """
        chances = self._chances(self.logits)
        shares = (chances * self.share).permute(1, 2, 0)  # (A, K, n)
        products = shares @ chances.permute(1, 0, 2)  # (A, K, K)
        values, self.axes = torch.linalg.eigh(torch.diag_embed(shares.sum(2)) - products)
        # Raising all logits alike changes nothing: one value is 0 up to rounding.
        values = torch.maximum(values, 1e-8 * values[:, -1:])
        self.inverse = 1 / (self.spread * values + self.penalty * self.penalized)  # (R, A, K)

    def _precondition(self, vector: Tensor) -> Tensor:
        """The product of the inverse of that Hessian with a vector (R, A, K)."""
        turned = torch.einsum("rak,akl->ral", vector, self.axes) * self.inverse
        return torch.einsum("ral,akl->rak", turned, self.axes)

    def _gradient(self, residual: Tensor) -> Tensor:
        loss = (self.inputs.T @ residual.flatten(1)).reshape(self.weights.shape)
        return loss.add_(self.penalty * self.penalized * self.weights)

    def _search(self, direction: Tensor, along: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Steps after which the slope has flattened, and the residuals there.

        The loss is convex, so its slope along a direction only rises; the wanted step is bracketed
        and then closed in on by the secant.
        """
        penalty = self.penalty * self.penalized
        pull = (penalty * self.weights * direction).sum((0, 2))
        stiffness = (penalty * direction.square()).sum((0, 2))
        low, high = torch.zeros_like(slope), torch.full_like(slope, torch.inf)
        low_slope, high_slope = slope, torch.full_like(slope, torch.inf)
        step = torch.ones_like(slope)
        for trial in range(1, LINE_TRIALS + 1):
            residual = self._residual(torch.addcmul(self.logits, along, step[None, :, None]))
            there = torch.einsum("npk,npk->p", residual, along) + pull + step * stiffness
            wanting = there.abs() > FLATTER * slope.abs()
            if trial == LINE_TRIALS or not bool(wanting.any()):
                break
            before = there < 0
            low, low_slope = torch.where(before, step, low), torch.where(before, there, low_slope)
            high = torch.where(before, high, step)
            high_slope = torch.where(before, high_slope, there)
            secant = low - low_slope * (high - low) / (high_slope - low_slope)
            margin = 0.1 * (high - low)
            secant = torch.clamp(secant, low + margin, high - margin)
            step = torch.where(wanting, torch.where(high.isinf(), 4 * step, secant), step)
        return step[None, :, None], residual

    def _approximate_newton(self, gradient: Tensor) -> Tensor:
        """The two-loop recursion of L-BFGS, for each problem by itself."""
        vector = gradient.clone()
        factors = []
        for step, change, curvature in reversed(self.history):
            factor = (step * vector).sum((0, 2)) / curvature
            vector -= factor[None, :, None] * change
            factors.append(factor)
        vector = self._precondition(vector)
        for (step, change, curvature), factor in zip(self.history, reversed(factors), strict=True):
            again = (change * vector).sum((0, 2)) / curvature
            vector += (factor - again)[None, :, None] * step
        return vector

    def _remember(self, step: Tensor, change: Tensor) -> None:
        curvature = (step * change).sum((0, 2))
        known = curvature > 0  # false without a step, or if rounding outweighs the change
        kept = known[None, :, None]
        step, change = step * kept, change * kept
        curvature = torch.where(known, curvature, 1.0)
        self.history = [*self.history[1 - HISTORY :], (step, change, curvature)]

    def _set_aside(self, solved: Tensor, gradient: Tensor) -> Tensor:
        """Store the results of solved problems and drop them; return the gradient of the others."""
        self.found[:, self.active[solved]] = self.logits[:, solved]
        rest = ~solved
        self.active = self.active[rest]
        self.logits, self.share = self.logits[:, rest], self.share[:, rest]
        self.weights, self.inverse = self.weights[:, rest], self.inverse[:, rest]
        self.axes = self.axes[rest]
        self.penalty = self.penalty[:, rest]
        self.history = [
            (step[:, rest], change[:, rest], curvature[rest])
            for step, change, curvature in self.history
        ]
        return gradient[:, rest]
