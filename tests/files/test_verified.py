"""What is read back is what was written, and nothing is written through a link."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch

from unremix.cli import main
from unremix.console.printing import rows_to_csv
from unremix.domains.options import TrainConfig
from unremix.domains.sentence.dataset import build_vocabulary, load_sentences
from unremix.evaluation.cache import cached
from unremix.experiments.plan import Job
from unremix.experiments.results import Folder, Record, Results
from unremix.files import remote
from unremix.files.atomic_files import append_json, copy_file, sweep
from unremix.mining.embeddings import kept_embeddings, read_columns
from unremix.mining.files import write_rows
from unremix.report.comparison import runs_of_comparison
from unremix.report.sources import open_source
from unremix.training.run import Run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.digits(tmp_path_factory.mktemp("runs")).path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


RECORD = Record("hcl-0", "hcl", 0, epochs=1, loss=0.5)


@pytest.mark.parametrize("left", ['{"name": "hc', "{", "\x00\x00\x00"])
def test_an_unfinished_record_is_ignored_and_replaced(tmp_path: Path, left: str) -> None:
    file = tmp_path / "results.jsonl"
    Results(file).add(RECORD)
    whole = file.read_bytes()
    file.write_bytes(whole + left.encode())
    results = Results(file)
    assert list(results.records) == ["hcl-0"]
    results.add(replace(RECORD, name="hcl-1"))
    first, second = file.read_bytes().splitlines()
    assert first + b"\n" == whole
    assert json.loads(second)["name"] == "hcl-1"
    assert list(Results(file).records) == ["hcl-0", "hcl-1"]


def test_a_record_whose_line_break_is_missing_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    Results(file).add(RECORD)
    file.write_bytes(file.read_bytes().rstrip())
    results = Results(file)
    assert list(results.records) == ["hcl-0"]
    results.add(replace(RECORD, name="hcl-1"))
    assert list(Results(file).records) == ["hcl-0", "hcl-1"]


def test_a_full_disk_leaves_whole_lines_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.jsonl"
    append_json(file, {"a": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"room on the disk for .*results\.jsonl"):
        append_json(file, {"b": 2})
    assert file.read_text() == '{"a": 1}\n'


def test_a_comparison_whose_runs_are_a_link_changes_nothing_there(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "simclr-0"
    elsewhere.mkdir(parents=True)
    (elsewhere / "precious").write_text("mine")
    comparison = tmp_path / "comparison"
    comparison.mkdir()
    (comparison / "runs").symlink_to(elsewhere.parent)
    folder, job = Folder(comparison), Job("simclr", 0, "simclr-0", TrainConfig())
    with pytest.raises(ValueError, match=r"a folder of its own at .*runs, got a link"):
        folder.discard(job)
    (comparison / "runs").unlink()
    (comparison / "runs").mkdir()
    (comparison / "runs" / "simclr-0").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"a folder of its own at .*simclr-0, got a link"):
        folder.is_done(job)
    assert (elsewhere / "precious").read_text() == "mine"


def test_a_page_shows_no_run_that_a_link_leads_to(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "comparison.yaml").write_text("recipes: [a]\nreference: a\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a-0").symlink_to(sound)
    with pytest.raises(ValueError, match="got a link to"):
        runs_of_comparison(tmp_path)


@pytest.mark.parametrize("name", ["../../outside", "/tmp/x", "..", "a\nb", "a/b", ""])
def test_names_in_files_lead_nowhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(ValueError, match="the name of a run to be a name"):
        folder.run(Job("x", 0, name, TrainConfig()))
    stage = {"arms": [{"recipe": "simclr"}]}
    (tmp_path / "study.yaml").write_text(json.dumps({"stages": {name: stage}}))
    assert main(["study", str(tmp_path / "study.yaml"), "--dry_run"]) == 1
    assert "the name of a stage" in capsys.readouterr().err


def test_a_copy_goes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "config.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="to lie in its folder"):
        copy_file(tmp_path / "run" / "config.yaml", tmp_path / "out", inside=tmp_path / "run")
    (tmp_path / "source").write_text("new")
    (tmp_path / "target").symlink_to(tmp_path / "secret")
    copy_file(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "target").read_text() == "new"


def test_save_pretrained_publishes_nothing_that_a_link_leads_to(
    sound: Path, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    from unremix.hub import SharedRun

    shutil.copytree(sound, tmp_path / "run")
    run = SharedRun.of(Run(tmp_path / "run"))
    secret = tmp_path / "secret"
    secret.write_text((sound / "evaluation.json").read_text())
    (tmp_path / "run" / "evaluation.json").unlink()
    (tmp_path / "run" / "evaluation.json").symlink_to(secret)
    with pytest.raises(OSError, match="to lie in its folder"):
        run.save_pretrained(tmp_path / "shared")
    assert not (tmp_path / "shared" / "evaluation.json").exists()
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").symlink_to(tmp_path / "kept")
    SharedRun.of(Run(sound)).save_pretrained(tmp_path / "other")
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.parametrize("change", ["edited", "flipped", "planted", "moved"])
def test_a_kept_measurement_is_the_one_that_was_made(tmp_path: Path, change: str) -> None:
    weights = [torch.ones(2)]
    assert cached(tmp_path, ["knn"], weights, lambda: {"value": 0.5}) == {"value": 0.5}
    assert cached(tmp_path, ["knn"], weights, lambda: None) == {"value": 0.5}  # as it was kept
    (file,) = (tmp_path / ".cache").iterdir()
    if change == "edited":
        file.write_bytes(file.read_bytes().replace(b"0.5", b"0.9"))
    elif change == "flipped":
        flip(file, 11)
    elif change == "planted":
        file.write_text('{"value": 0.987}')
    else:  # a sound measurement of something else
        cached(tmp_path, ["linear"], weights, lambda: {"value": 0.987})
        (other,) = set((tmp_path / ".cache").iterdir()) - {file}
        other.replace(file)
    assert cached(tmp_path, ["knn"], weights, lambda: {"value": 0.5}) == {"value": 0.5}


def test_kept_embeddings_are_those_that_were_computed(tmp_path: Path) -> None:
    path, rows = tmp_path / "kept.npy", np.arange(6, dtype=np.float32).reshape(2, 3)
    kept_embeddings(path, lambda: rows)
    np.testing.assert_equal(kept_embeddings(path, lambda: -rows), rows)
    flip(path, -40)
    np.testing.assert_equal(kept_embeddings(path, lambda: rows), rows)
    np.save(path, 2 * rows)  # of somebody else
    np.testing.assert_equal(kept_embeddings(path, lambda: rows), rows)


def test_a_kept_vocabulary_is_the_one_that_was_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\nthree one\n" * 4)
    data = load_sentences(tmp_path / "a.txt")
    words = build_vocabulary(data, cache=tmp_path / "cache").words
    (file,) = (tmp_path / "cache").iterdir()
    assert build_vocabulary(data, cache=tmp_path / "cache").words == words
    file.write_bytes(file.read_bytes().replace(b"one", b"two"))
    assert build_vocabulary(data, cache=tmp_path / "cache").words == words


def test_embeddings_are_kept_for_the_data_that_they_are_of(sound: Path, tmp_path: Path) -> None:
    """Also where no file of the data has another name, size or time, and where one is planted."""
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    np.savez(tmp_path / "x.npz", images=np.zeros((20, 8, 8), np.uint8))
    status = (tmp_path / "x.npz").stat()
    first = open_source(str(run), data=str(tmp_path / "x.npz")).units
    (kept,) = (run / "embeddings").iterdir()
    np.savez(tmp_path / "x.npz", images=np.tile(9 * np.eye(8, dtype=np.uint8), (20, 1, 1)))
    os.utime(tmp_path / "x.npz", ns=(status.st_atime_ns, status.st_mtime_ns))
    second = open_source(str(run), data=str(tmp_path / "x.npz")).units
    assert np.abs(first - second).max() > 1e-3
    (other,) = set((run / "embeddings").iterdir()) - {kept}
    kept.replace(other)
    again = open_source(str(run), data=str(tmp_path / "x.npz")).units
    np.testing.assert_allclose(again, second, atol=1e-6)


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    dead = tmp_path / f".unremix-{2**22 + 5}-00.tmp"
    dead.mkdir()
    (dead / "tokens.bin").write_bytes(b"1")
    alive = tmp_path / f".unremix-{os.getpid()}-00.tmp"
    alive.mkdir()
    sweep(tmp_path)
    assert not dead.exists()
    assert alive.exists()


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    texts = ["=HYPERLINK(1)", "+1+1", "@SUM(A1)", "\tx", "'=x", "-0.5", "plain", "'tis"]
    assert rows_to_csv([texts[:3]]) == "'=HYPERLINK(1),'+1+1,'@SUM(A1)\n"
    write_rows(tmp_path / "x.csv", [{"name": text} for text in texts], ["name"])
    cells = (tmp_path / "x.csv").read_text().splitlines()[1:]
    assert [cell.startswith(("=", "+", "@", "\t")) for cell in cells] == [False] * len(texts)
    assert read_columns(tmp_path / "x.csv")["name"].tolist() == texts
    write_rows(tmp_path / "x.jsonl", [{"name": texts[0]}], ["name"])
    assert json.loads((tmp_path / "x.jsonl").read_text())["name"] == texts[0]


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A web server of this machine: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()


@pytest.mark.parametrize("trust", [False, True])
def test_a_report_requests_nothing_that_only_a_folder_names(
    sound: Path,
    tmp_path: Path,
    server: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    trust: bool,
) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    address, asked = server
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    (run / "report.npz").unlink()
    text = (run / "config.yaml").read_text()
    assert "data: digits" in text
    (run / "config.yaml").write_text(text.replace("data: digits", f"data: {address}/x.tar"))
    assert main(["report", str(run), *["--trust"] * trust]) == 0
    assert ("/x.tar" in asked) == trust
    assert ("add --trust to have them requested" in (run / "report.html").read_text()) != trust
    if not trust:
        assert asked == []
