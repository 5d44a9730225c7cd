"""A file of options never decides which code runs, however it is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from unremix.cli import main
from unremix.domains.options import config_from_yaml


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that no payload may create; a module ``evil_options`` that would, on the path."""
    canary = tmp_path / "canary"
    code = f"from pathlib import Path\nPath({str(canary)!r}).touch()\n"
    (tmp_path / "evil_options.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return canary


def answer(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:  # the parser's way to refuse a file
        return int(ended.code or 0)


SMALL = ["--limit", "32", "--epochs", "1", "--batch_size", "16", "--width", "4"]


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"class_path": "evil_options.Loss"}},
        {"loss": "evil_options.Loss"},
        {"loss": "{class_path: evil_options.Loss}"},
        {"loss": "inner.yaml"},
        {"config": "inner.yaml"},
        {"imports": ["evil_options"], "trust": True, "from_file": False},
        {"backbone": "evil_options:encoder"},
        {"imports": "evil_options"},
        {"imports": 5},
        {"imports": [5]},
    ],
    ids=str,
)
def test_a_file_of_options_imports_nothing(
    canary: Path, command: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = canary.parent
    (folder / "inner.yaml").write_text("class_path: evil_options.Loss\n")
    (folder / "options.yaml").write_text(yaml.safe_dump(options))
    words = [command, "--config", str(folder / "options.yaml"), "--dry_run", *SMALL]
    assert answer(words) in (1, 2)
    assert capsys.readouterr().err.startswith("unremix: ")
    assert not canary.exists()


def test_what_is_typed_wins_wherever_it_stands(
    canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a word before ``--config`` would vouch for the code that the file names instead."""
    file = canary.parent / "options.yaml"
    file.write_text("imports: [evil_options]\nrecipe: moco\n")
    typed = ["--imports", "[]", "--recipe", "simclr", *SMALL, "--dry_run"]
    for words in ([*typed, f"--config={file}"], ["--config", str(file), *typed]):
        assert answer(["train", *words]) == 0
        assert not canary.exists()
        assert "simclr" in capsys.readouterr().out


@pytest.mark.parametrize("switch", ["--trust=false", "--trust=0", "--trust="])
def test_a_switch_with_a_value_is_not_switched_on(canary: Path, switch: str) -> None:
    file = canary.parent / "options.yaml"
    file.write_text("imports: [evil_options]\n")
    assert answer(["train", "--config", str(file), switch, *SMALL, "--dry_run"]) == 2
    assert not canary.exists()


@pytest.mark.parametrize("name", ["evil_options", "evil_options.py"])
def test_code_that_has_changed_since_it_was_trusted_is_told(
    canary: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = canary.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(folder)
    text = f"imports: [{name}]\nepochs: 3\n"
    for _ in range(2):  # the second time it is known
        config_from_yaml(text, trust=True, where=str(folder / "run"))
    code = folder / "evil_options.py"
    code.write_text(code.read_text() + "changed = True\n")
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    with pytest.warns(
        UserWarning, match=f"has changed since you last trusted it: SHA-256 {digest}"
    ):
        config_from_yaml(text, trust=True, where=str(folder / "run"))
    config_from_yaml(text, trust=True, where=str(folder / "run"))  # it is known as it is now
    config_from_yaml(text, trust=True, where=str(folder / "another run"))
    with pytest.raises(ValueError, match="to name no code"):
        config_from_yaml(text, where=str(folder / "run")).trusted(trust=False, where="run")
