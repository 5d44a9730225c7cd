"""Several hosts on one machine: network namespaces with addresses of their own, behind a switch."""

from __future__ import annotations

import os
import subprocess
from typing import Any


def run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Hosts that reach each other over one network, as a context.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.mark = f"unremix-{os.getpid()}"
        self.switch = f"{self.mark}-switch"

    def __enter__(self) -> Hosts:
        try:
            run("netns", "add", self.switch)
            run("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("-n", self.switch, "link", "set", "bridge", "up")
            for number in range(self.count):
                self._add(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add(self, number: int) -> None:
        name, port = self.name(number), f"port{number}"
        run("netns", "add", name)
        run("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns",
            self.switch)  # fmt: skip
        run("-n", self.switch, "link", "set", port, "master", "bridge", "up")
        run("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        run("-n", name, "link", "set", "eth0", "up")
        run("-n", name, "link", "set", "lo", "up")

    def __exit__(self, *_: Any) -> None:
        for name in (*map(self.name, range(self.count)), self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def name(self, number: int) -> str:
        return f"{self.mark}-{number}"

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def on(self, number: int) -> list[str]:
        """What to put before a command, so that it runs on a host."""
        return ["ip", "netns", "exec", self.name(number)]

    def cut(self, number: int) -> None:
        """Let no packet to or from a host pass; connections stay open, and silent."""
        run("-n", self.switch, "link", "set", f"port{number}", "down")

    def restore(self, number: int) -> None:
        run("-n", self.switch, "link", "set", f"port{number}", "up")


def why_not() -> str | None:
    """Why there can be no such hosts here, if so."""
    try:
        with Hosts(1):
            return None
    except FileNotFoundError:
        return "needs the command ip"
    except subprocess.CalledProcessError as error:
        return f"needs the right to make network namespaces: {error.stderr.strip()}"
