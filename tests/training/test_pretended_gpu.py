"""Losses and steps on a GPU that is pretended, in a process of its own: see pretended_gpu.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("pretended_gpu.py")


def run(*options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_losses_and_steps() -> None:
    run("-m", "not slow")


@pytest.mark.slow
def test_all_recipes_and_the_memory_of_65536_views() -> None:
    run("-m", "slow")
