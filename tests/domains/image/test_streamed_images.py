"""Images from shards that come and go: the same as on disk, in a cache that stays small."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest
import torch
from shards import COUNTS, upload, write_digits

from unremix.domains.image.dataset import ImageData, load_images
from unremix.domains.image.stores import LazyImages, StreamedImages
from unremix.files import remote

pytestmark = pytest.mark.xdist_group("remote")
URL = "memory://digits/s-{0..7}.tar"


@pytest.fixture
def local(tmp_path: Path) -> str:
    return write_digits(tmp_path / "shards")


@pytest.fixture
def cache(tmp_path: Path, local: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache; the shards are behind ``memory://`` too."""
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    upload(tmp_path / "shards", "memory://digits")
    before = set(threading.enumerate())
    yield tmp_path / "cache"
    for thread in set(threading.enumerate()) - before:  # else they fetch into the next test's cache
        thread.join(20)
    fsspec.filesystem("memory").store.clear()


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/*/*"))


def room_for(shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the cache have room for so many shards, of any size."""
    largest = max(path.stat().st_size for path in (tmp_path / "shards").iterdir())
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", str(shards * largest))
    return shards * largest


def streamed(data: str) -> tuple[ImageData, StreamedImages]:
    found = load_images(data, stream=True)
    assert isinstance(found.train.images, StreamedImages)
    return found, found.train.images


def await_kept(cache: Path, *names: str) -> None:
    deadline = time.monotonic() + 20
    while not set(names) <= set(kept(cache)):
        assert time.monotonic() < deadline, kept(cache)
        time.sleep(0.01)


def test_streamed_images_are_those_on_disk(local: str, cache: Path) -> None:
    expected = load_images(local)
    everything = torch.arange(100)
    for data in (local, URL):
        found, images = streamed(data)
        assert images.counts == COUNTS
        assert found.train.names == expected.train.names
        assert torch.equal(found.train.labels, expected.train.labels)  # type: ignore[arg-type]
        pixels = expected.train.images.batch(everything)
        for order in (everything, everything.flip(0), torch.tensor([99, 0, 50, 50])):
            assert torch.equal(images.batch(order), pixels[order])


def test_the_cache_stays_within_its_bounds(
    local: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = room_for(3, tmp_path, monkeypatch)
    expected = load_images(local).train.images
    _, images = streamed(URL)
    for first in range(0, 100, 10):
        indices = torch.arange(first, min(first + 10, 100))
        images.expect(indices)
        assert torch.equal(images.batch(indices), expected.batch(indices))
        assert sum(path.stat().st_size for path in cache.glob("*/*/*")) <= most
    assert "s-7.tar" in kept(cache)  # the last ones in place of the first ones
    assert "s-0.tar" not in kept(cache)


def test_what_is_held_is_not_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(1, tmp_path, monkeypatch)
    first, second = (remote.remote_file(f"memory://digits/s-{number}.tar") for number in (0, 3))
    descriptor = remote.fetch_and_hold(first)
    assert descriptor is not None
    assert remote.fetch_and_hold(second) is None
    assert kept(cache) == ["s-0.tar"]
    remote.os.close(descriptor)
    assert remote.fetch(second) is None  # who does not stream removes nothing
    descriptor = remote.fetch_and_hold(second)
    assert descriptor is not None
    remote.os.close(descriptor)
    assert kept(cache) == ["s-3.tar"]


def test_shards_are_fetched_before_they_are_asked_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    _, images = streamed(URL)
    monkeypatch.delenv("UNREMIX_CACHE_BYTES")
    expected = images.batch(torch.tensor([0, 99]))
    assert kept(cache) == []  # few images are read where they are
    images.expect(torch.tensor([0, 99]))
    await_kept(cache, "s-0.tar", "s-7.tar")
    fsspec.filesystem("memory").store.clear()
    assert torch.equal(images.batch(torch.tensor([0, 99])), expected)
    with pytest.raises(ConnectionError, match=r"s-3\.tar, got 'no such file' .* 5 attempts"):
        images.batch(torch.tensor([40]))


def test_many_images_of_a_shard_are_fetched_at_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    _, images = streamed(URL)
    monkeypatch.delenv("UNREMIX_CACHE_BYTES")
    images.batch(torch.arange(17))
    assert kept(cache) == ["s-0.tar"]  # and not the second, of which there is one


def test_a_missing_shard_is_reported_by_the_batch_that_needs_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    _, images = streamed(URL)
    monkeypatch.delenv("UNREMIX_CACHE_BYTES")
    fsspec.filesystem("memory").rm("/digits/s-0.tar")
    images.expect(torch.tensor([0, 99]))
    with pytest.raises(FileNotFoundError, match=r"digits/s-0\.tar.*in 5 attempts"):
        images.batch(torch.tensor([0]))
    assert images.batch(torch.tensor([99])).shape == (1, 1, 8, 8)


def test_without_room_a_warning_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    _, images = streamed(URL)
    with pytest.warns(UserWarning, match=r"cache for 1 shards.*--stream"):
        images.batch(torch.arange(10))


def test_a_shard_is_looked_through_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is noted, so that a resumed run begins at once, even without a cache."""
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    first, _ = streamed(URL)

    def refuse(*_: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr("unremix.files.shards.download", refuse)
    second, _ = streamed(URL)
    assert second.train.names == first.train.names
    assert torch.equal(second.train.labels, first.train.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", ["memory://index/photos", "{}/index"])
def test_machines_share_what_is_noted(
    index: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_INDEX", index.format(tmp_path))
    first, _ = streamed(URL)
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "of another machine"))
    second, _ = streamed(URL)
    assert second.train.names == first.train.names
    assert not kept(tmp_path / "of another machine")


def test_without_a_stream_a_warning_names_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    with pytest.warns(UserWarning, match=r"none for 8 of them.*add --stream 16"):
        load_images(URL, cache_bytes=0)


def test_streams_are_of_shards(tmp_path: Path, local: str) -> None:
    with pytest.raises(ValueError, match=r"WebDataset shards .* --stream"):
        load_images("digits", stream=True)
    assert isinstance(load_images(local, cache_bytes=0).train.images, LazyImages)


READER = """
import sys, warnings
import torch
from unremix.domains.image.dataset import load_images
from unremix.domains.sampling import streamed

url, path, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
warnings.simplefilter("ignore")  # there is not always room
expected = load_images(path).train.images
images = load_images(url, stream=True).train.images
for step in range(150):
    indices = streamed(images.counts, 10, 3, seed, step)
    images.expect(streamed(images.counts, 10, 3, seed, step + 4))
    assert torch.equal(images.batch(indices), expected.batch(indices)), step
"""


@pytest.mark.slow
def test_processes_share_a_cache_that_is_too_small(
    local: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes what the others fetched, unless they use it."""
    most = room_for(5, tmp_path, monkeypatch)
    words = [sys.executable, "-c", READER, f"file://{local}", local]
    readers = [subprocess.Popen([*words, str(seed)]) for seed in range(3)]
    used = 0
    while any(reader.poll() is None for reader in readers):
        with suppress(FileNotFoundError):
            used = max(used, sum(path.stat().st_size for path in cache.glob("*/*/s-*.tar")))
        time.sleep(0.01)
    assert [reader.wait() for reader in readers] == [0, 0, 0]
    assert 0 < used <= most
