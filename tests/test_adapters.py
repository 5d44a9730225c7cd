"""Adapters are imported when asked for, and say what to install."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import unremix
from unremix.adapters import PACKAGES
from unremix.adapters.weighted import AdapterOptions, weighted_loss

LIBRARIES = {
    "lightly": "lightly",
    "metric_learning": "pytorch_metric_learning",
    "open_clip": "open_clip",
    "pyg": "torch_geometric",
    "sentence_transformers": "sentence_transformers",
}


def test_importing_the_package_imports_no_library() -> None:
    code = (
        "import sys, unremix; unremix.UnReMixLoss; unremix.adapters; "
        f"print(sorted(set(sys.modules) & {set(LIBRARIES.values())}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("adapter", sorted(PACKAGES))
def test_a_missing_library_is_named_with_its_command(
    adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LIBRARIES[adapter]
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"unremix.adapters.{adapter}", raising=False)
    with pytest.raises(ImportError) as raised:
        getattr(unremix.adapters, adapter)
    message = str(raised.value)
    assert "\n" not in message
    assert message.endswith(f'pip install "{PACKAGES[adapter]}"')


def test_every_adapter_has_an_extra_and_an_install_line() -> None:
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for adapter, package in PACKAGES.items():
        extra = adapter.replace("_", "-")
        declared = {re.sub(r"\[.*?\]", "", one) for one in project["optional-dependencies"][extra]}
        assert package in declared
        page = (root / "docs" / "adapters" / f"{extra}.md").read_text()
        assert page.split("```")[1] == f'bash\npip install "unremix[{extra}]"\n'


def test_no_other_adapter() -> None:
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        _ = unremix.adapters.keras
    assert dir(importlib.import_module("unremix.adapters")) == sorted(PACKAGES)


def test_adapters_pass_their_options_on() -> None:
    chosen: dict[str, Any] = {
        "components": ("similarity", "uncertainty"), "mix": (0.25, 0.75), "scaling": "zscore-exp",
        "mass": "none", "hardness": 2.0, "posterior_temperature": 0.5, "similarity_gradient": True,
        "fidelity": "code", "class_prior": 0.05, "decoupled": True, "false_negatives": "ring",
    }  # fmt: skip
    assert chosen.keys() == {its.name for its in fields(AdapterOptions)}
    loss = weighted_loss(AdapterOptions(**chosen), layout="one-way", temperature=0.2)
    expected = unremix.UnReMixLoss(**chosen, layout="one-way", temperature=0.2)
    assert (loss.options, loss.mix) == (expected.options, expected.mix)
    assert (loss.layout, loss.temperature) == ("one-way", 0.2)
