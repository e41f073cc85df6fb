"""Checkpoints: whole or passed over, and never lost to a full disk."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from huefield.data.batches.batching import Place
from huefield.model.forcefield import ForceField
from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, tensors_in
from huefield.support.trees import is_array_like
from huefield.training import CheckpointError, SquaredErrorStage, checkpoint
from huefield.training.checkpoint import (
    FORMAT,
    RunPosition,
    RunState,
    checkpoints_in,
    differences,
    load_newest,
    save_checkpoint,
    saying_what_is_safe,
)
from huefield.training.step import OptimiserConfig, optimiser_for, start
from tests.training.helpers import config_for
from tests.training.test_run import run_with

FINGERPRINT = {"config": {"batch_size": 4, "stages": [{"steps": 5}]}}


@pytest.fixture(scope="module")
def contents() -> RunState:
    """The smallest there can be."""
    config = {"potential": {"kind": "mlp", "width": 1, "depth": 1}, "noise": {"kind": "vanilla"}}
    member = ForceField.Config.model_validate(config).build(key=jax.random.key(0))
    state = start(member, optimiser_for(SquaredErrorStage(steps=5), OptimiserConfig()))
    return RunState(state, member, member, np.array([0.5]), np.array([2]), np.array([False]), np.array([0]))


def position(step: int) -> RunPosition:
    return RunPosition(stage=1, step=step, total_steps=10 + step, place=Place(3, 2), rollbacks=1, history_bytes=99)


def load(folder: Path, contents: RunState) -> tuple[RunState | None, RunPosition | None, list[str]]:
    warnings: list[str] = []
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype) if is_array_like(leaf) else leaf, contents)
    return *(load_newest(folder, blank, FINGERPRINT, warnings.append) or (None, None)), warnings


def test_everything_is_read_back(contents: RunState, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, contents, position(3), FINGERPRINT)
    found, where, warnings = load(tmp_path, contents)
    assert not warnings
    assert where == position(3)
    pairs = zip(*(jax.tree.leaves(eqx.filter(tree, is_array_like)) for tree in (found, contents)), strict=True)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_the_old_name_of_the_level_of_theory_is_no_change(contents: RunState, tmp_path: Path) -> None:
    old, new = ({"config": {"data": {"kind": "bundled", key: "gfn2-xtb"}}} for key in ("level", "level_of_theory"))
    save_checkpoint(tmp_path, contents, position(3), old)
    assert load_newest(tmp_path, contents, new, print) is not None


def test_there_may_be_none(contents: RunState, tmp_path: Path) -> None:
    assert load(tmp_path / "nowhere", contents) == (None, None, [])


def test_two_are_kept(contents: RunState, tmp_path: Path) -> None:
    for step in range(4):
        save_checkpoint(tmp_path, contents, position(step), FINGERPRINT)
    assert [path.name for path in checkpoints_in(tmp_path)] == [f"step-0000000{n}-1.safetensors" for n in (13, 12)]


def test_a_future_that_was_given_up_is_removed(contents: RunState, tmp_path: Path) -> None:
    for step in (1, 9, 3):
        save_checkpoint(tmp_path, contents, position(step), FINGERPRINT)
    assert [path.name for path in checkpoints_in(tmp_path)] == [f"step-0000000{n}-1.safetensors" for n in (13, 11)]


def test_with_any_byte_damaged_the_one_before_is_used(contents: RunState, tmp_path: Path) -> None:
    """One bit in each byte; every hundredth of these files is given to a run."""
    save_checkpoint(tmp_path, contents, position(1), FINGERPRINT)
    newest = save_checkpoint(tmp_path, contents, position(2), FINGERPRINT)
    whole = newest.read_bytes()
    for place in range(len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        with pytest.raises(TensorFileError, match="step-000000012-1"):
            checked_metadata(newest, damaged, FORMAT, "checkpoint")
        if place % 100:
            continue
        newest.write_bytes(damaged)
        _, where, warnings = load(tmp_path, contents)
        assert where == position(1)
        assert len(warnings) == 1
        assert str(newest) in warnings[0]
        assert "the checkpoint before it is used" in warnings[0]


@pytest.mark.parametrize("fall", ["exponential", "cosine"])
def test_rates_of_older_versions_fall_exponentially(fall: str, contents: RunState, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, contents, position(1), {"config": {"stages": [{"kind": "nll"}]}})
    now = {"config": {"stages": [{"kind": "nll", "fall": fall}]}}
    if fall == "exponential":
        assert load_newest(tmp_path, contents, now, lambda line: None) is not None
        return
    with pytest.raises(CheckpointError, match=r"config\.stages\.0\.fall: was 'exponential', is 'cosine'"):
        load_newest(tmp_path, contents, now, lambda line: None)


def test_groups_are_no_part_of_the_comparison(contents: RunState, tmp_path: Path) -> None:
    """Older checkpoints have the key of the groups, whose default has changed; the data are compared themselves."""
    data = {"kind": "files", "train": ["a.xyz"], "validation": ["b.xyz"], "reader": {"kind": "ase"}}
    settings = config_for(tmp_path, data=data).result_digest_input
    old = json.loads(json.dumps(settings))
    old["data"]["reader"]["group_key"] = None
    save_checkpoint(tmp_path, contents, position(1), {"config": old})
    found = load_newest(tmp_path, contents, {"config": settings}, lambda line: None)
    assert found is not None
    assert found[1] == position(1)


def test_cut_off_anywhere_the_one_before_is_used(contents: RunState, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, contents, position(1), FINGERPRINT)
    newest = save_checkpoint(tmp_path, contents, position(2), FINGERPRINT)
    whole = newest.read_bytes()
    for size in range(0, len(whole), 100):
        newest.write_bytes(whole[:size])
        _, where, warnings = load(tmp_path, contents)
        assert (where, len(warnings)) == (position(1), 1)


def test_other_settings_are_named(contents: RunState, tmp_path: Path) -> None:
    changed = {"config": {"batch_size": 4, "stages": [{"steps": 6}]}}
    save_checkpoint(tmp_path, contents, position(1), changed)
    with pytest.raises(CheckpointError, match=r"config\.stages\.0\.steps: was 6, is 5"):
        load(tmp_path, contents)


def test_other_arrays_are_refused(contents: RunState, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, replace_scores(contents, np.zeros(2)), position(1), FINGERPRINT)
    with pytest.raises(CheckpointError, match=r"other arrays .*best_score"):
        load(tmp_path, contents)


def test_empty_arrays_of_an_older_version_are_ignored(contents: RunState, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, contents, position(1), FINGERPRINT)
    content = path.read_bytes()
    metadata, tensors = checked_metadata(path, content, checkpoint.FORMAT, "checkpoint"), tensors_in(path, content)
    path.write_bytes(format_file({**tensors, "best.potential.vectors": np.zeros((1, 0))}, metadata, checkpoint.FORMAT))
    assert load(tmp_path, contents)[1] == position(1)


def replace_scores(contents: RunState, scores: np.ndarray) -> RunState:
    return eqx.tree_at(lambda c: c.best_score, contents, scores)


def test_differences_are_lines() -> None:
    assert differences({"a": 1, "b": [1, {"c": 2}]}, {"a": 1, "b": [1, {"c": 3}], "d": None}) == ["b.1.c: was 2, is 3"]
    assert differences([1, 2], [1]) == [": was [1, 2], is [1]"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_may_not_grow_is_named_and_the_one_before_stays(contents: RunState, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    size = save_checkpoint(folder, contents, position(1), FINGERPRINT).stat().st_size
    with pytest.raises(OSError, match="cannot write") as error, saying_what_is_safe(tmp_path), largest_file(size // 2):
        save_checkpoint(folder, contents, position(2), FINGERPRINT)
    for part in (
        "step-000000012-1",
        "ulimit -f",
        f"The run is saved up to {folder}/step-000000011-1",
        "again to resume",
    ):
        assert part in str(error.value)
    assert [path.name for path in folder.iterdir()] == ["step-000000011-1.safetensors"]
    assert load(folder, contents)[1] == position(1)


def test_without_a_checkpoint_nothing_is_promised(tmp_path: Path) -> None:
    message = r"the disk is full.* Nothing is saved: make room and run the same command again$"
    with pytest.raises(OSError, match=message), saying_what_is_safe(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_other_failures_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), saying_what_is_safe(tmp_path):
        Path("nowhere").read_bytes()


@pytest.mark.usefixtures("x64")
def test_after_a_full_disk_the_run_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = checkpoint.write_bytes, iter(range(100))

    def full(path: Path, content: bytes) -> None:
        if next(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    def run(folder: Path) -> list[Any]:
        return jax.tree.leaves(run_with(folder, lambda *_: 0.0)())

    expected = run(tmp_path / "whole")
    monkeypatch.setattr(checkpoint, "write_bytes", full)
    message = r"cannot write .*step-000000015-0.*saved up to .*step-000000010-0"
    with pytest.raises(OSError, match=message), saying_what_is_safe(tmp_path / "full"):
        run(tmp_path / "full")
    assert all(np.array_equal(a, b) for a, b in zip(run(tmp_path / "full"), expected, strict=True))
