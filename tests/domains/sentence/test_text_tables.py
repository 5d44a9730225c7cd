"""Texts with labels from tables and JSON lines, and runs and pages of them."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import unremix
from unremix.domains.sentence import text_files
from unremix.domains.sentence.dataset import load_sentences

ROWS = [
    ("The cat, it sat.", "pets"),
    ("A dog ran\nhome.", "pets"),
    ("Stocks fell.", "money"),
    ("Dogs bark.", "pets"),
    ("Banks lend.", "money"),
    ("“Füchse” jagen.", "pets"),
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
        return path
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_texts_and_topics_are_those_of_the_rows(tmp_path: Path, suffix: str) -> None:
    rows = [{"id": place, "text": text, "topic": label} for place, (text, label) in enumerate(ROWS)]
    data = load_sentences(write(tmp_path / f"mail.{suffix}", rows))
    assert data.name == "mail"
    assert data.topics == ("money", "pets")
    assert [(one.text, data.topics[one.document]) for one in data] == ROWS
    blocks = [document for document, _ in groupby(one.document for one in data)]
    assert len(blocks) == 5  # documents: consecutive rows of a label


def test_columns_are_chosen_by_name_and_labels_left_out(tmp_path: Path) -> None:
    rows = [{"body": f"no {text}", "says": text, "class": label} for text, label in ROWS]
    path = write(tmp_path / "mail.csv", rows)
    asked = load_sentences(path, text="says", label="none")
    assert [one.text for one in asked] == [text for text, _ in ROWS]
    assert asked.topics is None
    assert len({one.document for one in asked}) == 1
    assert next(one.text for one in load_sentences(path)) == "no The cat, it sat."
    assert asked.key() != load_sentences(path).key()


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        ("a,b\n1,2\n", {}, "column of texts .* got a, b"),
        ("text,label\nHi,\nHo,x\n", {}, "a label for each text"),
        ("text,label\nHi,a\nHo,b\nHe,c\n", {}, "3 in 3 rows"),
        ("text\nHi, you\n", {}, "line 2 .*quotation marks"),
        ("text\nHi\n", {"text": "txet"}, "did you mean 'text'"),
        ("text\nHi\n", {"format": "lines"}, r"no format for .*wrong\.csv, got 'lines'"),
    ],
)
def test_wrong_tables_are_named(
    tmp_path: Path, text: str, named: dict[str, str], message: str
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        list(load_sentences(path, **named))


def test_lines_that_are_no_objects_are_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text('{"text": "fine"}\n["no"]\n')
    with pytest.raises(ValueError, match="line 2"):
        list(load_sentences(path))


@pytest.mark.parametrize(
    ("suffix", "kinds"),
    [
        (".csv", ["sentence", "vectors"]),
        (".tsv", ["sentence"]),
        (".jsonl", ["graph", "sentence"]),
    ],
)
def test_a_table_of_texts_is_not_taken_for_another_kind(
    suffix: str, kinds: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / f"x{suffix}", [{"text": text, "topic": topic} for text, topic in ROWS])
    expected = f"looks like {' or '.join(kinds)} data; add --domain {' or --domain '.join(kinds)}$"
    with pytest.raises(ValueError, match=expected):
        unremix.train(data=str(path), progress=False, runs=str(tmp_path))
    assert not text_files.recognizes(str(write(tmp_path / f"n{suffix}", [{"text": 3, "a": 4}])))
    assert not text_files.recognizes(str(tmp_path / f"gone{suffix}"))
