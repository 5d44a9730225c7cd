"""The C code under the sanitizers of addresses and of undefined behavior."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = "gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from agreement import random_call, run
from unremix.core.engines import native
import torch
assert native.missing(torch.float32) is None, native.missing(torch.float32)
assert native.missing(torch.float64) is None, native.missing(torch.float64)
for seed in range(int(sys.argv[2])):
    run(random_call(seed), "native")
print("made", seed + 1, "calls")
"""


def library(name: str) -> str | None:
    """The path of a library that gcc brings along; None without."""
    if shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True)
    path = found.stdout.strip()
    return path if os.path.isabs(path) else None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    library("libasan.so") is None or library("libubsan.so") is None,
    reason="gcc has no sanitizers here",
)
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), "100"]
    environment = {
        **os.environ,
        "CC": COMPILER,
        "XDG_CACHE_HOME": str(tmp_path),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=77",
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=78",
        "OMP_NUM_THREADS": "2",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "made 100 calls" in done.stdout
    assert "runtime error" not in done.stderr
    built = list(tmp_path.rglob("kernels-*.so"))
    assert len(built) == 2
    assert all(b"__asan_init" in each.read_bytes() for each in built)
