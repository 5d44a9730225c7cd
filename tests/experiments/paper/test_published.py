"""The paper's figures agree with what the paper itself says about them."""

from __future__ import annotations

import pytest

from unremix.experiments.paper import published
from unremix.experiments.paper.published import IMAGES, LINEAR, Published


def means(row: Published) -> list[float]:
    return [row[data, LINEAR][0] for data in IMAGES]


def gains(row: Published, others: list[Published]) -> list[float]:
    """Points ahead of the best of the others on each data set."""
    best = [max(figures) for figures in zip(*map(means, others), strict=True)]
    return [one - other for one, other in zip(means(row), best, strict=True)]


def test_gains_of_table_1() -> None:
    """Its green arrows: 0.76, 1.97 and 1.01 over the next best; the text: 2, 3.25, 3.83 to HCL."""
    table = dict(published.TABLE_1)
    unremix = table.pop("UnReMix")
    assert gains(unremix, list(table.values())) == pytest.approx([0.76, 1.97, 1.01])
    assert gains(unremix, [table["HCL"]]) == pytest.approx([1.99, 3.25, 3.83])
    assert len(table) == 7


def test_gains_of_tables_4_and_6() -> None:
    """The arrows of Table 4 are over Quick-Thought; MPQA, which is lost, has none."""
    ahead = [
        ours[0] - base[0]
        for ours, base in zip(
            published.TABLE_4["UnReMix"].values(),
            published.TABLE_4["Quick-Thought"].values(),
            strict=True,
        )
    ]
    assert ahead.pop(3) < 0
    assert ahead == pytest.approx([6.97, 10.5, 6.9, 16.8, 2.7, 0.76], abs=0.041)
    top1, top5 = (
        ours[0] - moco[0]
        for ours, moco in zip(
            published.TABLE_6["UnReMix on MoCo"].values(),
            published.TABLE_6["MoCo-v2"].values(),
            strict=True,
        )
    )
    assert (top1, top5) == pytest.approx((0.72, 0.71))


def test_rows_that_the_paper_has_twice() -> None:
    assert means(published.TABLE_5["NT-Xent"]) == means(published.TABLE_3["fixed"])
    assert means(published.TABLE_5["pseudo-label"]) == means(published.TABLE_2["all"])
    hcl = means(published.TABLE_2["similarity (HCL)"])
    assert hcl == pytest.approx(means(published.TABLE_1["HCL"]), abs=0.0101)
