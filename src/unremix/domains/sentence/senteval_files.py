"""The files of the SentEval tasks, read as they are distributed.

Each task is read into splits of one or two sentences and a target per example, in the order that
SentEval gives them before it draws its folds (by length, then target), so that the folds are the
same here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from unremix.console.suggestions import did_you_mean
from unremix.files.atomic_files import read_bytes
from unremix.files.locate import candidates

FILLS = "SentEval's get_transfer_data.bash"
BLANK = "."  # what SentEval's own examples hand to an encoder in place of an empty line

BINARY = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
STS = {  # by year; of 2013, SentEval leaves out SMT, whose sentences are not free
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
TASKS = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC", "SICK")
ALSO = {"MSRP": "MRPC", "SICKRelatedness": "SICK"}  # other names in use

QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")  # TREC's coarse classes
LARGEST_FILE = 2**23  # bytes; the largest of SentEval's has 1.3 million
BINS = 5  # SICK's relatedness runs from 1 to 5

SplitName = Literal["train", "dev", "test"]
Example = tuple[str, "str | None", float]
"""One or two sentences, and the target."""


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
    name, known = ALSO.get(task, task), (*TASKS, *STS)
    if name in known:
        return name
    hint = did_you_mean(task.upper(), known)
    raise ValueError(f"expected a task among {', '.join(known)}, got {task!r}{hint}")


def find_folder(root: str | Path) -> Path:
    """The folder that holds the folders of the tasks: the root, or ``downstream`` below it.

    A relative path that does not exist is looked up below UNREMIX_DATA.

    Args:
        root: SentEval's ``data`` or ``data/downstream`` folder, or one named ``senteval``.

    Raises:
        FileNotFoundError: If no folder of a task is there.
    """
    below = ("", "downstream", "senteval/downstream")
    places = [start / folder for start in candidates(root) for folder in below]
    for place in places:
        if any((place / task).is_dir() for task in (*TASKS, "STS")):
            return place
    looked, remedy = " or ".join(map(str, places)), f"name 'downstream', which {FILLS} fills"
    raise FileNotFoundError(f"expected folders like CR and TREC in {looked}, found none; {remedy}")


def read_task(folder: Path, task: str) -> Splits:
    """Read a task, of ``TASKS`` or ``STS``, from the folder that :func:`find_folder` gives.

    MR, CR, SUBJ and MPQA have one split, ``train``; class 1 is the first file (positive,
    objective), and an empty line is the sentence ``.``. TREC and MRPC also have ``test``, SICK
    ``dev`` and ``test``. STS12 to STS16 have ``test`` alone: pairs with a score of similarity.

    Raises:
        FileNotFoundError: If a file of the task is missing.
        ValueError: If a file is empty, or a line does not have the task's form.
    """
    if task in STS:
        below = folder / "STS" / f"{task}-en-test"
        pairs = [pair for source in STS[task] for pair in _scored_pairs(below, source)]
        if not pairs:
            raise ValueError(f"expected pairs with scores in {below}, got none; fetch it again")
        return {"test": _ordered(pairs, np.float64)}
    below = folder / task
    if task in BINARY:
        positive, negative = (_lines(below / name) for name in BINARY[task])
        examples: list[Example] = [(_clean(line), None, 1) for line in positive]
        examples += [(_clean(line), None, 0) for line in negative]
        return {"train": _ordered(examples, np.int64)}
    form = FORMS[task]
    parsed = {split: _parsed(below / name, form) for split, name in form.files.items()}
    return {split: _ordered(examples, form.kind) for split, examples in parsed.items()}


def _lines(path: Path) -> list[str]:
    """The lines of a file; Latin-1 if they are not UTF-8."""
    if not path.is_file():
        raise FileNotFoundError(f"expected the file {path}, found none; {FILLS} makes it")
    data = read_bytes(path, LARGEST_FILE)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if not text:
        raise ValueError(f"expected lines of text in {path}, got an empty file")
    # Not str.splitlines, which also splits at characters that occur inside sentences.
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _clean(sentence: str) -> str:
    return " ".join(sentence.split())


def _ordered(examples: list[Example], kind: type) -> Examples:
    """By length of the first sentence, then of the second, then target; else as in the file."""

    def order(example: Example) -> tuple[int, int, float]:
        first, second, target = example
        return len(first.split()), len((second or "").split()), target

    firsts, seconds, targets = zip(*sorted(examples, key=order), strict=True)
    pairs = [other or BLANK for other in seconds if other is not None]
    return Examples([one or BLANK for one in firsts], pairs or None, np.array(targets, dtype=kind))


def _trec(line: str) -> Example:
    label, question = line.strip().split(" ", 1)
    return _clean(question), None, QUESTIONS.index(label.split(":")[0])


def _mrpc(line: str) -> Example:
    quality, _, _, first, second = line.strip("\n").split("\t")[:5]
    return _clean(first), _clean(second), ("0", "1").index(quality.strip())


def _sick(line: str) -> Example:
    _, first, second, score = line.strip("\n").split("\t")[:4]
    relatedness = float(score)
    if not 1 <= relatedness <= BINS:
        raise ValueError(score)
    return _clean(first), _clean(second), relatedness


@dataclass(frozen=True)
class Form:
    """How the files of a task look."""

    files: dict[SplitName, str]
    parse: Callable[[str], Example]  # raises ValueError or IndexError if it cannot
    line: str  # what a line holds, in words
    header: str = ""  # what the first line begins with, if that is no example
    kind: type = np.int64  # of the targets


FORMS = {
    "TREC": Form(
        {"train": "train_5500.label", "test": "TREC_10.label"},
        _trec,
        f"'CLASS:kind question' with a class of {', '.join(QUESTIONS)}",
    ),
    "MRPC": Form(
        {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
        _mrpc,
        "five columns (0 or 1, two numbers, two sentences), separated by tabs,",
        header="Quality",
    ),
    "SICK": Form(
        {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"},
        _sick,
        "a number, two sentences and a score from 1 to 5, separated by tabs,",
        header="pair_ID",
        kind=np.float64,
    ),
}


def _parsed(path: Path, form: Form) -> list[Example]:
    """The examples of a file."""
    lines = _lines(path)
    if not lines[0].startswith(form.header):
        header = f"a header line '{form.header} …'"
        raise ValueError(f"expected {path} to begin with {header}, got {lines[0][:60]!r}")
    examples, first = [], int(bool(form.header))
    for number, line in enumerate(lines[first:], start=1 + first):
        try:
            examples.append(form.parse(line))
        except (ValueError, IndexError):
            where, got = f"line {number} of {path}", f"{line[:80]!r}; fetch the file again"
            raise ValueError(f"expected {form.line} in {where}, got {got}") from None
    if not examples:
        raise ValueError(f"expected examples in {path}, got only its header")
    return examples


def _scored_pairs(folder: Path, source: str) -> list[Example]:
    """The pairs of one source of an STS task that have a score."""
    texts, gold = (_lines(folder / f"STS.{part}.{source}.txt") for part in ("input", "gs"))
    pairs: list[Example] = []
    for number, (text, score) in enumerate(zip_longest(texts, gold), start=1):
        try:
            first, second = text.split("\t")[:2]
            if score.strip():
                pairs.append((_clean(first), _clean(second), float(score)))
        except (AttributeError, ValueError):
            what = "two sentences, separated by a tab, and their score"
            where = f"line {number} of STS.input.{source}.txt and STS.gs.{source}.txt in {folder}"
            got = f"{str(text)[:80]!r} and {str(score)[:20]!r}; fetch the files again"
            raise ValueError(f"expected {what} in {where}, got {got}") from None
    return pairs


def asked_folder(asked: str) -> str | None:
    """Where SentEval's tasks are, if they are to be measured and there.

    Args:
        asked: ``none``, ``auto`` (measured if found), or the folder.

    Raises:
        FileNotFoundError: If a named folder holds no task.
    """
    if asked not in ("none", "auto"):
        return str(find_folder(asked))
    with suppress(FileNotFoundError):
        return str(find_folder("senteval")) if asked == "auto" else None
    return None
