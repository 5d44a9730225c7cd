"""Runs whose file operations fail, or that are killed at one of them; see torture/faults.c."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "torture"

NOTHING, FAIL_ONCE, FAIL_FROM, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER = range(6)
KILLS = {"before": KILL_BEFORE, "halfway": KILL_HALFWAY, "after": KILL_AFTER}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code, and all that it printed."""

    code: int
    output: str

    @property
    def operations(self) -> int:
        """How many there were."""
        found = re.search(r"^operations: (\d+)$", self.output, re.M)
        assert found is not None, self.output
        return int(found[1])


class Nursery:
    """A process from which runs are forked.

    Args:
        folder: For its own files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = folder / "faults.so"
        subprocess.run(
            [compiler(), "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"],
            check=True,
        )
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "nursery.py", str(folder / "warm")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(
        self,
        what: list[str] | dict[str, Any],
        folder: Path,
        *,
        operation: int = -1,
        mode: int = NOTHING,
        error: int = 0,
        kill_after: float | None = None,
    ) -> Outcome:
        """Run something whose n-th operation below a folder is to fail, or to be its last.

        Args:
            what: The words of a command, or options of :func:`unremix.train`.
            folder: Where operations count.
            operation: Which, from 1.
            mode: What happens at it.
            error: The number of the error, if it fails.
            kill_after: Seconds until it is killed, wherever it is.
        """
        log = self.folder / "log.txt"
        log.unlink(missing_ok=True)
        request = {
            "words": what if isinstance(what, list) else None,
            "options": what if isinstance(what, dict) else None,
            "log": str(log), "folder": str(folder), "operation": operation, "mode": mode,
            "error": error, "kill_after": kill_after,
        }  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = int(self._answer())
        return Outcome(code, log.read_text() if log.exists() else "")

    def close(self) -> None:
        """End it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(60)


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc"))
