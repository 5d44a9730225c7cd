"""FSDP2: a divided model trains, is saved and resumed as a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from batches import assert_close
from launching import finish, torchrun, train_words
from processes import Report, processes
from same_runs import assert_same
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from unremix.domains.options import TrainConfig, make_config
from unremix.training.preparation import check, prepare
from unremix.training.run import Run
from unremix.training.sharding import blocks, divide, gathered, is_divided, shard

EXACT = ["--backbone", "resnet18", "--head_batch_norm", "false", "--precision", "64-true"]


def make_model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        return nn.Sequential(block, nn.Linear(4, 3, bias=False)).double()


def a_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()


def divided(world: int) -> Report:
    """What a process holds, and the weights after steps with a break between them."""
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    rows = torch.arange(32.0).double().view(8, 4).sin().chunk(world)[torch.distributed.get_rank()]
    model = make_model()
    shard(model, mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    a_step(model, optimizer, rows)
    held = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    state, moments = gathered(model.state_dict()), gathered(optimizer.state_dict())
    again = make_model()
    again.load_state_dict(state)
    shard(again, mesh)
    resumed = torch.optim.Adam(again.parameters(), lr=0.1, fused=True)
    resumed.load_state_dict(moments)
    divide(resumed)
    local = {p.to_local().numel() for p in resumed.state_dict()["state"][0].values() if p.dim()}
    a_step(again, resumed, rows)
    return {"held": held, "divided": is_divided(again), "local": local,
            "state": gathered(again.state_dict())}  # fmt: skip


@pytest.mark.xdist_group("gather")
@pytest.mark.parametrize("world", [2, 3])
def test_a_divided_model_is_the_whole_one(world: int, tmp_path: Path) -> None:
    reports = processes(world, divided, tmp_path)
    model = make_model()
    assert list(blocks(model)) == [model[0]]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    parts = torch.arange(32.0).double().view(8, 4).sin().chunk(world)
    for _ in range(2):  # the mean over processes of the gradients of each part
        optimizer.zero_grad()
        torch.stack([model(part).square().mean() for part in parts]).mean().backward()
        optimizer.step()
    assert sum(report["held"] for report in reports) == sum(p.numel() for p in model.parameters())
    for report in reports:
        assert report["divided"]
        assert max(report["local"]) < 24  # of the 6 × 4 weights of the first layer
        for name, value in model.state_dict().items():
            assert_close(report["state"][name], value, 1e-9)


def test_what_needs_whole_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fsdp without --chunk and --audit_every"):
        prepare(TrainConfig(runs=str(tmp_path), strategy="fsdp", chunk=8))
    for options in ({"recipe": "swav"}, {"recipe": "moco", "framework": "swav"}):
        with pytest.raises(ValueError, match="be divided, got swav"):
            check(make_config({"runs": str(tmp_path), "strategy": "fsdp", **options}))
    check(make_config({"strategy": "fsdp", "recipe": "swav", "framework": "moco"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "optimizer"), [("unremix-simclr", "adam"), ("unremix-moco", "lars"), ("hcl", "sgd")]
)
def test_fsdp_trains_as_ddp(tmp_path: Path, recipe: str, optimizer: str) -> None:
    further = ["--recipe", recipe, "--optimizer", optimizer, *EXACT]
    if recipe == "unremix-moco":
        further += ["--moco.queue", "20"]
    for strategy in ("ddp", "fsdp"):
        words = train_words(tmp_path / strategy, *further, "--epochs", "2")
        finish(torchrun([*words, "--strategy", strategy]))
    ddp, fsdp = (Run(tmp_path / name / "run") for name in ("ddp", "fsdp"))
    found, expected = fsdp.load_checkpoint(), ddp.load_checkpoint()
    for name, tensor in expected["model"].items():
        assert_close(found["model"][name], tensor, 1e-7)
    assert fsdp.metrics()[-1] == pytest.approx(ddp.metrics()[-1], rel=1e-5)
    for number, moments in expected["optimizer"]["state"].items():
        for name, value in moments.items():
            other = found["optimizer"]["state"][number][name]
            assert_close(torch.as_tensor(other).double(), torch.as_tensor(value).double(), 1e-7)


@pytest.mark.slow
def test_fsdp_resumes_to_the_bit_and_in_one_process(tmp_path: Path) -> None:
    further = ["--strategy", "fsdp", *EXACT]
    for name, epochs in (("whole", 3), ("resumed", 2), ("alone", 2)):
        finish(torchrun(train_words(tmp_path / name, *further, "--epochs", str(epochs))))
    longer = ["-m", "unremix", "train", "--progress", "false", "--epochs", "3", "--resume"]
    finish(torchrun([*longer, str(tmp_path / "resumed" / "run")]))
    finish(torchrun([*longer, str(tmp_path / "alone" / "run")], processes=1))
    whole, resumed, alone = (Run(tmp_path / n / "run") for n in ("whole", "resumed", "alone"))
    assert_same(resumed, whole)
    assert alone.load_checkpoint()["step"] == whole.load_checkpoint()["step"]
