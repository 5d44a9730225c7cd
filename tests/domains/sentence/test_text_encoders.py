from __future__ import annotations

import copy
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import assert_close
from building import gradients_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from unremix.domains.sentence.encoders import BagOfWords, TransformerEncoder
from unremix.domains.sentence.gru import GRUEncoder, final_state
from unremix.domains.sentence.tokens import Vocabulary
from unremix.domains.sentence.word_vectors import (
    check_expansion,
    expand_encoder,
    expand_vocabulary,
    load_word_vectors,
    set_word_vectors,
)

V = 12
KINDS = {
    "gru": lambda: GRUEncoder(V, words=5, units=6),
    "bigru": lambda: GRUEncoder(V, words=5, units=6, bidirectional=True),
    "bag": lambda: BagOfWords(V, words=5),
    "transformer": lambda: TransformerEncoder(V, words=8, max_length=9),
}


def make(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return KINDS[kind]().double()


def random_tokens(
    lengths: list[int], seed: int = 0, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sentences of the given lengths, padded to the longest or wider."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(1, V, (length,), generator=generator)
    return tokens, torch.tensor(lengths)


# ---- every encoder ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_sentence_has_the_same_vector_in_every_batch(kind: str, mode: str) -> None:
    encoder = make(kind)
    encoder.train(mode == "train")
    tokens, lengths = random_tokens([3, 1, 7, 4, 7, 2])
    together = encoder(tokens, lengths)
    alone = torch.cat(
        [
            encoder(tokens[i : i + 1, :length], lengths[i : i + 1])
            for i, length in enumerate(lengths)
        ]
    )
    assert_close(together, alone)
    assert together.shape == (6, encoder.features)
    wider = torch.cat([tokens, torch.zeros(6, 2, dtype=torch.long)], 1)
    assert_close(encoder(wider, lengths), together)
    # Not even what stands in the padding counts.
    filled = torch.where(wider == 0, 5, wider)
    assert_close(encoder(filled, lengths), together)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    assert_close(encoder(tokens[order], lengths[order]), together[order])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_gets_no_gradient_and_used_words_do(kind: str) -> None:
    encoder = make(kind)
    tokens, lengths = torch.tensor([[3, 4, 0], [5, 0, 0]]), torch.tensor([2, 1])
    encoder(tokens, lengths).square().sum().backward()
    gradient = encoder.words.weight.grad
    assert gradient is not None
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_one_sentence_of_one_word(kind: str) -> None:
    encoder = make(kind)
    assert encoder(torch.tensor([[1]]), torch.tensor([1])).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_text_is_an_unknown_word(kind: str) -> None:
    vocabulary = Vocabulary("abcdefghij")
    encoder = make(kind).eval()
    assert_close(encoder(*vocabulary.encode([""])), encoder(*vocabulary.encode(["strange"])))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (torch.ones(2, 3).long(), torch.tensor([1, 0]), "lengths from 1 to 3, got 0 to 1"),
        (torch.ones(2, 3).long(), torch.tensor([4, 1]), "lengths from 1 to 3, got 1 to 4"),
        (torch.ones(2, 3).long(), torch.tensor([1]), r"got \(2, 3\) and \(1,\)"),
        (torch.ones(3).long(), torch.tensor([1]), r"got \(3,\)"),
        (torch.ones(0, 3).long(), torch.ones(0).long(), r"got \(0, 3\)"),
    ],
)
def test_wrong_batches(kind: str, tokens: Tensor, lengths: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind)(tokens, lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_are_those_of_quick_thought(kind: str) -> None:
    encoder = make(kind)
    assert encoder.words.weight[0].abs().max() == 0
    drawn = encoder.words.weight[1:].detach()
    assert drawn.abs().max() <= 0.1
    assert float(drawn.std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.2)


def test_encoders_say_how_large_their_output_is() -> None:
    sizes = {kind: make(kind).features for kind in KINDS}
    assert sizes == {"gru": 6, "bigru": 6, "bag": 5, "transformer": 8}
    for kind, size in sizes.items():
        assert make(kind)(*random_tokens([3, 1])).shape == (2, size)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GRUEncoder(1), "vocabulary_size .* at least 2"),
        (lambda: GRUEncoder(9, words=0), "expected words"),
        (lambda: GRUEncoder(9, units=0), "units, got 0"),
        (lambda: GRUEncoder(9, units=5, bidirectional=True), "even number of units, got 5"),
        (lambda: TransformerEncoder(9, words=6), "heads that divide"),
        (lambda: TransformerEncoder(9, max_length=0), "max_length .* at least 1"),
    ],
)
def test_wrong_sizes(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# ---- GRU ----


def by_steps(encoder: GRUEncoder, sentence: Tensor) -> Tensor:
    """One sentence through GRUCells, one word after another."""
    states = []
    for suffix, words in (("_l0", sentence), ("_l0_reverse", sentence.flip(0))):
        if not hasattr(encoder.gru, f"weight_ih{suffix}"):
            continue
        cell = nn.GRUCell(encoder.gru.input_size, encoder.gru.hidden_size).double()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(cell, name, getattr(encoder.gru, name + suffix))
        state = torch.zeros(1, encoder.gru.hidden_size, dtype=torch.float64)
        for word in words:
            state = cell(encoder.words.weight[word][None], state)
        states.append(state)
    return torch.cat(states, 1)


@pytest.mark.parametrize("kind", ["gru", "bigru"])
def test_gru_equals_cells_word_by_word(kind: str) -> None:
    encoder = make(kind)
    randomise(encoder)
    tokens, lengths = random_tokens([3, 1, 6, 6, 2], seed=1)
    expected = torch.cat(
        [by_steps(encoder, row[:n]) for row, n in zip(tokens, lengths, strict=True)]
    )
    assert_close(encoder(tokens, lengths), expected)


def randomise(encoder: nn.Module) -> None:
    """Biases too, which begin at 0."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_()


def weighted(output: Tensor) -> Tensor:
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)
    return (output * weights).sum()


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    bidirectional=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gru_equals_the_library_in_value_and_gradient(
    lengths: list[int], bidirectional: bool, seed: int
) -> None:
    encoder = make("bigru" if bidirectional else "gru", seed)
    randomise(encoder)
    tokens, sizes = random_tokens(lengths, seed, width=8)
    packed = pack_padded_sequence(
        encoder.words(tokens), sizes, batch_first=True, enforce_sorted=False
    )
    expected = torch.cat(list(encoder.gru(packed)[1]), 1)
    found = encoder(tokens, sizes)
    assert_close(found, expected)
    assert_close(encoder._by_library(tokens, sizes), expected)
    ours, theirs = (gradients_of(weighted(each), encoder) for each in (found, expected))
    for name in theirs:
        assert_close(ours[name], theirs[name])


def test_recurrence_passes_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    inputs, weight, bias = values(6, 9), values(9, 3), values(9)
    assert torch.autograd.gradcheck(
        lambda *args: final_state(args[0], [3, 2, 1], *args[1:]), (inputs, weight, bias)
    )


def test_gru_under_autocast_and_in_inference() -> None:
    encoder = make("bigru").float()
    tokens, lengths = random_tokens([3, 6, 2])
    plain = encoder(tokens, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = encoder(tokens, lengths)
        rough.float().square().sum().backward()
    torch.testing.assert_close(rough.float(), plain, rtol=0.1, atol=0.01)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(tokens, lengths), plain.detach())


def test_gru_has_the_library_s_state_dict_and_survives_copying() -> None:
    encoder = make("bigru")
    gru = nn.GRU(5, 3, bidirectional=True).double()
    gru.load_state_dict(
        {k.removeprefix("gru."): v for k, v in encoder.state_dict().items() if "gru." in k}
    )
    tokens, lengths = random_tokens([4, 2])
    packed = pack_padded_sequence(encoder.words(tokens).transpose(0, 1), lengths)
    expected = torch.cat(list(gru(packed)[1]), 1)
    assert_close(encoder(tokens, lengths), expected)
    assert_close(copy.deepcopy(encoder)(tokens, lengths), expected)


def test_bidirectional_halves_see_both_ends() -> None:
    encoder = make("bigru")
    tokens = torch.tensor([[2, 3, 4], [2, 3, 5]])
    first, second = encoder(tokens, torch.tensor([3, 3])).chunk(2, 1)
    alone = encoder(tokens[:1, :1], torch.tensor([1]))
    # Reading backwards, the first word comes last.
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(second[0], second[1])
    assert not torch.allclose(second[0], alone[0, 3:])


def test_paper_size() -> None:
    encoder = GRUEncoder(50_002, words=620, units=1200, bidirectional=True)
    assert encoder.features == 1200
    sizes = {name: tuple(p.shape) for name, p in encoder.named_parameters()}
    assert sizes["words.weight"] == (50_002, 620)
    assert sizes["gru.weight_hh_l0_reverse"] == (1800, 600)


# ---- bag of words and transformer ----


def test_bag_of_words_is_the_mean() -> None:
    encoder = make("bag")
    tokens, lengths = random_tokens([3, 1, 5])
    expected = torch.stack(
        [encoder.words.weight[row[:n]].mean(0) for row, n in zip(tokens, lengths, strict=True)]
    )
    assert_close(encoder(tokens, lengths), expected)


def test_transformer_knows_the_order_of_words_and_the_bag_does_not() -> None:
    forwards, backwards = torch.tensor([[2, 3, 4]]), torch.tensor([[4, 3, 2]])
    length = torch.tensor([3])
    bag, transformer = make("bag"), make("transformer")
    assert_close(bag(forwards, length), bag(backwards, length))
    assert not torch.allclose(transformer(forwards, length), transformer(backwards, length))


def test_transformer_refuses_what_it_has_no_places_for() -> None:
    tokens, lengths = random_tokens([10])
    with pytest.raises(ValueError, match="at most 9 words, got 10"):
        make("transformer")(tokens, lengths)


# ---- word vectors ----

VECTORS = {"the": [0.5, -1.0, 2.0], "cat": [1.5, 0.25, -3.0], "dog": [0.0, 1.0, 0.0]}


def lines_of(vectors: dict[str, list[float]]) -> str:
    return "".join(f"{w} {' '.join(map(str, v))}\n" for w, v in vectors.items())


@pytest.mark.parametrize("name", ["glove.txt", "glove.txt.gz", "words.vec", "words.vec.gz"])
def test_word_vectors_of_every_format(tmp_path: Path, name: str) -> None:
    text = ("3 3\n" if ".vec" in name else "") + lines_of(VECTORS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    rows, vectors = load_word_vectors(path, Vocabulary(["cat", "bird", "the"]))
    assert dict(zip(rows, vectors.tolist(), strict=True)) == {4: VECTORS["the"], 2: VECTORS["cat"]}


def test_word_vectors_prefer_the_exact_form_and_keep_spaces(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(
        "The 1 1\nLondon 2 2\nLONDON 3 3\nthe 4 4\n. . . 5 5\n1999 6 6\nthe 7 7\n", encoding="utf-8"
    )
    rows, vectors = load_word_vectors(path, Vocabulary(["the", "london", "1999"]))
    assert dict(zip(rows, vectors.tolist(), strict=True)) == {2: [4, 4], 3: [2, 2], 4: [6, 6]}


def test_broken_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(b"the 1 2\ncat 1 x\ndog nan 1\n\n\xff\xfe 1 2\nbird 3 4")
    with pytest.warns(UserWarning, match="left out 2 lines"):
        rows, vectors = load_word_vectors(path, Vocabulary(["the", "cat", "dog", "bird"]))
    assert rows == [2, 5]
    assert vectors[1].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "found none"), ("bird 1 2\n", "found none"), ("just words here\n", "first line")],
)
def test_files_without_vectors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_word_vectors(path, Vocabulary(["cat"]))


def test_vectors_are_put_into_an_encoder(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(lines_of(VECTORS))
    vocabulary = Vocabulary(["cat", "bird"])
    encoder = BagOfWords(len(vocabulary), words=3)
    before = encoder.words.weight.detach().clone()
    rows, vectors = load_word_vectors(path, vocabulary)
    set_word_vectors(encoder, rows, vectors)
    assert encoder.words.weight[2].tolist() == VECTORS["cat"]
    assert torch.equal(encoder.words.weight[[0, 1, 3]], before[[0, 1, 3]])
    with pytest.raises(ValueError, match="words=3"):
        set_word_vectors(BagOfWords(4, words=5), rows, vectors)


def test_expansion_recovers_an_affine_map() -> None:
    generator = torch.Generator().manual_seed(0)
    big = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    mapping = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    big_words = [f"w{i}" for i in range(40)]
    own_words = ["<pad>", "<unk>", *big_words[5:30], "mine"]
    table = torch.zeros(28, 3, dtype=torch.float64)
    table[2:27] = big[5:30] @ mapping + 0.5
    table[27] = 9
    expanded, words = expand_vocabulary(table, own_words, big, big_words)
    assert words == [*own_words, *big_words[:5], *big_words[30:]]
    assert torch.equal(expanded[:28], table)
    assert_close(expanded[28:], (big @ mapping + 0.5)[[*range(5), *range(30, 40)]])


def test_expansion_equals_scikit_learn_where_no_map_is_exact() -> None:
    random = np.random.default_rng(0)
    big, own = random.normal(size=(30, 4)), random.normal(size=(22, 3))
    big_words = [f"w{i}" for i in range(30)]
    other = LinearRegression().fit(big[:20], own[2:])
    expanded, _ = expand_vocabulary(
        torch.from_numpy(own), ["<pad>", "<unk>", *big_words[:20]], torch.from_numpy(big), big_words
    )
    assert_close(expanded[22:], torch.from_numpy(other.predict(big[20:])))


def test_expansion_keeps_special_rows_and_first_of_doubles() -> None:
    table = torch.tensor([[0.0], [7.0], [2.0], [4.0]])
    big = torch.tensor([[1.0], [2.0], [3.0], [100.0], [5.0]])
    expanded, words = expand_vocabulary(
        table, ["<pad>", "<unk>", "one", "two"], big, ["one", "two", "three", "three", "<unk>"]
    )
    assert words == ["<pad>", "<unk>", "one", "two", "three"]
    assert expanded.flatten().tolist() == pytest.approx([0, 7, 2, 4, 6])


def test_expansion_refuses_what_it_cannot_do() -> None:
    table, big = torch.zeros(4, 2), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="word for each row"):
        expand_vocabulary(table, ["<pad>", "<unk>", "a"], big, ["a", "b", "c"])
    with pytest.raises(ValueError, match="2 words in both tables, got 2"):
        expand_vocabulary(table, ["<pad>", "<unk>", "a", "b"], big, ["a", "b", "c"])


def test_an_enlarged_encoder(tmp_path: Path) -> None:
    """Both tables are mapped; capitals, phrases and what no sentence can hold are left out."""
    generator = torch.Generator().manual_seed(0)
    names = ["cat", "dog", "bird", "fish", "cow"]
    numbers = torch.randn(5, 2, generator=generator).double()
    rows = [
        " ".join([name, *map(str, row.tolist())]) for name, row in zip(names, numbers, strict=True)
    ]
    path = tmp_path / "v.txt"
    path.write_text("\n".join(["Cow 9 9", "of course 1 1", "New_York! 1 1", *rows]))
    vocabulary = Vocabulary([*names[:3], "mine"], [4, 3, 2, 1], unknown=7)
    first, second = BagOfWords(6, words=3), BagOfWords(6, words=4)
    encoder = nn.ModuleList([first, second])
    larger, words = expand_encoder(encoder, vocabulary, path)
    assert words.words == ("<pad>", "<unk>", "cat", "dog", "bird", "mine", "cow", "fish")
    assert words.counts == (0, 7, 4, 3, 2, 1, 0, 0)
    assert len(first.words.weight) == 6  # as it was
    for old, new in zip((first, second), larger, strict=True):
        table = old.words.weight.detach()
        fitted = LinearRegression().fit(numbers[:3].numpy(), table[2:5].numpy())
        expected = torch.from_numpy(fitted.predict(numbers[[4, 3]].numpy())).float()
        assert_close(new.words.weight, torch.cat([table, expected]), 1e-5)
        known, lengths = vocabulary.encode(["cat mine", "dog bird"])
        again, _ = words.encode(["cat mine", "dog bird"])
        assert_close(new(again, lengths), old(known, lengths), 1e-6)
    check_expansion(path, vocabulary)
    with pytest.raises(ValueError, match="2 words in both tables, got 1"):
        check_expansion(path, Vocabulary(["cat", "mine"]))
    path.write_text("of course 1 1")
    with pytest.raises(ValueError, match="found none"):
        expand_encoder(encoder, vocabulary, path)


def test_damaged_word_vectors_are_refused(tmp_path: Path) -> None:
    """Also a line that does not end, which a packed file can hold in a few bytes."""
    packed = gzip.compress(b"cat 1.0 2.0\n" * 1000)
    damaged = (packed[:-20], packed[:20], b"no gzip", gzip.compress(bytes(2**25)))
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}.txt.gz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"txt\.gz, got a damaged file"):
            load_word_vectors(path, Vocabulary(["cat"]))
