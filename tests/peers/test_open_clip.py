"""The adapter for open_clip against its ClipLoss, on its models and across processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision_operators  # noqa: F401, before open_clip, in spawned processes too
from torch import Tensor, nn
from torch.nn.functional import normalize

import open_clip  # isort: skip
from open_clip.loss import ClipLoss  # isort: skip
import unremix
from unremix.adapters.open_clip import UnReMixClipLoss


def features(count: int = 6, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, count, 5, generator=generator, dtype=torch.float64)
    return [normalize(each, dim=1).requires_grad_() for each in drawn]


def clip_gradients(loss_fn: nn.Module, bias: float | None, *views: Tensor) -> list[Tensor]:
    scale = torch.tensor(14.0, dtype=torch.float64, requires_grad=True)
    given = () if bias is None else (torch.tensor(bias, dtype=torch.float64, requires_grad=True),)
    loss = loss_fn(*views, scale, *given)
    return [loss, *torch.autograd.grad(loss, [*views, scale, *given])]


def tangent(found: list[Tensor], views: list[Tensor]) -> list[Tensor]:
    """The gradients at normalized features without their part along the features."""
    along = [g - (g * z).sum(1, keepdim=True) * z for g, z in zip(found[1:3], views, strict=True)]
    return [found[0], *along, *found[3:]]


@pytest.mark.parametrize("bias", [None, -10.0])
def test_without_components_it_is_clip_s_loss(bias: float | None) -> None:
    """Up to the gradient along normalized features, which their normalization removes."""
    views = features()
    ours = clip_gradients(UnReMixClipLoss(components=()), bias, *views)
    theirs = clip_gradients(ClipLoss(), bias, *views)
    torch.testing.assert_close(tangent(ours, views), tangent(theirs, views), atol=1e-10, rtol=1e-7)


def test_the_gradient_at_the_model_is_clip_s() -> None:
    raw = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    found = []
    for loss_fn in (UnReMixClipLoss(components=()), ClipLoss()):
        loss = loss_fn(*(normalize(each, dim=1) for each in raw), 20.0)
        found.append([loss, *torch.autograd.grad(loss, raw)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("count", [1, 2])
def test_small_batches_and_shapes_of_the_scale(count: int, shape: tuple[int, ...]) -> None:
    views = features(count)
    found = []
    for loss_fn in (UnReMixClipLoss(components=()), ClipLoss()):
        scale = torch.full(shape, 14.0, dtype=torch.float64, requires_grad=True)
        loss = loss_fn(*views, scale, -10.0)
        found.append([loss, *torch.autograd.grad(loss, [scale])])
    torch.testing.assert_close(found[0], found[1])


def test_a_scale_of_half_precision_is_not_rounded_again() -> None:
    views = [each.detach() for each in features()]
    scale = torch.tensor(83.5, dtype=torch.bfloat16)
    found = UnReMixClipLoss(components=())(*views, scale)
    torch.testing.assert_close(found, ClipLoss()(*views, scale.double()))


def test_output_dict() -> None:
    views = features()
    found = UnReMixClipLoss()(*views, 10.0, output_dict=True)
    assert list(found) == ["contrastive_loss"]
    torch.testing.assert_close(found["contrastive_loss"], UnReMixClipLoss()(*views, 10.0))


def small_clip() -> nn.Module:
    return open_clip.CLIP(
        embed_dim=8,
        vision_cfg={"image_size": 16, "patch_size": 8, "width": 12, "layers": 1, "head_width": 4},
        text_cfg={"context_length": 6, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1},
    )


def test_open_clip_s_model() -> None:
    """Its towers end in parameters of different widths; its features are normalized."""
    model = small_clip()
    projection = (model.visual.proj, model.text_projection)
    assert projection[0].shape[0] != projection[1].shape[0]
    loss_fn = UnReMixClipLoss(projection=projection)
    images, texts = torch.randn(4, 3, 16, 16), torch.randint(1, 20, (4, 6))
    image_features, text_features, scale = model(images, texts)
    loss = loss_fn(image_features, text_features, scale)
    loss.backward()
    assert model.logit_scale.grad.abs() > 0
    assert loss_fn.weighted.mix_parameters.grad.abs().sum() > 0
    without = UnReMixClipLoss()(*(each.detach() for each in (image_features, text_features)), scale)
    assert (loss - without).abs() > 1e-6


def test_open_clip_s_resnet() -> None:
    """Its image tower ends in a linear layer that attention multiplies with by itself."""
    model = open_clip.CLIP(
        embed_dim=8,
        vision_cfg={"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16},
        text_cfg={"context_length": 6, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1},
    )
    layer = model.visual.attnpool.c_proj
    loss_fn = UnReMixClipLoss(last_layer=(layer, model.text_projection))
    images, texts = torch.randn(4, 3, 32, 32), torch.randint(1, 20, (4, 6))
    image_features, text_features, scale = model(images, texts)
    known, _ = loss_fn.weighted.views_of(image_features, text_features)
    made = model.visual(images)  # before normalization, as W h + b
    torch.testing.assert_close(known.outputs, made, atol=1e-4, rtol=1e-4)
    loss_fn(image_features, text_features, scale).backward()
    assert loss_fn.weighted.mix_parameters.grad.abs().sum() > 0


@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}])
def test_features_from_distributed_data_parallel(options: dict[str, bool], tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = small_clip()
        loss_fn = UnReMixClipLoss(projection=(model.visual.proj, model.text_projection))
        given = torch.randn(4, 3, 16, 16), torch.randint(1, 20, (4, 6))
        expected = loss_fn(*model(*given))
        wrapped = nn.parallel.DistributedDataParallel(model, **options)
        loss = loss_fn(*wrapped(*given))
        torch.testing.assert_close(loss, expected)
        loss.backward()
    finally:
        dist.destroy_process_group()


def test_classes_make_images_and_texts_positives() -> None:
    images, texts = features()
    labels = torch.tensor([0, 1, 0, -1, -1, 1])
    loss = UnReMixClipLoss(components=())(images, texts, 10.0, labels=labels)
    same = torch.eye(6).bool() | ((labels[:, None] == labels) & (labels >= 0))
    logits = 10 * images @ texts.T
    sides = [(each.logsumexp(1)[:, None] - each)[same] for each in (logits, logits.T)]
    shares = same / same.sum(1, keepdim=True) / 6
    expected = sum((side * shares[same]).sum() for side in sides) / 2
    torch.testing.assert_close(loss, expected)


def test_arguments_are_those_of_clip_s_loss() -> None:
    import inspect

    ours = [name for name, its in inspect.signature(UnReMixClipLoss).parameters.items()
            if its.kind is its.POSITIONAL_OR_KEYWORD]  # fmt: skip
    assert ours == list(inspect.signature(ClipLoss).parameters)
    UnReMixClipLoss(cache_labels=True, use_horovod=False)  # as create_loss passes them
    with pytest.raises(ValueError, match="use_horovod=False"):
        UnReMixClipLoss(use_horovod=True)


def test_half_precision() -> None:
    views = [each.detach() for each in features()]
    half = UnReMixClipLoss()(*(each.bfloat16() for each in views), 10.0)
    torch.testing.assert_close(half.double(), UnReMixClipLoss()(*views, 10.0), atol=0.05, rtol=0.02)


# Across processes


def batch(rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs of the layers and the features they make, of one process."""
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = list(torch.randn(2, 3, 4, generator=generator, dtype=torch.float64))
    return inputs, projections(inputs)


def layers() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    return [nn.Parameter(each) for each in drawn]


def projections(inputs: list[Tensor], weights: list[nn.Parameter] | None = None) -> list[Tensor]:
    weights = layers() if weights is None else weights
    return [normalize(h @ w, dim=1) for h, w in zip(inputs, weights, strict=True)]


COMBINATIONS = [(local, with_grad) for local in (True, False) for with_grad in (True, False)]


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    reports: dict[Any, dict[str, Any]] = {}
    for local_loss, gather_with_grad in COMBINATIONS:
        options = {"local_loss": local_loss, "gather_with_grad": gather_with_grad}
        report = reports[local_loss, gather_with_grad] = {}
        weights = layers()
        made = projections(batch(rank)[0], weights)
        several = {"rank": rank, "world_size": 2, **options}
        for name, loss_fn in {
            "ours": UnReMixClipLoss(components=(), **several),
            "theirs": ClipLoss(**several),
            "weighted": UnReMixClipLoss(projection=tuple(weights), **several),
        }.items():
            own = list(loss_fn.parameters())
            loss = loss_fn(*made, 10.0)
            found = torch.autograd.grad(loss, [*weights, *own], retain_graph=True)
            report[name] = [loss.detach(), *found]
    torch.save(reports, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, Any]]]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(run, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_two_processes(
    reports: list[dict[Any, dict[str, Any]]], combination: tuple[bool, bool]
) -> None:
    for report in reports:
        found = report[combination]
        torch.testing.assert_close(found["ours"], found["theirs"])
    weights = layers()
    inputs = [torch.cat(both) for both in zip(*(batch(rank)[0] for rank in range(2)), strict=True)]
    joint = unremix.UnReMixLoss(projection=tuple(weights), layout="symmetric")
    loss = joint(*projections(inputs, weights), temperature=0.1)
    *expected, of_mix = [
        loss.detach(), *torch.autograd.grad(loss, [*weights, *joint.parameters()])
    ]  # fmt: skip
    local_loss, gather_with_grad = combination
    found = [report[combination]["weighted"] for report in reports]
    means = [torch.stack(both).mean(0) for both in zip(*found, strict=True)]
    torch.testing.assert_close(means[0], expected[0])
    for one in found:
        torch.testing.assert_close(one[3], of_mix)  # the same mix in both processes
        if not local_loss:  # each process computes the loss of the joint batch
            torch.testing.assert_close(one[0], expected[0])
    if local_loss and gather_with_grad:  # what DistributedDataParallel averages
        torch.testing.assert_close(means[1:3], expected[1:3])
