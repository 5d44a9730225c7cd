"""Commands in forks of a process that has imported everything: starting one takes seconds.

``warm_start.py SOCKET`` serves. ``warm_start.py SOCKET WORDS…`` has the server run ``unremix
WORDS…`` with the folder, environment and output of its own process, and ends as the command does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path


@contextmanager
def serving() -> Iterator[tuple[str, ...]]:
    """What Python is called with in place of ``-m unremix`` while a server is there."""
    with tempfile.TemporaryDirectory() as folder:
        words = (__file__, f"{folder}/socket")
        server = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n"
            yield words
        finally:
            server.terminate()
            server.communicate()


def warm_up(folder: Path) -> None:
    """Train, which imports what is imported late."""
    import torch_geometric as torch_geometric  # type: ignore[import-untyped]

    import unremix

    unremix.train(
        limit=32, batch_size=16, epochs=1, probe_epochs=1, width=4, head_hidden=(8,), head_output=4,
        runs=str(folder), progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip


def serve(path: str) -> None:
    import torch

    from unremix.cli import main

    with redirect_stdout(sys.stderr):
        warm_up(Path(path).parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 70
    try:
        asked, outputs, _, _ = socket.recv_fds(connection, 2**20, 2)
        request = json.loads(asked)
        for target, output in enumerate(outputs, start=1):
            os.dup2(output, target)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # read at the import otherwise
        code = main(request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(str(code).encode())
        os._exit(code)


def ask(path: str, words: list[str]) -> int:
    request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
        return int(connection.recv(16) or 70)


if __name__ == "__main__":
    _, place, *rest = sys.argv
    sys.exit(ask(place, rest) if rest else serve(place))
