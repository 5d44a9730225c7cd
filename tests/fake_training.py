"""Stands in for ``unremix train``: a run folder in no time, with figures made of its name.

Called as ``fake_training.py TEMPLATE --config FILE`` or ``… --resume FOLDER``. TEMPLATE is a real
run's folder. The environment variable FAKE_TRAINING says what goes wrong, as JSON: ``fail`` and
``slow`` list runs, ``linger`` those that do not heed SIGTERM.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
import time
import zlib
from pathlib import Path

import yaml


def value_of(*parts: object) -> float:
    """A number from 0.5 to 1 that depends on the parts alone."""
    return 0.5 + zlib.crc32(repr(parts).encode()) % 1000 / 2000


def main(template: str, option: str, place: str) -> int:
    behavior = json.loads(os.environ.get("FAKE_TRAINING", "{}"))
    if option == "--config":
        config = yaml.safe_load(Path(place).read_text())
        run = Path(config["runs"]) / config["name"]
        if (run / "config.yaml").exists():
            print(f"unremix: {run} exists")
            return 1
        new = run.with_name(f".{run.name}")  # others look into the folder as soon as it is there
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(template, new)
        shutil.copy(place, new / "config.yaml")
        new.rename(run)
        rows: list[dict[str, str]] = []
    else:
        run = Path(place)
        config = yaml.safe_load((run / "config.yaml").read_text())
        with (run / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    name, recipe, seed = config["name"], config["recipe"], config["seed"]
    threads, gpu = os.environ["OMP_NUM_THREADS"], os.environ.get("CUDA_VISIBLE_DEVICES")
    print(f"begins at epoch {len(rows)} with {threads} threads, GPU {gpu}", flush=True)
    (run / "process").write_text(str(os.getpid()))
    if name in behavior.get("linger", []):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for epoch in range(len(rows) + 1, config["epochs"] + 1):
        if name in behavior.get("slow", []) and epoch > 1:
            time.sleep(60)
        knn = value_of(recipe, seed, epoch)
        rows.append(
            {"epoch": str(epoch), "step": str(epoch), "loss": f"{3 - knn}", "knn": f"{knn}"}
        )
        with (run / "metrics.new").open("w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        os.replace(run / "metrics.new", run / "metrics.csv")
        if name in behavior.get("fail", []):
            print("one line\n\nunremix: expected a finite loss, got nan")
            return 1
        (run / "checkpoints").mkdir(exist_ok=True)
        (run / "checkpoints" / "last.ckpt").write_text(str(epoch))

    def result(*parts: object) -> dict[str, object]:
        knn, top1 = ({"value": value_of(*parts, kind), "count": 100} for kind in ("knn", "top1"))
        return {"features": 8, "knn": knn, "linear": {"top1": top1, "top5": None, "curve": [0.1]}}

    card = {
        "data": "digits",
        "protocol": {"knn": "five neighbors", "standard_error": "none"},
        "results": {"trained": result(recipe, seed), "untrained": result(seed)},
    }
    (run / "card.new").write_text(json.dumps(card))
    os.replace(run / "card.new", run / "evaluation.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
