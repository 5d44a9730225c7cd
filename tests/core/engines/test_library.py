"""The compiled library: built once, kept for the user alone, and never loaded unverified."""

from __future__ import annotations

import os
import random
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from unremix.core.engines import library, native
from unremix.core.engines.library import Unavailable, Untrusted, find_library, load

needed = pytest.mark.skipif(
    native.missing() is not None, reason=f"there is no compiled code: {native.missing()}"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Name and content of a kept library for float."""
    folder = tmp_path_factory.mktemp("built")
    find_library(wide=False, folder=folder)
    (path,) = folder.iterdir()
    return path.name, path.read_bytes()


@pytest.fixture
def kept(built: tuple[str, bytes], tmp_path: Path) -> Path:
    """A folder that holds the library for float, as it was built."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / built[0]).touch(mode=0o600)
    (folder / built[0]).write_bytes(built[1])
    return folder


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="'no-such-compiler'; install gcc"):
        find_library(wide=False, compiler="no-such-compiler", folder=tmp_path)


def test_a_compiler_that_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is not a command: No closing quotation"):
        find_library(wide=False, compiler="cc 'x", folder=tmp_path)


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'it is broken' >&2\nexit 3\n")
    compiler.chmod(0o755)
    with pytest.raises(Unavailable, match="broken-cc failed: it is broken"):
        find_library(wide=False, compiler=str(compiler), folder=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []  # nothing half-built is left


def test_what_is_no_library_is_not_loaded() -> None:
    with pytest.raises(Unavailable, match="fd"):
        load(b"not a library", wide=False)


@needed
def test_it_is_built_once_and_says_so_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "unremix" / "native"
    first = find_library(wide=False, folder=folder)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("unremix: compiling its C code with ")
    assert str(folder) in err
    assert find_library(wide=False, folder=folder) == first
    assert capfd.readouterr() == ("", "")
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    second = find_library(wide=True, folder=folder)
    assert second != first
    monkeypatch.setenv("CC", "cc -DUNUSED")
    find_library(wide=False, folder=folder)
    assert len(list(folder.iterdir())) == len(list(folder.glob("kernels-*.so"))) == 3
    # Both at once: the loader must not take one for the other.
    narrow, wide = load(first, wide=False), load(second, wide=True)
    assert narrow.sweep.argtypes != wide.sweep.argtypes
    assert narrow._handle != wide._handle


PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void planted(void) { fclose(fopen("%s", "w")); }
"""


def plant(folder: Path) -> tuple[bytes, Path]:
    """A library that makes a file when it is loaded, and the file."""
    canary = folder / "canary"
    (folder / "planted.c").write_text(PLANTED % canary)
    command = ["cc", "-shared", "-fPIC", "planted.c", "-o", "planted.so"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "planted.so").read_bytes(), canary


def damages() -> dict[str, Callable[[bytes], bytes]]:
    generator = random.Random(0)

    def flip(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        return bytes(changed)

    made: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda content: b"",
        "a byte": lambda content: content[:1],
        "without its seal": lambda content: content[: -library.SEAL],
        "nothing but its seal": lambda content: content[-library.SEAL :],
        "one byte less": lambda content: content[:-1],
        "one byte more": lambda content: content + b"\0",
        "half": lambda content: content[: len(content) // 2],
        "zeros": lambda content: bytes(len(content)),
        "a page of zeros": lambda content: content[:4096] + bytes(4096) + content[8192:],
        "text": lambda content: b"not a library",
        "too long": lambda content: content + bytes(library.LARGEST),
    }
    return made | {f"bit {number}": flip for number in range(20)}


@needed
@pytest.mark.parametrize("name", damages())
def test_a_damaged_library_is_not_read(name: str, kept: Path, built: tuple[str, bytes]) -> None:
    path = only_file(kept)
    key = path.stem.removeprefix("kernels-")
    assert library.read_sealed(path, key) == built[1][: -library.SEAL]
    path.write_bytes(damages()[name](built[1]))
    with pytest.raises(Untrusted, match="damaged"):
        library.read_sealed(path, key)


@needed
def test_the_library_of_another_key_is_not_read(kept: Path) -> None:
    with pytest.raises(Untrusted, match="damaged"):
        library.read_sealed(only_file(kept), "0" * 16)


@needed
@pytest.mark.parametrize("way", ["file", "link", "written by others", "folder", "pipe"])
def test_a_planted_library_is_built_again_and_never_loaded(
    way: str, kept: Path, built: tuple[str, bytes], tmp_path: Path
) -> None:
    planted, canary = plant(tmp_path)
    path = only_file(kept)
    if way == "written by others":
        path.chmod(0o666)
    else:
        path.unlink()
    if way == "file":
        path.write_bytes(planted)
    elif way == "link":
        path.symlink_to(tmp_path / "planted.so")
    elif way == "folder":
        path.mkdir()
    elif way == "pipe":
        os.mkfifo(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = find_library(wide=False, folder=kept)
    assert "built again" in str(caught[0].message)
    assert found == built[1][: -library.SEAL]
    assert load(found, wide=False).sweep is not None
    assert not canary.exists()
    if way != "folder":
        assert path.read_bytes() == built[1]  # and whole from now on
        assert path.stat().st_mode & 0o777 == 0o600


@needed
def test_the_canary_sings_where_a_planted_library_is_loaded(tmp_path: Path) -> None:
    planted, canary = plant(tmp_path)
    with pytest.raises(AttributeError, match="sweep"):
        load(planted, wide=False)
    assert canary.exists()


@needed
def test_what_belongs_to_another_user_is_not_used(
    kept: Path, built: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = only_file(kept)
    key = path.stem.removeprefix("kernels-")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(Untrusted, match="another user"):
        library.read_sealed(path, key)
    with pytest.warns(UserWarning, match=r"folder .* another user"):
        found = find_library(wide=False, folder=kept)
    assert found == built[1][: -library.SEAL]
    assert path.read_bytes() == built[1]


@needed
def test_a_folder_that_is_a_link_is_not_used(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kept)
    with pytest.warns(UserWarning, match="is not used: it is not a folder"):
        find_library(wide=False, folder=tmp_path / "link")


@needed
def test_a_folder_open_to_others_is_closed(kept: Path, built: tuple[str, bytes]) -> None:
    kept.chmod(0o777)
    assert find_library(wide=False, folder=kept) == built[1][: -library.SEAL]
    assert kept.stat().st_mode & 0o777 == 0o700


@needed
def test_without_a_folder_it_is_built_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="is not used"):
        find_library(wide=False, folder=tmp_path / "file" / "below")
    assert "for this process alone" in capfd.readouterr().err

    def lost() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lost)
    with pytest.warns(UserWarning, match="home directory"):
        find_library(wide=False)


@needed
def test_a_full_disk_leaves_nothing_behind(
    kept: Path, built: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = only_file(kept)
    path.unlink()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="could not be kept in .* No space left"):
        assert find_library(wide=False, folder=kept) == built[1][: -library.SEAL]
    assert list(kept.iterdir()) == []
