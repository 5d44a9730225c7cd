"""Images from arrays: the embedded digits, CIFAR pickles, idx files and npz."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import pixels, save

from unremix.domains.image.dataset import ImageData, LazyImages, load_images

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
        with pytest.raises(ValueError, match=f"got {name}: it asks for .* not allowed"):
            load_images(cifar10)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got data_batch_1: "),
        (b"junk", "got data_batch_1: "),
        (pickle.dumps([1]), "it holds a list"),
        (pickle.dumps({"data": 1}), r"expected data of shape \(n, 3072\)"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [1]}, 2), r"got \(2, 3072\) and fields"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [-1, 1]}, 2), r"n labels"),
        (pickle.dumps(cifar_batch(2, 0) | {"labels": [77, 1]}, 2), "labels below 10.* got 77"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.", "the codec"),
    ],
)
def test_broken_cifar_files(cifar10: Path, content: bytes, message: str) -> None:
    (cifar10 / "data_batch_1").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_images(cifar10)


def test_a_cifar_file_of_any_size_is_not_read_whole(cifar10: Path) -> None:
    os.truncate(cifar10 / "data_batch_1", 2**40)
    with pytest.raises(ValueError, match=r"at most .* bytes in .*data_batch_1"):
        load_images(cifar10)


def test_tar_gz_without_cifar(tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"expected a .tar.gz of CIFAR pickles"):
        load_images(path)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(save(tmp_path / "a.png"), "a.png")
    with pytest.raises(ValueError, match=r"expected CIFAR pickles .* without"):
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
        with pytest.raises(ValueError, match="idx file of bytes in 3 dimensions"):
            load_images(tmp_path)
    write_idx(path, images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels[:3])
    with pytest.raises(ValueError, match=r"expected 4 labels in .* got 3"):
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
def test_gray_npz(tmp_path: Path, shape: tuple[int, ...]) -> None:
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
        ({"pictures": np.zeros(3)}, "named images or x_train, got pictures"),
        ({"images": np.zeros((3, 4))}, r"got \(3, 4\)"),
        ({"images": np.zeros((3, 5, 4, 7))}, r"got \(3, 5, 4, 7\)"),
        ({"images": np.full((3, 9, 9), 1.5)}, "got float64 from 1.5 to 1.5"),
        ({"images": np.full((3, 9, 9), np.nan)}, "got float64 from nan"),
        ({"images": np.full((3, 9, 9), 256)}, "got int64 from 256"),
        ({"images": np.full((3, 9, 9), "a")}, "got <U1"),
        ({"images": np.zeros((3, 9, 9)), "labels": np.zeros(2, int)}, "labels with 3 integers"),
        ({"images": np.zeros((3, 9, 9)), "labels": np.zeros(3)}, "got float64 of shape"),
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
