"""Runs on the Hugging Face Hub: a run folder with a model card, written, published and read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unremix.console.printing import markdown_table
from unremix.console.suggestions import needed_for
from unremix.console.templates import fill
from unremix.evaluation.card import card_table, spread_of
from unremix.files.atomic_files import copy_file, write_text
from unremix.training.checkpoints import read_safetensors
from unremix.training.run import Layer, Run

if TYPE_CHECKING:
    from huggingface_hub import ModelHubMixin
    from typing_extensions import Self

NAME = "user/name"
CARD = Path(__file__).with_name("training") / "templates" / "model_card.md.jinja"
# What makes a run: its options, the shape of its data, the weights, what was measured.
FILES = ("config.yaml", "shape.json", "encoder.safetensors", "evaluation.json")


class SharedRun(Run):
    """A run folder that can be written for others, published and read from the Hub.

    ``unremix.load`` makes it. The arguments are those of :class:`unremix.Run`; the methods need the
    extra ``hub``.
    """

    @classmethod
    def of(cls, run: Run) -> Self:
        """The same run."""
        shared = cls.__new__(cls)
        shared.__dict__.update(run.__dict__)
        return shared

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write the run without its checkpoints, with a model card, to a folder.

        Args:
            save_directory: The folder; :meth:`from_pretrained` reads it.

        Raises:
            ImportError: Without the extra ``hub``.
            ValueError: If the run has no weights yet.
        """
        _on_the_hub(self).save_pretrained(save_directory)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Push a run of unremix",
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Publish what :meth:`save_pretrained` writes.

        Args:
            repo_id: ``user/name``; it is made if it does not exist.
            private: Whether a new one is private; by default as the account is set up.
            token: An access token; by default the one of ``hf auth login``.
            commit_message: Of the commit.
            branch: Where to; the main branch by default.
            create_pr: Whether to open a pull request instead.

        Returns:
            The address of the commit.

        Raises:
            ImportError: Without the extra ``hub``.
            ValueError: If the run has no weights yet.
        """
        address = _on_the_hub(self, repo_id).push_to_hub(
            repo_id,
            private=private,
            token=token,
            commit_message=commit_message,
            branch=branch,
            create_pr=create_pr,
        )
        return str(address)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        layer: Layer = "backbone",
        trust: bool = False,
    ) -> Self:
        """A run from the Hub, or from a folder.

        Args:
            name: ``user/name``, or a folder that :meth:`save_pretrained` wrote.
            revision: A branch, tag or commit.
            token: An access token, for private ones.
            cache_dir: Where downloads are kept.
            local_files_only: Whether to use what was downloaded before.
            layer: As :class:`unremix.Run`. Only ``backbone`` is published.
            trust: Whether code may run that its ``config.yaml`` names.

        Raises:
            ImportError: Without the extra ``hub``, unless it is a folder.
            ValueError: For another layer of a run that was published.
        """
        folder = Path(name)
        if layer != "backbone" and not (folder / "checkpoints").is_dir():
            raise ValueError(
                f"expected layer='backbone' of a published run, got {layer!r}, which is not "
                "published; load the run's own folder for it"
            )
        if not folder.is_dir():
            folder = _hub().snapshot_download(
                str(name),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                allow_patterns=list(FILES),
            )
        return cls(folder, layer=layer, trust=trust)


def _hub() -> Any:
    with needed_for("the Hugging Face Hub"):
        import huggingface_hub
    return huggingface_hub


def _on_the_hub(run: SharedRun, name: str = NAME) -> ModelHubMixin:
    """The run as the Hub's library knows models, under a name."""
    hub = _hub()
    if not (run.path / "encoder.safetensors").is_file():
        raise ValueError(
            f"expected a trained run with encoder.safetensors, got {str(run.path)!r} without; "
            "finish its training first"
        )

    # Nothing else is published under its name.
    read_safetensors(run.path / "encoder.safetensors", run.path)

    class Model(hub.ModelHubMixin):  # type: ignore[misc, name-defined, unused-ignore]
        def _save_pretrained(self, save_directory: Path) -> None:
            in_place = run.path.resolve() == save_directory.resolve()
            for file in FILES:
                if (run.path / file).is_file() and not in_place:
                    copy_file(run.path / file, save_directory / file, inside=run.path)
            write_text(save_directory / "README.md", model_card(run, name))

    made: ModelHubMixin = Model()
    return made


def model_card(run: Run, name: str = NAME) -> str:
    """The model card of a run, which has a name on the Hub: what it is, its use, its measures.

    It is in Markdown, with the metadata that the Hub reads.
    """
    config, card = run.config, run.evaluation or {}
    named = ("recipe", "backbone", "epochs", "batch_size", "lr", "temperature", "seed")
    options = {name: getattr(config, name, None) for name in named}
    known = [[name, f"`{value}`"] for name, value in options.items() if value is not None]
    return fill(
        CARD,
        name=name,
        items=run.domain.items,
        config=config,
        labels_used=config.composition().labels,
        options=markdown_table(["option", "value"], known),
        card=card,
        verdict=card.get("verdict") or [],
        table=markdown_table(*card_table(card)) if card.get("results") else None,
        spread=spread_of(card) if card.get("results") else None,
    )
