"""Run folders: one writer, made by one process, with the data and machine they were made with."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import write_archive
from crashing import crash_at
from pictures import save
from small_runs import digits, small
from test_training import assert_same_run
from torch.torch_version import TorchVersion

import unremix
from unremix.cli import main
from unremix.domains.options import TrainConfig
from unremix.domains.sampling import evenly_spaced
from unremix.files.fingerprint import fingerprint
from unremix.training import preparation
from unremix.training.building import build_model
from unremix.training.checkpoints import read_checkpoint, write_checkpoint
from unremix.training.finding import read_weights
from unremix.training.preparation import locked, prepare
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("training")


def copy_of(run: Run, folder: Path) -> Run:
    shutil.copytree(run.path, folder / "run")
    return Run(folder / "run")


def test_one_process_writes_a_run(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path)
    with locked(run.path):
        for work in (
            lambda: unremix.train(resume=str(run.path), epochs=4, progress=False),
            lambda: unremix.evaluate(run.path),
        ):
            with pytest.raises(BlockingIOError, match="no other process to write"):
                work()
    assert run.load_checkpoint()["step"] == 9
    assert unremix.train(resume=str(run.path), progress=False).path == run.path


MEETS = """
import sys
from pathlib import Path
from unremix.training import preparation
from unremix.domains.options import TrainConfig

claim = preparation._claim
def meeting(*arguments):
    print("ready", flush=True)
    sys.stdin.readline()
    return claim(*arguments)
preparation._claim = meeting
prepared = preparation.prepare(TrainConfig(runs=sys.argv[1], limit=32, batch_size=16, threads=1))
print(prepared.run.path.name, flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_processes_that_meet_make_folders_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEETS, str(tmp_path)]
    starts: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    met = [subprocess.Popen(command, **starts) for _ in range(3)]
    streams = [(process.stdin, process.stdout) for process in met]
    assert [out.readline() for _, out in streams] == ["ready\n"] * 3
    for going, _ in streams:
        going.write("go\n")
        going.flush()
    names = sorted(out.readline().strip() for _, out in streams)
    for process in met:
        process.communicate("end\n")
    base = "digits-unremix-simclr-0"
    assert names == [base, f"{base}-2", f"{base}-3"]
    for name in names:
        assert Run(tmp_path / name).config.name == name


def test_a_folder_that_could_not_be_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(Run, "write_config", full)
    with pytest.raises(OSError, match="full"):
        prepare(small(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_killed_writers_left_is_removed(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = [run.path / place / f".unremix-{ended.pid}-0b.tmp" for place in (".", "checkpoints")]
    for file in left:
        file.touch()
    prepare(TrainConfig(resume=str(run.path)))
    assert not any(file.exists() for file in left)


def pictures(folder: Path, count: int = 20) -> Path:
    for number in range(count):
        save(folder / f"{number:02}.png")
    return folder


def test_other_data_are_refused(tmp_path: Path) -> None:
    data = pictures(tmp_path / "photos")
    config = small(tmp_path, data=str(data), limit=None, batch_size=10, epochs=1, image_size=8)
    run = unremix.train(config)
    resumed = TrainConfig(resume=str(run.path), epochs=2, progress=False)
    prepare(resumed)  # nothing has changed
    earlier = (data / "07.png").read_bytes()
    shutil.copy(data / "08.png", data / "07.png")
    with pytest.raises(ValueError, match=r"trained on, got others from .*photos"):
        prepare(resumed)
    assert prepare(replace(resumed, allow_changed_data=True)).config.epochs == 2
    (data / "07.png").write_bytes(earlier)
    (data / "07.png").rename(data / "seven.png")
    with pytest.raises(ValueError, match="add --allow_changed_data"):
        prepare(resumed)
    (data / "seven.png").rename(data / "07.png")
    prepare(resumed)
    assert "allow" not in (run.path / "config.yaml").read_text()


def test_another_machine_is_a_warning(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(whole, tmp_path)
    monkeypatch.setenv("UNREMIX_ENGINE", "eager")
    monkeypatch.setattr(torch, "__version__", "2.12.0")
    with pytest.warns(UserWarning, match=r"threads 2 .* 1, engine eager.*torch 2\.12\.0 inst"):
        prepare(TrainConfig(resume=str(run.path), threads=2))


def test_the_previous_checkpoint_serves_where_the_last_is_damaged(
    tmp_path: Path, whole: Run
) -> None:
    with crash_at(7):
        unremix.train(small(tmp_path))
    run = Run(tmp_path / "run")
    assert run.load_checkpoint()["step"] == 6
    assert read_checkpoint(run.previous)["step"] == 4
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match="cannot be read.*of step 4"):
        resumed = unremix.train(resume=str(run.path), progress=False)
    assert_same_run(resumed, whole)
    assert read_checkpoint(run.previous)["step"] == 8


def test_a_damaged_checkpoint_does_not_replace_the_previous_one(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path)
    run.checkpoint.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="previous one is used"):
        state = run.load_checkpoint()
    run.save_checkpoint(state)
    assert read_checkpoint(run.previous)["step"] == state["step"]  # and not the damaged one
    assert read_checkpoint(run.checkpoint)["step"] == state["step"]


def test_a_kill_between_two_renames_loses_nothing(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path)
    os.replace(run.checkpoint, run.previous)
    assert run.has_checkpoint
    assert run.load_checkpoint()["step"] == 9


def test_checkpoints_of_early_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    state = {"step": 1, "rows": [], "model": {"weight": torch.ones(2)}}
    torch.save(state, path)
    with pytest.warns(UserWarning, match="has no checksum"):
        assert read_checkpoint(path)["step"] == 1
    write_checkpoint(state, path)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(2))
    write_archive(state, path)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(2))
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum does not match"):
        read_checkpoint(path)


def test_archives_are_read_by_a_safe_torch_or_with_trust(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(whole, tmp_path)
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    expected, state = run.embed(images), run.load_checkpoint()
    for path in (run.checkpoint, run.previous):
        write_archive(state, path)
    assert Run(run.path).load_checkpoint()["step"] == state["step"]
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cpu"))
    with pytest.raises(ValueError, match=r"below 2\.10 .*this is 2\.9\.1.*--trust"):
        Run(run.path).load_checkpoint()
    with pytest.warns(UserWarning, match=r"encoder\.safetensors is used"):
        assert torch.equal(Run(run.path).embed(images), expected)
    assert Run(run.path, trust=True).load_checkpoint()["step"] == state["step"]
    torch.save(state["model"], tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"below 2\.10"):
        read_weights(str(tmp_path / "weights.pt"))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    model = {
        "a": whole[:6], "b": whole[6:], "tied": whole, "again": whole, "empty": torch.empty(0, 3),
        "turned": whole.reshape(3, 4).T, "half": whole.bfloat16(), "flags": whole > 3,
        "one": torch.tensor(7), "wide": torch.zeros(1).expand(3, 2),
    }  # fmt: skip
    groups = [{"betas": (0.9, 0.999), "lr": 1e-3, "fused": None, "params": [0, 1]}]
    optimizer = {"state": {0: {"step": torch.tensor(2.0)}, 1: {}}, "param_groups": groups}
    state = {
        "step": 3,
        "rows": [{"epoch": 1, "loss": float("nan")}],
        "record": {"data": 'é\n"x'},
        "model": model,
        "optimizer": optimizer,
    }
    write_checkpoint(state, tmp_path / "x.ckpt")
    assert (tmp_path / "x.ckpt").read_bytes()[8:9] == b"{"  # a file of safetensors
    found = read_checkpoint(tmp_path / "x.ckpt")
    assert found["model"]["tied"] is found["model"]["again"]
    for name, tensor in model.items():
        assert tensor.dtype == found["model"][name].dtype
        assert torch.equal(tensor, found["model"][name])
    assert torch.equal(found["optimizer"]["state"][0]["step"], torch.tensor(2.0))
    assert found["optimizer"]["state"][1] == {}
    assert found["optimizer"]["param_groups"] == groups
    assert math.isnan(found["rows"][0]["loss"])
    assert found["record"] == state["record"]


def test_one_bit_costs_no_finished_run(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path)
    images = torch.rand(2, 1, 8, 8)
    expected = run.embed(images)
    before, after = (
        run.restored(read_checkpoint(path)).encoder.eval()(images)
        for path in (run.previous, run.checkpoint)
    )
    assert not torch.equal(before, after)
    content = bytearray(run.checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    run.checkpoint.write_bytes(content)
    with pytest.warns(UserWarning, match="is used") as said:
        assert torch.equal(Run(run.path).embed(images), expected)
    texts = [str(one.message) for one in said]
    assert any("the previous one is used" in text for text in texts)
    assert any("encoder.safetensors is used" in text for text in texts)
    with (
        pytest.warns(UserWarning, match="the previous one is used"),
        pytest.raises(ValueError, match="got others"),
    ):
        Run(run.path, layer="head").embed(images)


def test_a_moved_run_is_at_home_where_it_is(tmp_path: Path, whole: Run) -> None:
    run = copy_of(whole, tmp_path / "elsewhere")
    prepare(TrainConfig(resume=str(run.path)))
    assert Run(run.path).config.runs == str(tmp_path / "elsewhere")


def test_code_that_was_typed_needs_no_trust(tmp_path: Path) -> None:
    options = {"backbone": "tiny:encoder", "head_batch_norm": False, "epochs": 1}
    run = unremix.train(small(tmp_path, **options))
    with pytest.raises(ValueError, match=r"tiny:encoder, .* add --trust"):
        unremix.train(resume=str(run.path), epochs=2, progress=False)
    with pytest.raises(ValueError, match="trust=True"):
        unremix.load(run.path).embed(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert unremix.load(run.path, trust=True).embed(
        torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    ).shape == (2, 32)
    held = unremix.load(run.path)
    with pytest.raises(ValueError, match=r"tiny:encoder, which would run"):
        build_model(held.config, held.shape)
    for further in ({"backbone": "tiny:encoder"}, {"trust": True}):
        prepared = prepare(TrainConfig(resume=str(run.path), epochs=2, progress=False, **further))
        assert prepared.config.backbone == "tiny:encoder"
        prepared.unlock()
    assert "trust" not in (run.path / "config.yaml").read_text()


def test_fingerprints_tell_apart() -> None:
    one, other = torch.arange(4), torch.arange(4.0)
    prints = {
        fingerprint(parts)
        for parts in (
            [one], [other], [one.view(2, 2)], [one, None], [None, one], ["ab"], ["a", "b"],
            ["\udcff"],
        )
    }  # fmt: skip
    assert len(prints) == 8
    assert fingerprint([one.clone()]) == fingerprint([one])
    assert evenly_spaced(1000, 10).tolist() == [n * 999 // 9 for n in range(10)]


def test_busy_is_said_of_a_name(tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(BlockingIOError, match="another name"):
        preparation.prepare(small(tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checkpoints", ["train", "--resume", "RUN", "--epochs", "4"]),
        ("figures", ["report", "RUN"]),
        ("embeddings", ["cluster", "RUN"]),
    ],
)
def test_nothing_is_written_through_a_link_in_a_run(
    name: str, words: list[str], tmp_path: Path, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run from elsewhere, whose folder is a link to that of another run."""
    run, elsewhere = copy_of(whole, tmp_path), tmp_path / "elsewhere"
    if (run.path / name).exists():
        shutil.move(run.path / name, elsewhere)
    elsewhere.mkdir(exist_ok=True)
    (run.path / name).symlink_to(elsewhere)
    before = {file.name: file.read_bytes() for file in elsewhere.iterdir()}
    times = {file.name: file.stat().st_mtime_ns for file in elsewhere.iterdir()}
    assert main([word.replace("RUN", str(run.path)) for word in words]) == 1
    assert f"{name}, got a link to " in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before
    assert {file.name: file.stat().st_mtime_ns for file in elsewhere.iterdir()} == times


def test_a_run_that_was_continued_shows_its_files_as_they_are(tmp_path: Path) -> None:
    run = digits(tmp_path, limit=64)
    assert (len(run.metrics()), run.evaluation) == (1, Run(run.path).evaluation)
    unremix.train(resume=str(run.path), epochs=2)
    assert len(run.metrics()) == 2
    assert run.evaluation is not None
    assert run.evaluation["epoch"] == 2
    assert run.facts()["step"] == 4
