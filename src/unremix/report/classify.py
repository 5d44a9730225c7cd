"""A classifier from few labels: predictions for all items, their accuracy, what to label next."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unremix.console.printing import unguarded
from unremix.console.quantities import counted
from unremix.console.suggestions import did_you_mean
from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.classifier import SURE, Classified, classify_features
from unremix.files.atomic_files import read_text
from unremix.mining.embeddings import Integers
from unremix.mining.files import write_rows
from unremix.mining.groups import find_duplicates
from unremix.mining.index import make_index
from unremix.report import browse
from unremix.report.browse import Group, Item, Written, items_of, write_groups
from unremix.report.sources import Source, open_source

NAMES = ("name", "names", "file", "filename", "path", "text", "item", "id")
LABELS = ("label", "labels", "class", "class_name", "class_names", "target", "y")
NEXT = 24  # items to label next that a page shows
NAMED = 3  # wrong lines that an error names


@dataclass(frozen=True)
class Predictions:
    """What :func:`classify` gives: a prediction for each of n items.

    Args:
        names: What each item is called.
        classes: The names of the C classes, in order.
        given: The number of each item's class where it was labeled, else -1, shape (n,).
        found: Probabilities, and how good they are.
        leaked: Whether each of the m labeled items has a near-duplicate among those that the
            classifier that predicted it was trained on, shape (m,).
    """

    names: list[str]
    classes: list[str]
    given: Integers
    found: Classified
    leaked: NDArray[np.bool_]

    @property
    def accuracy(self) -> Accuracy:
        """How often labeled items are predicted right by a classifier that has not seen them."""
        return self.found.accuracy

    @property
    def predicted(self) -> list[str]:
        """The likeliest class of each item."""
        return [self.classes[one] for one in self.found.probabilities.argmax(1)]

    @property
    def label_next(self) -> list[int]:
        """The unlabeled items, those first whose two likeliest classes are closest together."""
        order = np.argsort(self.found.margin, kind="stable")
        return order[self.given[order] < 0].tolist()  # type: ignore[no-any-return]

    @property
    def contradicted(self) -> list[int]:
        """Labeled items to which a classifier that had not seen them gives another class surely."""
        held_out, known = self.found.held_out, np.flatnonzero(self.given >= 0)
        wrong = (held_out.argmax(1) != self.given[known]) & (held_out.max(1) >= SURE)
        order = np.argsort(-held_out.max(1), kind="stable")
        return known[order[wrong[order]]].tolist()  # type: ignore[no-any-return]

    def certainty(self, row: int) -> str:
        """How far an item's likeliest class is ahead of its second."""
        second, first = np.argsort(self.found.probabilities[row], kind="stable")[-2:]
        return f"{self.classes[first]} {self.found.margin[row]:.1%} ahead of {self.classes[second]}"

    def summary(self) -> list[str]:
        """How good the classifier is, a sentence each."""
        found, labeled = self.found, int((self.given >= 0).sum())
        outer, inner = found.folds
        says = [
            f"Trained on {counted(labeled, 'label')} of {len(self.classes)} classes: logistic "
            f"regression with C = {found.strength:g}, chosen by cross-validation.",
            f"Accuracy {found.accuracy} on labeled items that it had not seen, by {outer} folds; "
            f"in each, {inner} other folds chose C. To guess the most frequent class is right in "
            f"{100 * found.most_frequent:.1f} %.",
        ]
        count = int(self.leaked.sum())
        if count:
            truth = self.given[self.given >= 0]
            rest = torch.from_numpy(found.held_out.argmax(1) == truth)[~self.leaked]
            others = f", {Accuracy.of(rest)} without them" if len(rest) else ""
            says.append(
                f"{count:,} of these items have a near-duplicate in another fold, so this may be "
                f"too high{others}: label one of each."
            )
        if found.sure is not None:
            says.append(
                f"Where it gives a class {100 * SURE:.0f} % or more, it was right in {found.sure}, "
                f"{found.sure.count} of these items."
            )
        wrong = len(self.contradicted)
        if wrong:
            says.append(
                f"{counted(wrong, 'label')} of yours differ{'s' * (wrong == 1)} from what it "
                f"surely predicts: look whether {'it is' if wrong == 1 else 'they are'} wrong."
            )
        return says


def classify(
    labels: str | Path | Mapping[str, str],
    source: str | None = None,
    *,
    encoder: str | None = None,
    data: str | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    domain: str | None = None,
    trust: bool = False,
) -> Predictions:
    """Train a classifier on few labels, measure it, and predict all items.

    Args:
        labels: A .csv or .tsv file with a name and a label on each line; or labels by name.
        source: A run's folder, a file of embeddings, or data for ``encoder``.
        encoder: A ready encoder by name, in place of a run.
        data: What to classify; by default the run's own data.
        output: A .csv file to write the predictions to; a page is written beside it.
        seed: Draws the folds.
        domain: What kind of data it is, if neither the run nor the encoder's name says so.
        trust: Whether code may run that the run's folder names.

    Returns:
        The predictions, with their probabilities, the accuracy, and what to label next.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: For labels of items that do not exist or stand twice, of a single class, or of
            fewer than three items of a class.

    Example:
        ``unremix.classify("labels.csv", "photos", encoder="timm:resnet18").predicted``
    """
    found = open_source(source, encoder=encoder, data=data, domain=domain, trust=trust)
    predictions = _predict(found, labels, seed)
    if output is not None:
        _write(found, predictions, Path(output))
    return predictions


def write_classified(
    source: Source, labels: str | Path, output: str | None = None, seed: int = 0
) -> Written:
    """Predict all items of a source, and write the table and the page."""
    path = source.folder / "predictions.csv" if output is None else Path(output)
    if path.suffix != ".csv":
        raise ValueError(f"expected an output that ends in .csv, got {str(path)!r}; change it")
    return _write(source, _predict(source, labels, seed), path)


def _predict(source: Source, labels: str | Path | Mapping[str, str], seed: int) -> Predictions:
    where = "the labels" if isinstance(labels, Mapping) else str(labels)
    lines = _label_pairs(labels) if isinstance(labels, Mapping) else _label_lines(Path(labels))
    by_row = _rows_of(source, lines, where)
    classes = sorted(set(by_row.values()))
    given = np.full(len(source.names), -1, dtype=np.int64)
    for row, label in by_row.items():
        given[row] = classes.index(label)
    found = classify_features(
        source.features.embeddings, torch.from_numpy(given), classes=classes, seed=seed
    )
    return Predictions(source.names, classes, given, found, _leaked(source, given, found.fold))


def _leaked(source: Source, given: Integers, fold: Integers) -> NDArray[np.bool_]:
    """Which labeled items have a near-duplicate in another fold, shape (m,)."""
    units = source.units[given >= 0]
    leaked = np.zeros(len(units), dtype=bool)
    for group in find_duplicates(make_index(units), units).groups:
        leaked[group] = len(np.unique(fold[group])) > 1
    return leaked


def _label_pairs(labels: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Number, from 1, name and label of each item.

    Raises:
        TypeError: For labels that are no text, such as numbers or a missing value.
    """
    for number, (name, label) in enumerate(labels.items(), start=1):
        if not isinstance(label, str):
            raise TypeError(
                f"expected text as each label, got {label!r} for {name!r}; give its class's name"
            )
        yield number, name, label


def _label_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number, from 1, name and label of each line of a file but its heading and empty ones."""
    if not path.is_file():
        raise FileNotFoundError(f"expected labels at {str(path)!r}, found no file")
    text = read_text(path).removeprefix("\ufeff")
    separator = next((one for one in "\t,;" if one in text.partition("\n")[0]), ",")
    cells = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    rows = [list(map(unguarded, row)) for row in cells]
    heading = [cell.strip().lower() for cell in rows[0]] if rows else []
    columns = [next((n for n, c in enumerate(heading) if c in w), -1) for w in (NAMES, LABELS)]
    has_heading = min(columns) >= 0
    name, label = columns if has_heading else (0, 1)
    for number, row in enumerate(rows, start=1):
        if (number == 1 and has_heading) or not any(cell.strip() for cell in row):
            continue
        if len(row) <= max(name, label):
            raise ValueError(
                f"expected a name and a label in line {number} of {path}, got {row}; separate them "
                "by a comma or a tab"
            )
        yield number, row[name].strip(), row[label].strip()


def _rows_of(source: Source, lines: Iterator[tuple[int, str, str]], where: str) -> dict[int, str]:
    """The label of each labeled row.

    Raises:
        ValueError: For names of no item, and for items that stand twice.
    """
    found: dict[int, str] = {}
    first: dict[int, int] = {}
    unknown, twice = [], []
    for number, name, label in lines:
        if not label:
            continue
        row = source.row_of(name)
        if row < 0 and name.startswith("'"):  # as it is written for spreadsheets
            row = source.row_of(name[1:])
        if row < 0:
            unknown.append((number, name))
        elif row in found:
            twice.append(f"{name!r} in lines {first[row]} and {number}")
        else:
            found[row], first[row] = label, number
    if unknown:
        number, name = unknown[0]
        more = f" and {len(unknown) - 1:,} more" if unknown[1:] else ""
        hint = did_you_mean(name, source.names) or f"; names are such as {source.names[0]!r}"
        raise ValueError(
            f"expected names of {source.unit} of {source.of} in {where}, got {name!r} in line "
            f"{number}{more}, which names none{hint}; a heading is 'name,label'"
        )
    if twice:
        more = f" and {len(twice) - NAMED} more" if twice[NAMED:] else ""
        raise ValueError(
            f"expected each item once in {where}, got {', '.join(twice[:NAMED])}{more}; leave one "
            "of the lines out"
        )
    return found


def _write(source: Source, predictions: Predictions, path: Path) -> Written:
    """The table of predictions, and a page of them."""
    found, classes, predicted = predictions.found, predictions.classes, predictions.predicted
    rank = {row: n for n, row in enumerate(predictions.label_next, start=1)}
    columns = ["name", "label", "predicted", "probability", "margin", "label_next"]
    columns += [f"probability of {name}" for name in classes]
    rows: list[dict[str, Any]] = []
    for row, name in enumerate(predictions.names):
        given, chances = int(predictions.given[row]), found.probabilities[row].tolist()
        label, ahead = "" if given < 0 else classes[given], float(found.margin[row])
        cells = [name, label, predicted[row], max(chances), ahead, rank.get(row), *chances]
        rows.append(dict(zip(columns, cells, strict=True)))
    write_rows(path, rows, columns)
    summary = predictions.summary()
    write_groups(
        source, path.with_suffix(".html"), "Predictions", summary, _groups(source, predictions)
    )
    following = predictions.label_next[: browse.LISTED]
    named = [f"  {source.names[row]}: {predictions.certainty(row)}" for row in following]
    listed = ["Least certain, to label next:", *named] if named else []
    return Written(path.with_suffix(".html"), path, summary, listed)


def _groups(source: Source, predictions: Predictions) -> list[Group]:
    """What to label next, labels to look at, and the surest items of each class."""
    found, predicted = predictions.found, predictions.predicted
    chance = found.probabilities.max(1)

    def likeliest(row: int) -> str:
        return f"{predicted[row]} {chance[row]:.0%}"

    def group(title: str, rows: list[int], says: Callable[[int], str] = likeliest) -> Group:
        items = [
            Item(item.name, item.image, says(row))
            for row, item in zip(rows, items_of(source, rows), strict=True)
        ]
        return Group(title, title, items)

    groups = []
    if predictions.label_next:
        following = predictions.label_next[:NEXT]
        groups.append(group("Label next: the least certain", following, predictions.certainty))
    if predictions.contradicted:
        wrong = predictions.contradicted[: browse.SHOWN_MEMBERS]
        groups.append(group("Labels that differ from a sure prediction", wrong))
    order = np.argsort(-chance, kind="stable")
    for number, name in enumerate(predictions.classes[: browse.SHOWN_GROUPS]):
        rows = order[found.probabilities[order].argmax(1) == number].tolist()
        unlabeled = [row for row in rows if predictions.given[row] < 0]
        title = f"{name}: {counted(len(rows), 'item')} predicted, {len(unlabeled):,} not labeled"
        groups.append(group(title, unlabeled[: browse.SHOWN_MEMBERS]))
    return groups
