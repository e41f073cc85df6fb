import errno
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from huefield.data.store import publish as store_publish
from huefield.data.store.publish import exchange, remove_store, restore_replaced
from huefield.data.store.store import Store, StoreError
from tests.data.store.test_writer import contents, random_block, written

OLD, NEW = (random_block(n, rng=np.random.default_rng(n)) for n in (10, 20))

KILLED_WHILE_REPLACING = """
import os, sys
from pathlib import Path
import huefield.data.store.writer as writer
from huefield.data.store import publish as store_publish
from tests.data.store.test_publish import NEW
from tests.data.store.test_writer import written

publish, swap = store_publish.publish, store_publish.exchange

def dying(function, step):
    def called(*arguments, **options):
        global calls
        calls += 1
        if calls == step:
            os._exit(9)
        return function(*arguments, **options)
    return called

def replace_and_die(dest, step, can_exchange):
    def counted(partial, dest):
        for name in ("rename", "unlink", "rmdir"):
            setattr(Path, name, dying(getattr(Path, name), step))
        publish(partial, dest)
        os._exit(0)
    writer.publish = counted
    store_publish.exchange = dying(swap, step) if can_exchange else lambda one, other: False
    written(dest, [NEW], overwrite=True)

for folder in map(Path, sys.argv[1:]):
    calls, (kind, step) = 0, folder.name.split("-")
    child = os.fork()
    if not child:
        replace_and_die(folder / "a.hues", int(step), kind == "exchanged")
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 9, (folder, status)
"""


def is_whole(path: Path, length: int) -> bool:
    store = Store.open(path)
    store.verify()
    return len(store) == length


def test_a_kill_at_any_step_leaves_a_whole_store_or_one_that_comes_back(tmp_path: Path) -> None:
    reference = written(tmp_path / "new.hues", [NEW])
    folders = [tmp_path / f"{kind}-{step}" for kind in ("exchanged", "renamed") for step in (1, 2, 3, 4)]
    for folder in folders:
        written(folder / "a.hues", [OLD])
    command = [sys.executable, "-W", "ignore", "-c", KILLED_WHILE_REPLACING, *folders]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    for dest in (folder / "a.hues" for folder in folders):
        if dest.exists():
            assert is_whole(dest, 10) or is_whole(dest, 20)
        else:
            assert dest.parent.name == "renamed-2"  # only where two folders cannot be exchanged
            with pytest.raises(StoreError, match=r"that replaces it was interrupted, .*a\.hues\.replaced; run"):
                Store.open(dest)
            with pytest.raises(StoreError, match=r"a\.hues exists"):
                written(dest, [NEW])
            assert is_whole(dest, 10)
        written(dest, [NEW], overwrite=True, resume=False)
        assert contents(dest) == contents(reference)
        assert [file.name for file in dest.parent.iterdir()] == ["a.hues"]


def test_a_step_that_the_system_refuses_brings_the_old_store_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest, rename = written(tmp_path / "a.hues", [OLD]), Path.rename

    def refused(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(store_publish, "exchange", lambda one, other: False)
        patched.setattr(Path, "rename", refused)
        with pytest.raises(StoreError, match=r"partial: Input/output error\. The first 20 structures are safe"):
            written(dest, [NEW], overwrite=True)
    assert is_whole(dest, 10)
    assert not (tmp_path / "a.hues.replaced").exists()
    assert is_whole(written(dest, [], overwrite=True), 20)  # resumed: everything was there


def test_two_folders_are_exchanged_or_left_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert not exchange(tmp_path / "a", tmp_path / "none")
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange two folders")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()


def test_rests_are_removed_and_what_is_not_ours_is_not(tmp_path: Path) -> None:
    dest = written(tmp_path / "a.hues", [OLD])
    old = tmp_path / "a.hues.replaced"
    shutil.copytree(dest, old)
    restore_replaced(dest)
    assert not old.exists()
    old.mkdir()  # of a removal that was cut off behind the manifest
    (old / "energy.bin").touch()
    shutil.rmtree(dest)
    restore_replaced(dest)
    assert not old.exists()
    assert not dest.exists()
    old.mkdir()
    (old / "thesis.tex").write_text("mine")
    for act in (lambda: restore_replaced(dest), lambda: remove_store(old)):
        with pytest.raises(StoreError, match=r"a\.hues\.replaced holds 'thesis\.tex', which no conversion wrote"):
            act()
    assert (old / "thesis.tex").read_text() == "mine"
