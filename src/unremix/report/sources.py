"""Data with their embeddings: of a run, of a ready encoder, or from a file of embeddings."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unremix.console.suggestions import version_of
from unremix.domains.base import Domain, Features, find_domain
from unremix.domains.extensions import file_of
from unremix.domains.options import TrainConfig
from unremix.files.atomic_files import refuse_link, write_arrays
from unremix.files.locate import candidates
from unremix.files.npz import read_arrays
from unremix.files.seals import is_sealed, write_sealed
from unremix.mining.embeddings import ENDINGS, Floats, unit_rows
from unremix.mining.files import Collection
from unremix.training.checkpoints import check_embeddings, digest_of
from unremix.training.run import Run, reading
from unremix.user_cache import user_cache

if TYPE_CHECKING:
    from unremix.training.ready import ReadyEncoder


@dataclass(eq=False)
class Source:
    """Data with their embeddings, which are computed or read when they are first asked for.

    Args:
        title: What embedded what, in a few words.
        by: What embedded them.
        of: What the data are called.
        unit: What is counted, in the plural.
        folder: Where pages are written if nothing else is said.
        embed: Gives the embeddings.
        model: What embedded them; None for a file.
        data: The data as the model's kind of data has them; None for a file without data.
        place: The path or name of the data, if they were given.
        kept: Where indices of the embeddings are kept.
    """

    title: str
    by: str
    of: str
    unit: str
    folder: Path
    embed: Callable[[], Features]
    model: Run | ReadyEncoder | None = None
    domain: Domain | None = None
    data: Any = None
    place: str | None = None
    kept: Path | None = None

    @cached_property
    def features(self) -> Features:
        """The embeddings with names and, where known, labels."""
        return self.embed()

    @cached_property
    def units(self) -> Floats:
        """The embeddings, scaled to length 1, shape (n, F)."""
        return unit_rows(self.features.embeddings.numpy())

    @property
    def names(self) -> list[str]:
        """What each of n items is called."""
        return self.features.names

    @cached_property
    def labels(self) -> list[str] | None:
        """The name of each item's class, where known."""
        labels, classes = self.features.labels, self.features.classes
        if labels is None:
            return None
        return [str(one) if classes is None else classes[one] for one in labels.tolist()]

    @cached_property
    def rows(self) -> dict[str, int]:
        """The first row of each name."""
        return {name: row for row, name in reversed(list(enumerate(self.names)))}

    def row_of(self, query: str) -> int:
        """The row of an item by its name, or by its path below the data's folder; -1 for none."""
        names = [query]
        if self.domain is not None and self.place is not None:
            names = self.domain.names_of(query, candidates(self.place))
        return next((self.rows[name] for name in names if name in self.rows), -1)

    def thumbnails(self, rows: Sequence[int]) -> dict[int, Tensor]:
        """Images, uint8 (C, S, S), of rows of the embeddings; none if they are shown by name."""
        if self.domain is None or self.data is None or not rows:
            return {}
        if self.model is not None:
            return self.domain.thumbnails(self.data, rows)
        places = {row: self._in_data.get(self.names[row], -1) for row in rows}
        found = self.domain.thumbnails(self.data, [one for one in places.values() if one >= 0])
        return {row: found[place] for row, place in places.items() if place in found}

    @cached_property
    def _in_data(self) -> dict[str, int]:
        """The row of each name in the data, of embeddings that come from a file."""
        parts = [part for part in (self.data.train, self.data.test) if part is not None]
        names = [name for part in parts for name in part.names]
        return {name: row for row, name in reversed(list(enumerate(names)))}


def open_source(
    place: str | None,
    *,
    encoder: str | None = None,
    data: str | None = None,
    domain: str | None = None,
    trust: bool = False,
) -> Source:
    """Data with embeddings, by what was typed.

    Args:
        place: A run's folder, a file of embeddings, or data that ``encoder`` embeds.
        encoder: A ready encoder by name.
        data: Data in place of the run's own; of a file of embeddings, those that its names name.
        domain: What kind of data it is, if neither the run nor the encoder says so.
        trust: Whether code may run that the run's folder names.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it is not clear what embeds what.
    """
    if encoder is not None:
        if (place is None) == (data is None):
            got = "none" if place is None else f"{place} and --data {data}"
            raise ValueError(f"expected the data to embed, got {got}; name one folder or file")
        from unremix.training.finding import encoder as find_encoder

        return _of_model(find_encoder(encoder, domain=domain, trust=trust), place or data)
    if place is None:
        raise ValueError(
            "expected a run's folder, a file of embeddings, or data and --encoder NAME, got none; "
            "name one of them"
        )
    if (Path(place) / "config.yaml").is_file():
        return _of_model(Run(place, trust=trust), data)
    if Path(place).suffix in ENDINGS:
        return _of_file(place, data, domain)
    raise ValueError(
        f"expected a run's folder or a file of embeddings, got {place!r}; for data, add --encoder "
        "NAME, which says what embeds them: 'unremix doctor' names some"
    )


def _of_model(model: Run | ReadyEncoder, place: str | None) -> Source:
    """The data that a run or an encoder embeds; the embeddings are kept."""
    read = model.domain.source
    data = model.domain.load_for(model, place if place is None or read is None else read([place]))
    source = model.config.data if place is None else place
    if isinstance(model, Run):
        folder, by, pages = model.path, f"{model.path.name}: {model.config.recipe}", model.path
    else:
        folder, by, pages = user_cache(), model.name, Path()
    folder = folder / "embeddings"

    def embed() -> Features:
        kept = folder / f"{_digest(model, source, data)}.npz"
        refuse_link(kept.parent)
        if not is_sealed(kept):
            write_arrays(kept, _arrays(model.domain.features(model, data)), write=write_sealed)
        with reading(kept, "remove it"):
            return _features(read_arrays(kept))

    return Source(
        title=f"{by} on {source}",
        by=by,
        of=data.name,
        unit=model.domain.unit,
        folder=pages,
        embed=embed,
        model=model,
        domain=model.domain,
        data=data,
        place=source,
        kept=folder,
    )


def _arrays(features: Features) -> dict[str, Any]:
    kept = features._replace(embeddings=check_embeddings(features.embeddings))
    return {name: np.asarray(one) for name, one in kept._asdict().items() if one is not None}


def _features(arrays: dict[str, Any]) -> Features:
    """What :func:`_arrays` wrote, as the seal of the file says."""
    labels, classes = arrays.get("labels"), arrays.get("classes")
    return Features(
        torch.from_numpy(arrays["embeddings"]),
        arrays["names"].tolist(),
        None if labels is None else torch.from_numpy(labels),
        None if classes is None else classes.tolist(),
    )


def _digest(model: Run | ReadyEncoder, source: str, data: Any) -> str:
    """Of the encoder and the data, and of the names, sizes and times of their files."""
    facts = (source, model.config.limit, model.domain.size(data), model.domain.fingerprint(data))
    made_by = [version_of(name) for name in ("unremix", *model.domain.prefixes)]
    digest = hashlib.sha256(repr((facts, made_by)).encode())
    files = []
    if isinstance(model, Run):
        weights = (model.checkpoint, model.previous, model.path / "encoder.safetensors")
        files = [path for path in weights if path.is_file()]  # one of them is enough
    else:
        digest.update(repr((model.name, model.shape)).encode())
        digest.update(digest_of(model.encoder().state_dict()).encode())
        files = [path for path in (model.path,) if path.is_file()]
    # The same weights in other code are another encoder.
    code = (file_of(name.partition(":")[0]) for name in model.config.code)
    files += [path for path in code if path is not None]
    for where in candidates(source):
        files += sorted(path for path in (where, *where.rglob("*")) if path.is_file())
    for path in files:
        stat = os.stat(path)
        digest.update(os.fsencode(path) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _of_file(path: str, place: str | None, domain: str | None) -> Source:
    """Embeddings in a file; ``place`` names the data that its names are those of."""
    found = Collection.read(path)
    labels = found.labels if found.class_names is None else found.class_names
    classes, numbers = (None, None) if labels is None else np.unique(labels, return_inverse=True)
    features = Features(
        torch.from_numpy(np.array(found.embeddings, dtype=np.float32)),
        list(found.shown) if place is None else found.names or list(found.shown),
        None if numbers is None else torch.from_numpy(numbers),
        None if classes is None else [str(one) for one in classes],
    )
    check_embeddings(features.embeddings)
    kind, data = None, None
    if place is not None:
        config = TrainConfig(data=place, domain=domain, progress=False)
        kind = find_domain(config.domain)
        data = kind.load(config)
    return Source(
        title=path,
        by=path,
        of=Path(path).name,
        unit="items" if kind is None else kind.unit,
        folder=Path(path).parent,
        embed=lambda: features,
        domain=kind,
        data=data,
        place=place,
    )
