"""The command ``unremix``, as a person types it."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import cifar_zip
from PIL import Image
from safetensors.torch import load_file

import unremix
from unremix.cli import benchmark, doctor, main
from unremix.cli.commands import show_results
from unremix.cli.parser import parse
from unremix.console import suggestions
from unremix.domains.image.encoders import make_encoder
from unremix.recipes import RECIPES

SMALL = [
    "--limit", "64", "--batch_size", "32", "--epochs", "1", "--probe_epochs", "1",
    "--head_hidden", "[16]", "--head_output", "8", "--accelerator", "cpu", "--threads", "1",
]  # fmt: skip
pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of color pictures of several sizes, and a broken one."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for name, color in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (folder / name).mkdir()
        for number in range(24):
            size = tuple(generator.integers(18, 30, 2).tolist())
            noise = generator.integers(-30, 30, (*size, 3))
            pixels = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    (folder / "red" / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", "--runs", str(runs), "--name", "digits", *SMALL]) == 0
    return runs / "digits"


def test_train_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *SMALL]) == 0
    shown = capsys.readouterr().out
    for text in ("epoch 1/1", "loss", "mix", "kNN", "images/s", "trained encoder",
                 "untrained encoder", "raw pixels", "runs/digits-unremix-simclr-0"):  # fmt: skip
        assert text in shown
    assert (tmp_path / "runs" / "digits-unremix-simclr-0" / "report.html").exists()
    assert main(["train", *SMALL, "--progress", "false"]) == 0  # a second run gets a number
    assert (tmp_path / "runs" / "digits-unremix-simclr-0-2").exists()


def test_a_folder_of_pictures(pictures: Path, tmp_path: Path) -> None:
    arguments = [
        "train", "--data", str(pictures), "--runs", str(tmp_path), "--name", "p", *SMALL,
        "--backbone", "resnet18", "--width", "4", "--image_size", "16",
    ]  # fmt: skip
    with pytest.warns(UserWarning, match=r"skipped 1 of 49 files: red/broken.jpg"):
        assert main(arguments) == 0
    run = unremix.load(tmp_path / "p")
    assert run.evaluation is not None
    assert run.evaluation["skipped_files"] == 1
    assert any("1 left out: red/broken.jpg (" in line for line in run.warnings)
    assert "red/broken.jpg" in (run.path / "report.html").read_text()
    features = run.embed([pictures / "red" / "0.png", pictures / "blue" / "0.png"])
    assert features.shape == (2, 32)
    with pytest.raises(ValueError, match="usable image"):
        run.embed([pictures / "red" / "broken.jpg"])
    # Features can be had by the same weights without our trainer.
    encoder = make_encoder("resnet18", channels=3, image_size=16, width=4)
    encoder.load_state_dict(load_file(run.path / "encoder.safetensors"))
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    from unremix.domains.image.views import plain

    with torch.no_grad():
        expected = encoder.eval()(plain(images, run.shape.settings))
    torch.testing.assert_close(run.embed(images), expected)
    # A torchvision state dict of it loads into a ResNet of that shape.
    assert main(["export", str(run.path), "--format", "torchvision"]) == 0
    state = torch.load(run.path / "encoder.torchvision.pt", weights_only=True)
    other = make_encoder("resnet18", channels=3, image_size=16, width=4)
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(other.eval()(plain(images, run.shape.settings)), expected)


def test_unlabeled_pictures(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unremix.train(
        data=str(pictures / "blue"), runs=str(tmp_path), batch_size=8, epochs=1, image_size=8,
        progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    assert run.evaluation is not None
    assert run.evaluation["results"] is None
    assert "no labels" in run.evaluation["note"]
    assert "spread" in run.metrics()[-1]
    assert "no labels" in (run.path / "report.html").read_text()
    show_results(run.evaluation, "")
    shown = capsys.readouterr().out
    assert re.search(r"^  spread \d\.\d\d \(near 0 all embeddings are the same", shown, re.M)
    assert re.search(r"^  effective rank \d+\.\d\d \(dimensions in use; near 1 is", shown, re.M)
    assert not re.search(r"[a-z]_[a-z]", shown)


def test_embed_writes_npz_and_parquet(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(digits), "-o", str(tmp_path / "e.npz")]) == 0
    assert "limited by --limit 64" in capsys.readouterr().out
    with np.load(tmp_path / "e.npz", allow_pickle=False) as arrays:
        embeddings, names, labels = (arrays[key] for key in ("embeddings", "names", "labels"))
        classes = arrays["class_names"]
    assert classes.tolist() == [str(label) for label in labels]  # digits are called so
    assert embeddings.shape[0] == len(names) == len(labels) == 128
    assert main(["embed", str(digits), "--data", "digits", "-o", str(tmp_path / "e.parquet")]) == 0
    assert "limited" not in capsys.readouterr().out
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "e.parquet")
    assert table.num_rows == 1797
    assert table["class_names"].to_pylist() == [str(label.as_py()) for label in table["labels"]]
    stacked = np.stack(table["embeddings"].to_numpy())
    row = table["names"].to_pylist().index(str(names[0]))
    np.testing.assert_allclose(stacked[row], embeddings[0], rtol=1e-5)
    assert main(["embed", str(digits), "-o", str(tmp_path / "e.json")]) == 1
    assert "ends in .npz, .parquet, .csv" in capsys.readouterr().err


def test_gray_pictures_go_through_a_color_encoder_and_back(
    digits: Path, pictures: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "e.npz")
    with pytest.warns(UserWarning, match="skipped 1"):
        assert main(["embed", str(digits), "--data", str(pictures), "-o", output]) == 0
    with np.load(tmp_path / "e.npz") as arrays:
        assert len(arrays["names"]) == 48
        assert set(arrays["labels"]) == {0, 1}
        folders = [name.split("/")[0] for name in arrays["names"]]
        assert arrays["class_names"].tolist() == folders
        assert arrays["names"][0] == "blue/0.png"


def test_export(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(digits)]) == 0
    assert set(load_file(digits / "encoder.safetensors"))
    assert main(["export", str(digits), "--format", "torchvision"]) == 1
    assert "expected a ResNet" in capsys.readouterr().err
    assert main(["export", str(digits), "--format", "onnx", "-o", "encoder.pt"]) == 1
    assert "ends in .onnx" in capsys.readouterr().err


def test_raw_pixels_are_left_out_where_they_are_too_many(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unremix.load(digits)
    data = run.domain.load_for(run, None)
    assert set(run.domain.evaluate(run, data)["results"]) == {"trained", "untrained", "pixels"}
    monkeypatch.setattr("unremix.domains.image.model.MOST_PIXELS", len(data.train) * 64 - 1)
    card = run.domain.evaluate(run, data)
    assert set(card["results"]) == {"trained", "untrained"}
    assert "left out" in card["protocol"]["pixels"]


def test_a_warning_is_kept_once(digits: Path) -> None:
    run = unremix.load(digits)
    earlier = run.warnings
    for message in ("something\nlooks wrong", "something looks wrong", "and <this>"):
        run.warn(message)
    assert run.warnings == [*earlier, "something looks wrong", "and <this>"]
    assert main(["report", str(digits)]) == 0
    assert "and &lt;this&gt;" in (digits / "report.html").read_text()


def test_the_benchmark_writes_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "PAIRS", (8, 16))
    monkeypatch.setattr(benchmark, "WIDTHS", {"cpu": (1,)})
    monkeypatch.setattr(benchmark, "STEP_SECONDS", 0.5)
    assert main(["doctor", "--benchmark", "-o", str(tmp_path / "b.json")]) == 0
    found = json.loads((tmp_path / "b.json").read_text())
    assert [(one["loss"], one["pairs"]) for one in found["losses"]] == [
        (name, pairs) for pairs in (8, 16) for name in ("InfoNCELoss", "HCLLoss", "UnReMixLoss")
    ]
    assert [one["precision"] for one in found["steps"]] == ["32-true", "bf16-mixed"]
    measured = [one["ms"] for one in found["losses"]]
    measured += [one["samples_per_second"] for one in found["steps"]]
    assert min(measured) > 0
    assert platform.node() not in json.dumps(found)
    assert "can be sent with an issue" in capsys.readouterr().out


def test_evaluate_report_recipes_doctor(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(digits)]) == 0
    assert "trained encoder" in capsys.readouterr().out
    assert main(["report", str(digits)]) == 0
    assert main(["recipes"]) == 0
    assert "unremix-simclr" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert torch.__version__ in shown
    assert "GiB free" in shown
    assert re.search(r", (1 thread|(?!1 )\d+ threads)\n", shown)
    assert "engine of the losses: " in shown


def test_no_two_recipes_are_listed_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    blocks: dict[str, str] = {}  # what stands beside each name, without what it is in words
    name, domain = "", ""
    for line in lines[: next(n for n, line in enumerate(lines) if line.startswith("One in full"))]:
        first, _, rest = line.partition(" ")
        if rest.startswith("recipes "):
            domain = first
        elif first:
            name = first
            framework, mixing, negatives, weighting, temperature, *_ = rest.split()
            parts = (domain, framework, mixing, negatives, weighting, temperature)
            blocks[name] = " ".join(parts)
        elif line.strip():
            blocks[name] += " " + line.strip()
    assert list(blocks) == list(RECIPES)
    assert len(set(blocks.values())) == len(blocks)
    assert blocks["imix"] == "image moco imix none uniform 0.2 --moco.momentum 0.999"
    assert blocks["patch"] == "image moco none patch uniform 0.2 --moco.queue 16384"
    assert blocks["debiased"].endswith("uniform 0.5 --loss.class_prior 0.1")
    assert blocks["quickthought-hcl"].startswith("sentence quickthought none none hcl 1")


def test_what_the_list_says_can_be_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["recipes"]) == 0
    typed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    typed = [line for line in typed if re.match(r"--\w+\.\w+ \S+$", line)]
    assert len(typed) == sum(len(recipe.preset) for recipe in RECIPES.values())
    for words in typed:
        parse("train", shlex.split(words))


def test_one_recipe_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "unremix-u"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["in", "the", "paper", "Table", "2"] in shown
    assert ["--negatives", "none"] in shown
    assert ["--loss.components", '"[uncertainty]"', "weighting", "recipe"] in shown
    assert ["--loss.scaling", "minmax", "weighting", "default"] in shown
    assert main(["recipes", "unremix_u"]) == 1
    assert "did you mean 'unremix-u'?" in capsys.readouterr().err


def test_light_commands_do_not_import_what_training_needs() -> None:
    commands = (["--help"], ["recipes"], ["doctor"], ["train", "--help"], ["compare", "--help"])
    heavy = ("lightning", "torch_geometric", "matplotlib", "sklearn")
    code = f"""
import sys
from contextlib import suppress
from unremix.cli import doctor, main
for words in {commands}:
    with suppress(SystemExit):
        main(words)
    print(words, sorted(set({heavy}) & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"{words} []" for words in commands]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code != 0
    return re.sub(r"\s+", " ", capsys.readouterr().err)


def test_mistakes_name_the_nearest_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean 'epochs'?" in refused(["train", "--epohcs", "3"], capsys)
    assert "did you mean 'epochs'?" in refused(
        ["train", "--epoch", "3"], capsys
    )  # not a short form
    assert "did you mean --data photos?" in refused(["train", "photos"], capsys)
    ready = ["photos", "x.png", "--encoder", "timm:resnet18"]
    assert "did you mean --query x.png?" in refused(["neighbors", *ready], capsys)
    assert "did you mean --labels x.png?" in refused(["classify", *ready], capsys)
    assert "did you mean" not in refused(["cluster", *ready], capsys)  # photos are the data
    assert "did you mean --data x.png?" in refused(["cluster", "runs/x", "x.png"], capsys)
    spaces = ["compare", "--recipes", "simclr", "hcl", "moco", "--epochs", "1"]
    assert "did you mean --recipes simclr,hcl,moco?" in refused(spaces, capsys)
    assert "did you mean 'loss.mix'?" in refused(["train", "--loss.mxi", "fixed"], capsys)
    assert "did you mean 'seeds'?" in refused(["reproduce", "graphs", "--sedes", "1"], capsys)
    assert "did you mean" not in refused(["train", "--out", "here"], capsys)  # another command's
    file = tmp_path / "options.yaml"
    file.write_text("bach_size: 3\n")
    assert "did you mean 'batch_size'?" in refused(["train", "--config", str(file)], capsys)
    assert "no such place" in refused(["train", "--data", "no such place"], capsys)
    assert "run folder" in refused(["evaluate", str(tmp_path)], capsys)
    (tmp_path / "empty").mkdir()
    told = refused(["train", "--data", str(tmp_path / "empty")], capsys)
    assert "it is empty" in told
    assert "0/0" not in told  # no bar for nothing
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    told = refused(["train", "--data", str(tmp_path / "broken.jpg")], capsys)
    assert "got the single picture" in told
    assert len(told.split()) < 30


def test_print_config_is_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--epochs", "1", "--loss.mix", "fixed", "--print_config"]) == 0
    file = tmp_path / "options.yaml"
    file.write_text(capsys.readouterr().out)
    assert "epochs: 1" in file.read_text()
    arguments = ["train", "--config", str(file), "--runs", str(tmp_path), *SMALL, "--seed", "5"]
    assert main(arguments) == 0
    run = unremix.load(tmp_path / "digits-unremix-simclr-5")
    assert run.config.loss.mix == "fixed"
    assert run.config.seed == 5
    saved = run.path / "config.yaml"
    again = ["train", "--config", str(saved), "--name", "again", "--progress", "false"]
    assert main(again) == 0  # the saved configuration is complete
    assert unremix.load(tmp_path / "again").metrics() == run.metrics()


CIFAR = cifar_zip()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(CIFAR is None, reason="cifar10-images.zip is not in UNREMIX_DATA")
def test_real_pictures(tmp_path: Path) -> None:
    """2,000 CIFAR-10 images, 3 epochs: the features are clearly better than untrained ones."""
    run = unremix.train(
        data=str(CIFAR), limit=2000, epochs=3, batch_size=128, backbone="resnet18", width=8,
        runs=str(tmp_path), progress=False, accelerator="cpu", probe_epochs=0, evaluate_every=3,
    )  # fmt: skip
    assert run.evaluation is not None
    results = run.evaluation["results"]
    difference = results["trained"]["knn"]["value"] - results["untrained"]["knn"]["value"]
    assert difference > 2 * results["trained"]["knn"]["standard_error"]


METHOD = """
from unremix.recipes import RECIPES, Recipe

RECIPES["plain-moco"] = Recipe("plain-moco", "MoCo again", "moco")
"""


def test_recipes_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm_runs: None
) -> None:
    """In a file that is imported first; a run finds it again from anywhere."""
    (tmp_path / "method.py").write_text(METHOD)
    own = {name: recipe for name, recipe in RECIPES.items() if name != "plain-moco"}
    small = ["--limit", "64", "--batch_size", "32", "--epochs", "1", "--accelerator", "cpu",
             "--probe_epochs", "1", "--progress", "false"]  # fmt: skip
    extension = ["--imports", f"[{tmp_path / 'method.py'}]"]
    arguments = ["--recipe", "plain-moco", "--runs", str(tmp_path), "--name", "run", *small]
    try:
        assert main(["train", *arguments]) == 1
        assert "plain-moco" in capsys.readouterr().err
        assert main(["train", *arguments, *extension]) == 0
        # In processes of their own, which have not seen the file: this one, and compare's runs.
        command = [sys.executable, "-m", "unremix", "embed", str(tmp_path / "run"), "--trust"]
        subprocess.run(command, check=True, cwd="/", capture_output=True)
        output = ["--output", str(tmp_path / "c")]
        words = ["compare", "--recipes", "plain-moco", "--seeds", "1", *output]
        assert main([*words, *small, *extension]) == 0
        assert "plain-moco" in (tmp_path / "c" / "table.md").read_text()
    finally:
        RECIPES.clear()
        RECIPES.update(own)
    for name, message in (("no-such.py", "found none at"), ("no_such_module", "a file ends in")):
        assert main(["train", *arguments, "--imports", f"[{name}]"]) == 1
        assert message in capsys.readouterr().err


def test_doctor_reports_a_torchvision_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip installs one beside a torch for CPUs."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(suggestions, "version_of", lambda _: "0.99")
    told = doctor.torchvision_problem()
    assert told is not None
    assert "operator nms does not exist" in told
    assert "pip install" in told
    with pytest.raises(ImportError, match=r"torchvision 0\.99 does not load .*operator nms"):
        make_encoder("torchvision:resnet18", channels=3, image_size=32)
    (tmp_path / "torchvision.py").write_text("")
    assert doctor.torchvision_problem() is None
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (tmp_path / "torchvision.py").unlink()
    assert doctor.torchvision_problem() is None  # there is none
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)


def test_training_beside_a_torchvision_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    """Lightning imports it, whatever is trained."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    facts = tmp_path / "torchvision-0.99.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99\n")
    search = os.pathsep.join([str(tmp_path), str(Path(unremix.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "unremix", "train", "--limit", "32", "--dry_run"],
        env=os.environ | {"PYTHONPATH": search}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("unremix: torchvision 0.99 does not load beside torch")
    assert "operator nms does not exist" in line
