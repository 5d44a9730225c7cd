"""Files with mistakes in them, and what every reader must do with them.

The contract: a reader succeeds or raises a ValueError that says what it expected and names the
file, within bounded time and memory of ten times the file plus 1 GiB. Everything runs in a child
process whose memory is limited, so that a reader that asks for more fails here and now.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

Files = Mapping[str, bytes]
SECONDS = 60  # of processor time
PATIENCE = 240  # seconds of any time, for a machine that is busy
GIBIBYTE = 2**30


def address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class BrokenContract(AssertionError):
    """A reader did something other than to succeed or to refuse."""


def hold(read: Callable[[Path], Any], path: Path) -> str:
    """Read a file under the contract; "read", or what it was refused for.

    Raises:
        BrokenContract: If the reader took too long, or raised anything but a good ValueError.
    """

    def too_long(signum: int, frame: Any) -> None:
        raise BrokenContract(f"it took more than {SECONDS} s of work, or {PATIENCE} s in all")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS),
              signal.ITIMER_REAL: (signal.SIGALRM, PATIENCE)}  # fmt: skip
    for timer, (sent, limit) in timers.items():
        signal.signal(sent, too_long)
        signal.setitimer(timer, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except ValueError as error:
        message = str(error)
        if isinstance(error, UnicodeError) or not message.startswith("expected "):
            raise BrokenContract(f"{type(error).__name__}: {message[:300]}") from error
        if not re.search(r"\b(got|received|found|but)\b", message) or len(message) > 3000:
            raise BrokenContract(f"an error that does not explain: {message[:300]}") from error
        return message
    except BrokenContract:
        raise
    except BaseException as error:
        raise BrokenContract(f"{type(error).__name__}: {str(error)[:300]}") from error
    finally:
        for timer, (sent, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(sent, signal.SIG_DFL)
    return "read"


def in_child(work: Callable[[], Any], *, file_bytes: int, seconds: float) -> tuple[int, str]:
    """Do something in a forked process with limited memory.

    Args:
        work: What to do; an exception is a failure.
        file_bytes: Size of the files at work, of which ten times is allowed.
        seconds: How long it may take.

    Returns:
        The exit code, negative if a signal ended it, and what it said.
    """
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            code = 1
            try:
                sys.settrace(None)  # coverage slows readers down, and other tests count their lines
                os.setpgid(0, 0)
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.stdout = sys.stderr = open(said.fileno(), "w", closefd=False)  # noqa: SIM115
                faulthandler.enable(said.fileno())
                most = address_space() + 10 * file_bytes + GIBIBYTE
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                work()
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            said.write(f"\nkilled after {seconds} s")
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()[-6000:]


def write_files(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


INTERESTING = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80",
    b"\xff\xff\xff\x7f", b"\x00\x00\x00\x00\x00\x01\x00\x00", b"-1", b"0", b"\n", b"\r", b",", b'"',
    b"[", b"{", b"]", b"}", b"999999999999", b"1e400", b"NaN", b"\xef\xbb\xbf", b"\xff\xfe",
    b"null", b"{}", b"[]", b"..", b"/", b"&a", b"*a", b"!!python/object:os.system", b"%",
)  # fmt: skip

# What is done to a file: how, where (a share of its length), how far, and with what.
changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "put", "insert", "cut", "end", "repeat", "swap", "nest"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 64),
        st.integers(0, len(INTERESTING) - 1),
    ),
    min_size=1,
    max_size=6,
)


def change(content: bytes, steps: list[tuple[str, float, int, int]]) -> bytes:
    """A file with mistakes."""
    data = bytearray(content)
    for kind, share, length, which in steps:
        place = int(share * len(data))
        value = INTERESTING[which]
        if kind == "flip" and data:
            data[place] ^= 1 << length % 8
        elif kind == "put":
            data[place : place + len(value)] = value
        elif kind == "insert":
            data[place:place] = value
        elif kind == "cut":
            del data[place : place + length]
        elif kind == "end":
            del data[place:]
        elif kind == "repeat":
            data[place:place] = data[place : place + length] * 40
        elif kind == "swap":
            other = (place * 7 + length) % max(1, len(data))
            data[place : place + 8], data[other : other + 8] = (
                data[other : other + 8],
                data[place : place + 8],
            )
        elif kind == "nest":
            data[place:place] = value * (100 * length)
    return bytes(data)


def change_packed(content: bytes, steps: list[tuple[str, float, int, int]]) -> bytes:
    """A gzip file with mistakes in what it holds; the last step may also hit the gzip itself."""
    try:
        packed = gzip.compress(change(gzip.decompress(content), steps), mtime=0)
    except (OSError, EOFError, zlib.error):
        return change(content, steps)
    return change(packed, steps[-1:]) if steps[-1][2] > 56 else packed


def fuzz(
    read: Callable[[Path], Any],
    seeds: Mapping[str, Files],
    *,
    examples: int,
    seed: int = 0,
    name: str = "",
) -> dict[str, int]:
    """Hold a reader to the contract over many files with mistakes, in a child process.

    Args:
        read: Reads a folder, or the file of this name in it.
        seeds: Sound files to begin with, by any name.
        examples: How many to try.
        seed: Of the search.
        name: What to read in the folder; the folder itself if empty.

    Returns:
        How many were read and how many refused.
    """
    choices = [(which, file) for which, files in seeds.items() for file in files]
    size = max(sum(map(len, files.values())) for files in seeds.values())
    with tempfile.TemporaryDirectory() as scratch:
        counts = Path(scratch, "counts")

        def work() -> None:
            seen = {"read": 0, "refused": 0}

            @with_seed(seed)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=False,
                phases=[Phase.generate],  # what fails is shown as it was found
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            )
            @given(
                target=st.sampled_from(choices),
                steps=changes,
                also=st.one_of(st.none(), st.tuples(st.sampled_from(choices), changes)),
            )
            def attempt(target: Any, steps: Any, also: Any) -> None:
                which, _ = target
                files = dict(seeds[which])
                for (other, each), some in ((target, steps), *([also] if also else [])):
                    if other == which:
                        packed = each.endswith("gz")
                        files[each] = (change_packed if packed else change)(files[each], some)
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    place = write_files(Path(folder, "data"), files)
                    outcome = hold(read, place / name if name else place)
                    seen["read" if outcome == "read" else "refused"] += 1

            attempt()
            counts.write_text(repr(seen))

        code, said = in_child(work, file_bytes=2 * size, seconds=120 + examples)
        assert code == 0, f"exit code {code}: {said}"
        result: dict[str, int] = eval(counts.read_text())
        return result


def random_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def packed(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(content)
    return buffer.getvalue()
