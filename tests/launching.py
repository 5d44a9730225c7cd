"""Runs of several processes, started as torchrun and SLURM start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TESTS = Path(__file__).parent
SMALL = [
    "--limit", "48", "--batch_size", "12", "--probe_epochs", "0", "--width", "4", "--head_hidden",
    "[8]", "--head_output", "4", "--progress", "false", "--accelerator", "cpu", "--threads", "1",
]  # fmt: skip
SET_BY_LAUNCHERS = ("RANK", "WORLD", "LOCAL_", "NODE_RANK", "MASTER_", "SLURM_", "TORCHELASTIC")


def environment(**further: str) -> dict[str, str]:
    """The environment without what an earlier launcher said; the tests' modules can be imported."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(SET_BY_LAUNCHERS)}
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **further}


def train_words(folder: Path, *further: str) -> list[str]:
    """A small training, whose run is called ``run``."""
    return ["-m", "unremix", "train", "--runs", str(folder), "--name", "run", *SMALL, *further]


def start(
    words: Sequence[str], *, before: Sequence[str] = (), **further: str
) -> subprocess.Popen[str]:
    """A Python process of its own, whose output is one text.

    Args:
        words: What follows ``python``.
        before: A command that runs it, such as ``ip netns exec``.
        further: Environment variables.
    """
    return subprocess.Popen(
        [*before, sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**further),
    )


def torchrun(
    words: Sequence[str],
    *options: str,
    processes: int = 2,
    before: Sequence[str] = (),
    **further: str,
) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    options = options or ("--standalone",)
    further = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **further}
    return start([*launcher, *options, *words], before=before, **further)


def slurm_task(
    words: Sequence[str],
    rank: int,
    tasks: int,
    port: int,
    *,
    before: Sequence[str] = (),
    **further: str,
) -> subprocess.Popen[str]:
    """One of several tasks on one machine, as ``srun`` starts them."""
    variables = {
        "JOB_ID": "7", "NTASKS": tasks, "NTASKS_PER_NODE": tasks, "NNODES": 1, "PROCID": rank,
        "LOCALID": rank, "NODEID": 0, "NODELIST": "127.0.0.1", "JOB_NAME": "train",
    }  # fmt: skip
    named = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    return start(words, before=before, MASTER_PORT=str(port), **named, **further)


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process ids of torchrun's workers, by rank (Linux)."""
    found = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in map(int, children):
        try:
            lines = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        rank = next((line[5:] for line in lines if line.startswith(b"RANK=")), None)
        if rank is not None:
            found[int(rank)] = child
    return found


def wait_until(
    condition: Callable[[], bool],
    process: subprocess.Popen[str] | None = None,
    seconds: float = 120,
) -> None:
    """Wait for something that this process or another does.

    Raises:
        AssertionError: If the other ends before, or time is up.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process and process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(process: subprocess.Popen[str], seconds: float = 240) -> str:
    """What a process printed, once it has ended well."""
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, output
    return output
