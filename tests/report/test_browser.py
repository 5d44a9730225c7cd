"""The pages in a real browser: what they show, that it is right, and that nobody is left out."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import HOSTILE, digits, embedded, graphs, sentences, unlabeled, with_classes

import unremix
from unremix.cli import main
from unremix.core.scores import PAPER_COMPONENTS
from unremix.core.weights import Weighting, weigh
from unremix.report import write_comparison, write_report
from unremix.report.collect import take_sample
from unremix.report.rendering import bundle
from unremix.report.storage import Stored
from unremix.training.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

AXE = "axe-core@4.10.2"
AXE_DIGEST = "b511cd9dec01c76f4b2ad1723b66b6db37d4c2eb4ed199076e1829d9ee7b75e3"
LARGEST = 15 * 2**20
KINDS = ["digits", "unlabeled", "graphcl-unremix", "infograph-unremix", "sentences"]


def missing(what: str) -> None:
    """Skip, or fail where the browser tests are asked for."""
    reason = f"expected {what} for the browser tests, found none; run 'make browser'"
    if os.environ.get("UNREMIX_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        missing("Debian's chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    with sync_playwright() as playwright:
        # As root, and in containers, Chromium's own sandbox cannot start.
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def runs(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    made = [
        digits(folder),
        unlabeled(folder),
        graphs(folder),
        graphs(folder, "infograph-unremix"),
        sentences(folder),
    ]
    return {run.path.name: run for run in made}


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens a page; in the end there must be no error and no request to anywhere."""
    contexts, said, asked = [], [], []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def set_control(page: Any, name: str, value: float | str) -> None:
    """Move a control as a person does, and wait for the page to follow."""
    kind = "change" if isinstance(value, str) else "input"
    page.evaluate(
        """([name, value, kind]) => {
            const input = document.getElementById(`control-${name}`);
            input.value = value;
            input.dispatchEvent(new Event(kind, { bubbles: true }));
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        [name, str(value), kind],
    )


def shown_weights(page: Any) -> dict[str, np.ndarray]:
    """The anchor's columns of the CSV that the page gives, in full precision."""
    rows = list(csv.DictReader(io.StringIO(page.evaluate("unremix.explorer.csv()"))))
    return {
        name: np.array([float(row[name]) for row in rows])
        for name in rows[0]
        if name.startswith("weight_")
    }


SETTINGS = [
    ((0.0, 1.0, 0.0), "minmax", 1.0, "mean"),
    ((0.7, 0.2, 0.45), "minmax", 4.0, "mean"),
    ((0.3, 0.3, 0.9), "zscore-exp", 2.5, "mean"),
    ((0.1, 0.9, 0.4), "zscore-exp", 0.5, "none"),
    ((0.5, 0.25, 0.25), "none", 0.0, "mean"),
    ((0.2, 0.6, 0.2), "none", 10.0, "none"),
]


@pytest.mark.parametrize("kind", ["digits", "unlabeled", "graphcl-unremix", "infograph-unremix"])
def test_the_controls_rank_as_the_library_does(
    kind: str, runs: dict[str, Run], opened: Opened
) -> None:
    run = runs[kind]
    page = opened(run.path / "report.html")
    sample = take_sample(run, run.domain.load_for(run, None))
    z0, h0 = sample.anchors.embeddings, sample.anchors.inputs
    z1, h1 = sample.candidates.embeddings, sample.candidates.inputs
    assert sample.loss is not None
    tau = float(sample.loss.current_temperature())
    for mix, scaling, hardness, mass in SETTINGS:
        for name, share in zip(
            ("uncertainty", "similarity", "representativeness"), mix, strict=True
        ):
            set_control(page, name, share)
        set_control(page, "hardness", hardness)
        set_control(page, "scaling", scaling)
        set_control(page, "mass", mass)
        beta = hardness if scaling == "zscore-exp" else None
        options: dict[str, Any] = {
            "layout": "one-way", "temperature": tau, "scaling": scaling, "mass": mass,
            "hardness": beta, "bias": sample.loss.options.bias,
        }  # fmt: skip
        whole = unremix.importance(z0, z1, h0, h1, mix=mix, **options)
        names = ("uncertainty", "similarity", "representativeness")
        weights = {"weight_unremix": in_double(whole, names, mix, options)}
        np.testing.assert_allclose(weights["weight_unremix"], whole.weights, rtol=1e-3, atol=1e-3)
        for name in names:
            weights[f"weight_{name}"] = in_double(whole, (name,), (1.0,), options)
        hcl = unremix.HCLLoss(temperature=tau, hardness=hardness, layout="one-way")
        weights["weight_hcl"] = hcl.importance(z0, z1, h0, h1).weights
        weights["weight_uniform"] = whole.negatives.float()
        for anchor in (0, len(z0) // 2, len(z0) - 1):
            page.evaluate(f"unremix.explorer.picker.choose({anchor})")
            shown = shown_weights(page)
            negatives = whole.negatives[anchor]
            for name, expected in weights.items():
                np.testing.assert_allclose(
                    shown[name], expected[anchor][negatives], rtol=1e-5, atol=1e-5,
                    err_msg=f"{name} {mix} {scaling} {hardness} {mass}",
                )  # fmt: skip
            best = sorted(weights["weight_unremix"][anchor][negatives].tolist(), reverse=True)[:6]
            found = page.eval_on_selector_all(
                "[data-weighting='unremix'] li",
                "all => all.map((one) => Number(one.dataset.weight))",
            )
            np.testing.assert_allclose(found, best, rtol=1e-5, atol=1e-5)


def in_double(
    found: unremix.Importance, names: tuple[str, ...], mix: tuple[float, ...], options: Any
) -> torch.Tensor:
    """The library's weights of the scores that the page has, in float64 as the page computes."""
    loss = unremix.UnReMixLoss(components=names, mix=mix, **options)
    scores = [getattr(found, name).double() for name in names]
    count = found.negatives.sum(1, keepdim=True)
    shares = torch.tensor(mix, dtype=torch.float64)
    return weigh(scores, found.negatives, count, shares, loss.weighting, options["temperature"])


def test_sentences_are_ranked_by_the_weights_of_their_loss(
    runs: dict[str, Run], opened: Opened
) -> None:
    run = runs["sentences"]
    page = opened(run.path / "report.html")
    sample = take_sample(run, run.domain.load_for(run, None))
    assert sample.loss is not None
    own = sample.loss.importance_against(sample.anchors, sample.candidates, sample.pairs)
    for anchor in (0, 40, len(sample.batch) - 1):
        page.evaluate(f"unremix.explorer.picker.choose({anchor})")
        expected = own.weights[anchor][own.negatives[anchor]]
        np.testing.assert_allclose(
            shown_weights(page)["weight_unremix"], expected, rtol=1e-5, atol=1e-5
        )
    # Positives and the sentence itself are no negatives.
    assert not (own.negatives & own.positives).any()
    assert not own.negatives.diagonal().any()


def test_the_audit_is_the_librarys(runs: dict[str, Run], opened: Opened) -> None:
    run = runs["digits"]
    page = opened(run.path / "report.html")
    sample = take_sample(run, run.domain.load_for(run, None))
    assert sample.loss is not None
    assert sample.labels is not None
    own = sample.loss.importance_against(sample.anchors, sample.candidates, sample.pairs)
    expected = unremix.audit(own, sample.labels[sample.batch], k=10)
    found = page.evaluate(AUDIT, "unremix")
    assert found["top"] == pytest.approx(expected.false_negative_rate, abs=2e-3)
    assert found["base"] == pytest.approx(expected.base_rate, abs=1e-6)
    assert found["distinct"] == pytest.approx(expected.distinct_class_share, abs=2e-3)
    assert found["effective"] == pytest.approx(expected.effective_negatives, rel=1e-5)
    assert found["deciles"] == pytest.approx(expected.decile_false_negative_rate, abs=2e-3)
    assert found["matched"] == pytest.approx(expected.matched_false_negative_rate, abs=2e-3)


AUDIT = "(name) => unremix.explorer.audits.find((one) => one.name === name).found"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_explorer(kind: str, runs: dict[str, Run], opened: Opened) -> None:
    path = runs[kind].path / "report.html"
    assert path.stat().st_size < LARGEST
    page = opened(path)
    assert page.locator("#explorer .column").count() == 6
    anchors = page.locator("#explorer .pick")
    count = anchors.count()
    assert count == len(Stored.read(runs[kind].path).arrays["batch"])  # type: ignore[union-attr]
    # By mouse, by keyboard, by chance, by search.
    anchors.nth(2).click()
    assert page.evaluate("unremix.explorer.picker.anchor") == 2
    anchors.nth(3).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("unremix.explorer.picker.anchor") == 3
    page.get_by_role("button", name="Random").click()
    order = page.evaluate(
        """() => { const shares = unremix.explorer.falseShares();
        return shares.map((_, i) => i).sort((a, b) => shares[b] - shares[a] || a - b); }"""
    )
    # The worst, then the next; never the one that is shown already.
    page.evaluate(f"unremix.explorer.picker.choose({order[-1]})")
    for expected in order[:2]:
        page.get_by_role("button", name="Worst").click()
        assert page.evaluate("unremix.explorer.picker.anchor") == expected
    page.evaluate(f"unremix.explorer.picker.choose({order[0]})")
    page.get_by_role("button", name="Worst").click()
    assert page.evaluate("unremix.explorer.picker.anchor") == order[1]
    page.get_by_role("searchbox").fill("surely no such name")
    assert page.locator("#explorer .pick:visible").count() == 0
    page.get_by_role("searchbox").fill("")
    shown = {"digits": "canvas", "unlabeled": "canvas", "sentences": ".sentence"}
    inside = shown.get(kind, "svg.drawing")
    assert page.locator(f"#explorer .negative {inside}").count() == 36
    labeled = kind not in ("unlabeled", "sentences")
    assert ("own class" in page.locator("#explorer").inner_text()) == labeled
    # The map follows the keyboard.
    page.locator("#map canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator("#map .near li").count() > 0


def test_suspects_without_labels_are_near_duplicates(runs: dict[str, Run], opened: Opened) -> None:
    stored = Stored.read(runs["unlabeled"].path)
    assert stored is not None
    batch = stored.arrays["batch"].tolist()
    first, second = batch.index(3), batch.index(7)  # the same picture twice
    assert stored.arrays["suspects"][first, second] == 2
    page = opened(runs["unlabeled"].path / "report.html")
    page.evaluate(f"unremix.explorer.picker.choose({first})")
    framed = page.locator("[data-weighting='similarity'] .suspect", has_text="near-duplicate")
    assert framed.count() >= 1
    assert page.locator(".pair.duplicate").count() >= 1


@pytest.mark.parametrize("kind", ["graphcl-unremix", "sentences"])
def test_hostile_names_are_text(kind: str, runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs[kind].path / "report.html")
    for anchor in range(len(HOSTILE)):
        page.evaluate(f"unremix.explorer.picker.choose({anchor})")
    for item in range(len(HOSTILE)):
        page.evaluate(f"unremix.map.choose({item})")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main b:text('bold')").count() == 0
    names = page.evaluate("document.getElementById('data').textContent")
    assert "<" not in names
    shown = page.evaluate("document.body.innerText")
    assert "مرحبا" in page.evaluate("JSON.stringify(unremix.explorer.data.names)")
    if kind == "graphcl-unremix":
        assert HOSTILE[0] in shown  # a class, and its letters as they are
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    copied = page.evaluate("unremix.explorer.csv()")
    assert "\n=" not in copied
    assert ",=" not in copied


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(kind: str, scheme: str, runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs[kind].path / "report.html", width=400, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    _picture(page, f"{kind}-400-{scheme}")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from its npm package."""
    if shutil.which("npm") is None:
        missing("npm, to fetch axe-core")
    folder = tmp_path_factory.mktemp("axe")
    asked = subprocess.run(
        ["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    if asked.returncode:
        missing(f"{AXE} from npm ({asked.stderr.strip()[:200]})")
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        script = member.read()
    assert hashlib.sha256(script).hexdigest() == AXE_DIGEST
    return script.decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_serious(
    kind: str, scheme: str, runs: dict[str, Run], opened: Opened, axe: str
) -> None:
    page = opened(runs[kind].path / "report.html", scheme=scheme)
    _picture(page, f"{kind}-1280-{scheme}")
    _picture(page.locator("#explorer .stage"), f"explorer-{kind}-{scheme}")
    assert_accessible(page, axe)


def assert_accessible(page: Any, axe: str) -> None:
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    grave = [
        f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:160]})"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert grave == []
    assert found["testEngine"]["name"] == "axe-core"


def _picture(page: Any, name: str) -> None:
    """Keep a picture of a page or a part where UNREMIX_SCREENSHOTS says; the docs show some."""
    folder = os.environ.get("UNREMIX_SCREENSHOTS")
    if folder:
        whole = {"full_page": True} if hasattr(page, "goto") else {}
        page.screenshot(path=Path(folder) / f"{name}.png", **whole)


def test_the_scheme_can_be_changed(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) != light
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(paper) == light


@pytest.mark.parametrize("classes", [10, 5000])
def test_ten_thousand_points_stay_responsive(
    classes: int, runs: dict[str, Run], opened: Opened, tmp_path: Path
) -> None:
    run = runs["digits"]
    copied = tmp_path / "many"
    shutil.copytree(run.path, copied)
    stored = Stored.read(copied)
    assert stored is not None
    path = write_report(with_classes(stored, classes, copied))
    assert path.stat().st_size < LARGEST
    page = opened(path)
    assert page.evaluate("unremix.map.sprites.length") == min(28, classes)
    assert page.evaluate("document.documentElement.scrollHeight") < 14_000
    # Time that the page's thread computes, which no other process on the machine adds to.
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    before = computed()
    frames = page.evaluate(
        """() => new Promise((done) => {
            const map = unremix.map, times = [];
            let before = null;
            const step = (now) => {
                if (before !== null) times.push(now - before);
                before = now;
                map.offset = [times.length, 0];
                map.hovered = times.length;
                map.render();
                if (times.length < 40) requestAnimationFrame(step);
                else done(times);
            };
            requestAnimationFrame(step);
        })"""
    )
    assert 0 < (computed() - before) / len(frames) < 0.05
    assert min(frames) < 50


def test_a_comparison(runs: dict[str, Run], opened: Opened, axe: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    made = [
        digits(folder, name=f"{recipe}-{seed}", recipe=recipe, seed=seed).path
        for recipe in ("simclr", "hcl")
        for seed in (0, 1)
    ]
    path = write_comparison(made, tmp_path / "comparison.html")
    assert path.stat().st_size < LARGEST
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 400)):
        page = opened(path, width=width, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        _picture(page, f"comparison-{width}-{scheme}")
        assert_accessible(page, axe)
        letters = "all => all.map((one) => 12 * one.clientWidth / one.viewBox.baseVal.width)"
        assert min(page.eval_on_selector_all("svg.chart", letters)) > 10
    assert "simclr" in page.locator("h1").inner_text()
    assert "2 seeds" in page.locator("h1").inner_text()
    stored = Stored.read(made[2])
    assert stored is not None
    page.evaluate("unremix.comparison.picker.choose(5)")
    found = page.eval_on_selector_all(
        "[data-run='hcl'] li", "all => all.map((one) => Number(one.dataset.item))"
    )
    similarity = stored.arrays["scores"][1, 5].copy()
    similarity[~stored.arrays["negatives"][5]] = -np.inf
    best = np.argsort(-similarity, kind="stable")[:12]
    assert found == stored.arrays["batch"][best].tolist()
    # Anchors are chosen as on the page of a run.
    anchor = "unremix.comparison.picker.anchor"
    page.locator(".pick[aria-pressed=true]").focus()
    for key, expected in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        assert page.evaluate(anchor) == expected
    labels = np.array(stored.about["labels"])[stored.arrays["batch"]]
    page.get_by_role("searchbox").fill("3")
    assert page.locator(".pick:visible").count() == (labels == 3).sum()
    assert "of this class" in page.locator("[data-part=found]").inner_text()
    for name in ("Random", "Worst"):
        page.get_by_role("button", name=name).click()
        assert labels[page.evaluate(anchor)] == 3


@pytest.fixture
def changed(runs: dict[str, Run], opened: Opened, tmp_path: Path) -> Callable[..., Any]:
    """Opens the page of the digits with other data, as a function changes them."""

    def open_changed(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Any:
        copied = tmp_path / "changed"
        shutil.copytree(runs["digits"].path, copied)
        stored = Stored.read(copied)
        assert stored is not None
        about, arrays = dict(stored.about), {k: v.copy() for k, v in stored.arrays.items()}
        change(about, arrays)
        Stored(about, arrays).write(copied)
        return opened(write_report(copied))

    return open_changed


def test_equal_weights_have_no_order(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    stored = Stored.read(runs["digits"].path)
    assert stored is not None
    for name in ("uncertainty", "similarity", "representativeness"):
        set_control(page, name, 0.0)
    page.evaluate("unremix.explorer.examine()")
    labels = np.array(stored.about["labels"])[stored.arrays["batch"]]
    rng = np.random.default_rng(0)
    distinct = []
    for i in range(len(labels)):
        others = np.delete(labels, i)
        draws = [len(set(rng.choice(others, 10, replace=False))) for _ in range(60)]
        distinct.append(np.mean(draws) / 10)
    for name in ("uniform", "unremix"):
        found = page.evaluate(AUDIT, name)
        assert found["top"] == pytest.approx(found["base"], abs=1e-9)
        base = np.mean([(np.delete(labels, i) == labels[i]).mean() for i in range(len(labels))])
        assert found["deciles"] == pytest.approx([base] * 10, abs=1e-9)
        assert found["distinct"] == pytest.approx(np.mean(distinct), abs=0.01)
    assert "any 6 of" in page.locator("[data-weighting='unremix'] header").inner_text()
    assert "no more and no fewer" in page.locator("[data-part='audit-says']").inner_text()


def test_every_weighting_has_its_negatives_of_equal_similarity(
    runs: dict[str, Run], opened: Opened
) -> None:
    page = opened(runs["digits"].path / "report.html")
    hidden = "one => one.scrollWidth - one.clientWidth"
    assert page.locator(".scroll:has(#audit-table)").evaluate(hidden) == 0
    drawn = "document.querySelector('#explorer .line.matched').getAttribute('d')"
    before = page.evaluate(drawn)
    page.locator("#audit-table").get_by_role("button", name="Uncertainty").click()
    assert page.evaluate(drawn) != before
    assert "to those of Uncertainty" in page.locator(".audit .legend").inner_text()
    assert "that Uncertainty weights most" in page.locator("[data-part='audit-says']").inner_text()
    for one in page.evaluate("unremix.explorer.audits"):
        assert len(one["found"]["matchedDeciles"]) == 10


def test_bars_and_sliders_tell_what_the_weights_use(changed: Callable[..., Any]) -> None:
    def change(about: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays["scores"][0] *= 1e-6
        about["weighting"] = about["weighting"] | {"mix": [2.0, 1.0, 1.0], "scaling": "zscore-exp"}

    page = changed(change)
    assert page.locator("#control-uncertainty").input_value() == "2"
    assert page.locator("#control-uncertainty + output").inner_text() == "2.00"
    widths = page.eval_on_selector_all(
        "[data-weighting='uncertainty'] .bar.uncertainty i",
        "all => all.map((one) => parseFloat(one.style.width))",
    )
    assert max(widths) == 100
    assert min(widths) < 99
    assert widths == sorted(widths, reverse=True)


def test_a_run_with_hcl_is_about_hcl(changed: Callable[..., Any]) -> None:
    def change(about: dict[str, Any], arrays: dict[str, Any]) -> None:
        about["weighting"] = {**about["weighting"], "kind": "hcl", "hardness": 3.0}

    page = changed(change)
    assert "that HCL weights most" in page.locator("[data-part='audit-says']").inner_text()
    shares = page.evaluate(
        """() => { const { explorer } = unremix; return explorer.rows.map((_, i) => {
            explorer.picker.choose(i);
            const shown = document.querySelector("[data-weighting=hcl] .figure b").textContent;
            return Number.parseFloat(shown) / 100; }); }"""
    )
    assert page.evaluate("unremix.explorer.falseShares()") == pytest.approx(shares, abs=6e-4)


def test_scores_that_are_not_finite_are_told(changed: Callable[..., Any]) -> None:
    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays["scores"][2, 0, 1:] = np.nan

    page = changed(change)
    page.evaluate("unremix.explorer.picker.choose(0)")
    column = page.locator("[data-weighting='unremix']")
    assert "not finite" in column.inner_text()
    assert "1.00" not in column.locator("ol").inner_text()
    assert np.isnan(shown_weights(page)["weight_unremix"]).all()
    assert np.isfinite(shown_weights(page)["weight_similarity"]).all()


def test_one_negative(changed: Callable[..., Any]) -> None:
    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays["negatives"][:] = np.roll(np.eye(len(arrays["batch"]), dtype=bool), 1, axis=1)

    page = changed(change)
    assert "NaN" not in page.locator("#explorer").inner_text()
    assert "10 negatives" not in page.locator("[data-part='audit-says']").inner_text()


def test_the_badge_follows_the_controls(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    badge = page.locator("[data-weighting='unremix'] .badge")
    assert badge.inner_text() == "this run"
    set_control(page, "hardness", 3.0)  # this run has none
    assert badge.inner_text() == "this run"
    set_control(page, "similarity", 0.9)
    assert badge.inner_text() == "changed"
    page.get_by_role("button", name="As in this run").click()
    page.wait_for_timeout(200)
    assert badge.inner_text() == "this run"


def test_anchors_by_keyboard_and_search(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    page.get_by_role("searchbox").focus()
    presses = 0
    while page.evaluate("document.activeElement.id") != "control-uncertainty":
        page.keyboard.press("Tab")
        presses += 1
        assert presses < 8
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.ariaPressed") == "true"
    anchor = "unremix.explorer.picker.anchor"
    page.keyboard.press("Home")
    assert page.evaluate(anchor) == 0
    page.keyboard.press("ArrowRight")
    assert page.evaluate(anchor) == 1
    page.keyboard.press("End")
    assert page.evaluate(anchor) == page.evaluate("unremix.explorer.size") - 1
    inside = """() => { const grid = document.querySelector('.anchors').getBoundingClientRect();
        const one = document.querySelector('.pick[aria-pressed=true]').getBoundingClientRect();
        return one.top >= grid.top && one.bottom <= grid.bottom; }"""
    assert page.evaluate(inside)
    # The name of a class finds the class alone; chance stays within what is found.
    stored = Stored.read(runs["digits"].path)
    assert stored is not None
    labels = np.array(stored.about["labels"])[stored.arrays["batch"]]
    page.get_by_role("searchbox").fill("3")
    assert page.locator(".pick:visible").count() == (labels == 3).sum()
    for _ in range(6):
        page.get_by_role("button", name="Random").click()
        assert labels[page.evaluate(anchor)] == 3
        assert page.evaluate(inside)


def test_copying_twice_and_numbers_as_numbers(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { value: { "
        "writeText: async (text) => { window.copied = text; } } })"
    )
    tables = {}
    for name in ("audit-table", "class-table", "confusion"):
        button = page.locator(f"[data-copy-table='{name}']")
        button.click()
        button.click()
        tables[name] = list(csv.reader(io.StringIO(page.evaluate("window.copied"))))
    assert page.locator("#said").inner_text() == "Copied"
    page.wait_for_timeout(1600)
    assert page.locator("[data-copy-table='audit-table']").inner_text() == "Copy as CSV"
    for row in [*tables["audit-table"][1:], *tables["class-table"][1:], *tables["confusion"][1:]]:
        assert all(np.isfinite(float(cell)) for cell in row[1:])
    assert len(tables["class-table"][0]) == 3
    assert "Representativeness" in [row[0] for row in tables["audit-table"]]
    chart = page.locator("#training figure", has_text="Loss").get_by_role("button")
    chart.click()
    assert page.evaluate("window.copied").startswith("epoch,Loss\n1,")
    page.locator("#evaluation").get_by_role("button", name="Copy as CSV").click()
    header, first, *_ = csv.reader(io.StringIO(page.evaluate("window.copied")))
    assert header[:4] == ["features", "measure", "value", "low"]
    assert 0 <= float(first[2]) <= 1


def test_the_map_by_pointer(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    canvas = page.locator("#map .surface canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = page.evaluate("unremix.map.place(20)")
    at = (box["x"] + x, box["y"] + y)
    # A hand that trembles still clicks.
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + 1, at[1] + 1)
    page.mouse.up()
    chosen = page.evaluate("unremix.map.chosen")
    assert chosen is not None
    assert page.evaluate("unremix.map.offset") == [0, 0]
    # The wheel scrolls the page; with Ctrl it zooms, around the pointer.
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == before + 100
    assert page.evaluate("unremix.map.zoom") == 1
    canvas.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    # Events have whole pixels, so the pointer stands beside the point, and zooming widens the gap.
    box = canvas.bounding_box()
    at = round(box["x"] + x), round(box["y"] + y)
    pointer = np.array([at[0] - box["x"], at[1] - box["y"]])
    page.mouse.move(*at)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    zoom = page.evaluate("unremix.map.zoom")
    assert zoom > 1.5
    zoomed = pointer + zoom * (np.array([x, y]) - pointer)
    assert page.evaluate("unremix.map.place(20)") == pytest.approx(zoomed, abs=1)
    # Dragging moves it and chooses nothing.
    page.mouse.down()
    page.mouse.move(at[0] + 40, at[1] + 30, steps=4)
    page.mouse.up()
    assert page.evaluate("unremix.map.chosen") == chosen
    assert page.evaluate("unremix.map.place(20)") == pytest.approx(
        zoomed + np.array([40, 30]), abs=1
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_print(scheme: str, runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html", scheme=scheme)
    if scheme == "light":
        page.get_by_role("button", name="Dark").click()
    page.emulate_media(media="print", color_scheme=scheme)
    color = "(one) => getComputedStyle(document.querySelector(one))"
    assert page.evaluate(f"({color})('.panel').backgroundColor") == "rgb(255, 255, 255)"
    ink = page.evaluate(f"({color})('.column .figure b').color")
    assert max(int(part) for part in ink[4:-1].split(",")) < 90
    assert page.locator("#map .key").first.is_visible()
    assert page.locator(".control output").first.is_visible()  # what the negatives depend on
    assert not page.locator(".control input").first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#option-table").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_only_anchors_are_circled(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["infograph-unremix"].path / "report.html")
    assert page.locator("#explorer .anchor .marked").count() == 1
    assert page.locator(".negative .marked, #neighbors .marked").count() == 0


def test_classes_differ_in_shape_too_and_numbers_are_called_classes(
    runs: dict[str, Run], opened: Opened
) -> None:
    page = opened(runs["digits"].path / "report.html", width=400)
    looks = page.eval_on_selector_all(
        "#map .key path", "all => all.map((one) => [one.getAttribute('d'), one.style.fill])"
    )
    shapes, colors = zip(*looks, strict=True)
    assert len(set(map(tuple, looks))) == len(looks) == 10
    assert len(set(shapes[:4])) == 4
    assert len(set(colors[:7])) == 7
    shown = page.locator("#explorer .anchor .tag").inner_text()
    assert re.fullmatch(r"class \d", shown)
    reset = page.get_by_role("button", name="Reset").bounding_box()
    assert reset["height"] < 40  # on one line


def test_the_audit_is_copied(runs: dict[str, Run], opened: Opened) -> None:
    page = opened(runs["digits"].path / "report.html")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("unremix.explorer.decilesAsCsv()"))))
    assert [row["tenth"] for row in rows] == [str(tenth) for tenth in range(1, 11)]
    for name in ("hcl", "unremix"):
        found = page.evaluate(AUDIT, name)
        assert [float(row[name]) for row in rows] == pytest.approx(found["deciles"])
    # A difference that is shown as 0 has no sign.
    cells = page.locator("#audit-table tr:has-text('Uniform') td").all_inner_texts()
    assert not re.search(r"[-+−]0\.0$", cells[2])


def test_letters_in_charts_can_be_read(runs: dict[str, Run], opened: Opened) -> None:
    for width in (1280, 400):
        page = opened(runs["digits"].path / "report.html", width=width)
        sizes = page.eval_on_selector_all(
            "svg.chart",
            "all => all.map((one) => 12 * one.clientWidth / one.viewBox.baseVal.width)",
        )
        assert min(sizes) > 10


ODD = ["plain", "one", "none", "constant", "nearly", "tiny", "huge", "zero", "inf", "nan", "masked"]


def odd_row(kind: str, rng: np.random.Generator, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Three scores (3, n) in float32 and which of n candidates are negatives."""
    scores = rng.uniform(-1, 1, (3, count))
    scores[0] = abs(scores[0]) * {"tiny": 1e-12, "huge": 1e30, "zero": 0.0}.get(kind, 1.0)
    negatives = rng.random(count) < (0.5 if kind == "masked" else 1.0)
    negatives[0] = False
    if kind in ("one", "none"):
        negatives[:] = False
        negatives[1] = kind == "one"
    if kind == "constant":
        scores[:] = [[0.3], [0.5], [-0.2]]
    if kind == "nearly":
        scores[1] = 0.5 + 1e-7 * scores[1]
    if kind in ("inf", "nan"):
        scores[0, 3] = float(kind)
    return scores.astype(np.float32), negatives


def test_odd_rows_are_weighted_as_in_the_library(browser: Any) -> None:
    rng = np.random.default_rng(0)
    jobs, expected = [], []
    hows: list[tuple[Any, float | None]] = [("minmax", None), ("zscore", 2.0), ("none", None)]
    for kind in ODD:
        scores, negatives = odd_row(kind, rng)
        for mix in [(1 / 3, 1 / 3, 1 / 3), (0.0, 0.0, 0.0), (2.5, 1.0, 0.1)]:
            for (scaling, sharpness), mass in itertools.product(hows, ("mean", "none")):
                how = {"components": PAPER_COMPONENTS, "mix": mix, "scaling": scaling,
                       "sharpness": sharpness, "mass": mass, "temperature": 0.5}  # fmt: skip
                jobs.append([[[str(x) for x in row] for row in scores], negatives.tolist(), how])
                there = torch.from_numpy(negatives)[None]
                weighting = Weighting(PAPER_COMPONENTS, scaling, sharpness, mass)  # type: ignore[arg-type]
                rows = [torch.from_numpy(row)[None] for row in scores]
                count = there.sum(1, keepdim=True)
                expected.append(weigh(rows, there, count, torch.tensor(mix), weighting, 0.5)[0])
    page = browser.new_page()
    found = page.evaluate(
        f"""(jobs) => {{ {bundle("weights")}
        const {{ weigh, COMPONENTS }} = modules.weights;
        const number = (text) => Number(text.replace("inf", "Infinity"));
        return jobs.map(([rows, negatives, how]) => {{
            const scores = rows.map((row, k) => [COMPONENTS[k], Float32Array.from(row, number)]);
            return Array.from(weigh(Object.fromEntries(scores), negatives, how), String);
        }}); }}""",
        jobs,
    )
    page.close()
    assert len(found) == len(expected) == len(ODD) * 18
    for shown, weights, (_, negatives, how) in zip(found, expected, jobs, strict=True):
        values = np.array([float(text.replace("Infinity", "inf")) for text in shown])
        np.testing.assert_allclose(
            values[negatives], weights[negatives], rtol=2e-3, atol=2e-3, err_msg=str(how)
        )


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of embeddings that nobody trained: pictures with labels, hostile texts without."""
    pages = {}
    for kind, labeled in (("pictures", True), ("texts", False)):
        folder = tmp_path_factory.mktemp(kind)
        file = embedded(folder, 120 if labeled else 600, labeled=labeled, pictures=labeled)
        words = ["--data", str(folder / "photos")] if labeled else []
        assert main(["explore", file, *words]) == 0
        pages[kind] = folder / "explore.html"
    return pages


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["pictures", "texts"])
def test_explored_data_are_for_everybody(
    kind: str, scheme: str, explored: dict[str, Path], opened: Opened, axe: str
) -> None:
    page = opened(explored[kind], scheme=scheme)
    page.evaluate("unremix.map.choose(4); unremix.selection.set([1, 2, 3])")
    _picture(page, f"explore-{kind}-{scheme}")
    assert_accessible(page, axe)
    page = opened(explored[kind], width=400, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("window.hacked") is None


def test_items_are_selected_and_listed(explored: dict[str, Path], opened: Opened) -> None:
    page = opened(explored["pictures"])
    names = page.evaluate("unremix.map.data.names")
    labels = np.array(page.evaluate("unremix.map.data.labels"))
    chosen = "unremix.selection.sorted()"

    def saved(button: str) -> str:
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        return Path(download.value.path()).read_bytes().decode()

    # A class, then another one beside it.
    page.select_option("#set", "1")
    page.locator("#select-set").click()
    assert page.evaluate(chosen) == np.flatnonzero(labels == 1).tolist()
    page.select_option("#set", "2")
    page.locator("#add-set").click()
    assert page.evaluate(chosen) == np.flatnonzero((labels == 1) | (labels == 2)).tolist()
    assert saved("Save as text").splitlines() == [names[n] for n in page.evaluate(chosen)]
    # A lasso around everything in the left half, by the pointer.
    page.get_by_role("button", name="Draw a lasso").click()
    canvas = page.locator("#map .surface canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, top = box["x"], box["y"]
    corners = [(2, 2), (box["width"] / 2, 2), (box["width"] / 2, box["height"] - 2)]
    page.mouse.move(left + corners[0][0], top + corners[0][1])
    page.mouse.down()
    for x, y in [*corners[1:], (2, box["height"] - 2)]:
        page.mouse.move(left + x, top + y, steps=5)
    page.mouse.up()
    places = page.evaluate("unremix.map.data.names.map((_, item) => unremix.map.place(item)[0])")
    inside = np.flatnonzero(np.array(places) < box["width"] / 2).tolist()
    assert page.evaluate(chosen) == inside
    assert page.evaluate("unremix.map.chosen") is None
    assert f"{len(inside)} of 120 selected" in page.locator("#selection").inner_text()
    # All but one of each pair, as they were planted; the threshold moves the groups.
    page.get_by_role("button", name="all but one").click()
    assert page.evaluate(chosen) == [40, 41, 42]
    rows = list(csv.DictReader(io.StringIO(saved("Save as CSV"))))
    assert [row["name"] for row in rows] == [names[n] for n in (40, 41, 42)]
    assert all(row["cluster"].isdigit() for row in rows)
    page.locator("#threshold").evaluate("one => { one.value = 1; }")
    page.locator("#threshold").dispatch_event("input")
    page.locator("#duplicate-rows section").first.wait_for(state="detached")
    page.get_by_role("button", name="As advised").click()
    assert page.locator("#duplicate-rows section").count() == 3
    # A cluster, what contradicts its neighbors, and the keyboard.
    page.locator("#cluster-rows button").first.click()
    cluster = page.evaluate("unremix.map.data.clusters")
    assert page.evaluate(chosen) == [n for n, one in enumerate(cluster) if one == 0]
    page.locator("#select-suspicious").click()
    assert page.evaluate(chosen) == [50]
    page.get_by_role("button", name="Draw a lasso").click()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert page.evaluate(chosen) == sorted({50, page.evaluate("unremix.map.chosen")})
    page.get_by_role("button", name="Clear").click()
    assert page.evaluate(chosen) == []


def test_items_are_found_and_batches_changed(explored: dict[str, Path], opened: Opened) -> None:
    page = opened(explored["texts"])
    page.locator("#find").fill("bold")
    assert page.locator("#found button").count() == 1
    page.keyboard.press("Enter")
    item = page.evaluate("unremix.map.chosen")
    assert page.evaluate("unremix.map.data.names")[item] == HOSTILE[2]
    # Its nearest neighbor, and from there to the next.
    page.locator("#map .near button").first.click()
    assert page.evaluate("unremix.map.chosen") != item
    page.locator("#find").fill("no such name at all")
    assert page.locator("#found-count").inner_text() == "0 found"
    page.locator("#find").fill("")
    # Names that a spreadsheet would run, and line breaks, in the lists.
    page.evaluate("unremix.selection.set([0, 1, 2, 3, 4, 5, 6, 7])")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("unremix.selection.csv()"))))
    assert [row["name"] for row in rows] == [*HOSTILE[:6], *(f"'{one}" for one in HOSTILE[6:])]
    assert len(page.evaluate("unremix.selection.text()").splitlines()) == 8
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main b:text('bold')").count() == 0
    # Another batch has other anchors, ranked by its own scores.
    first = page.evaluate("unremix.explorer.data.batch")
    page.select_option("#batch", "1")
    batch = page.evaluate("unremix.explorer.data.batch")
    assert not set(first) & set(batch)
    assert page.locator("#explorer .column").count() == 6
    page.evaluate("unremix.explorer.picker.choose(3)")
    rows_of_texts = np.load(explored["texts"].with_name("x.npz"))["embeddings"]
    z = torch.from_numpy(rows_of_texts)[torch.tensor(batch)]
    whole = unremix.importance(z, z, layout="one-way", mix=(1 / 3, 1 / 3, 1 / 3))
    np.testing.assert_allclose(
        shown_weights(page)["weight_unremix"], whole.weights[3][whole.negatives[3]], rtol=1e-3
    )
