"""Embeddings of whole data sets, written to a file that needs nothing of ours to read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unremix.console.printing import guarded
from unremix.console.suggestions import needed_for
from unremix.domains.base import Features
from unremix.files.atomic_files import write_arrays, write_whole
from unremix.training.checkpoints import check_embeddings
from unremix.training.ready import ReadyEncoder, source_of
from unremix.training.run import Run


def embed_to_file(
    model: Run | ReadyEncoder,
    data: str | Sequence[str] | None,
    path: Path,
    *,
    normalize: bool = False,
) -> tuple[int, int]:
    """Write the embeddings of a whole data set, training samples first.

    Args:
        model: What embeds.
        data: The data; None for a run's own. For pictures also several files, or a ``.txt`` file
            with a path on each line.
        path: ``.npz`` or ``.parquet``: ``embeddings`` (n, F), ``names`` (n,) and, where known,
            ``labels`` (n,) and their ``class_names`` (n,). ``.csv``: the same, with one column per
            dimension, ``embedding_0`` and so on.
        normalize: Whether to scale each embedding to length 1.

    Returns:
        n and F.

    Raises:
        ValueError: For another kind of file, or data the model cannot read.
    """
    writers = {".npz": write_arrays, ".parquet": _write_parquet, ".csv": _write_csv}
    if path.suffix not in writers:
        raise ValueError(f"expected a file that ends in {', '.join(writers)}, got {str(path)!r}")
    if isinstance(model, Run):
        model.trained = model.encoder()  # report its problems before the data are read
    loaded = model.domain.load_for(model, source_of(model.domain, data))
    arrays = arrays_of(model.domain.features(model, loaded), normalize=normalize)
    writers[path.suffix](path, arrays)
    count, width = arrays["embeddings"].shape
    return count, width


def arrays_of(found: Features, *, normalize: bool) -> dict[str, Any]:
    """What a file of embeddings holds, by name; see :func:`embed_to_file`.

    Raises:
        ValueError: If an embedding is not finite.
    """
    embeddings = check_embeddings(found.embeddings, normalize=normalize)
    arrays: dict[str, Any] = {"embeddings": embeddings.numpy(), "names": _texts(found.names)}
    if found.labels is not None:
        arrays["labels"] = found.labels.numpy()
        if found.classes is not None:
            arrays["class_names"] = _texts(found.classes)[arrays["labels"]]
    return arrays


def _texts(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.str_]]:
    r"""Names that every reader takes, shape (n,): what is no UTF-8 in them becomes ``\udcff``."""
    texts = [name.encode("utf-8", "backslashreplace").decode() for name in names]
    return np.array(texts, dtype=np.str_)


def _write_csv(path: Path, arrays: dict[str, Any]) -> None:
    embeddings = arrays["embeddings"]
    others = [name for name in arrays if name != "embeddings"]

    def write(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
            writer = csv.writer(stream)
            writer.writerow([*others, *(f"embedding_{i}" for i in range(embeddings.shape[1]))])
            for row, values in enumerate(embeddings):
                # Nine digits give every float32 back exactly.
                numbers = (f"{value:.9g}" for value in values.tolist())
                writer.writerow([*(guarded(arrays[name][row]) for name in others), *numbers])

    write_whole(path, write)


def _write_parquet(path: Path, arrays: dict[str, Any]) -> None:
    table = parquet_table(arrays)
    import pyarrow.parquet

    write_whole(
        path, lambda file: pyarrow.parquet.write_table(table, file, write_page_checksum=True)
    )


def parquet_table(arrays: dict[str, Any]) -> Any:
    """Arrays of :func:`arrays_of` as a table of pyarrow.

    Raises:
        ImportError: If pyarrow is not installed.
    """
    with needed_for("a .parquet file", "use another kind of file"):
        import pyarrow
    embeddings = arrays["embeddings"]
    values = pyarrow.array(embeddings.reshape(-1))
    columns = {
        "embeddings": pyarrow.FixedSizeListArray.from_arrays(values, embeddings.shape[1]),
        **{name: pyarrow.array(a) for name, a in arrays.items() if name != "embeddings"},
    }
    return pyarrow.table(columns)
