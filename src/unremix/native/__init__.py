"""Sweeps over (B, M) arrays in compiled code, for tensors on the CPU.

A sweep in torch reads and writes whole arrays once per operation; here each row is read once and
everything is made of it while it lies in cache. ``kernels.c`` is built by the system's C compiler
when first needed, which takes two or three seconds, and kept in the user's cache. Nothing depends
on it: without a compiler, on other devices and for other dtypes the callers do the same in torch.
``UNREMIX_NATIVE=0`` in the environment turns it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
MOST_COMPONENTS = 8  # of a mix; as in the source
FITTING = 2**20  # bytes of vectors that stay in cache while others pass by
# No flag changes what a NaN or an infinity does.
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fopenmp", "-fno-trapping-math", "-fno-math-errno",
    "-fno-strict-aliasing",
)  # fmt: skip
INSTRUCTIONS = {"AVX2": ("-mavx2", "-mfma"), "AVX512": ("-mavx2", "-mfma")}  # by what torch found

Estimate = Literal["exponential", "softplus"]

ARGUMENTS = {
    "normalise": "nnpxpp",
    "posterior": "nnpxbpnppppp",
    "residual": "nnppppppxx",
    "residuals": "nnnppppxxpnppp",
    "without": "np",
    "pick": "npxpppnp",
    "sweep": "nnnpppxxpnpxppbbbbxppppp",
}


def _structure(real: type[ctypes.c_float | ctypes.c_double]) -> type[ctypes.Structure]:
    """A part of a mix as in the source."""
    pointers = ("table", "lines", "times", "left", "right", "times_left", "times_right")
    fields: list[tuple[str, Any]] = [(name, ctypes.c_void_p) for name in pointers]
    fields += [("depth", ctypes.c_int64), ("times_depth", ctypes.c_int64), ("plus", real)]
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


STRUCTURES = {False: _structure(ctypes.c_float), True: _structure(ctypes.c_double)}  # by width


class Unavailable(Exception):
    """Why there is no compiled code."""


def cache_folder() -> Path:
    """Where built libraries are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "unremix"


def build(*, wide: bool, compiler: str | None = None, folder: Path | None = None) -> Path:
    """The library for float, or for double, built where it is not there yet.

    Args:
        wide: Whether for double.
        compiler: The C compiler; ``$CC`` or ``cc`` by default.
        folder: Where to keep it; the user's cache by default.

    Raises:
        Unavailable: If it cannot be built.
    """
    compiler = compiler or os.environ.get("CC") or "cc"
    try:
        name, *extra = shlex.split(compiler) or [compiler]
    except ValueError as error:  # a quotation that does not end
        raise Unavailable(f"the C compiler {compiler!r} is not a command: {error}") from error
    path = shutil.which(name)
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"it is built on Linux only, not on {sys.platform}")
    if path is None:
        raise Unavailable(f"no C compiler {name!r}; install gcc")
    capability = torch.backends.cpu.get_cpu_capability()
    flags = (*extra, *FLAGS, *INSTRUCTIONS.get(capability, ()), f"-DWIDE={int(wide)}")
    try:
        source = SOURCE.read_bytes()
        what = " ".join((platform.machine(), path, *flags))
        key = hashlib.sha256(source + what.encode()).hexdigest()
        folder = folder or cache_folder()
        library = folder / f"kernels-{key[:16]}.so"
        if library.exists():
            return library
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled, linked = Path(scratch, "kernels.o"), Path(scratch, "kernels.so")
            # Linked without OpenMP: its functions are those that torch has loaded, so that there is
            # one set of threads.
            for command in (
                [path, *flags, "-c", str(SOURCE), "-o", str(compiled)],
                [path, *extra, "-shared", str(compiled), "-o", str(linked)],
            ):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            linked.replace(library)
    except subprocess.CalledProcessError as error:
        reason = next(iter(error.stderr.strip().splitlines()), f"exit code {error.returncode}")
        raise Unavailable(f"{compiler} failed: {reason}") from error
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # or no home folder
        raise Unavailable(str(error)) from error
    return library


def load(library: Path, *, wide: bool) -> ctypes.CDLL:
    """The functions of a library, with their types.

    Raises:
        Unavailable: If it cannot be loaded.
    """
    try:
        functions = ctypes.CDLL(str(library))
    except OSError as error:
        raise Unavailable(str(error)) from error
    # As in the source: p a pointer, n an integer, x a number, b a flag.
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "b": ctypes.c_int}
    kinds["x"] = ctypes.c_double if wide else ctypes.c_float
    for name, arguments in ARGUMENTS.items():
        getattr(functions, name).argtypes = [kinds[each] for each in arguments]
    for name in ("normalise", "residual", "pick"):
        getattr(functions, name).restype = None
    return functions


@lru_cache(maxsize=2)
def _loaded(wide: bool) -> ctypes.CDLL | str:
    if os.environ.get("UNREMIX_NATIVE", "1").lower() in ("0", "false", "no", "off"):
        return "it is turned off by UNREMIX_NATIVE"
    try:
        return load(build(wide=wide), wide=wide)
    except Unavailable as error:
        return str(error)


def missing(dtype: torch.dtype = torch.float32) -> str | None:
    """Why there is no compiled code for a dtype; None if there is."""
    if dtype not in (torch.float32, torch.float64):
        return f"it is built for float32 and float64, not for {dtype}"
    loaded = _loaded(dtype == torch.float64)
    return loaded if isinstance(loaded, str) else None


def ready(like: Tensor) -> bool:
    """Whether there is compiled code for such tensors: on the CPU, and not being traced."""
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return missing(like.dtype) is None


def serves(*tensors: Tensor) -> bool:
    """Whether compiled code can work on these: all contiguous, of one dtype, on the CPU."""
    kind = (tensors[0].dtype, tensors[0].device)
    alike = all(
        tensor.is_contiguous() and (tensor.dtype, tensor.device) == kind for tensor in tensors
    )
    return alike and ready(tensors[0])


def fit(vectors: Tensor) -> bool:
    """Whether vectors, shape (M, D), are few enough to multiply others with, a few at a time."""
    return 0 < vectors.nbytes <= FITTING


def _functions(like: Tensor) -> ctypes.CDLL:
    loaded = _loaded(like.dtype == torch.float64)
    assert not isinstance(loaded, str), loaded
    return loaded


def _check(done: int, like: Tensor) -> None:
    if not done:
        raise MemoryError(
            f"expected memory for a few rows of {like.shape[1]} numbers, received none; "
            "free some, or use a smaller batch"
        )


def normalise(embeddings: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """f = z/|z| and |z|, both 0 where |z| is at most ``smallest``.

    Args:
        embeddings: z, shape (..., D).
        smallest: See above.

    Returns:
        Shapes (..., D) and (...).
    """
    units, lengths = torch.empty_like(embeddings), embeddings.new_empty(embeddings.shape[:-1])
    _functions(embeddings).normalise(
        lengths.numel(),
        embeddings.shape[-1],
        embeddings.data_ptr(),
        smallest,
        units.data_ptr(),
        lengths.data_ptr(),
    )
    return units, lengths


def posterior(
    similarity: Tensor,
    masked: Tensor,
    temperature: float,
    *,
    bounded: bool,
    out: Tensor,
    columns: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """e^{s/t} over the classes, its sums and where its maxima stand first.

    Args:
        similarity: s, shape (B, M).
        masked: Flat positions that are no class, sorted, shape (L,).
        temperature: t.
        bounded: Whether e^{s/t} is safe as it is; else the row maximum is taken off first.
        out: Where e^{s/t} goes, shape (B, M); may be ``similarity``.
        columns: Whether sums and places are wanted for the columns too.

    Returns:
        Sum and place of each row, shapes (B,), and of each column, shapes (M,), where wanted.
    """
    rows, width = similarity.shape
    total, label = similarity.new_empty(rows), masked.new_empty(rows)
    column_total = similarity.new_empty(width) if columns else None
    column_label = masked.new_empty(width) if columns else None
    done = _functions(similarity).posterior(
        rows,
        width,
        similarity.data_ptr(),
        float(1 / temperature),
        bool(bounded),
        masked.data_ptr(),
        masked.numel(),
        out.data_ptr(),
        total.data_ptr(),
        label.data_ptr(),
        _address(column_total),
        _address(column_label),
    )
    _check(done, similarity)
    return total, label, column_total, column_label


def residual(
    d: Tensor,
    units: Tensor,
    lengths: Tensor,
    class_units: Tensor,
    total: Tensor,
    label: Tensor,
    *,
    temperature: float,
    noise: float,
) -> Tensor:
    """δ from Σ_k e_k f_k, in place; see :func:`unremix.scores.residuals`.

    Args:
        d: Σ_k e_k f_k, shape (B, D).
        units: f of the views, shape (B, D).
        lengths: |z| of the views, shape (B,).
        class_units: f of the classes, shape (M, D).
        total: Σ_k e_k, shape (B,).
        label: y, shape (B,).
        temperature: t.
        noise: A δ that is at most this, before its scaling, is 0.
    """
    _functions(d).residual(
        d.shape[0],
        d.shape[1],
        d.data_ptr(),
        units.data_ptr(),
        lengths.data_ptr(),
        class_units.data_ptr(),
        total.data_ptr(),
        label.data_ptr(),
        float(1 / temperature),
        noise,
    )
    return d


def residuals(
    units: Tensor,
    lengths: Tensor,
    class_units: Tensor,
    class_lengths: Tensor,
    masked: Tensor,
    *,
    temperature: float,
    noise: float,
    similarity: Tensor,
) -> tuple[Tensor, Tensor]:
    """δ of anchors and candidates, each of which has the others as classes, in one pass.

    Args:
        units: f of the anchors, shape (N, D).
        lengths: |z| of the anchors, shape (N,).
        class_units: f of the candidates, shape (M, D); few enough to :func:`fit`.
        class_lengths: |z| of the candidates, shape (M,).
        masked: Flat positions where neither is a class of the other, sorted, shape (L,).
        temperature: t, for which e^{s/t} is safe as it is.
        noise: See :func:`residual`.
        similarity: Where f·f goes, shape (N, M).

    Returns:
        Shapes (N, D) and (M, D).
    """
    delta, class_delta = torch.empty_like(units), torch.empty_like(class_units)
    done = _functions(units).residuals(
        *similarity.shape,
        units.shape[1],
        units.data_ptr(),
        lengths.data_ptr(),
        class_units.data_ptr(),
        class_lengths.data_ptr(),
        float(1 / temperature),
        noise,
        masked.data_ptr(),
        masked.numel(),
        similarity.data_ptr(),
        delta.data_ptr(),
        class_delta.data_ptr(),
    )
    _check(done, units)
    return delta, class_delta


def without(products: Tensor) -> Tensor:
    """R of each candidate j where k alone is masked, at [k, j], in place.

    Args:
        products: f_k · f_j, shape (M, M), M > 2.
    """
    _check(_functions(products).without(products.shape[0], products.data_ptr()), products)
    return products


@dataclass(frozen=True)
class Logits:
    """Logits of a block as a product.

    Args:
        similarity: Shape (B, M).
        factor: Of all.
        row_factor: Shape (B,).
        column_factor: Shape (M,).
    """

    similarity: Tensor
    factor: float
    row_factor: Tensor | None = None
    column_factor: Tensor | None = None


def pick(logits: Logits, positions: Tensor) -> Tensor:
    """Some logits.

    Args:
        logits: Of a block.
        positions: Flat, shape (P,).

    Returns:
        Shape (P,).
    """
    similarity = logits.similarity
    result = similarity.new_empty(positions.numel())
    _functions(similarity).pick(
        similarity.shape[1],
        similarity.data_ptr(),
        float(logits.factor),
        _address(logits.row_factor),
        _address(logits.column_factor),
        positions.data_ptr(),
        positions.numel(),
        result.data_ptr(),
    )
    return result


@dataclass(frozen=True)
class Inner:
    """Inner products of vectors, an array that is made when first asked for.

    Args:
        anchors: Shape (B, D).
        candidates: Shape (M, D).
        out: Where they go, shape (B, M).
    """

    anchors: Tensor
    candidates: Tensor
    out: Tensor

    @cached_property
    def values(self) -> Tensor:
        """The array, shape (B, M)."""
        return torch.mm(self.anchors, self.candidates.T, out=self.out)

    @property
    def at_once(self) -> bool:
        """Whether a sweep can make them a few rows at a time, without the array."""
        (count, depth), (others, other_depth) = self.anchors.shape, self.candidates.shape
        whole = self.out.shape == (count, others) and depth == other_depth
        return whole and fit(self.candidates) and serves(self.anchors, self.candidates, self.out)


def array(values: Tensor | Inner) -> Tensor:
    """The array, made if need be."""
    return values.values if isinstance(values, Inner) else values


@dataclass(frozen=True)
class Part:
    """A score of a block.

    Args:
        table: Shape (B, M); or (T, M), of which each row takes a line.
        lines: Which line each row takes, shape (B,); None: its own.
        times: The score is ``table × (times + plus)``, shape (B, M); None: it is the table.
        plus: See ``times``.
    """

    table: Tensor | Inner
    lines: Tensor | None = None
    times: Tensor | Inner | None = None
    plus: float = 0.0


@dataclass(frozen=True)
class Mixture:
    """Scores scaled to [0, 1] over the negatives, and their shares.

    Args:
        parts: The scores.
        mix: λ, shape (K,).
        magnitudes: See :class:`unremix.scores.Component`.
        noise: Relative to the magnitude: what counts as constant.
        floor: What a mix must exceed to count as a weight; see
            :func:`unremix.weights.weight_floor`.
    """

    parts: tuple[Part, ...]
    mix: Tensor
    magnitudes: Tensor
    noise: float
    floor: float


@dataclass(frozen=True)
class Swept:
    """What :func:`sweep` makes of a block; w = max(Σ_k λ_k C^k, 0).

    Args:
        total: Σ_j w_j, shape (B,).
        weighted: Σ_j w_j φ_j, shape (B,).
        highest: What was taken off the logits before the exponential, shape (B,).
        slopes: w_j φ'_j, shape (B, M); 0 where there is no negative.
        along: Σ_j (φ_j - c) C^k_j over the negatives, shape (K, B), where asked.
    """

    total: Tensor
    weighted: Tensor
    highest: Tensor
    slopes: Tensor
    along: Tensor | None


def sweep(
    logits: Logits,
    masked: Tensor,
    mixture: Mixture | None,
    *,
    estimate: Estimate,
    bounded: bool,
    extreme: bool,
    centre: float | None,
    differentiate: bool,
    out: Tensor,
) -> Swept:
    """Weights, and with them the sums and slopes of φ = e^x or softplus(x) of the logits x.

    Args:
        logits: x.
        masked: Flat positions that are not negatives, sorted, shape (L,).
        mixture: What the weights are made of; None: all are 1. Its tables are overwritten.
        estimate: Which φ.
        bounded: Whether e^x is safe as it is; else the row maximum is taken off first.
        extreme: Whether the exponentials of a row may span more than numbers can: then the maximum
            is taken where there is weight.
        centre: c; None: the weighted mean of φ, and rows of weight 0 become uniform.
        differentiate: Whether ``along`` is wanted.
        out: Where the slopes go, shape (B, M).
    """
    similarity = logits.similarity
    rows, width = similarity.shape
    total, weighted, highest = similarity.new_empty(3, rows).unbind()
    parts = 0 if mixture is None else len(mixture.parts)
    along = similarity.new_empty(parts, rows) if differentiate and parts else None
    scores = mix = magnitudes = None
    noise = floor = 0.0
    if mixture is not None:
        scores = _as_structures(mixture.parts, wide=similarity.dtype == torch.float64)
        mix, magnitudes = mixture.mix.data_ptr(), mixture.magnitudes.data_ptr()
        noise, floor = mixture.noise, mixture.floor
    done = _functions(similarity).sweep(
        rows,
        width,
        parts,
        scores,
        mix,
        magnitudes,
        noise,
        floor,
        masked.data_ptr(),
        masked.numel(),
        similarity.data_ptr(),
        float(logits.factor),
        _address(logits.row_factor),
        _address(logits.column_factor),
        int(estimate == "softplus"),
        bool(bounded),
        bool(extreme),
        centre is None,
        0.0 if centre is None else centre,
        out.data_ptr(),
        total.data_ptr(),
        weighted.data_ptr(),
        highest.data_ptr(),
        _address(along),
    )
    _check(done, similarity)
    return Swept(total, weighted, highest, out, along)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _as_structures(parts: tuple[Part, ...], *, wide: bool) -> ctypes.Array[Any]:
    result = (STRUCTURES[wide] * len(parts))()
    seen: set[int] = set()
    for part, each in zip(parts, result, strict=True):
        each.plus = part.plus
        inner = [factor for factor in (part.table, part.times) if factor is not None]
        if all(isinstance(factor, Inner) and factor.at_once for factor in inner):
            for factor, name in zip(inner, ("", "times_"), strict=False):
                assert isinstance(factor, Inner)
                setattr(each, f"{name}left", factor.anchors.data_ptr())
                setattr(each, f"{name}right", factor.candidates.data_ptr())
                setattr(each, f"{name}depth", factor.anchors.shape[1])
            continue
        table = array(part.table)
        each.table, each.lines = table.data_ptr(), _address(part.lines)
        if part.times is not None and table.data_ptr() not in seen:  # multiplied once, in place
            each.times = array(part.times).data_ptr()
        seen.add(table.data_ptr())
    return result
