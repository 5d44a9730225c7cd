"""Stages import only the stages before them, and nothing imports the command line."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "unremix"

# In the order of docs/architecture.md; a stage may import itself and the stages before it. Those in
# one group import each other, too, though never in a circle.
STAGES = [
    ("user_cache",),
    ("console",),
    ("files",),
    ("core",),
    ("losses", "signals", "audit", "frameworks", "evaluation", "mining"),
    ("adapters",),
    ("domains",),
    ("recipes",),
    ("training",),
    ("hub",),
    ("report",),
    ("pipeline",),
    ("cluster",),
    ("experiments",),
    ("cli",),
]
PLACE = {stage: number for number, group in enumerate(STAGES) for stage in group}
KINDS = {path.parent.name for path in (SOURCE / "domains").glob("*/__init__.py")}


MODULES = {
    ".".join(("unremix", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in SOURCE.rglob("*.py")
}


def stage_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[tuple[str, bool]]:
    """Modules of ours that a file imports, and whether only for type checking."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in inner]
        found |= {(name, id(node) in for_types) for name in names if name.startswith("unremix.")}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem in PLACE)


def kind_of(module: str) -> str | None:
    """The kind of data whose folder a module is in."""
    names = module.split(".")
    return names[2] if names[1:2] == ["domains"] and names[2:] and names[2] in KINDS else None


def test_the_root_holds_few_modules() -> None:
    known = {"__init__", "__main__", "losses", "audit", "recipes", "pipeline", "hub", "user_cache"}
    assert {path.stem for path in SOURCE.glob("*.py")} == known


def test_every_module_belongs_to_a_stage() -> None:
    found = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert found - {"__init__", "__main__"} == set(PLACE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_stage_imports_only_earlier_stages(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for module, for_types in imports(path):
        stage = stage_of(module)
        if for_types or stage not in PLACE:
            continue
        assert PLACE[stage] <= PLACE[own], f"{path.name} imports {module}"


@pytest.mark.parametrize("room", ["console", "files", "core"])
def test_the_first_rooms_import_no_other_room(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        assert {stage_of(module) for module, _ in imports(path)} <= {room, "user_cache"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_its_own_folder_knows_a_kind_of_data(path: Path) -> None:
    """Shared rooms neither import nor name one; a kind of data imports no other."""
    own = kind_of(".".join(("unremix", *path.relative_to(SOURCE).parts)))
    for module, _ in imports(path):
        assert kind_of(module) in (None, own), f"{path.name} imports {module}"
    # An adapter is for one library; the paper's experiments are data, and say what they are on.
    if own is None and path.parent.name not in ("adapters", "paper"):
        nodes = ast.walk(ast.parse(path.read_text()))
        named = {node.value for node in nodes if isinstance(node, ast.Constant)}
        if path.name == "suggestions.py":  # names extras of the package, one of which is a graph's
            named -= {"graph"}
        assert not named & KINDS, f"{path.name} names {named & KINDS}"


def test_adapters_know_losses_core_and_mining_only() -> None:
    known = {"adapters", "core", "losses", "mining"}
    known |= {"console", "files"}  # for messages, and for the bounds of what is read
    for path in (SOURCE / "adapters").glob("*.py"):
        assert {stage_of(module) for module, _ in imports(path)} <= known


def test_the_core_imports_torch_and_the_standard_library_only() -> None:
    known = {"torch", *sys.stdlib_module_names}
    own = ("unremix.core", "unremix.user_cache")
    for path in (SOURCE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.partition(".")[0] in known or name.startswith(own)


def test_domains_know_nothing_of_training() -> None:
    """Not even for type checking: a domain asks for a protocol, which a run meets."""
    later = {stage for group in STAGES[STAGES.index(("domains",)) + 1 :] for stage in group}
    for path in (SOURCE / "domains").rglob("*.py"):
        assert not later & {stage_of(module) for module, _ in imports(path)}


def test_no_import_hides_a_cycle() -> None:
    """Imports inside functions count: they may save time, not break a circle."""
    waiting = {
        name: {module for module, for_types in imports(path) if not for_types} & MODULES.keys()
        for name, path in MODULES.items()
        if name != "unremix"
    }
    for name, known in waiting.items():
        known.discard(name)
    while free := [name for name, known in waiting.items() if not known]:
        for name in free:
            del waiting[name]
        for known in waiting.values():
            known.difference_update(free)
    assert not waiting
