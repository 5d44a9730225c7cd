"""The help of each command; of train and compare, the options for your kind of data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

from unremix.cli.commands import SUMMARIES
from unremix.cli.parser import (
    CONFIG,
    DRY_RUN,
    HIDDEN,
    SHORT,
    argument,
    by_position,
    function_of,
    usage_of,
)
from unremix.experiments.plan import OWN, CompareConfig, domain_of
from unremix.frameworks.parts import described, section_of, written
from unremix.options.config import TrainConfig, default_of
from unremix.recipes import PARTS, sections

WIDTH = 80
NAMES = 20  # columns of the options' names
ROOM = WIDTH - NAMES - 2
NO_HELP = ("given", "held", "graph", "sentence")  # sections have lines of their own


def options_help(command: str, words: Sequence[str], *, everything: bool) -> str:
    """The help of train and compare.

    Args:
        command: train or compare.
        words: What else was typed; the domain, or that of the recipe, is shown first.
        everything: Whether to show all options of all domains in full.
    """
    domain = _domain(words)
    lines = [f"usage: {usage_of(command)}", ""]
    lines += _option("config", CONFIG, "", everything)
    lines += _option("dry_run", DRY_RUN, "", everything)
    if command == "compare":
        for its in fields(CompareConfig):
            usual = "" if its.default in (MISSING, None) else written(its.default)
            lines += _option(its.name, described(CompareConfig)[its.name], usual, everything)
    skip = {*NO_HELP, *(("progress", *OWN) if command == "compare" else ()), *sections()}
    texts = described(TrainConfig)
    shown = [its for its in fields(TrainConfig) if its.name not in skip]
    groups = [(None, "common options"), (domain, f"for {domain} data")]
    others = [one for one in ("image", "graph", "sentence") if one != domain]
    groups += [(one, f"for {one} data") for one in others] if everything else []
    for of, heading in groups:
        own = [its for its in shown if its.metadata["domain"] == of]
        lines += ["", heading]
        for its in own:
            if everything or not its.metadata["rare"]:
                usual = _usual(its, of or domain)
                lines += _option(its.name, texts.get(its.name, ""), usual, everything)
        lines += [line for part in _sections(of, domain, everything) for line in part]
    if not everything:
        rare = " ".join(f"--{its.name}" for its in shown if its.metadata["rare"])
        lines += ["", *textwrap.wrap(f"more: {rare}", WIDTH, subsequent_indent="  ")]
        lines += textwrap.wrap(
            f"--help_all shows all options in full, --help --domain {' or '.join(others)} those "
            "for other data. unremix recipes lists the recipes and their parts.",
            WIDTH,
        )
    return "\n".join(lines)


def command_help(command: str) -> str:
    """The help of a command other than train and compare: what it needs, then its options."""
    function = function_of(command)
    lines = [f"usage: {usage_of(command)}", "", SUMMARIES[command], ""]
    texts = described(function)
    for name, its in signature(function).parameters.items():
        unset = its.default in (Parameter.empty, None) or its.default is False
        usual = "" if unset else written(its.default)
        label = f"{SHORT[name]}, --{name}" if name in SHORT else f"--{name}"
        label = argument(command, its) if by_position(command, its) else label
        lines += [] if name == HIDDEN else _lines(label, texts[name], usual)
    return "\n".join(lines)


def _domain(words: Sequence[str]) -> str:
    """The domain that was typed, or that of the recipe."""
    given: dict[str, str] = dict(re.findall(r"--(domain|recipes?)[= ](\S+)", " ".join(words)))
    if given.get("domain") in ("image", "graph", "sentence"):
        return given["domain"]
    return domain_of(given.get("recipe") or given.get("recipes") or "") or "image"


def _usual(its: Field[Any], domain: str) -> str:
    usual = default_of(its, domain)
    return "" if usual is None or usual == () else written(usual)


def _option(name: str, text: str, usual: str, everything: bool) -> list[str]:
    """The lines of an option; where not everything is shown, one line and its name."""
    if not everything:
        text = re.split(r"(?<=\w)(?:\. |\.$|; |, by default|: (?=the embedded))", text)[0]
        room = ROOM - (len(usual) + 3) * bool(usual)
        text = textwrap.shorten(text, room, placeholder=" ...")
    return _lines(f"--{name}", text, usual)


def _lines(label: str, text: str, usual: str) -> list[str]:
    """What is typed, what it is, and its default in brackets."""
    texts = textwrap.wrap(text + (f" [{usual}]" if usual else ""), ROOM)
    label = f"  {label}"
    lines = [" " * (NAMES + 2) + line for line in texts]
    if len(label) > NAMES:
        return [label, *lines]
    return [f"{label:<{NAMES}}  {texts[0]}", *lines[1:]]


def _sections(of: str | None, domain: str, everything: bool) -> Iterator[list[str]]:
    """Of a domain, its own options and those of the parts that are for it."""
    kinds: dict[str, Any] = {}
    if of is not None and of != "image":
        kinds[of] = next(its for its in fields(TrainConfig) if its.name == of).default_factory
    for name, kind in sections().items():
        parts = [part for known in PARTS.values() for part in known.values()]
        for_domains = {
            one
            for part in parts
            if section_of(part) == name
            for one in getattr(part, "domains", ("image", "graph", "sentence"))
        }
        if (of is None and len(for_domains) > 1) or for_domains == {of}:
            kinds[name] = kind
    for name, kind in kinds.items():
        assert is_dataclass(kind)
        if everything:
            for option, text in described(kind).items():
                yield _option(f"{name}.{option}", text, "", True)
        else:
            inner = f"--{name}." + ", ".join(its.name for its in fields(kind))
            yield textwrap.wrap(inner, WIDTH, initial_indent="  ", subsequent_indent="    ")
