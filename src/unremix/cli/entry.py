"""From the words of a command line to the command."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields

from jsonargparse import Namespace
from rich.console import Console

from unremix.cli import commands
from unremix.cli.parser import Parser, make_parser
from unremix.experiments.plan import CompareConfig, domain_of, settle_epochs
from unremix.experiments.reproduce import EXPERIMENTS
from unremix.training.config import TrainConfig
from unremix.training.extensions import load_extensions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what a person can mend is said in one line, without a trace."""
    # One line a warning, without the place in our source that raised it.
    warnings.formatwarning = lambda message, *_, **__: f"unremix: {message}\n"
    parser = make_parser()
    typed = sys.argv[1:] if arguments is None else arguments
    Parser.typed = typed
    options = parser.parse_args(arguments)
    command = options.subcommand
    chosen: Namespace = options[command]
    dry = bool(chosen.pop("dry_run", False))
    console = Console(stderr=True, soft_wrap=True)
    words = shlex.join(["unremix", *typed])
    try:
        if command == "train":
            chosen.pop("config", None)
            values = vars(Parser.commands["train"].instantiate(chosen))
            commands.train(TrainConfig(**values), dry=dry)
        elif command == "compare":
            chosen.pop("config", None)
            values = vars(Parser.commands["compare"].instantiate(chosen))
            own = {field.name: values.pop(field.name) for field in fields(CompareConfig)}
            load_extensions(values["imports"])
            values["domain"] = values["domain"] or domain_of(own["recipes"])
            values["epochs"] = settle_epochs(
                own["budget"],
                values["epochs"],
                chosen=any(re.match(r"--epochs(=|$)", word) for word in typed),
            )
            return commands.compare(CompareConfig(**own), TrainConfig(**values), words, dry=dry)
        elif command == "reproduce":
            name = chosen.experiment
            values = vars(Parser.commands[f"reproduce {name}"].instantiate(chosen[name]))
            return EXPERIMENTS[name].run(EXPERIMENTS[name].options(**values), words)
        else:
            commands.COMMANDS[command](**vars(chosen))
    except (ValueError, OSError, ImportError) as error:
        console.print(f"unremix: {error}", style="red", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt as stopped:
        again = f"; go on with: unremix train --resume {stopped}" if str(stopped) else ""
        console.print(f"unremix: stopped{again}", highlight=False)
        return 130
    return 0
