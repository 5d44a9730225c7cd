"""Training on several hosts, one of which is cut off from the network, restored or replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import finish, slurm_task, torchrun, train_words, wait_until
from same_runs import assert_same
from torture.hosts import Hosts, why_not

from unremix.training.run import Run

MISSING = why_not()
TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"  # `make torture`
CUTS = 3 if TORTURE else 1
PATIENCE = 0.15  # minutes
# Seconds in which a failed rendezvous must end, also on a busy machine. Without the tests' options,
# training would wait for 30 minutes and torchrun for 10.
LIMIT = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.timeout(1800 if TORTURE else 600),
    pytest.mark.skipif(MISSING is not None, reason=MISSING or ""),
]
OPTIONS = ["--epochs", "60", "--checkpoint_every", "3", "--timeout_minutes", str(PATIENCE)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes on one host, never disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    finish(torchrun(train_words(folder, *OPTIONS)))
    return Run(folder / "run")


def join(
    hosts: Hosts, number: int, words: list[str], further: str = "join_timeout=600"
) -> subprocess.Popen[str]:
    """One of two hosts that meet at the first one, which does not know itself by its address."""
    options = [
        "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_id", "run", "--max_restarts", "5",
        "--rdzv_endpoint", f"{hosts.address(0)}:29400", "--local_addr", hosts.address(number),
        "--rdzv_conf", f"is_host={int(number == 0)},{further}",
    ]  # fmt: skip
    return torchrun(
        words, *options, processes=1, before=hosts.on(number), GLOO_SOCKET_IFNAME="eth0"
    )


def wait_for_a_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    """One that is written from now on."""
    since = time.time()
    last = folder / "run" / "checkpoints" / "last.ckpt"
    wait_until(lambda: last.exists() and last.stat().st_mtime > since, process)


def end(process: subprocess.Popen[str]) -> None:
    """Let a host die: torchrun, and its workers with it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    process.communicate()


def test_two_hosts_train_as_one(hosts: Hosts, whole: Run, tmp_path: Path) -> None:
    words = train_words(tmp_path, *OPTIONS)
    for process in [join(hosts, number, words) for number in range(2)]:
        finish(process)
    assert_same(Run(tmp_path / "run"), whole)


def test_a_host_is_cut_off_and_restored(hosts: Hosts, whole: Run, tmp_path: Path) -> None:
    words = train_words(tmp_path, *OPTIONS)
    first, second = (join(hosts, number, words) for number in range(2))
    for _ in range(CUTS):
        wait_for_a_checkpoint(tmp_path, first)
        hosts.cut(1)
        time.sleep(60 * PATIENCE + 3)  # longer than the processes wait for each other
        hosts.restore(1)
    for process in (first, second):
        finish(process)
    assert_same(Run(tmp_path / "run"), whole)


def test_a_host_is_replaced(hosts: Hosts, whole: Run, tmp_path: Path) -> None:
    words = train_words(tmp_path, *OPTIONS)
    first, second = (join(hosts, number, words) for number in range(2))
    wait_for_a_checkpoint(tmp_path, first)
    hosts.cut(1)
    end(second)
    third = join(hosts, 2, words)
    for process in (first, third):
        finish(process)
    assert_same(Run(tmp_path / "run"), whole)


def test_a_cut_during_the_rendezvous(hosts: Hosts, tmp_path: Path) -> None:
    """Processes that torchrun did not start say what they waited for, in time."""
    hosts.cut(1)
    words = train_words(tmp_path, "--epochs", "1", "--timeout_minutes", "0.05")
    began = time.monotonic()
    tasks = [
        slurm_task(words, rank, 2, 29500, before=hosts.on(rank), MASTER_ADDR=hosts.address(0))
        for rank in range(2)
    ]
    for task in tasks:
        said, _ = task.communicate(timeout=LIMIT)
        assert task.returncode == 1
        assert f"2 processes to meet at {hosts.address(0)}:29500" in said
        assert "Traceback" not in said
    assert time.monotonic() - began < LIMIT
    assert not (tmp_path / "run").exists()


def test_a_cut_while_torchrun_waits(hosts: Hosts, tmp_path: Path) -> None:
    """torchrun itself names the rendezvous, within the time that it was given."""
    hosts.cut(1)
    words = train_words(tmp_path, "--epochs", "1")
    began = time.monotonic()
    for process in [
        join(hosts, number, words, "join_timeout=5,read_timeout=5") for number in range(2)
    ]:
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 1
        assert "RendezvousTimeoutError" in said or "RendezvousConnectionError" in said
    assert time.monotonic() - began < LIMIT
