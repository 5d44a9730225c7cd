"""report.html: configuration, curves and the evaluation card of a run, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unremix.data.atomic_files import write_text
from unremix.evaluation.card import card_table, spread_of
from unremix.report.figures import curve, probe_curve
from unremix.training.config import OF_DOMAIN, config_to_yaml
from unremix.training.run import Run, reading

CURVES: tuple[tuple[str, dict[str, str], str, bool], ...] = (
    ("loss", {"loss": "loss"}, "Loss", False),
    ("knn", {"knn": "kNN"}, "kNN accuracy", True),
    (
        "mix",
        {
            "mix_uncertainty": "uncertainty",
            "mix_similarity": "similarity",
            "mix_representativeness": "representativeness",
        },
        "Mix λ",
        False,
    ),
    ("rank", {"effective_rank": "effective rank"}, "Effective rank of the embeddings", False),
    ("spread", {"spread": "spread"}, "Spread of the embeddings (1: even)", False),
    (
        "geometry",
        {"alignment": "alignment", "uniformity": "uniformity"},
        "Alignment and uniformity (lower is better)",
        False,
    ),
    (
        "negatives",
        {"effective_negatives": "effective negatives"},
        "Effective number of negatives",
        False,
    ),
)


def write_report(run_folder: str | Path, card: dict[str, Any] | None = None) -> Path:
    """Write report.html and the figures of a run.

    Args:
        run_folder: The run.
        card: Its evaluation card; by default that in its folder, if there is one.

    Returns:
        The page.
    """
    run = Run(run_folder)
    figures, page = _draw(run, run.evaluation if card is None else card)
    for name, svg in figures.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    path = run.path / "report.html"
    write_text(path, page)
    return path


def _draw(run: Run, card: dict[str, Any] | None) -> tuple[dict[str, str], str]:
    """The figures as SVG, and the page."""
    rows = run.metrics()
    figures: dict[str, str] = {}
    for name, columns, title, percent in CURVES:
        drawn = curve(rows, columns, title=title, percent=percent)
        if drawn is not None:
            figures[name] = drawn
    with reading(run.path / "evaluation.json", "'unremix evaluate' writes it again"):
        drawn = None if card is None else probe_curve(card)
        if drawn is not None:
            figures["probe"] = drawn
        return figures, _page(run, rows, card, figures)


def _page(
    run: Run, rows: list[dict[str, float]], card: dict[str, Any] | None, figures: dict[str, str]
) -> str:
    environment = Environment(
        loader=PackageLoader("unremix.report"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("run.html").render(
        name=run.path.name,
        config={
            name: value
            for name, value in yaml.safe_load(config_to_yaml(run.config)).items()
            if value is not None and OF_DOMAIN.get(name, run.config.domain) == run.config.domain
        },
        about=run.domain.describe(run.config, run.shape),
        card=card,
        table=card_table(card) if card is not None and card["results"] else None,
        spread=None if card is None else spread_of(card),
        counts={
            name.replace("_", " "): value
            for name, value in (card or {}).items()
            if name.endswith(("_images", "_graphs", "_sentences", "_files", "_features"))
            or name == "classes"
        },
        last=rows[-1] if rows else None,
        warnings=run.warnings,
        figures={name: Markup(svg) for name, svg in figures.items()},
    )
