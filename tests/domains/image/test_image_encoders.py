from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu

from unremix.domains.image.encoders import External, make_encoder
from unremix.domains.image.resnet import BasicBlock, Bottleneck, ResNet, SmallCNN, to_torchvision
from unremix.frameworks.heads import projection_head

# As published for torchvision: parameters with the classifier of 1000 classes, and the classifier's
PUBLISHED = {
    18: (11_689_512, 513_000),
    34: (21_797_672, 513_000),
    50: (25_557_032, 2_049_000),
}
COUNTS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def torchvision_shapes(depth: int) -> dict[str, tuple[int, ...]]:
    """torchvision's state dict of a ResNet without ``fc``, by the rule of its names, in order."""
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, size: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (size,)
        shapes[f"{name}.num_batches_tracked"] = ()

    shapes["conv1.weight"] = (64, 3, 7, 7)
    norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(COUNTS[depth]):
        planes = 64 * 2**stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            if depth == 50:
                convs = [(planes, inputs, 1), (planes, planes, 3), (4 * planes, planes, 1)]
            else:
                convs = [(planes, inputs, 3), (planes, planes, 3)]
            for number, (out, into, size) in enumerate(convs, start=1):
                shapes[f"{name}.conv{number}.weight"] = (out, into, size, size)
                norm(f"{name}.bn{number}", out)
            outputs = convs[-1][0]
            if block == 0 and (stage > 0 or depth == 50):
                shapes[f"{name}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    return shapes


@pytest.mark.parametrize("depth", PUBLISHED)
def test_names_shapes_and_totals_are_torchvisions(depth: int) -> None:
    with torch.device("meta"):
        model = ResNet(depth, stem="imagenet")
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert list(shapes.items()) == list(torchvision_shapes(depth).items())
    total, classifier = PUBLISHED[depth]
    assert sum(parameter.numel() for parameter in model.parameters()) == total - classifier
    assert model.features == (2048 if depth == 50 else 512)


def test_some_names_and_shapes_known_by_heart() -> None:
    with torch.device("meta"):
        state = ResNet(50, stem="imagenet").state_dict()
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer3.5.conv2.weight"].shape == (256, 256, 3, 3)
    assert state["layer4.0.downsample.1.running_var"].shape == (2048,)
    assert state["layer4.2.bn3.bias"].shape == (2048,)
    assert "layer4.1.downsample.0.weight" not in state
    with torch.device("meta"):
        state = ResNet(18, stem="imagenet").state_dict()
    assert "layer1.0.downsample.0.weight" not in state
    assert state["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)


@pytest.mark.parametrize("depth", [18, 50])
def test_state_dict_round_trip(depth: int) -> None:
    source = ResNet(depth, width=8, stem="imagenet")
    images = torch.randn(4, 3, 32, 32)
    source(images)  # moves the running statistics away from their initial values
    state = to_torchvision(source)
    assert not any(name.startswith("fc") for name in state)
    target = ResNet(depth, width=8, stem="imagenet")
    target.load_state_dict(state)
    assert torch.equal(source.eval()(images), target.eval()(images))
    assert target.bn1.num_batches_tracked == 1


def test_exported_weights_are_copies() -> None:
    model = ResNet(18, width=4)
    state = to_torchvision(model)
    state["conv1.weight"].zero_()
    assert model.conv1.weight.abs().sum() > 0
    assert not state["conv1.weight"].requires_grad


def hand_written(block: BasicBlock | Bottleneck, x: Tensor, stride: int) -> Tensor:
    """The block in evaluation mode, from its state dict and the definition."""
    s = block.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        return batch_norm(
            x, s[f"{name}.running_mean"], s[f"{name}.running_var"],
            s[f"{name}.weight"], s[f"{name}.bias"],
        )  # fmt: skip

    if isinstance(block, BasicBlock):
        y = relu(norm(conv2d(x, s["conv1.weight"], stride=stride, padding=1), "bn1"))
        y = norm(conv2d(y, s["conv2.weight"], padding=1), "bn2")
    else:
        y = relu(norm(conv2d(x, s["conv1.weight"]), "bn1"))
        y = relu(norm(conv2d(y, s["conv2.weight"], stride=stride, padding=1), "bn2"))
        y = norm(conv2d(y, s["conv3.weight"]), "bn3")
    if "downsample.0.weight" in s:
        x = norm(conv2d(x, s["downsample.0.weight"], stride=stride), "downsample.1")
    return relu(x + y)


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(("inputs", "planes", "stride"), [(8, 8, 1), (8, 4, 2), (16, 4, 1)])
def test_blocks_equal_a_hand_written_forward(
    kind: type[BasicBlock | Bottleneck], inputs: int, planes: int, stride: int
) -> None:
    torch.manual_seed(0)
    block = kind(inputs, planes, stride=stride, norm=nn.BatchNorm2d).double()
    for _ in range(3):
        block(torch.randn(4, inputs, 6, 6).double())
    block.eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    x = torch.randn(2, inputs, 7, 7).double()
    torch.testing.assert_close(block(x), hand_written(block, x, stride))


@pytest.mark.parametrize(
    ("stem", "size", "first", "last"),
    [("cifar", 32, 32, 4), ("cifar", 8, 8, 1), ("imagenet", 224, 56, 7), ("imagenet", 64, 16, 2)],
)
def test_stems_keep_or_quarter_the_image(stem: str, size: int, first: int, last: int) -> None:
    with torch.device("meta"):
        model = ResNet(18, stem=stem)
        images = torch.empty(2, 3, size, size)
    seen = {}
    for name in ("layer1", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output, name=name: seen.update({name: output.shape})
        )
    assert model(images).shape == (2, 512)
    assert seen == {"layer1": (2, 64, first, first), "layer4": (2, 512, last, last)}
    assert model.conv1.kernel_size == ((3, 3) if stem == "cifar" else (7, 7))


def test_initial_values_are_kaiming_over_the_outputs() -> None:
    torch.manual_seed(0)
    model = ResNet(18)
    weight = model.layer4[0].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert all(
        (module.weight == 1).all() and (module.bias == 0).all()
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
    )


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "small"])
def test_every_parameter_receives_gradient(name: str) -> None:
    encoder = make_encoder(name, channels=2, image_size=16, width=4)
    output = encoder(torch.randn(4, 2, 16, 16))
    assert output.shape == (4, encoder.features)
    output.square().sum().backward()
    for parameter in encoder.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("width", [1, 16])
def test_width_scales_every_stage(width: int) -> None:
    with torch.device("meta"):
        narrow = ResNet(50, width=width)
    assert narrow.features == 32 * width
    assert narrow.layer3[0].conv2.weight.shape == (4 * width, 4 * width, 3, 3)
    assert SmallCNN(width=width).features == 4 * width


def test_another_norm_can_be_named() -> None:
    model = ResNet(18, width=4, norm=lambda size: nn.GroupNorm(2, size))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert model(torch.randn(1, 3, 8, 8)).shape == (1, 32)


@pytest.mark.parametrize("size", [1, 8, 16, 28])
def test_the_small_encoder_takes_any_size(size: int) -> None:
    assert SmallCNN(channels=1, width=4)(torch.randn(3, 1, size, size)).shape == (3, 16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ResNet(101),
        lambda: ResNet(18, stem="large"),
        lambda: ResNet(18, channels=0),
        lambda: SmallCNN(width=0),
        lambda: projection_head(0),
        lambda: projection_head(8, hidden=(4, -1)),
        lambda: make_encoder(channels=0, image_size=8),
        lambda: make_encoder(channels=1, image_size=0),
        lambda: make_encoder("resnet18", channels=1, image_size=8, stem="tiny"),
    ],
)
def test_impossible_options_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"expected .*got "):
        make()


class TestHead:
    def test_hcls_head(self) -> None:
        head = projection_head(2048)
        assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
        assert head[0].weight.shape == (512, 2048)
        assert head[0].bias is None
        assert head[-1].weight.shape == (128, 512)
        assert head[-1].bias is not None

    def test_without_batch_norm_the_hidden_layers_have_a_bias(self) -> None:
        head = projection_head(8, hidden=(6, 5), output=3, batch_norm=False)
        kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
        assert [type(layer) for layer in head] == kinds
        assert all(layer.bias is not None for layer in head if isinstance(layer, nn.Linear))

    def test_a_linear_head(self) -> None:
        (layer,) = projection_head(8, hidden=(), output=3)
        assert layer.weight.shape == (3, 8)

    def test_the_loss_can_watch_the_last_layer(self) -> None:
        import unremix

        head = projection_head(8, hidden=(6,), output=4)
        loss_fn = unremix.UnReMixLoss(last_layer=head[-1])
        loss = loss_fn(head(torch.randn(5, 8)), head(torch.randn(5, 8)))
        loss.backward()
        assert head[0].weight.grad.abs().sum() > 0


class TestNames:
    @pytest.mark.parametrize(
        ("size", "kind", "kernel"),
        [(8, SmallCNN, 0), (16, SmallCNN, 0), (17, ResNet, 3), (32, ResNet, 3), (33, ResNet, 7)],
    )
    def test_auto_follows_the_image(self, size: int, kind: type, kernel: int) -> None:
        encoder = make_encoder(channels=1, image_size=size, width=4)
        assert type(encoder) is kind
        if kernel:
            assert encoder.conv1.kernel_size == (kernel, kernel)
            assert encoder.features == 32

    @pytest.mark.parametrize(("stem", "kernel"), [("cifar", 3), ("imagenet", 7)])
    def test_a_named_stem_wins(self, stem: str, kernel: int) -> None:
        for size in (32, 96):
            encoder = make_encoder("resnet18", channels=3, image_size=size, width=4, stem=stem)
            assert encoder.conv1.kernel_size == (kernel, kernel)

    def test_a_stem_for_an_encoder_without_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="stem='auto' for the encoder 'small'"):
            make_encoder(channels=1, image_size=8, stem="cifar")

    @pytest.mark.parametrize(
        ("name", "meant"), [("resnet-18", "resnet18"), ("Resnet50", "resnet50"), ("smal", "small")]
    )
    def test_the_nearest_name_is_suggested(self, name: str, meant: str) -> None:
        with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
            make_encoder(name, channels=3, image_size=32)

    @pytest.mark.parametrize("name", ["", "qqq", "timm:", ":resnet18"])
    def test_unknown_names_list_what_is_known(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"small, resnet18.*timm:NAME.*callable"):
            make_encoder(name, channels=3, image_size=32)


class Tiny(nn.Module):
    def __init__(self, channels: int = 3, *, width: int = 5, extra: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.frozen = nn.Dropout().eval()
        self.conv = nn.Conv2d(channels, width * extra, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(self.norm(images)).mean((2, 3), keepdim=True)


def no_options() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))


def needs_more(depth: int) -> nn.Module:
    return nn.Identity()


def pair(images: Tensor) -> tuple[Tensor, Tensor]:
    return images, images


def makes_pairs() -> nn.Module:
    module = nn.Module()
    module.forward = pair
    return module


not_callable = 3


class TestCallable:
    def make(self, name: str, **options: int) -> nn.Module:
        return make_encoder(f"{__name__}:{name}", channels=2, image_size=4, **options)

    def test_a_class_gets_the_options_it_names(self) -> None:
        encoder = self.make("Tiny", width=6)
        assert isinstance(encoder, External)
        assert encoder.features == 6
        assert encoder(torch.randn(3, 2, 4, 4)).shape == (3, 6)

    def test_the_dry_run_leaves_modes_and_statistics_alone(self) -> None:
        encoder = self.make("Tiny")
        assert encoder.model.norm.training
        assert encoder.model.norm.num_batches_tracked == 0
        assert not encoder.model.frozen.training

    def test_lazy_layers_are_made(self) -> None:
        assert self.make("no_options").model[1].in_features == 2 * 4 * 4

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("tiny", "found none; did you mean 'Tiny'"),
            ("not_callable", "expected a callable 'not_callable'"),
            ("needs_more", r"TypeError: .*'depth'; .*channels, .*width"),
            ("torchvision_shapes", "expected .* to make a module"),
            ("pytest", "expected a callable"),
            ("makes_pairs", "got tuple"),
        ],
    )
    def test_what_cannot_be_called_is_refused(self, name: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.make(name)

    def test_a_callable_must_make_a_module(self) -> None:
        with pytest.raises(ValueError, match=r"torch.nn.Module, got a OrderedDict"):
            make_encoder("collections:OrderedDict", channels=1, image_size=4)

    def test_a_callable_without_a_signature_is_called_without_options(self) -> None:
        with pytest.raises(ValueError, match=r"torch.nn.Module, got a dict"):
            make_encoder("builtins:dict", channels=1, image_size=4)

    def test_a_map_is_not_a_feature_vector(self) -> None:
        with pytest.raises(ValueError, match=r"\(2, features\).*got \(2, 1, 4, 4\)"):
            make_encoder("torch.nn:Identity", channels=1, image_size=4)

    def test_images_that_do_not_fit_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[__name__], "no_options", lambda: nn.Conv2d(3, 4, 1))
        with pytest.raises(ValueError, match=r"shape \(2, 2, 4, 4\).*2 channels"):
            self.make("no_options")

    def test_a_module_that_does_not_import_is_reported(self) -> None:
        with pytest.raises(ValueError, match=r"'no_such_module'.*ModuleNotFoundError"):
            make_encoder("no_such_module:Net", channels=3, image_size=8)


def fake_torchvision() -> ModuleType:
    """Stands in for torchvision, whose build does not load beside every torch."""

    class Net(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 6))
            if name == "resnet18":
                self.fc: nn.Module = nn.Linear(6, 10)
            elif name == "vgg11":
                self.fc = nn.Identity()
                self.classifier = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10))
            else:
                self.fc = nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            hidden = self.fc(self.body(images))
            return self.classifier(hidden) if hasattr(self, "classifier") else hidden

    library = ModuleType("torchvision")
    library.models = SimpleNamespace(
        list_models=lambda: ["resnet18", "vgg11", "squeezenet"],
        get_model=lambda name, weights: Net(name),
    )
    return library


class TestTorchvision:
    @pytest.mark.parametrize(
        ("name", "features"), [("resnet18", 6), ("vgg11", 8), ("squeezenet", 6)]
    )
    def test_the_last_linear_layer_goes(
        self, monkeypatch: pytest.MonkeyPatch, name: str, features: int
    ) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", fake_torchvision())
        encoder = make_encoder(f"torchvision:{name}", channels=3, image_size=8)
        assert encoder.features == features

    def test_errors_name_what_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", fake_torchvision())
        with pytest.raises(ValueError, match=r"got 'vgg1'; did you mean 'vgg11'"):
            make_encoder("torchvision:vgg1", channels=3, image_size=8)
        with pytest.raises(ValueError, match=r"shape \(2, 1, 8, 8\)"):
            make_encoder("torchvision:resnet18", channels=1, image_size=8)

    @pytest.mark.parametrize("library", ["timm", "torchvision"])
    def test_a_missing_library_is_named_with_its_install_command(
        self, monkeypatch: pytest.MonkeyPatch, library: str
    ) -> None:
        monkeypatch.setitem(sys.modules, library, None)  # makes its import fail
        with pytest.raises(ImportError, match=f"pip install {library}"):
            make_encoder(f"{library}:resnet18", channels=3, image_size=8)

    def test_a_library_that_does_not_load_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(name: str) -> ModuleType:
            raise RuntimeError("operator torchvision::nms does not exist")

        monkeypatch.setattr(importlib, "import_module", broken)
        with pytest.raises(ImportError, match=r"nms does not exist.*pip install"):
            make_encoder("torchvision:resnet18", channels=3, image_size=8)


class TestTimm:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
        """Stands in for timm and records what is asked of it."""
        made: list[dict[str, object]] = []

        def create_model(name: str, **options: object) -> nn.Module:
            made.append({"name": name, **options})
            if options.get("img_size") == 5:
                raise AssertionError("5 is no multiple of the patch size")
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(9))

        library = ModuleType("timm")
        fixed = {"vit": SimpleNamespace(fixed_input_size=True), "resnet18": None}
        library.is_model = fixed.__contains__
        library.list_models = lambda: list(fixed)
        library.models = SimpleNamespace(get_pretrained_cfg=fixed.get)
        library.create_model = create_model
        monkeypatch.setitem(sys.modules, "timm", library)
        return made

    def test_models_are_made_without_classifier(self, made: list[dict[str, object]]) -> None:
        assert make_encoder("timm:resnet18", channels=1, image_size=8).features == 9
        make_encoder("timm:vit", channels=1, image_size=8)
        common = {"pretrained": False, "num_classes": 0, "in_chans": 1}
        assert made == [{"name": "resnet18", **common}, {"name": "vit", **common, "img_size": 8}]

    def test_errors_name_what_is_wrong(self, made: list[dict[str, object]]) -> None:
        with pytest.raises(ValueError, match=r"list_models.*did you mean 'resnet18'"):
            make_encoder("timm:resnt18", channels=3, image_size=8)
        with pytest.raises(ValueError, match=r"timm to make 'vit'.*no multiple"):
            make_encoder("timm:vit", channels=3, image_size=5)

    def test_the_real_library(self) -> None:
        try:
            import timm  # noqa: F401
        except Exception as error:  # missing, or built for another torch
            pytest.skip(f"timm does not load: {error}")
        encoder = make_encoder("timm:resnet18", channels=1, image_size=32)
        assert encoder.features == 512
        assert encoder(torch.randn(2, 1, 32, 32)).shape == (2, 512)


def test_no_import_of_optional_libraries() -> None:
    import subprocess

    code = "import sys, unremix.domains.image.encoders, unremix.evaluation; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torchvision", "timm"} & set(loaded)
