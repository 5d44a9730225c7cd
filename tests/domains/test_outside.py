"""A kind of data from outside: the example in examples/time_series, by file and by entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from registering import forgetting

import unremix
from unremix.cli import main
from unremix.domains import DOMAINS, Domain, find_domain, register
from unremix.domains.arrays import splits_of
from unremix.domains.extensions import load_extensions
from unremix.domains.options import TrainConfig, UntrustedError
from unremix.frameworks.randomness import keys
from unremix.training.run import Run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "time_series"
FILE = FOLDER / "unremix_series.py"
SMALL: dict[str, Any] = {
    "imports": [str(FILE)], "domain": "series", "limit": 40, "batch_size": 16, "epochs": 2,
    "probe_epochs": 1, "head_hidden": (8,), "head_output": 4, "series": {"width": 4},
    "progress": False, "accelerator": "cpu", "threads": 1,
}  # fmt: skip
pytestmark = pytest.mark.xdist_group("outside")


@pytest.fixture(scope="module")
def series() -> Iterator[ModuleType]:
    """The example, imported as a file; it is gone afterwards."""
    with forgetting():
        load_extensions([str(FILE)])
        yield sys.modules[str(FILE)]
        del sys.modules[str(FILE)]


@pytest.fixture(scope="module")
def run(series: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("outside")
    return unremix.train(runs=str(folder), name="run", **SMALL)


def test_it_takes_at_most_200_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py")) <= 200


def test_a_run_is_measured_and_shown(run: Run, series: ModuleType) -> None:
    card = run.evaluation
    assert card is not None
    assert (card["train_windows"], card["test_windows"], card["classes"]) == (40, 40, 4)
    assert set(card["results"]) == {"trained", "untrained", "raw input"}
    assert card["results"]["raw input"]["features"] == 128
    page = (run.path / "report.html").read_text()
    assert "windows find their own second view" in page
    assert "train/00" in page


def test_a_resumed_run_is_the_same(run: Run, tmp_path: Path) -> None:
    first = unremix.train(runs=str(tmp_path), name="a", **{**SMALL, "epochs": 1})
    resumed = unremix.train(resume=str(first.path), epochs=2, trust=True, progress=False)
    for name, tensor in run.load_checkpoint()["model"].items():
        assert torch.equal(tensor, resumed.load_checkpoint()["model"][name]), name


def test_embeddings_are_the_same_on_every_way(
    run: Run, series: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(run.path), "--trust", "-o", str(tmp_path / "all.npz")]) == 0
    assert main(["export", str(run.path), "--trust"]) == 0
    found = np.load(tmp_path / "all.npz")
    data = find_domain("series").load(run.config)
    by_name = dict(zip(found["names"], found["embeddings"], strict=True))
    windows = data.test.x[:3]
    exported = unremix.load_exported(run.path / "encoder.safetensors").embed(windows)
    for number, name in enumerate(data.test.names[:3]):
        np.testing.assert_allclose(by_name[name], exported[number], atol=1e-6)
    np.testing.assert_allclose(unremix.load(run.path, trust=True).embed(windows.tolist()), exported)
    assert list(found["class_names"][:40]) == [data.train.classes[one] for one in data.train.labels]


def test_commands_need_trust_and_nothing_else(
    run: Run, series: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(run.path)
    assert main(["evaluate", folder, "--trust"]) == 0
    page = tmp_path / "neighbors.html"
    name = find_domain("series").load(run.config).train.names[0]
    words = ["neighbors", folder, "--query", name, "-k", "2", "--trust", "-o", str(page)]
    assert main(words) == 0
    assert page.read_text().count("<img") == 3  # the query and its neighbors, drawn
    assert main(["neighbors", folder, "--query", "nobody", "--trust"]) == 1
    assert (
        "expected the name of one of the windows in the data, got 'nobody'"
        in capsys.readouterr().err
    )
    assert main(["report", folder, "--trust", "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_a_run_names_its_file_and_does_not_import_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.config.imports == (str(FILE),)
    monkeypatch.delitem(DOMAINS, "series")
    with pytest.raises(UntrustedError, match=f"expected {run.path} to name no code, got {FILE}"):
        Run(run.path)


def test_data_of_other_shapes_are_refused(run: Run, series: ModuleType, tmp_path: Path) -> None:
    domain, two = find_domain("series"), tmp_path / "two.npy"
    np.save(two, np.zeros((5, 2, 64)))
    with pytest.raises(ValueError, match=r"expected windows \(n, 1, steps\) in .*two\.npy"):
        domain.load_for(run, str(two))
    with pytest.raises(ValueError, match=r"expected windows \(n, 1, steps\)"):
        run.embed(np.zeros((5, 64)))


def test_a_recording_is_cut_into_windows(series: ModuleType, tmp_path: Path) -> None:
    rows = np.arange(22.0).reshape(11, 2)
    file = tmp_path / "recording.csv"
    np.savetxt(file, rows, delimiter=",", header="left,right", comments="")
    config = TrainConfig(domain="series", data=str(file), series={"window": 4})
    x = find_domain("series").load(config).train.x
    expected = torch.tensor([[[0, 2, 4, 6], [1, 3, 5, 7]], [[8, 10, 12, 14], [9, 11, 13, 15]]])
    assert torch.equal(x, expected.float())


def test_views_change_what_their_options_say(series: ModuleType) -> None:
    x = torch.randn(6, 2, 50, generator=torch.Generator().manual_seed(0))
    key, same = keys(0, 0, torch.arange(6), 0), series.SeriesOptions(crop=1.0, noise=0.0, hide=0.0)
    torch.testing.assert_close(series.augment(x, key, same), x)
    noisy = series.augment(x, key, replace(same, noise=0.1)) - x
    assert bool((noisy.abs() <= 0.1 * (x.abs() + x.std(2, keepdim=True)) + 1e-6).all())
    assert not torch.equal(noisy[:, 0], noisy[:, 1])
    hidden = series.augment(x, key, replace(same, hide=0.9)) == x.mean(2, keepdim=True)
    assert bool((hidden[:, 0] == hidden[:, 1]).all())
    assert 1 < hidden[:, 0].sum(1).float().mean() < 45
    ramp = torch.linspace(0, 1, 50).expand(6, 1, 50)
    slope = series.augment(ramp, key, replace(same, crop=0.2)).diff(dim=2) * 49
    assert bool((slope >= 0.2 - 1e-4).all() and (slope <= 1 + 1e-4).all())
    torch.testing.assert_close(slope, slope[..., :1].expand_as(slope))
    # Of a sample's key alone, whatever else is in the batch.
    alone = series.augment(x[3:4], key[3:4], series.SeriesOptions())
    assert torch.equal(series.augment(x, key, series.SeriesOptions())[3:4], alone)


def test_a_window_is_drawn_as_its_curve(series: ModuleType) -> None:
    (image,) = series.draw(torch.linspace(1, -1, 100)[None, None])[0]
    heights = (image < 128).float().argmax(0)
    assert image.shape == (64, 64)
    assert image.dtype == torch.uint8
    assert bool((heights.diff() >= 0).all())  # it falls from the top left to the bottom right
    assert heights[0] <= 2
    assert heights[-1] >= 58


def test_a_dry_run_and_the_help(
    series: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["--imports", str(FILE), "--domain", "series"]
    assert main(["train", *typed, "--dry_run", "--limit", "64", "--epochs", "1"]) == 0
    assert "64, 16 a step" in capsys.readouterr().out
    assert main(["train", "--help", *typed]) == 0
    assert "--series.width, window, crop, noise, hide" in capsys.readouterr().out
    assert main(["train", "--help_all"]) == 0
    assert "Time steps of the windows that a .csv" in capsys.readouterr().out
    assert main(["recipes", "series-unremix"]) == 0
    assert "UnReMix on windows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "expected a new domain, got 'series'"),
        ({"name": "other"}, "expected a new section, got 'series'"),
        ({"name": "other", "section": "loss"}, "expected a new section, got 'loss'"),
        ({"name": "other", "section": "other"}, "expected a new recipe, got 'series-simclr'"),
        ({"name": "other", "options": dict}, "expected a dataclass as options of other"),
        ({"name": "other", "defaults": {"data": "x", "epochs": 1}}, "other for recipe, got none"),
    ],
)
def test_names_that_exist_are_refused(
    series: ModuleType, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        register(replace(series.DOMAIN, **changes))
    assert "other" not in DOMAINS


def test_the_same_record_registers_once(series: ModuleType) -> None:
    register(series.DOMAIN)
    load_extensions([str(FILE), str(FOLDER / ".." / "time_series" / FILE.name)])
    assert find_domain("series") is series.DOMAIN


# In a process of its own: what is installed is found when the package is imported.


def install(folder: Path, name: str, point: str, code: str | None = None) -> None:
    """What pip leaves of a package: its entry points and, where given, its module."""
    about = folder / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[unremix.domains]\n{point}\n")
    if code is not None:
        (folder / f"{name}.py").write_text(code)


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    path = [str(ROOT / "src"), *map(str, paths)]
    program = f"import sys\nsys.path[:0] = {path!r}\nfrom unremix.cli import main\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path that names the example as its own pyproject.toml does."""
    folder = tmp_path_factory.mktemp("installed")
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    ((name, place),) = project["entry-points"]["unremix.domains"].items()
    install(folder, project["name"].replace("-", "_"), f"{name} = {place}")
    return folder


def test_an_installed_package_is_found(installed: Path, tmp_path: Path) -> None:
    """Also where its file is named with --imports, too; and its runs need no trust."""
    words = [
        "train", "--domain", "series", "--limit", "32", "--epochs", "1", "--batch_size", "16",
        "--probe_epochs", "0", "--series.width", "4", "--accelerator", "cpu", "--threads", "1",
        "--runs", str(tmp_path), "--progress", "false",
    ]  # fmt: skip
    found = python(
        f"""
assert main(["recipes"]) == 0
assert main({[*words, "--name", "a"]!r}) == 0
assert main(["embed", {str(tmp_path / "a")!r}]) == 0
assert main({[*words, "--name", "b", "--imports", str(FILE)]!r}) == 0
import unremix_series
from unremix.domains import DOMAINS
assert DOMAINS["series"] is unremix_series.DOMAIN
""",
        installed,
        FOLDER,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "series-simclr" in found.stdout
    assert (tmp_path / "a" / "embeddings.npz").exists()
    assert "imports: []" in (tmp_path / "a" / "config.yaml").read_text()


def test_its_module_may_be_imported_first(installed: Path) -> None:
    program = "import warnings; warnings.simplefilter('error'); import unremix_series\n"
    code = "from unremix.domains import find_domain\nassert find_domain('series').unit == 'windows'"
    path = [str(ROOT / "src"), str(installed), str(FOLDER)]
    words = [sys.executable, "-c", f"import sys\nsys.path[:0] = {path!r}\n{program}{code}"]
    subprocess.run(words, check=True, timeout=120)


def test_a_broken_package_gives_a_warning(tmp_path: Path) -> None:
    install(tmp_path, "broken", "broken = broken:DOMAIN", "raise KeyError('a mistake')")
    install(tmp_path, "taken", "taken = taken:DOMAIN", (
        "from dataclasses import replace\nfrom unremix.domains.base import DOMAINS\n"
        "DOMAIN = replace(DOMAINS['graph'], unit='plots')\n"
    ))  # fmt: skip
    install(tmp_path, "gone", "gone = gone_since_then:DOMAIN")
    found = python("sys.exit(main(['recipes', 'graphcl']))", tmp_path)
    assert found.returncode == 0
    assert "GraphCL" in found.stdout
    lines = sorted(found.stderr.splitlines())
    assert len(lines) == 3
    for line, words in zip(
        lines,
        ("broken:DOMAIN, got KeyError: 'a mistake'", "gone_since_then:DOMAIN, got ModuleNotFound",
         "taken:DOMAIN, got ValueError: expected a new domain, got 'graph'"),
        strict=True,
    ):  # fmt: skip
        assert line.startswith("unremix: expected a kind of data from ")
        assert words in line


@pytest.mark.slow
def test_a_comparison_of_its_recipes(tmp_path: Path) -> None:
    """In separate processes, each given the file with --imports or --trust."""
    words = [
        "compare", "--imports", str(FILE), "--recipes", "series-simclr,series-unremix", "--seeds",
        "2", "--epochs", "1", "--limit", "40", "--batch_size", "16", "--series.width", "4",
        "--probe_epochs", "1", "--accelerator", "cpu", "--output", str(tmp_path / "c"),
    ]  # fmt: skip
    found = python(f"sys.exit(main({words!r}))")
    assert found.returncode == 0, found.stderr
    table = (tmp_path / "c" / "table.md").read_text()
    assert "series-simclr" in table
    assert "series-unremix" in table
    report = ["report", str(tmp_path / "c")]
    refused = python(f"sys.exit(main({report!r}))")
    assert refused.returncode == 1
    assert "to name no code" in refused.stderr
    assert python(f"sys.exit(main({[*report, '--trust']!r}))").returncode == 0


# The page that describes all this.

PAGE = (ROOT / "docs" / "domains.md").read_text()


def test_the_page_describes_every_field() -> None:
    """In the order of the record; those without a default say so."""
    rows = re.findall(r"^\| `(\w+)` \| (yes)?", PAGE, re.MULTILINE)
    needed = {
        its.name: its.default is MISSING and its.default_factory is MISSING
        for its in fields(Domain)
    }
    assert [(name, bool(required)) for name, required in rows] == list(needed.items())


def test_arrays_become_splits() -> None:
    arrays = {"x_train": np.eye(3), "y_train": np.array(["b", "a", "b"]), "x_test": np.eye(3)[:1],
              "y_test": np.array(["c"])}  # fmt: skip
    found = splits_of("some", arrays)
    assert found.test is not None
    assert found.train.labels is not None
    assert found.test.labels is not None
    assert found.train.labels.tolist() == [1, 0, 1]
    assert (found.test.labels.tolist(), found.test.classes) == ([2], ["a", "b", "c"])
    assert found.x.shape == (4, 3)
    limited = splits_of("some", arrays, limit=2).train
    assert limited.names == [f"train/{row:05d}" for row in limited.x.argmax(1).tolist()]
    for wrong, message in (
        ({"z": np.eye(2)}, "an array x or x_train in some, got z"),
        ({"x": np.empty((0, 3))}, "expected samples in x"),
        ({"x": np.full((2, 2), np.nan)}, "finite numbers in x"),
        ({"x": np.eye(2), "y": np.arange(3)}, "a class for each of 2 samples"),
    ):
        with pytest.raises(ValueError, match=message):
            splits_of("some", wrong)
