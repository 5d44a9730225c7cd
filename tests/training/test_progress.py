"""What a person sees, and how many threads a run takes."""

from __future__ import annotations

import io
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from small_runs import small

import unremix
from unremix.cli import main
from unremix.training import progress, threads
from unremix.training.progress import Progress

pytestmark = pytest.mark.xdist_group("training")


def test_lines_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unremix.train(small(tmp_path, progress=True, evaluate_every=2, epochs=3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unremix-simclr on digits: 96 images, 10 classes, 96 more to test on"
    machine = r"cpu, 1 thread, 32-true, (native|eager) engine"
    assert re.fullmatch(rf"backbone small, 8 px, [\d,]+ parameters; {machine}", lines[1])
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.split(" · ")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert ["kNN" in line for line in epochs] == [False, True, True]  # only where it was measured
    assert re.search(r"mix: uncertainty 0\.\d\d, similarity 0\.\d\d, repr", epochs[0])
    assert ["left" in line for line in epochs] == [True, True, False]
    assert re.search(r"about (a second|\d+ (s|min)) left", epochs[0])  # no more digits than known
    assert not [line for line in lines if line.startswith("step")]


def test_a_log_is_never_silent_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    unremix.train(small(tmp_path, progress=True, epochs=1))
    shown = capsys.readouterr().out
    assert re.search(r"step 2/3 · loss \d\.\d+ · [\d,]+ images/s( · about .* left)?\n", shown)


def test_a_terminal_of_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def terminal(quiet: bool) -> Console:
        return Console(file=screen, force_terminal=True, width=80, quiet=quiet, color_system=None)

    monkeypatch.setattr(progress, "Console", terminal)
    unremix.train(small(tmp_path, progress=True, epochs=2))
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue())
    lines = re.split(r"[\r\n]+", shown)
    assert [line for line in lines if line.startswith("epoch 1/2 · loss")]  # it stays
    bars = [line for line in lines if line.startswith("step")]
    assert bars
    assert all(len(line) <= 80 for line in bars)
    assert re.search(r"0:00:0\d elapsed .* left", bars[-1])


def test_the_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--runs", str(tmp_path), "--name", "run", "--limit", "64", "--batch_size",
             "32", "--epochs", "1", "--probe_epochs", "0", "--accelerator", "cpu"]  # fmt: skip
    assert main(words) == 0
    shown = capsys.readouterr().out
    for command in ("embed", "export", "train --resume"):
        assert f"unremix {command} {tmp_path / 'run'}" in shown
    (advised,) = re.findall(r"Raise --epochs to (\d+)", " ".join(shown.split()))
    assert f"{tmp_path / 'run'} --epochs {advised}\n" in shown  # the verdict's number
    short = ["--name", "short", "--epochs", "9", "--max_minutes", "0.00001"]
    assert main([*words, *short]) == 0
    shown = capsys.readouterr().out
    (epoch,) = (line for line in shown.splitlines() if line.startswith("epoch"))
    assert not epoch.endswith("left")  # of the time, nothing is
    assert "only 2 steps. Raise --max_minutes" in " ".join(shown.split())
    assert f"{tmp_path / 'short'} --max_minutes 2e-05\n" in shown


def test_a_message_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(small(Path(), progress=True)).say("left out: [red]photo[/red].jpg")
    assert capsys.readouterr().out == "left out: [red]photo[/red].jpg\n"


def first_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, steps: list[float],
    total: int, device: str = "cpu", pixels: int = 224, **options: Any,
) -> list[str]:  # fmt: skip
    """What is said in the first steps of a run, which take so many seconds each."""
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(progress, "SILENCE", math.inf)
    config = small(Path(), progress=True, log_every=None, **options)
    training: Any = SimpleNamespace(
        config=config, step=0, total=total, steps_per_epoch=total, seconds=0.0,
        run=SimpleNamespace(shape=SimpleNamespace(image_size=pixels)),
        fabric=SimpleNamespace(device=torch.device(device), is_global_zero=True),
    )  # fmt: skip
    shown = Progress(config)
    for seconds in steps:
        now += seconds
        training.step += 1
        shown.stepped(training, 1.0)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The first step is slower and does not count: 996 more of 13.4 s.
        ({}, "3 h 42 min more, evaluation not included; faster on a CPU: --backbone small "
             "--image_size 32. --dry_run estimates the time of other options"),
        ({"backbone": "small", "pixels": 32}, "3 h 42 min more, .*: fewer --epochs. --dry_run .*"),
        ({"domain": "graph"}, "3 h 42 min more, .*: fewer --epochs. --dry_run .*"),
        ({"device": "cuda"}, "3 h 42 min more, evaluation not included"),
        ({"max_minutes": 10}, "10 min more, evaluation not included"),
        ({"total": 24}, "4 min more, evaluation not included"),
    ],
)  # fmt: skip
def test_a_long_run_says_how_long_and_what_is_faster(
    options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    steps = [60.0, 5.0, 13.4, 13.4, 13.4, 13.4]
    (line,) = first_lines(monkeypatch, capsys, **({"steps": steps, "total": 1000} | options))
    assert re.fullmatch(f"training takes about {expected}", line)


def test_a_short_run_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_lines(monkeypatch, capsys, steps=[0.1] * 8, total=100) == []
    assert first_lines(monkeypatch, capsys, steps=[9.0], total=1000) == []  # nothing is known yet
    assert len(first_lines(monkeypatch, capsys, steps=[9.0, 30.0], total=1000)) == 1  # slow steps


STAT = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 {} 0 0 {} 0 0 0 0 0 0\ncpu1 0 0 0 {} 0 0 0 0 0 0\nintr 5\n"


@pytest.mark.parametrize(("busy", "idle", "free"), [(25, 0, 1), (0, 25, 2), (5, 20, 2), (20, 5, 1)])
def test_threads_are_the_free_cores(
    busy: int, idle: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter([STAT.format(100, 100, 100), STAT.format(100 + busy, 100 + idle, 125)])
    monkeypatch.setattr(threads.Path, "read_text", lambda _: next(texts))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threads.time, "sleep", lambda _: None)
    assert threads.free_cores() == free


def test_processes_share_the_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.choose_threads() is None
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert [threads.choose_threads(n) for n in (1, 2, 3, 20)] == [8, 4, 2, 1]


def test_the_threads_are_recorded_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr("unremix.training.preparation.choose_threads", lambda _: before + 1)
    run = unremix.train(small(tmp_path, threads=None, epochs=0))
    assert run.config.threads == before + 1  # a resumed run repeats exactly
    assert torch.get_num_threads() == before
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_child_processes_take_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with threads.limited_threads(1):
        assert os.environ["OMP_NUM_THREADS"] == "1"
        with threads.limited_threads(None):
            assert torch.get_num_threads() == 1
    assert "OMP_NUM_THREADS" not in os.environ
