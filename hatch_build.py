"""The README for PyPI, where links to files of the repository lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def for_pypi(readme: str, repository: str | None) -> str:
    """The README with links to files made absolute, or plain where no repository is known.

    Images of the repository are left out: PyPI shows none that it cannot reach.

    Args:
        readme: Markdown.
        repository: The address of the repository, if pyproject.toml names one.
    """

    def replace(link: re.Match[str]) -> str:
        text, target = link.groups()
        if re.match(r"https?://|#", target):
            return link.group()
        return text if repository is None else f"[{text}]({repository}/blob/main/{target})"

    readme = re.sub(r"<picture>.*?</picture>\n+(?:\*.*?\*\n+)?", "", readme, flags=re.DOTALL)
    readme = re.sub(r"!\[[^\]]*\]\((?!https?://)[^)\s]+\)\n*", "", readme)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", replace, readme)


class ReadmeHook(MetadataHookInterface):
    """Puts the README into the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the field ``readme``."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = for_pypi(readme, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
