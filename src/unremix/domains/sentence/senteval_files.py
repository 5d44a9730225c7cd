"""The files of the SentEval tasks, read as they are distributed.

Each task is read into splits of one or two sentences and a target per example, in the order that
SentEval gives them before it draws its folds (by length, then target), so that the folds are the
same here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from unremix.console.suggestions import did_you_mean
from unremix.files.locate import candidates

BLANK = "."  # what SentEval's own examples hand to an encoder in place of an empty line

BINARY = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
TREC = ("train_5500.label", "TREC_10.label")
MRPC = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
SICK = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
TASKS = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC", "SICK")
ALSO = {"MSRP": "MRPC", "SICKRelatedness": "SICK"}  # other names in use

QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")  # TREC's coarse classes
LARGEST_FILE = 2**23  # bytes; the largest of SentEval's has 1.3 million
BINS = 5  # SICK's relatedness runs from 1 to 5

SplitName = Literal["train", "dev", "test"]


@dataclass(frozen=True)
class Examples:
    """n examples of a task.

    Args:
        first: A sentence each, its words separated by single spaces.
        second: For tasks on pairs the other sentence, else None.
        targets: Classes from 0 as int64 or, for SICK, relatedness as float64; shape (n,).
    """

    first: list[str]
    second: list[str] | None
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def sentences(self) -> list[str]:
        """All sentences, those of ``second`` last."""
        return self.first + (self.second or [])


Splits = dict[SplitName, Examples]


def canonical_name(task: str) -> str:
    """The task's name in SentEval.

    Raises:
        ValueError: If there is no such task.

    Example:
        >>> canonical_name("MSRP")
        'MRPC'
    """
    name = ALSO.get(task, task)
    if name in TASKS:
        return name
    raise ValueError(
        f"expected a task among {', '.join(TASKS)}, got {task!r}{did_you_mean(task.upper(), TASKS)}"
    )


def find_folder(root: str | Path) -> Path:
    """The folder that holds the folders of the tasks: the root, or ``downstream`` below it.

    A relative path that does not exist is looked up below UNREMIX_DATA.

    Args:
        root: SentEval's ``data`` or ``data/downstream`` folder, or one named ``senteval``.

    Raises:
        FileNotFoundError: If no folder of a task is there.
    """
    places = [
        start / below
        for start in candidates(root)
        for below in ("", "downstream", "senteval/downstream")
    ]
    for place in places:
        if any((place / task).is_dir() for task in TASKS):
            return place
    raise FileNotFoundError(
        f"expected folders like CR and TREC in {' or '.join(map(str, places))}, found none; "
        "name the folder 'downstream' that SentEval's get_transfer_data.bash fills"
    )


def read_task(folder: Path, task: str) -> Splits:
    """Read a task, one of ``TASKS``, from the folder that :func:`find_folder` gives.

    MR, CR, SUBJ and MPQA have one split, ``train``; class 1 is the first file (positive,
    objective), and an empty line is the sentence ``.``. TREC and MRPC also have ``test``, SICK
    ``dev`` and ``test``.

    Raises:
        FileNotFoundError: If a file of the task is missing.
        ValueError: If a file is empty, or a line does not have the task's form.
    """
    below = folder / task
    if task in BINARY:
        return {"train": _read_binary(*(below / name for name in BINARY[task]))}
    if task == "TREC":
        return {"train": _read_trec(below / TREC[0]), "test": _read_trec(below / TREC[1])}
    if task == "MRPC":
        return {"train": _read_mrpc(below / MRPC[0]), "test": _read_mrpc(below / MRPC[1])}
    train, dev, test = (_read_sick(below / name) for name in SICK)
    return {"train": train, "dev": dev, "test": test}


def _lines(path: Path) -> list[str]:
    """The lines of a file; Latin-1 if they are not UTF-8."""
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the file {path}, found none; SentEval's get_transfer_data.bash makes it"
        )
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(
            f"expected at most {LARGEST_FILE:,} bytes in {path}, got {path.stat().st_size:,}; "
            "SentEval's own files are far smaller: fetch it again"
        )
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    # Not str.splitlines, which also splits at characters that occur inside sentences.
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        del lines[-1]
    if not lines:
        raise ValueError(f"expected lines of text in {path}, got an empty file")
    return lines


def _clean(sentence: str) -> str:
    return " ".join(sentence.split())


def _ordered(examples: list[tuple[str, str | None, float]], kind: type) -> Examples:
    """By length of the first sentence, then of the second, then target; else as in the file."""
    examples = sorted(
        examples,
        key=lambda example: (len(example[0].split()), len((example[1] or "").split()), example[2]),
    )
    second = [other or BLANK for _, other, _ in examples if other is not None]
    return Examples(
        [first or BLANK for first, _, _ in examples],
        second or None,
        np.array([target for _, _, target in examples], dtype=kind),
    )


def _read_binary(positive: Path, negative: Path) -> Examples:
    examples: list[tuple[str, str | None, float]] = [
        (_clean(line), None, label)
        for path, label in ((positive, 1), (negative, 0))
        for line in _lines(path)
    ]
    return _ordered(examples, np.int64)


def _parsed(
    path: Path,
    parse: Callable[[str], tuple[str, str | None, float]],
    form: str,
    *,
    header: str | None = None,
) -> list[tuple[str, str | None, float]]:
    """Every line through ``parse``, which raises ValueError or IndexError if it cannot."""
    lines = _lines(path)
    if header is not None and not lines[0].startswith(header):
        raise ValueError(
            f"expected {path} to begin with a header line '{header} …', got {lines[0][:60]!r}"
        )
    examples = []
    for number, line in enumerate(lines[header is not None :], start=1 + (header is not None)):
        try:
            examples.append(parse(line))
        except (ValueError, IndexError):
            raise ValueError(
                f"expected {form} in line {number} of {path}, got {line[:80]!r}; "
                "fetch the file again, or remove the line"
            ) from None
    if not examples:
        raise ValueError(f"expected examples in {path}, got only its header")
    return examples


def _read_trec(path: Path) -> Examples:
    def parse(line: str) -> tuple[str, None, float]:
        label, question = line.strip().split(" ", 1)
        return _clean(question), None, QUESTIONS.index(label.split(":")[0])

    form = f"'CLASS:kind question' with a class of {', '.join(QUESTIONS)}"
    return _ordered(_parsed(path, parse, form), np.int64)


def _read_mrpc(path: Path) -> Examples:
    def parse(line: str) -> tuple[str, str, float]:
        quality, _, _, first, second = line.strip("\n").split("\t")[:5]
        return _clean(first), _clean(second), ("0", "1").index(quality.strip())

    form = "five columns (0 or 1, two numbers, two sentences), separated by tabs,"
    return _ordered(_parsed(path, parse, form, header="Quality"), np.int64)


def _read_sick(path: Path) -> Examples:
    def parse(line: str) -> tuple[str, str, float]:
        _, first, second, score = line.strip("\n").split("\t")[:4]
        relatedness = float(score)
        if not 1 <= relatedness <= BINS:
            raise ValueError(score)
        return _clean(first), _clean(second), relatedness

    form = "a number, two sentences and a score from 1 to 5, separated by tabs,"
    return _ordered(_parsed(path, parse, form, header="pair_ID"), np.float64)


def asked_folder(asked: str) -> str | None:
    """Where SentEval's tasks are, if they are to be measured and there.

    Args:
        asked: ``none``, ``auto`` (measured if found), or the folder.

    Raises:
        FileNotFoundError: If a named folder holds no task.
    """
    if asked == "none":
        return None
    try:
        return str(find_folder("senteval" if asked == "auto" else asked))
    except FileNotFoundError:
        if asked == "auto":
            return None
        raise
