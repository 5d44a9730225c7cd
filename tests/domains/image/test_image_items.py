"""Pictures handed over by a caller, and HEIC files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pictures import picture, save
from PIL import Image

from unremix.domains.image import decoding
from unremix.domains.image.dataset import load_images
from unremix.domains.image.items import read_items

HEIC = b"\0\0\0\x18ftypheic" + bytes(40)


def read(items: Any, channels: int = 3, size: int = 8) -> torch.Tensor:
    return read_items(items, channels=channels, size=size)


def test_paths_images_and_arrays_are_read_alike(tmp_path: Path) -> None:
    image = picture(1, (24, 16))
    path = save(tmp_path / "a.png", image)
    pixels = np.asarray(image)
    expected = load_images(tmp_path, image_size=8).train.images.batch(torch.tensor([0]))
    for item in (path, str(path), image, pixels, pixels.transpose(2, 0, 1), pixels / 255.0,
                 torch.from_numpy(pixels.copy())):  # fmt: skip
        assert torch.equal(read([item]), expected)
    for array in (pixels[None], pixels.transpose(2, 0, 1)[None]):
        assert torch.equal(read(array), expected)
    assert torch.equal(read(expected), expected)
    assert torch.equal(read(iter([path])), expected)
    assert read([]).shape == (0, 3, 8, 8)
    assert read([path], channels=1).shape == (1, 1, 8, 8)


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_pictures_in_one_array_are_those_of_a_list(channels: int) -> None:
    gray = np.stack([np.asarray(picture(n, (20, 16), "L")) for n in range(5)])
    for array in (gray, gray / 255.0, torch.from_numpy(gray), gray[..., None]):
        assert torch.equal(read(array, channels), read(list(gray), channels))
    assert torch.equal(read(gray[:3], 1), read(list(gray[:3]), 1))


def test_the_callers_image_stays_as_it_is(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", picture(2, (256, 256)))
    image = Image.open(path)
    read([image])
    assert image.size == (256, 256)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("a.png", r"got one string or path; pass \['a.png'\]"),
        (Image.new("L", (8, 8)), "got one PIL image; pass it in a list"),
        (3, "got int 3"),
        ([3], "at position 0, got int 3"),
        (np.zeros((3, 8, 8), np.uint8), r"got shape \(3, 8, 8\); .*in a list, or 3 gray ones"),
        (np.zeros((9, 8, 3), np.uint8), r"got shape \(9, 8, 3\); .*in a list"),
        (np.zeros((8, 8), np.uint8), r"got shape \(8, 8\); .*in a list"),
        (np.full((1, 3, 9, 9), -1.5), r"integers in 0..255 or floats in \[0, 1\]"),
    ],
)
def test_wrong_items_are_refused_in_one_sentence(items: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as told:
        read(items)
    assert "\n" not in str(told.value)


def test_a_folder_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got the folder '.*'; pass .*\.glob"):
        read(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"a picture at '.*b\.png', found"):
        read([tmp_path / "b.png"])


def test_files_named_one_by_one(tmp_path: Path) -> None:
    paths = [str(save(tmp_path / name)) for name in ("b.png", "a.png")]
    found = load_images(paths, image_size=8).train
    assert found.names == paths
    assert torch.equal(found.images.batch(torch.arange(2)), read(paths))
    with pytest.raises(ValueError, match="paths of pictures, got the folder"):
        load_images([str(tmp_path)])
    with pytest.raises(ValueError, match="got an empty list"):
        load_images([])


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Search for Pillow's plugins again, before and after the test."""
    caches = (decoding._register_plugins, decoding._formats, decoding.suffixes)
    for name in ("OPEN", "EXTENSION"):
        Image.init()
        monkeypatch.setattr(Image, name, dict(getattr(Image, name)))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    for function in caches:
        function.cache_clear()
    yield monkeypatch
    for function in caches:
        function.cache_clear()


def test_heic_without_the_plugin_names_it(tmp_path: Path, plugins: pytest.MonkeyPatch) -> None:
    plugins.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.HEIC").write_bytes(HEIC)
    with pytest.raises(ValueError, match="pip install pillow-heif"):
        read([tmp_path / "a.HEIC"])
    for data in (tmp_path, [str(tmp_path / "a.HEIC")]):
        with pytest.raises(ValueError, match="pip install pillow-heif"):
            load_images(data)
    save(tmp_path / "b.png")
    with pytest.warns(UserWarning, match=r"a.HEIC \(.*pip install pillow-heif\)"):
        assert load_images(tmp_path).train.names == ["b.png"]


def test_heic_is_read_with_the_plugin(tmp_path: Path, plugins: pytest.MonkeyPatch) -> None:
    def register() -> None:
        Image.register_open(
            "HEIF", lambda *_: Image.new("RGB", (9, 9), "red"), lambda start: start[4:8] == b"ftyp"
        )
        Image.register_extension("HEIF", ".heic")

    plugin = ModuleType("pillow_heif")
    plugin.register_heif_opener = register  # type: ignore[attr-defined]
    plugins.setitem(sys.modules, "pillow_heif", plugin)
    (tmp_path / "a.heic").write_bytes(HEIC)
    assert read([tmp_path / "a.heic"])[0, :, 0, 0].tolist() == [255, 0, 0]
    assert load_images(tmp_path, image_size=8).train.names == ["a.heic"]
