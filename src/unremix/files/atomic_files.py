"""Reading and writing files: whole or not at all, by one process at a time, under any locale."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

try:
    import fcntl
except ImportError:  # a system without flock: nothing is locked there
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\.unremix-(\d+)-[0-9a-f]+\.tmp")  # with the number of its process
OF_SAFETENSORS = re.compile(r"\.tmp\w{6}")  # what it writes to before it renames
LARGEST = 2**28  # bytes of a file that is read whole
# Opening waits for nobody, and no terminal takes over.
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
FULL = (errno.ENOSPC, errno.EDQUOT)
DISK = (*FULL, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """A temporary path that takes the place of ``path`` once it is written whole.

    The file is new and has a name that nobody can guess, so no link that waits there is followed.

    Args:
        path: The file.
        keep: Where the file that stood at ``path`` before goes; it is replaced by default.

    Raises:
        OSError: If it cannot be written; what stood at ``path`` before stands there still.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".unremix-{os.getpid()}-{secrets.token_hex(8)}.tmp"
    try:
        created = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = stat.S_IMODE(os.fstat(created).st_mode)
        os.close(created)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, mode)  # some writers make private files
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = disk_error(error) if isinstance(error, Exception) else None
        if reason is not None:
            kept = any(file is not None and file.exists() for file in (path, keep))
            raise _in_words(reason, path, kept=kept) from error
        raise


def _in_words(reason: OSError, path: Path, *, kept: bool) -> OSError:
    """What is wrong with the disk."""
    wanted, got, remedy = f"to write {path}", reason.strerror, "check the disk and its permissions"
    if reason.errno in FULL:
        wanted, got = f"room on the disk for {path}", "no space left"
        remedy = "free some space, and continue a run with --resume"
    intact = "; the earlier one is intact" if kept else ""
    return OSError(reason.errno, f"expected {wanted}, got '{got}'{intact}; {remedy}")


def disk_error(error: BaseException | None) -> OSError | None:
    """What is wrong with the disk, if that is behind an error; libraries wrap it, or only name it.

    Example:
        >>> found = disk_error(RuntimeError("I/O error: No space left on device (os error 28)"))
        >>> found.errno == errno.ENOSPC
        True
    """
    if error is None:
        return None
    if isinstance(error, OSError) and error.errno in DISK:
        return error
    inner = disk_error(error.__cause__) or disk_error(error.__context__)
    if inner is not None:
        return inner
    number = re.search(r"os error (\d+)", str(error))
    if number is not None and int(number[1]) in DISK:
        return OSError(int(number[1]), os.strerror(int(number[1])))
    if "No space left" in str(error) or "PytorchStreamWriter failed" in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return None


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file through ``write(temporary path)``, then put it in its place."""
    with replacing(path) as temporary:
        write(temporary)


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all."""
    write_whole(path, lambda file: file.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    r"""Write a text, whole, as UTF-8; bytes of a file's name that are no UTF-8 become ``\xff``."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def appending(path: Path) -> TextIO:
    """Open a text to write at its end, as UTF-8; a link that waits there is not followed."""
    beside = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(
        path, "a", encoding="utf-8", errors="backslashreplace",
        opener=lambda name, flags: os.open(name, flags | beside, 0o666),
    )  # fmt: skip


def append_json(path: Path, record: Any) -> None:
    """Add a line to a file of JSON lines, whole or not at all; it is on the disk on return.

    What a full disk or a killed process left of a line is removed first. A link that waits there
    is not followed.

    Raises:
        OSError: If it cannot be written; the earlier lines are intact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record).encode() + b"\n"
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, 0o666), "rb+", buffering=0) as file:
        whole = file.seek(0, os.SEEK_END)
        file.seek(0)
        left = b"" if whole == 0 else file.read(whole).rpartition(b"\n")[2]
        try:
            json.loads(left)
            line = b"\n" + line  # only its line break is missing
        except (ValueError, RecursionError):
            whole -= len(left)
        try:
            file.truncate(whole)
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                file.truncate(whole)
            raise _in_words(error, path, kept=True) from error


def copy_file(source: Path, target: Path, *, inside: Path | None = None) -> None:
    """Copy a file, whole; no link is written through, and ``inside`` is as for `open_file`."""
    with (
        open_file(source, inside=inside) as file,
        replacing(target) as temporary,
        temporary.open("wb") as copy,
    ):
        shutil.copyfileobj(file, copy)


PATH_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,200}")


def check_name(name: str, what: str) -> str:
    """A name that becomes that of a file or folder, if it cannot lead elsewhere.

    Example:
        >>> check_name("hcl-0", "the name of a run")
        'hcl-0'

    Raises:
        ValueError: If it can.
    """
    if PATH_NAME.fullmatch(name) is None:
        raise ValueError(
            f"expected {what} to be a name of 1 to 200 characters without slashes, got "
            f"{name[:200]!r}; choose another"
        )
    return name


def refuse_link(folder: Path) -> None:
    """Refuse to write to a folder of a run that lies elsewhere.

    Who sends a run chooses its links: they could lead to the checkpoints of another run.

    Raises:
        ValueError: If it is a link.
    """
    if folder.is_symlink():
        raise ValueError(
            f"expected a folder of its own at {folder}, got a link to {os.readlink(folder)}; put "
            "a folder in its place"
        )


def write_arrays(
    path: Path,
    arrays: Mapping[str, Any],
    *,
    compressed: bool = False,
    write: Callable[[Path, Callable[[Path], Any]], None] = write_whole,
) -> None:
    """Write arrays as ``.npz``, whole, and nothing that a reader would have to unpickle.

    Args:
        path: The file.
        arrays: By name.
        compressed: Whether to pack them.
        write: How; :func:`unremix.files.seals.write_sealed` seals it.
    """
    import numpy as np

    save = np.savez_compressed if compressed else np.savez

    def write_them(file: Path) -> None:
        with file.open("wb") as stream:  # a stream, or NumPy would append a suffix
            save(stream, allow_pickle=False, **arrays)

    write(path, write_them)


class NotAFileError(OSError, ValueError):
    """What is to be read is a pipe, a device or a folder, or a link leads to it."""


def open_file(path: str | Path, *, inside: Path | None = None, most: int | None = None) -> BinaryIO:
    """Open a file to read; everything that is read back is opened here.

    Pipes and devices, which may never end, are refused without waiting for them.

    Args:
        path: The file.
        inside: The folder that it was found in, which it must not leave by a link: whoever sends a
            folder chooses its links. By default you named the file yourself.
        most: Bytes that it may have; any number by default.

    Raises:
        OSError: If it cannot be opened.
        NotAFileError: If it is no regular file, or lies outside the folder.
        ValueError: If it is larger.
    """
    if inside is not None and not Path(path).resolve().is_relative_to(_reach(inside)):
        raise NotAFileError(
            f"expected {path} to lie in its folder, got a link to {Path(path).resolve()}; put a "
            "copy in its place"
        )
    descriptor = os.open(path, READ)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise NotAFileError(f"expected a file at {path}, got {kind}; put a file in its place")
    if most is not None and status.st_size > most:
        os.close(descriptor)
        raise ValueError(f"expected at most {most:,} bytes in {path}, got {status.st_size:,}")
    return open(descriptor, "rb")


def _reach(folder: Path) -> Path:
    """Where links of a folder may lead: into it, or, as on the Hub, to the files it shares."""
    root = folder.resolve()
    shared = root.parent.name == "snapshots" and root.parents[1].name.startswith("models--")
    return root.parents[1] if shared else root


def checked(path: Path, *, inside: Path | None = None) -> Path:
    """The path of a file that a library opens itself, if :func:`open_file` can open it."""
    open_file(path, inside=inside).close()
    return path


def read_bytes(path: Path, most: int = LARGEST, *, inside: Path | None = None) -> bytes:
    """The contents of a file; see :func:`open_file`."""
    with open_file(path, inside=inside, most=most) as file:
        return file.read(most)


def read_text(path: Path, most: int = LARGEST, *, inside: Path | None = None) -> str:
    r"""A text in UTF-8; invalid bytes become ``\xff``. See :func:`open_file`."""
    return read_bytes(path, most, inside=inside).decode("utf-8", "backslashreplace")


def open_text(path: Path, encoding: str = "utf-8") -> TextIO:
    r"""Open a text to read line by line, with its own line breaks; see :func:`read_text`."""
    return io.TextIOWrapper(open_file(path), encoding, "backslashreplace", newline="")


def try_lock(path: Path) -> int | None:
    """Take a lock, without waiting.

    The lock belongs to the open file: to this process, and to those that inherit the descriptor. It
    ends with the last of them, whatever ended it, and leaves nothing that could be stale.

    Returns:
        The descriptor that holds it; None if another process does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if _same_file(descriptor, path):  # else it was removed before we had it
                opened.pop_all()
                return descriptor


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def hold(path: Path) -> int | None:
    """Keep a file from :func:`remove_unheld` in any process.

    Returns:
        The descriptor that holds it, until it is closed; None if there is no such file.
    """
    try:
        descriptor = os.open(path, READ)
    except FileNotFoundError:
        return None
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _same_file(descriptor, path):
        return descriptor
    os.close(descriptor)  # it was removed before we had it
    return None


def remove_unheld(path: Path) -> bool:
    """Remove a file unless a process holds it; whether it is gone."""
    try:
        descriptor = os.open(path, READ)
    except FileNotFoundError:
        return True
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def sweep(folder: Path) -> None:
    """Remove what writers left in a folder that were killed; hold the folder's lock."""
    for entry in os.scandir(folder) if folder.is_dir() else ():
        found = TEMPORARY.fullmatch(entry.name)
        left = found is not None and not _is_alive(int(found[1]))
        if left or OF_SAFETENSORS.fullmatch(entry.name):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
