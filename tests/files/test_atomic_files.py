"""Files are written whole or not at all, through no link, by one process at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unremix.files import atomic_files
from unremix.files.atomic_files import (
    appending,
    disk_error,
    read_text,
    replacing,
    sweep,
    try_lock,
    write_text,
    write_whole,
)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_text(path, "one")

    def fails(file: Path) -> None:
        file.write_text("half")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_whole(path, fails)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert read_text(path) == "one"
    with replacing(path, keep=path.with_name("kept")) as temporary:
        temporary.write_text("two")
    assert (read_text(path), read_text(path.with_name("kept"))) == ("two", "one")


def test_the_mode_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = os.umask(0o027)
    monkeypatch.setattr(os, "umask", None)  # it is the whole process's: not to be touched
    try:
        write_text(tmp_path / "text", "x")
        write_whole(tmp_path / "private", lambda file: (file.write_text("x"), file.chmod(0o600)))
        modes = {(tmp_path / name).stat().st_mode & 0o777 for name in ("text", "private")}
    finally:
        monkeypatch.undo()
        os.umask(earlier)
    assert modes == {0o640}


def test_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one at the file's place nor one where the temporary file would be, nor the lock's."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "file").symlink_to(secret)
    write_text(tmp_path / "file", "theirs")
    assert not (tmp_path / "file").is_symlink()
    monkeypatch.setattr(atomic_files.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / f".unremix-{os.getpid()}-guessed.tmp").symlink_to(secret)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "other", "theirs")
    (tmp_path / ".lock").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(tmp_path / ".lock")
    assert secret.read_text() == "mine"


def test_texts_of_any_name_survive(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "caf\u00e9 \udcff")
    assert (tmp_path / "text").read_bytes() == b"caf\xc3\xa9 \\udcff"
    (tmp_path / "text").write_bytes(b"\xff")
    assert read_text(tmp_path / "text") == "\\xff"
    with pytest.raises(ValueError, match="at most 0 bytes"):
        read_text(tmp_path / "text", 0)


@pytest.mark.parametrize("how", ["cause", "context", "text", "rust"])
def test_a_full_disk_is_recognized(tmp_path: Path, how: str) -> None:
    def full(file: Path) -> None:
        if how == "text":
            raise RuntimeError("PytorchStreamWriter failed writing file data/0")
        if how == "rust":
            raise RuntimeError("I/O error: No space left on device (os error 28)")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            if how == "cause":
                raise RuntimeError("unexpected pos 64 vs 0") from error
            raise RuntimeError("unexpected pos 64 vs 0")  # noqa: B904

    write_text(tmp_path / "file", "earlier")
    with pytest.raises(OSError, match=r"room on the disk.*intact"):
        write_whole(tmp_path / "file", full)
    assert disk_error(RuntimeError("another")) is None
    assert disk_error(OSError(errno.ENOENT, "no file")) is None


HOLDS = """
import sys, time
from pathlib import Path
from unremix.files.atomic_files import try_lock
assert try_lock(Path(sys.argv[1])) is not None
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert try_lock(path) is None
    holder.kill()
    holder.wait()
    holder.stdout.close()
    lock = try_lock(path)
    assert lock is not None
    path.unlink()  # as when a folder is removed: who comes next has a lock of his own
    other = try_lock(path)
    assert other is not None
    for descriptor in (lock, other):
        os.close(descriptor)


def test_only_what_the_dead_left_is_swept(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f".unremix-{ended.pid}-0a.tmp", f".unremix-{os.getpid()}-0a.tmp", ".mine.tmp", "a.tmp"]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path)
    sweep(tmp_path / "nothing")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(names[1:])


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("one\n")
    (tmp_path / "log").symlink_to(tmp_path / "other")
    (tmp_path / "new").symlink_to(tmp_path / "absent")
    for name in ("log", "new"):
        with pytest.raises(OSError, match=name), appending(tmp_path / name):
            pass
    assert not (tmp_path / "absent").exists()
    with appending(tmp_path / "other") as file:
        file.write("two\udcff\n")
    assert (tmp_path / "other").read_text() == "one\ntwo\\udcff\n"
