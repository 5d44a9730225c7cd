"""Runs written for others, published and read; nothing here reaches the network."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import unremix
from unremix.hub import FILES, SharedRun, model_card

DIGITS = torch.rand(3, 1, 8, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trained = unremix.train(
            data="digits", epochs=1, limit=64, batch_size=16, backbone="small", width=4,
            progress=False, accelerator="cpu", threads=1,
        )  # fmt: skip
    return unremix.load(folder / trained.path)


def test_the_card_says_what_was_trained_and_measured(run: SharedRun) -> None:
    card = model_card(run)
    _, metadata, text = card.split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["library_name"] == "unremix"
    assert found["pipeline_tag"] == "image-feature-extraction"
    assert run.evaluation is not None
    accuracy = run.evaluation["results"]["trained"]["knn"]["value"]
    assert f"{100 * accuracy:.1f}" in text
    assert f"| batch_size | `{run.config.batch_size}` |" in text
    assert "arxiv.org/abs/2206.01197" in text


def test_the_card_names_where_the_run_is_published(run: SharedRun) -> None:
    assert 'from_pretrained("me/birds")' in model_card(run, "me/birds")


def test_saved_and_read_again(run: SharedRun, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    run.save_pretrained(tmp_path / "shared")
    assert {file.name for file in (tmp_path / "shared").iterdir()} >= {*FILES, "README.md"}
    assert not list((tmp_path / "shared").rglob("*.ckpt"))
    again = unremix.load.from_pretrained(tmp_path / "shared")
    assert torch.equal(again.embed(DIGITS), run.embed(DIGITS))


def test_a_run_gets_a_card_in_its_own_folder(run: SharedRun) -> None:
    pytest.importorskip("huggingface_hub")
    before = run.embed(DIGITS)
    run.save_pretrained(run.path)
    card = run.path / "README.md"
    assert card.read_text() == model_card(run)
    card.unlink()
    assert torch.equal(unremix.load(run.path).embed(DIGITS), before)


def test_the_head_is_not_published(run: SharedRun, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    run.save_pretrained(tmp_path)
    for name in (tmp_path, "user/digits"):
        with pytest.raises(ValueError, match=r"layer='backbone' .*, got"):
            unremix.load.from_pretrained(name, layer="head")
    assert unremix.load.from_pretrained(run.path, layer="head").embed(DIGITS).shape[0] == 3


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A Hub that is a folder."""
    hub = pytest.importorskip("huggingface_hub")
    calls: dict[str, Any] = {"folder": tmp_path / "remote"}

    class Address:
        repo_id = "user/digits"

    def create_repo(self: Any, repo_id: str, **options: Any) -> Address:
        calls["created"] = {"repo_id": repo_id, **options}
        return Address()

    def upload_folder(self: Any, *, folder_path: Any, **options: Any) -> str:
        calls["uploaded"] = options
        calls["folder"].mkdir()
        for file in Path(folder_path).iterdir():
            (calls["folder"] / file.name).write_bytes(file.read_bytes())
        return "https://hub/user/digits/commit/1"

    def snapshot_download(repo_id: str, **options: Any) -> str:
        calls["downloaded"] = {"repo_id": repo_id, **options}
        return str(calls["folder"])

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return calls


def test_published_and_read_again(run: SharedRun, repository: dict[str, Any]) -> None:
    address = run.push_to_hub("user/digits", private=True, token="secret", commit_message="First")
    assert address == "https://hub/user/digits/commit/1"
    assert repository["created"]["private"] is True
    assert repository["uploaded"]["commit_message"] == "First"
    again = unremix.load.from_pretrained("user/digits", revision="main")
    assert repository["downloaded"]["revision"] == "main"
    assert set(repository["downloaded"]["allow_patterns"]) == set(FILES)
    assert torch.equal(again.embed(DIGITS), run.embed(DIGITS))


def test_a_run_without_weights_is_refused(run: SharedRun, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    for name in ("config.yaml", "shape.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    with pytest.raises(ValueError, match="expected a trained run with encoder"):
        unremix.load(tmp_path).save_pretrained(tmp_path / "shared")


def test_without_the_extra(run: SharedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "unremix\[hub\]"'):
        run.save_pretrained(tmp_path)
    with pytest.raises(ImportError, match=r'pip install "unremix\[hub\]"'):
        unremix.load.from_pretrained("user/digits")


def test_what_is_no_encoder_is_not_published(run: SharedRun, tmp_path: Path) -> None:
    """A run folder from elsewhere may hold a link to a file that is nobody else's business."""
    pytest.importorskip("huggingface_hub")
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "secret").write_text("a password")
    (tmp_path / "run" / "encoder.safetensors").unlink()
    (tmp_path / "run" / "encoder.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="cannot be read"):
        unremix.load(tmp_path / "run").save_pretrained(tmp_path / "shared")
    assert not (tmp_path / "shared" / "encoder.safetensors").exists()
