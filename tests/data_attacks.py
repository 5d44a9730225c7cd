"""Files that were made to harm their reader, each small; what they aim at is their name.

Each is a folder of files and the name of what to read in it, as in ``data_seeds``. Those that need
links or pipes are made by a function.

What the readers promise, and these files attack:

- CIFAR's pickles are read as data (``domains/image/cifar.py``). Nothing in them is imported or
  called: the names of NumPy's functions are only recognized. Only ``u1`` arrays in row-major order
  whose shape matches their bytes, text, numbers and lists of these are accepted.
- Archives are never unpacked. Members of a zip that overlap are refused. A member is read only up
  to a size that its packed size can justify. Headers of a tar that lead back, or do not end, are
  refused, and files with holes are left out.
- The header of an idx or npz file is compared with its size before memory is taken. A parquet file
  of more values than its size can justify is refused.
- Threads share 512 MiB for decoding images; a larger one is decoded alone.
- A link to a folder is followed, unless it leads back to a folder that it lies in. A folder that
  links reach more than 100 times is refused. Pipes and devices are not opened.
- Nodes, edges and features of graphs are bounded by the size of the files. A line of JSON has at
  most 33,554,432 characters, a name 1,000.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from data_seeds import (
    TU,
    cifar,
    lines,
    picture,
    read_graphs,
    read_images,
    read_senteval,
    read_text,
    zipped,
)
from fuzzing import Files, packed, write_files


class Attack(NamedTuple):
    """Files, how they are read, and what must come of it.

    Args:
        files: Or a function that makes them in a folder.
        read: As in ``data_seeds``.
        name: What to read in the folder; the folder itself if empty.
        message: What the error says; None where reading has to succeed.
    """

    files: Files | Callable[[Path], Any]
    read: Callable[[Path], Any]
    name: str
    message: str | None

    def make(self, folder: Path) -> Path:
        """Make the files; what to read."""
        folder.mkdir()
        if callable(self.files):
            self.files(folder)
        else:
            write_files(folder, self.files)
        return folder / self.name if self.name else folder


# CIFAR


def raw_pickle(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


NAME_TYPE = b"cnumpy\ndtype\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
BYTE_TYPE = (
    NAME_TYPE + b"U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)


def number(value: int) -> bytes:
    return (
        b"\x8a"
        + bytes([(size := (value.bit_length() + 8) // 8)])
        + value.to_bytes(size, "little", signed=True)
    )


def array_pickle(kind: bytes, shape: bytes, content: bytes, field: bytes = b"label_names") -> bytes:
    """A dictionary with an array, whatever is said of it."""
    text = b"T" + struct.pack("<I", len(content)) + content
    state = b"(K\x01" + shape + kind + b"\x89" + text + b"t"
    return raw_pickle(b"}U", bytes([len(field)]), field, RECONSTRUCT, state, b"b", b"s")


OBJECTS = NAME_TYPE + b"U\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
REAL = NAME_TYPE + b"U\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
WIDE = NAME_TYPE + b"U\x02U9K\x00K\x01\x87R(K\x03U\x01<NNNK$K\x04K\x08tb"


def doubled(depth: int) -> bytes:
    """A tuple of two tuples of two tuples …, as the name of a field: its hash takes 2^depth."""
    return raw_pickle(b"}", b"K\x00", b"q\x00h\x00\x86" * depth, b"K\x01s")


def encoded(size: int, times: int) -> bytes:
    """A list of one text, encoded again and again."""
    text = b"X" + struct.pack("<I", size) + b"a" * size
    again = b"c_codecs\nencode\nh\x00U\x06latin1\x86R"
    return raw_pickle(text, b"q\x00](", again * times, b"e")


def labels(value: bytes) -> bytes:
    content = b"\x00" * 3072
    text = b"T" + struct.pack("<I", len(content)) + content
    state = b"(K\x01K\x01M\x00\x0c\x86" + BYTE_TYPE + b"\x89" + text + b"t"
    return raw_pickle(b"}(U\x04data", RECONSTRUCT, state, b"b", b"U\x06labels](", value, b"eu")


class Calls:
    """Pickles into a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def with_meta(meta: bytes) -> Files:
    return {**cifar(), "batches.meta": meta}


def with_batch(batch: bytes) -> Files:
    return {**cifar(), "data_batch_1": batch}


PICKLES: dict[str, Attack] = {
    name: Attack(files, read_images, "", message)
    for name, (files, message) in {
        "an array of pointers": (
            with_meta(array_pickle(OBJECTS, b"K\x01\x85", struct.pack("<Q", 0xDEADBEEF))),
            "not of bytes",
        ),
        "an array longer than its bytes": (
            with_meta(array_pickle(BYTE_TYPE, b"M\x10\x27\x85", b"ab")),
            "shape does not match",
        ),
        "an array of other numbers": (
            with_batch(array_pickle(REAL, b"K\x01\x85", b"\0" * 8, b"data")), "not of bytes"
        ),
        "an array of text": (
            with_meta(array_pickle(WIDE, b"K\x01\x85", b"a\0\0\0" * 9)), "not of bytes"
        ),
        "class names as an array": (
            with_meta(array_pickle(BYTE_TYPE, b"K\x02\x85", b"ab")), "label_names"
        ),
        "class names that are numbers": (
            with_meta(pickle.dumps({"label_names": [1, 2]}, 2)), "list of at most"
        ),
        "a tuple doubled sixty times": (with_batch(doubled(60)), "a field named by a tuple"),
        "lists in lists": (
            with_batch(raw_pickle(b"}U\x01a" + b"]" * 100_000 + b"a" * 99_999 + b"s")),
            "other than text and numbers",
        ),
        "a list in itself": (with_batch(raw_pickle(b"}U\x01a]q\x00h\x00as")), "other than text"),
        "a place in the memo of 32 GiB": (with_batch(raw_pickle(b"}r\xff\xff\xff\x7f")), "data"),
        "bytes of 8 EiB": (
            with_batch(b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"a."), "got data_batch_1"
        ),
        "a number of a million digits": (
            with_batch(b"\x80\x02L" + b"9" * 1_000_000 + b"L\n."), "got data_batch_1"
        ),
        "a label of two billion": (with_batch(labels(b"J\xff\xff\xff\x7f")), "labels below 10,000"),
        "a label of 2^100": (with_batch(labels(number(2**100))), "labels below 10,000"),
        "a label that is negative": (with_batch(labels(number(-1))), "labels below 10,000"),
        "two million values": (
            with_batch(raw_pickle(b"](" + b"N" * 2_100_000 + b"e")), "more than"
        ),
        "a shape of terabytes": (
            with_batch(array_pickle(BYTE_TYPE, number(2**40) + b"K\x02\x86", b"", b"data")),
            "shape does not match",
        ),
        "a shape of nothing": (
            with_batch(array_pickle(BYTE_TYPE, b"K\x00" + number(2**80) + b"\x86", b"", b"data")),
            "got data_batch_1",
        ),
        "text encoded until it fills the memory": (
            with_batch(encoded(2**20, 1000)), "more of itself"
        ),
        "a dictionary whose fields are named by tuples": (
            with_batch(raw_pickle(b"}(K\x00" + b"\x85" * 200_000 + b"K\x01u")),
            "a field named by a tuple",
        ),
        "a call with a length": (
            with_batch(raw_pickle(b"c__builtin__\nbytes\n", number(2**40), b"\x85R")),
            "positional argument",
        ),
        "a command": (with_batch(pickle.dumps({"data": Calls(os.system, "true")}, 2)), "asks for"),
        "a state for a function": (
            with_batch(raw_pickle(b"c_codecs\nencode\n}b")), "gives a state to a method"
        ),
        "an attribute of a class": (
            with_batch(raw_pickle(b"cnumpy\nndarray\nN}U\x01aK\x01s\x86b")), "gives a state to"
        ),
        "a new object": (with_batch(raw_pickle(b"cnumpy\nndarray\n)\x81")), "instruction NEWOBJ"),
        "an extension": (with_batch(raw_pickle(b"\x82\x01")), "instruction EXT1"),
        "a persistent id": (with_batch(raw_pickle(b"Pid\n")), "instruction PERSID"),
    }.items()
}  # fmt: skip


# Folders


def link_mutually(folder: Path, count: int = 12) -> None:
    """Folders of which each links to all others: count! ways to walk."""
    for number in range(count):
        write_files(folder / f"{number}", {"x.png": picture()})
    for number in range(count):
        for other in range(count):
            if other != number:
                (folder / f"{number}" / f"to{other}").symlink_to(folder / f"{other}")


def link_in_a_ring(folder: Path) -> None:
    write_files(folder, {"a/x.png": picture(), "b/y.png": picture("L")})
    (folder / "a" / "b").symlink_to(folder / "b")
    (folder / "b" / "a").symlink_to(folder / "a")


def link_to_itself(folder: Path) -> None:
    (folder / "again").symlink_to(folder)


def link_text_in_a_ring(folder: Path) -> None:
    link_in_a_ring(folder)
    write_files(folder, {"a/x.txt": b"One. Two.\n", "b/y.txt": b"Three. Four.\n"})


def nest_deeply(folder: Path) -> None:
    """As deep as the system lets a path be."""
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        Path("x.png").write_bytes(picture())
    finally:
        os.chdir(here)


def pipe(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            os.mkfifo(folder / name)

    return make


FOLDERS = {
    "links in a ring": Attack(link_in_a_ring, read_images, "", None),
    "links from each to each": Attack(link_mutually, read_images, "", "links lead to"),
    "a folder that links to itself": Attack(link_to_itself, read_images, "", "at least one usable"),
    "text with links in a ring": Attack(link_text_in_a_ring, read_text, "", None),
    "folders 1500 deep": Attack(nest_deeply, read_images, "", None),
    "pipes for pictures": Attack(pipe("a.png", "b.png"), read_images, "", "not a file"),
    "a pipe for a zip": Attack(pipe("a.zip"), read_images, "a.zip", "got a pipe"),
    "a pipe for graphs": Attack(pipe("a.jsonl"), read_graphs, "a.jsonl", "got a pipe"),
    "a pipe for text": Attack(pipe("a.txt"), read_text, "a.txt", "got a pipe"),
    "a pipe for idx": Attack(
        pipe("train-images-idx3-ubyte"), read_images, "", "at least one usable"
    ),
    "a pipe for a shard": Attack(pipe("a.tar", "b.tar"), read_images, "", "not a file"),
}


# Pictures


def png(width: int, height: int, depth: int, color: int, rows: bytes | None = None) -> bytes:
    """A picture of one value, packed to a thousandth."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    channels = {0: 1, 2: 3, 6: 4}[color]
    stride = 1 + width * channels * depth // 8
    deflate = zlib.compressobj(1)
    content = b"".join(deflate.compress(bytes(stride)) for _ in range(height)) + deflate.flush()
    header = struct.pack(">2I5B", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", content)
        + chunk(b"IEND", b"")
    )


def many(content: bytes, count: int = 4) -> Files:
    return {f"{number % 2}/{number}.png": content for number in range(count)}


PICTURES = {
    "16 bits and 80 million pixels": lambda: many(png(9000, 8900, 16, 0), 1),
    "transparent, with 80 million pixels": lambda: many(png(9000, 8900, 8, 6), 2),
    "colors, with 80 million pixels": lambda: many(png(8900, 9000, 8, 2), 1),
    "four billion pixels, of which none is there": lambda: many(
        png(1, 1, 8, 0).replace(struct.pack(">2I", 1, 1), struct.pack(">2I", 65535, 65535))
    ),
}


# Archives


def overlapping(count: int = 2000) -> bytes:
    """Many members that share one: each unpacks to a million bytes."""
    data = bytearray(zipped({"0.png": picture() + bytes(10**6)}))
    end = data.rindex(b"PK\x05\x06")
    start = data.rindex(b"PK\x01\x02", 0, end)
    record = bytes(data[start:end])
    records = b"".join(
        record.replace(b"0.png", b"%d.png" % (number % 10)) for number in range(count)
    )
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(records), start, 0)
    return bytes(data[:start]) + records + tail


def resized(size: int) -> bytes:
    """A zip that says another size of its member, at both places."""
    content = picture()
    data = zipped({"a.png": content, "b.png": picture("L")})
    return data.replace(struct.pack("<I", len(content)), struct.pack("<I", size))


def tar_header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108], header[108:116], header[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    header[124:136] = size.ljust(12, b"\0")
    header[136:148], header[148:156] = b"00000000000\0", b" " * 8
    header[156:157], header[257:265] = kind, b"ustar\x0000"
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def pax(records: bytes, *, kind: bytes = b"x") -> bytes:
    return tar_header(b"pax", octal(len(records)), kind) + padded(records)


def record(key: bytes, value: bytes) -> bytes:
    size = len(key) + len(value) + 3
    size += len(str(size + len(str(size))))
    return b"%d %s=%s\n" % (size, key, value)


SOUND = tar_header(b"a.png", octal(len(picture()))) + padded(picture())
NEGATIVE = b"\xff" + (-1536 & (2**88 - 1)).to_bytes(11, "big")
END = bytes(1024)
TARS = {
    "a size below zero": SOUND + tar_header(b"b.png", NEGATIVE) + END,
    "a size below zero in a header": SOUND
    + pax(record(b"size", b"-2048"))
    + tar_header(b"b.png", octal(5)) + padded(b"12345") + END,
    "a header below zero": SOUND + tar_header(b"p", NEGATIVE, b"x") + END,
    "a header of a gigabyte": SOUND + tar_header(b"p", octal(10**9), b"x") + END,
    "a name of a megabyte": SOUND
    + pax(record(b"path", b"n" * 10**6 + b".png"))
    + tar_header(b"b.png", octal(5)) + padded(b"12345") + END,
    "a header that is read again and again": SOUND
    + pax(b"2 " * 25_000 + b"=") + tar_header(b"b.png", octal(0)) + END,
    "headers of headers": SOUND + pax(b"") * 3000 + tar_header(b"b.png", octal(0)) + END,
    "a file of holes without end": SOUND
    + pax(record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0"))
    + tar_header(b"b.png", octal(512)) + b"99999999\n" + bytes(503) + b"1" * 512,
    "a name of a megabyte, in GNU's way": SOUND
    + tar_header(b"././@LongLink", octal(10**6), b"L") + padded(b"n" * 10**6)
    + tar_header(b"b.png", octal(0)) + END,
}  # fmt: skip


def holes() -> bytes:
    """A CIFAR file of a gigabyte of holes."""
    sparse = record(b"GNU.sparse.major", b"0") + record(b"GNU.sparse.minor", b"1")
    sparse += record(b"GNU.sparse.map", b"1000000000,1") + record(b"GNU.sparse.size", b"1000000001")
    sparse += record(b"GNU.sparse.name", b"data_batch_1")
    return packed(pax(sparse) + tar_header(b"data_batch_1", octal(1)) + padded(b"1") + END)


def repeated(content: bytes, count: int) -> bytes:
    """So many times the content, packed by gzip: the members of a gzip file follow each other."""
    return packed(content) * count


def zeros(count: int) -> bytes:
    """So many zeros, packed by gzip."""
    return repeated(bytes(2**20), count >> 20)


def later(make: Callable[[], Files]) -> Callable[[Path], Any]:
    """Files that take long to make."""
    return lambda folder: write_files(folder, make())


ARCHIVES = {
    "members that overlap": Attack({"a.zip": overlapping()}, read_images, "a.zip", "overlap"),
    "a member that unpacks to a gigabyte": Attack(
        later(lambda: {"a.zip": zipped({"a.png": picture() + bytes(2**26)})}),
        read_images, "a.zip", "more than",
    ),
    "a member said to be short": Attack({"a.zip": resized(40)}, read_images, "a.zip", None),
    "a member said to be long": Attack({"a.zip": resized(2**29)}, read_images, "a.zip", None),
    "a member said to be longest": Attack(
        {"a.zip": resized(2**32 - 2)}, read_images, "a.zip", None
    ),
    **{name: Attack({"a.tar": data}, read_images, "a.tar", None) for name, data in TARS.items()},
    "CIFAR with holes": Attack(
        {"a.tar.gz": holes()}, read_images, "a.tar.gz", "expected"
    ),
    "CIFAR of two gigabytes": Attack(
        {"a.tar.gz": packed(tar_header(b"data_batch_1", octal(2**31))) + zeros(2**28)},
        read_images, "a.tar.gz", "more than",
    ),
    "CIFAR behind two gigabytes": Attack(
        {"a.tar.gz": packed(tar_header(b"x", octal(2**31))) + zeros(2**28)},
        read_images, "a.tar.gz", "beyond",
    ),
    "CIFAR with a header of 200 megabytes": Attack(
        {"a.tar.gz": packed(tar_header(b"x", octal(2 * 10**8), b"x")) + zeros(2**28)},
        read_images, "a.tar.gz", "headers of more",
    ),
}  # fmt: skip


# Arrays


def idx_file(*shape: int, content: bytes = b"") -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + content


def npz_of(
    key: str, header: str, content: bytes = b"", method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """An .npz whose array says what it wants of itself."""
    text = header.encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content
    return zipped({f"{key}.npy": array}, method)


def shaped(kind: str, *shape: int) -> str:
    return str({"descr": kind, "fortran_order": False, "shape": shape})


IDX = "train-images-idx3-ubyte"
ARRAYS = {
    "idx of 64 exabytes": Attack(
        {IDX: idx_file(2**32 - 1, 2**32 - 1, 9)}, read_images, "", "promises"
    ),
    "idx of four billion empty pictures": Attack(
        {IDX: idx_file(2**32 - 1, 0, 0)}, read_images, "", "at least 4 x 4"
    ),
    "idx of a million pixels": Attack(
        {IDX: idx_file(10**6, 1, 1, content=bytes(10**6))}, read_images, "", "at least 4 x 4"
    ),
    "idx longer than declared": Attack(
        {f"{IDX}.gz": packed(idx_file(1, 5, 5)) + zeros(2**31)}, read_images, "", "holds more"
    ),
    "idx that declares what it unpacks to": Attack(
        {f"{IDX}.gz": packed(idx_file(2**31 // 10_000, 100, 100)) + zeros(2**28)},
        read_images, "", "promises",
    ),
    "npz of terabytes": Attack(
        {"a.npz": npz_of("images", shaped("|u1", 10**6, 10**6, 3))},
        read_images, "a.npz", "promises",
    ),
    "npz of empty pictures": Attack(
        {"a.npz": npz_of("images", shaped("|u1", 10**12, 0, 0))}, read_images, "a.npz", "4 x 4"
    ),
    "npz of numbers without size": Attack(
        {"a.npz": npz_of("images", shaped("<U0", 10**9, 9, 9))}, read_images, "a.npz", "expected"
    ),
    "npz of objects": Attack(
        {"a.npz": npz_of("images", shaped("|O", 1), pickle.dumps([Calls(os.system, "true")]))},
        read_images, "a.npz", "not of plain numbers",
    ),
    "npz with a header of code": Attack(
        {"a.npz": npz_of("images", "__import__('os').system('true')")}, read_images, "a.npz",
        "expected an .npz",
    ),
    "npz with a header of brackets": Attack(
        {"a.npz": npz_of("images", "[" * 9000)}, read_images, "a.npz", "expected an .npz"
    ),
    "npz that unpacks to a gigabyte": Attack(
        later(
            lambda: {"a.npz": npz_of("images", shaped("|u1", 3 * 2**18, 32, 32), bytes(3 * 2**28))}
        ),
        read_images, "a.npz", "unpacks to",
    ),
    "npz of floats that grow": Attack(
        later(lambda: {"a.npz": npz_of("images", shaped("|b1", 2**17, 32, 32), bytes(2**27))}),
        read_images, "a.npz", None,
    ),
    "npz with a member that is no array": Attack(
        {"a.npz": zipped({"images": bytes(10**6)})}, read_images, "a.npz", "expected an .npz"
    ),
}  # fmt: skip


# Graphs, text and tasks


def distinct_labels(count: int) -> Files:
    """Nodes of which each has a label of its own: a column each, count² numbers."""
    return {
        **{name: content for name, content in TU.items() if "graph" in name or "_A" in name},
        "T_graph_indicator.txt": b"1\n" * 5 + b"2\n" * (count - 5),
        "T_A.txt": b"1, 2\n",
        "T_graph_labels.txt": b"1\n2\n",
        "T_node_labels.txt": b"".join(b"%d\n" % number for number in range(count)),
    }


def json_line(**keys: Any) -> bytes:
    return json.dumps({"edges": [[0, 1]], **keys}).encode() + b"\n"


GRAPH_FILES: dict[str, tuple[Files | Callable[[Path], Any], str, str]] = {
    "two billion nodes": ({"a.jsonl": json_line(nodes=2_000_000_000)}, "a.jsonl", "2,000,000,000"),
    "10^400 nodes": ({"a.jsonl": json_line(nodes=10**400)}, "a.jsonl", "bytes of memory"),
    "many lines of many nodes": (
        {"a.jsonl": json_line(nodes=10**6) * 100}, "a.jsonl", "bytes of memory"
    ),
    "brackets": ({"a.jsonl": b'{"edges": ' + b"[" * 10**6}, "a.jsonl", "a JSON object"),
    "a name of a megabyte": ({"a.jsonl": json_line(name="n" * 10**6)}, "a.jsonl", "1,000 char"),
    "a label of a megabyte that is no edge": (
        {"a.jsonl": json.dumps({"edges": ["x" * 10**6, *[""] * 3000]}).encode()}, "a.jsonl",
        "pairs of integers",
    ),
    "features of text": (
        {"a.jsonl": json_line(node_features=[["x" * 10**6], *[[""]] * 3000])}, "a.jsonl",
        "node_features",
    ),
    "a line that never ends": (
        {"a.jsonl.gz": packed(b'{"edges": [') + zeros(2**28)}, "a.jsonl.gz", "characters in"
    ),
    "lines that unpack to gigabytes": (
        {"a.jsonl.gz": repeated(lines([{"edges": [[0, 1]] * 10**5}]), 500)}, "a.jsonl.gz",
        "bytes of memory",
    ),
    "graphs without nodes": ({"a.jsonl": b'{"edges":[]}\n' * 50_000}, "a.jsonl", "without any"),
    "a number of a million digits": (
        {"a.jsonl": b'{"edges": [[0, ' + b"9" * 10**6 + b"]]}"}, "a.jsonl", "a JSON object"
    ),
    "an edge beyond all numbers": ({"a.jsonl": json_line(label=1, edges=[[0, 2**70]])}, "a.jsonl",
                                   "pairs of integers"),
    "an unknown key in every line": (
        {"a.jsonl": b"".join(b'{"edges": [[0, 1]], "k%d": 1}\n' % n for n in range(3000))
                    + b"{}"}, "a.jsonl", "with the key 'edges'",
    ),
    "a label for every node": (distinct_labels(30_000), "", "node features of at most"),
    "graphs that have no nodes": (
        {**TU, "T_graph_labels.txt": b"1\n" * 300_000}, "", "without any"
    ),
    "TU that unpacks to 640 megabytes": (
        later(lambda: {"T.zip": zipped({**TU, "T_A.txt": b"1, 2\n" * 2**27})}), "T.zip", "more than"
    ),
    "a line of ten million numbers": (
        {**TU, "T_A.txt": b"1, 2\n" + b"1," * 10**6}, "", "2 integers"
    ),
}  # fmt: skip

TEXTS = {
    "a line of half a gigabyte": Attack(
        {"a.txt.gz": packed(b"word. ") + zeros(2**29)}, read_text, "a.txt.gz", None
    ),
    "a word of a quarter of a gigabyte": Attack(
        {"a.txt.gz": packed(b"A bc.\n") + repeated(b"w" * 2**20, 256)}, read_text, "a.txt.gz", None
    ),
    "text without a space": Attack({"a.txt": b"A.b" * 2**20}, read_text, "a.txt", None),
    "quotations that never end": Attack({"a.txt": b'("[' * 2**19}, read_text, "a.txt", None),
    "ten million lines in a task": Attack(
        {f"MR/rt-polarity.{end}": b"\n" * 10**7 for end in ("pos", "neg")}, read_senteval, "",
        "expected at most",
    ),
}  # fmt: skip


def attacks() -> dict[str, Callable[[], Attack]]:
    """All attacks, by format and name; made when they are asked for."""
    found: dict[str, Callable[[], Attack]] = {}
    for group, some in (
        ("CIFAR", PICKLES), ("folder", FOLDERS), ("archive", ARCHIVES), ("array", ARRAYS),
        ("text", TEXTS),
    ):  # fmt: skip
        for name, attack in some.items():
            found[f"{group}: {name}"] = lambda attack=attack: attack  # type: ignore[misc]
    for name, make in PICTURES.items():
        message = "at least one usable" if "billion" in name else None
        found[f"picture: {name}"] = lambda make=make, message=message: Attack(  # type: ignore[misc]
            make(), read_images, "", message
        )
    for name, (files, target, message) in GRAPH_FILES.items():
        found[f"graph: {name}"] = lambda files=files, target=target, message=message: Attack(  # type: ignore[misc]
            files, read_graphs, target, message
        )
    return found
