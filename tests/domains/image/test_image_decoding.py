"""Images of any size and mode, decoded to one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import one, picture, pixels, save
from PIL import Image

from unremix.domains.image import decoding
from unremix.domains.image.dataset import load_images


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
    gray = one(tmp_path, Image.new("LA", (9, 9), (100, 0)))
    assert gray.shape == (1, 9, 9)
    assert (gray == 255).all()
    keyed = one(tmp_path, Image.new("L", (9, 9), 7), transparency=7)
    assert (keyed == 255).all()


def test_palettes(tmp_path: Path) -> None:
    colors = Image.new("P", (9, 9), 1)
    colors.putpalette([0, 0, 0, 10, 200, 30])
    assert one(tmp_path, colors)[:, 0, 0].tolist() == [10, 200, 30]
    assert one(tmp_path, colors, transparency=1)[:, 0, 0].tolist() == [255, 255, 255]
    assert one(tmp_path, colors, "a.gif")[:, 0, 0].tolist() == [10, 200, 30]
    assert one(tmp_path, colors, transparency=b"\xff\x00")[:, 0, 0].tolist() == [255, 255, 255]


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
    frames = [Image.new("RGB", (9, 9), color) for color in ("red", "blue")]
    found = one(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert found[:, 0, 0].tolist() == [255, 0, 0]


def test_gray_only_if_all_are(tmp_path: Path) -> None:
    save(tmp_path / "a.png", picture(1, mode="L"))
    save(tmp_path / "b.png", picture(2, mode="L"))
    assert load_images(tmp_path).train.images.channels == 1
    save(tmp_path / "c.png", picture(3))
    images = pixels(load_images(tmp_path).train)
    assert images.shape[1] == 3
    assert torch.equal(images[0, 0], images[0, 2])


def test_color_becomes_gray_where_the_training_images_are(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a.png", picture(1, mode="L"))
    save(tmp_path / "test" / "b.tiff", Image.new("CMYK", (10, 10), (0, 255, 255, 0)))
    data = load_images(tmp_path)
    assert data.test is not None
    assert pixels(data.test)[0, 0, 5, 5] == 76  # the luma of red


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.ppm", "a.gif", "a.tif"])
def test_file_formats(tmp_path: Path, name: str) -> None:
    found = one(tmp_path, Image.new("RGB", (16, 16), (200, 100, 50)), name)
    assert found[:, 8, 8].tolist() == pytest.approx([200, 100, 50], abs=4)


def test_the_gate_bounds_what_threads_take_together() -> None:
    gate = decoding.Gate(100)
    seen: list[int] = []

    def work(size: int) -> None:
        with gate.admit(size):
            seen.append(gate.used)
            time.sleep(0.001)

    sizes = [30, 60, 250, 10, 99, 40] * 10
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, sizes))
    assert gate.used == 0
    assert len(seen) == len(sizes)
    assert max(used for used in seen if used != 250) <= 100  # a larger one goes alone


@pytest.mark.parametrize("mode", ["I;16", "F", "RGBA"])
def test_strips_change_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    values = {
        "I;16": generator.integers(0, 65536, (40, 30), dtype=np.uint16),
        "F": generator.normal(size=(40, 30)).astype(np.float32),
        "RGBA": generator.integers(0, 256, (40, 30, 4), dtype=np.uint8),
    }[mode]
    whole = decoding.decode_image(Image.fromarray(values), channels=3, size=16)
    monkeypatch.setattr(decoding, "STRIP", 70)
    strips = decoding.decode_image(Image.fromarray(values), channels=3, size=16)
    assert torch.equal(whole, strips)
