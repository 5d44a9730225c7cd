from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import shutil
import struct
import tarfile
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unremix.data.archives import Span, Unusable, ZipSpan, expand_braces, tar_members, zip_members
from unremix.data.image import dataset as module
from unremix.data.image import decoding, stores
from unremix.data.image.dataset import (
    CachedImages,
    ImageData,
    ImageSet,
    LazyImages,
    Skipped,
    load_images,
)


def picture(seed: int = 0, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    """Random pixels; width and height as Pillow has them."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture(hash_of(path))).save(path, **options)
    return path


def hash_of(path: Path) -> int:
    return sum(path.name.encode()) + sum(path.parent.name.encode())


def pixels(images: ImageSet) -> torch.Tensor:
    return images.images.batch(torch.arange(len(images)))


def one(tmp_path: Path, image: Image.Image, name: str = "a.png", **options: Any) -> torch.Tensor:
    """A single image, saved and loaded at its own size: shape (C, S, S)."""
    folder = tmp_path / "one"
    shutil.rmtree(folder, ignore_errors=True)
    save(folder / name, image, **options)
    return pixels(load_images(folder, image_size=min(image.size)).train)[0]


def zipped(folder: Path, target: Path, *, wrap: str = "", method: int = 8) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        files = [path for path in folder.rglob("*") if path.is_file()]
        random.Random(0).shuffle(files)
        for path in files:
            archive.write(path, wrap + path.relative_to(folder).as_posix())
    return target


@pytest.fixture
def split_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "animals"
    for split, count in (("train", 3), ("test", 2)):
        for animal in ("dog", "cat"):
            for number in range(count):
                save(folder / split / animal / f"{number}.png")
    return folder


# ---- digits ----


def test_digits() -> None:
    data = load_images("digits")
    assert data.name == "digits"
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (1347, 450)
    for part in (data.train, data.test):
        assert part.labels is not None
        assert part.labels.dtype == torch.int64
        assert part.classes == [str(digit) for digit in range(10)]
        counts = torch.bincount(part.labels, minlength=10)
        assert counts.max() - counts.min() <= 0.1 * len(part)
        images = pixels(part)
        assert images.shape == (len(part), 1, 8, 8)
        assert images.dtype == torch.uint8
        assert (images.min(), images.max()) == (0, 255)
    assert data.train.names[:2] == ["train/00000", "train/00001"]


def test_digits_hold_the_pixels_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data = load_images("digits")
    assert data.test is not None
    ours = torch.cat([pixels(data.train), pixels(data.test)]).reshape(-1, 64)
    theirs = torch.from_numpy(load_digits().data * 255 / 16).round().to(torch.uint8)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_arrays_are_resized_on_request() -> None:
    data = load_images("digits", image_size=16, limit=20)
    assert pixels(data.train).shape == (20, 1, 16, 16)
    lazy = load_images("digits", image_size=16, limit=20, cache_bytes=0)
    assert isinstance(lazy.train.images, LazyImages)
    assert torch.equal(pixels(lazy.train), pixels(data.train))


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


def test_of_several_held_out_folders_the_labelled_counts(tmp_path: Path) -> None:
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
    with pytest.warns(UserWarning, match=r"skipped 1 of 3 files: LICENSE \(not an image\)"):
        data = load_images(tmp_path)
    assert data.train.names == ["x/one", "y/two"]
    assert data.train.classes == ["x", "y"]


def test_order_is_the_same_whatever_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        save(tmp_path / f"{number % 2}" / f"{number}.png")
    before = load_images(tmp_path)
    walk = os.walk

    def backwards(*args: Any, **options: Any) -> Any:
        for root, folders, names in walk(*args, **options):
            folders.reverse()
            yield root, folders, sorted(names, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
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
    assert reasons["packed.bmp"] == "packed by zip method 12, not stored or deflated"
    assert reasons["empty.bmp"] == "empty"
    assert reasons["flipped.bmp"].startswith("corrupt")
    assert reasons["headless.bmp"] == "corrupt: no header in the zip"
    assert reasons["inflate.bmp"] == "corrupt: cannot be inflated"
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_member_that_unpacks_to_more_than_announced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.png", bytes(10_000_000))
    ((_, span),) = zip_members(path)
    with pytest.raises(Unusable, match="checksum"):
        span._replace(size=1000).read()
    with pytest.raises(Unusable, match="more than"):
        span._replace(size=2**31).read()
    with pytest.raises(Unusable, match="encrypted"):
        span._replace(encrypted=True).read()
    with pytest.raises(Unusable, match="truncated"):
        span._replace(packed=100).read()
    assert span.read(7) == bytes(7)


def test_not_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="expected a zip file, received"):
        load_images(path)


# ---- sizes and modes ----


@pytest.mark.parametrize(
    ("sides", "size"),
    [([10, 20, 90], 20), ([1], 8), ([300], 224), ([12, 13], 12)],
)
def test_default_size_is_the_median_short_side(tmp_path: Path, sides: list[int], size: int) -> None:
    for number, side in enumerate(sides):
        save(tmp_path / f"{number}.png", picture(number, (side, 2 * side), "L"))
    data = load_images(tmp_path)
    assert data.train.images.size == size
    assert pixels(data.train).shape == (len(sides), 1, size, size)


def test_one_pixel_is_enlarged(tmp_path: Path) -> None:
    save(tmp_path / "a.png", Image.new("RGB", (1, 1), (10, 20, 30)))
    image = pixels(load_images(tmp_path, image_size=9).train)[0]
    assert torch.equal(
        image, torch.tensor([10, 20, 30], dtype=torch.uint8).view(3, 1, 1).expand(3, 9, 9)
    )


def test_extreme_aspect_ratio(tmp_path: Path) -> None:
    wide = np.zeros((10, 20000), dtype=np.uint8)
    wide[:, 9995:10005] = 200
    save(tmp_path / "a.png", Image.fromarray(wide))
    image = pixels(load_images(tmp_path, image_size=224).train)
    assert image.shape == (1, 1, 224, 224)
    assert (image == 200).all()


def test_central_square_and_antialiasing(tmp_path: Path) -> None:
    board = (np.indices((64, 96)).sum(0) % 2 * 255).astype(np.uint8)
    save(tmp_path / "a.png", Image.fromarray(board))
    image = pixels(load_images(tmp_path, image_size=8).train).float()
    assert (image - 127.5).abs().max() < 3  # an aliased board would be black and white


def test_a_large_jpeg_is_reduced_like_its_pixels(tmp_path: Path) -> None:
    x, y = np.meshgrid(np.linspace(0, 255, 640), np.linspace(0, 255, 480))
    smooth = Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))
    save(tmp_path / "a.jpg", smooth, quality=95)
    image = pixels(load_images(tmp_path, image_size=16).train)[0].float()
    exact = np.asarray(smooth.crop((80, 0, 560, 480)).resize((16, 16), Image.Resampling.BICUBIC))
    expected = torch.from_numpy(exact.copy()).permute(2, 0, 1).float()
    assert (image - expected).abs().max() <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    upright = picture(3, (9, 9))
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = one(tmp_path, stored, exif=exif)
    assert torch.equal(found, torch.from_numpy(np.asarray(upright).transpose(2, 0, 1).copy()))


def test_a_broken_exif_tag_is_ignored(tmp_path: Path) -> None:
    image = picture(3, (9, 9))
    found = one(tmp_path, image, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05junk")
    assert torch.equal(found, torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()))


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (9, 9), (255, 0, 0, 0))
    assert (one(tmp_path, clear) == 255).all()
    half = one(tmp_path, Image.new("RGBA", (9, 9), (255, 0, 0, 128)))
    assert half[:, 0, 0].tolist() == pytest.approx([255, 127, 127], abs=1)
    grey = one(tmp_path, Image.new("LA", (9, 9), (100, 0)))
    assert grey.shape == (1, 9, 9)
    assert (grey == 255).all()
    keyed = one(tmp_path, Image.new("L", (9, 9), 7), transparency=7)
    assert (keyed == 255).all()


def test_palettes(tmp_path: Path) -> None:
    colours = Image.new("P", (9, 9), 1)
    colours.putpalette([0, 0, 0, 10, 200, 30])
    assert one(tmp_path, colours)[:, 0, 0].tolist() == [10, 200, 30]
    assert one(tmp_path, colours, transparency=1)[:, 0, 0].tolist() == [255, 255, 255]
    assert one(tmp_path, colours, "a.gif")[:, 0, 0].tolist() == [10, 200, 30]
    assert one(tmp_path, colours, transparency=b"\xff\x00")[:, 0, 0].tolist() == [255, 255, 255]


def test_cmyk(tmp_path: Path) -> None:
    found = one(tmp_path, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "a.jpg", quality=100)
    assert found[:, 8, 8].tolist() == pytest.approx([255, 0, 0], abs=3)
    found = one(tmp_path, Image.new("CMYK", (16, 16), (0, 0, 0, 255)), "a.tiff")
    assert found[:, 8, 8].tolist() == [0, 0, 0]


def test_bilevel(tmp_path: Path) -> None:
    image = Image.new("1", (9, 9), 1)
    image.putpixel((0, 0), 0)
    found = one(tmp_path, image)
    assert found.shape == (1, 9, 9)
    assert found.unique().tolist() == [0, 255]


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, name: str) -> None:
    values = np.arange(81, dtype=np.uint16).reshape(9, 9) * 800
    found = one(tmp_path, Image.fromarray(values), name)
    assert found.shape == (1, 9, 9)
    expected = torch.from_numpy(np.rint(values / 257).astype(np.uint8))
    assert torch.equal(found[0], expected)
    dark = Image.fromarray(np.full((9, 9), 257, dtype=np.uint16))
    assert (one(tmp_path, dark, name) == 1).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.float32([0.0, 0.5, 1.0]), [0, 128, 255]),
        (np.float32([0.0, 100.0, 255.0]), [0, 100, 255]),
        (np.float32([0.0, 257.0, 65535.0]), [0, 1, 255]),
        (np.float32([-1.0, 0.0, 1.0]), [0, 128, 255]),
        (np.float32([0.0, 1e6, np.nan]), [0, 255, 0]),
        (np.float32([7e6, 7e6, 7e6]), [0, 0, 0]),
        (np.int32([0, 100, 255]), [0, 100, 255]),
        (np.int32([0, 257, 65535]), [0, 1, 255]),
        (np.int32([-100, 0, 100]), [0, 128, 255]),
        (np.int32([0, 50_000, 100_000]), [0, 128, 255]),
    ],
)
def test_other_ranges(tmp_path: Path, values: Any, expected: list[int]) -> None:
    found = one(tmp_path, Image.fromarray(np.tile(values, (3, 1))), "a.tiff")
    assert found[0, 0].tolist() == expected


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    found = one(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert found[:, 0, 0].tolist() == [255, 0, 0]


def test_grey_only_if_all_are(tmp_path: Path) -> None:
    save(tmp_path / "a.png", picture(1, mode="L"))
    save(tmp_path / "b.png", picture(2, mode="L"))
    assert load_images(tmp_path).train.images.channels == 1
    save(tmp_path / "c.png", picture(3))
    images = pixels(load_images(tmp_path).train)
    assert images.shape[1] == 3
    assert torch.equal(images[0, 0], images[0, 2])


def test_colour_becomes_grey_where_the_training_images_are(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a.png", picture(1, mode="L"))
    save(tmp_path / "test" / "b.tiff", Image.new("CMYK", (10, 10), (0, 255, 255, 0)))
    data = load_images(tmp_path)
    assert data.test is not None
    assert pixels(data.test)[0, 0, 5, 5] == 76  # the luma of red


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.ppm", "a.gif", "a.tif"])
def test_file_formats(tmp_path: Path, name: str) -> None:
    found = one(tmp_path, Image.new("RGB", (16, 16), (200, 100, 50)), name)
    assert found[:, 8, 8].tolist() == pytest.approx([200, 100, 50], abs=4)


# ---- limit ----


def test_limit(split_folder: Path) -> None:
    everything = load_images(split_folder)
    limited = load_images(split_folder, limit=3)
    assert limited.test is not None
    assert (len(limited.train), len(limited.test)) == (3, 3)
    assert limited.train.names == sorted(limited.train.names)
    assert limited.train.names == load_images(split_folder, limit=3).train.names
    assert set(load_images(split_folder, limit=2).train.names) < set(limited.train.names)
    assert limited.train.classes == everything.train.classes
    where = [everything.train.names.index(name) for name in limited.train.names]
    assert torch.equal(pixels(limited.train), pixels(everything.train)[where])
    assert limited.train.labels is not None
    assert everything.train.labels is not None
    assert torch.equal(limited.train.labels, everything.train.labels[where])
    assert len(load_images(split_folder, limit=100).train) == 6


def test_limit_comes_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        save(tmp_path / f"{number:02d}.png")
    decoded = []
    decode = stores.decode_into
    monkeypatch.setattr(
        stores, "decode_into", lambda row, source, i: decoded.append(i) or decode(row, source, i)
    )
    load_images(tmp_path, limit=5)
    assert len(decoded) == 5


@pytest.mark.parametrize("option", ["limit", "image_size"])
def test_options_must_be_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"expected {option} of at least 1, received 0"):
        load_images("digits", **{option: 0})


# ---- stores ----


def test_lazy_equals_cached(split_folder: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    save(split_folder / "train" / "cat" / "turned.jpg", picture(5, (300, 200)), exif=exif)
    save(split_folder / "train" / "cat" / "clear.png", Image.new("RGBA", (30, 20), (9, 9, 9, 99)))
    for path in (split_folder, zipped(split_folder, tmp_path / "a.zip")):
        cached, lazy = load_images(path), load_images(path, cache_bytes=0)
        assert isinstance(cached.train.images, CachedImages)
        assert isinstance(lazy.train.images, LazyImages)
        assert len(lazy.train.images) == len(cached.train.images) == 8
        assert lazy.train.names == cached.train.names
        indices = torch.tensor([7, 0, 0, -1])
        batch = lazy.train.images.batch(indices)
        assert batch.shape == (4, 3, 10, 10)
        assert torch.equal(batch, cached.train.images.batch(indices))
        assert torch.equal(pixels(lazy.train), pixels(cached.train))
        assert lazy.train.images.batch(indices[:0]).shape == (0, 3, 10, 10)
        with pytest.raises(IndexError):
            lazy.train.images.batch(torch.tensor([8]))


def test_what_fits_is_cached_first(split_folder: Path) -> None:
    data = load_images(split_folder, cache_bytes=6 * 3 * 10 * 10)
    assert data.test is not None
    assert isinstance(data.train.images, CachedImages)
    assert isinstance(data.test.images, LazyImages)


def test_half_of_the_free_memory_is_the_default(
    split_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 2 * 6 * 3 * 10 * 10 - 1)
    assert isinstance(load_images(split_folder).train.images, LazyImages)


def test_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise OSError

    assert 2**20 < stores.free_memory() < 2**50
    monkeypatch.setattr(Path, "read_text", missing)
    assert 2**20 < stores.free_memory() < 2**50
    monkeypatch.setattr(os, "sysconf", missing)
    assert stores.free_memory() == 4 * 2**30


def test_lazy_images_survive_pickling(split_folder: Path) -> None:
    images = load_images(split_folder, cache_bytes=0).train.images
    again = pickle.loads(pickle.dumps(images))
    indices = torch.arange(6)
    assert torch.equal(again.batch(indices), images.batch(indices))


def test_lazy_images_from_many_threads(split_folder: Path, tmp_path: Path) -> None:
    images = load_images(zipped(split_folder, tmp_path / "a.zip"), cache_bytes=0).train.images
    expected = images.batch(torch.arange(6))
    found: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(images.batch(torch.arange(6))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(batch, expected) for batch in found)


def test_a_file_that_fails_later_is_black_and_named_once(tmp_path: Path) -> None:
    save(tmp_path / "good.png", picture(1, (40, 40)))
    bad = save(tmp_path / "later.png", picture(2, (40, 40)))
    bad.write_bytes(bad.read_bytes()[:2000])
    data = load_images(tmp_path, cache_bytes=0)
    assert len(data.train) == 2
    with pytest.warns(UserWarning, match=r"1 of 2 images .* black; now later.png \(truncated\)"):
        batch = data.train.images.batch(torch.tensor([1, 0, 1]))
    assert (batch[0] == 0).all()
    assert (batch[2] == 0).all()
    assert (batch[1] != 0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.train.images.batch(torch.tensor([1]))
    assert isinstance(data.train.images, LazyImages)
    assert data.train.images.failed == {1: "truncated"}


def test_progress_bar(split_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_images(split_folder, progress=True)
    assert "decoding train images" in capsys.readouterr().err
    load_images(split_folder, progress=True, cache_bytes=0)
    assert "checking test images" in capsys.readouterr().err
    load_images(split_folder)
    assert capsys.readouterr() == ("", "")


def test_processors_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert stores._processors() == os.cpu_count()


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
    walk = os.walk

    def fail(top: Any, *, onerror: Any, **options: Any) -> Any:
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "closed")))
        return walk(top, **options)

    monkeypatch.setattr(os, "walk", fail)
    with pytest.warns(UserWarning, match=r"closed \(cannot be read: Permission denied\)"):
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
    with pytest.raises(ValueError, match=r"at least one usable image .* accepted are the word"):
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


@pytest.mark.parametrize("name", ["a.jpg", "a.csv", "a"])
def test_unknown_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=f"expected one of: .*received the file .*{name}"):
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
    with pytest.raises(FileNotFoundError, match=r"expected data at .other. or .*other., found"):
        load_images("other")
    save(tmp_path / "cwd" / "animals" / "near.png")
    assert load_images("animals").train.names == ["near.png"]


# ---- CIFAR ----


def cifar_batch(count: int, seed: int, key: str = "labels", classes: int = 10) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
        key: generator.integers(0, classes, count).tolist(),
        "filenames": [f"{i}.png" for i in range(count)],
    }


def as_bytes_keys(batch: dict[str, Any]) -> dict[bytes, Any]:
    return {key.encode(): value for key, value in batch.items()}


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(1, 6):
        batch = as_bytes_keys(cifar_batch(4, number))
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(batch, 2))
    (folder / "test_batch").write_bytes(pickle.dumps(cifar_batch(6, 9), 2))
    names = [f"class{number}" for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, 2))
    (folder / "readme.html").write_text("readme")
    return folder


def check_cifar10(data: ImageData) -> None:
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (20, 6)
    first = cifar_batch(4, 2)
    images = torch.from_numpy(first["data"]).view(4, 3, 32, 32)
    assert torch.equal(pixels(data.train)[4:8], images)
    assert data.train.labels is not None
    assert data.train.labels[4:8].tolist() == first["labels"]
    assert data.train.classes == [f"class{number}" for number in range(10)]
    assert data.train.names[12] == "train/00012"
    assert data.skipped == ()


def test_cifar10(cifar10: Path, tmp_path: Path) -> None:
    check_cifar10(load_images(cifar10))
    check_cifar10(load_images(tmp_path))  # below one wrapping folder
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(cifar10, "cifar-10-batches-py")
    data = load_images(tmp_path / "cifar-10-python.tar.gz")
    check_cifar10(data)
    assert data.name == "cifar-10-python"


def test_cifar100(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("test", 3)):
        batch = cifar_batch(count, count, "fine_labels", 100)
        (tmp_path / name).write_bytes(pickle.dumps(batch, 2))
    meta = {"fine_label_names": [f"fine{number}".encode() for number in range(100)]}
    (tmp_path / "meta").write_bytes(pickle.dumps(meta, 2))
    data = load_images(tmp_path)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (5, 3)
    assert data.train.classes is not None
    assert data.train.classes[99] == "fine99"
    assert data.train.labels is not None
    assert data.train.labels.tolist() == cifar_batch(5, 5, "fine_labels", 100)["fine_labels"]


def test_cifar_with_files_missing(cifar10: Path) -> None:
    for name in ("data_batch_3", "batches.meta", "test_batch"):
        (cifar10 / name).unlink()
    with pytest.warns(UserWarning, match=r"data_batch_3 \(missing\)"):
        data = load_images(cifar10)
    assert data.test is None
    assert len(data.train) == 16
    assert data.train.classes is not None
    assert data.train.classes[:2] == ["0", "1"]


class Malicious:
    def __init__(self, function: Any, argument: str) -> None:
        self.function, self.argument = function, argument

    def __reduce__(self) -> Any:
        return self.function, (self.argument,)


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
@pytest.mark.parametrize("function", [os.system, eval, __import__, open])
def test_a_malicious_pickle_is_refused(
    cifar10: Path, tmp_path: Path, name: str, function: Any
) -> None:
    proof = tmp_path / "proof"
    commands = {os.system: f"touch {proof}", eval: f"open({str(proof)!r}, 'w')"}
    attack = Malicious(function, commands.get(function, "os"))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (cifar10 / name).write_bytes(pickle.dumps({"data": attack}, protocol))
        with pytest.raises(ValueError, match=f"received {name}: it asks for .* not allowed"):
            load_images(cifar10)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "received data_batch_1: Ran out of input"),
        (b"junk", "received data_batch_1: "),
        (pickle.dumps([1]), "it holds a list"),
        (pickle.dumps({"data": 1}), r"expected data of shape \(n, 3072\)"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [1]}, 2), r"received \(2, 3072\) and fields"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [-1, 1]}, 2), r"n labels"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [77, 1]}, 2), "labels below 10.* received 77"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.", "the codec"),
    ],
)
def test_broken_cifar_files(cifar10: Path, content: bytes, message: str) -> None:
    (cifar10 / "data_batch_1").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_images(cifar10)


def test_tar_gz_without_cifar(tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"expected a .tar.gz of CIFAR pickles"):
        load_images(path)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(save(tmp_path / "a.png"), "a.png")
    with pytest.raises(ValueError, match=r"expected CIFAR pickles .* without; accepted are"):
        load_images(path)


# ---- idx ----


def write_idx(path: Path, array: np.ndarray) -> None:
    data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_arrays(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(count)
    images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, generator.permutation(count).astype(np.uint8)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
def test_idx(tmp_path: Path, suffix: str, separator: str) -> None:
    for split, count in (("train", 5), ("t10k", 3)):
        images, labels = idx_arrays(count)
        write_idx(tmp_path / f"{split}-images{separator}idx3-ubyte{suffix}", images)
        write_idx(tmp_path / f"{split}-labels{separator}idx1-ubyte{suffix}", labels)
    data = load_images(tmp_path)
    assert data.test is not None
    for part, count in ((data.train, 5), (data.test, 3)):
        images, labels = idx_arrays(count)
        assert torch.equal(pixels(part), torch.from_numpy(images)[:, None])
        assert part.labels is not None
        assert part.labels.tolist() == labels.tolist()
        assert part.classes == list("01234")


def test_idx_without_labels_or_test(tmp_path: Path) -> None:
    images, _ = idx_arrays(4)
    for suffix in ("", ".gz"):  # as torchvision leaves them
        write_idx(tmp_path / f"emnist-train-images-idx3-ubyte{suffix}", images)
    data = load_images(tmp_path)
    assert data.test is None
    assert data.train.labels is None
    assert len(data.train) == 4


def test_broken_idx(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    images, labels = idx_arrays(4)
    for content in (b"", b"\0\0\x08\x03", struct.pack(">4B3I", 0, 0, 8, 3, 2, 2, 2) + bytes(7)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="expected an idx file of bytes in 3 dimensions"):
            load_images(tmp_path)
    write_idx(path, images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels[:3])
    with pytest.raises(ValueError, match=r"expected 4 labels in .* received 3"):
        load_images(tmp_path)
    write_idx(tmp_path / "other-train-images-idx3-ubyte", images)
    with pytest.raises(ValueError, match="expected the idx files of one data set"):
        load_images(tmp_path)


# ---- npz ----


def test_npz_layouts_agree(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 11, 3), dtype=np.uint8)
    expected = torch.from_numpy(images[:, :, 1:10].transpose(0, 3, 1, 2).copy())
    for number, array in enumerate(
        [images, images.transpose(0, 3, 1, 2), images / 255, images.astype(np.int64)]
    ):
        path = tmp_path / f"{number}.npz"
        np.savez(path, images=array, labels=np.array([5, 2, 2, 9, 5]))
        data = load_images(path)
        assert torch.equal(pixels(data.train), expected)
        assert data.train.labels is not None
        assert data.train.labels.tolist() == [1, 0, 0, 2, 1]
        assert data.train.classes == ["2", "5", "9"]
        assert data.name == str(number)


@pytest.mark.parametrize("shape", [(4, 9, 9), (4, 9, 9, 1), (4, 1, 9, 9)])
def test_grey_npz(tmp_path: Path, shape: tuple[int, ...]) -> None:
    truth = np.random.default_rng(0).integers(0, 2, shape).astype(bool)
    np.savez_compressed(tmp_path / "a.npz", x_train=truth, x_test=truth[:2], y_test=["b", "a"])
    data = load_images(tmp_path / "a.npz")
    assert data.test is not None
    expected = torch.from_numpy(truth.reshape(4, 1, 9, 9)).to(torch.uint8) * 255
    assert torch.equal(pixels(data.train), expected)
    assert torch.equal(pixels(data.test), expected[:2])
    assert data.train.labels is None
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [1, 0]
    assert data.test.classes == ["a", "b"]


def test_transparent_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 9, 9, 4), dtype=np.uint8))
    images = pixels(load_images(tmp_path / "a.npz").train)
    assert images.shape == (2, 3, 9, 9)
    assert (images == 255).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros(3)}, "named images or x_train, received pictures"),
        ({"images": np.zeros((3, 4))}, r"received \(3, 4\)"),
        ({"images": np.zeros((3, 5, 4, 7))}, r"received \(3, 5, 4, 7\)"),
        ({"images": np.full((3, 9, 9), 1.5)}, "received float64 from 1.5 to 1.5"),
        ({"images": np.full((3, 9, 9), np.nan)}, "received float64 from nan"),
        ({"images": np.full((3, 9, 9), 256)}, "received int64 from 256"),
        ({"images": np.full((3, 9, 9), "a")}, "received <U1"),
        ({"images": np.zeros((3, 9, 9)), "labels": np.zeros(2, int)}, "labels with 3 integers"),
        ({"images": np.zeros((3, 9, 9)), "labels": np.zeros(3)}, "received float64 of shape"),
        ({"images": np.zeros((0, 9, 9))}, "at least one usable image .*it is empty"),
        ({"images": np.array([{}, {}])}, "without objects"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_images(tmp_path / "a.npz")


def test_not_an_npz(tmp_path: Path) -> None:
    for content in (b"junk", b"", b"PK\3\4junk"):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"expected an .npz of plain arrays"):
            load_images(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"expected an .npz of plain arrays"):
        load_images(tmp_path / "a.npz")


# ---- shards ----


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
    with pytest.warns(UserWarning, match="received 1 of 2 without; all labels are ignored"):
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
    for span in (Span("a", 1, 2), ZipSpan("a", 1, 2, 3, 4, 8, False)):
        assert pickle.loads(pickle.dumps(span)) == span


# ---- the real thing ----


def real_zip() -> Path | None:
    shared = Path(__file__).resolve().parents[4] / "shared" / "data"
    roots = [Path(os.environ["UNREMIX_DATA"])] if "UNREMIX_DATA" in os.environ else []
    paths = [root / "cifar10-images.zip" for root in (*roots, shared)]
    return next((path for path in paths if path.exists()), None)


@pytest.mark.skipif(
    real_zip() is None, reason="no cifar10-images.zip in $UNREMIX_DATA or ../shared/data"
)
def test_real_cifar() -> None:
    path = real_zip()
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
