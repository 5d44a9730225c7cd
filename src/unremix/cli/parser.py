"""The options of all commands, and what is said when one is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, NoReturn

from jsonargparse import SUPPRESS, ActionConfigFile, ArgumentParser  # type: ignore[attr-defined]
from rich.console import Console

import unremix
from unremix.cli.commands import COMMANDS, compare, embed, recipes
from unremix.data.suggestions import did_you_mean
from unremix.experiments.plan import OWN, CompareConfig
from unremix.experiments.reproduce import EXPERIMENTS
from unremix.training.config import TrainConfig
from unremix.training.settings import find_config

CONFIG = "A YAML file of options, or the name of a setting that ships with the package."
EMBEDDED = "The data, by default the run's own; several picture files; a .txt file of their paths."
NORMALIZE = "Scale each embedding to length 1."
DRY_RUN = "Measure a few steps, estimate memory, time and disk of the whole, and write nothing."


class Parser(ArgumentParser):
    """A parser whose errors are one line and name the nearest option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, and what was probably meant."""
        line = " ".join(self.typed)
        asked = [parser for name, parser in self.commands.items() if line.startswith(f"{name} ")]
        known = {
            option.lstrip("-")
            for parser in (self, *asked)
            for action in parser._actions
            for option in action.option_strings
        }
        listed = re.search(r"Expected a <class 'tuple'>\. Got value: (\S+)", message)
        if listed:
            message += f'; write "[{listed[1]}]"'
        for option, quoted in re.findall(r"--([\w.]+)|[Oo]ption '([\w.]+)'", message):
            word = option or quoted
            if word not in known:
                message += did_you_mean(word, known)
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"unremix: {message}", style="red", highlight=False, markup=False)
        sys.exit(2)

    commands: ClassVar[dict[str, Parser]] = {}
    typed: ClassVar[Sequence[str]] = ()


class ConfigAction(ActionConfigFile):
    """``--config``: a file of options, or the name of a setting that ships with the package."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Read the options."""
        try:
            path = find_config(values)
        except ValueError as error:
            parser.error(str(error))
        super().__call__(parser, cfg, path, option_string)  # type: ignore[no-untyped-call]


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="unremix", description="Good embeddings without labels.")
    parser.add_argument("--version", action="version", version=unremix.__version__)
    subcommands = parser.add_subcommands()
    training = Parser(description="Train an encoder on unlabelled data.")
    training.add_argument("--config", action=ConfigAction, help=CONFIG)
    training.add_argument("--dry_run", action="store_true", default=SUPPRESS, help=DRY_RUN)
    training.add_class_arguments(TrainConfig)
    subcommands.add_subcommand("train", training, help="Train an encoder on unlabelled data.")
    Parser.commands["train"] = training
    comparing = Parser(description=(compare.__doc__ or "").strip())
    comparing.add_argument("--config", action=ConfigAction, help=CONFIG)
    comparing.add_argument("--dry_run", action="store_true", default=SUPPRESS, help=DRY_RUN)
    comparing.add_class_arguments(CompareConfig)
    shared = {"progress", *OWN}
    comparing.add_class_arguments(TrainConfig, skip=shared)
    subcommands.add_subcommand("compare", comparing, help=(compare.__doc__ or "").strip())
    Parser.commands["compare"] = comparing
    reproducing = Parser(description="Repeat an experiment.")
    subcommands.add_subcommand("reproduce", reproducing, help="Repeat an experiment.")
    Parser.commands["reproduce"] = reproducing
    experiments = reproducing.add_subcommands(dest="experiment")
    for name, experiment in EXPERIMENTS.items():
        inner = Parser(description=experiment.summary)
        inner.add_class_arguments(experiment.options)
        experiments.add_subcommand(name, inner, help=experiment.summary)
        Parser.commands[f"reproduce {name}"] = inner
    for name, function in COMMANDS.items():
        summary = (function.__doc__ or "").splitlines()[0]
        inner = Parser(description=summary)
        if "output" in signature(function).parameters:
            inner.add_argument("-o", "--output", type=str | None, help="The file to write.")
            own: set[str | int] = {"output"}
            if function is embed:  # as a person types them: --data *.jpg --normalize
                own |= {"data", "normalize"}
                inner.add_argument("--data", nargs="+", type=str, help=EMBEDDED)
                inner.add_argument("--normalize", action="store_true", help=NORMALIZE)
            inner.add_function_arguments(function, as_positional=True, skip=own)
        elif function is recipes:
            inner.add_argument("recipe", nargs="?", type=str | None, help="One to show in full.")
        else:
            inner.add_function_arguments(function, as_positional=True)
        subcommands.add_subcommand(name, inner, help=summary)
        Parser.commands[name] = inner
    return parser
