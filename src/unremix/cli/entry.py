"""From the words of a command line to the command."""

from __future__ import annotations

import atexit
import gc
import io
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import unremix
from unremix.cli import commands
from unremix.data.printing import complain, one_line
from unremix.data.suggestions import did_you_mean, how_to_install
from unremix.training.memory import keep_freed_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that the user can fix are one line, without a traceback."""
    # One line a warning, without the place in our source that raised it.
    warnings.formatwarning = lambda message, *_, **__: f"unremix: {one_line(str(message))}\n"
    for stream in (sys.stdout, sys.stderr):  # what the locale cannot show is written out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if arguments is not None:
        return _answer(list(arguments))
    gc.disable()  # a process of its own: imports make many objects and no garbage
    if sys.argv[1:2] == ["train"]:
        keep_freed_memory()
    status = _answer(sys.argv[1:])
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # torch's caches keep the groups of a divided model, whose threads would abort the end of
        # the interpreter now and then.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _answer(typed: list[str]) -> int:
    command = typed[0] if typed else "--help"
    if command in ("-h", "--help"):
        lines = [f"  {name:<11}{summary}" for name, summary in commands.SUMMARIES.items()]
        print("usage: unremix COMMAND ...\n\nGood embeddings without labels.\n", *lines, sep="\n")
        print("\nunremix COMMAND --help shows the options of a command.")
        if find_spec("jsonargparse") is None:
            print('All but doctor need more packages: pip install "unremix[train,report]"')
        return 0
    if command == "--version":
        print(unremix.__version__)
        return 0
    if command not in commands.SUMMARIES:
        known = ", ".join(commands.SUMMARIES)
        hint = did_you_mean(command, commands.SUMMARIES) or "; see unremix --help"
        return complain(f"expected a command among {known}, got {command!r}{hint}", 2)
    try:
        return _run(command, typed)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("unremix"):
            raise
        return complain(how_to_install(error.name), 1)
    except OSError as error:  # without the number, where the text is ours
        return complain(str(error if error.filename else error.strerror or error), 1)
    except (ValueError, ImportError) as error:
        return complain(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return complain(
            f"expected enough memory, got too little ({one_line(str(error))[:200]}); use smaller "
            "data, a smaller model or a smaller --batch_size",
            1,
        )
    except KeyboardInterrupt as stopped:
        from unremix.training.stopping import resume_command

        again = f"; resume with: {resume_command(str(stopped))}" if str(stopped) else ""
        print(f"unremix: stopped{one_line(again)}", file=sys.stderr)
        return 130


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; torch has no class for it on the CPU."""
    names = ("MemoryError", "OutOfMemoryError")  # torch's, without importing it
    said = any(text in str(error) for text in ("can't allocate memory", "not enough memory"))
    return said or any(kind.__name__ in names for kind in type(error).__mro__)


def _options_named(typed: Sequence[str]) -> frozenset[str]:
    """The options that were typed, whatever a file says besides."""
    return frozenset(word[2:].partition("=")[0] for word in typed if word.startswith("--"))


def _refuse_code(options: dict[str, Any], typed: Sequence[str]) -> None:
    """Refuse code that a --config file names and the user did not type."""
    from unremix.options.config import code_of, untrusted

    names = _options_named(typed)
    imports = () if "imports" in names else options["imports"] or ()
    code = code_of(imports, "" if "backbone" in names else options["backbone"] or "")
    if code and not options["trust"]:
        raise ValueError(untrusted(code, "the --config file"))


def _files_first(words: Sequence[str]) -> list[str]:
    """The options of a command with those of files first, so that what is typed always wins.

    Example:
        >>> _files_first(["--epochs", "3", "--config", "options.yaml"])
        ['--config', 'options.yaml', '--epochs', '3']
    """
    files: list[str] = []
    others: list[str] = []
    for number, word in enumerate(words):
        of_file = word.startswith("--config=") or "--config" in (word, *words[:number][-1:])
        (files if of_file else others).append(word)
    return files + others


def _run(command: str, typed: list[str]) -> int:
    if command == "doctor" and len(typed) == 1:  # needs no parser
        commands.doctor()
        return 0
    if command in ("train", "compare") and {"-h", "--help", "--help_all"} & set(typed):
        from unremix.cli.help import options_help

        print(options_help(command, typed[1:], everything="--help_all" in typed))
        return 0
    if {"-h", "--help"} & set(typed):
        from unremix.cli.help import command_help

        print(command_help(command))
        return 0
    from unremix.cli.parser import Parser, make_parser

    Parser.typed = typed
    chosen = make_parser(command).parse_args([command, *_files_first(typed[1:])])[command]
    gc.enable()
    dry = command in ("train", "compare") and bool(chosen.pop("dry_run", False))
    words = shlex.join(["unremix", *typed])

    def values(of: str, options: Any) -> dict[str, Any]:
        return dict(vars(Parser.commands[of].instantiate(options)))

    if command in ("train", "compare"):
        chosen.pop("config", None)
        switches = {name: f"--{name}" in typed for name in commands.SWITCHES}
        for name in switches:
            chosen.pop(name, None)
        options = values(command, chosen) | switches
        _refuse_code(options, typed)
        if command == "train":
            from unremix.options.config import TrainConfig

            commands.train(TrainConfig(**options), dry=dry)
            return 0
        from unremix.experiments.plan import CompareConfig, domain_of
        from unremix.options.config import TrainConfig
        from unremix.options.extensions import load_extensions

        own = {field.name: options.pop(field.name) for field in fields(CompareConfig)}
        load_extensions(options["imports"] or ())
        options["domain"] = options["domain"] or domain_of(own["recipes"])
        # A budget wins over the epochs of a file, but not over those on the command line.
        training = TrainConfig(**options, given=_options_named(typed))
        return commands.compare(CompareConfig(**own), training, words, dry=dry)
    if command == "reproduce":
        return commands.reproduce(**vars(chosen), command=words)
    commands.COMMANDS[command](**vars(chosen))
    return 0
