"""Everything in a row: data, training, evaluation, report."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from unremix.data.atomic_files import write_whole
from unremix.data.splits import name_some
from unremix.data.suggestions import did_you_mean
from unremix.evaluation.by_domain import evaluate_run, make_observer
from unremix.evaluation.verdict import verdict
from unremix.report import write_report
from unremix.training.config import TrainConfig
from unremix.training.preparation import prepare
from unremix.training.progress import Progress
from unremix.training.run import Run, make_config

NAMED = 50  # files left out that are named in warnings.txt


def train(config: TrainConfig | None = None, **options: Any) -> Run:
    """Train an encoder on unlabelled data; the same as ``unremix train``.

    Args:
        config: All options in one; or
        options: Those of :class:`unremix.training.config.TrainConfig`, by name; a section such as
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
        names = [field.name for field in fields(TrainConfig)]
        for name in options:
            if name not in names:
                hint = did_you_mean(name, names)
                raise TypeError(f"expected options of TrainConfig, received {name!r}{hint}")
        config = make_config(options)
    elif options:
        raise TypeError("expected either a config or options by name, received both")
    prepared = prepare(config)
    from unremix.training.loop import fit  # seconds of imports, once all is well

    config, data, run = prepared.config, prepared.data, prepared.run
    progress = Progress(config)

    def say(message: str) -> None:
        progress.say(message)
        run.warn(message)

    observe = make_observer(data, run.shape, config, say)
    if fit(prepared, observe, progress):
        skipped = getattr(data, "skipped", ())
        if skipped:
            run.warn(f"left out ({len(skipped)}): {name_some(skipped, NAMED)}")
        progress.say("measuring the encoder, trained and untrained")
        try:
            with progress:
                card = evaluate_run(run, data, progress=progress.measured)
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt(str(run.path)) from stopped
        _write_card(run, card, "evaluation.json")
        write_report(run.path)
    return run


def evaluate(folder: str | Path, data: str | None = None) -> dict[str, Any]:
    """Measure a run again, on its own data or on others, and write the evaluation card.

    Args:
        folder: The run.
        data: Other data; their card stands beside the run's own.

    Returns:
        The card.
    """
    run = Run(folder)
    found = run.domain.load_for(run, data)
    with Progress(run.config) as progress:
        card = evaluate_run(run, found, own=data is None, progress=progress.measured)
    name = "evaluation.json" if data is None else f"evaluation-{run.domain.name(found)}.json"
    _write_card(run, card, name)
    if data is None:
        write_report(run.path)
    return card


def _write_card(run: Run, card: dict[str, Any], name: str) -> None:
    card["verdict"] = verdict(card)
    text = json.dumps(card, indent=2)
    write_whole(run.path / name, lambda file: file.write_text(text))
