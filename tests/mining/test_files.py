"""Mining from files to files, on the command line."""

from __future__ import annotations

import csv
import io
import json
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import in_child

from unremix import mine_hard_negatives
from unremix.cli import main
from unremix.mining.embeddings import read_columns
from unremix.mining.files import Collection, read_pairs, write_rows
from unremix.training.embedding import _write_csv, _write_parquet


def test_parquet_columns_that_are_not_wanted_are_not_converted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"embeddings": ["x", "y"], "labels": [1, 2]})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert read_columns(tmp_path / "x.parquet", ["labels"])["labels"].tolist() == [1, 2]
    with pytest.raises(
        ValueError, match=r"expected an array .names. in .*, got embeddings, labels"
    ):
        read_columns(tmp_path / "x.parquet", ["names"])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Eight questions and sixty documents, the first eight of which answer them."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    corpus = generator.standard_normal((60, 8)).astype(np.float32)
    anchors = corpus[:8] + 0.4 * generator.standard_normal((8, 8)).astype(np.float32)
    names = np.array([f"d{n}" for n in range(60)])
    labels = np.arange(60) % 8
    np.savez("c.npz", embeddings=corpus, names=names, labels=labels)
    np.savez("a.npz", embeddings=anchors, names=np.array([f"q{n}" for n in range(8)]),
             labels=np.arange(8))  # fmt: skip
    Path("pairs.tsv").write_text("".join(f"q{n}\td{n}\n" for n in range(8)))
    return {"anchors": anchors, "corpus": corpus}


def test_a_table_of_embeddings_is_read_to_the_bit(tmp_path: Path) -> None:
    """What 'embed -o FILE.csv' writes, 'mine' reads: names with commas, labels, every number."""
    generator = np.random.default_rng(0)
    arrays = {
        "embeddings": generator.standard_normal((5, 3)).astype(np.float32),
        "names": np.array(["a", "b, c", 'd"e', "f\ng", "ü"]),
        "labels": np.arange(5),
        "class_names": np.array(list("vwxyz")),
    }
    _write_csv(tmp_path / "e.csv", arrays)
    found = Collection.read(tmp_path / "e.csv")
    np.testing.assert_array_equal(found.embeddings, arrays["embeddings"])
    assert found.names == arrays["names"].tolist()
    np.testing.assert_array_equal(found.labels, arrays["labels"])
    assert list(read_columns(tmp_path / "e.csv", ["embeddings"])) == ["embeddings"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names,embedding_0\na,1\nb,x\n", "with 1 numbers .*in line 3 of "),
        ("names,embedding_0\na\n", "2 cells .* in line 2 of .*, got 1 cells"),
        ("names,score\na,1\n", "array 'embeddings' in .*, got names, score"),
    ],
)
def test_broken_tables_of_embeddings_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        Collection.read(tmp_path / "e.csv")


def test_the_command_takes_tables(files: dict[str, Any], tmp_path: Path) -> None:
    """The same triplets from .csv as from .npz."""
    for name in ("a", "c"):
        _write_csv(tmp_path / f"{name}.csv", dict(np.load(f"{name}.npz")))
    command = "mine --positives pairs.tsv -k 4 --pool 20"
    assert main(f"{command} --anchors a.npz --corpus c.npz -o npz.tsv".split()) == 0
    assert main(f"{command} --anchors a.csv --corpus c.csv -o csv.tsv".split()) == 0
    assert Path("csv.tsv").read_text() == Path("npz.tsv").read_text()


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "jsonl"])
def test_the_command_writes_what_the_function_finds(
    files: dict[str, Any], ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "mine --anchors a.npz --corpus c.npz --positives pairs.tsv -k 4 --pool 20 -o"
    assert main([*command.split(), f"out.{ending}"]) == 0
    shown = capsys.readouterr().out
    mined = mine_hard_negatives(files["anchors"], files["corpus"], np.arange(8), 4, pool=20)
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table("out.parquet").to_pylist()
    elif ending == "jsonl":
        rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    else:
        with open(f"out.{ending}", newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="," if ending == "csv" else "\t"))
    found = [(row["anchor"], row["positive"], row["negative"]) for row in rows]
    expected = [(f"q{n}", f"d{n}", f"d{row}") for n in range(8) for row in mined.indices[n]]
    assert found == expected
    for name in ("similarity", "uncertainty", "representativeness"):
        values = [float(row[name]) for row in rows]
        np.testing.assert_allclose(values, getattr(mined, name).reshape(-1), rtol=1e-4)
    report = json.loads(Path("out.report.json").read_text())
    assert report["negatives"] == 32
    assert report["left_out"]["positive"] == 8
    assert report["audit"]["anchors"] == 8  # both files have labels
    assert "32 negatives for 8 anchors" in shown
    assert "false negatives" in shown
    assert not list(Path().glob("*.partial"))


def test_anchors_without_a_positive_are_counted(
    files: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pairs.tsv").write_text("q0\td0\nq5\td5\n")
    assert (
        main(
            [
                "mine",
                "--anchors",
                "a.npz",
                "--corpus",
                "c.npz",
                "--positives",
                "pairs.tsv",
                "-k",
                "4",
            ]
        )
        == 0
    )
    assert "6 of 8 anchors have no positive" in capsys.readouterr().out


def test_judgements_and_short_anchors(
    files: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("grades.txt").write_text("q0 0 d0 1\nq0 0 d9 2\nq1 0 d1 0\n")  # TREC's columns
    command = "mine --anchors a.npz --corpus c.npz --positives pairs.tsv -k 70 --pool 70"
    assert main([*command.split(), "--judgements", "grades.txt", "--relative_margin", "null"]) == 0
    report = json.loads(Path("triplets.report.json").read_text())
    assert report["short"] == {f"q{n}": 59 for n in range(8)}
    assert report["audit"]["false_negative_rate"] == pytest.approx(1 / 59 / 8)
    assert "fewer than 70 negatives for 8 anchors" in capsys.readouterr().out


def test_a_corpus_of_the_anchors_leaves_each_out(files: dict[str, Any]) -> None:
    Path("own.tsv").write_text("anchor\tpositive\nd0\td8\n")
    assert (
        main(["mine", "--anchors", "c.npz", "--positives", "own.tsv", "-k", "3", "-o", "out.csv"])
        == 0
    )
    with open("out.csv", newline="") as lines:
        assert all(row["negative"] != row["anchor"] for row in csv.DictReader(lines))
    assert json.loads(Path("out.report.json").read_text())["left_out"]["own_row"] == 60


def test_the_same_name_means_the_same_sample_only_with_its_embedding(
    files: dict[str, Any],
) -> None:
    names = np.array(["d5", "d6"])
    rows = np.stack([files["corpus"][5] * 2, files["corpus"][7]])
    np.savez("some.npz", embeddings=rows, names=names)
    some, corpus = Collection.read("some.npz"), Collection.read("c.npz")
    assert some.rows_in(corpus).tolist() == [5, -1]


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_pairs_in_several_forms(files: dict[str, Any], ending: str) -> None:
    separator = "," if ending == "csv" else "\t"
    lines = ["anchor|positive|grade", "q0|d3|1", "q0|d4|0", "", "q2|d5|2"]
    Path(f"p.{ending}").write_text("\n".join(lines).replace("|", separator))
    anchors, corpus = Collection.read("a.npz"), Collection.read("c.npz")
    assert read_pairs(f"p.{ending}", anchors, corpus) == [[3], [], [5], [], [], [], [], []]
    np.save("plain.npy", files["corpus"])
    plain = Collection.read("plain.npy")
    Path("numbers.tsv").write_text("0\t7\n59\t1\n")
    found = read_pairs("numbers.tsv", plain, plain)
    assert (found[0], found[59]) == ([7], [1])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("q0\td0\nq9\td0\n", "expected one of the names of a.npz in line 2 .*, got 'q9'; "),
        ("q0\td0\nq1\td99\n", "expected one of the names of c.npz in line 2 .*, got 'd99'; "),
        ("q0\n", "expected two or three columns in line 1 .*, got 1; "),
        ("q0\td0\t1\nq0\td1\tgood\n", "expected a grade in line 2 .*, got 'good'; "),
    ],
)
def test_wrong_pairs_are_refused(
    files: dict[str, Any], lines: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pairs.tsv").write_text(lines)
    command = "mine --anchors a.npz --corpus c.npz --positives pairs.tsv"
    assert main(command.split()) == 1
    assert re.search(message, capsys.readouterr().err)


def test_wrong_outputs_are_refused_first(
    files: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command = "mine --anchors missing.npz --positives pairs.tsv -o out.txt"
    assert main(command.split()) == 1
    assert ".tsv, .jsonl, got 'out.txt'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"ends in \.parquet"):
        write_rows(Path("x.txt"), [], [])


def npy(shape: tuple[int, ...], content: bytes) -> bytes:
    """An array file that promises a shape, whatever follows."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


def packed(content: bytes, method: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("embeddings.npy", content)
    return stream.getvalue()


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    return stream.getvalue()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


SOUND = npy((60, 8), bytes(range(240)) * 8)
DAMAGED = {
    "empty.npy": b"",
    "objects.npy": objects(),
    "short.npy": SOUND[:-50],
    "endless.npy": npy((10**12, 8), b""),
    "negative.npy": npy((-1, 8), bytes(320)),
    "empty.npz": b"",
    "objects.npz": packed(objects(), zipfile.ZIP_DEFLATED),
    "endless-stored.npz": packed(npy((10**10, 8), bytes(320)), zipfile.ZIP_STORED),
    "endless-packed.npz": packed(npy((10**10, 8), bytes(320)), zipfile.ZIP_DEFLATED),
    "flipped-stored.npz": flipped(packed(SOUND, zipfile.ZIP_STORED), 500),
    "flipped-packed.npz": flipped(packed(SOUND, zipfile.ZIP_DEFLATED), 100),
    "long.csv": b"names,embedding_0\n" + b"a" * 200_000 + b",1\n",
    "quoted.csv": b'names,embedding_0\n"' + b"a" * 200_000,
    "empty.parquet": b"",
    "other.parquet": b"PAR1 and more of it",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_embeddings_are_refused_in_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within bounded memory: neither a header nor a packed file decides how much is taken."""
    path = tmp_path / name
    path.write_bytes(DAMAGED[name])
    (tmp_path / "pairs.tsv").write_text("0\t1\n")
    tracemalloc.start()
    try:
        words = ["mine", "--anchors", str(path), "--positives", str(tmp_path / "pairs.tsv")]
        assert main(words) == 1
        assert tracemalloc.get_traced_memory()[1] < 2**30
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().err
    assert said.startswith("unremix: expected ")
    assert name in said
    assert "write" in said


def test_an_array_of_zeros_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "e.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("embeddings.npy", "w") as member,
    ):
        member.write(npy((20 * 2**20, 8), b""))
        for _ in range(640):
            member.write(bytes(2**20))
    with pytest.raises(ValueError, match=r"e\.npz .*unpacks to 671,"):
        read_columns(tmp_path / "e.npz")


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "e.parquet"
    vectors = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    _write_parquet(path, {"embeddings": vectors, "names": np.array(["a"] * 100)})
    sound = path.read_bytes()
    place = sound.index(vectors[50].tobytes())  # numbers, of which no library checks the sense
    path.write_bytes(flipped(sound, place))
    with pytest.raises(ValueError, match=r"e\.parquet, got a damaged file"):
        read_columns(path)
    for column in ([1.0, 2.0], ["a", "b"], [[1.0, 2.0], [3.0]], [None, [1.0]]):
        parquet.write_table(pyarrow.table({"embeddings": column}), path)
        with pytest.raises(ValueError, match=r"in .*e\.parquet, got .*; write"):
            Collection.read(path)
    many = pyarrow.array(np.zeros(10**8, dtype=np.int8))  # a few kilobytes in the file
    parquet.write_table(pyarrow.table({"labels": many}), path)
    with pytest.raises(ValueError, match=r"got 100,000,000 values"):
        read_columns(path)


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"parts": "x"}', '{"parts": 0}', "[" * 10**5])
def test_a_damaged_plan_of_parts_is_refused(tmp_path: Path, plan: str) -> None:
    (tmp_path / "_unremix.json").write_text(plan)
    with pytest.raises(ValueError, match=r"expected .*; (write|the same)"):
        read_columns(tmp_path)


def test_names_of_any_bytes_are_written(tmp_path: Path) -> None:
    rows = [{"name": "a\udcff", "score": 1.0}]
    for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
        write_rows(tmp_path / f"t{ending}", rows, ["name", "score"])
        assert b"\\udcff" in (tmp_path / f"t{ending}").read_bytes()
    (tmp_path / "p.tsv").write_text("0\t" + "1" * 200_000)
    one = Collection(tmp_path, np.ones((2, 2)), None, None, None)
    with pytest.raises(ValueError, match=r"pairs in .*, got others \(field larger"):
        read_pairs(tmp_path / "p.tsv", one, one)


def test_a_text_that_a_parquet_file_repeats_is_kept_once(tmp_path: Path) -> None:
    """40,000 names of 200,000 letters: 8 GB as texts of their own."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(40_000, np.int32)), ["x" * 200_000]
    )
    flat = pyarrow.array(np.ones(40_000, np.float32))
    rows = pyarrow.FixedSizeListArray.from_arrays(flat, 1)
    parquet.write_table(pyarrow.table({"embeddings": rows, "names": names}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 10**6

    def read() -> None:
        found = Collection.read(tmp_path / "x.parquet").names
        assert found is not None
        print(len(found), len(found[7]))

    code, said = in_child(read, file_bytes=10**6, seconds=100)
    assert (code, said.split()) == (0, ["40000", "200000"]), said


def test_texts_and_gaps_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"embeddings": [[1.0], [2.0], [3.0]], "names": ["a", None, "a"]})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert read_columns(tmp_path / "x.parquet")["names"].tolist() == ["a", None, "a"]


@pytest.mark.parametrize("kind", ["one long cell", "short rows"])
def test_a_table_takes_no_more_memory_than_its_bound(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x.csv"
    if kind == "one long cell":  # 50 GB in an array of texts
        file.write_text("names,embedding_0\n" + "x" * 100_000 + ",1\n" + "a,1\n" * 120_000)
    else:
        file.write_text("names,embedding_0\n" + ",\n" * 4_000_000)

    def read() -> None:
        try:
            print(len(read_columns(file)["names"]))
        except ValueError as error:
            print(error)

    code, said = in_child(read, file_bytes=file.stat().st_size, seconds=200)
    assert code == 0, said
    assert said.strip() == "120001" or "expected" in said


@pytest.mark.parametrize("name", ["names", "texts", "labels", "class_names"])
def test_facts_of_another_number_of_rows_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, embeddings=np.ones((3, 2)), **{name: np.array(["a", "b"])})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"expected 3 {name} in .*, one per row, got 2; "):
        Collection.read(path)
