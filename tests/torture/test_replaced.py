"""Whatever stands in the place of a file that is read back: one line, or the right numbers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import small_runs

import unremix
from unremix.cli import main
from unremix.domains.options import TrainConfig
from unremix.experiments.plan import shared_options
from unremix.experiments.results import Record, Results
from unremix.training.export import export_encoder

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"
SECONDS = 60  # of the clock, on a busy machine; alone, a command takes a few

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replaced"), pytest.mark.timeout(600)]


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    """To a sound file of the same kind outside of the folder."""
    elsewhere = path.parents[3] / f"elsewhere-{path.name}"
    shutil.copy(path, elsewhere)
    path.unlink()
    path.symlink_to(elsewhere)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


REPLACED: dict[str, Callable[[Path], None]] = {
    "pipe": pipe, "device": device, "link": link, "empty": empty, "flipped": flipped,
}  # fmt: skip
# Texts that people read and edit have no checksum: a flipped digit is another number there.
TEXTS = (".yaml", ".json", ".csv", ".txt", ".jsonl")


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"a command took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything: run, comparison, study, export, files of the Hub, caches."""
    root = tmp_path_factory.mktemp("all") / "sound"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        run = small_runs.digits(root, epochs=2, width=4)
        assert main(["duplicates", str(run.path), "-o", str(root / "d.html")]) == 0
        (root / "export").mkdir()
        export_encoder(str(run.path), "safetensors", str(root / "export" / "e.safetensors"))
        export_encoder(str(run.path), "onnx", str(root / "export" / "e.onnx"))
        unremix.load(run.path).save_pretrained(root / "hub")
        text = small_runs.sentences(root)
        text.path.rename(root / "text-run")
    comparison = root / "comparison"
    for seed in (0, 1):
        shutil.copytree(run.path, comparison / "runs" / f"simclr-{seed}")
        config = comparison / "runs" / f"simclr-{seed}" / "config.yaml"
        config.write_text(config.read_text().replace("seed: 0", f"seed: {seed}"))
    options = {"recipes": ["simclr"], "seeds": 2, "reference": "simclr", "threads": 1}
    options["train"] = shared_options(TrainConfig(epochs=1))
    (comparison / "comparison.yaml").write_text(json.dumps(options))
    (root / "study").mkdir()
    stage = {"arms": [{"recipe": "simclr"}], "seeds": 1}
    (root / "study" / "study.yaml").write_text(json.dumps({"stages": {"first": stage}}))
    Results(root / "study" / "results.jsonl").add(Record("simclr-0", "simclr", 0, epochs=1))
    return root


COMMANDS = {
    "report": ["report", "digits"],
    "embed": ["embed", "digits", "--data", "digits", "-o", "e.npz"],
    "embed head": ["embed", "digits", "--layer", "head", "-o", "e.npz"],
    "evaluate": ["evaluate", "digits"],
    "export": ["export", "digits", "-o", "other.safetensors"],
    "duplicates": ["duplicates", "digits", "-o", "d.html"],
    "resume": ["train", "--resume", "digits", "--progress", "false"],
    "init": ["train", "--init", "digits", "--runs", "others", "--limit", "32", "--batch_size", "16",
             "--epochs", "1", "--probe_epochs", "0", "--width", "4", "--progress", "false"],
    "hub": ["embed", "hub", "--data", "digits", "-o", "e.npz"],
    "safetensors": ["embed", "--encoder", "export/e.safetensors", "--data", "digits",
                    "-o", "e.npz"],
    "onnx": ["embed", "--encoder", "export/e.onnx", "--data", "digits", "-o", "e.npz"],
    "comparison": ["report", "comparison"],
    "study": ["study", "study/study.yaml", "--output", "study", "--dry_run"],
    "text": ["train", "--data", "text.txt", "--recipe", "quickthought-unremix", "--runs", ".",
             "--name", "again", "--batch_size", "32", "--sentence", "{units: 8, words: 8, "
             "senteval: none, format: lines}", "--epochs", "1", "--progress", "false",
             "--accelerator", "cpu", "--threads", "1"],
}  # fmt: skip
OF_A_RUN = ("report", "embed", "embed head", "evaluate", "export", "duplicates", "resume", "init")
FILES = {
    **dict.fromkeys(
        ("digits/config.yaml", "digits/shape.json", "digits/metrics.csv", "digits/evaluation.json",
         "digits/encoder.safetensors", "digits/checkpoints/last.ckpt",
         "digits/checkpoints/previous.ckpt", "digits/report.npz"),
        OF_A_RUN,
    ),
    "digits/embeddings/*.npz": ("duplicates",),
    **dict.fromkeys(("hub/config.yaml", "hub/shape.json", "hub/encoder.safetensors"), ("hub",)),
    "export/e.safetensors": ("safetensors",),
    "export/e.onnx": ("onnx",),
    **dict.fromkeys(
        ("comparison/comparison.yaml", "comparison/runs/simclr-0/config.yaml",
         "comparison/runs/simclr-1/evaluation.json", "comparison/runs/simclr-1/report.npz"),
        ("comparison",),
    ),
    **dict.fromkeys(("study/study.yaml", "study/results.jsonl"), ("study",)),
    "cache/unremix/seal.key": ("duplicates", "text"),
    **dict.fromkeys(
        (".cache/vocabulary-*.txt", ".cache/corpus-*/corpus.json", ".cache/corpus-*/tokens.bin",
         ".cache/corpus-*/texts.bin", ".cache/corpus-*/offsets.bin"),
        ("text",),
    ),
    "text.txt": ("text",),
}  # fmt: skip
# A link that you named yourself is followed; a key in the user's cache is found by its owner.
CASES = [
    (file, how, command)
    for file, commands in FILES.items()
    for how in REPLACED
    for command in commands
    if not (how == "flipped" and file.endswith((*TEXTS, ".onnx")) and "cache" not in file)
]


def run_in(folder: Path, command: str) -> tuple[int, np.ndarray | None]:
    """A command's exit code and the embeddings, if it wrote some."""
    written = folder / "e.npz"
    written.unlink(missing_ok=True)
    signal.alarm(SECONDS)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        code = main(COMMANDS[command])
    signal.alarm(0)
    if code or not written.exists():
        return code, None
    with np.load(written) as found:
        return code, found["embeddings"]


@pytest.fixture(scope="module")
def expected(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray | None]:
    """What each command gives where nothing was replaced: it works."""
    found = {}
    for command in COMMANDS:
        copy = tmp_path_factory.mktemp("right") / "copy"
        shutil.copytree(sound, copy)
        code, found[command] = run_in(copy, command)
        assert code == 0, command
    return found


@pytest.mark.parametrize(("file", "how", "command"), CASES if TORTURE else CASES[::9])
def test_a_replaced_file(
    sound: Path,
    expected: dict[str, np.ndarray | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    how: str,
    command: str,
) -> None:
    folder = tmp_path / "a" / "b" / "copy"
    shutil.copytree(sound, folder)
    (path,) = folder.glob(file)
    REPLACED[how](path)
    capsys.readouterr()
    code, found = run_in(folder, command)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert code in (0, 1), lines
    assert all(line.startswith("unremix: ") for line in lines), lines
    if code:
        assert lines
        assert len(lines[-1]) < 1000
    wanted = expected[command]
    if found is not None and wanted is not None:
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    if how == "device" and code == 0:
        assert not any("no space" in line.lower() for line in lines)
