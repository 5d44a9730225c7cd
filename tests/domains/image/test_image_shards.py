"""Images from WebDataset shards."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import picture, pixels

from unremix.domains.image.dataset import load_images
from unremix.files.archives import Span, Unusable, ZipSpan, tar_members
from unremix.files.shards import expand_braces


def encoded(seed: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture(seed, (10, 10)).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        files: dict[str, bytes] = {}
        for sample in (1, 0):  # not in order
            key = f"{number}{sample}"
            files[f"{key}.png"] = encoded(10 * number + sample)
            files[f"{key}.cls"] = f"{number * 10}\n".encode()
        write_tar(folder / f"part-{number:03d}.tar", files)
    return folder


def test_shards(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_images(shards)
    assert data.name == "shards"
    assert data.test is None
    assert data.train.names[:3] == [
        "part-000.tar/00.png", "part-000.tar/01.png", "part-001.tar/10.png",
    ]  # fmt: skip
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.classes == ["0", "10", "20"]
    expected = np.asarray(picture(11, (10, 10))).transpose(2, 0, 1)
    assert torch.equal(pixels(data.train)[3], torch.from_numpy(expected.copy()))

    pattern = load_images(str(shards / "part-{000..002}.tar"))
    assert pattern.name == "part"
    assert pattern.train.names == data.train.names
    assert torch.equal(pixels(pattern.train), pixels(data.train))

    monkeypatch.setenv("UNREMIX_DATA", str(shards))
    assert len(load_images("part-{000,002}.tar").train) == 4
    assert load_images("part-001.tar").train.names == data.train.names[2:4]
    assert torch.equal(pixels(load_images(shards, cache_bytes=0).train), pixels(data.train))
    with pytest.raises(FileNotFoundError, match=r"part-003.tar"):
        load_images("part-{000..003}.tar")


def test_labels_in_json(tmp_path: Path) -> None:
    files = {}
    for key, label in (("./a/x", 4), ("./b/x", 2)):
        files[f"{key}.jpeg"] = encoded(label, "JPEG")
        files[f"{key}.json"] = json.dumps({"label": label}).encode()
    data = load_images(write_tar(tmp_path / "one.tar", files))
    assert data.train.names == ["one.tar/a/x.jpeg", "one.tar/b/x.jpeg"]
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "meta",
    [{"b.cls": b"cat"}, {"b.json": b"{}"}, {"b.json": b'{"label": true}'}, {"b.json": b"["}, {},
     {"b.cls": b""}],
)  # fmt: skip
def test_labels_that_only_some_samples_have(tmp_path: Path, meta: dict[str, bytes]) -> None:
    files = {"a.png": encoded(1), "a.cls": b"1", "b.png": encoded(2), **meta}
    with pytest.warns(UserWarning, match="got 1 of 2 without"):
        data = load_images(write_tar(tmp_path / "one.tar", files))
    assert data.train.labels is None


def test_shards_that_say_what_they_are_for(shards: Path) -> None:
    for old, new in (("000", "x-train-0"), ("001", "x-validation-0"), ("002", "x-train-1")):
        (shards / f"part-{old}.tar").rename(shards / f"{new}.tar")
    data = load_images(shards)
    assert data.test is not None
    assert data.train.names[::2] == ["x-train-0.tar/00.png", "x-train-1.tar/20.png"]
    assert data.test.names == ["x-validation-0.tar/10.png", "x-validation-0.tar/11.png"]
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert load_images(str(shards / "x-train-{0..1}.tar")).test is None
    # A shard for neither is named; one for testing alone is all there is.
    (shards / "x-train-1.tar").rename(shards / "x-extra-1.tar")
    with pytest.warns(UserWarning, match=r"x-extra-1.tar \(outside the shards"):
        data = load_images(shards)
    assert len(data.train) == 2
    assert load_images(shards / "x-validation-0.tar").test is None


def test_bad_shards(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar", {"x.png": encoded(1), "y.cls": b"1", "z.png": b"", "._x.png": b"m"}
    )
    (tmp_path / "b.tar").write_bytes(b"junk" * 1000)
    whole = write_tar(tmp_path / "c.tar", {"x.png": encoded(2), "y.png": encoded(3)}).read_bytes()
    (tmp_path / "c.tar").write_bytes(whole[: 512 + 1024 + 100])
    with pytest.warns(UserWarning, match="skipped"):
        data = load_images(tmp_path)
    reasons = dict(data.skipped)
    assert data.train.names == ["a.tar/x.png", "c.tar/x.png"]
    assert reasons["a.tar/y"] == "no image in the sample"
    assert reasons["a.tar/z.png"] == "empty"
    assert reasons["b.tar"].startswith("not a tar file")
    assert reasons["c.tar"] == "truncated"


def test_a_member_cut_off(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"x.png": encoded(1), "y.png": encoded(2)})
    path.write_bytes(path.read_bytes()[: 2 * 512 + 1024])
    members, _ = tar_members(path)
    with pytest.raises(Unusable, match="truncated"):
        Span(str(path), members[-1][1].offset, 5000).read()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("x{a,b}{0..1}", ["xa0", "xa1", "xb0", "xb1"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_spans_survive_pickling() -> None:
    for span in (Span("a", 1, 2), ZipSpan("a", "b", 1, 1)):
        assert pickle.loads(pickle.dumps(span)) == span
