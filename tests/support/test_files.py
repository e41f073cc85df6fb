import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, append_bytes, leaving_no_empty, read_json, replacing, write_bytes


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "results.csv"
    path.write_bytes(b"old")
    return path


def test_writes_what_it_is_given(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    write_bytes(tmp_path / "new.bin", content)
    assert (tmp_path / "new.bin").read_bytes() == content
    assert list(tmp_path.iterdir()) == [tmp_path / "new.bin"]


def test_replaces_an_old_file(old: Path) -> None:
    write_bytes(old, b"new")
    assert old.read_bytes() == b"new"
    assert list(old.parent.iterdir()) == [old]


def test_makes_the_folders_above(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "c.txt", b"deep")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"deep"


def test_file_without_suffix_and_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_bytes(Path("plain"), b"here")
    assert (tmp_path / "plain").read_bytes() == b"here"


def test_old_content_stays_until_the_block_ends(old: Path) -> None:
    with replacing(old) as temporary:
        temporary.write_bytes(b"new")
        assert old.read_bytes() == b"old"
    assert old.read_bytes() == b"new"


def test_temporary_file_is_on_the_same_disk_hidden_and_of_the_same_kind(old: Path) -> None:
    with replacing(old) as temporary:
        assert temporary.parent == old.parent
        assert temporary.suffix == ".csv"
        assert temporary.name.startswith(".")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_in_the_block_leaves_the_old_file_and_nothing_else(error: type[BaseException], old: Path) -> None:
    def write_half() -> None:
        with replacing(old) as temporary:
            temporary.write_bytes(b"half of the n")
            raise error("stop")

    with pytest.raises(error, match="stop"):
        write_half()
    assert old.read_bytes() == b"old"
    assert list(old.parent.iterdir()) == [old]


def test_temporary_file_removed_in_the_block_is_an_error_and_the_old_file_stays(old: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"results\.csv"), replacing(old) as temporary:
        temporary.unlink()
    assert old.read_bytes() == b"old"
    assert list(old.parent.iterdir()) == [old]


def test_folder_in_the_place_of_the_file_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_bytes(folder, b"new")
    assert list(tmp_path.rglob("*")) == [folder]


def test_content_is_on_disk_before_the_name_is(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("replace"), replace(self, target))[1])
    write_bytes(old, b"new")
    assert steps == ["fsync", "replace"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permission_follows_the_umask_which_stays(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "new", b"")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


def test_a_folder_is_for_one_process_whatever_it_does(tmp_path: Path) -> None:
    both = "huefield train needs --distributed, and huefield md or neb a single one"
    with alone_in(tmp_path), pytest.raises(HuefieldError, match=both), alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass


class Reluctant(io.FileIO):
    """Takes three bytes at a time, and not very many."""

    def __init__(self, room: int = 100) -> None:
        super().__init__(os.devnull, "w")
        self.taken, self.room = b"", room

    def write(self, content: Any) -> int:
        some = bytes(content[: min(3, self.room - len(self.taken))])
        self.taken += some
        return len(some)


def test_what_a_file_does_not_take_at_once_is_given_to_it_again() -> None:
    with Reluctant() as file:
        append_bytes(file, b"all of it")
        append_bytes(file, b"")
    assert file.taken == b"all of it"
    with Reluctant(4) as file, pytest.raises(OSError, match="the file accepts no more bytes"):
        append_bytes(file, b"all of it")


def test_an_error_names_the_file_that_cannot_be_written() -> None:
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match=r"space.*/dev/full"):
        append_bytes(file, b"text")


@pytest.mark.parametrize(
    ("before", "written", "left"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_a_failure_leaves_no_empty_folder_that_was_not_there(
    before: bool, written: bool, left: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if before:
        folder.mkdir()

    def fail() -> None:
        folder.mkdir(exist_ok=True)
        if written:
            (folder / "config.yaml").touch()
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"), leaving_no_empty(folder):
        fail()
    assert folder.exists() == left


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x80", "not a text file"),
        (b"{", "it is not JSON"),
        (b"[1]", "must be a JSON object, but is a list"),
    ],
)
def test_files_that_are_not_json_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(HuefieldError, match=rf"a\.json .*{message}"):
        read_json(tmp_path / "a.json")
