"""Many small pictures in one: an atlas of tiles."""

from __future__ import annotations

import io
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

BLOCK = 16  # side of the blocks that JPEG compresses: a tile of whole blocks has clean edges
LOSSLESS_PIXELS = 400_000  # fewer are kept as they are


@dataclass(frozen=True)
class Atlas:
    """Tiles in rows."""

    data: bytes  # the picture, encoded
    kind: str  # its type: image/png or image/jpeg
    tile: int  # side of a tile in pixels
    columns: int  # tiles in a row


def shrunk(images: Tensor, most: int) -> Tensor:
    """Images, uint8 (n, C, S, S), with at most this many pixels per side."""
    if images.shape[-1] <= most:
        return images
    scaled = F.interpolate(images.float(), (most, most), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).byte()


def make_atlas(images: Tensor, most: int) -> Atlas:
    """Put pictures side by side.

    Args:
        images: uint8, shape (n, C, S, S).
        most: The largest side of a tile; larger pictures are scaled down.

    Returns:
        The atlas: PNG for little, JPEG for much.

    Example:
        >>> atlas = make_atlas(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), 64)
        >>> atlas.kind, atlas.tile, atlas.columns
        ('image/png', 8, 3)
    """
    count, channels, size, _ = images.shape
    tile = min(size, most)
    lossless = count * tile * tile <= LOSSLESS_PIXELS
    if not lossless:
        tile = max(BLOCK, tile // BLOCK * BLOCK)
    columns = max(1, round(count**0.5 + 0.49))
    rows = -(-count // columns)
    tiles = torch.zeros(rows * columns, channels, tile, tile, dtype=torch.uint8)
    for start in range(0, count, 512):
        part = images[start : start + 512]
        tiles[start : start + len(part)] = shrunk(part, tile)
    grid = tiles.view(rows, columns, channels, tile, tile).permute(2, 0, 3, 1, 4)
    canvas = grid.reshape(channels, rows * tile, columns * tile)
    array = canvas[0].numpy() if channels == 1 else canvas.permute(1, 2, 0).contiguous().numpy()
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG" if lossless else "JPEG", quality=78, optimize=True)
    return Atlas(stream.getvalue(), "image/png" if lossless else "image/jpeg", tile, columns)
