"""Freed memory is kept where the process is ours, and nowhere else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from unremix.cli import entry
from unremix.training import memory
from unremix.training.freed_memory import keep_freed_memory

# Prints how many pages the system hands out while 40 arrays of 16 MiB come and go.
FAULTS = """
import resource, sys
from unremix.training.freed_memory import keep_freed_memory
kept = len(sys.argv) > 1 and keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(b"1" * 2**24)
before = faults()
for _ in range(40):
    array = bytearray(2**24)
    array[::4096] = bytes(4096)
    del array
print(kept, faults() - before)
"""
glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ),
    reason="needs glibc with its own settings",
)


def page_faults(*arguments: str, **variables: str) -> tuple[str, int]:
    command = [sys.executable, "-c", FAULTS, *arguments]
    done = subprocess.run(
        command, env=os.environ | variables, check=True, capture_output=True, text=True
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@glibc
def test_kept_memory_is_used_again() -> None:
    _, fresh = page_faults()
    kept, again = page_faults("keep")
    assert kept == "True"
    assert again < fresh / 10


@pytest.mark.parametrize(
    "variables", [{"UNREMIX_KEEP_MEMORY": "0"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}]
)
def test_it_can_be_declined(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not keep_freed_memory()


@pytest.mark.parametrize(
    ("typed", "ours", "asked"),
    [(["train", "--help"], True, 1), (["train", "--help"], False, 0), (["--version"], True, 0)],
)
def test_only_the_command_train_asks(
    typed: list[str], ours: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(entry, "keep_freed_memory", lambda: calls.append(None))
    monkeypatch.setattr(sys, "argv", ["unremix", *typed])
    try:
        assert entry.main(None if ours else typed) == 0
    finally:
        gc.enable()
    assert len(calls) == asked


@glibc
@pytest.mark.parametrize(("then", "expected"), [("", ""), ("keep_freed_memory()", "mallopt")])
def test_a_loss_leaves_the_allocator_alone(then: str, expected: str) -> None:
    watched = f"""
import sys
def hook(event, arguments):
    if event == "ctypes.dlsym" and arguments[1] == "mallopt":
        print("mallopt")
sys.addaudithook(hook)
import torch, unremix
from unremix.training.freed_memory import keep_freed_memory
z = torch.randn(8, 4)
unremix.UnReMixLoss()(z, z + 1)
{then}
"""
    command = [sys.executable, "-c", watched]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == expected


def test_its_place_in_1_0_still_has_it() -> None:
    assert memory.keep_freed_memory is keep_freed_memory
