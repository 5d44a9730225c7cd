"""The command ``unremix``."""

from unremix.cli.entry import main

__all__ = ["main"]
