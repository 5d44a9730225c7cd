"""report.html: what the negatives of a run are, and whether training worked, in one file."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unremix.console.printing import rows_to_csv
from unremix.console.quantities import counted, duration
from unremix.console.values import read_yaml
from unremix.core.scores import PAPER_COMPONENTS
from unremix.domains import DOMAINS
from unremix.domains.options import SELECTIVE, config_to_yaml, flat_options
from unremix.evaluation.accuracy import wilson_interval
from unremix.evaluation.card import FEATURES, card_table, label_of, measures_of, spread_of
from unremix.files.atomic_files import refuse_link, write_text
from unremix.files.remote import is_url
from unremix.report.charts import Chart, Line, Row, mean_line
from unremix.report.rendering import as_json, asset, numbers, render
from unremix.report.storage import NAME, Stored
from unremix.report.words import headline, in_python, next_commands
from unremix.training.run import Run, reading

MOST_CLASSES = 24  # listed; of more, only the worst and the most frequent confusions
LISTED = 12


def _measure_chart(rows: Sequence[Row], card: Mapping[str, Any] | None) -> Chart:
    """kNN over the epochs, with its error and what there is without training."""
    line = mean_line("kNN", [rows], "knn")
    results = (card or {}).get("results") or {}
    # Some cards measure kNN on other items than the curve does, or not at all, and give both.
    measured = (card or {}).get("monitored") or {
        kind: measures_of(result).get("knn") for kind, result in results.items()
    }
    count = (measured.get("trained") or {}).get("count")
    if count:
        line = replace(line, band=[wilson_interval(value, count) for _, value in line.points])
    levels = {
        FEATURES.get(kind, kind): measure["value"]
        for kind, measure in measured.items()
        if kind != "trained" and measure is not None
    }
    error = f" The band is the 95 % error over {count:,} items." if count else ""
    above = " above the lines of what there is without training" if levels else ""
    good = f"Good: it rises{above}.{error}"
    return Chart("kNN accuracy, %", [line], levels, True, good)


def training_charts(rows: Sequence[Row], card: Mapping[str, Any] | None) -> dict[str, Chart]:
    """The charts of a run by name, each with a line that says what is good."""
    mix = [replace(mean_line(name, [rows], f"mix_{name}"), look=name) for name in PAPER_COMPONENTS]

    def one(column: str, title: str, good: str, *, from_zero: bool = False) -> Chart:
        return Chart(title, [mean_line(title, [rows], column)], good=good, from_zero=from_zero)

    charts = {
        "loss": one("loss", "Loss", "It should fall, then level off."),
        "knn": _measure_chart(rows, card),
        "mix": Chart(
            "Mix λ", mix, good="A share near 0 means that score is not used.",
            from_zero=True,
        ),
        "rank": one(
            "effective_rank", "Effective rank", "Dimensions in use. Near 1 is a collapse; more "
            "is not better by itself: it may fall while classes form.", from_zero=True,
        ),
        "spread": one(
            "spread", "Spread", "Near 0 all embeddings are the same.", from_zero=True
        ),
        "geometry": Chart(
            "Alignment and uniformity",
            [mean_line(name, [rows], name) for name in ("alignment", "uniformity")],
            good="Low alignment: views of one item agree. Low uniformity: items lie apart.",
        ),
        "negatives": one(
            "effective_negatives", "Effective negatives", "Below 3, single samples decide.",
            from_zero=True,
        ),
        "probe": _probe_chart(card),
    }  # fmt: skip
    return {name: chart for name, chart in charts.items() if chart.drawn}


def _probe_chart(card: Mapping[str, Any] | None) -> Chart:
    results = (card or {}).get("results") or {}
    lines = [
        Line(FEATURES.get(kind, kind), list(enumerate(result["linear"]["curve"], start=1)))
        for kind, result in results.items()
        if "curve" in result.get("linear", {})
    ]
    good = "Good: the trained encoder ends above the others."
    return Chart("Linear probe, %", lines, percent=True, good=good, unit="epoch of the probe")


def page_data(stored: Stored) -> dict[str, Any]:
    """The data that a page's scripts read."""
    about, arrays = dict(stored.about), stored.arrays
    data = about | {
        **shown_batch(arrays),
        "positions": numbers(arrays["positions"], "f4"),
        "neighbors": numbers(arrays["neighbors"], "u4"),
        "cosines": numbers(arrays["cosines"], "f4"),
    }
    data["atlases"] = {
        name: atlas | {"data": base64.b64encode(arrays[f"atlas_{name}"].tobytes()).decode()}
        for name, atlas in about.get("atlases", {}).items()
    }
    return data


def shown_batch(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of the negatives explorer; see :func:`unremix.report.collect.batch_arrays`."""
    scores = arrays["scores"]
    return {
        "batch": arrays["batch"].tolist(),
        "scores": {name: numbers(scores[k], "f4") for k, name in enumerate(PAPER_COMPONENTS)},
        "negatives": numbers(arrays["negatives"], "u1"),
        "suspects": numbers(arrays["suspects"], "u1"),
    }


def class_table(stored: Stored) -> dict[str, Any] | None:
    """Accuracy per class and confusions, as the template shows them; None without labels.

    Of more than 24 classes, those with the lowest accuracy are listed, and no matrix.
    """
    labels, classes = stored.about["labels"], stored.about["classes"]
    if labels is None:
        return None
    counts = Counter(zip(labels, stored.arrays["predicted"].tolist(), strict=True))
    sizes = Counter(labels)
    used = sorted(sizes)
    names = {label: classes[label] if classes else f"class {label}" for label in used}
    right = {label: counts[label, label] / sizes[label] for label in used}
    order = sorted(used, key=lambda label: right[label])
    confused = sorted(
        ((count, a, b) for (a, b), count in counts.items() if a != b),
        key=lambda one: (-one[0], right[one[1]], one[1:]),
    )
    few = len(used) <= MOST_CLASSES
    return {
        "k": stored.about["voting"],
        "rows": [(names[c], sizes[c], right[c]) for c in order[:MOST_CLASSES]],
        "more": len(order[MOST_CLASSES:]),
        "names": [names[label] for label in used],
        "matrix": [[counts[a, b] for b in used] for a in used] if few else None,
        "confused": [
            {"is": names[a], "taken": names[b], "count": count, "share": count / sizes[a]}
            for count, a, b in confused[:LISTED]
        ],
    }


def card_csv(card: Mapping[str, Any]) -> str:
    """The measures of an evaluation card, each with its error as numbers of their own."""
    ends = ("value", "low", "high", "standard_error", "std_over_folds", "count")
    rows = (
        [FEATURES.get(kind, kind), label_of(path), *map(measure.get, ends)]
        for kind, result in card["results"].items()
        for path, measure in measures_of(result).items()
    )
    return rows_to_csv([["features", "measure", *ends], *rows])


def _collected(run: Run, data: Any) -> tuple[Stored | None, str | None]:
    """What the page shows of the items, or why it cannot show them."""
    from unremix.report.collect import collect

    stored = Stored.read(run.path) if data is None else None
    last = int((run.metrics() or [{"step": 0}])[-1].get("step", 0))
    if stored is not None and stored.about.get("step") == last:
        return stored, None
    if data is None and is_url(run.config.data) and not run.trust:
        return None, f"its data are at {run.config.data}; add --trust to have them requested"
    try:
        stored = collect(run, run.domain.load_for(run, None) if data is None else data)
    except Exception as error:  # of any library: the rest of the page is worth having
        return None, f"{type(error).__name__}: {error}"
    stored.write(run.path)
    return stored, None


def write_report(
    run_folder: str | Path | Run, card: dict[str, Any] | None = None, data: Any = None
) -> Path:
    """Write report.html, its data and the figures of a run.

    The data behind the page are in ``report.npz``. They are collected if the run has none of its
    present step: its encoder embeds its data again, which takes seconds to minutes.

    Args:
        run_folder: The run, or its folder.
        card: Its evaluation card; by default that in its folder, if there is one.
        data: Its data, if already read, to be collected again; None to use what there is.

    Returns:
        The page.
    """
    run = run_folder if isinstance(run_folder, Run) else Run(run_folder)
    rows, card = run.metrics(), run.evaluation if card is None else card
    stored, missing = _collected(run, data)
    about = None
    if stored is not None:
        about = stored.about | {"batch_size": len(stored.arrays["batch"])}
    with reading(run.path / NAME, "remove it, and 'unremix report' makes it again"):
        shown = None if stored is None else as_json(page_data(stored))
        classes = None if stored is None else class_table(stored)
    with reading(run.path / "evaluation.json", "'unremix evaluate' writes it again"):
        charts = training_charts(rows, card)
        said, tone = headline(card, rows[-1] if rows else {}, about)
        measured = card if card and card["results"] else None
        page = render(
            "run.html",
            "run",
            name=run.path.name,
            headline=said,
            tone=tone,
            facts=_facts(run, card, about),
            verdict=[one for one in (card or {}).get("verdict", []) if one != said],
            warnings=run.warnings,
            about=about,
            exploring=False,
            missing=missing,
            data=shown,
            classes=classes,
            charts=charts.values(),
            card=card,
            table=measured and card_table(measured),
            card_csv=measured and card_csv(measured),
            spread=None if card is None else spread_of(card),
            protocol=_protocol(card),
            config=_options(run),
            commands=next_commands(run, card).items(),
            in_python=in_python(run),
            path=str(run.path),
        )
    refuse_link(run.path / "figures")
    style = f" xmlns='http://www.w3.org/2000/svg'><style>{asset('styles', 'figure.css')}</style>"
    for name, chart in charts.items():
        write_text(run.path / "figures" / f"{name}.svg", str(chart.svg).replace(">", style, 1))
    path = run.path / "report.html"
    write_text(path, page)
    return path


def _facts(
    run: Run, card: Mapping[str, Any] | None, about: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    config, said = run.config, about or {}
    labels, trained = said.get("labels"), said.get("trained", {})
    data = str((card or {}).get("data") or said.get("data") or config.data)
    encoder, recipe = run.domain.describe(config, run.shape), config.composed_name
    if about is not None:
        classes = "no labels" if labels is None else f"{len(about['classes'] or {*labels})} classes"
        data += f", {about['total']:,} {about['unit']}, {classes}"
        encoder += f", {about['parameters']:,} parameters"
        recipe += f", τ {about['weighting']['temperature']:.3g}"
    rows = run.metrics()
    epochs = counted(int(rows[-1]["epoch"]) if rows else 0, "epoch")
    facts = {
        "Data": data,
        "Encoder": encoder,
        "Recipe": f"{recipe}, seed {config.seed}",
        "Training": f"{epochs}, batches of {config.batch_size}",
        # What a run of an earlier version did not record is left out.
        "Device": trained.get("device"),
        "Time": duration(said["seconds"]) if said.get("seconds") else None,
        "Finished": (trained.get("date") or "").replace("T", " ").replace("+00:00", " UTC"),
        "Version": f"unremix {trained['version']}" if trained.get("version") else None,
    }
    return [(term, text) for term, text in facts.items() if text]


def _options(run: Run) -> list[tuple[str, str]]:
    """The options of the run's kind of data that have a value."""
    options = flat_options(read_yaml(config_to_yaml(run.config)))
    unused = {name for name in SELECTIVE if name not in run.domain.uses}
    shown = ((name, value) for name, value in options.items() if name not in unused)
    return [(name, _as_text(value)) for name, value in shown if value not in (None, "", [])]


def _as_text(value: object) -> str:
    """A value as a table shows it: lists without brackets."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _protocol(card: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """How a card was measured: counts, then the protocol."""
    counted = (*(f"_{domain.unit}" for domain in DOMAINS.values()), "_files", "_features")
    rows = [
        (name.replace("_", " "), str(value))
        for name, value in (card or {}).items()
        if (name.endswith(counted) or name == "classes") and value is not None
    ]
    protocol = (card or {}).get("protocol") or {}
    how = flat_options({label_of(name): one for name, one in protocol.items()})
    named = {name.replace(".", ": ").replace("_", " "): value for name, value in how.items()}
    return rows + [(name, _as_text(value)) for name, value in named.items()]
