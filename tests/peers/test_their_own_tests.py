"""The libraries' own tests of the loss that an adapter replaces, run from a copy of their sources.

``UNREMIX_PEER_SOURCES`` names a folder with such copies, each under the name of its package. They
are not part of this repository, so these tests run by hand only: see CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = os.environ.get("UNREMIX_PEER_SOURCES", "")
FILES = {
    "pytorch-metric-learning": [
        "tests/losses/test_ntxent_loss.py",
        "tests/losses/test_self_supervised_loss.py",
        "tests/losses/test_losses_without_labels.py",
    ],
    "lightly": ["tests/loss/test_ntx_ent_loss.py"],
}
# Files that also test a loss which an adapter replaces, and why they are not run.
LEFT_OUT = {
    "sentence-transformers": {
        f"tests/sentence_transformer/losses/{name}.py": "needs a model from the Hub"
        for name in ("test_cmnrl", "test_gradcache", "test_merged_forward")
    },
    "pytorch-metric-learning": {
        "tests/losses/test_cross_batch_memory.py": "tests the memory, for minutes; one test "
        "fails with the library's own loss too; test_metric_learning.py here compares both in it",
    },
    "open_clip": {"tests/test_loss.py": "tests only how features are gathered"},
}
EXCEPTIONS = {
    # A temperature below 0 is refused.
    "lightly": {"test_forward_pass_neg_temp"},
    "pytorch-metric-learning": set[str](),
}


def test_what_is_left_out_is_not_run() -> None:
    for peer, reasons in LEFT_OUT.items():
        assert not reasons.keys() & set(FILES.get(peer, ()))
        assert all(reasons.values())


def outcomes(peer: str, file: str, *, ours: bool) -> dict[str, str]:
    """What becomes of each test of a file, by name, with the library's loss or with ours."""
    environment = {**os.environ, "TEST_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    if ours:
        environment["UNREMIX_IN_PLACE_OF"] = peer
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", file, "-p", "as_the_peer", "-p", "no:cacheprovider", "-rA",
         "-q", "--rootdir", ".", "-c", os.devnull, "--import-mode", "prepend"],
        cwd=Path(SOURCES) / peer, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(
        r"^(PASSED|FAILED|ERROR) \S*?(test\w*(?:\[.*?\])?)(?: - |$)", shown.stdout, re.M
    )
    return {name: outcome for outcome, name in found}


@pytest.mark.parametrize(
    ("peer", "file"), [(peer, file) for peer, files in FILES.items() for file in files]
)
def test_uniform_weights_pass_the_librarys_own_tests(peer: str, file: str) -> None:
    if not SOURCES or not (Path(SOURCES) / peer / file).is_file():
        pytest.skip(f"no copy of {peer}'s {file}; name a folder of copies in UNREMIX_PEER_SOURCES")
    theirs, ours = (outcomes(peer, file, ours=each) for each in (False, True))
    passed = {name for name, outcome in theirs.items() if outcome == "PASSED"}
    if not passed:
        pytest.skip(f"none of {peer}'s tests in {file} passes here with its own loss")
    failed = {name for name in passed if ours.get(name) != "PASSED"}
    assert {name.partition("[")[0] for name in failed} <= EXCEPTIONS[peer]
