"""Images from folders and zips: splits, labels, files that are no images, errors."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import cifar_zip, picture, pixels, save, zipped
from PIL import Image

from unremix.domains.image import decoding
from unremix.domains.image.dataset import Skipped, load_images
from unremix.files.archives import Unusable, zip_members

# ---- folders, splits and labels ----


def test_folder_with_split_and_classes(split_folder: Path) -> None:
    data = load_images(split_folder)
    assert data.name == "animals"
    assert data.skipped == ()
    assert data.test is not None
    assert data.train.classes == data.test.classes == ["cat", "dog"]
    assert data.train.names == [f"train/{c}/{i}.png" for c in ("cat", "dog") for i in range(3)]
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert data.train.images.channels == 3
    assert data.train.images.size == 10
    original = np.asarray(Image.open(split_folder / "train/dog/2.png"))[:, 1:11]
    assert torch.equal(pixels(data.train)[5], torch.from_numpy(original.transpose(2, 0, 1).copy()))


@pytest.mark.parametrize("test", ["test", "val", "Valid", "validation"])
@pytest.mark.parametrize("train", ["train", "Training"])
def test_names_of_splits(tmp_path: Path, train: str, test: str) -> None:
    save(tmp_path / train / "a.png")
    save(tmp_path / test / "b.png")
    data = load_images(tmp_path)
    assert data.test is not None
    assert (data.train.names, data.test.names) == ([f"{train}/a.png"], [f"{test}/b.png"])
    assert data.train.labels is None
    assert data.train.classes is None


def test_of_several_held_out_folders_the_labeled_counts(tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "test/1", "val/a/1", "val/b/1"):
        save(tmp_path / f"{name}.png")
    with pytest.warns(UserWarning, match="skipped 1 of 5 files: test/1.png"):
        data = load_images(tmp_path)
    assert data.test is not None
    assert data.test.names == ["val/a/1.png", "val/b/1.png"]


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    for name in ("train/n1/images/n1_0", "train/n2/images/n2_0", "test/images/test_0",
                 "val/images/val_0", "val/images/val_1", "val/images/val_2"):  # fmt: skip
        save(folder / f"{name}.JPEG")
    lines = ["val_0.JPEG\tn2\t0\t32", "val_1.JPEG\tn1\t3\t9", "val_2.JPEG\tn2\t0\t0"]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    for data in (folder, zipped(folder, tmp_path / "t.zip", wrap="tiny-imagenet-200/")):
        with pytest.warns(UserWarning, match="skipped 2 of 7 files"):
            found = load_images(data)
        assert found.train.classes == ["n1", "n2"]
        assert found.train.labels is not None
        assert found.train.labels.tolist() == [0, 1]
        assert found.test is not None
        assert found.test.labels is not None
        assert found.test.labels.tolist() == [1, 0, 1]
    # Annotations that do not name every image are not used.
    (folder / "val" / "val_annotations.txt").write_text(lines[0])
    with pytest.warns(UserWarning, match="skipped"):
        found = load_images(folder)
    assert found.test is not None
    assert found.test.names == ["test/images/test_0.JPEG"]


def test_a_wrapping_folder_is_looked_through(split_folder: Path, tmp_path: Path) -> None:
    wrapped = zipped(split_folder, tmp_path / "w.zip", wrap="outer/animals/")
    data = load_images(wrapped)
    assert data.test is not None
    assert data.train.classes == ["cat", "dog"]
    assert data.train.names[0] == "outer/animals/train/cat/0.png"
    (tmp_path / "upper").mkdir()
    shutil.copytree(split_folder, tmp_path / "upper" / "animals")
    again = load_images(tmp_path / "upper")
    assert torch.equal(pixels(again.train), pixels(data.train))


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a.png", "b.png"], None),
        (["only/a.png", "only/b.png"], None),
        (["x/a.png", "y/b.png", "c.png"], None),
        (["y/a.png", "x/deep/b.png", "x/c.png"], [0, 0, 1]),
        (["wrap/y/a.png", "wrap/x/b.png"], [0, 1]),
        (["train/y/a.png", "train/x/b.png"], [0, 1]),
    ],
)
def test_labels_of_folders(tmp_path: Path, names: list[str], labels: list[int] | None) -> None:
    for name in names:
        save(tmp_path / name)
    data = load_images(tmp_path)
    assert data.test is None
    assert data.train.names == sorted(names)
    if labels is None:
        assert data.train.labels is None
    else:
        assert data.train.labels is not None
        assert data.train.labels.tolist() == labels
        assert data.train.classes == ["x", "y"]


def test_classes_only_in_test_come_last(tmp_path: Path) -> None:
    for name in ("train/m/1", "train/z/1", "test/a/1", "test/m/1"):
        save(tmp_path / f"{name}.png")
    data = load_images(tmp_path)
    assert data.test is not None
    assert data.test.classes == data.train.classes == ["m", "z", "a"]
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [2, 0]


def test_a_test_folder_of_one_class_keeps_its_label(tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "test/b/1"):
        save(tmp_path / f"{name}.png")
    data = load_images(tmp_path)
    assert data.test is not None
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [1]


def test_hidden_files_are_ignored(split_folder: Path, tmp_path: Path) -> None:
    for name in (".DS_Store", ".hidden.png", "__MACOSX/train/._0.png", ".git/x.png", "train/.x"):
        path = split_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"junk")
    for data in (load_images(split_folder), load_images(zipped(split_folder, tmp_path / "h.zip"))):
        assert data.skipped == ()
        assert len(data.train) == 6


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "a.png")
    save(tmp_path / "data" / "y" / "b.png")
    (tmp_path / "data" / "x").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    assert load_images(tmp_path / "data").train.names == ["x/a.png", "y/b.png"]


def test_names_without_an_end_are_judged_by_content(tmp_path: Path) -> None:
    save(tmp_path / "x" / "one", format="PNG")
    save(tmp_path / "y" / "two", format="JPEG")
    (tmp_path / "LICENSE").write_text("no image")
    with pytest.warns(UserWarning, match="skipped 1 of 3 files: LICENSE"):
        data = load_images(tmp_path)
    assert data.train.names == ["x/one", "y/two"]
    assert data.train.classes == ["x", "y"]


def test_order_is_the_same_whatever_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        save(tmp_path / f"{number % 2}" / f"{number}.png")
    before = load_images(tmp_path)
    scandir = os.scandir

    @contextmanager
    def backwards(path: Any) -> Iterator[Any]:
        with scandir(path) as entries:
            yield iter(sorted(entries, key=lambda entry: entry.name, reverse=True))

    monkeypatch.setattr(os, "scandir", backwards)
    after = load_images(tmp_path)
    assert before.train.names == after.train.names == sorted(before.train.names)
    assert torch.equal(pixels(before.train), pixels(after.train))


# ---- zips ----


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_equals_folder(split_folder: Path, tmp_path: Path, method: int) -> None:
    folder = load_images(split_folder)
    archive = load_images(zipped(split_folder, tmp_path / "animals.zip", method=method))
    assert archive.name == folder.name == "animals"
    for ours, theirs in ((archive.train, folder.train), (archive.test, folder.test)):
        assert ours is not None
        assert theirs is not None
        assert ours.names == theirs.names
        assert ours.classes == theirs.classes
        assert torch.equal(pixels(ours), pixels(theirs))


def test_a_zip_with_bad_members(tmp_path: Path) -> None:
    path = tmp_path / "bad.zip"
    buffer = io.BytesIO()
    picture(size=(64, 64)).save(buffer, "BMP")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("good", "../evil", "deep\\good", "flipped", "headless", "inflate"):
            archive.writestr(f"{name}.bmp", buffer.getvalue())
        archive.writestr("packed.bmp", buffer.getvalue(), zipfile.ZIP_BZIP2)
        archive.writestr("empty.bmp", b"")
        places = {info.filename: info.header_offset for info in archive.infolist()}
    data = bytearray(path.read_bytes())
    data[places["flipped.bmp"] + 5000] ^= 0xFF
    data[places["headless.bmp"]] ^= 0xFF
    data[places["inflate.bmp"] + 30 + len("inflate.bmp")] = 0xFF  # a kind of block there is not
    path.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match=r"skipped 6 of 8 files.*leads out"):
        found = load_images(path)
    assert found.train.names == ["deep/good.bmp", "good.bmp"]
    reasons = dict(found.skipped)
    assert reasons["../evil.bmp"] == "leads out of the zip"
    assert "zip method 12" in reasons["packed.bmp"]
    assert reasons["empty.bmp"] == "empty"
    assert reasons["flipped.bmp"].startswith("corrupt")
    assert reasons["headless.bmp"].startswith("corrupt: Bad magic number")
    assert reasons["inflate.bmp"].startswith("corrupt: Error -3 while decompressing")
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_member_that_unpacks_to_more_than_announced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.png", bytes(10_000_000))
    ((_, span),) = zip_members(path)
    assert span.read(7) == bytes(7)
    with pytest.raises(Unusable, match="more than"):
        span._replace(size=2**31).read()
    whole = path.read_bytes()
    announced = struct.pack("<I", 10_000_000)
    path.write_bytes(whole.replace(announced, struct.pack("<I", 1000)))
    ((_, span),) = zip_members(path)
    assert span.size == 1000
    with pytest.raises(Unusable, match="corrupt: Bad CRC-32"):
        span.read()


def test_a_zip_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for content in (b"first", b"other"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", content)
        ((_, span),) = zip_members(path)
        assert span.read() == content


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", b"secret")
        place = archive.start_dir
    data = bytearray(path.read_bytes())
    data[place + 8] |= 1  # the flag in the directory
    path.write_bytes(bytes(data))
    ((_, span),) = zip_members(path)
    with pytest.raises(Unusable, match="encrypted"):
        span.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_reads_the_same_zip(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(str(number), bytes([number]) * 10_000)
    spans = [span for _, span in zip_members(path)]
    expected = [span.read() for span in spans]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(methodcaller("read"), spans) == expected


def test_not_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="expected a zip file, got"):
        load_images(path)


# ---- bad files ----


@pytest.fixture
def bad_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mixed"
    save(folder / "good1.png", picture(1, (40, 40)))
    save(folder / "good2.jpg", picture(2, (40, 40)))
    (folder / "empty.png").touch()
    (folder / "fake.jpg").write_text("this is text")
    (folder / "notes.txt").write_text("notes")
    whole = save(tmp_path / "whole.png", picture(3, (40, 40))).read_bytes()
    (folder / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.png").write_bytes(whole[:60] + b"\0\0\0\0" + whole[64:])
    (folder / "eps.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    return folder


def test_bad_files_are_skipped_and_named(bad_folder: Path) -> None:
    with pytest.warns(UserWarning, match="skipped") as caught:
        data = load_images(bad_folder)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    message = str(caught[0].message)
    assert message.startswith("skipped 6 of 8 files: ")
    assert message.endswith(" and 1 more")
    reasons = dict(data.skipped)
    assert set(reasons) == {
        "empty.png", "fake.jpg", "notes.txt", "truncated.png", "flipped.png", "eps.eps",
    }  # fmt: skip
    assert reasons["empty.png"] == "empty"
    assert reasons["fake.jpg"] == reasons["notes.txt"] == reasons["eps.eps"] == "not an image"
    assert reasons["truncated.png"] == "truncated"
    assert reasons["flipped.png"] in ("corrupt", "truncated")
    assert all(isinstance(skipped, Skipped) for skipped in data.skipped)
    assert data.train.names == ["good1.png", "good2.jpg"]
    expected = torch.from_numpy(np.asarray(picture(1, (40, 40))).transpose(2, 0, 1).copy())
    assert torch.equal(pixels(data.train)[0], expected)


def test_rows_stay_with_their_names_when_some_are_skipped(tmp_path: Path) -> None:
    for number in range(260):
        value = Image.new("L", (8, 8), number % 256)
        value.save(tmp_path / f"{number:04d}.bmp")
    for number in (0, 7, 64, 65, 200, 259):
        (tmp_path / f"{number:04d}.bmp").write_bytes(b"BM")
    with pytest.warns(UserWarning, match="skipped 6 of 260"):
        data = load_images(tmp_path)
    assert len(data.train) == len(data.train.images) == 254
    expected = torch.tensor([int(name[:4]) % 256 for name in data.train.names])
    assert torch.equal(pixels(data.train)[:, 0, 3, 3].long(), expected)


def test_unreadable_and_strange_files(tmp_path: Path) -> None:
    save(tmp_path / "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.warns(UserWarning, match="skipped 2 of 3"):
        data = load_images(tmp_path)
    assert dict(data.skipped) == {
        "pipe.png": "not a file",
        "gone.png": "cannot be read: No such file or directory",
    }


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x" / "good.png")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def fail(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.warns(UserWarning, match=r"closed \(.*Permission denied\)"):
        load_images(tmp_path)


@pytest.mark.parametrize("maximum", [60, 99])  # Pillow raises for one and warns for the other
@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maximum: int, cache_bytes: int | None
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", maximum)
    save(tmp_path / "small.png", picture(1, (5, 5)))
    save(tmp_path / "large.png", picture(2, (11, 10)))
    save(tmp_path / "nameless", picture(2, (11, 12)), format="PNG")
    with pytest.warns(UserWarning, match="skipped 2 of 3") as caught:
        data = load_images(tmp_path, cache_bytes=cache_bytes)
    assert [type(warning.message) for warning in caught] == [UserWarning]
    reason = f"more than {maximum} pixels"
    assert data.skipped == (("large.png", reason), ("nameless", reason))
    assert maximum == Image.MAX_IMAGE_PIXELS


def test_a_real_bomb_costs_no_memory(tmp_path: Path) -> None:
    save(tmp_path / "small.png")
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    crc = struct.pack(">I", __import__("zlib").crc32(chunk))
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + crc
    (tmp_path / "bomb.png").write_bytes(bomb + struct.pack(">I", 0) + b"IDAT" + bytes(4))
    with pytest.warns(UserWarning, match=r"bomb.png \(more than 89478485 pixels\)"):
        load_images(tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "needs more memory than there is"),
        (OSError(13, "Permission denied"), "cannot be read: Permission denied"),
        (SyntaxError("broken"), "corrupt"),
    ],
)
def test_reasons(error: Exception, reason: str) -> None:
    assert decoding.reason_for(error) == reason


def test_images_without_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: Image.new("L", (0, 4)))
    with pytest.raises(Unusable, match="no pixels"):
        decoding._open_image(b"")


def test_the_size_is_found_even_if_the_sample_is_bad(tmp_path: Path) -> None:
    for number in range(401):
        (tmp_path / f"{number:03d}.png").write_bytes(b"junk")
    save(tmp_path / "399.png", picture(1, (30, 30)))
    with pytest.warns(UserWarning, match="skipped 400 of 401"):
        data = load_images(tmp_path)
    assert data.train.images.size == 30


# ---- errors ----


@pytest.mark.parametrize("content", [{}, {"a.txt": b"text"}, {"a.png": b""}])
def test_nothing_usable(tmp_path: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"one usable image .*; put "):
        load_images(tmp_path)


def test_a_test_split_without_usable_images_is_none(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a.png")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.png").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="skipped 1 of 2"):
        assert load_images(tmp_path).test is None


def test_missing_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"not set\); accepted are .*WebDataset"):
        load_images("no/such/data")


@pytest.mark.parametrize("name", ["a.jpg", "A.PNG", "a.heic"])
def test_a_picture_alone_is_no_data_set(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    message = rf"got the single picture .*{name}"
    with pytest.raises(ValueError, match=message):
        load_images(tmp_path / name)


@pytest.mark.parametrize("name", ["a.md", "a"])
def test_unknown_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=f"expected one of: .*got the file .*{name}"):
        load_images(tmp_path / name)


def test_relative_paths_are_looked_up_in_the_data_root(
    split_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped(split_folder, tmp_path / "animals.zip")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("UNREMIX_DATA", str(tmp_path))
    assert len(load_images("animals").train) == 6
    assert len(load_images(Path("animals.zip")).train) == 6
    with pytest.raises(FileNotFoundError, match=r"at .other. or .*other., found"):
        load_images("other")
    save(tmp_path / "cwd" / "animals" / "near.png")
    assert load_images("animals").train.names == ["near.png"]


# ---- the real thing ----


@pytest.mark.skipif(
    cifar_zip() is None, reason="no cifar10-images.zip in $UNREMIX_DATA or ../shared/data"
)
def test_real_cifar() -> None:
    path = cifar_zip()
    assert path is not None
    data = load_images(path, limit=200)
    assert data.name == "cifar10-images"
    assert data.test is not None
    for part in (data.train, data.test):
        assert pixels(part).shape == (200, 3, 32, 32)
        assert part.classes is not None
        assert len(part.classes) == 10
        assert part.labels is not None
        names = [part.classes[label] for label in part.labels.tolist()]
        assert names == [name.split("/")[1] for name in part.names]
        assert len(set(names)) >= 8
    mean = pixels(data.train).float().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4913, 0.4821, 0.4465], abs=0.06)
