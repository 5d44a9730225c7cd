"""Nothing that a stranger sends executes: every command, every format, a payload in each."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pictures import save
from safetensors.torch import load_file, save_file

import unremix
from unremix.cli import main
from unremix.domains.options import TrainConfig
from unremix.experiments.plan import shared_options

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("canaries"),
    pytest.mark.filterwarnings("ignore"),
]

SMALL = [
    "--limit", "32", "--batch_size", "16", "--epochs", "1", "--probe_epochs", "0", "--width", "4",
    "--head_hidden", "[8]", "--head_output", "4", "--progress", "false", "--accelerator", "cpu",
    "--threads", "1",
]  # fmt: skip


COMPARED = ["--epochs", "1", "--accelerator", "cpu"]


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.canary,)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", "--runs", str(runs), "--name", "run", *SMALL]) == 0
    return runs / "run"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that no payload may create; a module ``evil`` that would, on the path."""
    canary = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(canary)!r}).touch()\nencoder = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return canary


def test_the_canary_sings(canary: Path, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The payloads do execute where somebody asks for it, or the other tests would show nothing."""
    pickle.loads(pickle.dumps(Payload(canary)))
    assert canary.exists()
    canary.unlink()
    run = canary.parent / "run"
    shutil.copytree(sound, run)
    with (run / "config.yaml").open("a") as file:
        file.write(f"imports: [{canary.parent / 'evil.py'}]\n")
    assert main(["embed", str(run)]) == 1
    said = capsys.readouterr().err
    assert "evil.py, which would run" in said
    assert "--trust" in said
    assert not canary.exists()
    assert main(["embed", str(run), "--trust"]) == 0
    assert canary.exists()


RUN_COMMANDS = {
    "report": ["report", "RUN"],
    "embed": ["embed", "RUN", "-o", "OUT.npz"],
    "embed head": ["embed", "RUN", "--layer", "head", "-o", "OUT.npz"],
    "evaluate": ["evaluate", "RUN"],
    "neighbors": ["neighbors", "RUN", "--query", "0", "--index", "hnsw"],
    "duplicates": ["duplicates", "RUN"],
    "cluster": ["cluster", "RUN"],
    "export": ["export", "RUN"],
    "export onnx": ["export", "RUN", "--format", "onnx"],
    "resume": ["train", "--resume", "RUN"],
    "resume further": ["train", "--resume", "RUN", "--epochs", "3"],
    "init": ["train", "--init", "RUN", "--runs", "OUT", *SMALL],
    "same name": ["train", "--runs", "PARENT", "--name", "run", *SMALL],
    "compare": ["compare", "--output", "COMPARISON", "--recipes", "simclr", "--seeds", "1",
                *COMPARED],
    "config": ["train", "--config", "RUN/config.yaml", "--runs", "OUT", "--name", "other"],
    "config dry": ["train", "--config", "RUN/config.yaml", "--runs", "OUT", "--dry_run"],
}  # fmt: skip


def plant_imports(run: Path, canary: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write(f"imports: [{canary.parent / 'evil.py'}]\ntrust: true\nfrom_file: false\n")


def plant_module(run: Path, canary: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write("imports: [evil]\n")


def plant_backbone(run: Path, canary: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write("backbone: evil:encoder\n")


def plant_yaml(run: Path, canary: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write(f"data: !!python/object/apply:os.system ['touch {canary}']\n")


def plant_checkpoint(run: Path, canary: Path) -> None:
    for name in ("last", "previous"):
        torch.save({"model": Payload(canary), "step": 1}, run / "checkpoints" / f"{name}.ckpt")
    (run / "encoder.safetensors").unlink()


def plant_old_checkpoint(run: Path, canary: Path) -> None:
    for name in ("last", "previous"):
        torch.save(
            Payload(canary),
            run / "checkpoints" / f"{name}.ckpt",
            _use_new_zipfile_serialization=False,
        )
    (run / "encoder.safetensors").unlink()


def plant_pickle_for_safetensors(run: Path, canary: Path) -> None:
    (run / "encoder.safetensors").write_bytes(pickle.dumps(Payload(canary)))
    shutil.rmtree(run / "checkpoints")


def plant_code_beside(run: Path, canary: Path) -> None:
    for name in ("sitecustomize.py", "torch.py", "evil.py", "__init__.py", "conftest.py"):
        shutil.copy(canary.parent / "evil.py", run / name)


def plant_text(run: Path, canary: Path) -> None:
    """Templates in texts that the report shows."""
    expression = "{{ ''.__class__.__mro__[1].__subclasses__() }}<script>alert(1)</script>"
    (run / "warnings.txt").write_text(expression)
    card = json.loads((run / "evaluation.json").read_text())
    card["verdict"] = [expression]
    (run / "evaluation.json").write_text(json.dumps(card))


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "imports": plant_imports,
    "module": plant_module,
    "backbone": plant_backbone,
    "yaml": plant_yaml,
    "checkpoint": plant_checkpoint,
    "old checkpoint": plant_old_checkpoint,
    "pickle": plant_pickle_for_safetensors,
    "code beside": plant_code_beside,
    "text": plant_text,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_run_executes_nothing(
    sound: Path, canary: Path, plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in RUN_COMMANDS.items():
        place = canary.parent / name.replace(" ", "-")
        run = place / "run"
        shutil.copytree(sound, run)
        PLANTS[plant](run, canary)
        comparison = place / "comparison"
        shutil.copytree(run, comparison / "runs" / "simclr-0")
        shared = shared_options(TrainConfig(epochs=1, threads=1, accelerator="cpu"))
        record = {"recipes": ["simclr"], "seeds": 1, "reference": "simclr", "threads": 1,
                  "train": shared}  # fmt: skip
        (comparison / "comparison.yaml").write_text(yaml.safe_dump(record))
        monkeypatch.chdir(run)
        named = {"RUN": str(run), "OUT": str(place / "out"), "PARENT": str(place),
                 "COMPARISON": str(comparison)}  # fmt: skip
        for key, value in named.items():
            words = [word.replace(key, value, 1) if key in word else word for word in words]
        assert main(words) in (0, 1, 2), name  # 2: the file is refused as mistyped
        assert not canary.exists(), f"{plant}: {name}"
        if plant == "text" and name == "report":
            shown = (run / "report.html").read_text()
            assert "<script>alert" not in shown
            assert "__class__" in shown  # as text


def npz(folder: Path, canary: Path) -> Path:
    path = folder / "images.npz"
    np.savez(path, images=np.array([Payload(canary)], dtype=object), allow_pickle=True)
    return path


def cifar(folder: Path, canary: Path) -> Path:
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps({b"data": Payload(canary), b"labels": [0]}))
    return folder


def cifar_archive(folder: Path, canary: Path) -> Path:
    inner = cifar(folder, canary)
    path = folder.parent / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, "cifar-10-batches-py")
    return path


def shards(folder: Path, canary: Path) -> Path:
    path = folder / "shard-000.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.pyd", "a.pkl", "a.pickle", "a.cls", "a.pth", f"../{canary.name}", "a.py"):
            data = pickle.dumps(Payload(canary))
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        archive.add(save(folder.parent / "b.png"), "b.png")
    return path


def zip_file(folder: Path, canary: Path) -> Path:
    path = folder / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"../{canary.name}", b"out of its folder")
        archive.writestr("evil.py", (canary.parent / "evil.py").read_text())
        archive.write(save(folder.parent / "b.png"), "b.png")
    return path


def pictures(folder: Path, canary: Path) -> Path:
    """PostScript, which Pillow hands to an interpreter, under the names of pictures."""
    script = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({canary}) (w) file closefile\n"
    for name in ("a.png", "a.jpg", "a.eps", "a.gif"):
        (folder / name).write_text(script)
    (folder / "setup.py").write_text((canary.parent / "evil.py").read_text())
    for number in range(4):
        save(folder / f"{number}.png")
    return folder


def idx(folder: Path, canary: Path) -> Path:
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(pickle.dumps(Payload(canary)))
    return folder


def tu(folder: Path, canary: Path) -> Path:
    for name in ("A", "graph_indicator", "graph_labels"):
        (folder / f"X_{name}.txt").write_text(f"__import__('os').system('touch {canary}')\n")
    return folder


def json_lines(folder: Path, canary: Path) -> Path:
    path = folder / "graphs.jsonl"
    path.write_text(f"{{\"edges\": __import__('os').system('touch {canary}')}}\n")
    return path


def text(folder: Path, canary: Path) -> Path:
    path = folder / "text.txt"
    path.write_bytes(pickle.dumps(Payload(canary)) + b"\nA sentence. And one more.\n")
    return path


DATA: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "npz": ("simclr", npz),
    "cifar": ("simclr", cifar),
    "cifar archive": ("simclr", cifar_archive),
    "shards": ("simclr", shards),
    "zip": ("simclr", zip_file),
    "pictures": ("simclr", pictures),
    "idx": ("simclr", idx),
    "tu": ("infograph", tu),
    "json lines": ("infograph", json_lines),
    "text": ("quickthought", text),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_execute_nothing(sound: Path, canary: Path, kind: str) -> None:
    recipe, make = DATA[kind]
    folder = canary.parent / "data" / "inner"
    folder.mkdir(parents=True)
    data = str(make(folder, canary))
    runs = str(canary.parent / "runs")
    common = ["--epochs", "0", "--progress", "false", "--accelerator", "cpu", "--threads", "1"]
    commands = [["train", "--data", data, "--recipe", recipe, "--runs", runs, *common]]
    if recipe == "simclr":
        commands += [
            ["embed", str(sound), "--data", data, "-o", str(canary.parent / "e.npz")],
            ["evaluate", str(sound), "--data", data],
        ]
    for words in commands:
        assert main(words) in (0, 1)
        assert not list(canary.parent.rglob(canary.name)), words


def test_weights_execute_nothing(sound: Path, canary: Path) -> None:
    folder = canary.parent
    torch.save({"state_dict": Payload(canary)}, folder / "weights.pt")
    (folder / "weights.safetensors").write_bytes(pickle.dumps(Payload(canary)))
    for name in ("weights.pt", "weights.safetensors"):
        words = ["train", "--init", str(folder / name), "--runs", str(folder / "runs"), *SMALL]
        assert main(words) == 1
    weights = load_file(sound / "encoder.safetensors")
    facts = {
        "made_by": "unremix 0", "domain": "image", "channels": "1", "size": "8",
        "encoder": json.dumps({"name": "evil:encoder", "width": 4, "stem": "auto"}),
        "mean": "[0]", "std": "[1]",
    }  # fmt: skip
    save_file(weights, folder / "e.safetensors", metadata=facts)
    with pytest.raises(ValueError, match="network of unremix"):
        unremix.load_exported(folder / "e.safetensors")
    assert not canary.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (folder / "e.onnx").write_bytes(pickle.dumps(Payload(canary)))
        with pytest.raises(ValueError, match="ONNX"):
            unremix.load_exported(folder / "e.onnx")
    assert not canary.exists()
