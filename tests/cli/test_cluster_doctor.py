"""``unremix doctor --cluster``: what each engine sees, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from unremix.cli import doctor, main


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["doctor", "--cluster"]) == 0
    return capsys.readouterr().out


def test_what_is_missing_is_named_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "not" / "there"))
    text = shown(capsys)
    for command in ("ray", "slurm", "s3", "hub"):
        assert f'pip install "unremix[{command}]"' in text
    assert "no SLURM here" in text
    assert "gloo" in text
    assert str(tmp_path / "not" / "there") in text
    assert not (tmp_path / "not").exists()


def test_slurm_answers_for_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "_ray", lambda: iter(()))
    sinfo = tmp_path / "sinfo"
    sinfo.write_text('#!/bin/sh\necho "gpu*: 4 nodes, 32 CPUs and gpu:a100:8 each, up"\n')
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "  gpu*: 4 nodes, 32 CPUs and gpu:a100:8 each, up\n" in shown(capsys)
    sinfo.write_text("#!/bin/sh\nexit 3\n")
    assert "sinfo does not answer" in shown(capsys)


@pytest.mark.parametrize(
    ("place", "kind"), [("/shared/a/b", "nfs4"), ("/shared", "nfs4"), ("/home/x", "ext4")]
)
def test_the_file_system_of_a_folder(
    place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/x /shared nfs4 rw 0 0\nproc /proc proc rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: mounts)
    assert doctor._file_system(Path(place)) == kind
