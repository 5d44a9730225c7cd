"""The help of each command; of train and compare, the options for your kind of data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from unremix.cli import parser
from unremix.cli.commands import COMMANDS, SUMMARIES
from unremix.domains import DOMAINS, Domain, default_domain
from unremix.domains.options import INTERNAL, SELECTIVE, TrainConfig
from unremix.experiments.plan import OWN, CompareConfig, domain_of
from unremix.frameworks.parts import described, section_of, written
from unremix.frameworks.recipe import PARTS, domains_of, sections

WIDTH = 80
NAMES = 20  # columns of the options' names
ROOM = WIDTH - NAMES - 2


def options_help(command: str, words: Sequence[str], everything: bool) -> str:
    """The help of train and compare.

    Args:
        command: train or compare.
        words: What else was typed; the domain, or that of the recipe, is shown first.
        everything: Whether to show all options of all domains in full.
    """
    domain = _domain(words)
    lines = [f"usage: {parser.usage_of(command)}", ""]
    lines += _option("config", parser.CONFIG, "", everything)
    lines += _option("dry_run", parser.DRY_RUN, "", everything)
    if command == "compare":
        lines += _options(CompareConfig, everything)
    skip = {*INTERNAL, *(("progress", *OWN) if command == "compare" else ())}
    shared = [its for its in fields(TrainConfig) if its.name not in skip]
    lines += ["", "common options"]
    common = [its for its in shared if its.name not in SELECTIVE]
    lines += _options(TrainConfig, everything, some=common, usual=domain.defaults)
    lines += _sections(None, everything)
    others = [one for one in DOMAINS.values() if one is not domain]
    foreign = set(SELECTIVE) - domain.uses
    rare = {its.name: None for its in shared if its.metadata["rare"] and its.name not in foreign}
    for one in [domain, *others] if everything else [domain]:
        lines += ["", f"for {one.name} data"]
        lines += _lines("--data", one.reads, "") if everything else []
        used = [its for its in shared if its.name in one.uses]
        lines += _options(TrainConfig, everything, some=used, usual=one.defaults)
        lines += _section(one.section, one.options, everything)
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
    lines = [f"usage: {parser.usage_of(command)}", "", SUMMARIES[command], ""]
    texts = described(COMMANDS[command])
    for name, its in parser.parameters_of(command).items():
        unset = parser.is_needed(its) or its.default is None or its.default is False
        label = f"{parser.SHORT[name]}, --{name}" if name in parser.SHORT else f"--{name}"
        label = parser.argument(its) if parser.by_position(its) else label
        lines += _lines(label, texts[name], "" if unset else written(its.default))
    return "\n".join(lines)


def _domain(words: Sequence[str]) -> Domain:
    """The kind of data that was typed, or that of the recipe."""
    typed = re.findall(r"--(domain|imports|recipes?)[= ](\[.*?\]|\S+)", " ".join(words))
    given: dict[str, str] = dict(typed)
    if "imports" in given:
        parser.load_typed(given["imports"])
    recipe = given.get("recipe") or given.get("recipes") or ""
    return DOMAINS.get(given.get("domain") or domain_of(recipe) or "") or default_domain()


def _options(
    kind: type,
    everything: bool,
    prefix: str = "",
    *,
    some: Sequence[Field[Any]] | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """The lines of all fields of a dataclass or of some, whose defaults may be others."""
    texts = described(kind)
    if kind is TrainConfig:
        texts["domain"] += f" It is one of {', '.join(DOMAINS)}."
    for its in fields(kind) if some is None else some:
        if everything or not its.metadata.get("rare"):
            default = its.metadata.get("usual", its.default)
            default = (usual or {}).get(its.name, default)
            shown = "" if default in (None, (), MISSING) else written(default)
            yield from _option(prefix + its.name, texts[its.name], shown, everything)


def _section(section: str, options: type, everything: bool) -> Iterator[str]:
    """The options of a section, or, of one with a name, their names alone."""
    if section and not everything:
        inner = f"--{section}." + ", ".join(its.name for its in fields(options))
        yield from textwrap.wrap(inner, WIDTH, initial_indent="  ", subsequent_indent="    ")
    else:
        yield from _options(options, everything, f"{section}." if section else "")


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
            yield from _section(section, options, everything)
