"""A disk that is really full: a small file system in memory where one may be mounted, else a limit on files."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ase.io import write

from huefield.data.convert import convert
from tests.data.store.test_writer import contents
from tests.data.test_convert import frames

DISK_BYTES = 600_000
CONVERT = """
import resource, signal, sys
from pathlib import Path
from huefield.data.convert import convert

source, dest, limit, every = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(convert([source], dest, journal_every=every).resumed)
except ValueError as error:
    sys.exit(f"{error}")
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "a.xyz"
    write(path, frames(1500))
    return path


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert([source], tmp_path_factory.mktemp("whole") / "a.hues").path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; skips where it cannot be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or not (mount and umount):
        pytest.skip("mounting a small file system needs root")
    command = [mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the system does not let us mount a small file system")
    yield disk
    subprocess.run([umount, str(disk)], check=True)


def run(source: Path, dest: Path, *, limit: int = 0, every: int = 256) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", CONVERT, source, dest, limit, every]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves only so much room on a disk."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(shutil.disk_usage(disk).free - leave, 0)))
    return filler


def test_a_full_disk_is_named_with_the_file_and_the_work_goes_on_after_making_room(
    source: Path, whole: Path, small_disk: Path
) -> None:
    filler, dest = fill(small_disk, 250_000), small_disk / "a.hues"
    failed = run(source, dest)
    assert failed.returncode == 1, failed.stdout
    for part in (
        f"cannot write {dest}.partial/",
        "the disk is full",
        "MB free",
        f"are safe in {dest}.partial: make room",
    ):
        assert part in failed.stderr
    assert "run the same command again to resume" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not dest.exists()
    filler.unlink()
    done = run(source, dest)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert contents(dest) == contents(whole)
    assert [file.name for file in small_disk.iterdir()] == ["a.hues"]


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 30_000])
def test_a_disk_that_is_full_before_anything_is_safe_is_left_as_it_was(
    source: Path, whole: Path, small_disk: Path, leave: int
) -> None:
    filler, dest = fill(small_disk, leave), small_disk / "a.hues"
    failed = run(source, dest)
    assert failed.returncode == 1, failed.stdout
    assert "the disk is full" in failed.stderr
    assert "Nothing was kept: make room and run the same command again" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert [file.name for file in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    assert run(source, dest).returncode == 0
    assert contents(dest) == contents(whole)


@pytest.mark.slow
def test_a_limit_on_files_is_named_with_the_file_and_the_work_goes_on_without_it(
    source: Path, whole: Path, tmp_path: Path
) -> None:
    largest = max(file.stat().st_size for file in whole.iterdir())
    if 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < largest:
        pytest.skip("the system has a limit on files of its own")
    dest = tmp_path / "a.hues"
    failed = run(source, dest, limit=largest // 2)
    assert failed.returncode == 1, failed.stdout
    assert f"cannot write {dest}.partial/" in failed.stderr
    assert "the file exceeds the size limit (see ulimit -f)" in failed.stderr
    assert not dest.exists()
    done = run(source, dest)
    assert int(done.stdout) > 0
    assert contents(dest) == contents(whole)
