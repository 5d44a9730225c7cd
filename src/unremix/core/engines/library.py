"""The compiled library: built once, kept in the user's cache, verified each time it is loaded.

``kernels.c`` is built by the system's C compiler when first needed, which takes two or three
seconds. A cached library ends in its own SHA-256 digest. It is loaded only if it is complete,
belongs to the user and cannot be written by others; anything else is built again and never loaded.
The verified bytes themselves are loaded, so the file cannot be exchanged in between.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from unremix.user_cache import user_cache

SOURCE = Path(__file__).with_name("kernels.c")
# None of these flags changes how NaN and infinity behave.
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fopenmp", "-fno-trapping-math", "-fno-math-errno",
    "-fno-strict-aliasing",
)  # fmt: skip
AVX2 = ("-mavx2", "-mfma")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
INSTRUCTIONS = {"AVX2": AVX2, "AVX512": (*AVX2, *AVX512)}  # by what torch found
SEAL = hashlib.sha256().digest_size  # bytes at the end of a kept library
LARGEST = 2**24  # bytes of a library; it takes some 50,000

# As in the source: p a pointer, n an integer, x a number, b a flag.
ARGUMENTS = {"sweep": "nnnpppxppxxbbpppp"}


class Unavailable(Exception):
    """Why there is no compiled code."""


class Untrusted(Exception):
    """Why a folder or file of the cache is not used."""


class Command(NamedTuple):
    """How to build a library.

    Args:
        compiler: Path of the C compiler.
        extra: Its options from ``$CC``, for compiling and linking.
        flags: Its options for compiling.
    """

    compiler: str
    extra: tuple[str, ...]
    flags: tuple[str, ...]

    def key(self) -> str:
        """A hash of everything that the built library depends on."""
        what = " ".join((platform.machine(), self.compiler, *self.extra, *self.flags))
        return hashlib.sha256(SOURCE.read_bytes() + what.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where built libraries are kept."""
    return user_cache() / "native"


def find_library(*, wide: bool, compiler: str | None = None, folder: Path | None = None) -> bytes:
    """The library for float or for double, from the cache or newly built.

    If the cache cannot be used, a `UserWarning` says why, and the library is built for this process
    alone.

    Args:
        wide: Whether for double.
        compiler: The C compiler with its options; ``$CC`` or ``cc`` by default.
        folder: Where to keep it; the user's cache by default.

    Raises:
        Unavailable: If it cannot be built.
    """
    command = _command(wide, compiler or os.environ.get("CC") or "cc")
    key = command.key()
    try:
        folder = folder or cache_folder()
        make_private(folder)
    except (OSError, RuntimeError, Untrusted) as error:  # or no home folder
        _warn(f"the folder {folder or 'for it'} is not used: {error}")
        return _build(command, "for this process alone")
    path = folder / f"kernels-{key}.so"
    try:
        return read_sealed(path, key)
    except FileNotFoundError:
        pass
    except (OSError, Untrusted) as error:
        _warn(f"{path} is built again and not loaded: {error}")
    library = _build(command, f"once, kept in {folder}")
    try:
        write_sealed(path, key, library)
    except OSError as error:
        _warn(f"it could not be kept in {folder}: {error}")
    return library


def _warn(problem: str) -> None:
    warnings.warn(f"compiled library: {problem}", stacklevel=4)


def _command(wide: bool, compiler: str) -> Command:
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
    instructions = INSTRUCTIONS.get(capability, ())
    return Command(path, tuple(extra), (*FLAGS, *instructions, f"-DWIDE={int(wide)}"))


def make_private(folder: Path) -> None:
    """Make a folder that only the user can read and write, or make it so.

    Raises:
        Untrusted: If it is a link, or belongs to another user.
        OSError: If it cannot be made.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted("it is not a folder")
    if status.st_uid != os.geteuid():
        raise Untrusted("it belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)


def read_sealed(path: Path, key: str) -> bytes:
    """The library that :func:`write_sealed` wrote under this key.

    Raises:
        Untrusted: If it is a link, belongs to another user, can be written by others, or is not
            what was written.
        OSError: If it cannot be read.
    """
    # Neither a link nor a pipe is followed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted("it is not a file")
        if status.st_uid != os.geteuid():
            raise Untrusted("it belongs to another user")
        if status.st_mode & 0o022:
            raise Untrusted("it can be written by others")
        content = file.read(LARGEST)
    library, seal = content[:-SEAL], content[-SEAL:]
    if not library or seal != _seal(key, library):
        raise Untrusted("it is damaged or was put there by something else")
    return library


def write_sealed(path: Path, key: str, library: bytes) -> None:
    """Write a library and its digest as one file, which appears once it is whole on the disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(library + _seal(key, library))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _seal(key: str, library: bytes) -> bytes:
    """Includes the key, so that a library for float never passes as one for double."""
    return hashlib.sha256(key.encode() + library).digest()


def _build(command: Command, purpose: str) -> bytes:
    """Compile and link in a folder of its own, with a line on the terminal that says so."""
    compiler, extra, flags = command
    print(
        f"unremix: compiling its C code with {compiler}, a few seconds ({purpose})",
        file=sys.stderr,
        flush=True,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="unremix-") as scratch:
            compiled, linked = Path(scratch, "kernels.o"), Path(scratch, "kernels.so")
            # Linked without OpenMP: its functions are those that torch has loaded, so that there is
            # one set of threads.
            for arguments in (
                [compiler, *extra, *flags, "-c", str(SOURCE), "-o", str(compiled)],
                [compiler, *extra, "-shared", str(compiled), "-lm", "-o", str(linked)],
            ):
                subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=120)
            return linked.read_bytes()
    except subprocess.CalledProcessError as error:
        reason = next(iter(error.stderr.strip().splitlines()), f"exit code {error.returncode}")
        raise Unavailable(f"{' '.join((compiler, *extra))} failed: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error


def load(library: bytes, *, wide: bool) -> ctypes.CDLL:
    """The functions of a library, with their types.

    Raises:
        Unavailable: If it cannot be loaded.
    """
    try:
        # In memory, so that no file has to be trusted. The descriptor stays open: the loader knows
        # a library by its path, and would take another one under the same path for this one.
        descriptor = os.memfd_create("unremix-kernels")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(library)
        functions = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        raise Unavailable(str(error)) from error
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "b": ctypes.c_int}
    kinds["x"] = ctypes.c_double if wide else ctypes.c_float
    for name, arguments in ARGUMENTS.items():
        getattr(functions, name).argtypes = [kinds[each] for each in arguments]
    return functions
