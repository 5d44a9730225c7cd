"""From the words of a command line to options by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args, get_type_hints

from unremix.cli.commands import COMMANDS, SWITCHES
from unremix.console.suggestions import Mistyped, did_you_mean
from unremix.console.values import LARGEST_YAML, adapted, fits, mismatch, read_yaml, typed
from unremix.files.atomic_files import read_text

CONFIG = "A YAML file of options, or the name of a setting that ships with the package."
DRY_RUN = "Measure a few steps, estimate memory, time and disk of the whole, and write nothing."
SHORT = {"output": "-o", "k": "-k"}
LONG = {short: f"--{name}" for name, short in SHORT.items()}
WITH_CONFIG = ("train", "compare")
CONFIG_SWITCHES = (*SWITCHES, "dry_run", "print_config")
HIDDEN = "command"  # what was typed, which the entry adds

Words = dict[str, str | list[str] | bool]
"""What was typed for each option: its value, several, or True for a switch."""


def parse(command: str, words: Sequence[str]) -> dict[str, Any]:
    """The options that were given, by name; what is typed overrides a file of options.

    Args:
        command: The command.
        words: What was typed after it.

    Returns:
        Values by name on the command line, those of a section with a dot.

    Raises:
        Mistyped: For options that the command does not have, or values of another type.
        ValueError: For code that a file names and the user did not type.

    Example:
        >>> parse("embed", ["runs/digits", "--data", "a.png", "b.png", "-o", "features.npz"])
        {'run': 'runs/digits', 'data': ['a.png', 'b.png'], 'output': 'features.npz'}
    """
    given = _split(command, words)
    file = _options_of_file(given) if command in WITH_CONFIG else {}
    hints = _hints(command)
    values = dict(_values(file, hints)) | dict(_values(given, hints))
    parameters = parameters_of(command)
    needed = [name for name, one in parameters.items() if is_needed(one)]
    needed += ["recipes"] * (command == "compare")
    if missing := [name for name in needed if name not in values]:
        placed = [name for name, one in parameters.items() if by_position(one)]
        wanted = [name.upper() if name in placed else f"--{name}" for name in missing]
        raise Mistyped(f"expected {' and '.join(wanted)}, got nothing; usage: {usage_of(command)}")
    return values


def _options_of_file(given: Words) -> dict[str, Any]:
    """Those of the --config file that were not typed; the code that both name is imported."""
    file: dict[str, Any] = {}
    if "config" in given:
        file = {k: v for k, v in _read_file(str(given.pop("config"))).items() if k not in given}
        for name in CONFIG_SWITCHES:
            if name in file:
                raise Mistyped(f"expected options in the --config file, got {name}; type --{name}")
        if "imports" in file:  # before anything asks which code they name
            file["imports"] = _value("imports", file["imports"], tuple[str, ...])
    from unremix.domains.extensions import load_extensions
    from unremix.domains.options import code_of, untrusted

    if isinstance(given.get("imports"), str):
        load_typed(str(given["imports"]))
    code = code_of(file)
    if code and not given.get("trust"):
        raise untrusted(code, "the --config file")
    load_extensions(file.get("imports") or ())
    return file


def load_typed(text: str) -> None:
    """Import what was typed after --imports, which may add the kind of data that is meant."""
    from unremix.domains.extensions import load_extensions

    load_extensions(_value("imports", text, tuple[str, ...]))


def _hints(command: str) -> dict[str, Any]:
    """The type of every option of a command, by its name."""
    if command not in WITH_CONFIG:
        return {name: one.annotation for name, one in parameters_of(command).items()}
    from unremix.domains.options import option_hints

    hints = option_hints()
    if command == "compare":
        from unremix.experiments.plan import OWN, CompareConfig

        hints = {name: hint for name, hint in hints.items() if name not in OWN}
        hints = get_type_hints(CompareConfig) | hints
    return hints | {"config": str} | dict.fromkeys(CONFIG_SWITCHES, bool)


def _split(command: str, words: Sequence[str]) -> Words:
    """What was typed for each option."""
    given: Words = {}
    parameters = parameters_of(command)
    places = [name for name, one in parameters.items() if by_position(one)]
    several = {name for name, one in parameters.items() if is_several(one)}
    switches = {name for name, one in parameters.items() if one.annotation is bool}
    switches |= set(CONFIG_SWITCHES if command in WITH_CONFIG else ())
    rest = list(words)

    def following() -> list[str]:
        values = list(takewhile(lambda one: not one.startswith("--") and one[:2] not in LONG, rest))
        del rest[: len(values)]
        return values

    while rest:
        word = rest.pop(0)
        if word[:2] in LONG and len(word) > 2:  # such as -opage.html
            rest.insert(0, word[2:].removeprefix("="))
            word = word[:2]
        name, equals, text = LONG.get(word, word).removeprefix("--").partition("=")
        if word not in LONG and not word.startswith("--"):
            if not places:
                raise Mistyped(_superfluous(command, words, word))
            name = places.pop(0)
            given[name] = [word, *following()] if name in several else word
        elif name in switches:
            if equals:  # --trust=false must not be taken for --trust
                raise Mistyped(f"expected --{name} without a value, got {word}; leave it out")
            given[name] = True
        elif equals:
            given[name] = [text] if name in several else text
        elif name in several and (values := following()):
            given[name] = values
        elif name not in several and rest and not rest[0].startswith("--"):
            given[name] = rest.pop(0)
        else:
            _check_known(name, [], _hints(command))
            raise Mistyped(f"expected a value for {word}, got none")
    return given


def _values(given: Mapping[str, Any], hints: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of each option."""
    sections = {name.partition(".")[0] for name in hints if "." in name}
    for name, text in given.items():
        if name in sections:
            inner = read_yaml(text) if isinstance(text, str) else text
            if not isinstance(inner, Mapping):
                raise Mistyped(mismatch(f"--{name}", text, Mapping))
            dotted = {f"{name}.{key}": value for key, value in inner.items() if value is not None}
            yield from _values(dotted, hints)
        else:
            _check_known(name, [text] if isinstance(text, str) else [], hints)
            if text is not None:
                yield name, _value(name, text, hints[name])


def _value(name: str, text: Any, hint: Any) -> Any:
    value = typed(text, hint) if isinstance(text, str) else text
    if not fits(value, hint):
        raise Mistyped(mismatch(f"--{name}", value, hint))
    return adapted(value, hint)


def _read_file(name: str) -> dict[str, Any]:
    """The options in a file, or in text that is YAML itself; those not given are left out."""
    from unremix.training.settings import find_config

    found = find_config(name)
    text = read_text(Path(found), LARGEST_YAML) if Path(found).is_file() else found
    options = read_yaml(text, where="" if text is found else found) or {}
    if not isinstance(options, dict):
        raise Mistyped(f"expected a file of options for --config, got {name!r}; name a YAML file")
    return {str(key): value for key, value in options.items() if value is not None}


def _check_known(name: str, following: Sequence[str], hints: Mapping[str, Any]) -> None:
    """Refuse an option that the command does not have."""
    if name not in hints:
        hint = did_you_mean(name, hints) or "; see --help"
        raise Mistyped(
            f"expected options of this command, got {' '.join([f'--{name}', *following])}{hint}"
        )


def _superfluous(command: str, words: Sequence[str], word: str) -> str:
    """The error for a word that follows no option."""
    parameters = parameters_of(command)
    named = [one for one in parameters.values() if is_needed(one) and not by_position(one)]
    needed = [one.name for one in named if f"--{one.name}" not in words]
    if needed:
        hint = f"; did you mean --{needed[0]} {word}?"
    elif (command in WITH_CONFIG or "data" in parameters) and not (
        "source" in parameters and "--encoder" in words
    ):
        hint = f"; did you mean {_meant(word, words)}?"
    else:
        hint = "; see --help"
    return f"expected options of this command, got {word}{hint}"


def _meant(word: str, words: Sequence[str]) -> str:
    """The option that a stray word was probably meant for.

    Example:
        >>> _meant("hcl", ["--recipes", "simclr", "hcl", "moco", "--epochs", "3"])
        '--recipes simclr,hcl,moco'
        >>> _meant("photos", ["photos"])
        '--data photos'
    """
    following = words[list(words).index("--recipes") + 1 :] if "--recipes" in words else ()
    names = list(takewhile(lambda one: not one.startswith("-"), following))
    return f"--recipes {','.join(names)}" if word in names else f"--data {word}"


@cache
def parameters_of(command: str) -> dict[str, Parameter]:
    """The arguments of a command by name; none of train and compare, which take options alone."""
    if command in WITH_CONFIG:
        return {}
    every = signature(COMMANDS[command], eval_str=True).parameters
    return {name: one for name, one in every.items() if name != HIDDEN}


def by_position(parameter: Parameter) -> bool:
    """Whether an argument of a command is typed without its name."""
    return parameter.kind is Parameter.POSITIONAL_OR_KEYWORD


def is_needed(parameter: Parameter) -> bool:
    """Whether an argument has to be typed."""
    return parameter.default is Parameter.empty


def is_several(parameter: Parameter) -> bool:
    """Whether an argument takes several words: it is a list; a tuple is typed in brackets."""
    return list[str] in (parameter.annotation, *get_args(parameter.annotation))


def argument(parameter: Parameter) -> str:
    """The placeholder of an argument in a usage line."""
    several = is_several(parameter)
    return parameter.name.removesuffix("s" * several).upper() + " ..." * several


def usage_of(name: str) -> str:
    """How a command is typed: what it needs, then that it has options.

    Example:
        >>> usage_of("neighbors")
        'unremix neighbors [SOURCE] --query QUERY ... [--OPTION VALUE ...]'
    """
    words, parameters = ["unremix", name], parameters_of(name).values()
    for one in parameters:
        if by_position(one):
            words.append(argument(one) if is_needed(one) else f"[{argument(one)}]")
        elif is_needed(one):
            words.append(f"--{one.name} {argument(one)}")
    if not parameters or not all(map(by_position, parameters)):
        words.append("[--OPTION VALUE ...]")
    return " ".join(words)
