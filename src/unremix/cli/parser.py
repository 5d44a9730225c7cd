"""From the words of a command line to options by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, signature
from itertools import takewhile
from pathlib import Path
from typing import Any, get_type_hints

from unremix.cli.commands import COMMANDS, SWITCHES
from unremix.console.suggestions import Mistyped, did_you_mean
from unremix.console.values import LARGEST_YAML, adapted, fits, mismatch, read_yaml, typed
from unremix.files.atomic_files import read_text

CONFIG = "A YAML file of options, or the name of a setting that ships with the package."
DRY_RUN = "Measure a few steps, estimate memory, time and disk of the whole, and write nothing."
# Arguments of commands as a person types them: --data *.jpg, -o page.html.
SEVERAL = {("embed", "data"), ("neighbors", "query"), ("report", "runs")}
ON_EMBEDDINGS = ("explore", "neighbors", "duplicates", "cluster", "classify")
# By position, or not at all.
OPTIONAL = {("recipes", "recipe"), ("embed", "run"), *((name, "source") for name in ON_EMBEDDINGS)}
# Never by position.
NAMED = {
    ("mine", "anchors"), ("mine", "positives"), ("neighbors", "query"), ("classify", "labels"),
}  # fmt: skip
SHORT = {"output": "-o", "k": "-k"}
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
    if command in WITH_CONFIG:
        return _parse_training(command, words)
    hints = get_type_hints(COMMANDS[command])
    for name in ("return", HIDDEN):
        hints.pop(name, None)
    parameters = _parameters(command)
    given = _split(
        command, words, [n for n, one in parameters.items() if by_position(command, one)]
    )
    values = dict(_values(command, given, hints))
    required = [name for name, one in parameters.items() if one.default is Parameter.empty]
    _require(command, [name for name in required if name not in values])
    return values


def _parse_training(command: str, words: Sequence[str]) -> dict[str, Any]:
    given = _split(command, words, [])
    file, trust = {}, bool(given.get("trust"))
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
    if code and not trust:
        raise untrusted(code, "the --config file")
    load_extensions(file.get("imports") or ())
    hints = training_hints(command)
    values = dict(_values(command, file, hints)) | dict(_values(command, given, hints))
    if command == "compare":
        _require(command, [name for name in ("recipes",) if name not in values])
    return values


def load_typed(text: str) -> None:
    """Import what was typed after --imports, which may add the kind of data that is meant."""
    from unremix.domains.extensions import load_extensions

    load_extensions(_value("imports", text, tuple[str, ...]))


def training_hints(command: str) -> dict[str, Any]:
    """The type of every option of train or compare, by its name."""
    from unremix.domains.options import option_hints

    hints = option_hints()
    if command == "compare":
        from unremix.experiments.plan import OWN, CompareConfig

        hints = {name: hint for name, hint in hints.items() if name not in OWN}
        hints = get_type_hints(CompareConfig) | hints
    return hints | {"config": str} | dict.fromkeys(CONFIG_SWITCHES, bool)


def _split(command: str, words: Sequence[str], placed: list[str]) -> Words:
    """What was typed for each option; ``placed`` names those that are typed without their name."""
    given: Words = {}
    switches = CONFIG_SWITCHES if command in WITH_CONFIG else _switches(command)
    long = {short: f"--{name}" for name, short in SHORT.items()}
    rest, places = list(words), list(placed)

    def following() -> list[str]:
        values = list(takewhile(lambda one: not one.startswith("--") and one[:2] not in long, rest))
        del rest[: len(values)]
        return values

    def need(values: list[str]) -> list[str]:
        if not values:
            raise Mistyped(f"expected a value for {word}, got none")
        return values

    while rest:
        word = rest.pop(0)
        if word[:2] in long and len(word) > 2:  # such as -opage.html
            rest.insert(0, word[2:].removeprefix("="))
            word = word[:2]
        name, equals, text = long.get(word, word).removeprefix("--").partition("=")
        if word not in long and not word.startswith("--"):
            if not places:
                raise Mistyped(_superfluous(command, words, word))
            several = (command, places[0]) in SEVERAL
            given[places.pop(0)] = [word, *following()] if several else word
        elif name in switches:
            if equals:  # --trust=false must not be taken for --trust
                raise Mistyped(f"expected --{name} without a value, got {word}; leave it out")
            given[name] = True
        elif (command, name) in SEVERAL:
            given[name] = [text] if equals else need(following())
        elif equals:
            given[name] = text
        elif not rest or rest[0].startswith("--"):
            unknown = "" if word in long else _unknown(command, word, [])
            raise Mistyped(unknown or f"expected a value for {word}, got none")
        else:
            given[name] = rest.pop(0)
    return given


def _values(
    command: str, given: Mapping[str, Any], hints: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Name and value of each option."""
    sections = {name.partition(".")[0] for name in hints if "." in name}
    for name, text in given.items():
        if name in sections:
            inner = read_yaml(text) if isinstance(text, str) else text
            if not isinstance(inner, Mapping):
                raise Mistyped(mismatch(f"--{name}", text, Mapping))
            dotted = {f"{name}.{key}": value for key, value in inner.items() if value is not None}
            yield from _values(command, dotted, hints)
        elif name not in hints:
            words = [text] if isinstance(text, str) else []
            raise Mistyped(_unknown(command, f"--{name}", words, hints))
        elif text is not None:
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


def _require(command: str, missing: Sequence[str]) -> None:
    if missing:
        named = [f"--{one}" for one in missing if command in WITH_CONFIG or (command, one) in NAMED]
        others = [one.upper() for one in missing if f"--{one}" not in named]
        wanted = " and ".join([*named, *others])
        raise Mistyped(f"expected {wanted}, got nothing; usage: {usage_of(command)}")


def _unknown(
    command: str, option: str, following: Sequence[str], hints: Mapping[str, Any] | None = None
) -> str:
    """The error for an option that the command does not have; empty if it has it."""
    if hints is None:
        hints = training_hints(command) if command in WITH_CONFIG else _parameters(command)
    name = option.lstrip("-")
    if name in hints:
        return ""
    hint = did_you_mean(name, hints) or "; see --help"
    return f"expected options of this command, got {' '.join([option, *following])}{hint}"


def _superfluous(command: str, words: Sequence[str], word: str) -> str:
    """The error for a word that follows no option."""
    known = {"data": None} if command in WITH_CONFIG else _parameters(command)
    needed = [one for one in known if (command, one) in NAMED and f"--{one}" not in words]
    if needed:
        hint = f"; did you mean --{needed[0]} {word}?"
    elif "data" in known and not ("source" in known and "--encoder" in words):
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


def _parameters(command: str) -> Mapping[str, Parameter]:
    return signature(COMMANDS[command]).parameters


def _switches(command: str) -> list[str]:
    return [name for name, one in _parameters(command).items() if one.annotation == "bool"]


def by_position(name: str, parameter: Parameter) -> bool:
    """Whether an argument of a command is typed without its name."""
    place = (name, parameter.name)
    return place in OPTIONAL or (parameter.default is Parameter.empty and place not in NAMED)


def argument(name: str, parameter: Parameter) -> str:
    """The placeholder of an argument in a usage line."""
    several = (name, parameter.name) in SEVERAL
    return parameter.name.removesuffix("s" * several).upper() + " ..." * several


def usage_of(name: str) -> str:
    """How a command is typed: what it needs, then that it has options.

    Example:
        >>> usage_of("neighbors")
        'unremix neighbors [SOURCE] --query QUERY ... [--OPTION VALUE ...]'
    """
    parameters = [] if name in WITH_CONFIG else _parameters(name).values()
    words = ["unremix", name]
    for one in parameters:
        if (name, one.name) in OPTIONAL:
            words.append(f"[{argument(name, one)}]")
        elif one.default is Parameter.empty:
            words.append(f"--{one.name} " * ((name, one.name) in NAMED) + argument(name, one))
    if name in WITH_CONFIG or any(not by_position(name, one) for one in parameters):
        words.append("[--OPTION VALUE ...]")
    return " ".join(words)
