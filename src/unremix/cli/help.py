"""The help of each command; of train and compare, the options for your kind of data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from inspect import Parameter, signature
from typing import Any

from unremix.cli.commands import COMMANDS, SUMMARIES
from unremix.cli.parser import (
    CONFIG,
    DRY_RUN,
    HIDDEN,
    SHORT,
    argument,
    by_position,
    load_typed,
    usage_of,
)
from unremix.domains import DOMAINS, Domain, default_domain
from unremix.domains.options import INTERNAL, SELECTIVE, TrainConfig
from unremix.experiments.plan import OWN, CompareConfig, domain_of
from unremix.frameworks.parts import described, section_of, written
from unremix.frameworks.recipe import PARTS, domains_of, sections

WIDTH = 80
NAMES = 20  # columns of the options' names
ROOM = WIDTH - NAMES - 2


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
    skip = {*INTERNAL, *(("progress", *OWN) if command == "compare" else ())}
    shared = [its for its in fields(TrainConfig) if its.name not in skip]
    lines += ["", "common options"]
    lines += _options([one for one in shared if one.name not in SELECTIVE], domain, everything)
    lines += _sections(None, everything)
    others = [one for one in DOMAINS.values() if one is not domain]
    foreign = set(SELECTIVE) - domain.uses
    rare = {its.name: None for its in shared if its.metadata["rare"] and its.name not in foreign}
    for one in [domain, *others] if everything else [domain]:
        lines += ["", f"for {one.name} data"]
        lines += _lines("--data", one.reads, "") if everything else []
        lines += _options([its for its in shared if its.name in one.uses], one, everything)
        lines += _own(one, everything)
        lines += _sections(one.name, everything)
        if not one.section:
            rare |= {its.name: None for its in fields(one.options) if its.metadata.get("rare")}
    if not everything:
        more = " ".join(f"--{name}" for name in rare)
        lines += ["", *textwrap.wrap(f"more: {more}", WIDTH, subsequent_indent="  ")]
        names = " or ".join(one.name for one in others)
        lines += textwrap.wrap(
            f"--help_all shows all options in full, --help --domain {names} those "
            "for other data. unremix recipes lists the recipes and their parts.",
            WIDTH,
        )
    return "\n".join(lines)


def command_help(command: str) -> str:
    """The help of a command other than train and compare: what it needs, then its options."""
    function = COMMANDS[command]
    lines = [f"usage: {usage_of(command)}", "", SUMMARIES[command], ""]
    texts = described(function)
    for name, its in signature(function).parameters.items():
        unset = its.default in (Parameter.empty, None) or its.default is False
        usual = "" if unset else written(its.default)
        label = f"{SHORT[name]}, --{name}" if name in SHORT else f"--{name}"
        label = argument(command, its) if by_position(command, its) else label
        lines += [] if name == HIDDEN else _lines(label, texts[name], usual)
    return "\n".join(lines)


def _domain(words: Sequence[str]) -> Domain:
    """The kind of data that was typed, or that of the recipe."""
    typed = re.findall(r"--(domain|imports|recipes?)[= ](\[.*?\]|\S+)", " ".join(words))
    given: dict[str, str] = dict(typed)
    if "imports" in given:
        load_typed(given["imports"])
    recipe = given.get("recipe") or given.get("recipes") or ""
    return DOMAINS.get(given.get("domain") or domain_of(recipe) or "") or default_domain()


def _options(options: Sequence[Field[Any]], domain: Domain, everything: bool) -> Iterator[str]:
    """The lines of some options that all kinds of data share, with the defaults of one."""
    texts = described(TrainConfig)
    texts["domain"] += f" It is one of {', '.join(DOMAINS)}."
    for its in options:
        if everything or not its.metadata["rare"]:
            usual = domain.defaults.get(its.name, its.metadata["usual"])
            shown = "" if usual is None or usual == () else written(usual)
            yield from _option(its.name, texts[its.name], shown, everything)


def _own(domain: Domain, everything: bool) -> Iterator[str]:
    """The lines of the options of a kind of data."""
    if domain.section and not everything:
        yield from _names(domain.section, domain.options)
        return
    texts, prefix = described(domain.options), f"{domain.section}." if domain.section else ""
    for its in fields(domain.options):
        if everything or not its.metadata.get("rare"):
            shown = "" if its.default in (None, ()) else written(its.default)
            yield from _option(prefix + its.name, texts[its.name], shown, everything)


def _option(name: str, text: str, usual: str, everything: bool) -> list[str]:
    """The lines of an option; one line unless everything is shown."""
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


def _sections(domain: str | None, everything: bool) -> Iterator[str]:
    """The options of the parts that only one kind of data has, or of those that several have."""
    for section, options in sections().items():
        served = {
            one
            for kind, known in PARTS.items()
            for name, part in known.items()
            if section_of(part) == section
            for one in domains_of(kind, name)
        }
        if served == {domain} or (domain is None and len(served) > 1):
            if not everything:
                yield from _names(section, options)
                continue
            for option, text in described(options).items():
                yield from _option(f"{section}.{option}", text, "", True)


def _names(section: str, options: type) -> list[str]:
    """The names of the options of a section."""
    inner = f"--{section}." + ", ".join(its.name for its in fields(options))
    return textwrap.wrap(inner, WIDTH, initial_indent="  ", subsequent_indent="    ")
