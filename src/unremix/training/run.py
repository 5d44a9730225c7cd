"""A run folder: what a training run leaves behind, and how to use it.

``config.yaml`` (complete, reloadable), ``shape.json``, ``metrics.csv``,
``checkpoints/{last,previous}.ckpt`` (checksummed), ``encoder.safetensors``, ``evaluation.json``,
``report.html``, ``figures/``; ``warnings.txt`` if anything looked wrong.

Reading a run executes nothing. Code that its config.yaml names runs only if the caller trusts it.
"""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

import unremix
from unremix.console.printing import one_line
from unremix.console.values import LARGEST_YAML
from unremix.domains import Domain, find_domain
from unremix.domains.options import (
    TrainConfig,
    UntrustedError,
    config_from_yaml,
    config_to_commented_yaml,
)
from unremix.files.atomic_files import read_text, replacing, write_text
from unremix.frameworks.base import Framework, Projecting
from unremix.training.adapting import blend
from unremix.training.building import build_model, embeds_in, outline_model, refuse_other
from unremix.training.checkpoints import (
    DamagedError,
    check_embeddings,
    check_finite,
    digest_of,
    read_checkpoint,
    read_metadata,
    read_safetensors,
    write_checkpoint,
)

STARTED = "start.safetensors"  # the encoder as it came, if it did not start from random weights
FACTS = ("step", "seconds", "device", "date", "version")  # of a checkpoint, besides tensors
WRITER = "# unremix "  # and the version, in the first line of config.yaml

Layer = Literal["backbone", "head"]
"""Which output of a model is an embedding: the encoder's, or the projection head's behind it."""


def _writer(text: str) -> str:
    """Which version wrote a config.yaml."""
    first = text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith(WRITER) else "an early version"


@contextmanager
def reading(file: Path, remedy: str) -> Iterator[None]:
    """Whatever a damaged file raises becomes one line that names it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}")[:300]
        raise ValueError(f"expected {file} as unremix wrote it, got {why}; {remedy}") from error


def names_code(folder: str | Path) -> bool:
    """Whether a run's folder names code, which runs only if it is trusted."""
    try:
        return bool(Run(folder).config.code)
    except UntrustedError:
        return True
    except (OSError, ValueError):
        return False


class Run:
    """A run folder.

    Args:
        path: The folder.
        layer: What embeddings are made of: ``backbone``, the encoder's output, or ``head``, the
            projection head's output behind it, which the loss compares.
        trust: Whether code may run that its ``config.yaml`` names. Without it, such a run can be
            read, but its model cannot be built.

    Raises:
        FileNotFoundError: If it holds no ``config.yaml``.
        ValueError: For another layer, or a damaged folder.

    Example:
        ``unremix.load("runs/digits").embed(["a.png", "b.png"])`` gives an array (2, F).
    """

    layer: Layer = "backbone"
    trained: nn.Module | None = None  # the encoder, if it is in memory
    untrained: nn.Module | None = None  # the encoder with random weights, if it is in memory
    start: nn.Module | None = None  # the encoder as it came, if that is in memory
    model: Framework | None = None  # the whole model, if it is in memory
    rows: list[dict[str, float]] | None = None  # of metrics.csv, if it was just written
    card: dict[str, Any] | None = None  # evaluation.json, if it was just written
    trust = False  # whether its code may run
    fell_back = False  # whether the previous checkpoint was read in place of the latest
    _facts: dict[str, Any] | None = None  # about the checkpoint, if it was read

    def __init__(self, path: str | Path, *, layer: Layer = "backbone", trust: bool = False) -> None:
        if layer not in get_args(Layer):
            raise ValueError(f"expected the layer 'backbone' or 'head', got {layer!r}")
        self.path, self.layer, self.trust = Path(path), layer, trust
        file = self.path / "config.yaml"
        if not file.exists():
            raise FileNotFoundError(
                f"expected a run folder with config.yaml, got {str(self.path)!r}; "
                "give the folder that 'unremix train' named at its end"
            )
        text = read_text(file, LARGEST_YAML, inside=self.path)
        try:
            config = config_from_yaml(text, trust=trust, where=str(self.path))
            shape = json.loads(read_text(self.path / "shape.json", inside=self.path))
            self.shape: Any = find_domain(config.domain).shape_from(shape)
        except UntrustedError:
            raise
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"expected a run folder of unremix {unremix.__version__}, got {str(self.path)!r} "
                f"of {_writer(text)} ({one_line(str(error))[:300]}); use that version, or train a "
                "new run"
            ) from error
        if config.precision == "auto":  # runs say what they were trained in; early ones did not
            config = replace(config, precision="32-true")
        if config.compile == "auto":  # likewise; or it ended before that was settled
            config = replace(config, compile=False)
        self.config = config.trusted(trust=True, where=str(self.path)) if trust else config

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def domain(self) -> Domain:
        """What kind of data it is about."""
        return find_domain(self.config.domain)

    @classmethod
    def unwritten(cls, path: Path, config: TrainConfig, shape: Any) -> Run:
        """A run whose folder another process writes."""
        run = cls.__new__(cls)
        run.path, run.config, run.shape = path, config, shape
        return run

    def forget_files(self) -> None:
        """Read again what files hold: another process may continue the run, or measure it."""
        self.rows = self.card = self._facts = None

    @staticmethod
    def create(path: Path, config: TrainConfig, shape: Any) -> Run:
        """Make the folder of a new run; the shape first, so that one with a config is complete."""
        run = Run.unwritten(path, config, shape)
        write_text(path / "shape.json", json.dumps(asdict(shape)))
        run.write_config()
        return run

    def write_config(self) -> None:
        """Write config.yaml."""
        options = config_to_commented_yaml(replace(self.config, resume=None))
        write_text(self.path / "config.yaml", f"{WRITER}{unremix.__version__}\n{options}")

    def extend(self, config: TrainConfig, *, write: bool) -> None:
        """Take over options that may change when a run is resumed, such as ``epochs``.

        Args:
            config: The run's options, some of them changed.
            write: Whether this process writes the folder.
        """
        earlier, self.config = self.config, replace(config, progress=self.config.progress)
        if write and self.config != earlier:
            # What was measured at the earlier end no longer holds.
            self.card = None
            (self.path / "evaluation.json").unlink(missing_ok=True)
            self.write_config()

    @property
    def checkpoint(self) -> Path:
        """The latest checkpoint."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def previous(self) -> Path:
        """The checkpoint before it, in case it is damaged."""
        return self.path / "checkpoints" / "previous.ckpt"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return self.checkpoint.exists() or self.previous.exists()

    def load_checkpoint(self) -> dict[str, Any]:
        """The contents of the latest checkpoint, or of the previous one if that is damaged.

        Raises:
            FileNotFoundError: If there is none.
            DamagedError: If none can be read.
        """
        if not self.has_checkpoint:
            raise FileNotFoundError(
                f"expected a checkpoint at {self.checkpoint}, found none; the run was stopped "
                f"before its first one: continue it with 'unremix train --resume {self.path}'"
            )
        reasons: list[str] = []
        for file in (self.checkpoint, self.previous):
            try:
                state = read_checkpoint(file, inside=self.path, trust=self.trust)
            except FileNotFoundError:
                continue
            except DamagedError as error:
                reasons.append(str(error))
                continue
            if reasons:
                used = f"the previous one is used, of step {state['step']}"
                warnings.warn(f"{reasons[0]}; {used}", stacklevel=2)
            self.fell_back = bool(reasons)
            self._keep_facts(state)
            return state
        raise DamagedError(
            f"expected a sound checkpoint, but {' and '.join(reasons)}; restore a copy, or train "
            "a new run"
        )

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint; the latest becomes the previous one, unless it is damaged."""
        keep = None if self.fell_back else self.previous
        with replacing(self.checkpoint, keep=keep) as temporary:
            write_checkpoint(state, temporary)
        self.fell_back = False
        self._keep_facts(state)

    def framework(self) -> Framework:
        """The whole model in eval mode, as it was trained.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it is damaged, or of another model.
        """
        if self.model is None:
            self.config = self.config.trusted(trust=False, where=str(self.path))
            self.model = self.restored(self.load_checkpoint())
            if self.trained is None and self.kept == "trained":
                self.trained = self.model.encoder.eval()
        return self.model.eval()

    def facts(self) -> dict[str, Any]:
        """After which step the latest checkpoint was written, when, where, and how long it took."""
        if self._facts is None:
            self.load_checkpoint()
        return self._facts or {}

    def _keep_facts(self, state: Mapping[str, Any]) -> None:
        self._facts = {name: state.get(name) for name in FACTS}

    def restore(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load a checkpoint's model.

        Raises:
            ValueError: If it is the checkpoint of another model.
        """
        own = model.state_dict()
        try:
            for name, tensor in state["model"].items():
                if tensor.dtype != own[name].dtype:  # torch would convert it silently
                    raise TypeError(f"{name} of {tensor.dtype}")
            model.load_state_dict(state["model"])
        except (AttributeError, KeyError, RuntimeError, TypeError) as error:
            writer = f"unremix {state['version']}" if "version" in state else "an early version"
            raise ValueError(
                f"expected a checkpoint of this run's model at {self.checkpoint}, got another, "
                f"written by {writer} (this is {unremix.__version__}); use that version, or train "
                "a new run"
            ) from error

    def encoder(self, *, trained: bool = True) -> nn.Module:
        """The encoder in eval mode, with its head if that is the run's layer.

        The weights are those of ``encoder.safetensors`` and of the checkpoint, which must agree,
        unless the first is :attr:`kept` in place of the last weights. One of the two is enough, for
        instance if the checkpoints were not copied.

        Args:
            trained: False gives it with random weights.

        Raises:
            ValueError: If the model has no head to use, the weights are damaged or not finite, or
                the run names code and is not trusted.
        """
        known = self.trained if trained else self.untrained
        if known is not None and self.layer == "backbone":
            return known
        self.config = self.config.trusted(trust=False, where=str(self.path))
        model = self._filled() if trained else build_model(self.config, self.shape)
        if self.layer == "backbone":
            return model.encoder.eval()
        if not isinstance(model, Projecting):
            raise ValueError(
                f"expected a model with a projection head for the layer 'head', got "
                f"{type(model).__name__}, which has none; use the layer 'backbone'"
            )
        whole = nn.Sequential(model.encoder, model.head).eval()
        return embeds_in(self.config.embeds_in, whole, self.config.accelerator)

    @property
    def kept(self) -> str:
        """What ``encoder.safetensors`` holds: the encoder as trained, its blend, or the start."""
        file = self.path / "encoder.safetensors"
        texts = read_metadata(file, self.path) if file.exists() else {}
        return str(json.loads(texts.get("kept", '"trained"')))

    def started(self) -> nn.Module | None:
        """The encoder as it came, in eval mode; None if it started from random weights."""
        file = self.path / STARTED
        if self.start is None and file.exists():
            saved = read_safetensors(file, self.path)[0]
            self.refuse_larger(saved, file)
            encoder = build_model(self.config, self.shape).encoder
            with reading(file, "restore a copy, or train a new run"):
                encoder.load_state_dict(saved)
            self.start = encoder.eval()
        return self.start

    def encoders(self) -> dict[str, nn.Module]:
        """What an evaluation compares: the encoder as trained, as it came, with random weights.

        Without checkpoints, as trained is whatever ``encoder.safetensors`` holds.

        Raises:
            FileNotFoundError: If that is the encoder as it came.
        """
        start, untrained = self.started(), self.encoder(trained=False)
        if start is None or self.layer == "head":
            return {"trained": self.encoder(), "untrained": untrained}
        if self.has_checkpoint:
            found = {"trained": self.framework().encoder}
        elif self.kept == "start":
            raise FileNotFoundError(
                f"expected the trained encoder in {self.path}, found only the one that it started "
                "from: its checkpoints are gone, and encoder.safetensors is the encoder as it came;"
                " restore the folder 'checkpoints', or train a new run"
            )
        else:
            found = {self.kept: self.encoder()}
        if "trained" in found and self.config.keep != "last":
            found["blend"] = blend(deepcopy(start), found["trained"], self.config.blend)
        return found | {"start": start, "untrained": untrained}

    def restored(self, state: dict[str, Any]) -> Framework:
        """The model with the weights of a checkpoint.

        Raises:
            ValueError: If it is the checkpoint of another model.
        """
        self.refuse_larger(state["model"])
        model = build_model(self.config, self.shape)
        self.restore(model, state)
        return model

    def refuse_larger(self, stored: Mapping[str, Tensor], file: Path | None = None) -> None:
        """Refuse options of a larger model than the stored one, before memory is allocated for it.

        Args:
            stored: Its tensors: of a checkpoint, or of the encoder in ``file``.
            file: Where the encoder comes from.

        Raises:
            ValueError: If the options are such.
        """
        outline = outline_model(self.config, self.shape)
        part = outline if file is None or outline is None else outline.encoder
        refuse_other(part, stored, str(file or self.checkpoint))

    def _filled(self) -> Framework:
        """The model with the weights of the checkpoint, or of encoder.safetensors alone."""
        file, saved, kept = self.path / "encoder.safetensors", None, self.kept
        try:
            saved = read_safetensors(file, self.path)[0] if file.exists() else None
        except DamagedError as error:
            warnings.warn(f"{error}; the checkpoint is used", stacklevel=3)
        try:
            model = self.restored(self.load_checkpoint())
        except (FileNotFoundError, DamagedError) as error:
            if saved is None or self.layer == "head":
                raise
            if isinstance(error, DamagedError):
                warnings.warn(f"{error}; {file.name} is used", stacklevel=3)
            self.refuse_larger(saved, file)
            model = build_model(self.config, self.shape)
            with reading(file, "use the version that wrote it, or train a new run"):
                model.encoder.load_state_dict(saved)
        else:
            if saved is not None and kept != "trained":
                if self.layer == "backbone":
                    model.encoder.load_state_dict(saved)
            elif saved is not None and digest_of(saved) != digest_of(model.encoder.state_dict()):
                if not self.fell_back or self.layer == "head":
                    raise ValueError(
                        f"expected {file} to hold the weights of {self.checkpoint}, got others; "
                        "remove the one of the two that you do not want"
                    )
                warnings.warn(f"{file.name} is used, which is of a later step", stacklevel=3)
                model.encoder.load_state_dict(saved)
        check_finite(model.state_dict(), str(self.path))
        return model

    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv."""
        if self.rows is not None:
            return self.rows
        file = self.path / "metrics.csv"
        if not file.exists():
            return []
        with reading(file, "'unremix train --resume' writes it again"):
            rows = csv.DictReader(io.StringIO(read_text(file, inside=self.path), newline=""))
            numbers = [
                {name: float(value) for name, value in row.items() if value not in ("", None)}
                for row in rows
            ]
            for row in numbers:  # before the first step there is no loss
                if not {"epoch", "step"} | ({"loss"} if row.get("step") else set()) <= row.keys():
                    raise KeyError("a row without epoch, step or loss")
            return numbers

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The evaluation card, if it has been written."""
        if self.card is not None:
            return self.card
        file = self.path / "evaluation.json"
        if not file.exists():
            return None
        with reading(file, "'unremix evaluate' writes it again"):
            card: dict[str, Any] = json.loads(read_text(file, inside=self.path))
            if not all(isinstance(one, dict) for one in (card.get("results") or {}).values()):
                raise TypeError("results that are not measures")
            return card

    @property
    def warnings(self) -> list[str]:
        """What looked wrong: files that were left out, and warnings during training."""
        file = self.path / "warnings.txt"
        return read_text(file, inside=self.path).splitlines() if file.exists() else []

    def warn(self, message: str) -> None:
        """Keep a warning, once."""
        line = one_line(message)
        if line not in self.warnings:
            write_text(self.path / "warnings.txt", "\n".join([*self.warnings, line]) + "\n")

    def embed(self, items: Any, *, normalize: bool = False) -> Tensor:
        """Embeddings of items, shape (n, F).

        Args:
            items: What the run's kind of data takes: a list of paths, PIL images or arrays, of
                ``torch_geometric.data.Data``, of strings, or an array of rows.
            normalize: Whether to scale each embedding to length 1.

        Raises:
            ValueError: For items the encoder cannot take.
        """
        return check_embeddings(self.domain.embed(self, items), normalize=normalize)
