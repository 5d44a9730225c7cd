"""Data behind URLs: equal to local data, whatever the server does; else a message."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from s3_server import S3

from unremix.core.engines import library
from unremix.domains.graph.dataset import _download
from unremix.domains.image.dataset import ImageData, load_images
from unremix.files import remote
from unremix.files.remote import cache_folder, fetch, is_url, persist, read_range, remote_file
from unremix.files.seals import write_sealed

pytestmark = pytest.mark.xdist_group("remote")
SHARDS, SAMPLES = 3, 7


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_shard(path: Path, shard: int) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(SAMPLES):
            label = str((shard + number) % 3).encode()
            for name, data in (("png", picture(shard * SAMPLES + number)), ("cls", label)):
                member = tarfile.TarInfo(f"{number:03d}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, a folder of pictures by class, and a zip of it."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        write_shard(folder / "shards" / f"s-{shard}.tar", shard)
    for number in range(6):
        place = folder / "animals" / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(picture(100 + number))
    return folder


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def upload(files: fsspec.AbstractFileSystem, folder: Path, root: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files.pipe_file(f"{root}/{path.relative_to(folder).as_posix()}", path.read_bytes())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def memory(local: Path, cache: Path) -> Iterator[str]:
    """The same behind ``memory://``."""
    files = fsspec.filesystem("memory")
    upload(files, local, "/data")
    yield "memory://data"
    files.store.clear()


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    pytest.importorskip("moto.server", reason="the S3 server needs moto[server]")
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    server = S3()
    yield server
    server.close()


@pytest.fixture
def s3(server: S3, local: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server that holds the data in the bucket ``data``; reads that stall end after a second."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "PATIENCE", 1.0)
    files, _ = remote.file_system("s3://data/x")
    files.clear_instance_cache()
    files, _ = remote.file_system("s3://data/x")
    if not files.exists("data"):
        files.mkdir("data")
        upload(files, local, "data")
    server.spoil()
    yield server
    files.clear_instance_cache()


def assert_same(found: ImageData, expected: ImageData) -> None:
    assert found.train.names == expected.train.names
    assert found.train.classes == expected.train.classes
    assert torch.equal(found.train.labels, expected.train.labels)  # type: ignore[arg-type]
    indices = torch.arange(len(expected.train))
    ours, theirs = found.train.images.batch(indices), expected.train.images.batch(indices)
    assert torch.equal(ours, theirs)


def test_urls() -> None:
    assert all(map(is_url, ("s3://a/b", "HTTPS://a.b/c.tar", "gs://x", "hf://datasets/a")))
    assert not any(map(is_url, ("a/b", "C:/x", "/abs", "digits", "a:b", Path("s3://x"), None)))


@pytest.mark.parametrize("data", ["shards/s-{0..2}.tar", "shards", "shards/s-1.tar", "animals"])
def test_the_same_as_on_disk(data: str, local: Path, memory: str) -> None:
    assert_same(load_images(f"{memory}/{data}"), load_images(str(local / data)))
    # From the cache, once more: nothing is left behind the URL.
    again = load_images(f"{memory}/{data}")
    assert len(again.train) > 0


def test_single_files_are_fetched(local: Path, memory: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(5))
    fsspec.filesystem("memory").pipe_file("/data/a.npz", (tmp_path / "a.npz").read_bytes())
    assert_same(load_images(f"{memory}/a.npz"), load_images(str(tmp_path / "a.npz")))


def test_without_room_bytes_are_read_where_they_are(
    local: Path, memory: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "100")
    assert_same(load_images(f"{memory}/shards"), load_images(str(local / "shards")))
    assert_same(load_images(f"{memory}/animals"), load_images(str(local / "animals")))
    assert not list(cache.glob("*/*/*"))
    fsspec.filesystem("memory").pipe_file("/data/b.npz", bytes(200))
    with pytest.raises(OSError, match="room in the cache"):
        load_images(f"{memory}/b.npz")


def test_a_changed_file_is_fetched_again(memory: str) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/data/one.txt", b"first")
    before = fetch(remote_file(f"{memory}/one.txt"))
    files.pipe_file("/data/one.txt", b"second!")
    after = fetch(remote_file(f"{memory}/one.txt"))
    assert before is not None
    assert after is not None
    assert (before.read_bytes(), after.read_bytes()) == (b"first", b"second!")


def test_a_changed_file_of_the_same_size_is_fetched_again(cache: Path, tmp_path: Path) -> None:
    """Many web servers say only when a file was last modified."""
    (tmp_path / "web").mkdir()
    place = tmp_path / "web" / "one.txt"
    handler = partial(QuietHandler, directory=str(place.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/one.txt"
        found = []
        for number, text in enumerate(("first", "other")):
            place.write_text(text)
            os.utime(place, (10**9 + number, 10**9 + number))
            path = fetch(remote_file(url))
            assert path is not None
            found.append(path.read_text())
        server.shutdown()
    assert found == ["first", "other"]


@pytest.mark.parametrize("key", ["ETag", "etag", "Last-Modified", "LastModified", "blob_id"])
def test_what_changes_with_a_file_is_its_tag(key: str) -> None:
    described = remote._described("hf://datasets/a/b.tar", {"size": 3, key: "abc"})
    assert described == remote.RemoteFile("hf://datasets/a/b.tar", 3, "abc")


def test_missing_shards_are_all_named(memory: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"2 shards cannot be read.*s-3.*s-4") as told:
        load_images(f"{memory}/shards/s-{{0..4}}.tar")
    assert "in 5 attempts" in str(told.value)
    with pytest.raises(FileNotFoundError, match="expected files below"):
        load_images(f"{memory}/nothing")


def test_requests_are_repeated_with_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("unremix.files.remote.time.sleep", pauses.append)
    answers = iter([OSError("reset"), TimeoutError(), "fine"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert persist("s3://a", call) == "fine"
    assert pauses == [1.0, 2.0]
    refused = iter([PermissionError("403")])
    with pytest.raises(PermissionError):
        persist("s3://a", lambda: (_ for _ in ()).throw(next(refused)))
    with pytest.raises(ConnectionError, match=r"s3://a, got 'no route' in 5 attempts"):
        persist("s3://a", lambda: (_ for _ in ()).throw(OSError("no route")))


def test_without_the_package_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    known = sys.modules["fsspec.registry"]._registry  # type: ignore[attr-defined]
    monkeypatch.delitem(known, "s3", raising=False)  # of an earlier test
    with pytest.raises(ImportError, match=r'reads s3://.*"unremix\[s3\]"'):
        load_images("s3://bucket/s-{0..2}.tar")
    with pytest.raises(ValueError, match="fsspec reads, got 'nonsense://x'"):
        load_images("nonsense://x")


# Against an S3 server


@pytest.mark.parametrize("data", ["shards/s-{0..2}.tar", "shards", "animals"])
def test_s3_is_the_same_as_disk(data: str, local: Path, s3: S3) -> None:
    assert_same(load_images(f"s3://data/{data}"), load_images(str(local / data)))


def test_errors_slow_reads_and_cut_answers_are_overcome(local: Path, s3: S3) -> None:
    s3.spoil(
        **{
            "data__shards__s-0.tar": ["error", "truncate", "error"],
            "data__shards__s-1.tar": [3.0, "truncate"],
            "data__shards__s-2.tar": ["truncate"],
        }
    )
    assert_same(load_images("s3://data/shards/s-{0..2}.tar"), load_images(str(local / "shards")))
    gets = s3.gets()
    assert all(gets[f"/data/shards/s-{shard}.tar"] > 1 for shard in range(3))


def test_an_object_that_never_arrives_whole_is_reported_and_not_kept(s3: S3, cache: Path) -> None:
    s3.spoil(**{"data__shards__s-1.tar": ["truncate"] * 200})
    with pytest.raises(ConnectionError, match=r"shards/s-1\.tar.*in 5 attempts"):
        load_images("s3://data/shards/s-{0..2}.tar")
    kept = [path.name for path in cache.glob("*/*/*")]
    assert sorted(kept) == ["s-0.tar", "s-2.tar"]
    assert s3.gets()["/data/shards/s-1.tar"] == remote.ATTEMPTS


def test_an_object_that_stalls_is_tried_as_often_as_the_message_says(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    file = remote_file("s3://data/shards/s-0.tar")
    s3.spoil(**{"data__shards__s-0.tar": [2.0] * 200})
    with pytest.raises(ConnectionError, match=r"Read timeout.*in 2 attempts"):
        fetch(file)
    assert s3.gets() == {"/data/shards/s-0.tar": 2}


def test_a_truncated_object_is_reported(local: Path, s3: S3, tmp_path: Path) -> None:
    files, _ = remote.file_system("s3://data/x")
    whole = (local / "shards" / "s-0.tar").read_bytes()
    files.pipe_file("data/cut/s-0.tar", whole[: len(whole) // 2])
    files.pipe_file("data/cut/s-1.tar", (local / "shards" / "s-1.tar").read_bytes())
    with pytest.warns(UserWarning, match=r"s-0.tar \(truncated"):
        found = load_images("s3://data/cut")
    assert SAMPLES <= len(found.train) < 2 * SAMPLES


def test_ranges_are_repeated_too(local: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    file = remote_file("s3://data/shards/s-0.tar")
    s3.spoil(**{"data__shards__s-0.tar": ["error", "truncate"]})
    expected = (local / "shards" / "s-0.tar").read_bytes()[500:900]
    assert read_range(file, 500, 400) == expected


def test_processes_that_want_one_file_fetch_it_once(s3: S3) -> None:
    file = remote_file("s3://data/shards/s-0.tar")
    s3.spoil()
    with ThreadPoolExecutor(6) as pool:  # each opens the lock by itself, as processes do
        paths = list(pool.map(lambda _: fetch(file), range(6)))
    assert len(set(paths)) == 1
    assert s3.gets() == {"/data/shards/s-0.tar": 1}


# Streams


def test_the_cache_is_where_the_variable_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("UNREMIX_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "unremix" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert cache_folder() == Path.home() / ".cache" / "unremix" / "data"


@pytest.mark.parametrize(
    "url",
    [
        "reference://::file://FOLDER/references.json",
        "zip://a.png::file://FOLDER/a.zip",
        "zip://FOLDER/a.zip",
        "reference://a",
        "nobody://a",
    ],
)
def test_a_url_opens_no_other(url: str, tmp_path: Path) -> None:
    """A file of references would decide which other files are read."""
    (tmp_path / "secret.png").write_bytes(picture(0))
    references = {"version": 1, "templates": {"u": "file://"}, "refs": {
        "a.png": [f"{{{{u}}}}{tmp_path}/secret.png"]}}  # fmt: skip
    (tmp_path / "references.json").write_text(json.dumps(references))
    with pytest.raises(ValueError, match=r"(one|a) URL.*, got "):
        load_images(url.replace("FOLDER", str(tmp_path)), image_size=12)


@pytest.mark.parametrize(
    "note", ["", "[" * 10**5, "[]", '{"samples": [["a", null, -9, 5]], "skipped": []}',
             '{"samples": [["a", "x", 0, 5]], "skipped": []}', '{"samples": [], "skipped": [1]}'],
)  # fmt: skip
def test_damaged_notes_are_made_again(note: str, memory: str, cache: Path) -> None:
    whole = load_images(f"{memory}/shards", image_size=12)
    files = list((cache / ".index").iterdir())
    assert len(files) == SHARDS
    for file in files:
        file.write_text(note)
    assert_same(load_images(f"{memory}/shards", image_size=12), whole)
    assert all(file.read_text() != note for file in files)


def test_the_usual_cache_is_for_its_user_alone(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNREMIX_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    load_images(f"{memory}/shards")
    assert (tmp_path / ".cache" / "unremix" / "data").stat().st_mode & 0o777 == 0o700


def test_all_that_is_kept_is_below_one_folder(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of URLs, the compiled library, the key of seals, and downloads of torch_geometric."""
    cache = tmp_path / "elsewhere"
    for name in ("UNREMIX_CACHE", "UNREMIX_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_images(f"{memory}/shards")  # under the usual one first: nothing remembers it
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    load_images(f"{memory}/shards")
    write_sealed(tmp_path / "index", lambda path: path.write_bytes(b"index"))
    assert library.cache_folder() == cache / "unremix" / "native"
    assert {path.name for path in (cache / "unremix").iterdir()} == {"data", "seal.key"}
    assert list((cache / "unremix" / "data").rglob("*.tar"))
    asked: list[str] = []
    datasets = pytest.importorskip("torch_geometric.datasets")
    monkeypatch.setattr(datasets, "TUDataset", lambda root, name: asked.append(root))
    with pytest.raises(OSError, match="to download"):
        _download("MUTAG")
    assert asked == [str(cache / "unremix" / "pyg")]
