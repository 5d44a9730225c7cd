"""How the documentation is built: equations as MathML, which needs no script; roles as links."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert


def on_config(config: MutableMapping[str, Any]) -> None:
    """Render code blocks of the language math."""
    fence = {"name": "math", "class": "math", "format": equation}
    config["mdx_configs"]["pymdownx.superfences"] = {"custom_fences": [fence]}


def equation(source: str, *_: object, **__: object) -> str:
    """LaTeX as MathML."""
    return f'<div class="math">{convert(source, display="block")}</div>'


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in the help of every command, parts of the method in one file, and the gallery."""
    if "<!-- one file: " in markdown:
        parts = re.split(r"^# (.+)\n", ONE_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        code = {
            parts[number].split(":")[0]: parts[number + 1] for number in range(1, len(parts), 2)
        }
        return re.sub(
            r"<!-- one file: (.+) -->",
            lambda name: f"```py\n{code[name[1]].strip()}\n```",
            markdown,
        )
    if GALLERY_HERE in markdown:
        made = [name for name in GALLERY if (ROOT / "docs" / "gallery" / f"{name}.html").exists()]
        items = [f'<li><a href="../gallery/{name}.html">{GALLERY[name]}</a></li>' for name in made]
        return markdown.replace(GALLERY_HERE, f"<ul>{''.join(items)}</ul>" if items else "")
    if COMMANDS_HERE not in markdown:
        return markdown
    from unremix.cli.commands import COMMANDS, SUMMARIES
    from unremix.cli.help import command_help, options_help

    texts = {name: command_help(name) for name in COMMANDS}
    texts |= {name: options_help(name, [], everything=True) for name in ("train", "compare")}
    sections = [f"## {name}\n\n```text\n{texts[name]}\n```" for name in SUMMARIES]
    return markdown.replace(COMMANDS_HERE, "\n\n".join(sections))


ROOT = Path(__file__).parent
ONE_FILE = ROOT / "examples" / "unremix_in_one_file.py"
GALLERY_HERE = "<!-- gallery -->"
GALLERY = {
    "images": "Handwritten digits",
    "graphs": "Syntax trees of the standard library",
    "sentences": "Sentences of Python's documentation",
    "comparison": "SimCLR, HCL and UnReMix compared",
}
COMMANDS_HERE = "<!-- commands -->"
ROLE = re.compile(r":[a-z]+:`(~?)([^`]+)`")


def _link(role: re.Match[str], where: griffe.Object) -> str:
    """A role as code that leads to what it names, if a page describes that."""
    shortened, name = role.groups()
    try:
        path = name if name.startswith("unremix.") else where.resolve(name.split(".")[0])
    except griffe.NameResolutionError:
        path = name
    rest = (
        "" if name.startswith("unremix.") else "".join(f".{part}" for part in name.split(".")[1:])
    )
    text = name.rsplit(".", 1)[-1] if shortened else name
    return f'<autoref identifier="{path}{rest}" optional><code>{text}</code></autoref>'


# A paragraph of lines such as "L_i = -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_j e^{s_ij/τ}) )".
EQUATIONS = re.compile(r"(?:\A|(?<=\n\n))(?:L\w*|w_\w+) = [^\n]+(?:\n\w+ = [^\n]+)*(?=\n\n|\Z)")
TO_LATEX = {
    r"-log\( (.+?) / \((.+)\) \)": r"-\\log \\frac{\1}{\2}",
    r"_([A-Za-z]{2,})": r"_{\1}",
    r"Σ": r"\\sum",
    r" in (Pos|Neg)\(i\)": r" \\in \\mathrm{\1}(i)",
    r"1/(N|n_i)(?= )": r"\\frac{1}{\1}",
    r"⁺": "^{+}",
    r"⁻": "^{-}",
}


def _typeset(paragraph: re.Match[str]) -> str:
    """The equations of a docstring as a block of the language math."""
    lines = paragraph[0].splitlines()
    for pattern, latex in TO_LATEX.items():
        lines = [re.sub(pattern, latex, line) for line in lines]
    lines = [re.sub(r"^(\S+) = ", r"\1 &= ", line) for line in lines]
    source = r" \\ ".join(lines)
    return f"```math\n\\begin{{align*}} {source} \\end{{align*}}\n```"


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is None:
            return
        text = EQUATIONS.sub(_typeset, obj.docstring.value)
        text = ROLE.sub(lambda role: _link(role, obj), text)
        # The arguments of a dataclass whose own constructor takes them all by ``**options``.
        if obj.is_class and "dataclass" in obj.labels and "__init__" in obj.members:
            text = re.sub(r"^Args:$", "Attributes:", text, count=1, flags=re.MULTILINE)
        # Only a section of this name has its doctests shown as code.
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Show the options of a constructor that takes them by name as they are passed."""
        takes_names = any(str(each.value).startswith("accepts(") for each in func.decorators)
        if takes_names and "given" in func.parameters:
            options = func.parameters["given"]
            options.name, options.kind = "options", griffe.ParameterKind.var_keyword
