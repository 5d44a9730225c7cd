"""InfoGraph against loops over node-graph pairs, and graphs from the command line."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from batches import assert_close
from building import all_gradients_of, draw, recorded_ids, reference_weights
from crashing import crash_at
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.cli import main
from unremix.core.contrast import contrast, make_problem
from unremix.core.engines import eager
from unremix.core.objectives import JensenShannon
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.views import Views
from unremix.core.weights import raw_scores, weigh
from unremix.domains import find_domain
from unremix.domains.graph.encoders import GraphEncoder
from unremix.domains.graph.infograph import InfoGraph, InfoGraphOptions, hard_jsd
from unremix.domains.graph.store import GraphBatch
from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Batch
from unremix.losses import TwoViewLoss
from unremix.training.building import build_model
from unremix.training.run import Run

LOG2 = math.log(2)
SIZES = (3, 1, 4, 2, 3)  # nodes of each graph; one has a single node
FEATURES = 4


def make_graphs(order: Sequence[int] = range(len(SIZES))) -> GraphBatch:
    """Paths of several lengths, in some order; the last has no edge."""
    x, edges, owner, start = [], [], [], 0
    for place, which in enumerate(order):
        size = SIZES[which]
        x.append(draw(size, FEATURES, seed=which))
        if which != len(SIZES) - 1:
            ends = torch.arange(size - 1) + start
            edges += [torch.stack([ends, ends + 1]), torch.stack([ends + 1, ends])]
        owner.append(torch.full((size,), place))
        start += size
    return GraphBatch(torch.cat(x), torch.cat(edges, dim=1), torch.cat(owner), len(order))


def make_model(loss: TwoViewLoss, **options: Any) -> InfoGraph:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = GraphEncoder(FEATURES, hidden=3, layers=2)
        model = InfoGraph(encoder, loss, options=InfoGraphOptions(**options)).double()
    for parameter in loss.parameters():  # unequal shares, so that each matters
        parameter.data += torch.tensor([0.3, -0.2, 0.1])
    return model


class Bare(torch.nn.Module):
    """In place of an encoder: embeddings that are given."""

    def __init__(self, nodes: Tensor, graphs: Tensor) -> None:
        super().__init__()
        self.given, self.features = (nodes, graphs), nodes.shape[1]

    def nodes_and_graphs(self, graphs: GraphBatch) -> tuple[Tensor, Tensor]:
        return self.given


def as_batch(graphs: GraphBatch) -> Batch:
    number = torch.arange(graphs.num_graphs)
    return Batch((graphs,), number, number, number[:1])


def embed(model: InfoGraph, graphs: GraphBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z and h of the nodes, z and h of the graphs."""
    nodes, whole = model.encoder.nodes_and_graphs(graphs)
    return model.nodes(nodes), nodes, model.graphs(whole), whole


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, 1e-8)


# The loss.


UNREMIX: dict[str, dict[str, Any]] = {
    "minmax": {},
    "zscore-exp": {"scaling": "zscore-exp", "hardness": 0.7},
    "no mass": {"mass": "none"},
    "similarity gradient": {"similarity_gradient": True},
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("objective", ["jsd", "info-nce"])
@pytest.mark.parametrize("name", ["uniform", *UNREMIX])
def test_the_loss_equals_a_loop_over_nodes_and_graphs(name: str, objective: Any) -> None:
    uniform = name == "uniform"
    loss_fn: TwoViewLoss = (
        InfoNCELoss(temperature=1.0)
        if uniform
        else UnReMixLoss(temperature=1.0, tile=4, **UNREMIX[name])
    )
    graphs = make_graphs()
    model = make_model(loss_fn, objective=objective)
    actual = model(as_batch(graphs))
    za, ha, zc, hc = embed(model, graphs)
    positives = torch.nn.functional.one_hot(graphs.graph, graphs.num_graphs).bool()
    weights = (~positives).double()
    if not uniform:
        mix = loss_fn.lambdas()
        assert mix is not None
        pairs = Pairs.from_masks(positives, ~positives)
        weights = reference_weights(za, zc, ha, hc, pairs, mix, loss_fn.weighting)
    x = reference.dots(za, zc)
    if objective == "jsd":
        expected = reference.jsd(x, positives, ~positives, weights)
    else:
        expected = reference.info_nce(x, positives, ~positives, weights, temperature=1.0)
    assert_close(actual, expected)
    assert_same_gradients(all_gradients_of(actual, model), all_gradients_of(expected, model))


def test_scores_see_which_graphs_they_score() -> None:
    seen: list[list[int]] = []

    graphs = make_graphs()
    batch = replace(as_batch(graphs), samples=torch.arange(graphs.num_graphs) + 20)
    make_model(UnReMixLoss(components=[recorded_ids(seen)], mix="fixed"))(batch)
    assert seen == [(graphs.graph + 20).tolist(), batch.samples.tolist()]


def test_infonce_with_uniform_weights_is_a_cross_entropy() -> None:
    graphs = make_graphs()
    model = make_model(InfoNCELoss(temperature=1.0), objective="info-nce")
    za, _, zc, _ = embed(model, graphs)
    expected = torch.nn.functional.cross_entropy(za @ zc.T, graphs.graph)
    assert_close(model(as_batch(graphs)), expected)


HARD = [
    {"hardness": hardness, "class_prior": class_prior}
    for hardness in (0.0, 1.0, 2.5)
    for class_prior in (0.0, 0.1, 0.5)
]


@pytest.mark.parametrize("options", HARD)
def test_hcl_equals_the_loops(options: dict[str, float]) -> None:
    groups = torch.tensor([0, 0, 1, 2, 2, 3, 1])
    for seed, size in enumerate((0.5, 3.0, 20.0)):
        x = (size * draw(7, 4, seed=seed)).requires_grad_()
        actual, expected = (
            hard_jsd(x, groups, **options),
            reference.hard_jsd(x, groups.tolist(), **options),
        )
        assert_close(actual, expected)
        assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (actual, expected)), 1e-9)


@pytest.mark.parametrize("options", HARD[3:])
def test_hcl_as_its_public_code_has_it(options: dict[str, float]) -> None:
    """Gradients are equal; values differ by what no parameter moves.

    The code counts log 2 for each pair that it masks: on the negative side as one further -log 2
    per member, spread over M - 1 groups; on the positive side τ⁺/(1-τ⁺) log 2 for each other group.
    """
    groups = torch.tensor([0, 0, 1, 2, 2, 3, 1])
    others, prior = 3, options["class_prior"]
    for seed, size in enumerate((0.5, 3.0, 20.0)):
        x = (size * draw(7, 4, seed=seed)).requires_grad_()
        actual = hard_jsd(x, groups, fidelity="code", **options)
        expected = reference.hard_jsd_public(x, groups.tolist(), **options)
        assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (actual, expected)), 1e-9)
        constant = others * prior / (1 - prior) * LOG2 - LOG2 / others
        assert_close(expected - actual, torch.tensor(constant, dtype=torch.float64), 1e-9)


def test_the_two_signs_favor_hard_and_easy_negatives() -> None:
    x, groups = torch.tensor([[0.0, 2.0, -2.0]]).double(), torch.tensor([0])

    def pull(**options: Any) -> Tensor:
        """How much of the gradient to the negatives falls on each, the weights held."""
        leaf = x.clone().requires_grad_()
        loss = hard_jsd(leaf, groups, class_prior=0.0, similarity_gradient=False, **options)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient[0, 1:] / torch.sigmoid(x[0, 1:])

    hard, easy = pull(), pull(fidelity="code")
    assert_close(hard[0] / hard[1], torch.tensor(math.exp(4), dtype=torch.float64))
    assert_close(easy[0] / easy[1], torch.tensor(math.exp(-4), dtype=torch.float64))


def test_hcl_without_hardness_and_prior_is_the_uniform_estimate() -> None:
    za, zc, groups = draw(6, 3), draw(4, 3, seed=1), torch.tensor([0, 1, 1, 2, 3, 3])
    options = Options(objective=JensenShannon(), logits="dot")
    pairs = Pairs.membership(groups, 4)
    expected = contrast(ContrastInput(Views(za), Views(zc), pairs), options, temperature=1.0)
    assert_close(hard_jsd(za @ zc.T, groups, hardness=0.0, class_prior=0.0), expected)


def test_gradient_through_the_weights_of_hcl_can_be_cut() -> None:
    x, groups = draw(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    flowing, cut = (
        torch.autograd.grad(hard_jsd(x, groups, similarity_gradient=flows), x)[0]
        for flows in (True, False)
    )
    assert not torch.allclose(flowing, cut)


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=12, max_size=12),
    st.floats(0, 5),
    st.floats(0, 0.95),
)
def test_hcl_is_bounded_below(values: list[float], hardness: float, class_prior: float) -> None:
    x = torch.tensor(values, dtype=torch.float64).view(4, 3).requires_grad_()
    loss = hard_jsd(x, torch.tensor([0, 1, 2, 0]), hardness=hardness, class_prior=class_prior)
    assert float(loss.detach()) >= -2 * LOG2 - 1e-12
    (gradient,) = torch.autograd.grad(loss, x)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fidelity": "foo"}, "fidelity to be .*, got 'foo'"),
        ({"class_prior": 1.0}, "class_prior .* below 1, got 1.0"),
        ({"hardness": -1.0}, "hardness to be a number at least 0"),
    ],
)
def test_hcl_refuses_what_makes_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hard_jsd(torch.zeros(3, 2), torch.tensor([0, 0, 1]), **options)


def test_hcl_needs_a_second_group() -> None:
    with pytest.raises(ValueError, match="at least one negative"):
        hard_jsd(draw(3, 1), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("fidelity", ["sound", "code"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_hcl_on_infograph(fidelity: Any, temperature: float) -> None:
    graphs = make_graphs()
    loss_fn = HCLLoss(temperature=temperature, hardness=1.5, class_prior=0.2, fidelity=fidelity)
    model = make_model(loss_fn)
    za, _, zc, _ = embed(model, graphs)
    loop = reference.hard_jsd if fidelity == "sound" else reference.hard_jsd_public
    logits = za @ zc.T / temperature
    expected = loop(logits, graphs.graph.tolist(), hardness=1.5, class_prior=0.2)
    actual = model(as_batch(graphs))
    if fidelity == "sound":
        assert_close(actual, expected)
    assert_same_gradients(all_gradients_of(actual, model), all_gradients_of(expected, model))


@pytest.mark.parametrize(
    "options", [{}, {"scaling": "zscore-exp"}, {"components": ("similarity",)}]
)
def test_weights_average_one_and_spare_the_own_graph(options: dict[str, Any]) -> None:
    loss_fn = UnReMixLoss(temperature=1.0, mix="fixed", **options).double()
    graphs = make_graphs()
    model = make_model(loss_fn)
    za, ha, zc, hc = (part.detach() for part in embed(model, graphs))
    pairs = Pairs.membership(graphs.graph, graphs.num_graphs)
    compared = ContrastInput(Views(za, ha), Views(zc, hc), pairs)
    options, weighting = replace(loss_fn.options, logits="dot"), loss_fn.weighting
    problem, vectors = make_problem(compared, options, 1.0, eager.ENGINE)
    _, rows = problem.compare(*vectors)
    scores = raw_scores(rows, weighting)
    weights = weigh(scores, rows.negatives, rows.count, loss_fn.lambdas(), weighting)
    own = torch.nn.functional.one_hot(graphs.graph, graphs.num_graphs).bool()
    assert bool((weights[own] == 0).all())
    assert_close(weights.sum(1) / (graphs.num_graphs - 1), torch.ones(len(za)).double())
    assert float(weights.std()) > 0.1  # or the test would hold for uniform weights


MODELS: dict[str, Any] = {
    "infograph": partial(InfoNCELoss, temperature=1.0),
    "hcl": partial(HCLLoss, temperature=1.0),
    "hcl as its code": partial(HCLLoss, temperature=1.0, fidelity="code"),
    "unremix": partial(UnReMixLoss, temperature=1.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_the_graphs_does_not_matter(name: str) -> None:
    model = make_model(MODELS[name]())
    in_order = model(as_batch(make_graphs()))
    shuffled = model(as_batch(make_graphs([3, 0, 4, 1, 2])))
    assert_close(shuffled, in_order)
    assert_same_gradients(all_gradients_of(shuffled, model), all_gradients_of(in_order, model))


class Operations(TorchDispatchMode):
    """Counts operations, and remembers the largest piece of memory that one gave back."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self.count += 1
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("name", MODELS)
def test_memory_is_nodes_times_graphs_and_no_node_is_visited_alone(name: str) -> None:
    graphs, width = 16, 64
    found = []
    for nodes in (500, 1000, 2000):  # the first makes what is made once
        anchors, candidates = draw(nodes, width), draw(graphs, width, seed=1)
        model = InfoGraph(Bare(anchors, candidates), MODELS[name]()).double()
        owner = torch.arange(nodes) % graphs
        batch = as_batch(GraphBatch(anchors, torch.zeros(2, 0).long(), owner, graphs))
        with Operations() as operations:
            model(batch).backward()
        found.append(operations.count)
        # As large as the nodes' embeddings; (nodes, graphs, width) would be 16 times that.
        assert operations.largest <= 8 * nodes * (width + 2)
    assert found[1] == found[2]


def test_what_infograph_refuses() -> None:
    with pytest.raises(ValueError, match="class_prior=0 on InfoGraph"):
        make_model(InfoNCELoss(temperature=1.0, class_prior=0.1))
    with pytest.raises(ValueError, match="class_prior=0 on InfoGraph"):
        make_model(HCLLoss(temperature=1.0), objective="info-nce")
    with pytest.raises(ValueError, match="pseudo-label"):
        make_model(UnReMixLoss(temperature=1.0, gradient="nt-xent"))
    with pytest.raises(ValueError, match="objective"):
        make_model(InfoNCELoss(temperature=1.0), objective="other")  # type: ignore[arg-type]


# From the command line.


COMMON = [
    "--accelerator", "cpu", "--threads", "1", "--batch_size", "16", "--graph.hidden", "4",
    "--graph.folds", "3", "--progress", "false",
]  # fmt: skip


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rings and stars of several sizes, by what they are."""
    file = tmp_path_factory.mktemp("graphs") / "shapes.jsonl"
    rows = []
    for number in range(40):
        size = 4 + number % 5
        ring = [[i, (i + 1) % size] for i in range(size)]
        star = [[0, i] for i in range(1, size)]
        edges, label = (ring, "ring") if number % 2 else (star, "star")
        rows.append({"edges": edges, "label": label, "name": f"graph {number}"})
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture(scope="module")
def trained(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    runs = tmp_path_factory.mktemp("runs")
    arguments = ["--data", str(lines), "--runs", str(runs), "--name", "run", "--epochs", "4"]
    assert main(["train", "--recipe", "infograph-unremix", *arguments, *COMMON]) == 0
    return unremix.load(runs / "run")


def test_train_on_json_lines(trained: Run) -> None:
    card = trained.evaluation
    assert card is not None
    assert card["recipe"] == "infograph-unremix"
    assert card["train_graphs"] == 40
    assert set(card["results"]) == {"trained", "untrained", "summed node features"}
    assert len(card["results"]["trained"]["svm"]["accuracies"]) == 3
    assert card["protocol"]["svm"]["outer_folds"] == 3
    last = trained.metrics()[-1]
    assert sum(last[f"mix_{name}"] for name in ("uncertainty", "similarity", "representativeness")
               ) == pytest.approx(1)  # fmt: skip
    assert (trained.path / "report.html").exists()


def test_evaluate_embed_and_report(
    trained: Run, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.path, run)
    before = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").unlink()
    (run / "report.html").unlink()
    assert main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text()) == before
    assert "SVM" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--data", str(lines)]) == 0
    assert (run / "evaluation-shapes.json").exists()
    assert main(["embed", str(run), "-o", str(tmp_path / "e.npz")]) == 0
    with np.load(tmp_path / "e.npz", allow_pickle=False) as arrays:
        assert arrays["embeddings"].shape == (40, 12)
        assert arrays["names"][1] == "graph 1"
        assert arrays["labels"].tolist() == [number % 2 == 0 for number in range(40)]
    assert main(["report", str(run)]) == 0
    assert "infograph-unremix" in (run / "report.html").read_text()


def test_a_crash_changes_nothing(trained: Run, lines: Path, tmp_path: Path) -> None:
    with crash_at(5):
        unremix.train(replace(trained.config, runs=str(tmp_path), progress=False))
    assert main(["train", "--resume", str(tmp_path / "run"), "--progress", "false"]) == 0
    resumed = unremix.load(tmp_path / "run")
    one, other = trained.load_checkpoint(), resumed.load_checkpoint()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    assert resumed.evaluation == trained.evaluation
    assert resumed.metrics() == trained.metrics()


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        pytest.param("infograph", ["--infograph.objective", "info-nce"], marks=pytest.mark.slow),
        ("infograph-hcl", ["--loss.fidelity", "code", "--loss.class_prior", "0.5"]),
        ("graphcl-unremix", ["--graph.kinds", "[nodes,edges]"]),
    ],
)
def test_syntax_trees(recipe: str, options: list[str], tmp_path: Path) -> None:
    """A part of the embedded data, under the other recipes."""
    arguments = ["train", "--domain", "graph", "--recipe", recipe, "--limit", "240", *options]
    name = ["--runs", str(tmp_path), "--name", "run", "--epochs", "1"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*have fewer than.*")
        assert main([*arguments, *name, *COMMON]) == 0
    run = unremix.load(tmp_path / "run")
    assert math.isfinite(run.metrics()[-1]["loss"])
    assert run.evaluation is not None
    assert run.evaluation["data"] == "stdlib-ast"


@pytest.mark.slow
@pytest.mark.usefixtures("warm_runs")
def test_compare(lines: Path, tmp_path: Path) -> None:
    arguments = [
        "compare", "--recipes", "infograph,infograph-unremix", "--seeds", "1", "--epochs", "1",
        "--data", str(lines), "--output", str(tmp_path / "c"), "--accelerator", "cpu",
        "--batch_size", "16", "--graph.hidden", "4", "--graph.folds", "3", "--jobs", "1",
        "--progress", "false",
    ]  # fmt: skip
    assert main(arguments) == 0
    table = (tmp_path / "c" / "table.md").read_text()
    assert "infograph-unremix" in table
    assert "SVM − infograph" in table


BAD: list[tuple[list[str], str]] = [
    (["--data", "no-such-set"], "no-such-set"),
    (["--recipe", "simclr", "--domain", "graph"], "graph data"),
    (["--chunk", "4"], "chunk"),
    (["--recipe", "infograph", "--loss.hardness", "2"], "would do nothing"),
    (["--recipe", "infograph-unremix", "--loss.class_prior", "0.1"], "class_prior=0 on InfoGraph"),
    (["--recipe", "infograph-unremix", "--loss.gradient", "nt-xent"], "pseudo-label"),
    (["--graph.kinds", "[nodes,noise]", "--recipe", "graphcl"], "noise"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_options_are_told_in_one_line(
    arguments: list[str], message: str, lines: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    defaults = {"--data": str(lines), "--recipe": "infograph"}
    given = [word for name in defaults if name not in arguments for word in (name, defaults[name])]
    assert main(["train", *given, *arguments, "--runs", str(tmp_path), *COMMON]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


BAD_LINES = {
    "no JSON": '{"edges": [[0, 1]',
    "a node too many": '{"edges": [[0, 5]], "nodes": 3}',
    "no pairs": '{"edges": [[0, 1, 2]]}',
    "features of another number": '{"edges": [[0, 1]], "node_features": [[1.0]]}',
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_lines_are_told_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"edges": [[0, 1]], "label": 0}\n' + BAD_LINES[name])
    runs = tmp_path / "runs"
    assert main(["train", "--recipe", "infograph", "--data", str(file), "--runs", str(runs)]) == 1
    shown = capsys.readouterr().err
    assert "bad" in shown
    assert shown.count("\n") == 1
    assert not runs.exists()


def test_options_reach_the_model() -> None:
    domain = find_domain("graph")
    config = TrainConfig(
        recipe="infograph-unremix", loss=dict(scaling="zscore-exp", hardness=2.0),
        infograph=dict(objective="info-nce"),
    )  # fmt: skip
    shape = domain.shape_from({"encoding": {"kind": "node-labels", "labels": [["a", "b"]]}})
    model = build_model(config, shape)
    assert isinstance(model, InfoGraph)
    assert model.objective == "info-nce"
    assert model.loss.weighting.sharpness == 2.0
    assert set(model.mix) == {"uncertainty", "similarity", "representativeness"}
