"""Ctrl-C and the signals that end a process: a run stops between two steps, not within one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shlex import quote
from types import FrameType

IMPATIENCE = 2.0  # seconds; torchrun repeats a signal at once, a person does not


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle requests to stop: Ctrl-C, SIGTERM, a closed terminal, SLURM's SIGUSR1.

    Signals that are ignored (``nohup``) stay so. Outside the main thread nothing changes.
    """
    earlier = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [signal.SIGINT, signal.SIGTERM]
        numbers += [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
        numbers += [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


class StopRequest:
    """Notes a request to stop. A second one, two seconds later or more, ends the process at once.

    While ``at_once`` is set, so does the first.
    """

    def __init__(self) -> None:
        self.asked = False
        self.requeue = False
        self.at_once = False
        self.since = 0.0

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.at_once or (self.asked and now - self.since > IMPATIENCE):
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self.since = True, now
            self.requeue = number == getattr(signal, "SIGUSR1", None)


def resume_command(run: str, *, trust: bool = False) -> str:
    """What resumes a run; ``trust`` allows the code that its folder names.

    Example:
        >>> resume_command("runs/my cats"), resume_command("runs/x", trust=True)
        ("unremix train --resume 'runs/my cats'", 'unremix train --resume runs/x --trust')
    """
    return f"unremix train --resume {quote(run)}{' --trust' * trust}"


def requeue() -> None:
    """Put this SLURM job back into the queue; with the same ``--name`` it resumes its run."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    subprocess.run(["scontrol", "requeue", job], check=True)
