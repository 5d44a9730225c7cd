"""Features of whole data sets, written to a file that needs nothing of ours to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unremix.data.atomic_files import write_whole
from unremix.training.run import Run


def embed_to_file(run_folder: str, data: str | None, path: Path) -> tuple[int, int]:
    """Write the features of a whole data set, training samples first.

    Args:
        run_folder: The run.
        data: The data; None for the run's own.
        path: ``.npz`` or ``.parquet``: ``embeddings`` (n, F), ``names`` (n,) and, where known,
            ``labels`` (n,) and their ``class_names`` (n,).

    Returns:
        n and F.

    Raises:
        ValueError: For another kind of file.
    """
    if path.suffix not in (".npz", ".parquet"):
        raise ValueError(f"expected a file that ends in .npz or .parquet, received {str(path)!r}")
    run = Run(run_folder)
    domain = run.domain
    found = domain.features(run, domain.load_for(run, data))
    embeddings = found.embeddings.numpy()
    arrays = {"embeddings": embeddings, "names": np.array(found.names)}
    if found.labels is not None:
        arrays["labels"] = found.labels.numpy()
        if found.classes is not None:
            arrays["class_names"] = np.array(found.classes)[arrays["labels"]]
    if path.suffix == ".npz":

        def write(file: Path) -> None:
            with file.open("wb") as stream:  # a stream, or NumPy would append a suffix
                np.savez(stream, allow_pickle=False, **arrays)

        write_whole(path, write)
    else:
        _write_parquet(path, arrays)
    count, width = embeddings.shape
    return count, width


def _write_parquet(path: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "expected pyarrow for a .parquet file, but it is not installed; "
            "pip install pyarrow, or write .npz"
        ) from error
    embeddings = arrays["embeddings"]
    values = pyarrow.array(embeddings.reshape(-1))
    columns = {
        "embeddings": pyarrow.FixedSizeListArray.from_arrays(values, embeddings.shape[1]),
        **{name: pyarrow.array(a) for name, a in arrays.items() if name != "embeddings"},
    }
    table = pyarrow.table(columns)
    write_whole(path, lambda file: pyarrow.parquet.write_table(table, file))
