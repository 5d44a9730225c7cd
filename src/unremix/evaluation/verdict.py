"""A verdict in words: whether training helped, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import stdev
from typing import Any, NamedTuple

from unremix.evaluation.accuracy import agreement
from unremix.evaluation.card import (
    FEATURES,
    in_percent,
    label_of,
    measures_of,
    scale_of,
    subject_of,
)
from unremix.frameworks.base import auto_batch

CONFIDENCE = 0.95
FEW_STEPS = 800  # 200 epochs of 4 steps; below, more epochs are likely to help
FEW_SAMPLES = 1000  # below, an encoder learns little from scratch
FEW_MEASURED = 200  # below, only large differences can be seen
STEPS_PER_EPOCH, SMALLEST_BATCH = 4, 16
SMALLER_IS_BETTER = ("mse",)
ENCODERS = ("start", "untrained")  # those that training began with
KEPT = {
    "trained": "encoder.safetensors is the trained encoder.",
    "blend": "encoder.safetensors is the average of the trained encoder and the one it started "
    "from.",
    "start": "encoder.safetensors is the encoder as it came; --keep last keeps the trained one, "
    "--keep blend the average of both, which is what was compared with it.",
}


def difference(
    measure: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[float, float, float] | None:
    """How much higher a measure is than another, with a 95 % interval.

    - Accuracies: Newcombe's interval for pairs, from the Wilson intervals of both and the
      :func:`~unremix.evaluation.accuracy.agreement` φ of what they predict right: below,
      √(a² - 2φab + b²), where a is how far the first's interval reaches down and b how far the
      second's reaches up. Cards that do not say which predictions are right count as independent.
    - Cross-validation: Student's t over the folds, paired, with the variance corrected for the
      training samples that folds share, s² (1/n + 1/(k - 1)) for n values of k folds.
    - Others: d ± 1.96 √(e₁² + e₂²) for standard errors e₁ and e₂.

    Returns:
        The difference and both ends of the interval; None if the card has no error.

    Example:
        >>> none, few = (
        ...     {"value": 0.0, "low": 0.0, "high": 0.215},
        ...     {"value": 1 / 14, "low": 0.013, "high": 0.315},
        ... )
        >>> [round(number, 2) for number in difference(few, none)]
        [0.07, -0.15, 0.32]

    Reference:
        Newcombe 1998, "Improved confidence intervals for the difference between binomial
        proportions based on paired data", method 10; Nadeau and Bengio 2003.
    """
    delta = measure["value"] - other["value"]
    if "low" in measure and "low" in other:
        phi = agreement(measure, other)
        below = measure["value"] - measure["low"], other["high"] - other["value"]
        above = measure["high"] - measure["value"], other["value"] - other["low"]
        low, high = (math.sqrt(a * a - 2 * phi * a * b + b * b) for a, b in (below, above))
        return delta, delta - low, delta + high
    if "accuracies" in measure and len(measure["accuracies"]) == len(other["accuracies"]) > 1:
        from scipy.stats import t  # type: ignore[import-untyped]

        pairs = zip(measure["accuracies"], other["accuracies"], strict=True)
        gaps = [ours - theirs for ours, theirs in pairs]
        shared = 1 / (measure.get("folds", len(gaps)) - 1)
        quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(gaps) - 1))
        half = quantile * stdev(gaps) * math.sqrt(1 / len(gaps) + shared)
    elif "standard_error" in measure and "standard_error" in other:
        half = 1.96 * math.hypot(measure["standard_error"], other["standard_error"])
    else:
        return None
    return delta, delta - half, delta + half


def verdict(card: Mapping[str, Any]) -> list[str]:
    """What an evaluation card says, in sentences: results first, then what to do next.

    The encoder is compared with the one that it started from, if that had been trained, and with
    the best of all others: that one, random weights, raw input.

    Args:
        card: The card. Advice needs its ``batch_size``, ``epoch``, ``step`` and number of training
            samples, and is left out if ``own_data`` is false. Training ran out of time if ``epoch``
            is below ``epochs``, the number that was asked for.

    Example:
        >>> trained = {"knn": {"value": 0.9, "low": 0.88, "high": 0.92, "count": 1000}}
        >>> untrained = {"knn": {"value": 0.7, "low": 0.67, "high": 0.73, "count": 1000}}
        >>> verdict({"results": {"trained": trained, "untrained": untrained}})
        ['Training helped: better than the untrained encoder (kNN 90.0 % against 70.0 %).']
    """
    results = card.get("results") or {}
    found = outcomes(results)
    helped, sentences = (found[0][0] if found else None), [said for _, said in found]
    measured = measures_of(results.get(subject_of(results), {}))
    counts = [measure["count"] for measure in measured.values() if "count" in measure]
    if helped == "unclear" and counts and max(counts) < FEW_MEASURED:
        sentences.append(
            f"Only {max(counts)} samples were measured, so small differences cannot be seen: with "
            "more labeled samples they could be."
        )
    if not results and "unlabeled" in card:
        sentences.append(_without_labels(card["unlabeled"]))
    if "kept" in card:
        sentences.append(KEPT[card["kept"]])
    own = card.get("own_data", True)
    if own and results and card.get("chosen") and card["kept"] == "blend":
        sentences.append(
            "The same labels chose it, so its measures may be a little too high: 'unremix evaluate "
            "RUN --data OTHER' measures it on others."
        )
    if card.get("labels_used"):
        sentences.append("Training used labels: samples of one class were positives of each other.")
        held_out = any(card[name] for name in card if name.startswith("test_"))
        if own and results and not held_out:
            sentences.append(
                "Training samples are measured here, so these measures are too high: measure on "
                "samples that were held out, or on other data."
            )
    if own:
        sentences += _advice(card, helped)
    return sentences


def _without_labels(measured: Mapping[str, Mapping[str, float]]) -> str:
    """What measures without labels say about an encoder and the one that it started from."""
    ours, start = measured[subject_of(measured)], measured["start"]
    said = (
        "Without labels nothing tells which encoder is better. Of the nearest neighbors, "
        f"{ours['neighbors_kept']:.0%} are those of the encoder as it came, which tells how far "
        "it has moved, not where to"
    )
    if "views_found" in ours:
        said += (
            f"; {ours['views_found']:.0%} of samples find their second view "
            f"({start['views_found']:.0%} as it came), which is what training asks for, not classes"
        )
    return said + (
        f"; {ours['effective_rank']:.0f} dimensions are in use ({start['effective_rank']:.0f} as "
        "it came), of which more is not better."
    )


def outcomes(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether an encoder is better, worse, behind raw input or neither (unclear), in a sentence.

    Args:
        results: Of a card, by kind of features.

    Returns:
        Against the encoder as it came, if there is such, and against the best of the others.
    """
    kinds = ["start"] if "start" in results else []
    best = best_reference(results)
    kinds += [] if best is None or best in kinds else [best]
    subject = results.get(subject_of(results), {})
    found = (against(kind, subject, results[kind]) for kind in kinds)
    return [one for one in found if one is not None]


def best_reference(results: Mapping[str, Any]) -> str | None:
    """The best of what a trained encoder is compared with, by kNN or else by the first measure.

    Example:
        >>> knn = {"low": 0.1, "high": 0.9}
        >>> best_reference(
        ...     {
        ...         "trained": {"knn": knn | {"value": 0.8}},
        ...         "start": {"knn": knn | {"value": 0.7}},
        ...         "untrained": {"knn": knn | {"value": 0.2}},
        ...     }
        ... )
        'start'
    """
    subject = subject_of(results)
    found: dict[str, float] = {}
    for kind, others in results.items():
        gaps = dict(comparable(results[subject], others))
        if kind not in ("trained", subject) and gaps:
            found[kind] = gaps.get("knn", next(iter(gaps.values())))[0]
    return min(found, key=found.__getitem__, default=None)


def best_encoder(results: Mapping[str, Any] | None) -> str:
    """Which encoder to keep of a run that started from one: that one, unless another is better.

    Args:
        results: Of a card; None without labels, where nothing shows which is better.

    Returns:
        ``blend`` or ``start``.
    """
    if not results:
        return "blend"  # between what is known to be sound and what was asked for
    subject = subject_of(results)
    found = against("start", results[subject], results["start"])
    return subject if found is not None and found[0] == "better" else "start"


def comparable(
    trained: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """How much better each measure is than that of other features, with a 95 % interval.

    Yields:
        The measure's path; the difference and both ends of its interval, positive where better.
    """
    ours, theirs = measures_of(trained), measures_of(other)
    for path, measure in ours.items():
        name = path.rpartition(".")[2]
        gap = difference(measure, theirs[path]) if path in theirs else None
        if gap is not None and name != "top5":
            delta, low, high = gap
            yield path, (-delta, -high, -low) if name in SMALLER_IS_BETTER else gap


def with_article(kind: str) -> str:
    """What to call features in a sentence: the untrained encoder, raw pixels."""
    if kind == "start":
        return "the encoder as it came"
    name = FEATURES.get(kind, kind)
    return f"the {name}" if name.endswith("encoder") else name


def against(
    kind: str, trained: Mapping[str, Any], baseline: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Whether an encoder is better, worse, behind or unclear, in a sentence; None without an error.

    Args:
        kind: What it is compared with.
        trained: Its measures.
        baseline: Those of what it is compared with.
    """
    ours, theirs = measures_of(trained), measures_of(baseline)
    sides: dict[str, list[str]] = {"better": [], "worse": [], "unclear": []}
    for path, (_, low, high) in comparable(trained, baseline):
        side = "better" if low > 0 else "worse" if high < 0 else "unclear"
        sides[side].append(f"{label_of(path)} {_shown(ours[path])} against {_shown(theirs[path])}")
    name = with_article(kind)
    better, worse, unclear = (_some(parts) for parts in sides.values())
    if better and worse:
        return "unclear", f"Mixed: better than {name} by {better}; worse by {worse}."
    if better:
        rest = f"; no clear difference by {unclear}" if unclear else ""
        return "better", f"Training helped: better than {name} ({better}{rest})."
    if worse and kind in ENCODERS:
        return "worse", f"Training did harm: worse than {name} ({worse})."
    if worse:
        return "behind", f"Training did not help enough: worse than {name} ({worse})."
    said = f"Training did not measurably help: no clear difference from {name} ({unclear})."
    return ("unclear", said) if unclear else None


def _some(parts: Sequence[str], most: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    return "; ".join([*parts[:most], *([f"{len(parts) - most} more"] if parts[most:] else [])])


def _shown(measure: Mapping[str, Any]) -> str:
    factor, digits = scale_of(measure)
    return f"{factor * measure['value']:.{digits}f}{' %' * in_percent(measure)}"


class _Training(NamedTuple):
    """What a card says of a training: the unit of its samples, their number, epochs and steps."""

    unit: str
    samples: int
    epochs: float
    steps: int
    batch: int

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> _Training | None:
        """None where the card does not say all of it."""
        counted = next((name for name in card if name.startswith("train_")), "")
        found: list[Any] = [card.get(name) for name in (counted, "epoch", "step", "batch_size")]
        return cls(counted.removeprefix("train_"), *found) if all(found) else None

    @property
    def steps_per_epoch(self) -> float:
        return self.steps / self.epochs

    @property
    def has_large_batches(self) -> bool:
        """Whether an epoch has so few steps that smaller batches are advised."""
        return self.steps_per_epoch < STEPS_PER_EPOCH and self.batch > SMALLEST_BATCH


def more_epochs(card: Mapping[str, Any]) -> int | None:
    """How many epochs are advised; None if there were enough, or if more is not what helps.

    Args:
        card: A card with ``epoch``, ``step``, ``batch_size`` and the number of training samples.
    """
    training, found = _Training.of(card), outcomes(card.get("results") or {})
    if training is None or "kept" in card or (found and found[0][0] == "worse"):
        return None
    if training.steps >= FEW_STEPS:
        return None
    per_epoch = training.steps_per_epoch
    if training.has_large_batches:
        per_epoch = max(per_epoch, training.samples // auto_batch(training.samples))
    wanted = math.ceil(FEW_STEPS / per_epoch)
    magnitude: int = 10 ** max(0, len(str(wanted)) - 2)
    return math.ceil(wanted / magnitude) * magnitude


def is_worth_more(card: Mapping[str, Any] | None) -> bool:
    """Whether a run may be continued as it is: the verdict advises nothing else.

    Example:
        >>> is_worth_more(None), is_worth_more({"kept": "start"})
        (True, False)
    """
    if card is None or card.get("kept") == "start":
        return card is None
    found = outcomes(card.get("results") or {})
    return not found or found[0][0] == "better" or more_epochs(card) is not None


def _advice(card: Mapping[str, Any], helped: str | None) -> list[str]:
    """What to change: batch size, epochs, where to start from."""
    training = _Training.of(card)
    if training is None:
        return []
    unit, count, epochs, steps, batch = training
    if "kept" in card:
        if helped == "better":
            return []
        return [
            f"To try next: more unlabeled {unit}, other recipes with 'unremix compare', or, with a "
            "few labels, 'unremix classify' on the encoder as it came."
        ]
    sentences = []
    if training.has_large_batches:
        per_epoch = training.steps_per_epoch
        sentences.append(
            f"{count} {unit} are few for batches of {batch}: an epoch has {per_epoch:.3g} "
            f"step{'s' * (per_epoch != 1)}. Lower --batch_size to {auto_batch(count)}."
        )
    wanted = more_epochs(card)
    if wanted is not None:
        remedy = (
            f"--epochs to {wanted}" if epochs >= card.get("epochs", epochs) else "--max_minutes"
        )
        sentences.append(
            f"The encoder was trained for only {steps} step{'s' * (steps != 1)}. Raise {remedy}."
        )
    if "backbone" in card and count < FEW_SAMPLES and helped != "better":
        sentences.append(
            f"{count} {unit} are few to learn from. Add unlabeled {unit}, or start from a "
            "pretrained encoder with --encoder."
        )
    if not sentences and helped not in (None, "better"):
        sentences.append(
            "There were enough data and steps. Compare other recipes with 'unremix compare', or "
            "try another --lr."
        )
    return sentences
