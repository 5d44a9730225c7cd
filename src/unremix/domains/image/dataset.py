"""Images from the files a user has, as batches of one size.

:func:`load_images` reads every format into the same three steps: find the images and their labels
(``reading.py``), agree on one size and number of channels, and put them into a store
that is decoded once (:class:`CachedImages`), on demand (:class:`LazyImages`), or shard by shard
(:class:`StreamedImages`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unremix.core.checks import check_positive
from unremix.domains.image.decoding import ACCEPTED, common_shape, quiet_pillow
from unremix.domains.image.reading import find_splits
from unremix.domains.image.stores import (
    CachedImages,
    ImageSet,
    LazyImages,
    free_memory,
    store_images,
    stream_split,
)
from unremix.files.archives import RemoteSpan, Skipped, name_some
from unremix.files.locate import candidates
from unremix.files.remote import kept


@dataclass(frozen=True)
class ImageData:
    """What :func:`load_images` found.

    Args:
        train: Images to learn from.
        test: Images held out; None if the data has no split of its own.
        name: Short name of the data.
        skipped: Name and reason of all files that could not be used.
    """

    train: ImageSet
    test: ImageSet | None
    name: str
    skipped: tuple[Skipped, ...]


def load_images(
    data: str | Path | Sequence[str | Path] = "digits",
    *,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    validation: float | None = None,
    cache_bytes: int | None = None,
    stream: bool = False,
    progress: bool = False,
) -> ImageData:
    """Load images from any of the accepted formats.

    - ``digits``: the 1,797 handwritten digits of scikit-learn, a quarter of them held out.
    - A folder of images or a zip of one. First-level folders ``train`` (``training``) and ``test``
      (``val``, ``valid``, ``validation``) are a split; of several held-out folders the first with
      class folders counts. If all images of a split lie in at least two sub-folders, these are the
      classes; Tiny-ImageNet's ``val_annotations.txt`` is read. Folders that wrap everything else
      are looked through.
    - CIFAR-10 or CIFAR-100 python pickles, as a folder or ``.tar.gz``. Only arrays are unpickled;
      a pickle that asks for anything else is refused.
    - MNIST-like idx files, packed by gzip or not, in one folder.
    - ``.npz`` with ``images`` (and ``labels``), or ``x_train`` (``y_train``, ``x_test``,
      ``y_test``): (n, H, W), (n, H, W, C) or (n, C, H, W), in 0..255 or floats in [0, 1].
    - WebDataset shards: a ``.tar``, a folder of them or a pattern like ``shards-{000..099}.tar``.
      Where some names say train and others test or val, they are a split.
    - Any of these behind a URL such as ``s3://…``, but for folders of pickles and idx files; see
      :mod:`unremix.files.remote`.
    - A list of image files.

    Every image is turned upright by its EXIF tag, reduced to its first frame, laid over white
    where it is transparent, brought to 8 bits (16 bits are divided by 257; other integers and
    floats scale by the smallest of 1, 255 and 65535 that holds their maximum, or else by their
    own range), cropped to its central square and resized to S x S with an antialiased bicubic
    filter. C is 1 if all images looked at are gray, else 3.

    Files that are not images, empty, corrupt or of more pixels than `PIL.Image.MAX_IMAGE_PIXELS`
    are left out; one `UserWarning` names some, and ``skipped`` of the result names all. Hidden
    files are ignored. Names are sorted, so the order is always the same.

    Args:
        data: What to load: a word, a path, a pattern or a list of image files. A path that does
            not exist is looked up in the folder that the environment variable ``UNREMIX_DATA``
            names.
        image_size: S. By default the median short side of up to 200 images, within 8..224.
        channels: C, 1 or 3. By default 1 if all images looked at are gray, else 3.
        limit: At most this many images for training and for testing each, drawn with a fixed seed
            before anything is decoded; they stay in sorted order.
        validation: Hold out this share of the images for training, drawn with a fixed seed, and
            give them in place of the test images, which are not read.
        cache_bytes: Memory for decoded images. What does not fit is decoded on demand, where only
            headers are checked now (see :class:`LazyImages`). By default half of the memory that
            is free now; processes that share a machine should share it here too.
        stream: Whether to leave WebDataset shards where they are and read them as they are needed
            (see :class:`StreamedImages`). Images are not checked now: one that cannot be decoded
            is black, with a warning.
        progress: Whether to show a progress bar on the terminal.

    Returns:
        The images for training and, if the data has a split, for testing.

    Raises:
        FileNotFoundError: If the data does not exist.
        ValueError: If the format is not accepted, no image is usable, or an option is not
            positive.

    Example:
        >>> import torch
        >>> digits = load_images("digits")
        >>> len(digits.train), len(digits.test)
        (1347, 450)
        >>> digits.train.images.batch(torch.tensor([0, 1])).shape
        torch.Size([2, 1, 8, 8])
    """
    check_positive(image_size=image_size)
    if channels not in (None, 1, 3):
        raise ValueError(f"expected channels to be 1 or 3, got {channels}")
    found = find_splits(data, limit=limit, validation=validation)
    splits = found.splits
    total = sum(len(split.names) for split in splits) + len(found.skipped)
    budget = free_memory() // 2 if cache_bytes is None else cache_bytes
    skipped = list(found.skipped)
    sets: list[ImageSet] = []
    if stream:
        splits = [stream_split(split) for split in splits]
    with quiet_pillow():
        shape = common_shape(splits[0].source, image_size)
        if channels is not None:
            shape = shape._replace(channels=channels)
        for title, split in zip(("train", "test"), splits, strict=False):
            said = f"{title} images" if progress else None
            images, bad = store_images(split, shape, None if stream else budget, said)
            sets.append(images)
            skipped += bad
            if isinstance(images.images, CachedImages):
                budget -= images.images.images.numel()
            elif not stream:
                _warn_of_ranges(images.images)
    message = f"skipped {len(skipped)} of {total} files: {name_some(skipped)}"
    if not len(sets[0]):
        if not isinstance(data, str | Path):
            raise ValueError(f"expected at least one usable image, got none ({message})")
        folder = any(place.is_dir() for place in candidates(data))
        raise ValueError(
            f"expected at least one usable image for training in {data}, got none "
            f"({message if skipped else 'it is empty'}); "
            + ("put pictures into the folder" if folder else f"accepted are {ACCEPTED}")
        )
    if skipped:
        warnings.warn(message, stacklevel=2)
    test = sets[1] if len(sets) > 1 and len(sets[1]) else None
    return ImageData(sets[0], test, found.name, tuple(skipped))


def _warn_of_ranges(images: LazyImages) -> None:
    """Say that images are read one by one from behind a URL, if the cache has not all shards."""
    spans = images.source.spans
    shards = {span.file for span in spans if isinstance(span, RemoteSpan) and span.offset}
    absent = sum(kept(shard) is None for shard in shards)
    if absent:
        warnings.warn(
            f"expected room in the cache for {len(shards)} shards, found none for {absent} of them;"
            " their images are read one by one, which is slow: add --stream 16, or allow more by "
            "UNREMIX_CACHE_BYTES",
            stacklevel=3,
        )
