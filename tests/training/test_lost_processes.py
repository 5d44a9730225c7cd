"""A process of a run on two devices that is killed: the others say how to resume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unremix.cli import main
from unremix.training.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


def children_of(process: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


@pytest.mark.parametrize("killed", ["first", "second"])
def test_a_killed_process_gives_the_command_that_resumes(tmp_path: Path, killed: str) -> None:
    words = [
        "train", "--runs", str(tmp_path), "--limit", "96", "--batch_size", "32", "--epochs", "2000",
        "--probe_epochs", "0", "--head_hidden", "[16]", "--head_output", "8", "--accelerator",
        "cpu", "--threads", "1", "--devices", "2", "--width", "4",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    process = subprocess.Popen(
        [sys.executable, "-m", "unremix", *words], stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL, env={**environment, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("*/checkpoints/last.ckpt")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (other,) = children_of(process.pid)
    os.kill(process.pid if killed == "first" else other, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-9 if killed == "first" else 1)
    assert "Traceback" not in said
    command = re.search(r"lost one; resume with: unremix (train --resume (\S+))", said)
    assert command is not None, said
    done = Run(command[2]).load_checkpoint()["rows"][-1]["epoch"]
    config = Path(command[2]) / "config.yaml"
    config.write_text(
        config.read_text().replace("epochs: 2000", f"epochs: {int(done) + 1}")
        .replace("devices: 2", "devices: 1")
    )  # fmt: skip
    assert main([*command[1].split(), "--progress", "false"]) == 0
