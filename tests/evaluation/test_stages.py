"""Kinds of data are read and modeled without knowing how they are measured."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import unremix
from unremix.domains import DOMAINS, find_domain
from unremix.evaluation.by_domain import OBSERVERS

SOURCE = Path(unremix.__file__).parent


@pytest.mark.parametrize("folder", ["domains", "data", "encoders", "frameworks", "views"])
def test_earlier_stages_do_not_import_evaluation(folder: str) -> None:
    for path in (SOURCE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("unremix.evaluation"), path


def test_every_domain_can_be_measured() -> None:
    assert set(OBSERVERS) == set(DOMAINS)
    for name in DOMAINS:
        assert not hasattr(find_domain(name), "evaluate")
