"""Train small runs of the three kinds of data and write their pages into a folder.

python examples/gallery.py docs/gallery
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import unremix
from unremix.report import write_comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the pages")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each run")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[str, Any]] = {
        "images": {"recipe": "unremix-simclr", "probe_epochs": 20},
        "graphs": {
            "recipe": "infograph-unremix",
            "limit": 600,
            "graph": {"repeats": 1, "folds": 5},
        },
        "sentences": {
            "recipe": "quickthought-unremix",
            "limit": 4000,
            "sentence": {"senteval": "none", "units": 128, "words": 128},
        },
        "simclr": {"recipe": "simclr", "probe_epochs": 20},
        "hcl": {"recipe": "hcl", "probe_epochs": 20},
    }
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name, options in runs.items():
            run = unremix.train(
                runs=folder, name=name, epochs=arguments.epochs, progress=False, **options
            )
            made[name] = run.path
            if name in ("images", "graphs", "sentences"):
                shutil.copy(run.path / "report.html", arguments.folder / f"{name}.html")
                print(f"wrote {arguments.folder / name}.html")
        compared = [made[name] for name in ("simclr", "hcl", "images")]
        print(f"wrote {write_comparison(compared, arguments.folder / 'comparison.html')}")


if __name__ == "__main__":
    main()
