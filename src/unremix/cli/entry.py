"""From the words of a command line to the command."""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec

import unremix
from unremix.cli import commands
from unremix.console.printing import complain, one_line
from unremix.console.suggestions import Mistyped, did_you_mean, how_to_install
from unremix.training.freed_memory import keep_freed_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that the user can fix are one line, without a traceback."""
    # One line a warning, without the place in our source that raised it.
    warnings.formatwarning = lambda message, *_, **__: f"unremix: {one_line(str(message))}\n"
    for stream in (sys.stdout, sys.stderr):  # escape what the locale cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if arguments is not None:
        return _answer(list(arguments))
    # What this process starts, such as workers, imports nothing from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _pass_over_settings_here()
    gc.disable()  # imports make many objects and no garbage
    if sys.argv[1:2] in (["train"], ["embed"]):
        keep_freed_memory()
    try:
        status = _answer(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # torch's caches keep the groups of a divided model, whose threads would abort the end of
        # the interpreter now and then.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _pass_over_settings_here() -> None:
    """Import matplotlib elsewhere if it would take a file of the current folder as its settings."""
    if os.path.lexists("matplotlibrc") and find_spec("matplotlib") is not None:
        here = os.open(os.curdir, os.O_RDONLY)
        os.chdir(os.sep)
        try:
            importlib.import_module("matplotlib")
        finally:
            os.fchdir(here)
            os.close(here)


def _answer(typed: list[str]) -> int:
    command = typed[0] if typed else "--help"
    if command in ("-h", "--help"):
        lines = [f"  {name:<11}{summary}" for name, summary in commands.SUMMARIES.items()]
        print("usage: unremix COMMAND ...\n\nGood embeddings without labels.\n", *lines, sep="\n")
        print("\nunremix COMMAND --help shows the options of a command.")
        if find_spec("lightning") is None:
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
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("unremix"):
            raise
        return complain(how_to_install(error.name), 1)
    except OSError as error:  # our own texts have no number
        return complain(str(error if error.filename else error.strerror or error), 1)
    except (ValueError, ImportError) as error:
        return complain(str(error), 2 if isinstance(error, Mistyped) else 1)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return complain(
            f"expected enough memory, got too little ({one_line(str(error))[:200]}); use smaller "
            "data, a smaller model or a smaller --batch_size",
            1,
        )
    except KeyboardInterrupt as stopped:
        from unremix.training.run import names_code
        from unremix.training.stopping import resume_command

        run = str(stopped)
        again = f"; resume with: {resume_command(run, trust=names_code(run))}" if run else ""
        print(f"unremix: stopped{one_line(again)}", file=sys.stderr)
        return 130


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; torch has no class for it on the CPU."""
    names = ("MemoryError", "OutOfMemoryError")  # torch's, without importing it
    said = any(text in str(error) for text in ("can't allocate memory", "not enough memory"))
    return said or any(kind.__name__ in names for kind in type(error).__mro__)


def _run(command: str, typed: list[str]) -> int:
    if typed == ["doctor"]:  # needs no parser
        commands.doctor()
        return 0
    from unremix.cli.parser import CONFIG_SWITCHES, HIDDEN, parse

    if {"-h", "--help", "--help_all"} & set(typed):
        from unremix.cli.help import command_help, options_help

        if command in commands.COMMANDS:
            print(command_help(command))
        else:
            print(options_help(command, typed[1:], "--help_all" in typed))
        return 0
    words = shlex.join(["unremix", *typed])
    chosen = parse(command, typed[1:])
    gc.enable()
    if command in commands.COMMANDS:
        if command == "reproduce":
            chosen[HIDDEN] = words
        done = commands.COMMANDS[command](**chosen)
        return (done() if callable(done) else done) or 0
    from unremix.domains.options import TrainConfig, config_to_yaml, nested_options
    from unremix.experiments.plan import CompareConfig, domain_of

    switches = {name: chosen.pop(name, False) for name in CONFIG_SWITCHES}
    dry, printed = switches.pop("dry_run"), switches.pop("print_config")
    names = [field.name for field in fields(CompareConfig)] if command == "compare" else []
    own = {name: chosen.pop(name) for name in names if name in chosen}
    options = nested_options(chosen) | switches
    if command == "compare":
        options.setdefault("domain", domain_of(own["recipes"]))
        # A budget wins over the epochs of a file, but not over those on the command line.
        options["given"] = frozenset(
            word[2:].partition("=")[0] for word in typed if word.startswith("--")
        )
    training = TrainConfig(**options)
    if printed:
        print(config_to_yaml(training), end="")
    elif command == "train":
        commands.train(training, dry=dry)
    else:
        return commands.compare(CompareConfig(**own), training, words, dry=dry)
    return 0
