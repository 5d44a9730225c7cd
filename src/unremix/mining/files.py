"""Mining from files to files: embeddings and pairs in, triplets out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.console.printing import rows_to_csv
from unremix.console.suggestions import needed_for
from unremix.core.scores import PAPER_COMPONENTS
from unremix.files.atomic_files import open_text, write_text, write_whole
from unremix.files.bounds import sound
from unremix.mining.audit import NegativesAudit
from unremix.mining.embeddings import KEY, Integers, open_embeddings, read_columns, unit_rows
from unremix.mining.mine import Mined

OUTPUTS = (".parquet", ".csv", ".tsv", ".jsonl")
SAME = 1 - 1e-4  # the cosine of two embeddings of one sample, which may differ by rounding
SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Collection:
    """Embeddings of a file with what else it says about them.

    Args:
        path: The file, or a URL.
        embeddings: Shape (n, D).
        names: n; None if the file has none.
        texts: n; None if the file has none.
        labels: Shape (n,); None if the file has none.
        class_names: The name of each row's class, shape (n,); None if the file has none.
    """

    path: str | Path
    embeddings: NDArray[Any]
    names: list[str] | None
    texts: list[str] | None
    labels: NDArray[Any] | None
    class_names: NDArray[Any] | None = None

    @classmethod
    def read(cls, path: str | Path) -> Collection:
        """Read a file that ``unremix embed`` or NumPy wrote, by its path or URL.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is of another kind.
        """
        columns = read_columns(path)
        embeddings = open_embeddings(columns.get(KEY, path), f"the embeddings of {path}")
        for name in ("names", "texts", "labels", "class_names"):
            if name in columns and len(columns[name]) != len(embeddings):
                raise ValueError(
                    f"expected {len(embeddings)} {name} in {path}, one per row, got "
                    f"{len(columns[name])}; write the file again"
                )
        names, texts = (
            list(map(str, columns[name])) if name in columns else None
            for name in ("names", "texts")
        )
        classes = (columns.get(name) for name in ("labels", "class_names"))
        return cls(path, embeddings, names, texts, *classes)

    @property
    def shown(self) -> Sequence[str]:
        """What stands for a row in a table: its text, its name, or its number."""
        return self.texts or self.known_names

    @property
    def known_names(self) -> list[str]:
        """The names, or the number of each row as text."""
        return self.names or [str(n) for n in range(len(self.embeddings))]

    def rows_in(self, corpus: Collection) -> Integers:
        """The row of the corpus that is the same sample, shape (n,); -1 for none.

        It has the same name and the same direction: names alone may be numbers of other things.
        """
        if corpus is self:
            return np.arange(len(self.embeddings))
        own = np.full(len(self.embeddings), -1, dtype=np.int64)
        if self.names is None or corpus.names is None:
            return own
        known = corpus.row_of()
        pairs = [(n, known[name]) for n, name in enumerate(self.names) if name in known]
        if pairs:
            here, there = np.array(pairs).T
            ours, theirs = unit_rows(self.embeddings[here]), unit_rows(corpus.embeddings[there])
            same = np.einsum("nd,nd->n", ours, theirs) > SAME
            own[here[same]] = there[same]
        return own

    def row_of(self) -> dict[str, int]:
        """The first row of each name; without names, the number of each row as text."""
        return {name: row for row, name in reversed(list(enumerate(self.known_names)))}


def read_pairs(path: str | Path, anchors: Collection, corpus: Collection) -> list[list[int]]:
    """The rows of the corpus that a file pairs with each anchor.

    A line has an anchor and a row of the corpus, by name or, where the embeddings have no names, by
    number from 0; separated by tabs, by commas in a ``.csv`` file. A third column is a grade;
    TREC's four columns (query, 0, document, grade) are read too. Rows of grade 0 and below do not
    count. A heading is left out.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is of another form, or names what does not exist.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"expected pairs at {str(path)!r}, found no file")
    anchor_of, row_of = anchors.row_of(), corpus.row_of()
    rows_of: list[list[int]] = [[] for _ in anchors.embeddings]
    for number, (anchor, row, grade) in _pair_lines(path):
        if number == 1 and anchor not in anchor_of and row not in row_of:
            continue  # a heading
        for name, known, where in ((anchor, anchor_of, anchors), (row, row_of, corpus)):
            if name not in known:
                what = "names" if where.names else f"numbers 0 … {len(where.embeddings) - 1}"
                raise ValueError(
                    f"expected one of the {what} of {where.path} in line {number} of {path}, got "
                    f"{name!r}; check the columns: anchor, then row of the corpus"
                )
        if grade > 0:
            rows_of[anchor_of[anchor]].append(row_of[row])
    return rows_of


def _pair_lines(path: Path) -> Iterator[tuple[int, tuple[str, str, float]]]:
    with open_text(path) as lines:
        text = lines.readline()
        lines.seek(0)
        separator = "," if path.suffix == ".csv" else "\t" if "\t" in text else " "
        quoting: Any = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
        reader = csv.reader(lines, delimiter=separator, quoting=quoting, skipinitialspace=True)
        with sound(f"lines of pairs in {path}", "others", "check the file", csv.Error):
            rows = list(reader)
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row if cell.strip()]
        if not cells:
            continue
        if len(cells) == 4:  # TREC's: query, iteration, document, grade
            del cells[1]
        if len(cells) not in (2, 3):
            raise ValueError(
                f"expected two or three columns in line {number} of {path}, got {len(cells)}; "
                "separate anchor, row and grade by tabs"
            )
        try:
            grade = float(cells[2]) if len(cells) == 3 else 1.0
        except ValueError:
            if number == 1:
                continue
            raise ValueError(
                f"expected a grade in line {number} of {path}, got {cells[2]!r}; write a number"
            ) from None
        yield number, (cells[0], cells[1], grade)


def triplet_rows(
    mined: Mined, anchors: Collection, corpus: Collection, positives: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """One row per anchor, positive and negative; the positive is empty for an anchor without."""
    anchor_names, corpus_names = anchors.shown, corpus.shown
    for number, negatives in enumerate(mined.indices):
        for positive in [*positives[number]] or [None]:  # type: ignore[list-item]
            for place in np.flatnonzero(negatives >= 0).tolist():
                yield {
                    "anchor": anchor_names[number],
                    "positive": "" if positive is None else corpus_names[positive],
                    "negative": corpus_names[negatives[place]],
                    "score": float(mined.scores[number, place]),
                    **{
                        name: float(getattr(mined, name)[number, place])
                        for name in PAPER_COMPONENTS
                    },
                }


def check_output(path: Path) -> None:
    """Refuse a file of a kind that cannot be written, before anything is computed."""
    if path.suffix not in OUTPUTS:
        raise ValueError(
            f"expected an output that ends in {', '.join(OUTPUTS)}, got {str(path)!r}; "
            "change its ending"
        )
    if path.suffix == ".parquet":
        with needed_for("a .parquet file", "use another kind of file"):
            import pyarrow  # noqa: F401


def write_rows(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Write a table as ``.parquet``, ``.csv``, ``.tsv`` or ``.jsonl``.

    Raises:
        ValueError: For another kind of file.
        ImportError: For ``.parquet`` without pyarrow.
    """
    check_output(path)
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.table({name: [_encodable(row[name]) for row in rows] for name in columns})
        write_whole(
            path, lambda file: pyarrow.parquet.write_table(table, file, write_page_checksum=True)
        )
        return
    if path.suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        write_text(path, "".join(f"{line}\n" for line in lines))
        return
    cells = (
        [f"{value:.6g}" if isinstance(value, float) else value for value in map(row.get, columns)]
        for row in rows
    )
    write_text(path, rows_to_csv([columns, *cells], SEPARATORS[path.suffix], "\r\n"))


def _encodable(value: Any) -> Any:
    r"""A value as UTF-8 can hold it; bytes of a file's name that are no UTF-8 become ``\xff``."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def write_triplets(
    path: Path,
    mined: Mined,
    anchors: Collection,
    corpus: Collection,
    positives: Sequence[Sequence[int]],
    options: dict[str, Any],
    audit: NegativesAudit | None,
) -> Path:
    """Write the triplets, and a report of what was left out and which anchors got too few.

    The columns are anchor, positive, negative, score and the three components. Options and audit
    go into the report.

    Returns:
        The report beside the triplets, a ``.json`` file.
    """
    columns = ["anchor", "positive", "negative", "score", *PAPER_COMPONENTS]
    write_rows(path, list(triplet_rows(mined, anchors, corpus, positives)), columns)
    shown = anchors.known_names
    report = {
        "options": options,
        "anchors": len(mined.indices),
        "negatives": int(mined.found.sum()),
        "left_out": {reason: int(counts.sum()) for reason, counts in mined.left_out.items()},
        "short": {shown[n]: int(mined.found[n]) for n in mined.short.tolist()},
        "audit": None if audit is None else asdict(audit),
    }
    beside = path.with_name(f"{path.stem}.report.json")
    write_text(beside, json.dumps(report, indent=1, ensure_ascii=False))
    return beside
