"""CIFAR's reader. Its pickles are data: no name in them is looked up, nothing of theirs is called.

A pickle is a program that calls what it names. Here, Python's own unpickler runs it with only the
instructions that CIFAR's pickles use. The few names in these stand for methods of the unpickler
below, which check all that is said of an array before NumPy sees it.

The unpickler is the one written in Python, whose dictionaries can be replaced. The one written in C
computes the hash of any tuple given as a key: nested tuples of a few hundred bytes keep it busy
forever, or overflow the stack.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unremix.domains.image.decoding import ACCEPTED, ImageSplits, Pixels, of_array
from unremix.files.archives import Skipped, open_tar
from unremix.files.bounds import allowance, shorten, sound

CIFAR_TRAIN = ("train", *(f"data_batch_{number}" for number in range(1, 6)))
CIFAR_TEST = ("test", "test_batch")
MOST_CLASSES = 10_000  # CIFAR has 10 or 100
CIFAR_FILES = (*CIFAR_TRAIN, *CIFAR_TEST, "meta", "batches.meta")
MOST_INSTRUCTIONS = 2_000_000  # CIFAR-100's training file has some 250,000
INSTRUCTIONS = frozenset(
    [
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT"),
        *("BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING"),
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_DICT", "DICT", "SETITEM"),
        *("SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET"),
        *("LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    ]
)
SIMPLE = (str, bytes, int, float, type(None))


def tar_pickles(path: Path) -> dict[str, bytes]:
    """The CIFAR files in a compressed tar, read into memory."""
    pickles: dict[str, bytes] = {}
    most = allowance(path.stat().st_size)
    expected = sound("a .tar.gz of CIFAR pickles", path, "download it again")
    with expected, open_tar(path, packed=True) as archive:
        for member in archive.files():
            name = posixpath.basename(member.name)
            if name in CIFAR_FILES:
                pickles[name] = archive.read(member, most - sum(map(len, pickles.values())))
    return pickles


def _unpickle(name: str, data: bytes) -> Mapping[str, Any]:
    try:
        return read_pickle(data)
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(
            f"expected a CIFAR pickle with arrays and labels only, got {name}: "
            f"{shorten(error)}; download the official python version again"
        ) from error


def read_cifar(name: str, pickles: Mapping[str, bytes], path: Path) -> ImageSplits:
    """CIFAR-10 or CIFAR-100 from its python pickles."""
    train = [key for key in CIFAR_TRAIN if key in pickles]
    if not train:
        raise ValueError(
            f"expected CIFAR pickles (data_batch_1 .. data_batch_5 or train), got {path} "
            f"without; accepted are {ACCEPTED}"
        )
    absent = [] if train == ["train"] else [key for key in CIFAR_TRAIN[1:] if key not in pickles]
    splits = []
    for title, keys in (("train", train), ("test", [key for key in CIFAR_TEST if key in pickles])):
        batches = [_cifar_batch(key, _unpickle(key, pickles[key])) for key in keys]
        if batches:
            labels = [label for _, labels in batches for label in labels]
            splits.append(of_array(title, np.concatenate([some for some, _ in batches]), labels))
    most = max((label for split in splits for label in split.labels or ()), default=0)
    classes = _cifar_classes(pickles) or [str(label) for label in range(most + 1)]
    if most >= len(classes):
        raise ValueError(
            f"expected labels below {len(classes)}, the number of class names in {path}, got "
            f"{most}; the files belong to different data sets"
        )
    splits = [replace(split, classes=classes) for split in splits]
    return ImageSplits(name, splits, [Skipped(key, "missing") for key in absent])


def _cifar_classes(pickles: Mapping[str, bytes]) -> list[str] | None:
    for key, field_name in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        names = _unpickle(key, pickles[key]).get(field_name) if key in pickles else None
        if names is None:
            continue
        few = isinstance(names, list) and 0 < len(names) <= MOST_CLASSES
        if not few or not all(isinstance(name, str | bytes) for name in names):
            raise ValueError(
                f"expected {field_name} in {key} as a list of at most {MOST_CLASSES:,} names, "
                f"got {shorten(names)}; download the official python version again"
            )
        return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]
    return None


def _cifar_batch(name: str, batch: Mapping[str, Any]) -> tuple[Pixels, list[int]]:
    """Images of shape (n, 32, 32, 3), and labels."""
    data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    if (
        not isinstance(data, np.ndarray)
        or not isinstance(labels, list)
        or data.shape != (len(labels), 3072)
        or not all(type(label) is int and 0 <= label < MOST_CLASSES for label in labels)
    ):
        fields = shorten(", ".join(sorted(batch)))
        raise ValueError(
            f"expected data of shape (n, 3072), uint8, and n labels below {MOST_CLASSES:,} in "
            f"{name}, got {getattr(data, 'shape', type(data).__name__)} and fields {fields}; "
            "download the official python version again"
        )
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


class Refused(Exception):
    """What a pickle asks for that CIFAR's do not."""


def read_pickle(data: bytes) -> Mapping[str, Any]:
    """The dictionary in a pickle of text, numbers, lists of these and arrays of bytes.

    Args:
        data: The pickle, of any protocol up to 4.

    Returns:
        By field, with names as text; arrays are uint8 in row-major order.

    Raises:
        Refused: If it holds or asks for anything else.
        ValueError: If it is broken.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps({"labels": [3, 5]}, protocol=2))
        {'labels': [3, 5]}
    """
    for count, (instruction, _, _) in enumerate(pickletools.genops(data)):
        if count == MOST_INSTRUCTIONS:
            raise Refused(f"it has more than {MOST_INSTRUCTIONS:,} values")
        if instruction.name not in INSTRUCTIONS:
            raise Refused(f"it uses the instruction {instruction.name}, which is not needed")
    content = _Unpickler(data).load()
    if not isinstance(content, _Fields):
        raise Refused(f"it holds a {type(content).__name__}, not a dictionary")
    return {name: _checked(name, value) for name, value in content.items()}


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, list) and not all(isinstance(item, SIMPLE) for item in value):
        raise Refused("it has a list of something other than text and numbers")
    if not isinstance(value, (*SIMPLE, list, _Array)):
        raise Refused(f"it has a {type(value).__name__} in the field {name[:40]!r}")
    return value.values if isinstance(value, _Array) else value


class _Fields(dict[str, Any]):
    """A dictionary by names: the hash of a tuple could take forever."""

    def __setitem__(self, name: Any, value: Any) -> None:
        if not isinstance(name, str | bytes):
            raise Refused(f"it has a field named by a {type(name).__name__}")
        super().__setitem__(name.decode("latin1") if isinstance(name, bytes) else name, value)


class _ByteType:
    """Stands for ``numpy.dtype('u1')``."""

    def __init__(self, kind: str, _align: int, _copy: int) -> None:
        if kind not in ("u1", "|u1", "uint8"):
            raise Refused(f"it has an array of {kind[:20]!r}, not of bytes (u1)")


class _Array:
    """Stands for an array whose values may still come."""

    values: Pixels | None = None

    def __init__(self, kind: type, shape: tuple[int, ...], _type: object) -> None:
        if kind is not _Array or shape != (0,):
            raise Refused("it makes an array in an unknown way")


class _Unpickler(pickle._Unpickler):  # `dispatch` has a method for each instruction
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.left = allowance(len(data))  # bytes that what the pickle makes of itself may take
        self.names = {
            "_codecs.encode": self._encode,
            "builtins.bytes": lambda: b"",
            "__builtin__.bytes": lambda: b"",
            "numpy.ndarray": _Array,
            "numpy.dtype": _ByteType,
            "numpy.core.multiarray._reconstruct": _Array,
            "numpy._core.multiarray._reconstruct": _Array,
        }

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for here."""
        found = self.names.get(f"{module}.{name}")
        if found is None:
            raise Refused(f"it asks for {module[:60]}.{name[:60]}, which is not allowed")
        return found

    def _encode(self, text: str, codec: str) -> bytes:
        """How a pickle of protocol 2 writes bytes; no other codec is needed."""
        if codec not in ("latin1", "latin-1"):
            raise Refused(f"it asks for the codec {codec[:40]}, which is not allowed")
        self._take(len(text))
        return text.encode("latin1")

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Refused("it makes more of itself than a file of its size may")

    def _array(self, state: Any) -> Pixels:
        """The array of a state: version, shape, type, whether column-major, and the bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refused("it has an array of an unknown form")
        _version, shape, kind, by_columns, content = state
        if not isinstance(kind, _ByteType) or by_columns:
            raise Refused("it has an array that is not of bytes (u1) in row-major order")
        content = content.encode("latin1") if isinstance(content, str) else content
        sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not sizes or not isinstance(content, bytes) or len(content) != math.prod(shape):
            raise Refused("it has an array whose shape does not match its bytes")
        self._take(len(content))
        # Of a bytearray, since the array of immutable bytes could not be written to.
        array: Pixels = np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)
        return array

    def load_empty_dict(self) -> None:
        self.stack.append(_Fields())

    def load_dict(self) -> None:
        items, fields = self.pop_mark(), _Fields()
        for name, value in zip(items[::2], items[1::2], strict=True):
            fields[name] = value
        self.stack.append(fields)

    def load_build(self) -> None:
        """Give an array its state, or a type its own, which says nothing new."""
        state, thing = self.stack.pop(), self.stack[-1]
        if isinstance(thing, _Array):
            thing.values = self._array(state)
        elif not isinstance(thing, _ByteType):
            raise Refused(f"it gives a state to a {type(thing).__name__}")
        elif not isinstance(state, tuple) or state[1:5] != ("|", None, None, None):
            raise Refused("it has an array of something other than bytes")

    dispatch = pickle._Unpickler.dispatch | {  # type: ignore[assignment]
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.DICT[0]: load_dict,
        pickle.BUILD[0]: load_build,
    }
