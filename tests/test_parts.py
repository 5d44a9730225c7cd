"""Parts that own their options: the table of recipes knows none of them by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unremix import recipes
from unremix.frameworks.parts import described, option_fields, options_type, section_of
from unremix.recipes import PARTS

FRAMEWORK = '''
"""A framework in one file: SimCLR without negatives, the views pulled together."""

from dataclasses import dataclass

from unremix.frameworks.base import Projecting


@dataclass(frozen=True)
class PullOptions:
    """Options of Pull.

    Args:
        strength: Multiplies the loss.
    """

    strength: float = 2.0


class Pull(Projecting):
    """The two views of an image are pulled together."""

    summary = "Pull: no negatives"
    section = "pull"
    Options = PullOptions

    def __init__(self, encoder, head, *, options):
        super().__init__(encoder, head)
        self.strength = options.strength

    def inputs(self, batch):
        return batch.views[:2]

    def objective(self, embedded, batch):
        (z0, _), (z1, _) = embedded
        return self.strength * (z0 - z1).pow(2).mean()
'''
USE = """
import sys
from unremix import recipes
from pull import Pull
recipes.PARTS["framework"]["pull"] = Pull  # the one line
from unremix.cli import main
small = ["--limit", "64", "--batch_size", "32", "--epochs", "1", "--probe_epochs", "0",
         "--accelerator", "cpu", "--threads", "1", "--progress", "false", "--runs", "."]
assert main(["train", "--framework", "pull", "--pull.strength", "3", "--name", "a", *small]) == 0
import unremix
run = unremix.load("a")
from unremix.training.building import build_model
model = build_model(run.config, run.shape)
assert (type(model), model.strength, run.config.pull.strength) == (Pull, 3.0, 3.0)
for words in (["--weighting", "hcl"], ["--loss.class_prior", "0.1"], ["--moco.queue", "5"]):
    assert main(["train", "--framework", "pull", *words, *small]) == 1, words
assert main(["train", "--framework", "pull", "--pull.strength", "3", "--resume", "a"]) == 0
assert main(["train", "--help"]) == 0
assert main(["recipes"]) == 0
"""


def test_a_framework_is_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "pull.py").write_text(FRAMEWORK)
    (tmp_path / "use.py").write_text(USE)
    source = str(Path(recipes.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--pull.strength" in done.stdout
    assert "Pull: no negatives" in done.stdout
    assert "got 'pull', which has none" in done.stderr


SOURCE = Path(recipes.__file__).parent
OUTSIDE = [
    SOURCE / "recipes.py",
    SOURCE / "pipeline.py",
    *(path for room in ("domains", "training") for path in (SOURCE / room).glob("*.py")),
]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_part_is_known_by_name(path: Path) -> None:
    """Outside the tables of parts and recipes, nothing in training mentions a part."""
    logic = re.sub(r'""".*?"""|^from .*?$', "", path.read_text(), flags=re.S | re.M)
    for known in PARTS.values():
        for name, part in known.items():
            assert f'"{name}"' not in logic or name == "unremix", name  # also the package's name
            assert f", {part.__name__})" not in logic, name  # isinstance(model, MoCo)


PAIRS = [(kind, name) for kind, known in PARTS.items() for name in known]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_parts_describe_their_options(kind: Any, name: str) -> None:
    part = PARTS[kind][name]
    options = options_type(part)
    assert options is not None
    assert set(described(options)) == set(option_fields(part))
    assert section_of(part)
    assert options() == options()  # complete without a word
    with pytest.raises(AttributeError, match="cannot assign"):
        setattr(options(), next(iter(option_fields(part))), 1)
