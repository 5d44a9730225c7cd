"""Values of options: what a type takes, how a value is typed, and what is wrong with another.

An option is a field of a dataclass. Its type says what it takes; its metadata, made by
:func:`bounded`, within which bounds.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from numbers import Integral, Real
from os import PathLike
from reprlib import Repr
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from unremix.console.suggestions import did_you_mean

LARGEST = 2**63 - 1  # of a whole number, as torch counts
LARGEST_YAML = 2**20  # characters; a file of options has some thousand
MOST_VALUES = 100_000  # of a YAML text, those that its aliases repeat counted each time
LONGEST_NUMBER = 400  # characters

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

Options = TypeVar("Options")  # a dataclass

SHORT = Repr()  # a file may hold values of any size
SHORT.maxstring = SHORT.maxother = 200


# Of each bound: whether a value is within it, and words for one that is not.
BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str, str]] = {
    "least": (operator.ge, "at least", "change"),
    "most": (operator.le, "at most", "lower"),
    "above": (operator.gt, "above", "change"),
    "below": (operator.lt, "below", "change"),
}


class _Bounded(yaml.SafeLoader):
    """YAML of a bounded number of values: a few lines of aliases can stand for any number."""

    values = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        before, repeats = self.values, self.check_event(yaml.AliasEvent)
        node: Any = super().compose_node(parent, index)
        if repeats and not hasattr(node, "values"):
            raise yaml.YAMLError("a value that contains itself")
        self.values += node.values if repeats else 1
        node.values = self.values - before
        if self.values > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES:,} values")
        if node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise yaml.YAMLError(f"a number of {len(node.value):,} characters")
        return cast(yaml.Node, node)


class _Loader(_Bounded):
    """YAML in which 1e-3 is a number, as people type it, and not a text."""


class _Dumper(yaml.SafeDumper):
    """YAML in which a text such as 1e-3 has quotes, so that both loaders read it as a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values in full."""
        return True


for _either in (_Loader, _Dumper):
    _either.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def read_yaml(text: str, *, as_written: bool = False, where: str | PathLike[str] = "") -> Any:
    """YAML as plain values.

    Args:
        text: The YAML.
        as_written: Whether a program wrote it, to which 1e-3 without quotes is a text.
        where: The file, for messages.

    Raises:
        ValueError: For text that is not YAML, or is too large.

    Example:
        >>> read_yaml("{lr: 1e-3, components: [similarity]}")
        {'lr': 0.001, 'components': ['similarity']}
    """
    what = f"YAML in {where}" if where else "YAML"
    if len(text) > LARGEST_YAML:
        raise ValueError(
            f"expected {what} of at most {LARGEST_YAML:,} characters, got {len(text):,}; shorten it"
        )
    try:
        return yaml.load(text, _Bounded if as_written else _Loader)
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:
        raise ValueError(f"expected {what}, got {' '.join(str(error).split())}") from error


def write_yaml(values: Any) -> str:
    r"""Plain values as YAML, in their order; the inverse of :func:`read_yaml`.

    Example:
        >>> write_yaml({"name": "1e-3", "lr": 0.001})
        "name: '1e-3'\nlr: 0.001\n"
    """
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    return text


def bounded(
    default: Any = None,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    rare: bool = False,
    **further: Any,
) -> Any:
    """A field with a default and bounds.

    Args:
        default: Its default.
        least: The smallest value allowed; of a list, the smallest length.
        most: The largest value allowed; of a list, the largest length.
        above: What the value must be larger than.
        below: What the value must be smaller than.
        rare: Whether the short help leaves it out.
        further: More metadata.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below}
    given = {name: value for name, value in bounds.items() if value is not None}
    return field(default=default, metadata={**given, "rare": rare, **further})


def check_bounds(options: Any, prefix: str = "") -> None:
    """Refuse values outside the bounds of their fields.

    Raises:
        ValueError: For such a value; it names the option and the bound.
    """
    for its in fields(options):
        value = getattr(options, its.name)
        if value is None or isinstance(value, str):
            continue
        verb, size, entries = "be", value, ""
        if isinstance(value, tuple):
            verb, size, entries = "have", len(value), " entries"
        for name, (holds, words, remedy) in BOUNDS.items():
            if name in its.metadata and not holds(size, bound := its.metadata[name]):
                raise ValueError(
                    f"expected {prefix}{its.name} to {verb} {words} {bound}{entries}, got {size}; "
                    f"{remedy} it"
                )


class Checked:
    """A dataclass of options derived from this refuses wrong types and numbers out of bounds."""

    def __post_init__(self) -> None:
        check_types(self)
        check_bounds(self)


def expected(hint: Any) -> str:
    """What a value of a type is, in words.

    Example:
        >>> expected(int | None), expected(Literal["cpu", "gpu"]), expected(tuple[int, ...])
        ('a whole number', 'cpu or gpu', 'a list such as [a whole number, ...]')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        *most, last = map(str, inner)
        return f"{', '.join(most)} or {last}" if most else last
    if origin in (tuple, list):
        return f"a list such as [{expected(inner[0])}, ...]"
    if origin is dict:
        return 'options by name, such as "{epochs: 5}"'
    if inner:
        return " or ".join(expected(one) for one in inner if one is not NoneType)
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return known.get(hint, "a dictionary of options")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; whole numbers of 64 bits are numbers, and lists are tuples."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (tuple, list):
        return isinstance(value, tuple | list) and all(fits(one, inner[0]) for one in value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if isinstance(value, int) and abs(value) > LARGEST:
        return False
    kinds: dict[Any, Any] = {int: Integral, float: Real, Any: object}
    return isinstance(value, kinds.get(hint, origin or hint))


def typed(text: str, hint: Any) -> Any:
    """The value that a text on the command line stands for; the text itself if it is none.

    Example:
        >>> typed("1e-3", float), typed("007", str), typed("null", int | None), typed("x", int)
        (0.001, '007', None, 'x')
        >>> typed("[a.py, b.py]", tuple[str, ...]), typed("a.py", tuple[str, ...])
        (['a.py', 'b.py'], ['a.py'])
    """
    if fits("", hint) and set(get_args(hint)) <= {str, NoneType}:
        return None if text == "null" and fits(None, hint) else text
    try:
        value = read_yaml(text)
    except ValueError:
        return text
    if not fits(value, hint) and fits([value], hint):
        return [value]  # a list of one, without brackets
    return value if fits(value, hint) else text


def adapted(value: Any, hint: Any) -> Any:
    """A value of a type as exactly that type: lists as tuples, whole numbers as floats.

    Example:
        >>> adapted([1, 0], tuple[float, ...] | None), adapted(1, int | str), adapted("x", int)
        ((1.0, 0.0), 1, 'x')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return adapted(value, next((one for one in inner if fits(value, one)), None))
    if origin is tuple and isinstance(value, tuple | list):
        return tuple(adapted(one, inner[0]) for one in value)
    return float(value) if hint is float and fits(value, int) else value


def mismatch(name: str, value: Any, hint: Any) -> str:
    """The error for a value of the wrong type.

    Example:
        >>> mismatch("epochs", "3", int | None)
        "expected epochs to be a whole number, got '3'; write 3, without quotes"
    """
    read, remedy = value, "; change it, or leave it out"
    if isinstance(value, str):
        with suppress(ValueError):
            read = read_yaml(value)
    if isinstance(read, int) and abs(read) > LARGEST:
        remedy = f"; the largest is {LARGEST}"
    elif not isinstance(read, str) and fits(read, hint):
        remedy = f"; write {value}, without quotes"
    elif fits([read], hint):
        remedy = f'; write "[{value}]"'
    elif isinstance(value, str):
        remedy = did_you_mean(value, map(str, _choices(hint))) or remedy
    return f"expected {name} to be {expected(hint)}, got {SHORT.repr(value)}{remedy}"


def _choices(hint: Any) -> list[Any]:
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return list(inner)
    return [choice for one in inner for choice in _choices(one)]


def check_types(options: Any, prefix: str = "", skip: tuple[str, ...] = ()) -> None:
    """Refuse values of another type than their field's; None is a value not given.

    Raises:
        TypeError: For a value of another type.
        ValueError: For a word that is none of those to choose from.
    """
    hints = get_type_hints(type(options))
    for name in (its.name for its in fields(options) if its.name not in skip):
        value, hint = getattr(options, name), hints[name]
        if value is not None and not fits(value, hint):
            too_large = isinstance(value, int) and abs(value) > LARGEST
            word = isinstance(value, str) and _choices(hint)
            kind = ValueError if word or too_large else TypeError
            raise kind(mismatch(f"{prefix}{name}", value, hint))


def make_options(kind: type[Options], values: Any, prefix: str = "") -> Options:
    """A dataclass of options from values by name, its types and bounds checked.

    Args:
        kind: The dataclass.
        values: Values by name, or a dataclass with the same fields. A value that is None and has
            another default is not given.
        prefix: What stands before a name in messages.

    Raises:
        ValueError: For an option that does not exist, or a value out of bounds.
        TypeError: For a value of another type.
    """
    given = dict(values if isinstance(values, Mapping) else vars(values))
    names = [its.name for its in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise UnknownOptionError(str(name), names, prefix)
    plain = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    made = kind(**plain)
    check_types(made, prefix)
    check_bounds(made, prefix)
    return made


class UnknownOptionError(ValueError, TypeError):
    """An option that does not exist: wrong in a file, and no argument of a function.

    Args:
        name: Its name.
        names: Those that exist.
        prefix: What stands before a name in messages.
    """

    def __init__(self, name: str, names: Iterable[str], prefix: str = "") -> None:
        hint = did_you_mean(name, names) or f"; choose among {', '.join(names)}"
        super().__init__(f"expected an option that exists, got {prefix}{name}{hint}")
