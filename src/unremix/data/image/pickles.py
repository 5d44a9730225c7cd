"""CIFAR's pickles, read as data: no name in them is looked up, and nothing is called.

A pickle is a program that calls what it names. This reader runs only the instructions that build
dictionaries of text, numbers, lists of these and arrays of bytes; the names of NumPy's functions
stand for inert descriptions, which become an array once everything about it is checked.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unremix.data.image.decoding import Pixels

DEEPEST = 3  # tuples in tuples: the state of an array holds its shape
MOST_INSTRUCTIONS = 2_000_000  # CIFAR-100's training file has some 250,000

_MARK = object()
_VALUES = frozenset(
    [
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    ]
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Refused(Exception):
    """What a pickle asks for that CIFAR's do not."""


class Name(NamedTuple):
    """What a pickle names. It is compared, never looked up."""

    module: str
    name: str


@dataclass
class ByteType:
    """Stands for ``numpy.dtype('u1')``."""


@dataclass
class Array:
    """Stands for an array whose state may still come."""

    values: Pixels | None = None


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
    content = _Machine().run(data)
    if not isinstance(content, dict):
        raise Refused(f"it holds a {type(content).__name__}, not a dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: value.values
        if isinstance(value, Array)
        else value
        for key, value in content.items()
    }


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.instructions: dict[str, Callable[[Any], None]] = {
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "MARK": lambda _: self.stack.append(_MARK),
            "DICT": lambda _: self._push_dict({}, self._since_mark()),
            "LIST": lambda _: self._push_list([], self._since_mark()),
            "TUPLE": lambda _: self._push_tuple(tuple(self._since_mark())),
            "SETITEM": self._set_item,
            "SETITEMS": lambda _: self._set_items_of_top(self._since_mark()),
            "APPEND": lambda _: self._extend_top([self._pop()]),
            "APPENDS": lambda _: self._extend_top(self._since_mark()),
            "GLOBAL": lambda names: self.stack.append(Name(*names.split(" ", 1))),
            "STACK_GLOBAL": self._name,
            "REDUCE": self._reduce,
            "BUILD": self._build,
        }
        for name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.instructions[name] = self._remember
        for name in ("GET", "BINGET", "LONG_BINGET"):
            self.instructions[name] = self._recall
        self.instructions["MEMOIZE"] = lambda _: self._remember(len(self.memo))

    def run(self, data: bytes) -> Any:
        for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
            name = operation.name
            if count == MOST_INSTRUCTIONS:
                raise Refused(f"it has more than {MOST_INSTRUCTIONS:,} values")
            if name in _VALUES:
                self.stack.append(argument)
            elif name in self.instructions:
                self.instructions[name](argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _TUPLES:
                self._push_tuple(self._pop_many(_TUPLES[name]))
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise Refused(f"it uses the instruction {name}, which is not needed")
        return self._pop()

    def _pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refused("an instruction lacks its values")
        return self.stack.pop()

    def _pop_many(self, count: int) -> tuple[Any, ...]:
        return tuple(self._pop() for _ in range(count))[::-1]

    def _since_mark(self) -> list[Any]:
        items = []
        while self.stack and self.stack[-1] is not _MARK:
            items.append(self.stack.pop())
        if not self.stack:
            raise Refused("an instruction lacks its values")
        self.stack.pop()
        return items[::-1]

    def _push_tuple(self, items: tuple[Any, ...]) -> None:
        if _depth(items) > DEEPEST:
            raise Refused(f"it nests tuples more than {DEEPEST} deep")
        self.stack.append(items)

    def _push_list(self, items: list[Any], more: list[Any]) -> None:
        if not all(isinstance(item, str | bytes | int | float) for item in more):
            raise Refused("it has a list of something other than text and numbers")
        items += more
        self.stack.append(items)

    def _extend_top(self, more: list[Any]) -> None:
        items = self._pop()
        if not isinstance(items, list):
            raise Refused(f"it appends to a {type(items).__name__}")
        self._push_list(items, more)

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._set_items_of_top([key, value])

    def _set_items_of_top(self, items: list[Any]) -> None:
        fields = self._pop()
        if not isinstance(fields, dict):
            raise Refused(f"it puts a field into a {type(fields).__name__}")
        self._push_dict(fields, items)

    def _push_dict(self, fields: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise Refused("a field lacks its value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise Refused(f"it has a field named by a {type(key).__name__}")
            if isinstance(value, dict | tuple | Name | ByteType):
                raise Refused(f"it has a {type(value).__name__} in the field {key[:40]!r}")
            fields[key] = value
        self.stack.append(fields)

    def _remember(self, place: int) -> None:
        value = self._pop()
        self.memo[place] = value
        self.stack.append(value)

    def _recall(self, place: int) -> None:
        if place not in self.memo:
            raise Refused("it recalls what it never stored")
        self.stack.append(self.memo[place])

    def _name(self, _: Any) -> None:
        module, name = self._pop_many(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Refused("it names something by other than text")
        self.stack.append(Name(module, name))

    def _reduce(self, _: Any) -> None:
        """What the few calls in CIFAR's pickles stand for."""
        name, arguments = self._pop_many(2)
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise Refused("it calls something that has no name")
        if name == ("_codecs", "encode"):
            self.stack.append(_encoded(*_exactly(arguments, str, str)))
        elif name in (("builtins", "bytes"), ("__builtin__", "bytes")) and not arguments:
            self.stack.append(b"")
        elif name == ("numpy", "dtype"):
            kind, _align, _copy = _exactly(arguments, str, int, int)
            if kind not in ("u1", "|u1", "uint8"):
                raise Refused(f"it has an array of {kind[:20]!r}, not of bytes (u1)")
            self.stack.append(ByteType())
        elif name in (("numpy.core.multiarray", "_reconstruct"),
                      ("numpy._core.multiarray", "_reconstruct")):  # fmt: skip
            if arguments[:2] != (Name("numpy", "ndarray"), (0,)):
                raise Refused("it makes an array in an unknown way")
            self.stack.append(Array())
        else:
            raise Refused(f"it asks for {name.module[:60]}.{name.name[:60]}, which is not allowed")

    def _build(self, _: Any) -> None:
        """Give an array its state, or a type its own, which says nothing new."""
        thing, state = self._pop_many(2)
        if isinstance(thing, ByteType):
            if not isinstance(state, tuple) or state[1:5] != ("|", None, None, None):
                raise Refused("it has an array of something other than bytes")
        elif isinstance(thing, Array):
            thing.values = _array(state)
        else:
            raise Refused(f"it gives a state to a {type(thing).__name__}")
        self.stack.append(thing)


def _depth(items: tuple[Any, ...]) -> int:
    """How deep tuples are nested; each inner one was checked when it was made."""
    return 1 + max((_depth(item) for item in items if isinstance(item, tuple)), default=0)


def _exactly(arguments: tuple[Any, ...], *kinds: type) -> tuple[Any, ...]:
    if len(arguments) != len(kinds) or not all(map(isinstance, arguments, kinds)):
        raise Refused("it calls a function with unknown arguments")
    return arguments


def _encoded(text: str, codec: str) -> bytes:
    """How a pickle of protocol 2 writes bytes; no other codec is needed."""
    if codec not in ("latin1", "latin-1"):
        raise Refused(f"it asks for the codec {codec[:40]}, which is not allowed")
    return text.encode("latin1")


def _array(state: Any) -> Pixels:
    """The array of a state: version, shape, type, whether column-major, and the bytes."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise Refused("it has an array of an unknown form")
    _version, shape, kind, by_columns, content = state
    if not isinstance(kind, ByteType) or by_columns:
        raise Refused("it has an array that is not of bytes (u1) in row-major order")
    content = content.encode("latin1") if isinstance(content, str) else content
    sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or not isinstance(content, bytes) or len(content) != math.prod(shape):
        raise Refused("it has an array whose shape does not match its bytes")
    # Of a bytearray, since the array of immutable bytes could not be written to.
    array: Pixels = np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)
    return array
