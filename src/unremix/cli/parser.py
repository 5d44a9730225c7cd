"""The options of all commands, and the message when one is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, NoReturn

from jsonargparse import SUPPRESS, ActionConfigFile, ArgumentParser  # type: ignore[attr-defined]

import unremix
from unremix.cli.commands import COMMANDS, SUMMARIES, SWITCHES, reproduce
from unremix.data.printing import complain
from unremix.data.suggestions import did_you_mean
from unremix.options.settings import find_config

CONFIG = "A YAML file of options, or the name of a setting that ships with the package."
EMBEDDED = "The data, by default the run's own; several picture files; a .txt file of their paths."
REPORTED = "A run, a comparison, or several runs to compare: their folders."
NORMALIZE = "Scale each embedding to length 1."
TRUST = "Allow code that the run's folder names to run."
QUERY = "Picture files, sentences, a .txt file of sentences, or names of samples."
COUNTS = {"mine": "Negatives per anchor.", "neighbors": "Neighbors of each query."}
CLUSTER = "What Ray, SLURM, torchrun and object stores offer here."
DRY_RUN = "Measure a few steps, estimate memory, time and disk of the whole, and write nothing."


class Parser(ArgumentParser):
    """A parser whose errors are one sentence and name the nearest option."""

    commands: ClassVar[dict[str, Parser]] = {}
    typed: ClassVar[Sequence[str]] = ()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, and what was probably meant."""
        line = " ".join(self.typed)
        asked = [parser for name, parser in self.commands.items() if line.startswith(f"{name} ")]
        actions = [action for parser in (self, *asked) for action in parser._actions]
        sys.exit(complain(_sentence(message, actions), 2))


def _sentence(message: str, actions: Sequence[Any]) -> str:
    """What jsonargparse says, in one sentence."""
    types = {action.dest: getattr(action, "_typehint", action.type) for action in actions}
    named = re.search(r'Parser key "([\w.]+)"', message)
    value = re.search(r"(?:Given|Got) value: (.*)$", message)
    if named and value:
        from unremix.options.config import mismatch

        hint = types.get(named[1], types.get(named[1].partition(".")[2]))
        return mismatch(f"--{named[1]}", value[1].strip("'"), hint)
    message = " ".join(message.split())
    known = {option.lstrip("-") for action in actions for option in action.option_strings}
    unknown = re.match(r"[Uu]nrecognized arguments: (.*)$", message)
    if unknown:
        word = unknown[1].split()[0].partition("=")[0]
        if not word.startswith("-") and "data" in known:
            return (
                f"expected options of this command, got {unknown[1]}; did you mean --data {word}?"
            )
        hint = did_you_mean(word.lstrip("-"), known) or "; see --help"
        return f"expected options of this command, got {unknown[1]}{hint}"
    required = re.search(r"arguments are required: (.*)$", message)
    if required:
        names = ", ".join(name.rpartition(".")[2] for name in required[1].split(", "))
        return f"expected {names}, got nothing; see --help"
    for option, quoted in re.findall(r"--([\w.]+)|[Oo]ption '([\w.]+)'", message):
        if (option or quoted) not in known:
            message += did_you_mean(option or quoted, known)
    return message


class ConfigAction(ActionConfigFile):
    """``--config``: a file of options, or the name of a setting that ships with the package."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Read the options."""
        try:
            path = find_config(values)
        except ValueError as error:
            parser.error(str(error))
        super().__call__(parser, cfg, path, option_string)  # type: ignore[no-untyped-call]


def make_parser(only: str | None = None) -> Parser:
    """The parser of all commands; the options of one alone take less time to import."""
    parser = Parser(
        allow_abbrev=False, prog="unremix", description="Good embeddings without labels."
    )
    parser.add_argument("--version", action="version", version=unremix.__version__)
    subcommands = parser.add_subcommands()
    for name, summary in SUMMARIES.items():
        inner = Parser(description=summary)
        Parser.commands[name] = inner
        subcommands.add_subcommand(name, inner, help=summary)
        if only in (None, name):
            _add_options(name, inner)
    return parser


def _add_options(name: str, parser: Parser) -> None:
    if name in ("train", "compare"):
        from unremix.options.config import TrainConfig

        parser.add_argument("--config", action=ConfigAction, help=CONFIG)
        parser.add_argument("--dry_run", action="store_true", default=SUPPRESS, help=DRY_RUN)
        for switch in SWITCHES:
            parser.add_argument(f"--{switch}", action="store_true", default=SUPPRESS)
        skip = {"given", "held", *SWITCHES}
        if name == "compare":
            from unremix.experiments.plan import OWN, CompareConfig

            parser.add_class_arguments(CompareConfig)
            skip |= {"progress", *OWN}
        parser.add_class_arguments(TrainConfig, skip=skip)
        return
    function = reproduce if name == "reproduce" else COMMANDS[name]
    if name == "recipes":
        parser.add_argument("recipe", nargs="?", type=str | None, help="One to show in full.")
        return
    own: set[str | int] = {"output"}
    if "output" in signature(function).parameters:
        parser.add_argument("-o", "--output", type=str | None, help="The file to write.")
    if name == "embed":  # as a person types them: --data *.jpg --normalize
        own |= {"data", "normalize"}
        parser.add_argument("--data", nargs="+", type=str, help=EMBEDDED)
        parser.add_argument("--normalize", action="store_true", help=NORMALIZE)
    if name == "doctor":
        own.add("cluster")
        parser.add_argument("--cluster", action="store_true", help=CLUSTER)
    if name in ("study", "reproduce"):
        own |= {"dry_run", "command"}
        parser.add_argument("--dry_run", action="store_true", help="Only say what it costs.")
    if "trust" in signature(function).parameters:
        own.add("trust")
        parser.add_argument("--trust", action="store_true", help=TRUST)
    if name in ("mine", "neighbors"):
        own.add("k")
        parser.add_argument("-k", "--k", type=int, default=10, help=COUNTS[name])
    if name == "neighbors":
        own.add("query")
        parser.add_argument("--query", nargs="+", type=str, required=True, help=QUERY)
    if name == "report":
        own.add("runs")
        parser.add_argument("runs", nargs="+", type=str, help=REPORTED)
    parser.add_function_arguments(function, as_positional=name != "mine", skip=own)
