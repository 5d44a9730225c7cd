"""An encoder that is ready to embed, with its preprocessing: without a run, or in place of one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from unremix.core.checks import check_count
from unremix.domains import Domain, find_domain
from unremix.domains.base import Features
from unremix.domains.options import TrainConfig
from unremix.mining.embeddings import unit_rows
from unremix.mining.index import make_index
from unremix.training.checkpoints import check_embeddings

if TYPE_CHECKING:
    from unremix.training.run import Run


@dataclass(eq=False, repr=False)
class ReadyEncoder:
    """An encoder with its preprocessing; ``unremix.encoder`` and ``unremix.load_exported`` make it.

    Args:
        name: What it was named by.
        config: Options that build it; its kind of data.
        shape: How its inputs are prepared.
        network: From prepared inputs to features, in eval mode.
        description: Its preprocessing in a few words.
        metadata: What an exported file says: size, crop, mean, std, layer, version and so on.

    Example:
        ``unremix.encoder("timm:resnet18").embed(["a.png", "b.png"])`` gives an array (2, 512).
    """

    name: str
    config: TrainConfig
    shape: Any
    network: nn.Module
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: Path = field(init=False)  # its name, which may be a file's

    def __post_init__(self) -> None:
        self.path = Path(self.name)

    @property
    def domain(self) -> Domain:
        """What kind of data it embeds."""
        return find_domain(self.config.domain)

    @property
    def features(self) -> int:
        """Numbers of an embedding."""
        return int(self.network.features)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return (
            f"<encoder {self.name}: {self.domain.unit} to {self.features} numbers; "
            f"{self.description}>"
        )

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    def encoder(self, *, trained: bool = True) -> nn.Module:
        """The network, as a run gives its own."""
        return self.network

    def encoders(self) -> dict[str, nn.Module]:
        """The network alone."""
        return {"trained": self.network}

    def metrics(self) -> list[dict[str, float]]:
        """Nothing, since it was not trained here."""
        return []

    def warn(self, message: str) -> None:
        """Show a warning."""
        warnings.warn(message, stacklevel=2)

    def embed(self, items: Any, *, normalize: bool = False) -> Tensor:
        """Embeddings of items, shape (n, F), as :meth:`unremix.Run.embed` gives them.

        Args:
            items: What its kind of data takes; see :meth:`unremix.Run.embed`.
            normalize: Whether to scale each embedding to length 1.

        Raises:
            ValueError: For items the encoder cannot take.
        """
        return check_embeddings(self.domain.embed(self, items), normalize=normalize)

    def embed_data(self, data: str | Sequence[str]) -> Features:
        """Embeddings of whole data with names and, where known, labels.

        Args:
            data: A path, a URL or the name of embedded data; several paths where the kind of data
                takes them.
        """
        return self.domain.features(self, self.domain.load_for(self, source_of(self.domain, data)))

    def neighbors(
        self, items: Any, data: str | Sequence[str], k: int = 10
    ) -> list[list[tuple[str, float]]]:
        """What in some data is most similar to items; see :func:`nearest`."""
        return nearest(self, items, data, k)


def nearest(
    model: Run | ReadyEncoder, items: Any, data: str | Sequence[str] | None, k: int
) -> list[list[tuple[str, float]]]:
    """What in some data is most similar to items.

    Args:
        model: Embeds both.
        items: What its kind of data takes; see :meth:`unremix.Run.embed`.
        data: Where to look, a path; None for a run's own data.
        k: Neighbors of each item.

    Returns:
        For each item, names in the data and cosine similarities, the most similar first.

    Raises:
        ValueError: For items the encoder cannot take.
    """
    check_count("k", k, 1, "ask for one neighbor or more")
    domain = model.domain
    found = domain.features(model, domain.load_for(model, source_of(domain, data)))
    queries = unit_rows(model.embed(items).numpy())
    corpus = unit_rows(found.embeddings.numpy())
    best = make_index(corpus).search(queries, min(k, len(corpus)))
    return [
        [(found.names[row], float(cosine)) for row, cosine in zip(rows, cosines, strict=True)]
        for rows, cosines in zip(best.rows, best.similarity, strict=True)
    ]


def source_of(domain: Domain, data: str | Sequence[str] | None) -> Any:
    """What the domain loads: a run's own data (None), one path, or several if it can read such.

    Raises:
        ValueError: For several paths of a kind of data that has one.
    """
    if data is None:
        return None
    paths = [data] if isinstance(data, str) else list(data)
    if domain.source is not None:
        return domain.source(paths)
    if len(paths) > 1:
        raise ValueError(
            f"expected one path for {domain.unit}, got {len(paths)}; put them into one file"
        )
    return paths[0]
