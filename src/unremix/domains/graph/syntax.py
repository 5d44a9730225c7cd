"""Syntax trees of the standard library: real graphs that every Python has.

A graph is a function; a node is a node of its syntax tree, labeled by its type; edges go from
parent to child and back; the class is the package that the function is from.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from unremix.domains.graph.json_lines import Line, collect
from unremix.domains.graph.raw import RawGraphs
from unremix.files.archives import Skipped

# Those with the most functions, of the packages that distributors of Python do not leave out.
PACKAGES = (
    "asyncio", "email", "encodings", "http", "importlib", "logging", "multiprocessing", "unittest",
    "urllib", "xml",
)  # fmt: skip
FEWEST_NODES = 10  # smaller functions are stubs, alike in every package
MOST_NODES = 200
MOST_PER_PACKAGE = 400


@lru_cache(maxsize=1)
def read_syntax_trees(library: Path | None = None) -> RawGraphs:
    """The functions of the standard library as graphs.

    Functions and methods of :data:`PACKAGES` with 10 to 200 nodes, at most 400 of a package, spread
    evenly over its files. A nested function is part of the one around it. Nodes that only say
    whether a name is read or written are left out. The same for every installation of a version of
    Python. The library's folder is that of this Python by default.

    Raises:
        FileNotFoundError: If the sources of the library are not there.
    """
    library = Path(sysconfig.get_path("stdlib")) if library is None else library
    graphs: list[Line] = []
    skipped: list[Skipped] = []
    for package in PACKAGES:
        found = list(_graphs_of(library, package, skipped))
        if not found:
            skipped.append(Skipped(package, "no source files"))
        kept = min(len(found), MOST_PER_PACKAGE)
        graphs += [found[index * len(found) // kept] for index in range(kept)]
    if len({graph.label for graph in graphs}) < 2:
        remedy = "stdlib-ast needs an installation of Python with its .py files"
        what = f"the sources of the standard library in {library}"
        raise FileNotFoundError(f"expected {what}, got none; {remedy}")
    return collect(graphs, "stdlib-ast", 0, skipped)


def _graphs_of(library: Path, package: str, skipped: list[Skipped]) -> Iterator[Line]:
    """The functions of a package that are neither too small nor too large, file by file."""
    for path in sorted((library / package).rglob("*.py")):
        file = path.relative_to(library).as_posix()
        if "/test" in file:
            continue
        try:
            module = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError) as error:
            skipped.append(Skipped(file, f"cannot be parsed: {error}"))
            continue
        for name, function in _functions(module, ""):
            types, edges = _tree(function)
            if FEWEST_NODES <= len(types) <= MOST_NODES:
                ends = np.array([*edges, *(edge[::-1] for edge in edges)])
                yield Line(file, f"{file}:{name}", len(types), ends, types, None, package)


def _functions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods with their qualified names, in the order of the file."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef | ast.If | ast.Try | ast.With):
            inner = f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            yield from _functions(child, inner)


def _tree(function: ast.AST) -> tuple[list[int | str], list[tuple[int, int]]]:
    """The types of a function's nodes, and its edges from parent to child."""
    nodes: list[ast.AST] = [function]
    edges = []
    for index, node in enumerate(nodes):  # the list grows: breadth first
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                edges.append((index, len(nodes)))
                nodes.append(child)
        if len(nodes) > MOST_NODES:
            break
    return [type(node).__name__ for node in nodes], edges
