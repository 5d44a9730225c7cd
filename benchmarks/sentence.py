"""Time an epoch of Quick-Thought with UnReMix's weights and HCL's; the share of reading; memory.

    python benchmarks/sentence.py [--quick] [--data books] [--rounds 5] [--threads 2] [--cpu-time]
        [--strict]

How to read the tables. The recipes take turns on the same batches of 400 sentences: reading, both
GRUs (300-dimensional), loss, gradient, clipping, Adam. Only ratios mean something elsewhere; they
are of medians, with those of minima beside them. The second table splits UnReMix's step; "reading"
is taking the batch from the numbered text, which training does one step ahead in a thread of its
own. The third shows the peak memory of processes that number a text, build the vocabulary and read
a number of batches: one has ten times the text of the other. All numbers go to
benchmarks/results/sentence.json. The books are looked for in the folder that UNREMIX_DATA names;
--quick takes the embedded text and a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from timing import Clock, race, ratio
from torch import Tensor, nn

from unremix.config import SentenceOptions, TrainConfig
from unremix.data.sentence import SentenceBatch, load_sentences
from unremix.domains.sentence import SentenceCorpus, SentenceDomain
from unremix.files import write_whole
from unremix.frameworks.base import Batch
from unremix.optimisers import make_optimiser

RESULTS = Path(__file__).parent / "results"
RECIPES = ("quickthought", "quickthought-hcl", "quickthought-unremix")
STEPS = 4  # batches that a turn trains on
LEAST_OF_QUICKTHOUGHT = 0.9
MOST_READING = 0.10
TIMES = 10  # as much text
MOST_MEMORY = 1.05


class Steps:
    """A few training steps of one recipe.

    Args:
        recipe: Which.
        config: The options.
        data: The numbered text.
    """

    def __init__(self, recipe: str, config: TrainConfig, data: SentenceCorpus) -> None:
        self.domain, self.data = SentenceDomain(), data
        self.config = TrainConfig(
            data=config.data,
            recipe=recipe,
            batch_size=config.batch_size,
            sentence=config.sentence,
            runs=config.runs,
        )
        self.shape = self.domain.shape(data, self.config)
        self.model = self.domain.build(self.config, self.shape)
        self.optimizer = make_optimiser(
            self.model,
            self.model.undecayed(),
            name="adam",
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
        )
        self.steps = min(STEPS, self.domain.steps(data, self.config))
        self.indices = [self.domain.indices(data, self.config, s) for s in range(self.steps)]
        self.fetched: list[SentenceBatch] = []
        self.read()

    def read(self) -> None:
        """Take the batches from the files."""
        self.fetched = [self.domain.fetch(self.data, indices) for indices in self.indices]

    def batches(self) -> Iterator[Batch]:
        """What the model is given."""
        for step, (fetched, indices) in enumerate(zip(self.fetched, self.indices, strict=True)):
            yield self.domain.batch(
                fetched, indices, self.model, self.config, self.shape, step=step, epoch=0
            )

    def lose(self) -> list[Tensor]:
        """Both encoders and the loss, which makes its own gradient."""
        return [self.model(batch) for batch in self.batches()]

    def learn(self) -> None:
        """Forward, backward and a step of the optimiser, batch by batch."""
        assert self.config.clip is not None
        for batch in self.batches():
            self.optimizer.zero_grad()
            self.model(batch).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()

    def __call__(self) -> None:
        """All of it."""
        self.read()
        self.learn()


PEAK = """
import sys
from pathlib import Path
from unremix.config import TrainConfig
from unremix.domains.sentence import SentenceDomain
data, runs = sys.argv[1:]
config = TrainConfig(data=data, recipe="quickthought", runs=runs)
domain = SentenceDomain()
corpus = domain.load(config)
for step in range(50):
    domain.fetch(corpus, domain.indices(corpus, config, step % domain.steps(corpus, config)))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(len(corpus), 1024 * int(status["VmHWM"].split()[0]))
"""  # not ru_maxrss, which begins with what the process that started this one had


def peak_memory(text: Path, runs: Path) -> tuple[int, int]:
    """Sentences of a text, and the peak memory in bytes of numbering and reading them."""
    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(text), str(runs)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    sentences, size = found.stdout.split()
    return int(sentences), int(size)


def write_text(data: str, path: Path, sentences: int, times: int) -> None:
    """The first sentences of a text, one a line, so many times over."""
    source = load_sentences(data, limit=sentences)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(times):
            last = 0
            for sentence in source:
                file.write("\n" if sentence.document != last else "")
                file.write(sentence.text + "\n")
                last = sentence.document
            file.write("\n")


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, for a smoke test")
    parser.add_argument("--data", default="books")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time on one thread")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    arguments = parser.parse_args()
    clock: Clock = "cpu" if arguments.cpu_time else "wall"
    torch.set_num_threads(1 if arguments.cpu_time else arguments.threads)
    rounds = 2 if arguments.quick else arguments.rounds
    patience = 0.0 if arguments.quick else 60.0  # for other processes to be quiet, in seconds
    source = "pydocs" if arguments.quick else arguments.data
    options = SentenceOptions(words=32, units=32) if arguments.quick else SentenceOptions()
    part = 2_000 if arguments.quick else 40_000  # sentences of the smaller text
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=source, recipe="quickthought", sentence=options, runs=folder, limit=4 * part,
            progress=False,
        )  # fmt: skip
        try:
            data = SentenceDomain().load(config)
        except (ValueError, OSError) as error:
            console.print(
                f"{error}\nName its folder by UNREMIX_DATA, or use --quick.", markup=False
            )
            return 1
        epochs = {recipe: Steps(recipe, config, data) for recipe in RECIPES}
        found = race(dict(epochs), rounds, clock=clock, patience=patience)
        sentences = epochs[RECIPES[0]].steps * config.batch_size
        ours = epochs["quickthought-unremix"]
        stages = race(
            {"reading": ours.read, "encoders and loss": ours.lose},
            rounds,
            clock=clock,
            patience=patience,
        )
        texts = [Path(folder) / "one.txt", Path(folder) / "ten.txt"]
        for text, times in zip(texts, (1, TIMES), strict=True):
            write_text(source, text, part, times)
        memory = [peak_memory(text, Path(folder) / "memory") for text in texts]
    table = Table(title=f"Training on {data.name}, batches of {config.batch_size} sentences")
    for column in ("", "sentences/s", "× Quick-Thought, medians", "minima"):
        table.add_column(column, justify="left" if not column else "right")
    ratios = {}
    for recipe in RECIPES:
        # Of speeds: the inverse of that of times.
        against = ratio(found.seconds["quickthought"], found.seconds[recipe])
        ratios[recipe] = against
        table.add_row(
            recipe,
            f"{sentences / median(found.seconds[recipe]):,.0f}",
            f"{against.medians:.3f}",
            f"{against.minima:.3f}",
        )
    console.print(table)
    seconds = {name: median(times) for name, times in stages.seconds.items()}
    whole = median(found.seconds["quickthought-unremix"])
    seconds["backward and optimiser"] = max(0.0, whole - sum(seconds.values()))
    shares = {name: value / whole for name, value in seconds.items()}
    table = Table("stage of UnReMix's step", "share")
    for name, share in shares.items():
        table.add_row(name, f"{share:.1%}")
    console.print(table)
    table = Table("sentences", "peak memory, MB")
    for count, size in memory:
        table.add_row(f"{count:,}", f"{size / 1e6:.0f}")
    console.print(table)
    growth = memory[1][1] / memory[0][1]
    held = {
        f"UnReMix at least {LEAST_OF_QUICKTHOUGHT} × Quick-Thought's speed": ratios[
            "quickthought-unremix"
        ].medians
        >= LEAST_OF_QUICKTHOUGHT,
        f"reading at most {MOST_READING:.0%}": shares["reading"] <= MOST_READING,
        f"{TIMES} × the text at most {MOST_MEMORY} × the memory": growth <= MOST_MEMORY,
    }
    for target, holds in held.items():
        console.print(f"{'✓' if holds else '✗'} {target}")
    console.print(f"{found.disturbed} calls were disturbed by other processes")
    report = {
        "machine": {"torch": torch.__version__, "python": platform.python_version(),
                    "threads": torch.get_num_threads()},
        "settings": {"rounds": rounds, "data": data.name, "sentences": len(data),
                     "batch": config.batch_size, "words": options.words, "units": options.units,
                     "clock": clock},
        "seconds": found.seconds,
        "ratios": {name: asdict(value) for name, value in ratios.items()},
        "shares": shares,
        "memory": [{"sentences": count, "peak_bytes": size} for count, size in memory],
        "targets": held,
        "disturbed": found.disturbed,
    }  # fmt: skip
    suffix = ("-quick" if arguments.quick else "") + ("-cpu-time" if arguments.cpu_time else "")
    text_report = json.dumps(report, indent=1)
    write_whole(RESULTS / f"sentence{suffix}.json", lambda file: file.write_text(text_report))
    return int(arguments.strict and not all(held.values()))


if __name__ == "__main__":
    sys.exit(main())
