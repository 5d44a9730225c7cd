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

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from measuring import conclude, read_options, show_race, show_shares
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from unremix.domains import find_domain
from unremix.domains.base import make_batch
from unremix.domains.options import TrainConfig
from unremix.domains.sentence.corpus import EncodedCorpus, SentenceBatch
from unremix.domains.sentence.dataset import load_sentences
from unremix.domains.sentence.options import SentenceOptions
from unremix.frameworks.base import Batch
from unremix.training.building import build_model
from unremix.training.optimizers import make_optimizer

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

    def __init__(self, recipe: str, config: TrainConfig, data: EncodedCorpus) -> None:
        self.domain, self.data = find_domain("sentence"), data
        self.config = TrainConfig(
            data=config.data,
            recipe=recipe,
            batch_size=config.batch_size,
            sentence=config.sentence,
            runs=config.runs,
        )
        self.shape = self.domain.shape(data, self.config)
        self.model = build_model(self.config, self.shape)
        self.optimizer = make_optimizer(
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
            yield make_batch(
                self.domain,
                fetched,
                indices,
                self.model,
                self.config,
                self.shape,
                step=step,
                epoch=0,
            )

    def lose(self) -> list[Tensor]:
        """Both encoders and the loss, which makes its own gradient."""
        return [self.model(batch) for batch in self.batches()]

    def learn(self) -> None:
        """Forward, backward and a step of the optimizer, batch by batch."""
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
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
data, runs = sys.argv[1:]
config = TrainConfig(data=data, recipe="quickthought", runs=runs)
domain = find_domain("sentence")
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
    options = read_options(__doc__ or "", rounds=5, data="books")
    source = "pydocs" if options.quick else options.data
    sizes = SentenceOptions(words=32, units=32) if options.quick else SentenceOptions()
    part = 2_000 if options.quick else 40_000  # sentences of the smaller text
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=source, recipe="quickthought", sentence=sizes, runs=folder, limit=4 * part,
            progress=False,
        )  # fmt: skip
        try:
            data = find_domain("sentence").load(config)
        except (ValueError, OSError) as error:
            message = f"{error}\nName its folder by UNREMIX_DATA, or use --quick."
            console.print(message, markup=False)
            return 1
        epochs = {recipe: Steps(recipe, config, data) for recipe in RECIPES}
        found = options.race(epochs)
        ours = epochs["quickthought-unremix"]
        stages = options.race({"reading": ours.read, "encoders and loss": ours.lose})
        texts = [Path(folder) / "one.txt", Path(folder) / "ten.txt"]
        for text, times in zip(texts, (1, TIMES), strict=True):
            write_text(source, text, part, times)
        memory = [peak_memory(text, Path(folder) / "memory") for text in texts]
    sentences = ours.steps * config.batch_size
    ratios = show_race(
        found,
        f"Training on {data.name}, batches of {config.batch_size} sentences",
        reference="quickthought",
        column="sentences/s",
        amount=lambda seconds: f"{sentences / seconds:,.0f}",
        faster=True,
    )
    seconds = {name: median(times) for name, times in stages.seconds.items()}
    whole = median(found.seconds["quickthought-unremix"])
    seconds["backward and optimizer"] = max(0.0, whole - sum(seconds.values()))
    shares = show_shares(seconds, whole)
    table = Table("sentences", "peak memory, MB")
    for count, size in memory:
        table.add_row(f"{count:,}", f"{size / 1e6:.0f}")
    console.print(table)
    growth = memory[1][1] / memory[0][1]
    targets = {
        f"UnReMix at least {LEAST_OF_QUICKTHOUGHT} × Quick-Thought's speed": ratios[
            "quickthought-unremix"
        ].medians
        >= LEAST_OF_QUICKTHOUGHT,
        f"reading at most {MOST_READING:.0%}": shares["reading"] <= MOST_READING,
        f"{TIMES} × the text at most {MOST_MEMORY} × the memory": growth <= MOST_MEMORY,
    }
    settings = {
        "data": data.name,
        "sentences": len(data),
        "batch": config.batch_size,
        "words": sizes.words,
        "units": sizes.units,
    }
    further = {
        "shares": shares,
        "memory": [{"sentences": count, "peak_bytes": size} for count, size in memory],
    }
    return conclude("sentence", options, found, ratios, targets, settings=settings, further=further)


if __name__ == "__main__":
    sys.exit(main())
