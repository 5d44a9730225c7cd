"""Put the classes of a zip of images into groups: the same images in fewer, larger folders.

    python studies/coarse_labels.py tiny-imagenet-100.zip tiny-imagenet-20.zip

The groups are those of ``tiny-imagenet-20.yaml``. Nothing is decoded: an image's bytes stay as they
are, and its name begins with that of its class.
"""

from __future__ import annotations

import argparse
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import yaml

GROUPS = Path(__file__).with_name("tiny-imagenet-20.yaml")


def group_of_class(path: Path = GROUPS) -> dict[str, str]:
    """The group of each class, by WordNet's id."""
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {one: group for group, classes in groups.items() for one in classes}


def regroup(source: Path, target: Path, groups: dict[str, str]) -> int:
    """Write the images of a zip by group.

    Args:
        source: A zip of ``train/<class>/<image>`` and ``test/<class>/<image>``, in a folder or not.
        target: The zip to write.
        groups: The group of each class.

    Returns:
        How many images there are.
    """
    with ZipFile(source) as old, ZipFile(target, "w") as new:
        names = sorted(name for name in old.namelist() if not name.endswith("/"))
        images = [(name, PurePosixPath(name)) for name in names]
        images = [(name, path) for name, path in images if path.parent.name in groups]
        for name, path in images:
            split, kind = path.parent.parent.name, path.parent.name
            new.writestr(f"{split}/{groups[kind]}/{kind}-{path.name}", old.read(name))
    return len(images)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    print(f"{regroup(options.source, options.target, group_of_class()):,} images")


if __name__ == "__main__":
    main()
