"""sentence-transformers: weighted negatives in place of ``MultipleNegativesRankingLoss``."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unremix.adapters import missing
from unremix.adapters.dense import weighted_negatives
from unremix.adapters.weighted import Weighted, weighted_loss, with_inputs
from unremix.core.checks import check_choice, check_number
from unremix.core.last_layer import LastLayer
from unremix.core.pairs import Pairs
from unremix.core.precision import at_least_float32
from unremix.core.views import Views
from unremix.losses import WeightingOptions, accepts

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.losses.gradcache import CachedLossMixin
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from sentence_transformers.sentence_transformer.modules import Dense
    from sentence_transformers.util import all_gather, all_gather_with_grad
    from transformers import TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
except ImportError as error:
    raise missing("sentence_transformers", error) from error

# It needs NumPy, which comes with sentence-transformers.
from unremix.adapters.sentence_mining import mine_hard_negatives as mine_hard_negatives

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]
PartitionMode = Literal["joint", "per_direction"]
LOSS_FILE = "unremix_loss.pt"  # in a checkpoint's folder


@dataclass(frozen=True)
class Options(WeightingOptions):
    """The options of :class:`UnReMixLoss`, with those of :class:`unremix.losses.WeightingOptions`.

    Args:
        model: The model to train.
        scale: 1/τ.
        gather_across_devices: Whether the negatives come from all processes.
        directions: ``query_to_doc``, and further similarities whose negatives count: of queries to
            other queries, of documents to queries, of documents to other documents.
        partition_mode: ``joint``: one sum over all directions; ``per_direction``: the mean of the
            losses of ``query_to_doc`` and ``doc_to_query``.
        mini_batch_size: Embed the batch in parts of so many rows, twice (GradCache): memory for a
            part, gradients of the whole. None: all at once.
        last_layer: The ``Dense`` module that makes the embeddings, such as ``model[2]``, or its
            linear layer; without it the uncertainty ignores the layer's input.
    """

    model: SentenceTransformer
    scale: float = 20.0
    gather_across_devices: bool = False
    directions: Sequence[Direction] = ("query_to_doc",)
    partition_mode: PartitionMode = "joint"
    mini_batch_size: int | None = None
    last_layer: nn.Module | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("scale", self.scale, above=0)
        if not isinstance(self.gather_across_devices, bool):
            raise TypeError(
                "expected gather_across_devices to be True or False, got "
                f"{self.gather_across_devices!r}; similarity is the cosine: leave similarity_fct "
                "out"
            )
        check_choice("partition_mode", self.partition_mode, get_args(PartitionMode))
        for each in self.directions:
            check_choice("each of directions", each, get_args(Direction))
        if "query_to_doc" not in self.directions:
            raise ValueError(
                f"expected 'query_to_doc' among directions, got {tuple(self.directions)}; add it: "
                "it holds the positives"
            )
        without_positives = {"query_to_query", "doc_to_doc"} & set(self.directions)
        if self.partition_mode == "per_direction" and without_positives:
            raise ValueError(
                "expected partition_mode='joint' with query_to_query or doc_to_doc, which hold no "
                "positive, got 'per_direction'; leave them out, or use 'joint'"
            )
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise ValueError(
                f"expected mini_batch_size of at least 1, got {self.mini_batch_size}; "
                "use None to embed the batch at once"
            )


class UnReMixLoss(CachedLossMixin, Weighted, nn.Module):
    """In-batch negatives weighted by uncertainty, similarity and representativeness.

    Takes what ``MultipleNegativesRankingLoss`` takes: (anchor, positive) pairs, triplets, or
    n-tuples with hard negatives. With ``mini_batch_size`` it is its cached variant.

    Its options are those of :class:`Options`.

    Relations:
        With ``components=()`` this equals ``MultipleNegativesRankingLoss``, value and gradient.

    Reference:
        Tabassum et al. 2022; Henderson et al. 2017 for the in-batch negatives.
    """

    @accepts(Options)
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.model = options.model
        self.scale = float(options.scale)
        self.gather_across_devices = options.gather_across_devices
        self.directions = tuple(options.directions)
        self.partition_mode = options.partition_mode
        self.mini_batch_size = options.mini_batch_size
        self.uses_gradient_cache = options.mini_batch_size is not None
        self.weighted = weighted_loss(
            options,
            temperature=1 / self.scale,
            layout="one-way",
            last_layer=_linear_part(options.last_layer),
        )
        # Those that were changed, for the model card; the mix is shown as it is learned.
        self.weighting_options = {
            its.name: getattr(options, its.name)
            for its in fields(WeightingOptions)
            if its.name != "mix" and getattr(options, its.name) != its.default
        }
        self._own_gradients: list[tuple[Tensor, Tensor]] = []

    @property
    def temperature(self) -> float:
        """τ."""
        return 1 / self.scale

    def callback(self) -> MixCallback:
        """A callback for the trainer: logs the mix, and keeps it in checkpoints and model card."""
        return MixCallback(self)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            sentence_features: The tokens of each column: anchors, positives, hard negatives.
            labels: Unused; the trainer passes them.
        """
        layer = self.weighted.last_layer
        with layer.keeping_all_calls() if isinstance(layer, LastLayer) else nullcontext():
            if self.mini_batch_size is None:
                return self.compute_loss_from_embeddings(
                    embed_columns(self.model, sentence_features), labels
                )
            loss: Tensor = CachedLossMixin.forward_cached(self, sentence_features, labels)
        for parameter, gradient in self._own_gradients:  # 0, with their gradient
            own = (parameter * gradient).sum()
            loss = loss + (own - own.detach()).to(loss)
        self._own_gradients = []
        return loss

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of embeddings in parts; ``with_backward`` leaves gradients at the parts.

        Args:
            reps: For each column, its parts, each (mini-batch, D).
            labels: Unused.
            with_backward: Whether to make the gradients, and return the value alone.
        """
        loss = self.compute_loss_from_embeddings([torch.cat(parts) for parts in reps], labels)
        if not with_backward:
            return loss
        own = [each for each in self.weighted.parameters() if each.requires_grad]
        parts = [part for column in reps for part in column]
        gradients = torch.autograd.grad(loss, [*parts, *own], allow_unused=True)
        for part, gradient in zip(parts, gradients, strict=False):
            # Embeddings may have got gradients before, of other widths (Matryoshka).
            part.grad = gradient if part.grad is None else part.grad + gradient
        self._own_gradients += [
            (parameter, gradient)
            for parameter, gradient in zip(own, gradients[len(parts) :], strict=True)
            if gradient is not None
        ]
        return loss.detach()

    def compute_loss_from_embeddings(
        self, embeddings: Sequence[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of embeddings.

        Args:
            embeddings: Of each column, (N, D): anchors, positives, and hard negatives if there are.
            labels: Unused.

        Returns:
            A scalar.

        Raises:
            ValueError: For fewer than two columns.
        """
        if len(embeddings) < 2:
            raise ValueError(
                f"expected at least 2 columns, anchors and positives, got {len(embeddings)}; "
                "add a column to the data set"
            )
        queries, *documents = self._columns(embeddings)
        count, device = queries.embeddings.shape[0], queries.embeddings.device
        if count == 1 and len(documents) == 1:
            loss: Tensor = self.weighted(queries.embeddings, documents[0].embeddings)
            return loss + math.log(self._holding)
        sample = torch.arange(count, device=device)
        others = torch.arange(count, count * len(documents), device=device)
        # An id equal to the anchor's marks what is not its negative.
        ids = [sample, others]
        candidates = [*documents]
        if "query_to_query" in self.directions:
            ids, candidates = [*ids, sample], [*candidates, queries]
        forth = (queries, _join(candidates), _pairs(sample, torch.cat(ids)))
        if not {"doc_to_query", "doc_to_doc"} & set(self.directions):
            return self.weighted.against(*forth)
        ids, candidates = [], []
        if "doc_to_query" in self.directions:
            ids, candidates = [sample], [queries]
        if "doc_to_doc" in self.directions:
            ids, candidates = [*ids, sample.repeat(len(documents))], [*candidates, *documents]
        back = (documents[0], _join(candidates), _pairs(sample, torch.cat(ids)))
        if self.partition_mode == "per_direction":
            there = self.weighted.against(*forth)
            # A single sample has negatives of its own at most, and none on the way back.
            return (there if count == 1 else there + self.weighted.against(*back)) / 2
        return self._joint_loss(forth, back)

    def _columns(self, embeddings: Sequence[Tensor]) -> list[Views]:
        """The columns with what is known of the last layer, of all processes where asked."""
        layer, weighting = self.weighted.last_layer, self.weighted.weighting
        embeddings = [at_least_float32(each) for each in embeddings]
        views = [Views(each) for each in embeddings]
        if layer is not None and weighting.needs_gradients:
            inputs = [layer.find(each)[0] for each in embeddings]
            views = [with_inputs(z, each) for z, each in zip(embeddings, inputs, strict=True)]
        if not self.gather_across_devices:
            return views
        # Every process computes the loss of the joint batch: the mix stays the same in all.
        return [
            Views(
                all_gather_with_grad(each.embeddings),
                None if each.inputs is None else all_gather(each.inputs),
                outputs=None if each.outputs is None else all_gather(each.outputs),
            )
            for each in views
        ]

    @property
    def _holding(self) -> int:
        """How many sides of one sum hold the positive."""
        return 2 if self.partition_mode == "joint" and "doc_to_query" in self.directions else 1

    def _joint_loss(self, *sides: tuple[Views, Views, Pairs]) -> Tensor:
        """-log( e^{l_p} / (k e^{l_p} + Σ over all sides) ); k sides hold the positive."""
        sums_and_logits = [weighted_negatives(self.weighted, *side) for side in sides]
        positive = sums_and_logits[0][1].diagonal()
        among = positive + math.log(self._holding)
        total = torch.stack([among, *(sums for sums, _ in sums_and_logits)]).logsumexp(0)
        loss: Tensor = (total - positive).mean()
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The options, those of the weights as they were given, and the mix, for the model card."""
        given = dict(self.weighting_options)
        if "components" in given:
            given["components"] = list(self.mix)
        return {
            "scale": self.scale,
            "gather_across_devices": self.gather_across_devices,
            "directions": list(self.directions),
            "partition_mode": self.partition_mode,
            "mini_batch_size": self.mini_batch_size,
            **given,
            "mix_kind": self.weighted.mix_kind,
            "mix": {name: round(share, 4) for name, share in self.mix.items()},
        }

    @property
    def citation(self) -> str:
        """How to cite the method, for the model card."""
        return """
@misc{tabassum2022hardnegativesamplingstrategies,
    title={Hard Negative Sampling Strategies for Contrastive Representation Learning},
    author={Afrina Tabassum and Muntasir Wahed and Hoda Eldardiry and Ismini Lourentzou},
    year={2022},
    eprint={2206.01197},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""


class MixCallback(TrainerCallback):
    """Logs the mix, writes it to checkpoints and the model card, and restores it on resume.

    Args:
        loss: The loss whose mix it is, alone or in a wrapper such as ``MatryoshkaLoss``; or a
            dictionary of losses, as the trainer takes it.

    Raises:
        ValueError: If there is no :class:`UnReMixLoss` among them.
    """

    def __init__(self, loss: nn.Module | dict[str, nn.Module]) -> None:
        given: dict[str, nn.Module] = loss if isinstance(loss, dict) else {"": loss}
        self.losses = {
            name: each
            for name, outer in given.items()
            for each in outer.modules()
            if isinstance(each, UnReMixLoss)
        }
        if not self.losses:
            names = ", ".join(type(each).__name__ for each in given.values())
            raise ValueError(
                f"expected an UnReMixLoss, or a loss around one, got {names}; "
                "leave the callback out"
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore what a checkpoint holds, if training resumes from one."""
        if state.global_step == 0:
            return
        # The trainer does not say from which checkpoint; it is known by its step and its history.
        path = self._folder(args, state) / LOSS_FILE
        known = path.with_name(TRAINER_STATE_NAME)
        history = json.loads(known.read_text())["log_history"] if known.is_file() else None
        if not path.is_file() or history != state.log_history:
            got = "that of another run" if path.is_file() else "no such file"
            warnings.warn(
                f"expected the mix in {path}, got {got}, so it starts from its initial value; "
                "resume from a checkpoint in the output folder that was written with this callback",
                stacklevel=2,
            )
            return
        kept = torch.load(path, map_location="cpu", weights_only=True)
        if missing_names := self.losses.keys() - kept.keys():
            raise ValueError(
                f"expected the mix of {sorted(missing_names)} in {path}, got that of "
                f"{sorted(kept)}; resume with the same names of data sets"
            )
        for name, loss in self.losses.items():
            loss.weighted.load_state_dict(kept[name])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the mix beside the model."""
        folder = self._folder(args, state)
        if state.is_world_process_zero and folder.is_dir():
            kept = {name: loss.weighted.state_dict() for name, loss in self.losses.items()}
            torch.save(kept, folder / LOSS_FILE)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add the mix to what is logged."""
        mix = self._mix()
        if logs is not None:
            logs.update(mix)
        if state.log_history:
            state.log_history[-1].update(mix)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Note the learned mix in the model card."""
        card = getattr(model, "model_card_data", None)
        for entry in getattr(card, "train_datasets", None) or ():
            for name, loss in self.losses.items():
                config = entry.get("loss", {})
                if config.get("config_code") and name in ("", entry.get("name")):
                    learned = ", ".join(f"{key} {share:.3f}" for key, share in loss.mix.items())
                    config["config_code"] += f"\n\n  Learned mix: {learned}"

    def _mix(self) -> dict[str, float]:
        return {
            "_".join(filter(None, ["mix", name, component])): round(share, 6)
            for name, loss in self.losses.items()
            for component, share in loss.mix.items()
        }

    @staticmethod
    def _folder(args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _linear_part(layer: nn.Module | None) -> nn.Module | None:
    """A layer that takes and returns tensors: of a ``Dense`` module, what it holds."""
    if isinstance(layer, Dense):
        return nn.Sequential(layer.linear, layer.activation_function)
    return layer


def _pairs(sample: Tensor, candidate_ids: Tensor) -> Pairs:
    """Anchor i against all candidates with an id other than i; its positive is candidate i."""
    return Pairs(
        positives=sample[:, None],
        shares=torch.ones(len(sample), 1, device=sample.device),
        anchor_ids=sample[:, None],
        candidate_ids=candidate_ids,
    )


def _join(columns: Sequence[Views]) -> Views:
    """Some columns as one, (M, D)."""

    def join(name: str) -> Tensor | None:
        parts = [getattr(each, name) for each in columns]
        return None if any(part is None for part in parts) else torch.cat(parts)

    embeddings = torch.cat([each.embeddings for each in columns])
    return Views(embeddings, join("inputs"), outputs=join("outputs"))
