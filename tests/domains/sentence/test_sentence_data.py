from __future__ import annotations

import gzip
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unremix.domains.sentence import dataset as module
from unremix.domains.sentence import pydocs, text_files
from unremix.domains.sentence.corpus import EncodedCorpus, batches
from unremix.domains.sentence.dataset import (
    SentenceData,
    build_vocabulary,
    encode_sentences,
    load_sentences,
)
from unremix.domains.sentence.text_files import guess_format, read_lines, split_prose
from unremix.domains.sentence.tokens import Vocabulary, tokenize

TEXT = "The cat sat.\nIt purred.\n\nA dog barked!\nThe cat sat.\nWho knows?\n"


def write(path: Path, text: str | bytes = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(data: SentenceData) -> list[tuple[str, int]]:
    return [(sentence.text, sentence.document) for sentence in data]


def sizes(data: SentenceData) -> tuple[int, int]:
    """Sentences and documents."""
    documents = [sentence.document for sentence in data]
    return len(documents), len(set(documents))


def texts(data: SentenceData) -> list[str]:
    return [sentence.text for sentence in data]


# ---- tokens ----


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat's hat.", ["the", "cat", "'s", "hat", "."]),
        ("I don't; we'll", ["i", "do", "n't", ";", "we", "'ll"]),
        ("does n 't", ["does", "n't"]),
        ("well-known", ["well", "-", "known"]),
        ("wait... no -- never", ["wait", "...", "no", "--", "never"]),
        ("wait… no — never", ["wait", "...", "no", "--", "never"]),
        ("$2.50, 1,000 and 3.", ["$", "2.50", ",", "1,000", "and", "3", "."]),
        ("in the U.S. today", ["in", "the", "u.s.", "today"]),
        ("``quoted'' ‘x’", ['"', "quoted", '"', "'", "x", "'"]),
        ("_emphasis_ __init__", ["emphasis", "init"]),
        ("Émile naïve Ωmega", ["émile", "naïve", "ωmega"]),
        ("e\u0301tude", ["étude"]),
        ("<unk> <pad>", ["<", "unk", ">", "<", "pad", ">"]),
        (" \t\u00a0", []),
        ("", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("raw", "tokenized"),
    [
        ('"Don\'t," he said.', "`` Do n't , '' he said ."),
        ("It's the cat's.", "it 's the cat 's ."),
        ("They're (all) here; we've won!", "they 're ( all ) here ; we 've won !"),
    ],
)
def test_text_tokenized_before_gives_the_same_tokens(raw: str, tokenized: str) -> None:
    assert tokenize(raw) == tokenize(tokenized)


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_tokens_hold_no_space_and_lose_no_letter(text: str) -> None:
    tokens = tokenize(text)
    assert all(token and token.split() == [token] for token in tokens)
    again = tokenize(" ".join(tokens))
    assert [t for t in again if t.isalpha()] == [t for t in tokens if t.isalpha()]
    letters = "".join(c for c in "".join(tokens) if c.isascii() and c.isalpha())
    assert letters == "".join(c for c in text.lower() if c.isascii() and c.isalpha())


# ---- vocabulary ----


def test_vocabulary_keeps_the_most_frequent_and_breaks_ties_by_the_alphabet() -> None:
    counts = Counter({"b": 2, "a": 2, "c": 5, "z": 1, "d": 1})
    vocabulary = Vocabulary.from_counts(counts, size=4)
    assert vocabulary.words == ("<pad>", "<unk>", "c", "a", "b", "d")
    assert vocabulary.counts == (0, 1, 5, 2, 2, 1)
    assert vocabulary.counts[1] / sum(vocabulary.counts) == pytest.approx(1 / 11)
    assert vocabulary.numbered("", ["c", "z"]) == [vocabulary.words.index("c"), 1]


def test_vocabulary_survives_saving(tmp_path: Path) -> None:
    path = tmp_path / "below" / "vocabulary.txt"
    vocabulary = Vocabulary(["a", "é", "n't", "\u2028x".strip()], [4, 3, 2, 1], unknown=7)
    vocabulary.save(path)
    loaded = Vocabulary.parse(path.read_text(encoding="utf-8"), path)
    assert loaded == vocabulary
    assert loaded.counts == vocabulary.counts
    assert path.read_text(encoding="utf-8").splitlines()[:3] == ["<pad>\t0", "<unk>\t7", "a\t4"]


@pytest.mark.parametrize("text", ["", "a\t1\nb\t2\n", "<pad>\t0\n<unk>\t0\na b c\n", "x"])
def test_broken_vocabulary_files(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "vocabulary.txt", text)
    with pytest.raises(ValueError, match="word<tab>count"):
        Vocabulary.parse(path.read_text(), path)


def test_encoding_pads_cuts_and_marks_the_unknown() -> None:
    vocabulary = Vocabulary(["a", "b"])
    tokens, lengths = vocabulary.encode(["b a x", "", "a b a b", "!!"], max_length=3)
    assert tokens.tolist() == [[3, 2, 1], [1, 0, 0], [2, 3, 2], [1, 1, 0]]
    assert lengths.tolist() == [3, 1, 3, 2]
    assert tokens.dtype == lengths.dtype == torch.int64


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Vocabulary(["a", "a"]), "'a' more than once"),
        (lambda: Vocabulary(["<unk>"]), "'<unk>' more than once"),
        (lambda: Vocabulary(["a b"]), "without white space"),
        (lambda: Vocabulary(["a"], [1, 2]), "count for each of 1 words, got 2"),
        (lambda: Vocabulary.from_counts(Counter("a"), 0), "expected size"),
        (lambda: Vocabulary.from_counts(Counter(), 5), "got none"),
        (lambda: Vocabulary(["a"]).encode([]), "list of sentences"),
        (lambda: Vocabulary(["a"]).encode("a b"), "list of sentences"),
        (lambda: Vocabulary(["a"]).encode(["a"], max_length=0), "max_length"),
    ],
)
def test_wrong_vocabularies(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# ---- lines ----


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.gz", "A.TXT"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_sentences_and_documents(tmp_path: Path, name: str, end: str, mark: str) -> None:
    path = write(tmp_path / name, mark + TEXT.replace("\n", end))
    data = load_sentences(path)
    assert read(data) == [
        ("The cat sat.", 0),
        ("It purred.", 0),
        ("A dog barked!", 1),
        ("The cat sat.", 1),
        ("Who knows?", 1),
    ]
    assert data.name == path.name.split(".")[0]
    assert data.format == ("lines",)
    assert sizes(data) == (5, 2)
    assert not data.trouble


def test_blank_lines_of_any_kind_and_number_separate(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\n  \nOne.\n \t \n\n\nTwo.\nThree.\n\n\n")
    assert read(load_sentences(path)) == [("One.", 0), ("Two.", 1), ("Three.", 1)]


def test_one_sentence_without_a_line_end(tmp_path: Path) -> None:
    data = load_sentences(write(tmp_path / "a.txt", "Only one"))
    assert read(data) == [("Only one", 0)]
    corpus = encode_sentences(data, tmp_path / "cache")
    assert len(corpus) == 1
    assert corpus.batch(0, 1).tokens.shape == (1, 2)


def test_no_document_crosses_files(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "B.")
    write(tmp_path / "a.txt", "A.\n\nC.")
    assert read(load_sentences(tmp_path)) == [("A.", 0), ("C.", 1), ("B.", 2)]


def test_folders_are_searched_in_order_without_what_is_no_text(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt.gz", "a/y.gz", "c.md", ".hidden.txt", ".d/e.txt", "f.tar.gz"):
        write(tmp_path / name, f"{name}.")
    data = load_sentences(tmp_path)
    assert texts(data) == ["a/y.gz.", "a/z.txt.gz.", "b.txt."]
    assert data.name == tmp_path.name


def test_limit_takes_the_first_sentences(tmp_path: Path) -> None:
    data = load_sentences(write(tmp_path / "a.txt"), limit=3)
    assert texts(data) == ["The cat sat.", "It purred.", "A dog barked!"]
    assert sizes(data) == (3, 2)


def test_data_is_found_below_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "books" / "books.txt.gz")
    write(tmp_path / "books" / "BOOKS.tsv", "author\ttitle\n")
    monkeypatch.chdir(write(tmp_path / "elsewhere" / "x").parent)
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="UNREMIX_DATA is not set"):
        load_sentences("books")
    monkeypatch.setenv("UNREMIX_DATA", str(tmp_path))
    assert sizes(load_sentences("books")) == (5, 2)
    assert load_sentences("books").name == "books"
    with pytest.raises(FileNotFoundError, match="nothing; accepted are"):
        load_sentences("films")


# ---- bad text ----


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"Caf\xe9 au lait.\nFine.\n\xff\xfe\xfd\nCaf\xc3\xa9.\n")
    data = load_sentences(path)
    with pytest.warns(UserWarning, match="2 lines with bytes that are not UTF-8"):
        found = texts(data)
    assert found == ["Caf\ufffd au lait.", "Fine.", "\ufffd\ufffd\ufffd", "Café."]
    assert data.trouble[text_files.NOT_UTF8] == 2
    assert texts(data) == found  # warned once


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", bytes(range(256)) * 9)
    with pytest.raises(ValueError, match=r"got .*a\.txt with zero bytes"):
        texts(load_sentences(path, format="lines"))


def test_very_long_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST", 100)
    lines = ["short one.", "x" * 1000, "after it.", "y" * 100, "the end.", "é" * 101]
    data = load_sentences(write(tmp_path / "a.txt", "\n".join(lines)))
    with pytest.warns(UserWarning, match="2 lines cut after"):
        found = texts(data)
    assert [len(text) for text in found] == [10, 100, 9, 100, 8, 100]
    assert found[2] == "after it."
    assert data.trouble[text_files.CUT] == 2


@settings(max_examples=60)
@given(
    lines=st.lists(st.text("ab é\u2028", max_size=9), max_size=9),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_lines_of_any_length_lose_nothing(lines: list[str], end: str) -> None:
    import tempfile

    text = end.join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.txt", text)
        found = list(read_lines(path, Counter()))
    expected = [line.strip() for line in text.removesuffix(end).split(end)]
    assert found == (expected if text else [])


def test_sentences_of_ten_thousand_words_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "word " * 10_000 + ".\nShort one.\n")
    corpus = encode_sentences(load_sentences(path), tmp_path / "cache", max_length=30)
    assert corpus.batch(0, 2).lengths.tolist() == [30, 3]


def test_sentences_without_tokens_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One.\n____\nTwo.\n\n__\n\nThree.\n")
    corpus = encode_sentences(load_sentences(path), tmp_path / "cache")
    assert (len(corpus), corpus.documents) == (3, 2)
    assert corpus.batch(0, 3).documents.tolist() == [0, 0, 2]


@pytest.mark.parametrize("text", ["", "\n \n\n", "\ufeff"])
def test_nothing_to_read(tmp_path: Path, text: str) -> None:
    data = load_sentences(write(tmp_path / "a.txt", text))
    with pytest.warns(UserWarning, match="1 files without text"):
        assert sizes(data) == (0, 0)
    with pytest.raises(ValueError, match=r"one sentence in a .*a\.txt.*got none"):
        build_vocabulary(data)
    with pytest.raises(ValueError, match="got none"):
        encode_sentences(data, tmp_path / "cache", vocabulary=Vocabulary(["a"]))
    assert not list((tmp_path / "cache").iterdir())


def test_empty_files_among_others_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", "One.")
    data = load_sentences(tmp_path)
    with pytest.warns(UserWarning, match="1 files without text"):
        assert read(data) == [("One.", 0)]


def test_things_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"\.gz files in .*empty, found none"):
        load_sentences(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"text file, got .*a\.pdf"):
        load_sentences(write(tmp_path / "a.pdf"))
    with pytest.raises(ValueError, match="UTF-16"):
        load_sentences(write(tmp_path / "b.txt", TEXT.encode("utf-16")))
    (tmp_path / "c.gz").write_bytes(b"this is no gzip file")
    with pytest.raises(ValueError, match="whole gzip file"):
        load_sentences(tmp_path / "c.gz")
    whole = gzip.compress(os.urandom(5000).hex().encode())
    (tmp_path / "d.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="whole gzip file"):
        load_sentences(tmp_path / "d.gz")


@pytest.mark.parametrize(
    ("options", "message"), [({"format": "html"}, "'html'"), ({"limit": 0}, "limit .* at least 1")]
)
def test_wrong_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_sentences("pydocs", **options)


# ---- prose ----

PROSE = [
    "Mr. Smith went to the U.S. in May. He liked it there.",
    '"Is it so?" he asked.',
    "It was, and nobody was more surprised than the people who lived in the house. They left.",
]
SENTENCES = [
    "Mr. Smith went to the U.S. in May.",
    "He liked it there.",
    '"Is it so?" he asked.',
    "It was, and nobody was more surprised than the people who lived in the house.",
    "They left.",
]


@pytest.mark.parametrize("width", [None, 30])
def test_prose_is_split_into_sentences(tmp_path: Path, width: int | None) -> None:
    pytest.importorskip("sentencex", reason="sentencex (the extra 'text') is not installed")
    paragraphs = PROSE if width is None else [textwrap.fill(text, width) for text in PROSE]
    for name in ("a.txt", "b.txt"):
        write(tmp_path / name, "\n\n".join(paragraphs))
    data = load_sentences(tmp_path)
    assert data.format == ("prose", "prose")
    assert read(data) == [(text, number) for number in (0, 1) for text in SENTENCES]


def test_prose_without_paragraphs_is_split_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencex", reason="sentencex (the extra 'text') is not installed")
    sentences = [f"Sentence number {i} is not very long." for i in range(200)]
    monkeypatch.setattr(text_files, "PARAGRAPH", 100)
    assert list(split_prose([" ".join(sentences)])) == sentences
    assert list(split_prose(sentences)) == sentences
    pieces = list(split_prose(["word " * 50] * 20))
    assert " ".join(pieces).split() == ["word"] * 1000
    assert len(pieces) > 5


def test_prose_in_one_line_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencex", reason="sentencex (the extra 'text') is not installed")
    monkeypatch.setattr(text_files, "LONGEST", 100)
    monkeypatch.setattr(text_files, "PARAGRAPH", 300)
    sentences = [f"Sentence numéro {i} is not very long." for i in range(200)]
    data = load_sentences(write(tmp_path / "a.txt", " ".join(sentences)), format="prose")
    assert texts(data) == sentences
    unbroken = load_sentences(write(tmp_path / "b.txt", "x" * 1000), format="prose")
    assert "".join(texts(unbroken)).replace(" ", "") == "x" * 1000


def test_prose_without_the_splitter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ImportError, match=r'pip install "unremix\[text\]", or give'):
        list(split_prose(["One. Two."]))


def test_format_of_real_text() -> None:
    assert guess_format(SENTENCES) == "lines"
    assert guess_format(["the plot is thin .", "not a word of it is true", "see it !"]) == "lines"
    assert guess_format(PROSE) == "prose"
    assert guess_format(textwrap.wrap(" ".join(PROSE), 40)) == "prose"
    assert guess_format([]) == "lines"
    license = Path(__file__).parents[3] / "LICENSE"
    assert guess_format(license.read_text().splitlines()) == "prose"


def test_a_given_format_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One came. Two left.\nThree stayed. Four ran.\n")
    assert load_sentences(path).format == ("prose",)
    assert texts(load_sentences(path, format="lines")) == [
        "One came. Two left.",
        "Three stayed. Four ran.",
    ]


# ---- pydocs ----


def test_pydocs() -> None:
    data = load_sentences()
    found = list(data)
    assert data.name == "pydocs"
    assert data.topics is not None
    assert 70 <= sizes(data)[1] <= len(data.topics)
    assert 2000 <= len(found) <= 5000
    assert [s.document for s in found] == sorted(s.document for s in found)
    text = " ".join(s.text for s in found)
    assert not any(mark in text for mark in ("::=", "****", "====", ">>>", "|  ", '"'))
    assert not re.search(r"\s\*{1,2}\w+\*{1,2}\s", text)
    assert all(len(s.text.split()) >= 3 for s in found)


def test_topics_keep_their_numbers_where_one_has_no_prose(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"a": "First topic here.", "b": "x ::= y", "c": "Third topic here."}
    monkeypatch.setattr(pydocs, "topics", lambda: topics)
    data = load_sentences("pydocs")
    assert [(s.text, data.topics[s.document]) for s in data] == [
        ("First topic here.", "a"),
        ("Third topic here.", "c"),
    ]


# ---- vocabulary of a text ----


def test_vocabulary_of_a_text_equals_counting_it(tmp_path: Path) -> None:
    data = load_sentences(write(tmp_path / "a.txt"))
    counts = Counter(token for text in texts(data) for token in tokenize(text))
    vocabulary = build_vocabulary(data, size=4)
    expected = sorted(counts, key=lambda word: (-counts[word], word))[:4]
    assert vocabulary.words[2:] == tuple(expected)
    rest = counts.total() - sum(counts[word] for word in expected)
    assert vocabulary.counts[1] / sum(vocabulary.counts) == pytest.approx(rest / counts.total())


def test_rare_words_are_forgotten_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WORDS", 20)
    lines = [f"often also{i % 3} rare{i}" for i in range(200)]
    data = load_sentences(write(tmp_path / "a.txt", "\n".join(lines)))
    vocabulary = build_vocabulary(data, size=4)
    assert vocabulary.words[2:] == ("often", "also0", "also1", "also2")
    assert sum(vocabulary.counts) == 600


def test_vocabulary_is_kept_until_the_text_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write(tmp_path / "a.txt"), tmp_path / "cache"
    first = build_vocabulary(load_sentences(path), cache=cache)
    passes = []
    original = SentenceData.__iter__
    monkeypatch.setattr(
        SentenceData, "__iter__", lambda self: passes.append(self) or original(self)
    )
    assert build_vocabulary(load_sentences(path), cache=cache) == first
    assert not passes
    assert build_vocabulary(load_sentences(path), size=2, cache=cache) != first
    assert build_vocabulary(load_sentences(path, limit=1), cache=cache) != first
    assert len(passes) == 2
    write(path, TEXT + "Something new.\n")
    assert "new" in build_vocabulary(load_sentences(path), cache=cache).words
    write(path, TEXT + "Something odd.\n")  # the same size, another time
    os.utime(path, ns=(1, 1))
    assert "odd" in build_vocabulary(load_sentences(path), cache=cache).words
    assert len(passes) == 4
    assert len(list(cache.iterdir())) == 5


# ---- encoded corpus ----


@pytest.fixture
def corpus(tmp_path: Path) -> EncodedCorpus:
    data = load_sentences(write(tmp_path / "a.txt"))
    return encode_sentences(data, tmp_path / "cache", vocabulary_size=6, max_length=3)


def test_batches_equal_a_loop_over_the_text(corpus: EncodedCorpus, tmp_path: Path) -> None:
    sentences = read(load_sentences(tmp_path / "a.txt"))
    for start in range(5):
        for count in range(1, 6 - start):
            batch = corpus.batch(start, count)
            part = sentences[start : start + count]
            tokens, lengths = corpus.vocabulary.encode([text for text, _ in part], max_length=3)
            assert torch.equal(batch.tokens, tokens)
            assert torch.equal(batch.lengths, lengths)
            assert batch.documents.tolist() == [document for _, document in part]
            same = [[a == b for b, _ in part] for a, _ in part]
            assert (batch.texts[:, None] == batch.texts).tolist() == same
            assert len(batch) == count
            assert {t.dtype for t in vars(batch).values() if t is not None} == {torch.int64}


def test_equal_texts_are_equal_in_words_not_in_numbers(tmp_path: Path) -> None:
    lines = ["Yes, sir.", "yes , sir .", "Yes, madam.", "a b c d e f g h", "a b c d e f g i"]
    data = load_sentences(write(tmp_path / "a.txt", "\n".join(lines)))
    corpus = encode_sentences(data, tmp_path / "c", vocabulary=Vocabulary(["yes"]), max_length=4)
    batch = corpus.batch(0, 5)
    assert torch.equal(batch.tokens[0], batch.tokens[2])  # both unknown
    assert len(set(batch.texts[:2].tolist())) == 1
    assert len(set(batch.texts.tolist())) == 4


def test_counts_of_a_corpus(corpus: EncodedCorpus) -> None:
    kept = corpus.batch(0, 5)
    assert corpus.tokens == int(kept.lengths.sum())
    assert corpus.unknown == int((kept.tokens == 1).sum())
    assert (corpus.sentences, corpus.documents) == (5, 2)
    assert corpus.name == "a"
    assert corpus.classes is None


def test_a_large_vocabulary_takes_wider_numbers(tmp_path: Path) -> None:
    data = load_sentences(write(tmp_path / "a.txt", "w1 w69999"))
    vocabulary = Vocabulary(f"w{i}" for i in range(70_000))
    corpus = encode_sentences(data, tmp_path / "cache", vocabulary=vocabulary)
    assert corpus.batch(0, 1).tokens.tolist() == [[3, 70_001]]
    assert (corpus.folder / "tokens.bin").stat().st_size == 8


def test_text_is_encoded_once(
    corpus: EncodedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tokenize", None)
    data = load_sentences(tmp_path / "a.txt")
    again = encode_sentences(data, tmp_path / "cache", vocabulary_size=6, max_length=3)
    assert again == corpus
    monkeypatch.undo()
    other = encode_sentences(data, tmp_path / "cache", vocabulary_size=6, max_length=2)
    assert other.folder != corpus.folder
    assert other.batch(0, 1).lengths.tolist() == [2]


def test_an_interrupted_pass_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", os.urandom(10_000).hex().encode() + TEXT.encode())
    data = load_sentences(path, format="lines")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="whole gzip file"):
        encode_sentences(data, tmp_path / "cache", vocabulary=Vocabulary(["a"]))
    assert not list((tmp_path / "cache").iterdir())


def test_another_process_may_be_first(
    corpus: EncodedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = corpus.folder / "corpus.json"
    original = Path.exists
    asked: list[Path] = []

    def not_yet(self: Path, **options: bool) -> bool:
        if self == about and not asked:
            asked.append(self)
            return False
        return original(self, **options)

    monkeypatch.setattr(Path, "exists", not_yet)
    data = load_sentences(tmp_path / "a.txt")
    again = encode_sentences(data, tmp_path / "cache", vocabulary_size=6, max_length=3)
    assert asked
    assert again == corpus
    assert not list((tmp_path / "cache").glob(".*"))


def test_broken_corpora(corpus: EncodedCorpus, tmp_path: Path) -> None:
    for start, count in ((0, 6), (-1, 2), (5, 1), (2, 0)):
        with pytest.raises(ValueError, match="within the 5 sentences"):
            corpus.batch(start, count)
    with pytest.raises(ValueError, match=r"encoded corpus in .*nowhere"):
        EncodedCorpus.open(tmp_path / "nowhere", [], corpus.vocabulary)
    about = corpus.folder / "corpus.json"
    kept = about.read_text()
    for broken in ("{", "{}", kept.replace("unknown", "dropped")):
        about.write_text(broken)
        with pytest.raises(ValueError, match="remove the folder"):
            EncodedCorpus.open(corpus.folder, corpus.source, corpus.vocabulary)
    about.write_text(kept)
    for name in ("tokens.bin", "offsets.bin", "texts.bin"):
        content = (corpus.folder / name).read_bytes()
        for wrong in (content[:4], bytes(len(content)), content[::-1]):
            (corpus.folder / name).write_bytes(wrong)
            with pytest.raises(ValueError, match="remove the folder"):
                EncodedCorpus.open(corpus.folder, corpus.source, corpus.vocabulary)
        (corpus.folder / name).write_bytes(content)
    assert EncodedCorpus.open(corpus.folder, corpus.source, corpus.vocabulary) == corpus
    about.write_text(kept.replace('"documents": 2', '"documents": 3'))
    with pytest.raises(ValueError, match="as they were written"):
        EncodedCorpus.open(corpus.folder, corpus.source, corpus.vocabulary)


def test_a_corpus_can_be_handed_to_another_process(corpus: EncodedCorpus) -> None:
    again = pickle.loads(pickle.dumps(corpus))
    assert torch.equal(again.batch(1, 3).tokens, corpus.batch(1, 3).tokens)


@pytest.mark.parametrize("options", [{"max_length": 0}, {"vocabulary_size": 0}])
def test_wrong_encodings(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        encode_sentences(load_sentences("pydocs"), tmp_path, **options)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from unremix.domains.sentence.corpus import batches
        from unremix.domains.sentence.dataset import encode_sentences, load_sentences
        corpus = encode_sentences(load_sentences(sys.argv[1]), sys.argv[2])
        for start in batches(len(corpus), 400, seed=0, epoch=0).tolist():
            corpus.batch(start, 400)
        # Not ru_maxrss, which begins with what the process that started this one had.
        lines = Path("/proc/self/status").read_text().splitlines()
        print(len(corpus), dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0])
        """
    )
    text = "".join(f"{s.text}\n" for s in load_sentences("pydocs"))
    peaks = []
    for times in (4, 40):
        path = write(tmp_path / f"{times}.txt", text * times)
        command = [sys.executable, "-c", script, str(path), str(tmp_path / "cache")]
        count, peak = map(int, subprocess.check_output(command).split())
        assert count == times * len(text.splitlines())
        peaks.append(peak)
    assert peaks[1] < 1.05 * peaks[0]


# ---- batches ----


@settings(max_examples=60)
@given(
    num=st.integers(1, 300),
    batch_size=st.integers(1, 60),
    seed=st.integers(-5, 2**40),
    epoch=st.integers(0, 50),
)
def test_batches_are_runs_that_cover_everything(
    num: int, batch_size: int, seed: int, epoch: int
) -> None:
    starts = batches(num, batch_size, seed=seed, epoch=epoch).tolist()
    size = min(num, batch_size)
    seen = Counter(i for start in starts for i in range(start, start + size))
    assert set(seen) == set(range(num))
    assert len(starts) == -(-num // batch_size)
    assert sum(seen.values()) - num < batch_size
    assert starts == batches(num, batch_size, seed=seed, epoch=epoch).tolist()


def test_epochs_and_seeds_have_their_own_order() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    orders = [
        tuple(batches(4000, 10, seed=seed, epoch=epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    ]
    assert len(set(orders)) == 16
    assert all(sorted(order) == list(range(0, 4000, 10)) for order in orders)
    assert torch.equal(torch.get_rng_state(), state)
    # Every batch is as likely to come early as late.
    early = np.mean([[start < 2000 for start in order[:200]] for order in orders])
    assert early == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("num", "batch_size"), [(0, 4), (4, 0)])
def test_wrong_batches(num: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        batches(num, batch_size, seed=0, epoch=0)


# ---- the books, where they are ----


@pytest.mark.slow
def test_books() -> None:
    root = os.environ.get("UNREMIX_DATA")
    if not root or not (Path(root) / "books" / "books.txt.gz").exists():
        pytest.skip("UNREMIX_DATA names no folder with books/books.txt.gz")
    data = load_sentences("books")
    assert data.format == ("lines",)
    assert sizes(data) == (438_233, 2_458)
    lengths = [len(list(group)) for _, group in groupby(data, key=lambda s: s.document)]
    assert sum(lengths) == 438_233
