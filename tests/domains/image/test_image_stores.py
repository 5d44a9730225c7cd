"""Decoded images: how many, in memory or on demand."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import picture, pixels, save, zipped
from PIL import Image

from unremix.domains.image import dataset as module
from unremix.domains.image import stores
from unremix.domains.image.dataset import CachedImages, LazyImages, load_images

# ---- validation ----


def test_validation_holds_out_training_images(split_folder: Path) -> None:
    whole = load_images(split_folder)
    parts = load_images(split_folder, validation=0.25)
    assert parts.test is not None
    assert whole.test is not None
    held, kept = set(parts.test.names), set(parts.train.names)
    assert len(held) == round(0.25 * len(whole.train))
    assert held | kept == set(whole.train.names)
    assert not held & kept
    assert not held & set(whole.test.names)
    assert load_images(split_folder, validation=0.25).test.names == parts.test.names  # type: ignore[union-attr]
    labels = dict(zip(whole.train.names, whole.train.labels.tolist(), strict=True))  # type: ignore[union-attr]
    assert [labels[name] for name in parts.test.names] == parts.test.labels.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_validation_is_a_share(split_folder: Path, share: float) -> None:
    with pytest.raises(ValueError, match=r"validation .* above 0, below 1"):
        load_images(split_folder, validation=share)


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
    with pytest.raises(ValueError, match=f"{option} .* at least 1, got 0"):
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
    with pytest.warns(UserWarning, match=r"1 of 2 images .*later\.png \(truncated\)"):
        batch = data.train.images.batch(torch.tensor([1, 0, 1]))
    assert (batch[0] == 0).all()
    assert (batch[2] == 0).all()
    assert (batch[1] != 0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.train.images.batch(torch.tensor([1]))
    assert isinstance(data.train.images, LazyImages)
    assert data.train.images.failed == {1: "truncated"}


def test_progress_bar(
    split_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unremix.console.progress.SILENCE", 0.0)  # a log file shows lines, no bar
    load_images(split_folder, progress=True)
    assert "decoding train images" in capsys.readouterr().err
    load_images(split_folder, progress=True, cache_bytes=0)
    assert "checking test images" in capsys.readouterr().err
    load_images(split_folder)
    assert capsys.readouterr() == ("", "")
