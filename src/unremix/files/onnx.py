"""onnxruntime, without its telemetry."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def import_onnxruntime() -> ModuleType:
    """The package, with its reports over the network turned off, unless you turned them on.

    Raises:
        ImportError: If it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module("onnxruntime")
