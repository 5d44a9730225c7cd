"""What each command does; each imports what it needs, so that the others answer at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from unremix.console.printing import printable
from unremix.console.quantities import counted
from unremix.console.suggestions import Mistyped
from unremix.files.atomic_files import copy_file
from unremix.files.remote import is_url

if TYPE_CHECKING:
    from unremix.domains.options import TrainConfig
    from unremix.experiments.plan import CompareConfig
    from unremix.report.browse import Written
    from unremix.report.sources import Source


# Options that are typed without a value, and that no file can set.
SWITCHES = ("trust", "allow_changed_data", "profile")


def say(text: str) -> None:
    """Print a text that may hold names of files."""
    print(printable(text))


def show_results(card: dict[str, Any], where: str) -> None:
    """The table at the end of a run, and where everything is."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from unremix.evaluation.card import card_table, spread_of
    from unremix.evaluation.health import health_in_words

    console = Console(highlight=False, markup=False)
    if card["results"] is None:
        note = card["note"]
        console.print(f"{note[0].upper()}{note[1:]}.")
        for line in health_in_words(card["health"]):
            console.print(f"  {line}")
    else:
        headings, rows = card_table(card)
        # Five encoders fit into 80 characters without lines between them.
        several = len(headings) > 5
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0) if several else Table()
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        epochs = counted(card["epoch"], "epoch")
        title = f"{card['recipe']} on {card['data']}, {epochs}, seed {card['seed']}"
        console.print(printable(title), soft_wrap=True)
        console.print(table)
        console.print(spread_of(card))
    for sentence in card.get("verdict", ()):
        console.print(sentence)
    console.print(printable(where))


def train(config: TrainConfig, *, dry: bool = False) -> None:
    """Train an encoder on unlabeled data."""
    if dry:
        from unremix.experiments.dry_run import dry_run

        dry_run(config)
        return
    from unremix import pipeline
    from unremix.report.words import next_commands

    run = pipeline.train(config)
    card = run.evaluation
    if card is None:  # the first process writes it
        return
    show_results(card, f"Everything is in {run.path}/ (open report.html first)")
    say("\n  ".join(["Next:", *next_commands(run, card).values()]))


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


def evaluate(run: str, *, data: str | None = None, trust: bool = False) -> None:
    """Measure a run's encoder again, on its own data or on others.

    Args:
        run: The run's folder.
        data: Other data to measure on; by default the run's own.
        trust: Allow code that the run's folder names to run.
    """
    from unremix import pipeline

    card = pipeline.evaluate(run, data, trust=trust)
    where = f"Everything is in {Path(run)}/ (open report.html first)"
    if data is not None:
        where = f"The card is in {Path(run)}/evaluation-{card['data']}.json"
    show_results(card, where)


def embed(
    run: str | None = None,
    *,
    data: list[str] | None = None,
    output: str | None = None,
    encoder: str | None = None,
    domain: str | None = None,
    layer: Literal["backbone", "head"] = "backbone",
    normalize: bool = False,
    on: Literal["local", "ray"] = "local",
    trust: bool = False,
) -> None:
    """Write the embeddings of a data set or of some files.

    Args:
        run: The run's folder; or use --encoder.
        data: The data, by default the run's own; several picture files, or a .txt file of their
            paths.
        output: An .npz, .parquet or .csv file, by default embeddings.npz in the run's folder or,
            for --encoder, here. With --on ray a folder of parquet parts, which may be a URL, by
            default embeddings there.
        encoder: A ready encoder in place of a run: timm:NAME, sentence-transformers:NAME,
            file.py:callable, an exported file.
        domain: What kind of data the encoder is for, if its name does not say so.
        layer: The encoder's output (backbone), or the projection head's behind it (head).
        normalize: Scale each embedding to length 1.
        on: This machine (local), or Ray, where the same command continues what was stopped.
        trust: Allow code that the run's folder names to run.
    """
    import unremix
    from unremix.training.embedding import embed_to_file
    from unremix.training.ready import ReadyEncoder
    from unremix.training.run import Run

    if on == "ray":
        from unremix.cluster.embedding import embed_on_ray
        from unremix.console.progress import showing

        if run is None or encoder is not None:
            got = "none" if run is None else f"--encoder {encoder} as well"
            raise Mistyped(f"expected a run's folder with --on ray, got {got}; leave --on out")
        place = str(Path(run) / "embeddings") if output is None else output
        with showing("embedding") as advance:
            written = embed_on_ray(
                run, data, place, layer=layer, normalize=normalize, trust=trust, advance=advance
            )
        earlier = f", {written.earlier} of them earlier" if written.earlier else ""
        say(
            f"Wrote {counted(written.rows, 'embedding')} of size {written.width} to {place}, in "
            f"{counted(written.parts, 'part')}{earlier}"
        )
        return
    usual = Path(run or "") / "embeddings.npz"
    path = usual if output is None else _on_disk(output, "add --on ray")
    if run is not None and encoder is None:
        model: Run | ReadyEncoder = Run(run, layer=layer, trust=trust)
    elif run is not None or encoder is None:
        got = "neither" if run is None else "both"
        raise Mistyped(f"expected a run's folder or --encoder NAME, got {got}; give one of them")
    elif data is None or layer != "backbone":
        raise ValueError(
            "expected --data and no --layer head with --encoder, which has neither data nor a "
            "projection head; name the data"
        )
    else:
        model = unremix.encoder(encoder, domain=domain, trust=trust)
    count, width = embed_to_file(model, data, path, normalize=normalize)
    say(f"Wrote {counted(count, 'embedding')} of size {width} to {path}")
    if data is None and model.config.limit is not None:
        everything = f"--data {quote(model.config.data)} embeds everything"
        say(f"The run was limited by --limit {model.config.limit}; {everything}")


def _on_disk(output: str, remedy: str) -> Path:
    """The path of a file that is to be written here.

    Raises:
        ValueError: If it is a URL.
    """
    if is_url(output):
        raise ValueError(
            f"expected a file on this machine, got {output!r}; {remedy}, or copy it afterwards"
        )
    return Path(output)


def export(
    run: str,
    *,
    format: Literal["safetensors", "torchvision", "onnx"] = "safetensors",
    output: str | None = None,
    trust: bool = False,
) -> None:
    """Write a run's encoder for use elsewhere, with its preprocessing.

    Args:
        run: The run's folder.
        format: safetensors (our names), torchvision (a state dict for its ResNets) or onnx.
        output: A .safetensors, .pt, .pth or .onnx file, as the format asks; by default
            encoder.safetensors, encoder.torchvision.pt or encoder.onnx in the run's folder.
        trust: Allow code that the run's folder names to run.
    """
    from unremix.training.export import export_encoder

    written = export_encoder(run, format, output, trust=trust)
    say(f"Wrote {written.path}, and beside it {', '.join(path.name for path in written.beside)}")
    if written.note is not None:
        say(written.note)


def mine(
    *,
    anchors: str,
    positives: str,
    corpus: str | None = None,
    k: int = 10,
    output: str | None = None,
    judgements: str | None = None,
    relative_margin: float | None = 0.05,
    absolute_margin: float | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    duplicate_threshold: float = 0.95,
    components: tuple[str, ...] | None = None,
    mix: tuple[float, ...] | None = None,
    posterior_temperature: float = 0.05,
    sampling: Literal["importance", "top", "random"] = "importance",
    pool: int | None = None,
    skip: int = 0,
    index: Literal["exact", "flat", "ivf", "hnsw"] = "exact",
    seed: int = 0,
    on: Literal["local", "ray"] = "local",
) -> None:
    """Mine hard negatives for anchors with known positives.

    Args:
        anchors: Embeddings of the anchors: .npz, .npy, .parquet, .csv or a folder of parquet parts,
            as 'unremix embed' writes them; a path or a URL.
        positives: Lines of anchor and positive, separated by tabs: by name, or by number from 0
            if the embeddings have no names.
        corpus: Embeddings to find negatives in; by default those of the anchors.
        k: Negatives per anchor.
        output: A .parquet, .csv, .tsv or .jsonl file of triplets, by default triplets.csv.
        judgements: Lines of anchor, row and grade that mining does not see, to count false
            negatives with; by default the labels of both files, if they have any.
        relative_margin: The least gap in similarity between positive and negative, as a share of
            the positive's similarity; null for no bound.
        absolute_margin: The same as a difference.
        max_score: The largest similarity of a negative.
        min_score: The smallest similarity of a negative.
        duplicate_threshold: The cosine from which a row is a near-duplicate of a positive.
        components: What is mixed, by default [uncertainty, similarity, representativeness].
        mix: One number per component, by default equal ones.
        posterior_temperature: Of the pseudo-posterior in the uncertainty.
        sampling: By the mix (importance), the most similar (top), or drawn from the pool (random).
        pool: Rows to choose from, by default 10 k and at least 50.
        skip: How many of the most similar rows to pass over.
        index: All rows (exact), or faiss (flat, ivf, hnsw).
        seed: Of --sampling random.
        on: This machine (local), or Ray.
    """
    options = dict(locals())  # as they were given
    files = {name: options.pop(name) for name in ("anchors", "corpus", "positives", "k")}
    for name in ("output", "judgements", "on"):
        del options[name]
    import shutil

    from unremix.console.progress import showing
    from unremix.core.scores import PAPER_COMPONENTS
    from unremix.mining.audit import audit_negatives
    from unremix.mining.files import Collection, check_output, read_pairs, write_triplets
    from unremix.mining.mine import mine_hard_negatives

    path = _on_disk("triplets.csv" if output is None else output, "name a file")
    check_output(path)
    each = None
    if on == "ray":
        from unremix.cluster.mining import mine_on_ray
        from unremix.cluster.ray_engine import connect

        connect()  # report what is missing before the files are read
        each = mine_on_ray
    queries = Collection.read(anchors)
    rows = queries if corpus is None or corpus == anchors else Collection.read(corpus)
    known = read_pairs(positives, queries, rows)
    judged = None if judgements is None else read_pairs(judgements, queries, rows)
    if lacking := sum(not len(rows_of) for rows_of in known):
        say(
            f"{lacking:,} of {len(known):,} anchors have no positive in {positives}, so no margin "
            "protects them from false negatives"
        )
    own = queries.rows_in(rows)
    options["components"] = PAPER_COMPONENTS if components is None else components
    options["mix"] = "fixed" if mix is None else mix
    folder = path.with_name(f"{path.name}.partial")
    how: dict[str, Any] = {"anchor_rows": own, "folder": folder, "each": each, **options}
    how["anchor_texts"] = queries.texts if rows.texts else None
    how["corpus_texts"] = rows.texts
    embedded = queries.embeddings, rows.embeddings
    with showing("mining") as advance:
        mined = mine_hard_negatives(*embedded, known, k, advance=advance, **how)
    seen: dict[str, Any] = {"relevant": judged}
    if judged is None:
        seen = {"anchor_labels": queries.labels, "corpus_labels": rows.labels}
    audit = None
    if all(one is not None for one in seen.values()):
        audit = audit_negatives(mined.indices, *embedded, known, anchor_rows=own, **seen)
    beside = write_triplets(path, mined, queries, rows, known, files | options, audit)
    shutil.rmtree(folder, ignore_errors=True)
    for line in mined.summary():
        print(line)
    if audit is not None:
        print(audit)
    say(f"Wrote {path}, and beside it {beside.name}")


@dataclass(kw_only=True)
class OnEmbeddings:
    """A command about data with embeddings.

    Args:
        source: A run's folder, a file of embeddings, or data for --encoder.
        encoder: A ready encoder in place of a run: timm:NAME, sentence-transformers:NAME,
            file.py:callable, an exported file.
        data: Data in place of the run's own.
        output: An .html page, by default named after the command, in the run's folder or here; the
            table is written beside it as .csv.
        domain: What kind of data it is, if neither the run nor the encoder's name says so.
        trust: Allow code that the run's folder names to run.
    """

    source: str | None = field(default=None, kw_only=False)
    encoder: str | None = None
    data: str | None = None
    output: str | None = None
    domain: str | None = None
    trust: bool = False

    def __call__(self) -> None:
        """Do what is asked."""
        raise NotImplementedError

    def open(self) -> Source:
        """The data with their embeddings."""
        from unremix.report.sources import open_source

        asked = {"encoder": self.encoder, "data": self.data, "domain": self.domain}
        return open_source(self.source, **asked, trust=self.trust)


@dataclass(kw_only=True)
class Neighbors(OnEmbeddings):
    """Show what is most similar to a file, a text or a sample.

    Args:
        query: Picture files, sentences, a .txt file of sentences, or names of samples.
        k: Neighbors of each query.
        index: All rows (exact), or faiss (flat, ivf, hnsw).
    """

    query: list[str]
    k: int = 10
    index: Literal["exact", "flat", "ivf", "hnsw"] = "exact"

    def __call__(self) -> None:
        """Search, and write the page."""
        from unremix.console.progress import showing
        from unremix.core.checks import check_count
        from unremix.report.browse import write_neighbors

        check_count("k", self.k, 1, "ask for one neighbor or more")
        found = self.open()
        with showing("searching") as advance:
            _say(write_neighbors(found, self.query, self.k, self.output, self.index, advance))


@dataclass(kw_only=True)
class Duplicates(OnEmbeddings):
    """Find near-duplicates in the data of a run, or in any that are embedded.

    Args:
        threshold: The cosine from which two samples are near-duplicates; by default one that
            samples of these data hardly reach by chance.
        index: All rows (exact), or faiss (flat, ivf, hnsw).
    """

    threshold: float | None = None
    index: Literal["exact", "flat", "ivf", "hnsw"] = "exact"

    def __call__(self) -> None:
        """Search, and write the page."""
        from unremix.console.progress import showing
        from unremix.report.browse import write_duplicates

        found = self.open()
        with showing("searching") as advance:
            _say(write_duplicates(found, self.threshold, self.output, self.index, advance))


@dataclass(kw_only=True)
class Cluster(OnEmbeddings):
    """Sort the data of a run, or any that are embedded, into clusters.

    Args:
        clusters: How many; by default the square root of half the number of samples.
        seed: Of the start.
    """

    clusters: int | None = None
    seed: int = 0

    def __call__(self) -> None:
        """Sort, and write the page."""
        from unremix.report.browse import write_clusters

        _say(write_clusters(self.open(), self.clusters, self.output, self.seed))


@dataclass(kw_only=True)
class Explore(OnEmbeddings):
    """Look at data without training: a map, search, duplicates, negatives.

    Args:
        data: Data in place of the run's own; with a file of embeddings, the pictures it names.
        output: An .html page, by default explore.html in the run's folder or here.
    """

    def __call__(self) -> None:
        """Write the page."""
        from unremix.report.explore import write_explore

        page, says = write_explore(self.open(), self.output)
        say("\n".join([*says, f"Wrote {page}"]))


@dataclass(kw_only=True)
class Classify(OnEmbeddings):
    """Train a classifier on few labels, say how good it is, and predict the rest.

    Args:
        labels: A .csv file with a name and a label on each line, with or without a heading.
        output: A .csv file, by default predictions.csv in the run's folder or here; a page is
            written beside it as .html.
        seed: Draws the folds.
    """

    labels: str
    seed: int = 0

    def __call__(self) -> None:
        """Predict, and write the table."""
        from unremix.report.classify import write_classified

        written = write_classified(self.open(), self.labels, self.output, self.seed)
        _say(written, written.table, written.page)


def _say(written: Written, *files: Path) -> None:
    first, beside = files or (written.page, written.table)
    ending = f"Wrote {first}, and beside it {beside.name}"
    say("\n".join([*written.summary, *written.listed, ending]))


def recipes(recipe: str | None = None) -> None:
    """List the recipes, or show one in full.

    Args:
        recipe: The name of one to show in full; by default all are listed.
    """
    from rich.console import Console
    from rich.table import Table

    from unremix.frameworks.parts import option_fields, section_of, summary_of
    from unremix.recipes import NOTHING, PARTS, RECIPES, find_recipe, options_of
    from unremix.training.settings import shipped

    console = Console(highlight=False, markup=False, emoji=False)

    def show(headings: Sequence[str], rows: Iterable[Sequence[str]], *, solid: int = 1) -> None:
        """Print a table whose last columns break lines, but not the first ``solid`` ones."""
        padding = (0, 1, 0, int(solid == 1))
        table = Table(box=None, pad_edge=False, padding=padding, show_header=any(headings))
        for number, heading in enumerate(headings):
            table.add_column(heading, no_wrap=number < solid, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table, "", sep="\n")

    if recipe is not None:
        chosen = find_recipe(recipe)
        facts = {
            "--recipe": chosen.name,
            "what it is": chosen.summary,
            "domain": chosen.domain,
            "in the paper": chosen.paper or "no row of its own",
            "--temperature": f"{chosen.temperature:g}",
            "--labels": "use" if chosen.labels else "ignore",
        }
        for kind, name in chosen.parts.items():
            summary = NOTHING if name == NOTHING else f"{name} ({summary_of(PARTS[kind][name])})"
            facts[f"--{kind}"] = summary
        show(["", ""], facts.items())
        resolved = options_of(chosen)
        rows = [(o.option, o.value, o.kind, "recipe" if o.changed else "default") for o in resolved]
        show(["option", "value", "of the", "set by"], rows)
        return
    parts = ("framework", "mixing", "negatives", "weighting")
    for domain in dict.fromkeys(one.domain for one in RECIPES.values()):
        listed = []
        for one in (one for one in RECIPES.values() if one.domain == domain):
            sets = [f"{o.option} {o.value}" for o in options_of(one) if o.changed]
            words = "\n".join([one.summary, *sets])
            listed.append((one.name, *one.parts.values(), f"{one.temperature:g}", words))
        show([f"{domain} recipes", *parts, "τ", "what it is, and what it sets"], listed, solid=6)
    console.print("One in full, with every option and its place in the paper: unremix recipes hcl")
    console.print("Any part can be exchanged: --recipe moco --weighting unremix --mixing unmix\n")
    for kind, known in PARTS.items():
        described = []
        for name, part in known.items():
            options = (f"--{section_of(part)}.{option}" for option in option_fields(part))
            described.append((name, summary_of(part), ", ".join(options)))
        show([f"--{kind}", "what it is", "options"], described)
    show(["--config", "settings that ship with the package, for every recipe"], shipped().items())


def report(runs: list[str], *, output: str | None = None, trust: bool = False) -> None:
    """Write the page of a run or a comparison again, or compare any runs on a page.

    Args:
        runs: A run's folder, a comparison's folder, or several run folders to compare.
        output: An .html page; by default report.html in the folder, for several runs
            comparison.html here, unless that compares other runs.
        trust: Allow code that a run's folder names to run, and data at a URL to be requested.
    """
    from unremix import report as pages
    from unremix.training.run import Run

    folders = [Path(run) for run in runs]
    if len(folders) > 1:
        page = pages.write_comparison(
            folders, output or pages.comparison_page(folders), trust=trust
        )
    elif (folders[0] / "comparison.yaml").exists():
        written = pages.write_comparison_of(folders[0], trust=trust)
        if written is None:
            raise ValueError(
                f"expected at least two finished runs in {folders[0]}, got fewer; let "
                "'unremix compare' finish first"
            )
        page = written
    else:
        page = pages.write_report(Run(folders[0], trust=trust))
    if output is not None and len(folders) == 1:  # the folder keeps its own
        copy_file(page, Path(output))
        page = Path(output)
    say(f"Wrote {page}")


def study(
    file: str,
    *,
    output: str | None = None,
    stage: str | None = None,
    jobs: int | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    dry_run: bool = False,
    trust: bool = False,
) -> None:
    """Run many settings with paired seeds, within a budget.

    Args:
        file: The study's YAML file.
        output: Its folder; by default a folder beside the file, named after it.
        stage: Only this stage of it.
        jobs: Runs at a time; by default one per GPU, or one per core.
        on: Where runs are executed: on this machine (local), on Ray, or on SLURM.
        dry_run: Only say what is to be run and what it costs.
        trust: Allow code that the file names to run.
    """
    from unremix.experiments.study_runs import run_study

    run_study(file, output=output, stage=stage, jobs=jobs, on=on, dry_run=dry_run, trust=trust)


def reproduce(
    name: str,
    *,
    scale: Literal["smoke", "cpu", "paper"] = "cpu",
    seeds: int | None = None,
    data: tuple[str, ...] | str | None = None,
    output: str | None = None,
    options: dict[str, Any] | None = None,
    jobs: int | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    dry_run: bool = False,
    command: str | None = None,
) -> int:
    """Reproduce a table or figure of the paper, beside the published figures.

    Args:
        name: Which: table1, curves, table2, table3, table5, gradients, table6, sentences, graphs,
            diversity, mix, illustration, gallery, contributions, or all.
            The paper's own numbers are names too: table4 is sentences, figure3 curves.
        scale: How large: smoke (minutes, on data that come with the package), cpu or paper.
        seeds: Seeds of every row, from 0 on; by default those of the scale.
        data: Data sets in place of the scale's: one, or a list with brackets.
        output: The folder, by default reproductions/SCALE; runs in it are resumed.
        options: Options of every run in place of the scale's, such as "{epochs: 5}".
        jobs: Runs at a time; by default one per GPU, or one per core.
        on: Where runs are executed: on this machine (local), on Ray, or on SLURM.
        dry_run: Only say what is to be run and what it costs.
        command: What was typed.
    """
    from unremix.experiments.reproduce import reproduce as run

    chosen = (data,) if isinstance(data, str) else data or ()
    return run(
        name, scale=scale, seeds=seeds, data=chosen, output=output, options=options, jobs=jobs,
        on=on, dry_run=dry_run, command=command,
    )  # fmt: skip


def doctor(
    *, cluster: bool = False, benchmark: bool = False, output: str = "unremix-benchmark.json"
) -> None:
    """Report what is installed, what is missing, and the command that installs it.

    Args:
        cluster: Report what Ray, SLURM, torchrun and object stores offer instead.
        benchmark: Time losses and training steps on this device instead, in under two minutes.
        output: The .json file of the benchmark's numbers; by default unremix-benchmark.json.
    """
    if benchmark:
        from unremix.cli.benchmark import benchmark as measure

        measure(Path(output))
        return
    from unremix.cli.doctor import show_cluster, show_installation

    (show_cluster if cluster else show_installation)()


def _by_name(*commands: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {command.__name__.lower(): command for command in commands}


COMMANDS = _by_name(
    evaluate, embed, export, mine, Neighbors, Duplicates, Cluster, Explore, Classify, recipes,
    report, study, doctor, reproduce,
)  # fmt: skip
SUMMARIES = {
    name: (command.__doc__ or "").partition("\n")[0]
    for name, command in {**_by_name(train, compare), **COMMANDS}.items()
}
