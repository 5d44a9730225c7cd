"""Everything in a row: data, training, evaluation, report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unremix.domains import DOMAINS, find_domain
from unremix.domains.options import TrainConfig
from unremix.evaluation.card import card_table, label_of, measures_of, shown
from unremix.evaluation.verdict import best_encoder, verdict
from unremix.files.archives import name_some
from unremix.files.atomic_files import open_file, write_text
from unremix.files.fingerprint import feed
from unremix.frameworks.recipe import RECIPES
from unremix.hub import SharedRun
from unremix.report import write_report
from unremix.training.drift import WithoutLabels
from unremix.training.export import Format, export_encoder, write_encoder
from unremix.training.preparation import locked, prepare
from unremix.training.progress import Progress
from unremix.training.ready import nearest
from unremix.training.run import Run
from unremix.training.stopping import StopRequest, handling
from unremix.training.threads import limited_threads

NAMED = 50  # files left out that are named in warnings.txt


class OpenRun(SharedRun):
    """A run to embed with, search, export and look at; ``train`` and ``unremix.load`` give it.

    The arguments are those of :class:`unremix.Run`.
    """

    def __dir__(self) -> list[str]:
        return [
            "config", "domain", "embed", "encoder", "evaluation", "export", "from_pretrained",
            "metrics", "neighbors", "path", "push_to_hub", "report", "save_pretrained", "shape",
            "warnings",
        ]  # fmt: skip

    def __repr__(self) -> str:
        config, card = self.config, self.evaluation or {}
        results = card.get("results") or {}
        measures = measures_of(results.get(card.get("kept", "trained"), {}))
        first = [f"; {label_of(name)} {shown(one)}" for name, one in measures.items()][:1]
        encoder = self.domain.describe(config, self.shape)
        return (
            f"<run {self.path}: {config.composed_name} on {config.data}, {encoder}{''.join(first)}>"
        )

    def _repr_html_(self) -> str:
        card = self.evaluation or {}
        parts = [f"<p><code>{escape(repr(self))}</code></p>"]
        if card.get("results"):
            headings, rows = card_table(card)
            lines = [("th", headings), *(("td", row) for row in rows)]
            cells = ("".join(f"<{tag}>{escape(c)}</{tag}>" for c in line) for tag, line in lines)
            parts.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>")
        return "".join([*parts, *(f"<p>{escape(one)}</p>" for one in card.get("verdict") or ())])

    def neighbors(
        self, items: Any, k: int = 10, *, data: str | Sequence[str] | None = None
    ) -> list[list[tuple[str, float]]]:
        """What in the run's data, or in others, is most similar to items.

        Args:
            items: As for :meth:`embed`.
            k: Neighbors of each item.
            data: Where to look, a path; by default the run's own data.

        Returns:
            For each item, names in the data and cosine similarities, the most similar first.
        """
        return nearest(self, items, data, k)

    def export(self, format: Format = "safetensors", output: str | Path | None = None) -> Path:
        """Write the encoder for use elsewhere; the same as ``unremix export``."""
        where = None if output is None else str(output)
        return export_encoder(str(self.path), format, where, trust=bool(self.config.code)).path

    def report(self) -> Path:
        """Write report.html again, and give its path."""
        return write_report(self)


def written(data: Any, classes: Sequence[Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose data are a path: data in memory are written below the folder of the runs.

    Args:
        data: A path, or items: arrays, PIL images, texts, or graphs of torch_geometric.
        classes: The class of each item, for measures.
        options: All other options.

    Raises:
        ValueError: For items of no known kind, or classes that do not fit.
    """
    if data is None or isinstance(data, str | os.PathLike):
        if classes is not None:
            raise ValueError(f"expected classes with data in memory, got {data!r}; leave them out")
        return {**options, "data": data}
    recipe = RECIPES.get(str(options.get("recipe")))
    named = options.get("domain") or (recipe and recipe.domain)
    kinds = [find_domain(named)] if named else [one for one in DOMAINS.values() if one.holds(data)]
    domain = kinds[0] if kinds else None
    if domain is None or domain.write is None or not len(data):
        raise ValueError(
            "expected a path, an array of images or rows, or a list of PIL images, texts or graphs "
            f"of torch_geometric as data, got {type(data).__name__}; name the kind with domain="
        )
    if classes is not None and len(classes) != len(data):
        raise ValueError(f"expected a class for each of {len(data)} items, got {len(classes)}")
    folder = Path(options.get("runs") or "runs") / ".data"
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        made = domain.write(data, classes, Path(temporary) / domain.unit)
        digest = sha256()
        for file in [made] if made.is_file() else sorted(made.rglob("*.png")):
            digest.update(str(file.relative_to(temporary)).encode())
            with open_file(file) as stream:
                feed(digest, stream)
        kept = folder / f"{domain.unit}-{digest.hexdigest()[:8]}{made.suffix}"
        if not kept.exists():
            made.rename(kept)
    return {**options, "data": str(kept), "domain": domain.name}


def train(
    config: TrainConfig | None = None,
    *,
    data: Any = None,
    classes: Sequence[Any] | None = None,
    **options: Any,
) -> OpenRun:
    """Train an encoder on unlabeled data; the same as ``unremix train``.

    Args:
        config: All options in one; or
        data: A path, a URL, the name of embedded data; or items in memory: an array of images or
            rows, or a list of PIL images, texts or graphs of torch_geometric. Items are written to
            ``.data`` below the folder of the runs, so that the run can be resumed and measured.
        classes: The class of each item in memory, for measures; the training does not see them.
        options: Those of :class:`unremix.domains.options.TrainConfig`, by name; a section such as
            ``loss`` may be a dictionary.

    Returns:
        The run: its folder, configuration, metrics, encoder and evaluation.

    Raises:
        ValueError: For options or data that no run can be made of.
        TypeError: For options that do not exist.

    Example:
        ``run = unremix.train(data="photos", epochs=200); run.embed(["photo.jpg"])``
    """
    if config is None:
        config = TrainConfig(**written(data, classes, options))
    elif options or data is not None or classes is not None:
        raise TypeError("expected either a config or options by name, got both; leave one out")
    prepared = prepare(config)
    from unremix.training.loop import fit  # seconds of imports, once all is well

    config, data, run = prepared.config, prepared.data, prepared.run
    progress, stop = Progress(config), StopRequest()
    say = _noting(progress, run)
    try:
        with handling(stop), limited_threads(config.threads):
            observe = run.domain.observe(data, run.shape, config, say)
            watch = None if run.started() is None else WithoutLabels(run, data)
            first = fit(prepared, watch.observing(observe) if watch else observe, progress, stop)
            stop.at_once = True
            if stop.asked:
                raise KeyboardInterrupt
            if first:
                skipped = getattr(data, "skipped", ())
                if skipped:
                    run.warn(f"{len(skipped):,} left out: {name_some(skipped, NAMED)}")
                progress.say("measuring the encoder, trained and untrained")
                with progress:
                    card = run.domain.evaluate(run, data, progress=progress.measured)
                    if watch is not None:
                        _compare_with_start(run, card, watch, choose=True)
                card["verdict"] = verdict(card)
                run.card = card
                progress.say("writing the report")
                _try_report(run, card, data, say)
                # Last: a run that has it is finished.
                write_text(run.path / "evaluation.json", json.dumps(card, indent=2))
    except KeyboardInterrupt as stopped:
        prepared.discard()
        raise KeyboardInterrupt(str(run.path) if run.path.exists() else "") from stopped
    except BaseException:
        prepared.discard()
        raise
    finally:
        prepared.unlock()
    run.forget_files()
    return OpenRun.of(run)


def _compare_with_start(
    run: Run, card: dict[str, Any], watch: WithoutLabels, *, choose: bool = False
) -> None:
    """Add to the card how far a run's encoders have moved from its start, and which one it keeps.

    With ``choose``, decide which one, and write it.
    """
    encoders, asked = run.encoders(), run.config.keep
    card["unlabeled"] = {kind: watch.measure(one) for kind, one in encoders.items()}
    usual = "trained" if asked == "last" else "blend"
    chosen = best_encoder(card["results"]) if choose and asked == "best" else usual
    card["kept"], card["chosen"] = chosen if choose else run.kept, asked == "best"
    if choose:
        write_encoder(run, encoders[chosen], chosen)


def _noting(progress: Progress, run: Run) -> Callable[[str], None]:
    """Shows a message, and keeps it in the run's folder."""

    def say(message: str) -> None:
        progress.say(message)
        run.warn(message)

    return say


def _try_report(run: Run, card: dict[str, Any], data: Any, say: Callable[[str], None]) -> None:
    """Write the page; what was measured is kept even if there can be none."""
    try:
        write_report(run, card, data)
    except OSError:  # the disk: the run continues once it is well
        raise
    except Exception as error:
        say(
            f"report.html was not written ({type(error).__name__}: {error}); 'unremix report "
            f"{run.path}' tries again"
        )


def evaluate(folder: str | Path, data: str | None = None, *, trust: bool = False) -> dict[str, Any]:
    """Measure a run again, on its own data or on others, and write the evaluation card.

    Args:
        folder: The run.
        data: Other data; their card stands beside the run's own.
        trust: Whether code may run that the run's folder names.

    Returns:
        The card.

    Raises:
        BlockingIOError: If the run is being trained.

    Example:
        ``unremix.evaluate("runs/photos", data="other")["results"]["trained"]["knn"]``
    """
    run = Run(folder, trust=trust)
    with locked(run.path):
        run.trained = run.encoder()  # read once; report its problems before reading data
        found = run.domain.load_for(run, data)
        with Progress(run.config) as progress:
            card = run.domain.evaluate(run, found, own=data is None, progress=progress.measured)
            if run.started() is not None:
                _compare_with_start(run, card, WithoutLabels(run, found))
        name = "evaluation.json" if data is None else f"evaluation-{found.name}.json"
        card["verdict"] = verdict(card)
        if data is None:
            run.card = card
            _try_report(run, card, found, _noting(progress, run))
        write_text(run.path / name, json.dumps(card, indent=2))
    return card
