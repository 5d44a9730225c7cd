"""Embedding, mining and comparisons on Ray equal those of one machine, also if workers die."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import yaml
from pictures import save
from s3_server import S3

import unremix
from unremix.cli import main
from unremix.files.remote import file_system
from unremix.mining.embeddings import read_columns
from unremix.training.run import Run

ray = pytest.importorskip("ray", reason="Ray is not installed; make setup-cluster installs it")
pytest.importorskip("ray.data", reason="Ray Data is not installed; make setup-cluster installs it")
pytest.importorskip("moto.server", reason="the S3 server needs moto[server]")
pytest.importorskip("s3fs", reason="s3:// needs s3fs")

from unremix.cluster.embedding import embed_on_ray  # noqa: E402
from unremix.cluster.ray_engine import ray_map  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """Ray on this machine with two CPUs, and an S3 server that its workers know."""
    server = S3()
    here = [str(Path(part).resolve()) for part in ("src", "tests")]
    path = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        cache = {"UNREMIX_CACHE": str(tmp_path_factory.mktemp("cache"))}
        for name, value in {**server.environment, **cache, "PYTHONPATH": path}.items():
            patch.setenv(name, value)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=200 * 2**20,
        )  # fmt: skip
        yield server
        ray.shutdown()
    server.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unremix.train(
        limit=64, batch_size=16, epochs=1, probe_epochs=0, head_hidden=(16,), head_output=8,
        runs=str(tmp_path_factory.mktemp("runs")), progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip


def columns(path: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(column) for name, column in read_columns(path).items()}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(ours["embeddings"], theirs["embeddings"], rtol=1e-5, atol=1e-6)
    for name in set(ours) - {"embeddings"}:
        assert ours[name].tolist() == theirs[name].tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of two animals for training and testing, one of them no picture."""
    for split in ("train", "test"):
        for number in range(13):
            save(tmp_path / "animals" / split / ("cat", "dog")[number % 2] / f"{number}.png")
    (tmp_path / "animals" / "train" / "cat" / "7b.png").write_bytes(b"no picture")
    return tmp_path / "animals"


@pytest.mark.parametrize("options", [[], ["--layer", "head", "--normalize"]])
def test_embeddings_equal_those_of_the_local_command(
    run: Run, folder: Path, tmp_path: Path, options: list[str]
) -> None:
    words = ["embed", str(run.path), "--data", str(folder), *options]
    assert main([*words, "-o", str(tmp_path / "local.npz")]) == 0
    assert main([*words, "-o", str(tmp_path / "ray"), "--on", "ray"]) == 0
    assert_same(columns(tmp_path / "ray"), columns(tmp_path / "local.npz"))


def test_the_runs_own_data(run: Run, tmp_path: Path) -> None:
    assert main(["embed", str(run.path), "-o", str(tmp_path / "local.parquet")]) == 0
    written = embed_on_ray(str(run.path), None, str(tmp_path / "ray"), rows=10)
    assert written.parts == 14  # of 64 and 64 images
    assert_same(columns(tmp_path / "ray"), columns(tmp_path / "local.parquet"))


def test_what_was_stopped_is_continued(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "ray"
    embed_on_ray(str(run.path), None, str(out), rows=10)
    whole = columns(out)
    kept = (out / "part-00003.parquet").stat().st_mtime_ns
    (out / "part-00002.parquet").unlink()
    (out / "part-00013.parquet").unlink()
    with pytest.raises(ValueError, match=r"expected 14 parts.*got 12"):
        read_columns(out)
    shares: list[float] = []
    written = embed_on_ray(str(run.path), None, str(out), rows=10, advance=shares.append)
    assert (written.earlier, written.rows) == (12, 128)
    assert shares == [13 / 14, 1.0]
    assert (out / "part-00003.parquet").stat().st_mtime_ns == kept
    assert_same(columns(out), whole)
    for options in ({"normalize": True}, {"rows": 20}):
        with pytest.raises(ValueError, match="other options; choose another --output"):
            embed_on_ray(str(run.path), None, str(out), **options)  # type: ignore[arg-type]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        embed_on_ray(str(run.path), None, str(tmp_path / "full"))
    with pytest.raises(ValueError, match="a folder for parquet parts"):
        embed_on_ray(str(run.path), None, "out.npz")


def test_from_s3_to_s3(run: Run, server: S3, tmp_path: Path) -> None:
    for shard in range(2):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as archive:
            for number in range(5):
                archive.add(save(tmp_path / "pictures" / f"{shard}{number}.png"), f"{number}.png")
    files, _ = file_system("s3://data/x")
    files.mkdir("data")
    for shard in range(2):
        files.put_file(str(tmp_path / f"s-{shard}.tar"), f"data/s-{shard}.tar")
    server.spoil(**{"data__s-0.tar": ["error", "truncate"]})
    local = ["embed", str(run.path), "--data", str(tmp_path / "s-{0..1}.tar")]
    assert main([*local, "-o", str(tmp_path / "local.npz")]) == 0
    words = ["embed", str(run.path), "--data", "s3://data/s-{0..1}.tar", "--on", "ray"]
    for _ in range(2):  # the second time there is nothing to do
        assert main([*words, "-o", "s3://data/features"]) == 0
    files.get("data/features", str(tmp_path / "features"), recursive=True)
    assert_same(columns(tmp_path / "features"), columns(tmp_path / "local.npz"))
    # Mined from where they are: parts behind a URL, a file behind one, and a file here.
    files.put_file(str(tmp_path / "local.npz"), "data/features.npz")
    (tmp_path / "pairs.tsv").write_text("s-0.tar/0.png\ts-0.tar/1.png\n")
    mine = ["mine", "--positives", str(tmp_path / "pairs.tsv"), "-k", "2", "--anchors"]
    assert main([*mine, str(tmp_path / "features"), "-o", str(tmp_path / "here.csv")]) == 0
    for source, on in (("features", "ray"), ("features", "local"), ("features.npz", "local")):
        out = tmp_path / f"{source}-{on}.csv"
        assert main([*mine, f"s3://data/{source}", "-o", str(out), "--on", on]) == 0
        assert out.read_text() == (tmp_path / "here.csv").read_text()


@pytest.mark.parametrize("kind", ["graphs", "sentences"])
def test_graphs_and_sentences(kind: str, tmp_path: Path) -> None:
    trained = getattr(small_runs, kind)(tmp_path)
    words = ["embed", str(trained.path)]
    assert main([*words, "-o", str(tmp_path / "local.npz")]) == 0
    written = embed_on_ray(str(trained.path), None, str(tmp_path / "ray"), rows=15)
    assert written.parts > 2
    assert_same(columns(tmp_path / "ray"), columns(tmp_path / "local.npz"))
    with pytest.raises(ValueError, match="other options; choose another --output"):
        embed_on_ray(str(trained.path), None, str(tmp_path / "ray"), normalize=True, rows=15)


def make_slow(folder: str) -> Callable[[], Callable[[int], tuple[int, int]]]:
    """Each item takes a while; a file names the working process."""

    def make() -> Callable[[int], tuple[int, int]]:
        def function(item: int) -> tuple[int, int]:
            Path(folder, str(os.getpid())).touch()
            time.sleep(0.3)
            return item * item, os.getpid()

        return function

    return make


def test_what_goes_wrong_on_a_node_is_told_as_here() -> None:
    def make() -> Callable[[int], int]:
        raise FileNotFoundError("expected the run, found none")

    with pytest.raises(FileNotFoundError, match=r"^expected the run, found none$"):
        list(ray_map(make, [1, 2]))


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        while not (found := list(tmp_path.iterdir())):
            time.sleep(0.02)
        time.sleep(0.1)
        killed.append(int(found[0].name))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = dict(ray_map(make_slow(str(tmp_path)), list(range(12))))
    killer.join()
    assert {number: square for number, (square, _) in found.items()} == {
        number: number**2 for number in range(12)
    }
    assert len(list(tmp_path.iterdir())) > 2 - len(killed)  # others took over
    assert killed


def test_embedding_with_a_killed_worker(run: Run, tmp_path: Path) -> None:
    assert main(["embed", str(run.path), "-o", str(tmp_path / "local.npz")]) == 0
    out, done = tmp_path / "ray", threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not list(out.glob("part-*")) and not done.is_set():
            time.sleep(0.005)
        actors = [
            worker for worker in workers() if "MapWorker" in worker[1] or "_Worker" in worker[1]
        ]
        killed.append(actors[0][0])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    written = embed_on_ray(str(run.path), None, str(out), rows=1)
    done.set()
    killer.join()
    assert killed
    assert written.rows == 128
    assert_same(columns(out), columns(tmp_path / "local.npz"))


def workers() -> list[tuple[int, str]]:
    """The processes of our own Ray's workers, and what each is called."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents[int(entry.name)], titles[int(entry.name)] = parent, title
    # A worker's parent is Ray's daemon, and that one's parent is this process.
    return [
        (process, title)
        for process, title in titles.items()
        if title.startswith("ray::") and parents.get(parents[process]) == os.getpid()
    ]


def test_mining_equals_the_local_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    corpus = rng.standard_normal((3000, 16), dtype=np.float32)
    np.savez(tmp_path / "corpus.npz", embeddings=corpus)
    np.savez(tmp_path / "anchors.npz", embeddings=corpus[:2500] + 0.1)
    pairs = "".join(f"{number}\t{number}\n" for number in range(2500))
    (tmp_path / "pairs.tsv").write_text(pairs)
    words = ["mine", "--anchors", str(tmp_path / "anchors.npz"),
             "--corpus", str(tmp_path / "corpus.npz"), "--positives", str(tmp_path / "pairs.tsv"),
             "-k", "3"]  # fmt: skip
    assert main([*words, "-o", str(tmp_path / "local.csv")]) == 0
    assert main([*words, "-o", str(tmp_path / "ray.csv"), "--on", "ray"]) == 0
    assert (tmp_path / "ray.csv").read_text() == (tmp_path / "local.csv").read_text()


COMPARE = [
    "compare", "--recipes", "simclr,hcl", "--seeds", "1", "--limit", "128", "--batch_size", "32",
    "--epochs", "8", "--probe_epochs", "1", "--head_hidden", "[16]", "--head_output", "8",
    "--accelerator", "cpu", "--checkpoint_every", "1",
]  # fmt: skip


def results(folder: Path) -> list[Any]:
    record = json.loads((folder / "results.json").read_text())
    return [record["runs"], record["table"]]


@pytest.mark.usefixtures("heard")
def test_a_comparison_that_is_stopped_and_loses_a_worker_equals_the_local_one(
    tmp_path: Path,
) -> None:
    assert main([*COMPARE, "--output", str(tmp_path / "local")]) == 0
    out, killed = tmp_path / "ray", []

    def await_checkpoint(run: str, later_than: float = 0.0) -> None:
        checkpoint = out / "runs" / run / "checkpoints" / "last.ckpt"
        while not checkpoint.exists() or checkpoint.stat().st_mtime <= later_than:
            time.sleep(0.01)

    def stop() -> None:
        await_checkpoint("simclr-0")
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert main([*COMPARE, "--output", str(out), "--on", "ray"]) == 130
    stopper.join()
    assert (out / "runs" / "simclr-0").exists()
    assert not (out / "runs" / "simclr-0" / "evaluation.json").exists()
    now = time.time()

    def kill() -> None:
        await_checkpoint("hcl-0", now)
        for process, title in workers():
            if title.startswith("ray::hcl-0"):
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main([*COMPARE, "--output", str(out), "--on", "ray"]) == 0
    killer.join()
    assert killed
    assert results(out) == results(tmp_path / "local")
    log = (out / "logs" / "hcl-0.txt").read_text()
    assert log.count("$ ") == 3  # begun, continued, continued by another worker
    assert log.count("--resume") >= 1


STUDY = {
    "train": {
        "limit": 128, "batch_size": 32, "epochs": 16, "probe_epochs": 1, "head_hidden": [16],
        "head_output": 8, "accelerator": "cpu", "threads": 1, "checkpoint_every": 1,
    },
    "stages": {"pick": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 1}},
}  # fmt: skip


def records(folder: Path) -> dict[str, Any]:
    """What is noted of each run, but for what it cost."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    found = {record["name"]: record for record in map(json.loads, lines)}
    for record in found.values():
        del record["cpu_seconds"]
    return found


def test_a_study_that_loses_a_worker_equals_the_local_one(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY))
    words = ["study", str(tmp_path / "study.yaml"), "--jobs", "2", "--output"]
    assert main([*words, str(tmp_path / "local")]) == 0
    out, done = tmp_path / "ray", threading.Event()
    killed: list[str] = []

    def kill() -> None:
        """The first worker whose run has a checkpoint."""
        while not killed and not done.is_set():
            for checkpoint in out.glob("runs/*/checkpoints/last.ckpt"):
                run = checkpoint.parents[1].name
                for process, title in workers():
                    if title.startswith(f"ray::{run}") and not killed:
                        killed.append(run)
                        os.kill(process, signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    code = main([*words, str(out), "--on", "ray"])
    done.set()
    killer.join()
    assert code == 0
    assert killed
    assert "--resume" in (out / "logs" / f"{killed[0]}.txt").read_text()
    assert records(out) == records(tmp_path / "local")
    assert (out / "pick.png").exists()


@pytest.mark.usefixtures("warm_runs")
def test_a_table_of_the_paper_equals_the_local_one(tmp_path: Path) -> None:
    words = ["reproduce", "mix", "--scale", "smoke", "--jobs", "2", "--output"]
    assert main([*words, str(tmp_path / "local")]) == 0
    assert main([*words, str(tmp_path / "ray"), "--on", "ray"]) == 0
    assert records(tmp_path / "ray") == records(tmp_path / "local")
    for name in ("table.md", "table.csv"):
        tables = [(tmp_path / where / "mix" / name).read_text() for where in ("ray", "local")]
        ours, theirs = (table.partition("```")[0] for table in tables)  # then follows the command
        assert ours == theirs


def test_the_doctor_sees_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster"]) == 0
    shown = capsys.readouterr().out
    assert "1 node" in shown
    assert "2 CPUs, 0 GPUs" in shown
    assert f"sees {Path.cwd()}" in shown
    assert "not installed: pip" not in shown.partition("SLURM:")[0]
