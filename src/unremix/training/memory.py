"""Where 1.0 documented :func:`keep_freed_memory`, which is in ``freed_memory.py``."""

from unremix.training.freed_memory import keep_freed_memory

__all__ = ["keep_freed_memory"]
