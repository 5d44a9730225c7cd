"""The paper's figures agree with what the paper itself says about them."""

from __future__ import annotations

import pytest

from unremix.experiments.paper.catalog import EXPERIMENTS, TABLES
from unremix.experiments.paper.experiment import Published
from unremix.report.style import AS_PRINTED

IMAGES = ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")
LINEAR = "linear.top1"


def means(row: Published) -> list[float]:
    return [row[data, LINEAR][0] for data in IMAGES]


def gains(row: Published, others: list[Published]) -> list[float]:
    """Points ahead of the best of the others on each data set."""
    best = [max(figures) for figures in zip(*map(means, others), strict=True)]
    return [one - other for one, other in zip(means(row), best, strict=True)]


def test_gains_of_table_1() -> None:
    """Its green arrows: 0.76, 1.97 and 1.01 over the next best; the text: 2, 3.25, 3.83 to HCL."""
    table = {name: TABLES["Table 1"].figures(name) for name in TABLES["Table 1"].rows}
    unremix = table.pop("UnReMix")
    assert gains(unremix, list(table.values())) == pytest.approx([0.76, 1.97, 1.01])
    assert gains(unremix, [table["HCL"]]) == pytest.approx([1.99, 3.25, 3.83])
    assert len(table) == 7


def test_gains_of_tables_4_and_6() -> None:
    """The arrows of Table 4 are over Quick-Thought; MPQA, which is lost, has none."""
    ahead = [
        ours[0] - base[0]
        for ours, base in zip(
            TABLES["Table 4"].figures("UnReMix").values(),
            TABLES["Table 4"].figures("Quick-Thought").values(),
            strict=True,
        )
    ]
    assert ahead.pop(3) < 0
    assert ahead == pytest.approx([6.97, 10.5, 6.9, 16.8, 2.7, 0.76], abs=0.041)
    top1, top5 = (
        ours[0] - moco[0]
        for ours, moco in zip(
            TABLES["Table 6"].figures("UnReMix on MoCo").values(),
            TABLES["Table 6"].figures("MoCo-v2").values(),
            strict=True,
        )
    )
    assert (top1, top5) == pytest.approx((0.72, 0.71))


def test_rows_that_the_paper_has_twice() -> None:
    assert means(TABLES["Table 5"].figures("NT-Xent")) == means(TABLES["Table 3"].figures("fixed"))
    assert means(TABLES["Table 5"].figures("pseudo-label")) == means(
        TABLES["Table 2"].figures("all")
    )
    hcl = means(TABLES["Table 2"].figures("similarity (HCL)"))
    assert hcl == pytest.approx(means(TABLES["Table 1"].figures("HCL")), abs=0.0101)


def test_every_row_has_its_own_figures() -> None:
    """Both rows of UnReMix stand beside the one that the paper has."""
    for experiment in EXPERIMENTS.values():
        for row in experiment.rows:
            of_paper = row.name.removesuffix(f", {AS_PRINTED}")
            tables = [table for table in TABLES.values() if of_paper in table.rows]
            if row.published:
                assert row.published in [table.figures(of_paper) for table in tables]
            for table in TABLES:  # and no figure is left out
                if table in experiment.places and of_paper in TABLES[table].rows:
                    assert row.published == TABLES[table].figures(of_paper)
