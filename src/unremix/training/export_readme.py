"""The README beside an exported encoder: what it takes, and code that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

README_START = "# An encoder exported by unremix"

ITEMS = {  # what they are called, an example of them, and what else it can be
    "graph": ("graphs", "[graph]", "of torch_geometric.data.Data"),
    "sentence": ("sentences", '["A sentence.", "Another one."]', "of strings"),
    "image": ("pictures", '["photo.jpg"]', "of paths, PIL images or arrays"),
}


def readme(facts: dict[str, Any], path: Path, code: Path | None) -> str:
    """The README of an encoder.

    Other files with the same stem beside it are covered as well. ``code`` builds the network where
    torchvision's class does not fit.
    """
    unit, items, kinds = ITEMS[facts["domain"]]
    stem = path.name.split(".")[0]
    earlier = path.parent / f"{stem}_model.py"
    code = earlier if code is None and earlier.exists() else code
    formats = (".safetensors", ".onnx", ".torchvision.pt")
    files = {end: stem + end for end in formats if (path.parent / (stem + end)).exists()}
    files[path.name[len(stem) :]] = path.name
    loadable = path.name if path.suffix in (".safetensors", ".onnx") else None
    loadable = loadable or files.get(".safetensors") or files.get(".onnx")
    parts = [
        f"{README_START} {facts['version']}\n\nIt maps {unit} to embeddings of size "
        f"{facts['features']}, the output of the {facts['layer']}."
    ]
    if loadable is not None:
        parts.append(f"""\
## With unremix

```python
import unremix

encoder = unremix.load_exported("{loadable}")
embeddings = encoder.embed({items})  # a list {kinds}
```""")
    if facts["domain"] == "image":
        parts += _image_parts(facts, files, code)
    else:
        parts.append(
            "The weights alone are not enough without unremix: the file's metadata describes how "
            f"{unit} become numbers, and `load_exported` follows it."
        )
    return "\n\n".join(parts) + "\n"


def _image_parts(facts: dict[str, Any], files: dict[str, str], code: Path | None) -> list[str]:
    size, channels, gray = facts["size"], facts["channels"], facts["channels"] == 1
    color = "grayscale" if gray else "RGB"
    mode, axes = ("L", "[None]") if gray else ("RGB", ".transpose(2, 0, 1)")
    parts = [
        f"""\
## Preprocessing

`preprocess.json` and the metadata of the files hold the same values. `load_exported` also reads
pictures of 16 bits per channel, which the code below does not scale.

1. Turn the picture upright (EXIF) and lay transparent pixels over white.
2. Crop the central square and resize it to {size} x {size} pixels, bicubic and antialiased.
3. Convert it to {color}, 8 bits, channels first: ({channels}, {size}, {size}).
4. Divide by 255, subtract the mean {facts["mean"]} and divide by the standard deviation
   {facts["std"]}. The ONNX file does this step itself: it takes `uint8`.

```python
import numpy as np
from PIL import Image, ImageOps


def read(path):
    picture = Image.open(path)
    side = min(picture.size)
    if side >= {4 * size}:  # a JPEG is decoded at a fraction of its size
        picture.draft(None, tuple({2 * size} * length // side for length in picture.size))
    picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side)).convert("{mode}")
    bicubic = Image.Resampling.BICUBIC
    return np.asarray(picture.resize(({size}, {size}), bicubic, reducing_gap=2.0)){axes}


images = np.stack([read("photo.jpg")])
```"""
    ]
    if ".onnx" in files:
        parts.append(f"""\
## ONNX

```python
import onnxruntime

session = onnxruntime.InferenceSession("{files[".onnx"]}")
(embeddings,) = session.run(None, {{"images": images}})
```""")
    weights = next((name for name in files.values() if name.endswith((".pt", ".pth"))), None)
    if weights is not None:
        if code is not None:
            build = f"from {code.stem} import load\n\nmodel = load()"
        else:
            build = (
                f"import torchvision\n\nmodel = torchvision.models.{facts['encoder']['name']}()\n"
                "model.fc = torch.nn.Identity()\n"
                f'model.load_state_dict(torch.load("{weights}", weights_only=True))\nmodel.eval()'
            )
        parts.append(f"""\
## PyTorch

```python
import torch
{build}
mean, std = torch.tensor([{facts["mean"]}, {facts["std"]}])[:, :, None, None]
with torch.no_grad():
    embeddings = model((torch.from_numpy(images) / 255 - mean) / std)
```""")
    return parts
