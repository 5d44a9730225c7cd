"""``--compile``: what it changes, and that nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import crash_at
from same_runs import assert_same, plain
from small_runs import small

import unremix
from unremix.cli import main
from unremix.training import compiling
from unremix.training.run import Run


def swapped(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> list[int]:
    """Compile by something else; the list grows with every call of what it makes."""
    calls: list[int] = []

    def compile_by(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        made = compiler(function)

        def counted(*arguments: Any) -> Any:
            calls.append(1)
            return made(*arguments)

        return counted

    monkeypatch.setattr(torch, "compile", compile_by)
    return calls


def raising(function: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no C++ compiler\nwas found")

    return fail


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda images: -(function(images) ** 2)


@pytest.mark.slow
def test_a_compiled_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It computes what eager computes, resumes to the bit, and its files are those of any run."""
    options = {"precision": "32-true", "epochs": 2}
    eager = unremix.train(small(tmp_path / "eager", compile=False, **options))
    whole = unremix.train(small(tmp_path / "whole", compile=True, progress=True, **options))
    shown = capsys.readouterr().out
    assert shown.count("the encoder is compiled, which took") == 1
    assert "\ncompile: true" in (whole.path / "config.yaml").read_text()
    losses = [[row["loss"] for row in run.metrics()] for run in (eager, whole)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    ours, theirs = (Run(one.path).load_checkpoint()["model"] for one in (whole, eager))
    assert list(ours) == list(theirs)
    assert plain(ours) != plain(theirs)  # it was compiled
    with crash_at(4):
        unremix.train(small(tmp_path / "broken", compile=True, **options))
    resumed = unremix.train(resume=str(tmp_path / "broken" / "run"), progress=False)
    assert resumed.config.compile is True
    assert_same(resumed, whole)


@pytest.mark.parametrize(
    ("compiler", "why"),
    [(raising, "failed here: no C"), (doubled, "code is wrong here")],
    ids=["raises", "wrong"],
)
def test_a_failure_falls_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compiler: Callable[..., Any],
    why: str,
) -> None:
    """In one line, and with the bits of a run that never tried."""
    eager = unremix.train(small(tmp_path / "eager", compile=False, recipe="moco", epochs=2))
    calls = swapped(monkeypatch, compiler)
    run = unremix.train(
        small(tmp_path / "tried", compile=True, recipe="moco", epochs=2, progress=True)
    )
    assert calls
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "without --compile" in line]
    assert why in line
    assert run.config.compile is False
    assert "\ncompile: false" in (run.path / "config.yaml").read_text()
    assert_same(run, eager)


def test_the_rehearsal_and_the_measures_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a compiler that changes nothing, no bit changes; only training steps use its code."""
    eager = unremix.train(small(tmp_path / "eager", compile=False, recipe="moco", epochs=2))
    calls = swapped(monkeypatch, lambda function: function)
    run = unremix.train(small(tmp_path / "same", compile=True, recipe="moco", epochs=2))
    steps = 2 * 3
    assert len(calls) % (1 + steps) == 0  # as often in the rehearsal as in each step
    assert_same(run, eager)
    before = len(calls)
    run.embed(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    assert len(calls) == before


def test_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not try in a short run; in a long one it is what the rehearsal finds, for good."""
    calls = swapped(monkeypatch, lambda function: function)
    short = unremix.train(small(tmp_path / "short", epochs=1))
    assert short.config.compile is False
    assert not calls
    monkeypatch.setattr(compiling, "FEWEST", 1)
    monkeypatch.setattr("unremix.training.preparation.FEWEST", 1)
    quick = unremix.train(small(tmp_path / "quick", epochs=1))  # of many, but fast steps
    assert quick.config.compile is False
    assert not calls
    monkeypatch.setattr(compiling, "LONG", 0.0)
    for share, expected in ((1e9, True), (0.0, False)):
        monkeypatch.setattr(compiling, "FASTER", share)
        run = unremix.train(small(tmp_path / str(expected), epochs=1))
        assert calls
        assert run.config.compile is expected
        assert Run(run.path).config.compile is expected
    monkeypatch.setattr(compiling, "FASTER", 0.0)
    again = unremix.train(resume=str(tmp_path / "True" / "run"), epochs=2, progress=False)
    assert again.config.compile is True


def test_what_cannot_be_compiled_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unremix.train(small(tmp_path, epochs=1, chunk=16, compile=True, progress=True))
    assert "trains without --compile, which is for one process" in capsys.readouterr().out
    assert run.config.compile is False


def test_an_early_configuration(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=1))
    file = run.path / "config.yaml"
    text = file.read_text()
    assert "\ncompile: false\n" in text
    file.write_text(text.replace("\ncompile: false\n", "\n"))
    assert Run(run.path).config.compile is False
    longer = unremix.train(resume=str(run.path), epochs=2, progress=False)
    assert longer.config.compile is False


def test_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, expected in (("true", "true"), ("false", "false"), ("auto", "auto")):
        assert main(["train", "--compile", word, "--print_config"]) == 0
        assert f"\ncompile: {expected}\n" in capsys.readouterr().out
    assert main(["train", "--compile", "maybe", "--print_config"]) != 0
    assert "--compile" in capsys.readouterr().err
