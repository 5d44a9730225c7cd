"""Commands in a folder of somebody else: no file is obeyed because it lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from unremix.core.engines import compiled
from unremix.domains.options import TrainConfig
from unremix.experiments import executors
from unremix.experiments.plan import Job
from unremix.experiments.results import Folder
from unremix.files.atomic_files import try_lock

SHADOWS = (
    "unremix", "secrets", "ctypes", "torch", "numpy", "yaml", "json", "joblib", "sitecustomize",
    "usercustomize", "multiprocessing", "lightning", "random", "tempfile", "matplotlib",
)  # fmt: skip


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder of modules that leave a file behind when they are imported."""
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'canary')!r}, 'a').write({name + ' '!r})\n"
        )
    return folder


def test_the_modules_sing(strange: Path, tmp_path: Path) -> None:
    """Else the other tests would show nothing."""
    subprocess.run([sys.executable, "-c", "import secrets"], cwd=strange, check=True)
    assert (tmp_path / "canary").read_text() == "secrets "


@pytest.mark.parametrize("bound", [False, True])
def test_a_run_of_an_experiment_imports_nothing_from_here(
    strange: Path, tmp_path: Path, bound: bool
) -> None:
    """Without PYTHONSAFEPATH, which Python 3.10 does not know, as well."""
    folder, job = Folder(tmp_path / "comparison"), Job("simclr", 0, "simclr-0", TrainConfig())
    lock = try_lock(folder.lock(job))
    assert lock is not None
    task = executors.Task.of(job, folder, dict(os.environ), str(strange))
    process = replace(task, program=(*executors.TRAIN, "--help")).begin(lock, bound=bound)
    os.close(lock)
    assert process.wait(60) == 0, folder.log(job).read_text()
    assert "--epochs" in folder.log(job).read_text()
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, executors.TRAIN[0], "--version"], cwd=strange, env=bare, check=True
    )
    assert done.returncode == 0
    assert not (tmp_path / "canary").exists()


def test_figures_follow_no_file_of_this_folder(strange: Path) -> None:
    (strange / "matplotlibrc").write_text("text.usetex: true\nfont.size: 33\nlines.linewidth: 9\n")
    for module in ("matplotlib", "random", "tempfile", "json", "ctypes", "numpy", "secrets"):
        (strange / f"{module}.py").unlink()
    look = "print(matplotlib.rcParams['text.usetex'], matplotlib.rcParams['lines.linewidth'])"
    code = f"import sys; sys.path.pop(0); import matplotlib; {look}"
    ours = f"{code[: -len(look)]}import unremix.report.style; {look}"
    said = [
        subprocess.run(
            [sys.executable, "-c", words], cwd=strange, check=True, capture_output=True, text=True
        ).stdout.split()
        for words in (code, ours)
    ]
    assert said[0] == ["True", "9.0"]  # a figure of matplotlib's own would run latex
    assert said[1] == ["False", str(matplotlib.rcParamsDefault["lines.linewidth"])]


def test_compiled_code_is_kept_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored in the end
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    compiled._compiled.cache_clear()
    compiled.keep_code_private.cache_clear()
    compiled._compiled(len)
    kept = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert kept == tmp_path / "unremix" / "inductor"
    assert kept.stat().st_mode & 0o777 == 0o700
    compiled.keep_code_private.cache_clear()
    kept.rmdir()
    kept.symlink_to(tmp_path)  # somebody else's choice of a folder is not followed
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    compiled.keep_code_private()
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) != kept
    compiled._compiled.cache_clear()
