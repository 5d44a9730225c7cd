"""What each command does; each imports what it needs, so that the others answer at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from unremix.experiments.plan import CompareConfig
    from unremix.training.config import TrainConfig


def show_results(card: dict[str, Any], where: str) -> None:
    """The table at the end of a run, and where everything is."""
    from rich.console import Console
    from rich.table import Table

    from unremix.evaluation.card import card_table, spread_of

    console = Console()
    if card["results"] is None:
        figures = ", ".join(f"{name} {value:.2f}" for name, value in card["health"].items())
        note = card["note"]
        console.print(f"{note[0].upper()}{note[1:]}. {figures}", highlight=False)
    else:
        headings, rows = card_table(card)
        table = Table()
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        title = f"{card['recipe']} on {card['data']}, {card['epoch']} "
        title += f"epoch{'s' * (card['epoch'] != 1)}, seed {card['seed']}"
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        console.print(table)
        console.print(spread_of(card), highlight=False, markup=False)
    for sentence in card.get("verdict", ()):
        console.print(sentence, highlight=False, markup=False)
    console.print(where, highlight=False)


def train(config: TrainConfig, *, dry: bool = False) -> None:
    """Train an encoder on unlabeled data."""
    if dry:
        from unremix.experiments.dry_run import dry_run

        dry_run(config)
        return
    from unremix import pipeline

    run = pipeline.train(config)
    if run.evaluation is None:  # another process writes it
        return
    show_results(run.evaluation, f"Everything is in {run.path}/ (open report.html first)")
    lines = (
        "Next:",
        f"unremix embed {run.path} --data {run.config.data} -o features.npz",
        f"unremix export {run.path}",
        f"unremix train --resume {run.path} --epochs {2 * run.config.epochs or 100}",
    )
    print("\n  ".join(lines))


def compare(
    config: CompareConfig, training: TrainConfig, command: str, *, dry: bool = False
) -> int:
    """Train several recipes with several seeds under the same options, and compare them."""
    if dry:
        from unremix.experiments.dry_run import dry_comparison
        from unremix.experiments.plan import make_plan

        dry_comparison(make_plan(config, training), config.jobs)
        return 0
    from unremix.experiments.compare import compare as run

    return 1 if run(config, training, command=command).failed else 0


# Not named like unremix.evaluate, which jsonargparse would import, and Lightning with it.
def evaluate_run(run: str, data: str | None = None) -> None:
    """Measure a run's encoder again, on its own data or on others.

    Args:
        run: The run's folder.
        data: Other data to measure on; by default the run's own.
    """
    from unremix import pipeline

    card = pipeline.evaluate(run, data)
    where = f"Everything is in {Path(run)}/ (open report.html first)"
    if data is not None:
        where = f"The card is in {Path(run)}/evaluation-{card['data']}.json"
    show_results(card, where)


def embed(
    run: str,
    data: list[str] | None = None,
    output: str | None = None,
    layer: Literal["backbone", "head"] = "backbone",
    normalize: bool = False,
) -> None:
    """Write the embeddings of a data set or of some files.

    Args:
        run: The run's folder.
        data: The data, by default the run's own; several picture files, or a .txt file of their
            paths.
        output: An .npz, .parquet or .csv file, by default embeddings.npz in the run's folder.
        layer: The encoder's output (backbone), or the projection head's behind it (head).
        normalize: Scale each embedding to length 1.
    """
    from unremix.training.embedding import embed_to_file
    from unremix.training.run import Run

    path = Path(run) / "embeddings.npz" if output is None else Path(output)
    count, width = embed_to_file(run, data, path, layer=layer, normalize=normalize)
    print(f"Wrote {count} embeddings of size {width} to {path}")
    config = Run(run).config
    if data is None and config.limit is not None:
        print(
            f"The run was limited by --limit {config.limit}; --data {config.data} embeds everything"
        )


def export(
    run: str,
    format: Literal["safetensors", "torchvision", "onnx"] = "safetensors",
    output: str | None = None,
) -> None:
    """Write a run's encoder for use elsewhere, with its preprocessing.

    Args:
        run: The run's folder.
        format: safetensors (our names), torchvision (a state dict for its ResNets) or onnx.
        output: The file; by default in the run's folder.
    """
    from unremix.training.export import export_encoder

    written = export_encoder(run, format, output)
    print(f"Wrote {written.path}, and beside it {', '.join(path.name for path in written.beside)}")
    if written.note is not None:
        print(written.note)


def recipes(recipe: str | None = None) -> None:
    """List the recipes, or show one in full.

    Args:
        recipe: Which; by default all.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from unremix.frameworks.parts import option_fields, section_of, summary_of
    from unremix.recipes import NOTHING, PARTS, RECIPES, find_recipe, options_of
    from unremix.training.settings import shipped

    console = Console(highlight=False, markup=False)
    if recipe is not None:
        chosen = find_recipe(recipe)
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_row("--recipe", chosen.name)
        table.add_row("what it is", chosen.summary)
        table.add_row("domain", chosen.domain)
        table.add_row("in the paper", chosen.paper or "no row of its own")
        table.add_row("--temperature", f"{chosen.temperature:g}")
        for kind, name in chosen.parts.items():
            summary = NOTHING if name == NOTHING else f"{name} ({summary_of(PARTS[kind][name])})"
            table.add_row(f"--{kind}", summary)
        console.print(table)
        table = Table(box=None, pad_edge=False)
        for heading in ("option", "value", "of the", "set by"):
            table.add_column(heading, no_wrap=heading == "option")
        for option in options_of(chosen):
            set_by = "recipe" if option.changed else "default"
            table.add_row(option.option, Text(option.value), option.kind, set_by)
        console.print()
        console.print(table)
        return
    for domain in dict.fromkeys(one.domain for one in RECIPES.values()):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for heading in (f"{domain} recipes", "framework", "mixing", "negatives", "weighting", "τ"):
            table.add_column(heading, no_wrap=True)
        table.add_column("what it is, and what it sets", overflow="fold")
        for one in (one for one in RECIPES.values() if one.domain == domain):
            sets = [f"{o.option} {o.value}" for o in options_of(one) if o.changed]
            text = Text("\n".join([one.summary, *sets]))
            table.add_row(one.name, *one.parts.values(), f"{one.temperature:g}", text)
        console.print(table)
        console.print()
    console.print("One in full, with every option and its place in the paper: unremix recipes hcl")
    console.print("Any part can be exchanged: --recipe moco --weighting unremix --mixing unmix")
    for kind, known in PARTS.items():
        table = Table(box=None, pad_edge=False)
        table.add_column(f"--{kind}", no_wrap=True)
        table.add_column("what it is")
        table.add_column("options")
        for name, part in known.items():
            options = (f"--{section_of(part)}.{option}" for option in option_fields(part))
            table.add_row(name, summary_of(part), ", ".join(options))
        console.print()
        console.print(table)
    table = Table(box=None, pad_edge=False)
    table.add_column("--config", no_wrap=True)
    table.add_column("settings that ship with the package, for every recipe")
    for name, summary in shipped().items():
        table.add_row(name, summary)
    console.print()
    console.print(table)


def report(run: str) -> None:
    """Write a run's report.html again.

    Args:
        run: The run's folder.
    """
    from unremix.report import write_report

    print(f"Wrote {write_report(run)}")


def study(
    file: str,
    output: str | None = None,
    stage: str | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
) -> None:
    """Run many settings with paired seeds, within a budget.

    Args:
        file: The study's YAML file.
        output: Its folder; by default a folder beside the file, named after it.
        stage: Only this stage of it.
        jobs: Runs at a time; by default one per GPU, or one per core.
        dry_run: Only say what is to be run and what it costs.
    """
    from unremix.experiments.study import run_study

    run_study(file, output=output, stage=stage, jobs=jobs, dry_run=dry_run)


def reproduce(
    name: str,
    scale: Literal["smoke", "cpu", "paper"] = "cpu",
    seeds: int | None = None,
    data: tuple[str, ...] | str | None = None,
    output: str | None = None,
    options: dict[str, Any] | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
    command: str | None = None,
) -> int:
    """Make a table or figure of the paper, with the paper's figures beside ours.

    Args:
        name: Which: table1, curves, table2, table3, table5, gradients, table6, sentences, graphs,
            diversity, mix, illustration, gallery, contributions, or all.
        scale: How large: smoke (seconds, on data that come with the package), cpu or paper.
        seeds: Seeds of every row, from 0 on; by default those of the scale.
        data: Data sets in place of the scale's: one, or a list with brackets.
        output: The folder, by default reproductions/SCALE; it goes on where it was.
        options: Options of every run in place of the scale's, such as "{epochs: 5}".
        jobs: Runs at a time; by default one per GPU, or one per core.
        dry_run: Only say what is to be run and what it costs.
        command: What was typed.
    """
    from unremix.experiments.reproduce import reproduce as run

    chosen = (data,) if isinstance(data, str) else data or ()
    return run(
        name, scale=scale, seeds=seeds, data=chosen, output=output, options=options, jobs=jobs,
        dry_run=dry_run, command=command,
    )  # fmt: skip


def doctor() -> None:
    """Say what is installed, what is missing, and the command that installs it."""
    from unremix.cli.doctor import examine

    examine()


COMMANDS: dict[str, Callable[..., None]] = {
    "evaluate": evaluate_run,
    "embed": embed,
    "export": export,
    "recipes": recipes,
    "report": report,
    "study": study,
    "doctor": doctor,
}
SUMMARIES = {
    name: (function.__doc__ or "").partition("\n")[0]
    for name, function in {
        "train": train, "compare": compare, **COMMANDS, "reproduce": reproduce,
    }.items()
}  # fmt: skip
