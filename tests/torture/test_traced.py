"""Every command in a folder of traps, under strace: what it opens, starts and connects to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small_runs
from PIL import Image

import unremix
from unremix.cli.commands import SUMMARIES

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("traced"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]

MAIN = str(Path(unremix.__file__).with_name("__main__.py"))
SHADOWS = (
    "unremix", "secrets", "ctypes", "torch", "numpy", "yaml", "json", "joblib", "sitecustomize",
    "usercustomize", "multiprocessing", "lightning", "random", "tempfile", "matplotlib", "PIL",
    "scipy", "sklearn", "rich", "safetensors", "onnx", "faiss", "pyarrow", "encodings",
)  # fmt: skip
RC_FILES = (
    "matplotlibrc", ".env", "pyproject.toml", "setup.cfg", ".pythonrc.py", "sitecustomize.pth",
    ".netrc", "pyvenv.cfg", ".huggingface", "hf.toml", "ray.yaml", ".wandb", "logging.conf",
)  # fmt: skip
# Programs that libraries start to look for shared libraries, fonts and the machine's kind.
TOOLS = {"uname", "ldconfig", "gcc", "cc", "ld", "sh", "lscpu", "collect2", "fc-list"}
# Relative to an open folder are the entries of one that is being removed.
OPENED = re.compile(r'open(?:at)?\((?:AT_FDCWD, )?"([^"]*)".*= \d+')
STARTED = re.compile(r'execve\("([^"]*)".*= 0')
CONNECTED = re.compile(r"connect\(.*(AF_INET6?),")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules and settings that nobody named, and a run, pairs and options that are."""
    folder = tmp_path_factory.mktemp("strange")
    for name in SHADOWS:
        (folder / f"{name}.py").write_text("raise SystemExit('a trap was imported')\n")
    for name in RC_FILES:
        (folder / name).write_text("text.usetex: true\n")
    (folder / "libgomp.so.1").symlink_to("/dev/null")
    (folder / "named").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "named" / "q.png")
    small_runs.digits(folder / "named", width=4)
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    names = [f"n{number}" for number in range(60)]
    np.savez(folder / "named" / "x.npz", embeddings=rows, names=np.array(names))
    (folder / "named" / "labels.csv").write_text(
        "name,label\n" + "".join(f"{name},{'ab'[n % 2]}\n" for n, name in enumerate(names[:30]))
    )
    (folder / "named" / "pairs.tsv").write_text(
        "".join(f"{n}\t{(n + 1) % 60}\n" for n in range(60))
    )
    stages = "{stages: {a: {arms: [{recipe: simclr}], seeds: 1}}, train: {SMALL}}"
    options = "limit: 32, batch_size: 16, epochs: 1, probe_epochs: 0, width: 4, accelerator: cpu"
    (folder / "named" / "study.yaml").write_text(stages.replace("SMALL", options))
    return folder


SMALL = ["--limit", "32", "--batch_size", "16", "--epochs", "1", "--probe_epochs", "0",
         "--width", "4", "--accelerator", "cpu"]  # fmt: skip
COMMANDS = {
    "report": ["report", "named/digits"],
    "compare": ["compare", "--data", "digits", "--recipes", "simclr", "--seeds", "1", *SMALL,
                "--output", "named/comparison"],
    "mine": ["mine", "--anchors", "named/x.npz", "--positives", "named/pairs.tsv",
             "-o", "named/t.csv", "--k", "2"],
    "train": ["train", "--data", "digits", *SMALL, "--runs", "named", "--name", "new"],
    "resume": ["train", "--resume", "named/digits"],
    "embed": ["embed", "named/digits", "-o", "named/e.npz"],
    "evaluate": ["evaluate", "named/digits"],
    "export": ["export", "named/digits", "-o", "named/e.safetensors"],
    "export onnx": ["export", "named/digits", "--format", "onnx", "-o", "named/e.onnx"],
    "neighbors": ["neighbors", "named/digits", "--query", "named/q.png", "-o", "named/n.html"],
    "duplicates": ["duplicates", "named/digits", "-o", "named/d.html"],
    "cluster": ["cluster", "named/digits", "-o", "named/c.html"],
    "explore": ["explore", "named/x.npz", "-o", "named/x.html"],
    "classify": ["classify", "named/x.npz", "--labels", "named/labels.csv", "-o", "named/p.csv"],
    "init": ["train", "--data", "digits", "--init", "named/digits", *SMALL, "--runs", "named",
             "--name", "begun"],
    "study": ["study", "named/study.yaml"],
    "reproduce": ["reproduce", "mix", "--scale", "smoke", "--dry_run", "--output", "named/mix"],
    "recipes": ["recipes"],
    "doctor": ["doctor"],
}  # fmt: skip


def traced(words: list[str], folder: Path, place: Path) -> tuple[int, str, list[str]]:
    """A program's exit code, what it said, and what it did that nothing named."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"
    } | {"UNREMIX_ENGINE": "eager", "XDG_CACHE_HOME": str(place / "cache"), "HOME": str(place)}
    done = subprocess.run(
        ["strace", "-f", "-qq", "-s", "400", "-e", "trace=open,openat,execve,connect",
         "-o", str(place / "trace"), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    found = []
    for line in (place / "trace").read_text(errors="replace").splitlines():
        opened, started = OPENED.search(line), STARTED.search(line)
        if opened is not None:
            path = Path(os.path.normpath(folder / opened[1]))
            inside = path.is_relative_to(folder) and path != folder
            if inside and not path.is_relative_to(folder / "named"):
                found.append(f"opened {path.name}")
        elif started is not None:
            program = Path(started[1])
            python = program.resolve() == Path(sys.executable).resolve()
            if not python and program.name not in TOOLS:
                found.append(f"started {program}")
        elif CONNECTED.search(line):
            found.append(f"connected: {line[:200]}")
    return done.returncode, done.stdout + done.stderr, found


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import secrets", "opened secrets.py"),
        ("open('matplotlibrc').read()", "opened matplotlibrc"),
        ("import subprocess; subprocess.run(['true'])", "started"),
        ("import socket; socket.socket().connect_ex(('127.0.0.1', 9))", "connected"),
    ],
)
def test_what_is_looked_for_is_found(code: str, what: str, strange: Path, tmp_path: Path) -> None:
    here = [] if "secrets" in code else ["-I"]  # isolated, Python looks into no current folder
    _, _, found = traced([sys.executable, *here, "-c", code], strange, tmp_path)
    assert any(one.startswith(what) for one in found), found


def test_every_command_is_tried() -> None:
    assert {words[0] for words in COMMANDS.values()} == set(SUMMARIES)


@pytest.mark.parametrize("command", COMMANDS if TORTURE else ["report", "train"])
def test_nothing_is_obeyed_that_was_not_named(command: str, strange: Path, tmp_path: Path) -> None:
    code, said, found = traced([sys.executable, MAIN, *COMMANDS[command]], strange, tmp_path)
    assert code == 0, said  # else nothing was tried
    assert found == []
