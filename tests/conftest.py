from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import processes
import pytest
import torch
from batches import Batch, make_batch
from hypothesis import HealthCheck, settings
from warm_start import serving

from unremix.core.engines import VARIABLE, compiled, native

# A shared machine may be slow at any moment, and a check must not fail by chance.
settings.register_profile(
    "unremix", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unremix")


def pytest_collection_finish() -> None:
    """Keep garbage collections from searching the imported modules and the tests each time."""
    gc.collect()
    gc.freeze()


# What --precision auto stands for, in place of a measurement, also in the processes started here.
os.environ.setdefault("UNREMIX_PRECISION", "32-true")


@pytest.fixture(scope="session", autouse=True)
def count_few_processes() -> None:
    """Leave coverage to this process and those of processes.py: it makes others start late."""
    processes.counting = os.environ.pop(processes.COUNTING, None)


@pytest.fixture(scope="module", autouse=True)
def quick_maps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw the maps of report pages by PCA alone, except in the tests of reports.

    t-SNE takes a quarter of a small run's time.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name != "report" and find_spec("sklearn") is not None:
            patch.setattr("unremix.report.projection._tsne", lambda reduced: reduced[:, :2])
        yield


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals as in a terminal, also where the tests were started with ``nohup`` or ``&``.

    These have SIGINT ignored, in this process and in all that it starts.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    earlier = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", params=["native", "eager"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Engines of a loss on the CPU: ``native`` where it can be built and serves, and ``eager``."""
    reason = native.missing()
    if request.param == "native" and reason is not None:
        pytest.skip(f"there is no compiled code: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield request.param


@pytest.fixture(params=["eager", "native", "compiled"])
def every_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine, preferred where it serves; ``compiled`` without a backend that takes seconds."""
    reason = native.missing()
    if request.param == "native" and reason is not None:
        pytest.skip(f"there is no compiled code: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        patch.setattr(compiled, "compile", partial(torch.compile, backend="aot_eager"))
        compiled._compiled.cache_clear()
        yield request.param
        compiled._compiled.cache_clear()
        if request.param == "compiled":
            torch._dynamo.reset()


@pytest.fixture(scope="session")
def warm() -> Iterator[tuple[str, ...]]:
    """What Python is called with for a command in a fork of a process that has all imports."""
    with serving() as words:
        yield words


@pytest.fixture
def warm_runs(warm: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have experiments start their runs so: importing takes longer than a small run."""
    monkeypatch.setattr("unremix.experiments.executors.TRAIN", (*warm, "train"))


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@pytest.fixture
def split_folder(tmp_path: Path) -> Path:
    """Pictures of two animals, for training and for testing."""
    from pictures import save  # it needs Pillow, the losses do not

    folder = tmp_path / "animals"
    for split, count in (("train", 3), ("test", 2)):
        for animal in ("dog", "cat"):
            for number in range(count):
                save(folder / split / animal / f"{number}.png")
    return folder
