"""A process that has imported everything, and forks a child for each run that is asked for.

Reads requests as lines of JSON and answers each with a line: ``words`` (of a command line, or
``save_pretrained``, a run and a folder), or ``options`` (of ``unremix.train``: parsing takes as
long as training), ``log`` (where its output goes), ``folder``, ``operation``, ``mode`` and
``error`` (see faults.c), ``kill_after`` (seconds).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any


def warm_up(folder: str) -> None:
    """Import all that training needs; drawing, which is slow, is left out from now on."""
    import torch

    from unremix.cli import main
    from unremix.report import page

    torch.set_num_threads(1)
    page._collected = lambda *_: (None, "left out")
    words = ["train", "--runs", folder, "--name", "warm", *SMALL]
    assert main(words) == 0


OPTIONS: dict[str, Any] = {
    "limit": 48, "batch_size": 16, "epochs": 2, "probe_epochs": 0, "width": 4, "head_hidden": [8],
    "head_output": 4, "progress": False, "accelerator": "cpu", "checkpoint_every": 2, "threads": 1,
}  # fmt: skip
SMALL = [
    word
    for name, value in OPTIONS.items()
    for word in (f"--{name}", value if isinstance(value, str) else json.dumps(value))
]


def save_pretrained(run: str, folder: str) -> int:
    """Write a run for others; an error is said and counted as that of a command."""
    import unremix

    try:
        unremix.load(run).save_pretrained(folder)
    except (OSError, ValueError) as error:
        print(f"unremix: {getattr(error, 'strerror', None) or error}")
        return 1
    return 0


def child(request: dict[str, Any]) -> None:
    """Run a command and leave; never returns."""
    code = 70
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faults = ctypes.CDLL(None)
        import unremix
        from unremix.cli import main

        where = request["folder"].encode()
        faults.faults_arm(where, request["operation"], request["mode"], request["error"])
        if request["options"] is not None:
            unremix.train(**request["options"])
            code = 0
        elif request["words"][0] == "save_pretrained":
            code = save_pretrained(*request["words"][1:])
        else:
            code = main(request["words"])
        sys.stdout.flush()
        print(f"operations: {faults.faults_seen()}", flush=True)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main(folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm_up(folder)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            child(request)
        if request["kill_after"] is not None:
            time.sleep(request["kill_after"])
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
