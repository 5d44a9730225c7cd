"""The verdict in words: what it says for clear, unclear and contradictory results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, ttest_rel

from unremix.cli.commands import show_results
from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.card import card_table, shown, spread_of
from unremix.evaluation.verdict import best_encoder, difference, verdict
from unremix.frameworks.base import auto_batch


def accuracy(right: int, count: int) -> dict[str, Any]:
    return vars(Accuracy.of(torch.arange(count) < right))


def card(trained: dict[str, Any], untrained: dict[str, Any], **facts: Any) -> dict[str, Any]:
    known = {"train_images": 5000, "batch_size": 256, "epoch": 100, "step": 1900}
    return known | facts | {"results": {"trained": trained, "untrained": untrained}}


def test_none_of_14_has_an_interval() -> None:
    assert shown(accuracy(0, 14)) == "0.0 [0.0–21.5]"


def test_training_helped() -> None:
    (told,) = verdict(card({"knn": accuracy(900, 1000)}, {"knn": accuracy(700, 1000)}))
    assert told.startswith("Training helped")
    assert "kNN 90.0 % against 70.0 %" in told


def test_too_few_measured_to_tell() -> None:
    told, few, *advice = verdict(card({"knn": accuracy(7, 14)}, {"knn": accuracy(5, 14)}))
    assert told.startswith("Training did not measurably help: no clear difference")
    assert few.startswith("Only 14 samples were measured")
    assert "Label more" not in few  # all that there are may be labeled
    probe = {"top1": accuracy(2, 5)}  # on a part of them
    _, few, *_ = verdict(
        card({"knn": accuracy(7, 14), "linear": probe}, {"knn": accuracy(5, 14), "linear": probe})
    )
    assert few.startswith("Only 14 samples were measured")
    (other,) = advice
    assert other.startswith("There were enough data and steps")
    assert "unremix compare" in other
    assert "--lr" in other


def test_training_did_harm() -> None:
    (told, *_) = verdict(card({"knn": accuracy(100, 1000)}, {"knn": accuracy(700, 1000)}))
    assert told.startswith("Training did harm: worse than the untrained encoder")


def test_measures_that_disagree() -> None:
    (told, *_) = verdict(
        card(
            {"knn": accuracy(900, 1000), "linear": {"top1": accuracy(500, 1000)}},
            {"knn": accuracy(700, 1000), "linear": {"top1": accuracy(700, 1000)}},
        )
    )
    better, worse = told.split("worse by")
    assert better.startswith("Mixed: better")
    assert "kNN 90.0 % against 70.0 %" in better
    assert "linear probe 50.0 % against 70.0 %" in worse


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"pixels": 950}, "Training did not help enough: worse than raw pixels (kNN 90.0 % agai"),
        ({"pixels": 500, "start": 950}, "Training did harm: worse than the encoder as it came"),
        ({"pixels": 500, "start": 895}, "Training did not measurably help: no clear difference f"),
        ({"pixels": 500, "start": 600}, "Training helped: better than the encoder as it came (kN"),
    ],
)
def test_the_verdict_is_about_the_best_of_the_others(others: dict[str, int], said: str) -> None:
    shared = card({"knn": accuracy(900, 1000)}, {"knn": accuracy(700, 1000)})
    shared["results"] |= {kind: {"knn": accuracy(right, 1000)} for kind, right in others.items()}
    told, *further = verdict(shared)
    assert told.startswith(said)
    # The start comes first, and then what is better than it.
    second = "Training helped: better than the untrained encoder (kNN 90.0 % against 70.0 %)."
    assert (second in further) == (others.get("start") == 600)


def test_an_encoder_is_kept_unless_another_is_better() -> None:
    results = {
        kind: {"knn": accuracy(right, 1000)}
        for kind, right in {"trained": 800, "blend": 950, "start": 900, "untrained": 100}.items()
    }
    assert best_encoder(results) == "blend"
    assert verdict({"results": results, "kept": "blend"})[0].startswith("Training helped: better")
    results["blend"] = {"knn": accuracy(905, 1000)}  # within the error
    assert best_encoder(results) == "start"
    told, kept = verdict({"results": results, "kept": "start"})[:2]
    assert told.startswith("Training did not measurably help")
    assert "the encoder as it came; --keep last" in kept
    assert "the average of both, which is what was compared" in kept  # not the last weights


def test_a_smaller_squared_error_is_better() -> None:
    trained, untrained = (
        {"SICK": {"mse": {"value": value, "standard_error": 0.01, "percent": False}}}
        for value in (0.3, 0.5)
    )
    told = verdict(card(trained, untrained))[0]
    assert told.startswith("Training helped")
    assert "SICK mse 0.300 against 0.500" in told


def test_small_data_get_a_smaller_batch_and_a_start() -> None:
    facts = {"train_images": 70, "backbone": "small", "batch_size": 64, "epoch": 10, "step": 10}
    found = verdict(card({"knn": accuracy(7, 14)}, {"knn": accuracy(7, 14)}, **facts))
    _, _, batch, epochs, start = found
    assert "70 images" in batch
    assert "--batch_size to 16" in batch
    assert "only 10 steps" in epochs
    assert "--epochs to 200" in epochs
    assert "--encoder" in start


def test_few_steps_get_more_epochs() -> None:
    facts = {"epoch": 10, "step": 190}
    _, more = verdict(card({"knn": accuracy(900, 1000)}, {"knn": accuracy(700, 1000)}, **facts))
    assert "190 steps. Raise --epochs to 43." in more
    facts["epochs"] = 100  # asked for, but the time was up
    _, more = verdict(card({"knn": accuracy(900, 1000)}, {"knn": accuracy(700, 1000)}, **facts))
    assert "190 steps. Raise --max_minutes" in more


def test_the_readme_s_command_draws_no_advice_to_train_longer() -> None:
    """With the batch size that a new user gets, from 64 images on."""
    readme = Path(__file__).parents[2] / "README.md"
    (epochs,) = set(re.findall(r"unremix train --data photos --epochs (\d+)", readme.read_text()))
    for count in (64, 70, 300, 1000):
        batch = auto_batch(count)
        steps = int(epochs) * (count // batch)
        facts = {"train_images": count, "batch_size": batch, "epoch": int(epochs), "step": steps}
        assert not [line for line in verdict({"results": None, **facts}) if "--epochs" in line]


def test_without_labels_there_is_advice_only() -> None:
    facts: dict[str, Any] = {"train_images": 70, "batch_size": 64, "epoch": 10, "step": 10}
    facts |= {"backbone": "small", "results": None}
    assert [sentence.split()[0] for sentence in verdict(facts)] == ["70", "The", "70"]
    assert verdict(facts | {"own_data": False}) == []
    assert verdict(facts | {"epoch": 0, "step": 0}) == []


def pair(both: int, first: int, second: int, none: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two accuracies of the same samples: how many both predict right, only one, and none."""
    right = torch.tensor([[1, 1]] * both + [[1, 0]] * first + [[0, 1]] * second + [[0, 0]] * none)
    one, other = (vars(Accuracy.of(right[:, column] == 1)) for column in (0, 1))
    return one, other


def test_accuracies_are_compared_on_the_same_samples() -> None:
    # Newcombe 1998, table III, method 10.
    assert difference(*pair(36, 12, 2, 0)) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)
    # 12 of 400 are better and none worse: as independent samples, nothing could be seen.
    ours, theirs = pair(300, 12, 0, 88)
    assert verdict(card({"knn": ours}, {"knn": theirs}))[0].startswith("Training helped")
    alone = [
        {name: value for name, value in one.items() if name != "right"} for one in (ours, theirs)
    ]
    told = verdict(card({"knn": alone[0]}, {"knn": alone[1]}))[0]  # of an earlier version
    assert told.startswith("Training did not measurably help")


def test_pairs_are_judged_as_by_the_exact_test_of_mcnemar() -> None:
    random, agreed = np.random.default_rng(0), 0
    for _ in range(300):
        both, first, second, none = random.multinomial(
            70, [0.6, *random.dirichlet([2, 1, 4]) * 0.4]
        )
        exact = binomtest(first, first + second).pvalue < 0.05 if first + second else False
        found = difference(*pair(both, first, second, none))
        assert found is not None
        agreed += exact == (found[1] > 0 or found[2] < 0)
    assert agreed > 0.95 * 300


def test_it_is_said_that_the_measured_labels_chose_the_encoder() -> None:
    results = {
        "trained": {},
        "blend": {"knn": accuracy(950, 1000)},
        "start": {"knn": accuracy(900, 1000)},
    }
    said = "The same labels chose it"
    facts = {"results": results, "kept": "blend", "chosen": True}
    assert any(one.startswith(said) for one in verdict(facts))
    for other in ({"chosen": False}, {"own_data": False}, {"kept": "start"}):
        assert not any(one.startswith(said) for one in verdict(facts | other))


def test_folds_are_paired_and_corrected() -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.uniform(0.6, 0.9, (2, 10)).tolist()
    found = difference(
        {"value": np.mean(ours), "accuracies": ours, "folds": 10},
        {"value": np.mean(theirs), "accuracies": theirs, "folds": 10},
    )
    assert found is not None
    naive = ttest_rel(ours, theirs).confidence_interval()
    factor = ((1 / 10 + 1 / 9) / (1 / 10)) ** 0.5
    assert found[2] - found[1] == pytest.approx(factor * (naive.high - naive.low))


def test_a_measure_without_error_tells_nothing() -> None:
    assert difference({"value": 0.5}, {"value": 0.4}) is None
    assert verdict({"results": {"trained": {"knn": {"value": 1}}, "untrained": {}}}) == []


def test_the_table_fits_80_columns() -> None:
    measured = {"features": 2048, "knn": accuracy(999, 1000)}
    measured["linear"] = {"top1": accuracy(999, 1000), "top5": accuracy(999, 1000)}
    found = {"results": dict.fromkeys(("trained", "untrained", "pixels"), measured)}
    headings, rows = card_table(found)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    assert sum(widths) + 3 * len(widths) + 1 <= 80
    assert "95 % interval (Wilson)" in spread_of(found)


def test_the_table_of_five_encoders_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measured = {"features": 2048, "linear": {"top1": accuracy(999, 1000), "top5": accuracy(4, 5)}}
    kinds = ("trained", "blend", "start", "untrained", "pixels")
    facts = {"recipe": "simclr", "data": "photos", "epoch": 5, "seed": 0}
    show_results(facts | {"results": dict.fromkeys(kinds, measured)}, "")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("[99.4–100.0]") == shown.count("[37.6–96.4]") == 5


def test_without_labels_measures_say_what_they_cannot_tell() -> None:
    start = {"neighbors_kept": 1.0, "views_found": 0.43, "effective_rank": 110.1}
    ours = {"neighbors_kept": 0.78, "views_found": 0.48, "effective_rank": 97.0}
    unlabeled = {"trained": start, "blend": ours, "start": start}
    assert best_encoder(None) == "blend"
    told, kept = verdict({"results": None, "unlabeled": unlabeled, "kept": "blend"})
    assert told.startswith("Without labels nothing tells which encoder is better")
    for words in ("78 % are", "48 % of samples", "97 dimensions"):
        assert words.replace(" %", "%") in told
    assert "average" in kept
