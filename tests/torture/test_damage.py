"""Whatever is wrong with a run's folder, every command says it in one line."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unremix
from unremix.cli import main
from unremix.training.checkpoints import read_checkpoint, write_checkpoint
from unremix.training.run import Run

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"
FLIPS = 2000 if TORTURE else 40

pytestmark = [
    pytest.mark.slow,
    *([] if TORTURE else [pytest.mark.xdist_group("damage")]),
    pytest.mark.timeout(3600 if TORTURE else 300),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = unremix.train(
        limit=32, batch_size=16, epochs=2, probe_epochs=0, width=4, head_hidden=(8,), head_output=4,
        runs=str(tmp_path_factory.mktemp("runs")), name="run", progress=False, accelerator="cpu",
        threads=1,
    )  # fmt: skip
    run.warn("something looked wrong")
    return run.path


def nested(opening: str, closing: str) -> bytes:
    return (opening * 100_000 + closing * 100_000).encode()


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "half": half,
    "longer": lambda data: data + b"\0more",
    "zeros": lambda data: bytes(len(data)),
    "no text": lambda data: b"\xff\xfe\x80" * 100,
    "other text": lambda data: b"hello: [world\n",
    "a list": lambda data: b"[1, 2, 3]",
    "a word": lambda data: b"nothing",
    "null": lambda data: b"null",
    "nested lists": lambda data: nested("[", "]"),
    "nested objects": lambda data: b'{"results": ' * 50_000 + b"1" + b"}" * 50_000,
    "aliases": lambda data: b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
    ) + b"lr: *j\n",
}  # fmt: skip
FILES = (
    "config.yaml", "shape.json", "metrics.csv", "evaluation.json", "warnings.txt",
    "encoder.safetensors", "checkpoints/last.ckpt", "checkpoints/previous.ckpt", "report.npz",
)  # fmt: skip
COMMANDS = (
    ["report"],
    ["embed", "--data", "digits"],
    ["evaluate"],
    ["export"],
    ["train", "--progress", "false", "--resume"],
    ["train", "--progress", "false", "--epochs", "1", "--probe_epochs", "0", "--init"],
)
MATRIX = [(file, damage) for file in FILES for damage in (*DAMAGES, "a folder")]


def run_command(command: list[str], run: Path) -> int:
    words = [command[0], str(run), *command[1:]]
    if command[0] == "train":
        words = [*command, str(run)]
        if command[-1] == "--init":
            words += ["--runs", str(run.parent / "others"), "--limit", "32", "--batch_size", "16"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return main(words)


def check_commands(run: Path, capsys: pytest.CaptureFixture[str], about: str) -> None:
    """Each command works, or fails in one line; what raises beyond ``main`` fails the test."""
    for command in COMMANDS:
        copy = run.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        code = run_command(command, copy)
        lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        assert code in (0, 1), (about, command)
        assert all(line.startswith("unremix: ") for line in lines), (about, command, lines)
        if code:
            assert lines, (about, command)
            assert len(lines[-1]) < 1000, (about, command, lines[-1])


@pytest.mark.parametrize(("file", "damage"), MATRIX if TORTURE else MATRIX[::11])
def test_a_damaged_folder(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    path = run / file
    data = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif (damaged := DAMAGES[damage](data)) is not None:
        path.write_bytes(damaged)
    check_commands(run, capsys, f"{file}: {damage}")


CARDS = [
    {"results": 3}, {"results": {"trained": 3}}, {"results": {"trained": {"knn": {"value": "x"}}}},
    {"results": {"trained": {"knn": {"value": 0.5, "low": "x", "high": None}}}}, {"health": 3},
    {"verdict": 3}, {"protocol": [], "results": {"trained": {}}}, {"results": {"trained": {}}},
]  # fmt: skip
SHAPES = [
    {"channels": "x"}, {"channels": 0}, {"channels": 10**9}, {"image_size": 10**9}, {"more": 1},
    {"image_size": None}, {"image_size": 2.5}, {"augmentation": "none"}, {"augmentation": [1]},
    {"channels": 3}, {"image_size": 9},
]  # fmt: skip
CONFIGS = [
    "domain: graph", "domain: sentence", "recipe: nothing", "recipe: infograph", "lr: .nan",
    "epochs: -1", "width: 0", "head_hidden: [a]", "backbone: resnet81", "backbone: 'timm:'",
    "batch_size: 100000", "data: /nowhere", "head_output: 7", "threads: x", "runs: 3", "3: 4",
    "given: 3", "trust: true", "loss: {mix: none}", "data: ''",
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "change"),
    [
        *(("evaluation.json", card) for card in (CARDS if TORTURE else CARDS[::3])),
        *(("shape.json", shape) for shape in (SHAPES if TORTURE else SHAPES[::4])),
        *(("config.yaml", line) for line in (CONFIGS if TORTURE else CONFIGS[::5])),
    ],
    ids=str,
)
def test_wrong_values(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, change: object
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    text = (run / file).read_text()
    if isinstance(change, str):
        (run / file).write_text(f"{text}\n{change}\n")
    else:
        (run / file).write_text(json.dumps(json.loads(text) | change))  # type: ignore[operator]
    check_commands(run, capsys, f"{file}: {change}")


@pytest.mark.parametrize("name", ["last.ckpt", "encoder.safetensors"])
def test_any_flipped_bit_is_noticed(sound: Path, tmp_path: Path, name: str) -> None:
    """Of a checkpoint the previous one is used, of an encoder the checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    path = run / "checkpoints" / name if name == "last.ckpt" else run / name
    data, draw = path.read_bytes(), random.Random(0)
    metadata = int.from_bytes(data[:8], "little") if name != "last.ckpt" else 0
    expected = Run(sound).encoder().state_dict()
    for _ in range(FLIPS):
        damaged = bytearray(data)
        # What a safetensors file says about itself has no checksum: only its tensors do.
        position = draw.randrange(metadata + 8 if metadata else 0, len(data))
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        if name == "last.ckpt":
            with pytest.raises(ValueError, match="cannot be read"):
                read_checkpoint(path)
            with pytest.warns(UserWarning, match="the previous one is used, of step 2"):
                assert Run(run).load_checkpoint()["step"] == 2
        else:
            with pytest.warns(UserWarning, match="checksum .*checkpoint is used"):
                found = Run(run).encoder().state_dict()
            assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def test_weights_that_are_no_numbers_are_refused(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    state = read_checkpoint(run / "checkpoints" / "last.ckpt")
    name = next(name for name in state["model"] if name.startswith("encoder."))
    state["model"][name].view(-1)[0] = float("nan")
    write_checkpoint(state, run / "checkpoints" / "last.ckpt")
    for command in (["embed"], ["export"], ["evaluate"]):
        assert run_command(command, run) == 1
        assert "to hold the weights of" in capsys.readouterr().err  # only one of the two is NaN
    (run / "encoder.safetensors").unlink()
    for command in (["embed"], ["export"], ["evaluate"]):
        assert run_command(command, run) == 1
        assert "expected finite weights" in capsys.readouterr().err


def test_the_encoder_alone_is_enough(sound: Path, tmp_path: Path) -> None:
    """Its tensors are verified, and used where the checkpoints were not passed on."""
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    expected = Run(sound).embed(images)
    shutil.rmtree(run / "checkpoints")
    assert torch.equal(Run(run).embed(images), expected)
    weights = load_file(run / "encoder.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, run / "encoder.safetensors")
    assert not torch.equal(Run(run).embed(images), expected)  # they are what is used
    shutil.copytree(sound / "checkpoints", run / "checkpoints")
    with pytest.raises(ValueError, match=r"weights of .*last\.ckpt, got others"):
        Run(run).embed(images)
