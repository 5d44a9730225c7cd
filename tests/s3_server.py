"""An S3 server on this machine, by moto, whose answers can be spoiled.

As a program it serves on a free port and prints it. :class:`S3` starts it and asks it for faults:
the next answers to GETs of an object can be an error, late, or cut off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

FAULTS = "/_faults"
SECRET = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Faulty:
    """Serves as another application does, but for the faults that were asked for."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application
        self.faults: dict[str, list[Any]] = {}
        self.gets: dict[str, int] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == FAULTS:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if length:
                self.faults, self.gets = json.loads(environ["wsgi.input"].read(length)), {}
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.gets).encode()]
        if environ["REQUEST_METHOD"] != "GET":
            return self.application(environ, start)
        self.gets[path] = self.gets.get(path, 0) + 1
        waiting = self.faults.get(path)
        fault = waiting.pop(0) if waiting else None
        if fault == "error":
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"]
        if isinstance(fault, int | float):
            time.sleep(fault)
        body = self.application(environ, start)
        return _half(body) if fault == "truncate" else body


def _half(body: Iterable[bytes]) -> Iterator[bytes]:
    whole = b"".join(body)
    yield whole[: len(whole) // 2]


class S3:
    """A server in a process of its own; ``environment`` is what its clients need."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        self.address = f"http://127.0.0.1:{port}"
        self.environment = {**SECRET, "AWS_ENDPOINT_URL": self.address}

    def spoil(self, **faults: list[Any]) -> None:
        """Spoil the next GETs of objects, by ``bucket__key``; forget what was counted."""
        paths = {f"/{name.replace('__', '/')}": list(of) for name, of in faults.items()}
        self._ask(json.dumps(paths).encode())

    def gets(self) -> dict[str, int]:
        """How often each object was asked for since then."""
        return self._ask(None)

    def _ask(self, data: bytes | None) -> dict[str, int]:
        request = urllib.request.Request(self.address + FAULTS, data)
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: dict[str, int] = json.loads(answer.read())
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    for name, value in SECRET.items():
        os.environ.setdefault(name, value)
    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (a line per request)
    server.serve_forever()


if __name__ == "__main__":
    serve()
