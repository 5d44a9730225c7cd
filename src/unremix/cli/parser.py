"""The options of all commands, and the message when one is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from itertools import takewhile
from typing import Any, ClassVar, NoReturn

from jsonargparse import (  # type: ignore[attr-defined]
    SUPPRESS,
    ActionConfigFile,
    ArgumentParser,
    set_parsing_settings,
)

import unremix
from unremix.cli.commands import COMMANDS, SUMMARIES, SWITCHES, reproduce
from unremix.data.printing import complain
from unremix.data.suggestions import did_you_mean
from unremix.frameworks.parts import described
from unremix.options.settings import find_config

CONFIG = "A YAML file of options, or the name of a setting that ships with the package."
DRY_RUN = "Measure a few steps, estimate memory, time and disk of the whole, and write nothing."
# Arguments of commands as a person types them: --data *.jpg, -o page.html.
SEVERAL = {("embed", "data"), ("neighbors", "query"), ("report", "runs")}
OPTIONAL = {("recipes", "recipe")}  # by position, or not at all
NAMED = {("mine", "anchors"), ("mine", "positives"), ("neighbors", "query")}  # never by position
SHORT = {"output": "-o", "k": "-k"}
WITH_CONFIG = ("train", "compare")
HIDDEN = "command"  # what was typed, which the entry adds


class Parser(ArgumentParser):
    """A parser whose errors are one sentence and name the nearest option."""

    commands: ClassVar[dict[str, Parser]] = {}
    typed: ClassVar[Sequence[str]] = ()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, and what was probably meant."""
        line = " ".join(self.typed)
        asked = [parser for name, parser in self.commands.items() if line.startswith(f"{name} ")]
        actions = [action for parser in (self, *asked) for action in parser._actions]
        command = self.typed[0] if self.typed else ""
        sys.exit(complain(_sentence(message, actions, command), 2))


def _sentence(message: str, actions: Sequence[Any], command: str) -> str:
    """What jsonargparse says, in one sentence."""
    types = {action.dest: getattr(action, "_typehint", action.type) for action in actions}
    named = re.search(r'Parser key "([\w.]+)"', message)
    value = re.search(r"(?:Given|Got) value: (.*)$", message)
    if named and value:
        from unremix.options.config import mismatch

        hint = types.get(named[1], types.get(named[1].partition(".")[2]))
        return mismatch(f"--{named[1]}", value[1].strip("'"), hint)
    message = " ".join(message.split())
    denied = re.search(r"Importing '(.*?)' is not allowed", message)
    if denied:
        return (
            f"expected the options of a section by name, got {denied[1]!r}, the name of a class; "
            "write each option and its value"
        )
    known = {option.lstrip("-") for action in actions for option in action.option_strings}
    unknown = re.match(r"[Uu]nrecognized arguments: (.*)$", message)
    if unknown:
        word = unknown[1].split()[0].partition("=")[0]
        hint = did_you_mean(word.lstrip("-"), known) or "; see --help"
        if not word.startswith("-") and "data" in known:
            hint = f"; did you mean {_meant(word, Parser.typed)}?"
        return f"expected options of this command, got {unknown[1]}{hint}"
    required = re.search(r"arguments are required: (.*)$", message)
    if required:
        names = [name.rpartition(".")[2] for name in required[1].split(", ")]
        shown = [f"--{name}" if (command, name) in NAMED else name.upper() for name in names]
        return f"expected {' and '.join(shown)}, got nothing; usage: {usage_of(command)}"
    for option, quoted in re.findall(r"--([\w.]+)|[Oo]ption '([\w.]+)'", message):
        if (option or quoted) not in known:
            message += did_you_mean(option or quoted, known)
    return message


def _meant(word: str, typed: Sequence[str]) -> str:
    """What a word was meant for that follows no option.

    Example:
        >>> _meant("hcl", ["compare", "--recipes", "simclr", "hcl", "moco", "--epochs", "3"])
        '--recipes simclr,hcl,moco'
        >>> _meant("photos", ["compare", "photos"])
        '--data photos'
    """
    following = typed[typed.index("--recipes") + 1 :] if "--recipes" in typed else ()
    names = list(takewhile(lambda one: not one.startswith("-"), following))
    return f"--recipes {','.join(names)}" if word in names else f"--data {word}"


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
    # A value that names a class would have its module imported: no option of ours is a class.
    set_parsing_settings(import_path_denylist=["*"])
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
    if name in WITH_CONFIG:
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
    function = function_of(name)
    texts = described(function)
    own: set[str | int] = {HIDDEN}
    for option, parameter in signature(function).parameters.items():
        how: dict[str, Any]
        if parameter.annotation == "bool":
            how = {"action": "store_true"}
        elif (name, option) in SEVERAL:
            how = {"nargs": "+", "type": str}
        elif (name, option) in OPTIONAL:
            how = {"nargs": "?", "type": str | None}
        elif option in SHORT:
            kind = int if parameter.annotation == "int" else str | None
            how = {"type": kind, "default": parameter.default}
        else:
            continue
        own.add(option)
        words = [option] if by_position(name, parameter) else [f"--{option}"]
        if option in SHORT:
            words.insert(0, SHORT[option])
        if (name, option) in NAMED:
            how["required"] = True
        parser.add_argument(*words, **how, help=texts[option])
    parser.add_function_arguments(function, as_positional=name != "mine", skip=own)


def function_of(name: str) -> Callable[..., Any]:
    """What a command other than train and compare calls."""
    return reproduce if name == "reproduce" else COMMANDS[name]


def by_position(name: str, parameter: Parameter) -> bool:
    """Whether an argument of a command is typed without its name."""
    place = (name, parameter.name)
    return place in OPTIONAL or (parameter.default is Parameter.empty and place not in NAMED)


def argument(name: str, parameter: Parameter) -> str:
    """What an argument is called where it is typed without its name, or what follows its name."""
    several = (name, parameter.name) in SEVERAL
    return parameter.name.removesuffix("s" * several).upper() + " ..." * several


def usage_of(name: str) -> str:
    """How a command is typed: what it needs, then that it has options.

    Example:
        >>> usage_of("neighbors")
        'unremix neighbors RUN --query QUERY ... [--OPTION VALUE ...]'
    """
    parameters = [] if name in WITH_CONFIG else signature(function_of(name)).parameters.values()
    words = ["unremix", name]
    for one in parameters:
        if (name, one.name) in OPTIONAL:
            words.append(f"[{argument(name, one)}]")
        elif one.default is Parameter.empty:
            words.append(f"--{one.name} " * ((name, one.name) in NAMED) + argument(name, one))
    if name in WITH_CONFIG or any(not by_position(name, one) for one in parameters):
        words.append("[--OPTION VALUE ...]")
    return " ".join(words)
