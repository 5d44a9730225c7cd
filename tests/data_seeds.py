"""Small sound files of every format that is read, to make mistakes in; always the same bytes."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fuzzing import Files, packed
from PIL import Image

from unremix.domains.graph.dataset import load_graphs
from unremix.domains.image.dataset import load_images
from unremix.domains.sentence.dataset import encode_sentences, load_sentences
from unremix.domains.sentence.senteval_files import TASKS, read_task


class Format(NamedTuple):
    """A format: what to read, how, and sound files of it.

    Args:
        seeds: Sound files, by any name.
        read: Reads the folder that they lie in, or a file of it.
        name: Which file; empty for the folder.
    """

    seeds: dict[str, Files]
    read: Callable[[Path], Any]
    name: str = ""


def picture(mode: str = "RGB", kind: str = "PNG", size: tuple[int, int] = (9, 7)) -> bytes:
    generator = np.random.default_rng(len(mode) + size[0])
    width, height = size
    if mode == "I;16":
        image = Image.fromarray(generator.integers(0, 65536, (height, width), dtype=np.uint16))
    else:
        noise = generator.integers(0, 256, (height, width, 4), dtype=np.uint8)
        image = Image.fromarray(noise, "RGBA").convert(mode)
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def tarred(files: Files, kind: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


PICTURES = {
    "a/rgb.png": picture(),
    "a/gray.png": picture("L"),
    "a/deep.png": picture("I;16"),
    "b/palette.gif": picture("P", "GIF"),
    "b/clear.png": picture("RGBA"),
    "b/photo.jpg": picture("RGB", "JPEG", (33, 20)),
    "b/map.bmp": picture("RGB", "BMP"),
    "b/scan.tif": picture("L", "TIFF"),
    "b/web.webp": picture("RGB", "WEBP"),
    "b/net.ppm": picture("RGB", "PPM"),
    "a/targa.tga": picture("RGB", "TGA"),
    "a/icon.ico": picture("RGBA", "ICO", (16, 16)),
    "a/nameless": picture("L", "PNG"),
}
ANNOTATED = {
    "train/x/1.png": picture(),
    "train/y/2.png": picture("L"),
    "val/images/3.png": picture(),
    "val/val_annotations.txt": b"3.png\tx\t0\t0\n",
}


def cifar(protocol: int = 2) -> Files:
    generator = np.random.default_rng(0)
    batch = {
        "data": generator.integers(0, 256, (2, 3072), dtype=np.uint8),
        "labels": [0, 1],
        "filenames": ["a.png", "b.png"],
    }
    bytes_keys = {key.encode(): value for key, value in batch.items()}
    return {
        "data_batch_1": pickle.dumps(batch, protocol),
        "data_batch_2": pickle.dumps(bytes_keys, protocol),
        "test_batch": pickle.dumps(batch, protocol),
        "batches.meta": pickle.dumps({"label_names": ["cat", b"dog"], "num_vis": 3072}, protocol),
    }


def idx() -> Files:
    images = struct.pack(">4B3I", 0, 0, 8, 3, 3, 5, 4) + bytes(range(60))
    labels = struct.pack(">4BI", 0, 0, 8, 1, 3) + bytes([1, 0, 1])
    return {
        "train-images-idx3-ubyte.gz": packed(images),
        "train-labels-idx1-ubyte": labels,
        "t10k-images-idx3-ubyte": images,
        "t10k-labels-idx1-ubyte.gz": packed(labels),
    }


def npz(save: Any = np.savez_compressed, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


TU = {
    "T_A.txt": b"1, 2\n2, 1\n3, 4\n4, 3\n",
    "T_graph_indicator.txt": b"1\n1\n2\n2\n3\n",
    "T_graph_labels.txt": b"1\n-1\n1\n",
    "T_node_labels.txt": b"0\n1\n0\n2\n1\n",
    "T_node_attributes.txt": b"0.5, 1\n1e-3, 2\n0, 0\n1, 1\n-4, 2\n",
}
GRAPHS: list[dict[str, Any]] = [
    {"edges": [[0, 1], [1, 2]], "node_labels": ["C", "C", 8], "label": "acid", "name": "one"},
    {"edges": [], "nodes": 2, "node_labels": [1, "C"], "label": 3, "directed": True, "other": 1},
]
FEATURES = [{"edges": [[0, 1]], "node_features": [[0.5, 1], [2, -1e3]]}]
TEXT = (
    "It was a dark night. Nobody came.\n\nShe said: “No!” and left\r\n"
    "the house — which wasn't hers.\n\n" + "word " * 300
).encode()


def lines(graphs: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(graph) + "\n" for graph in graphs).encode()


def senteval() -> Files:
    pair = b"\t".join([b"1", b"2", b"3", b"One day.", b"A day."])
    sick = b"pair_ID\ta\tb\tscore\n1\tA man.\tA boy.\t3.5\n2\tA dog.\tA cat.\t1.0\n"
    names = {
        "MR": ("rt-polarity.pos", "rt-polarity.neg"),
        "TREC": ("train_5500.label", "TREC_10.label"),
    }
    files = {f"MR/{name}": b"good film .\nvery good\n" for name in names["MR"]}
    files |= {f"TREC/{name}": b"NUM:dist How far ?\nHUM:ind Who ?\n" for name in names["TREC"]}
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        files[f"MRPC/{name}"] = b"Quality\t#1 ID\t#2 ID\ta\tb\n" + pair + b"\n"
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        files[f"SICK/{name}"] = sick
    return files


def read_images(path: Path) -> None:
    data = load_images(path, cache_bytes=2**20)
    for part in (data.train, data.test):
        if part is not None and len(part):
            part.images.batch(np_range(min(len(part), 16)))


def np_range(count: int) -> Any:
    import torch

    return torch.arange(count)


def read_graphs(path: Path) -> None:
    data = load_graphs(path, progress=False)
    data.train.store.batch(np_range(min(len(data.train), 16)))


def read_text(path: Path) -> None:
    data = load_sentences(path)
    corpus = encode_sentences(data, path.parent / "cache")
    corpus.batch(0, min(len(corpus), 16))


def read_senteval(path: Path) -> None:
    for task in TASKS:
        if (path / task).is_dir():
            read_task(path, task)


@cache
def formats() -> dict[str, Format]:
    """Every format of data, by its name."""
    first, second = cifar(2), cifar(4)
    arrays: dict[str, Any] = {
        "x_train": np.arange(2 * 5 * 5 * 3, dtype=np.uint8).reshape(2, 5, 5, 3),
        "y_train": np.array(["a", "b"]),
        "x_test": np.linspace(0, 1, 50, dtype=np.float32).reshape(2, 5, 5),
        "y_test": np.array(["b", "a"]),
    }
    images = {"images": arrays["x_test"].astype(np.float64), "labels": np.array([3, 1])}
    return {
        "folder": Format({"classes": PICTURES, "split": ANNOTATED}, read_images),
        "zip": Format(
            {
                "deflated": {"data.zip": zipped(PICTURES)},
                "stored": {"data.zip": zipped(ANNOTATED, zipfile.ZIP_STORED)},
            },
            read_images,
            "data.zip",
        ),
        "tar": Format(
            {
                str(kind): {
                    "a-train.tar": tarred(
                        {
                            "./x.png": picture(),
                            "x.cls": b"1",
                            f"{'y' * 150}.jpg": picture("L", "JPEG"),
                            f"{'y' * 150}.json": b'{"label": 2}',
                        },
                        kind,
                    ),
                    "a-test.tar": tarred({"z.png": picture(), "z.cls": b"2"}, kind),
                }
                for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
                if kind != tarfile.USTAR_FORMAT
            },
            read_images,
        ),
        "cifar": Format({"two": first, "four": second, "zero": cifar(0)}, read_images),
        "cifar.tar.gz": Format(
            {"one": {"cifar.tar.gz": packed(tarred(first))}}, read_images, "cifar.tar.gz"
        ),
        "idx": Format({"both": idx()}, read_images),
        "npz": Format(
            {
                "packed": {"a.npz": npz(**arrays)},
                "plain": {"a.npz": npz(np.savez, **images)},
            },
            read_images,
            "a.npz",
        ),
        "tu": Format(
            {"all": TU, "few": {k: v for k, v in TU.items() if "_node_" not in k}}, read_graphs
        ),
        "tu.zip": Format({"all": {"T.zip": zipped(TU)}}, read_graphs, "T.zip"),
        "json lines": Format(
            {"labels": {"a.jsonl": lines(GRAPHS)}, "features": {"a.jsonl": lines(FEATURES)}},
            read_graphs,
            "a.jsonl",
        ),
        "json lines.gz": Format(
            {"labels": {"a.jsonl.gz": packed(lines(GRAPHS))}}, read_graphs, "a.jsonl.gz"
        ),
        "text": Format({"prose": {"a.txt": TEXT}}, read_text, "a.txt"),
        "text.gz": Format({"prose": {"a.txt.gz": packed(TEXT)}}, read_text, "a.txt.gz"),
        "senteval": Format({"all": senteval()}, read_senteval),
    }
