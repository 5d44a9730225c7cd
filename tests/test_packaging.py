"""The extras of pyproject.toml: everything imported is declared, everything declared is used."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

import unremix
from unremix.cli.doctor import SAFE, holes

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[1]
VERSION = unremix.__version__
pytestmark = pytest.mark.xdist_group("wheel")  # one worker installs it, and torch with it
PACKAGE = {
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "open_clip": "open_clip_torch",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# timm is asked for by name on the command line; umap is used where it is; typing_extensions is for
# type checking only; datasets and transformers come with sentence-transformers.
OPTIONAL = {"datasets", "timm", "transformers", "typing_extensions", "umap"}
AT_RUN_TIME = {  # named in a string, or needed by another package
    "onnxruntime",
    "onnxscript",
    "pillow-heif",
    "rdkit",
    "s3fs",
    "sentencex",
    "tensorboard",
    "timm",
    "transformers",
}


def _imported() -> set[str]:
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    foreign = found - sys.stdlib_module_names - {"unremix"}
    return {PACKAGE.get(name, name).lower() for name in foreign}


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    for name, packages in extras.items():
        if name not in ("all", "dev"):
            lines += packages
    return {re.match(r"[\w-]+", line).group().lower() for line in lines}  # type: ignore[union-attr]


def test_every_import_is_declared() -> None:
    assert _imported() - OPTIONAL <= _declared()


def test_every_declared_package_is_used() -> None:
    assert _declared() <= _imported() | AT_RUN_TIME


def test_lower_bounds_are_versions_without_known_holes() -> None:
    """But of torch, below whose safe version no archive is read without --trust."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for some in project["optional-dependencies"].values() for line in some]
    for line in lines:
        if (found := re.match(r"([\w-]+).*>=([\d.]+)", line)) and found[1] in SAFE:
            assert holes({found[1]: found[2]}) == [], line


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{VERSION}]\n" in (ROOT / "CHANGELOG.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]  # hatchling reads unremix.__version__


# The wheel, in an environment of its own


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and torch alone."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "-q")
    made = run(*pip, "wheel", "--no-deps", "-w", folder, ROOT, folder=folder)
    if made.returncode:
        pytest.skip(f"the wheel cannot be built here: {made.stderr[-300:]}")
    (wheel,) = folder.glob("unremix-*.whl")
    found = run(*pip, "install", "-c", ROOT / "constraints.txt", wheel, folder=folder)
    if found.returncode:
        pytest.skip(f"torch cannot be installed here: {found.stderr[-300:]}")
    return programs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_torch_alone(installed: Path, tmp_path: Path) -> None:
    def unremix(*words: str) -> subprocess.CompletedProcess[str]:
        return run(installed / "unremix", *words, folder=tmp_path)

    assert unremix("--version").stdout.strip() == VERSION
    usage = unremix()
    assert usage.returncode == 0
    assert 'pip install "unremix[train,report]"' in usage.stdout
    doctor = unremix("doctor")
    assert doctor.returncode == 0, doctor.stderr
    assert "lightning" in doctor.stdout
    for command in (["train"], ["recipes"], ["train", "--help"], ["embed", "run"]):
        refused = unremix(*command)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].endswith('pip install "unremix[train,report]"')
        assert "Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_s_code_runs_with_torch_alone(installed: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for code in blocks:
        ran = run(installed / "python", "-c", code, folder=tmp_path)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_on_pypi_links_to_no_file(installed: Path, tmp_path: Path) -> None:
    code = "from importlib.metadata import metadata; print(metadata('unremix').as_string())"
    shown = run(installed / "python", "-c", code, folder=tmp_path).stdout
    assert "Description-Content-Type: text/markdown" in shown
    assert "Project-URL: Paper, https://arxiv.org" in shown
    targets = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert targets
    assert all(target.startswith("https://") for target in targets)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_trains_once_its_extras_are_there(installed: Path, tmp_path: Path) -> None:
    """Last in this file: it adds packages to the environment."""
    pip = (installed / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install")
    (wheel,) = installed.parents[1].glob("unremix-*.whl")
    found = run(*pip, "-c", ROOT / "constraints.txt", f"{wheel}[train,report]", folder=tmp_path)
    if found.returncode:
        pytest.skip(f"the extras cannot be installed here: {found.stderr[-300:]}")
    options = ("--epochs", "1", "--limit", "64", "--batch_size", "16")
    trained = run(installed / "unremix", "train", *options, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert list((tmp_path / "runs").glob("*/encoder.safetensors"))


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        (None, "see the page, [arXiv](https://arxiv.org) and [below](#part)"),
        (
            "https://host/project",
            "see [the page](https://host/project/blob/main/docs/page.md), "
            "[arXiv](https://arxiv.org) and [below](#part)",
        ),
    ],
)
def test_links_for_pypi(
    repository: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = ModuleType("hatchling.metadata.plugin.interface")
    monkeypatch.setattr(interface, "MetadataHookInterface", object, raising=False)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    found = runpy.run_path(str(ROOT / "hatch_build.py"))
    readme = (
        '<picture>\n<img src="docs/a.png">\n</picture>\n\n*What it\nshows.*\n\n'
        "![a plot](docs/b.svg)\n\n"
        "see [the page](docs/page.md), [arXiv](https://arxiv.org) and [below](#part)"
    )
    assert found["for_pypi"](readme, repository) == expected
