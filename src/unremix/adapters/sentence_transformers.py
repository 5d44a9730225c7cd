"""sentence-transformers: weighted negatives in place of ``MultipleNegativesRankingLoss``."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unremix.adapters import needed_for
from unremix.adapters.weighted import (
    AdapterOptions,
    Weighted,
    weighted_loss,
    weighted_negatives,
)
from unremix.core.checks import check_choice, check_count, check_labels, check_number
from unremix.core.gather import (
    JointBatch,
    find_joint_batch,
    gather_rows,
    gather_views,
    mean_count,
)
from unremix.core.last_layer import recording
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.precision import at_least_float32
from unremix.core.problem import Logits
from unremix.core.views import Views, stack
from unremix.files.bounds import check_torch, sound
from unremix.losses import accepts

with needed_for("sentence_transformers"):
    from safetensors import safe_open
    from safetensors.torch import save_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.losses.gradcache import CachedLossMixin
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from sentence_transformers.sentence_transformer.modules import Dense
    from sentence_transformers.util import cos_sim, dot_score, similarity_fct_name
    from transformers import TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME

# It needs NumPy, which comes with sentence-transformers.
from unremix.adapters.sentence_mining import MiningCallback as MiningCallback
from unremix.adapters.sentence_mining import mine_hard_negatives as mine_hard_negatives

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]
PartitionMode = Literal["joint", "per_direction"]
LOSS_FILE = "unremix_loss.safetensors"  # in a checkpoint's folder
OLD_LOSS_FILE = "unremix_loss.pt"  # an archive of torch, which earlier versions wrote


@dataclass(frozen=True)
class Options(AdapterOptions):
    """The options of :class:`UnReMixLoss`, with those of :class:`AdapterOptions`.

    Args:
        model: The model to train.
        scale: 1/τ.
        similarity_fct: What the logits are: the library's ``cos_sim`` or ``dot_score``. The weights
            always use the cosine.
        gather_across_devices: Whether the negatives come from all processes. Each computes the loss
            of its own anchors; their mean is the loss of the joint batch.
        directions: ``query_to_doc``, and further similarities whose negatives count: of queries to
            other queries, of documents to queries, of documents to other documents.
        partition_mode: ``joint``: one sum over all directions; ``per_direction``: the mean of the
            losses of ``query_to_doc`` and ``doc_to_query``.
        mini_batch_size: Embed the batch in parts of so many rows, twice (GradCache): memory for a
            part, gradients of the whole. None: all at once.
        duplicates: What a text is that is the same as the anchor's positive, or that belongs to the
            same query: a negative (``keep``), as in the library, or none (``exclude``).
        weights: Which negatives are weighted: ``all``, or the ``mined`` columns alone; documents
            of other anchors then count 1, and a mined one is scored among mined ones.
        use_labels: Whether a column of labels says which pairs are of one class, -1 for none: their
            documents are positives of each other. Hard negatives have no class.
        last_layer: The ``Dense`` module that makes the embeddings, such as ``model[2]``, or its
            linear layer; without it the uncertainty ignores the layer's input.
    """

    model: SentenceTransformer
    scale: float = 20.0
    similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim
    gather_across_devices: bool = False
    directions: Sequence[Direction] = ("query_to_doc",)
    partition_mode: PartitionMode = "joint"
    mini_batch_size: int | None = None
    duplicates: Literal["keep", "exclude"] = field(default="keep", kw_only=True)
    weights: Literal["all", "mined"] = field(default="all", kw_only=True)
    use_labels: bool = field(default=False, kw_only=True)
    last_layer: nn.Module | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("scale", self.scale, above=0)
        if self.similarity_fct not in (cos_sim, dot_score):
            raise ValueError(
                "expected similarity_fct to be cos_sim or dot_score of sentence_transformers.util, "
                f"got {self.similarity_fct!r}; use one of them"
            )
        check_choice("duplicates", self.duplicates, ("keep", "exclude"))
        check_choice("weights", self.weights, ("all", "mined"))
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
        several = self.partition_mode == "joint" and len(self.directions) > 1
        for name in ("class_prior", "decoupled", "use_labels"):
            if several and getattr(self, name):
                raise ValueError(
                    f"expected {name} to be left out with several directions in one sum, got "
                    f"{getattr(self, name)!r}; use directions=('query_to_doc',), or "
                    "partition_mode='per_direction'"
                )
        if self.weights == "mined":
            refused = ["class_prior", "decoupled", "use_labels", "false_negatives"]
            if tuple(self.directions) != ("query_to_doc",) or any(
                map(self.__getattribute__, refused)
            ):
                raise ValueError(
                    "expected directions=('query_to_doc',) and no class_prior, decoupled, "
                    "use_labels or false_negatives with weights='mined'; leave them out, or use "
                    "weights='all'"
                )
        if self.mini_batch_size is not None:
            remedy = "use None to embed the batch at once"
            check_count("mini_batch_size", self.mini_batch_size, 1, remedy)


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
        self.similarity_fct = options.similarity_fct
        self.logits: Logits = "dot" if options.similarity_fct is dot_score else "cosine"
        self.duplicates, self.use_labels = options.duplicates, options.use_labels
        self.weights = options.weights
        self.gather_across_devices = options.gather_across_devices
        self.directions = tuple(options.directions)
        self.partition_mode = options.partition_mode
        self.mini_batch_size = options.mini_batch_size
        self.uses_gradient_cache = options.mini_batch_size is not None
        self.weighted = weighted_loss(
            options,
            temperature=1 / self.scale,
            layout="one-way",
            gather=options.gather_across_devices,
            last_layer=_linear_part(options.last_layer),
        )
        # Those that were changed, for the model card; the mix is shown as it is learned.
        self.weighting_options = {
            its.name: getattr(options, its.name)
            for its in fields(AdapterOptions)
            if its.name != "mix" and getattr(options, its.name) != its.default
        }
        # Whether the mix has been used to train, or is the initial one while the model's weights
        # were loaded: so a training resumes whose checkpoint also holds the mix.
        self._begun, self._lacks_mix = False, False
        if any(each.requires_grad for each in self.weighted.parameters()):
            self.model.register_load_state_dict_post_hook(_Notice(self))
        self._own_gradients: list[tuple[Tensor, Tensor]] = []
        self._texts: list[Tensor] | None = None  # a number of each text, by column

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
            labels: With ``use_labels`` the class of each pair, shape (N,); else unused.
        """
        if self.training and torch.is_grad_enabled():
            self._begin()
        sentence_features = list(sentence_features)
        if self.duplicates == "exclude":
            self._texts = [_numbered(each) for each in sentence_features]
        try:
            with recording("parts"):  # in evaluation too
                if self.mini_batch_size is None:
                    return self.compute_loss_from_embeddings(
                        embed_columns(self.model, sentence_features), labels
                    )
                loss: Tensor = CachedLossMixin.forward_cached(self, sentence_features, labels)
        finally:
            self._texts = None
        for parameter, gradient in self._own_gradients:  # 0, with their gradient
            own = (parameter * gradient).sum()
            loss = loss + (own - own.detach()).to(loss)
        self._own_gradients = []
        return loss

    def _begin(self) -> None:
        """Refuse to go on from a checkpoint without its mix."""
        if self._lacks_mix:
            raise ValueError(
                "expected the callback of UnReMixLoss where training goes on from a checkpoint, "
                "got weights of the model alone, so that the mix would start again; pass "
                "callbacks=[loss.callback()] to the trainer, or, if nothing is resumed, make the "
                "loss after the weights are loaded"
            )
        self._begun = True

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of embeddings in parts; ``with_backward`` leaves gradients at the parts.

        Args:
            reps: For each column, its parts, each (mini-batch, D).
            labels: As in :meth:`forward`.
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
            labels: As in :meth:`forward`.

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
        if self.weights == "mined" and len(embeddings) == 2:
            raise ValueError(
                "expected columns of hard negatives with weights='mined', got anchors and "
                "positives alone; mine negatives, or use weights='all'"
            )
        own, everything, joint = self._columns(embeddings, labels)
        total, count = (each[0].embeddings.shape[0] for each in (everything, own))
        if total == 1 and len(embeddings) == 2:
            loss: Tensor = self.weighted(everything[0].embeddings, everything[1].embeddings)
            return loss + math.log(self._holding)
        ids = torch.arange(total, device=everything[0].embeddings.device)
        here = slice(0, total) if joint is None else joint.here
        texts = self._numbers_of_texts(joint)

        def side(anchors: int, columns: list[int], step: int) -> ContrastInput:
            """A column's rows of this process against whole columns.

            Documents of column 1 + k are numbered from k times ``step`` on; a candidate with the
            number of an anchor's sample is not its negative.
            """
            offsets = [max(column - 1, 0) * step for column in columns]
            own_places = [k * total + ids[here] for k, offset in enumerate(offsets) if offset == 0]
            excluded = None
            if texts is not None:  # a text equal to the positive, or of an equal query
                keys = [
                    torch.stack([texts[0] if c < 2 else -1 - ids, texts[max(c, 1)]])
                    for c in columns
                ]
                same = torch.stack(texts[:2])[:, here, None] == torch.cat(keys, dim=1)[:, None]
                excluded = same.any(0)
            pairs = Pairs(
                positives=ids[here, None],  # in the first of the columns
                shares=torch.ones(count, 1, device=ids.device),
                anchor_ids=ids[here, None],
                candidate_ids=torch.cat([ids + offset for offset in offsets]),
                excluded=excluded,
                non_negatives=torch.stack(own_places, dim=1) if excluded is None else None,
            )
            return ContrastInput(own[anchors], stack(*(everything[c] for c in columns)), pairs)

        documents, given = list(range(1, len(embeddings))), self.directions
        back = [0] * ("doc_to_query" in given) + documents * ("doc_to_doc" in given)
        forth = side(0, documents + [0] * ("query_to_query" in given), total)
        if self.weights == "mined":
            return self._mined_loss(joint, forth, total)
        if not back:
            return self._against(forth)
        if self.partition_mode == "per_direction":
            there = self._against(forth)
            # A single sample has negatives of its own at most, and none on the way back.
            return (there if total == 1 else there + self._against(side(1, back, 0))) / 2
        return self._joint_loss(joint, forth, side(1, back, 0))

    def _columns(
        self, embeddings: Sequence[Tensor], labels: Tensor | None
    ) -> tuple[list[Views], list[Views], JointBatch | None]:
        """The columns with classes and what is known of the last layer: here, and of all."""
        views = self.weighted.views_of(*map(at_least_float32, embeddings))
        if self.use_labels:
            if labels is None or labels.dim() != 1:
                raise ValueError(
                    "expected a class of each pair for use_labels, got none; add a column 'label' "
                    "of integers to the data set"
                )
            check_labels(labels, len(embeddings[0]), self.weighted.options.check)
            labels = labels.to(embeddings[0].device)
            classes = [labels, labels] + [torch.full_like(labels, -1)] * (len(views) - 2)
            views = [replace(each, labels=its) for each, its in zip(views, classes, strict=True)]
        if not self.weighted.gathers:
            return views, views, None
        joint = find_joint_batch(embeddings[0])
        return views, [gather_views(each, joint) for each in views], joint

    def _numbers_of_texts(self, joint: JointBatch | None) -> list[Tensor] | None:
        """A number of each text, (T,) for each column, where duplicates are excluded."""
        texts = self._texts
        if self.duplicates == "exclude" and texts is None:
            raise ValueError(
                "expected texts for duplicates='exclude', got embeddings alone; call the loss with "
                "the tokens of each column"
            )
        if joint is None or texts is None:
            return texts
        return [gather_rows(each, joint) for each in texts]

    def _against(self, side: ContrastInput) -> Tensor:
        return self.weighted.against(side.anchors, side.candidates, side.pairs, logits=self.logits)

    @property
    def _holding(self) -> int:
        """How many sides of one sum hold the positive."""
        return 2 if self.partition_mode == "joint" and "doc_to_query" in self.directions else 1

    def _joint_loss(
        self, joint: JointBatch | None, forth: ContrastInput, back: ContrastInput
    ) -> Tensor:
        """-log( e^{l_p} / (k e^{l_p} + Σ over both sides) ); k sides hold the positive."""
        (sums, logits), (others, _) = (
            weighted_negatives(self.weighted, side, logits=self.logits) for side in (forth, back)
        )
        return self._mean(joint, forth.pairs, logits, sums, others)

    def _mined_loss(self, joint: JointBatch | None, forth: ContrastInput, in_batch: int) -> Tensor:
        """The same with w = 1 for the first candidates, those of the batch."""
        pairs, first = forth.pairs, torch.arange(forth.pairs.num_candidates)[None] < in_batch
        first = first.to(pairs.candidate_ids.device)  # (1, M)
        excluded = first if pairs.excluded is None else first | pairs.excluded
        mined = replace(forth, pairs=replace(pairs, excluded=excluded, non_negatives=None))
        sums, logits = weighted_negatives(self.weighted, mined, logits=self.logits)
        unweighted = torch.where(pairs.negatives() & first, logits, -torch.inf).logsumexp(1)
        return self._mean(joint, pairs, logits, sums, unweighted)

    def _mean(
        self, joint: JointBatch | None, pairs: Pairs, logits: Tensor, *sums: Tensor
    ) -> Tensor:
        """The mean of -log p of the positives; ``sums`` are log Σ of negatives, each (N,)."""
        positive = logits.gather(1, pairs.positives)[:, 0]
        total = torch.stack([positive + math.log(self._holding), *sums]).logsumexp(0)
        count = mean_count(positive.new_tensor(len(positive)), joint)
        loss: Tensor = (total - positive).sum() / count
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The options, those of the weights as they were given, and the mix, for the model card."""
        own = get_annotations(Options).keys() - {"model", "last_layer"}
        given = {its.name: getattr(self, its.name) for its in fields(Options) if its.name in own}
        given |= self.weighting_options
        if "components" in given:
            given["components"] = list(self.mix)
        return {
            **given,
            "similarity_fct": similarity_fct_name(self.similarity_fct),
            "directions": list(self.directions),
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

    def attach(self, trainer: Any) -> None:
        """Add the callback to a trainer before those that report, so that they log the mix too.

        ``callbacks=[...]`` of the trainer come after the reports to TensorBoard, W&B and MLflow,
        which then lack the mix; ``state.log_history`` has it either way.

        Args:
            trainer: A ``SentenceTransformerTrainer``.

        Example:
            ``loss.callback().attach(trainer)``
        """
        handler = trainer.callback_handler
        handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore what a checkpoint holds, if training resumes from one."""
        for loss in self.losses.values():
            loss._lacks_mix = False
        if state.global_step == 0:
            return
        # The trainer does not say from which checkpoint; it is known by its step and its history.
        path = _mix_file(self._folder(args, state))
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
        kept, components = _read_mix(path)
        if missing_names := self.losses.keys() - kept.keys():
            raise ValueError(
                f"expected the mix of {sorted(missing_names)} in {path}, got that of "
                f"{sorted(kept)}; resume with the same names of data sets"
            )
        for name, loss in self.losses.items():
            own = list(loss.mix)
            if components.get(name, own) != own:
                raise ValueError(
                    f"expected the components of {path}, {components[name]}, got {own}; resume "
                    "with the same ones in the same order"
                )
            loss.weighted.load_state_dict(kept[name])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the mix beside the model."""
        folder = self._folder(args, state)
        if state.is_world_process_zero and folder.is_dir():
            _write_mix(self.losses, folder / LOSS_FILE)

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


class _Notice:
    """Notes that weights were loaded into the model of a loss that has not trained yet.

    A copy of the model, in another process perhaps, has nobody to tell.
    """

    def __init__(self, loss: UnReMixLoss | None) -> None:
        self.loss = None if loss is None else weakref.ref(loss)

    def __call__(self, model: nn.Module, keys: Any) -> None:
        loss = None if self.loss is None else self.loss()
        if loss is not None:
            loss._lacks_mix = not loss._begun

    def __reduce__(self) -> tuple[type[_Notice], tuple[None]]:
        return _Notice, (None,)


def _mix_file(folder: Path) -> Path:
    """What holds the mix in a checkpoint's folder, whichever version wrote it."""
    old, new = folder / OLD_LOSS_FILE, folder / LOSS_FILE
    return old if old.is_file() and not new.is_file() else new


def _write_mix(given: dict[str, UnReMixLoss], path: Path) -> None:
    """Write the state of each loss, by its name; JSON says whose tensor has which number."""
    kept = {name: loss.weighted.state_dict() for name, loss in given.items()}
    components = {name: list(loss.mix) for name, loss in given.items()}
    tensors = [tensor for state in kept.values() for tensor in state.values()]
    places = iter(range(len(tensors)))
    names = {name: {key: str(next(places)) for key in state} for name, state in kept.items()}
    numbered = {str(place): each.cpu().contiguous() for place, each in enumerate(tensors)}
    whole = path.with_name(f".{path.name}")
    facts = {"names": json.dumps(names), "components": json.dumps(components)}
    save_file(numbered, whole, metadata=facts)
    whole.replace(path)  # whole, or as before


def _read_mix(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, list[str]]]:
    """The state of each loss and its components, by its name; an early file has no components."""
    remedy = "resume from another checkpoint, or remove this file to start from the initial mix"
    with sound("the mix of a training", path, remedy):
        if path.name == OLD_LOSS_FILE:
            check_torch()
            old: dict[str, dict[str, Tensor]] = torch.load(
                path, map_location="cpu", weights_only=True
            )
            return old, {}
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            kept = {
                name: {key: file.get_tensor(place).clone() for key, place in state.items()}
                for name, state in json.loads(facts["names"]).items()
            }
            return kept, json.loads(facts.get("components", "{}"))


def _linear_part(layer: nn.Module | None) -> nn.Module | None:
    """A layer that takes and returns tensors: of a ``Dense`` module, what it holds."""
    if isinstance(layer, Dense):
        return nn.Sequential(layer.linear, layer.activation_function)
    return layer


def _numbered(features: dict[str, Tensor]) -> Tensor:
    """A number of each text, the same for the same tokens in every process, shape (N,), int64."""
    tokens, mask = features.get("input_ids"), features.get("attention_mask")
    if tokens is None or mask is None or tokens.dim() != 2:
        raise ValueError(
            "expected padded tokens for duplicates='exclude', got a model with other inputs; use "
            "duplicates='keep' and a batch sampler without duplicates"
        )
    rows = zip(tokens.cpu().numpy(), mask.cpu().numpy() > 0, strict=True)
    digests = [hashlib.blake2b(row[kept].tobytes(), digest_size=7).digest() for row, kept in rows]
    numbers = [int.from_bytes(digest, "little") for digest in digests]
    return torch.tensor(numbers, device=tokens.device)
