"""What the paper reports, in percent: mean and, where it gives one, standard deviation.

Tabassum et al. 2022, arXiv 2206.01197. Image figures are accuracies of a linear probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Percent = tuple[float, float | None]
Published = Mapping[tuple[str, str], Percent]
"""Figures by data set and measure."""

IMAGES = ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")
LINEAR = "linear.top1"


def on_images(*means: float, deviations: Sequence[float] = ()) -> Published:
    """A row over the three image sets.

    Example:
        >>> on_images(91.19, 67.86, 45.61)["CIFAR-100", "linear.top1"]
        (67.86, None)
    """
    spread = deviations or (None,) * len(means)
    return {
        (data, LINEAR): figure
        for data, figure in zip(IMAGES, zip(means, spread, strict=True), strict=True)
    }


TABLE_1 = {
    "SwAV": on_images(76.90, 43.60, 29.00, deviations=(0.02, 0.01, 0.10)),
    "i-Mix": on_images(79.26, 41.58, 24.10, deviations=(0.18, 0.25, 0.02)),
    "MoCo-v2": on_images(87.88, 59.96, 40.76, deviations=(0.18, 0.20, 0.40)),
    "Patch-based NS": on_images(87.86, 60.24, 40.91, deviations=(0.06, 0.11, 0.06)),
    "MoCHi": on_images(87.33, 60.83, 42.11, deviations=(0.12, 0.06, 0.18)),
    "HCL": on_images(91.19, 67.87, 45.62, deviations=(0.03, 0.09, 0.07)),
    "Un-Mix": on_images(92.42, 69.15, 48.44, deviations=(0.06, 0.06, 0.06)),
    "UnReMix": on_images(93.18, 71.12, 49.45, deviations=(0.06, 0.09, 0.10)),
}
TABLE_2 = {
    "similarity (HCL)": on_images(91.19, 67.86, 45.61),
    "uncertainty": on_images(91.88, 68.77, 47.44),
    "representativeness": on_images(92.02, 68.60, 48.03),
    "all": on_images(91.99, 69.43, 48.12),
}
TABLE_3 = {
    "fixed": on_images(91.95, 69.27, 47.29, deviations=(0.06, 0.13, 0.14)),
    "learned": on_images(92.00, 68.78, 47.85, deviations=(0.06, 0.15, 0.09)),
}
TABLE_5 = {
    "pseudo-label": on_images(91.99, 69.43, 48.12),
    "NT-Xent": on_images(91.95, 69.27, 47.29),
}

TASKS = {
    "SICK.pearson": "SICK",
    "CR.accuracy": "CR",
    "SUBJ.accuracy": "SUBJ",
    "MPQA.accuracy": "MPQA",
    "TREC.accuracy": "TREC",
    "MRPC.accuracy": "MSRP",
    "MRPC.f1": "MSRP F1",
}


def on_tasks(*means: float) -> Published:
    """A row over SentEval's tasks."""
    figures = zip(TASKS, means, strict=True)
    return {("BookCorpus", measure): (mean, None) for measure, mean in figures}


TABLE_4 = {
    "Quick-Thought": on_tasks(67.7, 67.5, 79.9, 80.3, 66.0, 68.0, 80.1),
    "HCL": on_tasks(60.6, 62.7, 74.1, 79.3, 58.6, 68.3, 79.8),
    "UnReMix": on_tasks(74.7, 78.0, 86.8, 78.7, 82.8, 70.7, 80.9),
}


def on_imagenet(top1: float, top5: float) -> Published:
    """A row on ImageNet-1k."""
    return {
        ("ImageNet-1k", LINEAR): (top1, None),
        ("ImageNet-1k", "linear.top5"): (top5, None),
    }


TABLE_6 = {
    "HCL on SimCLR": on_imagenet(38.28, 61.85),
    "MoCo-v2": on_imagenet(38.99, 62.92),
    "UnReMix on MoCo": on_imagenet(39.71, 63.63),
}

# InfoGraph's own paper (Sun et al. 2020), of those data sets that we have.
INFOGRAPH = {"MUTAG": 89.01, "PTC_MR": 61.65, "IMDB-BINARY": 73.03, "IMDB-MULTI": 49.69}
