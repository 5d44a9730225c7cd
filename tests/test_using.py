"""The page on using an encoder, from top to bottom."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pictures import picture, save

import unremix
from unremix.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "using.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    for folder, count in (("photos", 16), ("more", 3)):
        for number in range(count):
            save(Path(folder) / f"{number}.jpg", picture(number, (60, 48)))
    Path("list.txt").write_text("more/0.jpg\nmore/2.jpg\n")
    unremix.train(
        data="photos", name="photos", epochs=1, batch_size=8, image_size=32, width=4,
        progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    names: dict[str, Any] = {}
    for language, code in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), names)
            continue
        for line in code.splitlines():
            assert main(shlex.split(line, comments=True)[1:]) == 0
    for file in ("more.parquet", "two.csv", "listed.npz", "head.npz", "out/README.md"):
        assert Path(file).exists()
    assert Path("out/encoder_model.py").exists()
    assert (names["embeddings"] - names["same"]).abs().max() < 1e-5
