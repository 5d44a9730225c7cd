"""Time data from an S3 server against the disk, and embedding on Ray against one process.

    python benchmarks/cluster.py [--quick] [--rounds 3] [--threads 2] [--cpu-time] [--strict]

How to read the table. 20,000 pictures of 32 pixels lie in 20 WebDataset shards. "disk" reads and
decodes them by their paths; "S3" does so by their URLs, from a server of moto on this machine, with
an empty cache each time. "disk, streamed" and "S3, streamed" read the batches of an epoch as
``unremix train --stream 4`` does, four shards at a time; the shards were looked through before, and
the cache is empty and has room for ten of them. "local" is what ``unremix embed`` does after its
start, on all threads; "Ray" is ``--on ray`` with as many actors of one thread each, without its
start-up: its time is that of listing the shards, and of the parts after the first one, scaled to
all. With --cpu-time, processor time counts instead: of this process for the data, of it and all its
descendants for embedding; that says what the machinery costs, on a machine that others use, too.
The server is a process of its own and does not count. All numbers go to
benchmarks/results/cluster.json. --quick takes 2,000 pictures.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch
from measuring import Options, conclude, read_options, show_race
from PIL import Image
from timing import Race, Ratio, Seconds

import unremix
from unremix.cluster.embedding import embed_on_ray
from unremix.cluster.ray_engine import connect
from unremix.domains.image.dataset import load_images
from unremix.domains.image.reading import find_splits
from unremix.domains.image.stores import StreamedImages
from unremix.domains.sampling import streamed
from unremix.files.remote import file_system
from unremix.training.embedding import embed_to_file

SHARDS, SIZE = 20, 32
BATCH, LANES = 256, 4
LEAST_S3, LEAST_RAY = 0.8, 0.85
PORT = 5555
PATTERN = f"pictures-{{00..{SHARDS - 1}}}.tar"


def write_shards(folder: Path, pictures: int) -> None:
    """Pictures that compress about as photographs of this size do."""
    generator = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"pictures-{shard:02d}.tar", "w") as archive:
            for number in range(pictures // SHARDS):
                rough = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                picture = Image.fromarray(rough).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
                stream = io.BytesIO()
                picture.save(stream, "PNG")
                member = tarfile.TarInfo(f"{number:05d}.png")
                member.size = len(stream.getvalue())
                archive.addfile(member, io.BytesIO(stream.getvalue()))


def start_server(folder: Path) -> subprocess.Popen[bytes]:
    """An S3 server that holds the shards in the bucket ``data``."""
    address = f"http://127.0.0.1:{PORT}"
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    files, _ = file_system("s3://data/x")
    files.mkdir("data")
    for path in sorted(folder.glob("*.tar")):
        files.pipe_file(f"data/{path.name}", path.read_bytes())
    return server


def race_data(options: Options, folder: Path, caches: Path) -> Race:
    """Read all pictures from the disk and from the server, each time with an empty cache."""
    numbers = count()

    def from_s3() -> None:
        os.environ["UNREMIX_CACHE"] = str(caches / str(next(numbers)))
        load_images(f"s3://data/{PATTERN}")

    return options.race({"disk": lambda: load_images(str(folder / PATTERN)), "S3": from_s3})


def race_streams(options: Options, folder: Path, caches: Path) -> Race:
    """Read the batches of an epoch, shard by shard, each time with an empty cache."""
    numbers = count()
    os.environ["UNREMIX_INDEX"] = str(caches / "index")
    shard = max(path.stat().st_size for path in folder.iterdir())

    def listed(data: str) -> StreamedImages:
        images = load_images(data, stream=True).train.images
        assert isinstance(images, StreamedImages)
        return images

    def epoch(found: StreamedImages) -> None:
        images = StreamedImages(found.source, found.names, found.channels, found.size)
        ahead = len(images) // SHARDS * LANES // BATCH
        steps = len(images) // BATCH
        for step in range(steps):
            for number in (step, min(step + ahead, steps - 1)):
                images.expect(streamed(images.counts, BATCH, LANES, 0, number))
            images.batch(streamed(images.counts, BATCH, LANES, 0, step))

    def from_s3() -> None:
        os.environ["UNREMIX_CACHE"] = str(caches / f"streamed-{next(numbers)}")
        epoch(remote)

    local, remote = listed(str(folder / PATTERN)), listed(f"s3://data/{PATTERN}")
    os.environ["UNREMIX_CACHE_BYTES"] = str(10 * shard)
    race = options.race({"disk, streamed": lambda: epoch(local), "S3, streamed": from_s3})
    del os.environ["UNREMIX_CACHE_BYTES"]
    return race


class Family:
    """CPU time of this process and its descendants, as far as it was seen (Linux).

    What a process took counts after its end, too.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], float] = {}  # by number and start

    def __call__(self) -> float:
        parents: dict[int, int] = {}
        found: dict[int, tuple[str, float]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
                seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
                found[int(entry.name)] = (fields[19], seconds)
        family, new = {os.getpid()}, {os.getpid()}
        while new:
            new = {process for process, parent in parents.items() if parent in family} - family
            family |= new
        self.seen |= {(process, found[process][0]): found[process][1] for process in family}
        return sum(self.seen.values())


def race_embedding(options: Options, run: str, data: str, folder: Path) -> Race:
    """Embed all pictures here and on Ray, in turns."""
    clock: Callable[[], float] = Family() if options.clock == "cpu" else time.perf_counter
    rows = 128 if options.quick else 512
    found: Seconds = {"local": [], "Ray": []}
    for number in range(options.rounds):
        start = clock()
        embed_to_file(unremix.load(run), data, folder / f"{number}.parquet")
        found["local"].append(clock() - start)
        start = clock()
        find_splits(data)
        listing = clock() - start
        marks: list[tuple[float, float]] = []
        embed_on_ray(
            run,
            data,
            str(folder / f"ray-{number}"),
            rows=rows,
            advance=lambda share, marks=marks: marks.append((share, clock())),  # type: ignore[misc]
        )
        (first, began), (last, ended) = marks[0], marks[-1]
        found["Ray"].append(listing + (ended - began) / (last - first))
    return Race(found, 0)


def main() -> int:
    options = read_options(__doc__ or "", rounds=3)
    pictures = 2000 if options.quick else 20_000
    warnings.simplefilter("ignore")  # the libraries' own
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shards"
        folder.mkdir()
        write_shards(folder, pictures)
        server = start_server(folder)
        try:
            data = race_data(options, folder, Path(place) / "caches")
            streams = race_streams(options, folder, Path(place) / "caches")
        finally:
            server.kill()
            server.wait()
        run = unremix.train(
            data=str(folder / PATTERN), limit=64, batch_size=16, epochs=0, backbone="resnet18",
            width=16, runs=place, progress=False, accelerator="cpu",
        )  # fmt: skip
        connect()
        embedding = race_embedding(options, str(run.path), str(folder / PATTERN), Path(place))

    def per_second(seconds: float) -> str:
        return f"{pictures / seconds:,.0f}"

    title = f"{pictures:,} pictures of {SIZE} px, {torch.get_num_threads()} threads"
    ratios: dict[str, Ratio] = {}
    races = ((data, "disk"), (streams, "disk, streamed"), (embedding, "local"))
    for race, reference in races:
        ratios |= show_race(
            race, title, reference=reference, column="pictures/s", amount=per_second, faster=True
        )
    targets = {
        f"S3 at least {LEAST_S3} times the disk": ratios["S3"].medians >= LEAST_S3,
        f"S3, streamed, at least {LEAST_S3} times the disk": (
            ratios["S3, streamed"].medians >= LEAST_S3
        ),
        f"Ray at least {LEAST_RAY} times one process": ratios["Ray"].medians >= LEAST_RAY,
    }
    seconds = {name: taken for race, _ in races for name, taken in race.seconds.items()}
    whole = Race(seconds, sum(race.disturbed for race, _ in races))
    return conclude("cluster", options, whole, ratios, targets, settings={"pictures": pictures})


if __name__ == "__main__":
    sys.exit(main())
