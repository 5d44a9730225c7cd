"""The paper's tables and figures by name. Adding one is one record."""

from __future__ import annotations

from typing import Any

from unremix.experiments.paper import published
from unremix.experiments.paper.comparison import make_comparison
from unremix.experiments.paper.illustration import make_illustration
from unremix.experiments.paper.negatives import make_contributions, make_gallery, make_gradients
from unremix.experiments.paper.over_epochs import (
    FIXED,
    make_diversity,
    make_mix,
    make_probe_curves,
)
from unremix.experiments.paper.published import LINEAR, Published
from unremix.experiments.paper.records import Experiment, Row
from unremix.experiments.paper.scales import MOCO_V2
from unremix.report.style import AS_PRINTED

ACCURACY = {LINEAR: "linear probe"}


def _twice(name: str, recipe: str, figures: Published, **options: Any) -> tuple[Row, Row]:
    """UnReMix as the paper prints it, and with this package's defaults."""
    ours = {"recipe": recipe, **options}
    return (
        Row(f"{name}, {AS_PRINTED}", {**ours, "loss.fidelity": "paper"}, figures),
        Row(name, ours, figures),
    )


METHODS = (
    *(
        Row(name, {"recipe": recipe}, published.TABLE_1[name])
        for name, recipe in {
            "SwAV": "swav", "i-Mix": "imix", "MoCo-v2": "moco", "Patch-based NS": "patch",
            "MoCHi": "mochi", "HCL": "hcl", "Un-Mix": "unmix",
        }.items()
    ),
    *_twice("UnReMix", "unremix", published.TABLE_1["UnReMix"]),
)  # fmt: skip
COMPONENTS = (
    Row("similarity (HCL)", {"recipe": "hcl"}, published.TABLE_2["similarity (HCL)"]),
    Row("uncertainty", {"recipe": "unremix-u"}, published.TABLE_2["uncertainty"]),
    Row("representativeness", {"recipe": "unremix-r"}, published.TABLE_2["representativeness"]),
    *_twice("all", "unremix-simclr", published.TABLE_2["all"]),
)
MIXES = (
    Row(FIXED, {"recipe": "unremix-fixed"}, published.TABLE_3[FIXED]),
    *_twice("learned", "unremix-simclr", published.TABLE_3["learned"]),
    Row("free", {"recipe": "unremix-simclr", "loss.mix": "free"}),
    Row("adversarial", {"recipe": "unremix-simclr", "loss.mix": "adversarial"}),
)
GRADIENTS = (
    *_twice("pseudo-label", "unremix-simclr", published.TABLE_5["pseudo-label"]),
    Row("NT-Xent", {"recipe": "unremix-nt-xent"}, published.TABLE_5["NT-Xent"]),
)
ON_IMAGENET = (
    Row("HCL on SimCLR", {"recipe": "hcl"}, published.TABLE_6["HCL on SimCLR"]),
    Row("MoCo-v2", {"recipe": "moco", **MOCO_V2}, published.TABLE_6["MoCo-v2"]),
    *_twice(
        "UnReMix on MoCo", "unremix-moco", published.TABLE_6["UnReMix on MoCo"], **MOCO_V2
    ),
)  # fmt: skip
ON_SENTENCES = (
    Row("Quick-Thought", {"recipe": "quickthought"}, published.TABLE_4["Quick-Thought"]),
    Row("HCL", {"recipe": "quickthought-hcl"}, published.TABLE_4["HCL"]),
    *_twice("UnReMix", "quickthought-unremix", published.TABLE_4["UnReMix"]),
    Row(
        "bags of words, trained as Quick-Thought",
        {"recipe": "quickthought", "sentence.encoder": "bow"},
        floors={"untrained": "bags of words, untrained"},
    ),
)
ON_GRAPHS = (
    Row("InfoGraph", {"recipe": "infograph"}),
    Row("HCL", {"recipe": "infograph-hcl"}),
    *_twice("UnReMix", "infograph-unremix", {}),
)
FEW_CLASSES, MANY_CLASSES = (1, 2, 4, 6, 8, 10), (10, 20, 30, 40, 50)
ON_CLASSES = tuple(
    Row(
        f"{classes} {'class' if classes == 1 else 'classes'}",
        {"recipe": "simclr", "loss.negative_classes": classes},
        scales=("smoke", "cpu", "paper") if classes in (1, 10) else ("cpu", "paper"),
        papers=tuple(
            data
            for data, known in {
                "CIFAR-10": FEW_CLASSES, "": FEW_CLASSES,
                "CIFAR-100": MANY_CLASSES, "Tiny-ImageNet": MANY_CLASSES,
            }.items()
            if classes in known
        ),
    )
    for classes in sorted({*FEW_CLASSES, *MANY_CLASSES})
)  # fmt: skip


def _named(rows: tuple[Row, ...], *names: str) -> tuple[Row, ...]:
    """Some of the rows, in the order named."""
    return tuple(row for name in names for row in rows if row.name == name)


WEIGHTS = (
    *_named(MIXES, "learned", f"learned, {AS_PRINTED}", "free", FIXED),
    Row("learned, on Un-Mix", {"recipe": "unremix"}),
)
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1", ("Table 1",), "Methods", make_comparison, rows=METHODS, measures=ACCURACY,
            reference="HCL",
            notes=("UnReMix stands on Un-Mix here, as in the paper.",),
        ),
        Experiment(
            "curves", ("Figure 3",), "Linear accuracy over the probe's epochs", make_probe_curves,
            rows=METHODS,
            notes=("The runs are those of Table 1. SwAV is in the paper's table, not its figure.",),
        ),
        Experiment(
            "table2", ("Table 2",), "One component at a time", make_comparison, rows=COMPONENTS,
            measures=ACCURACY, reference="all",
            notes=(
                "Without Un-Mix's mixing. In the paper, representativeness alone is above all "
                "three on CIFAR-10.",
            ),
        ),
        Experiment(
            "table3", ("Table 3",), "How the components are mixed", make_comparison, rows=MIXES,
            measures=ACCURACY, reference="learned",
            notes=(
                "The paper has fixed and learned; free (no softmax) and adversarial are further "
                "ones. Its learned row differs from all in its Tables 2 and 5, which should be "
                "the same runs.",
            ),
        ),
        Experiment(
            "table5", ("Table 5",), "The loss behind the gradient", make_comparison, rows=GRADIENTS,
            measures=ACCURACY, reference="pseudo-label",
            notes=("The paper's NT-Xent row is identical to the fixed row of its Table 3.",),
        ),
        Experiment(
            "gradients", ("Figure 8",), "Gradients of negatives under both losses",
            make_gradients, rows=_named(GRADIENTS, "pseudo-label", "NT-Xent"), seeds=1,
            needs_encoders=True,
            notes=("The paper finds more variance with pseudo-labels.",),
        ),
        Experiment(
            "table6", ("Table 6",), "ImageNet-1k", make_comparison, kind="imagenet",
            rows=ON_IMAGENET, measures={LINEAR: "top 1", "linear.top5": "top 5"},
            reference="MoCo-v2",
        ),
        Experiment(
            "diversity", ("Figure 6",),
            "Negatives from few classes only", make_diversity, rows=ON_CLASSES,
            measures={"neighbors.top5": "kNN, top 5"}, reference="10 classes",
            options={"paper": {"epochs": 100}},
            notes=(
                "This experiment uses labels: only images of the first k classes may be "
                "negatives, so an anchor has fewer negatives, too (with k of 10 classes, about "
                "k / 10 of them). The paper does not name its data set; it reports that accuracy "
                "rises with k, without numbers in the text.",
            ),
        ),
        Experiment(
            "mix", ("Figure 7",), "The three weights over the epochs",
            make_mix, rows=WEIGHTS, measures=ACCURACY, reference="learned", needs_labels=False,
            notes=(
                "The runs are those of Table 3, and of Table 1 on Un-Mix.",
                "In the paper the weights settle after about 100 epochs on CIFAR-100 and "
                "Tiny-ImageNet, with representativeness highest; on CIFAR-10 similarity is above "
                "it; uncertainty is low everywhere. Without softmax (free) the weights settle more "
                "slowly, and accuracy stays the same.",
            ),
        ),
        Experiment(
            "illustration", ("Figure 1",), "What is picked, in two dimensions", make_illustration,
            notes=(
                "Real points: handwritten digits of three classes in the plane of their first two "
                "principal components, each with a second view beside it. There is no last layer, "
                "so the uncertainty ignores its input. The last column is the share of picks that "
                "have the anchor's class, with every point as the anchor. The paper's figure is a "
                "drawing.",
            ),
        ),
        Experiment(
            "gallery", ("Figure 4", "Figure 9", "Figure 10", "Figure 11", "Figure 12"),
            "The heaviest negatives of some anchors", make_gallery,
            rows=_named(METHODS, "HCL", "UnReMix"), seeds=1,
            needs_encoders=True,
        ),
        Experiment(
            "contributions", ("Figure 2", "Figure 4"), "What each component adds",
            make_contributions, rows=_named(METHODS, "UnReMix"), seeds=1, needs_encoders=True,
            notes=("In the paper, representativeness adds the most.",),
        ),
        Experiment(
            "sentences", ("Table 4",), "Sentences, by SentEval's tasks", make_comparison,
            kind="sentences", rows=ON_SENTENCES, measures=published.TASKS,
            reference="Quick-Thought",
            notes=(
                "Pearson's correlation for SICK, F1 of paraphrases for MSRP F1, else accuracy. "
                "The paper trained on BookCorpus; it says that UnReMix wins on all tasks, but its "
                "table has it behind on MPQA.",
            ),
        ),
        Experiment(
            "graphs", ("Figure 5",), "Graphs, by an SVM", make_comparison, kind="graphs",
            rows=ON_GRAPHS, measures={"svm": "SVM"}, reference="InfoGraph",
            notes=(
                "The paper's text has neither the numbers of this figure nor the names of its six "
                "data sets. "
                "InfoGraph's own paper has "
                + ", ".join(f"{value} on {data}" for data, value in published.INFOGRAPH.items())
                + ": of the best epoch on the test folds, which flatters; ours are those of the "
                "last epoch.",
            ),
        ),
    )
}  # fmt: skip
