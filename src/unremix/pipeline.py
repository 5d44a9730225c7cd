"""Everything in a row: data, training, evaluation, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unremix.domains.options import TrainConfig
from unremix.evaluation.verdict import best_encoder, verdict
from unremix.files.archives import name_some
from unremix.files.atomic_files import write_text
from unremix.hub import SharedRun
from unremix.report import write_report
from unremix.training.drift import WithoutLabels
from unremix.training.preparation import locked, prepare
from unremix.training.progress import Progress
from unremix.training.run import Run
from unremix.training.stopping import StopRequest, handling
from unremix.training.threads import limited_threads

NAMED = 50  # files left out that are named in warnings.txt


def train(config: TrainConfig | None = None, **options: Any) -> Run:
    """Train an encoder on unlabeled data; the same as ``unremix train``.

    Args:
        config: All options in one; or
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
        config = TrainConfig(**options)
    elif options:
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
                        _choose(run, card, watch)
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
    return SharedRun.of(run)


def _choose(run: Run, card: dict[str, Any], watch: WithoutLabels) -> None:
    """Decide which encoder a run keeps that started from one, and add to the card what it is."""
    from unremix.training.loop import keep

    encoders, asked = run.encoders(), run.config.keep
    card["unlabeled"] = {kind: watch.measure(one) for kind, one in encoders.items()}
    usual = "trained" if asked == "last" else "blend"
    card["kept"] = best_encoder(card["results"]) if asked == "best" else usual
    keep(run, encoders[card["kept"]], card["kept"])


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
    """
    run = Run(folder, trust=trust)
    with locked(run.path):
        run.trained = run.encoder()  # read once; report its problems before reading data
        found = run.domain.load_for(run, data)
        with Progress(run.config) as progress:
            card = run.domain.evaluate(run, found, own=data is None, progress=progress.measured)
            if run.started() is not None:
                watch = WithoutLabels(run, found)
                card["unlabeled"] = {
                    kind: watch.measure(one) for kind, one in run.encoders().items()
                }
                card["kept"] = run.kept
        name = "evaluation.json" if data is None else f"evaluation-{found.name}.json"
        card["verdict"] = verdict(card)
        if data is None:
            run.card = card
            _try_report(run, card, found, _noting(progress, run))
        write_text(run.path / name, json.dumps(card, indent=2))
    return card
