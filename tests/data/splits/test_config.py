from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from huefield.data.splits.config import SplitConfig, SplitInputs
from huefield.data.splits.duplicates import block_hashes
from huefield.data.splits.splits import Split, SplitError, formula_split, group_split, official_split, random_split
from tests.data.splits.test_splits import KEY, THREE, as_lists, random_molecules
from tests.data.store.test_writer import random_block

CONFIG = TypeAdapter(SplitConfig)
SIZES, NUMBERS = random_molecules(60, 1)
DISTINCT = np.arange(60, dtype=np.uint64)
INPUTS = SplitInputs(SIZES, NUMBERS, DISTINCT, groups=[f"g{i % 9}" for i in range(60)], parts=["a", "b"] * 30)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "random", "fractions": THREE, "seed": 3}, lambda: random_split(60, THREE, key=jax.random.key(3))),
        (
            {"kind": "group", "fractions": THREE, "seed": 3},
            lambda: group_split(INPUTS.groups, THREE, key=jax.random.key(3)),
        ),
        ({"kind": "formula", "seed": 3}, lambda: formula_split(SIZES, NUMBERS, key=jax.random.key(3))),
        ({"kind": "official", "rename": {"b": "c"}}, lambda: official_split(INPUTS.parts, {"b": "c"})),
    ],
    ids=["random", "group", "formula", "official"],
)
def test_a_configuration_makes_the_split_it_names(config: dict[str, object], expected: Callable[[], Split]) -> None:
    parsed = CONFIG.validate_python(config)
    again = CONFIG.validate_json(CONFIG.dump_json(parsed))
    assert as_lists(again.make(INPUTS)) == as_lists(expected())
    assert again.make(INPUTS).origin == expected().origin


def test_a_configuration_names_a_file(tmp_path: Path) -> None:
    split = random_split(60, THREE, key=KEY)
    split.save(tmp_path / "split.json")
    config = CONFIG.validate_python({"kind": "file", "path": str(tmp_path / "split.json")})
    assert as_lists(config.make(INPUTS)) == as_lists(split)


def test_wrong_fractions_are_refused_when_the_configuration_is_read() -> None:
    with pytest.raises(ValidationError, match=r"must add up to at most 1, but add up to 1\.5"):
        CONFIG.validate_python({"kind": "random", "fractions": {"train": 1.5}})


def test_splits_that_the_data_cannot_give_are_errors() -> None:
    bare = SplitInputs(SIZES, NUMBERS, DISTINCT)
    with pytest.raises(SplitError, match="the data have no groups"):
        CONFIG.validate_python({"kind": "group", "fractions": THREE}).make(bare)
    with pytest.raises(SplitError, match="the data have no official split"):
        CONFIG.validate_python({"kind": "official"}).make(bare)


def test_a_configuration_in_two_parts_is_an_error_unless_allowed() -> None:
    same = replace(INPUTS, hashes=np.r_[DISTINCT[:59], DISTINCT[58]])  # 58 is in part a, 59 in part b
    config = {"kind": "official"}
    with pytest.raises(SplitError, match=r"1 of 'b' are in 'a' too: 58 = 59\nKeep one of each .* or set allow_shared"):
        CONFIG.validate_python(config).make(same)
    allowed = CONFIG.validate_python({**config, "allow_shared": True})
    assert as_lists(allowed.make(same)) == as_lists(official_split(INPUTS.parts))


def test_what_cannot_be_checked_is_an_error_unless_allowed() -> None:
    unknown, config = replace(INPUTS, hashes=None), {"kind": "random", "fractions": THREE}
    with pytest.raises(
        SplitError, match=r"without hashes: make the inputs with SplitInputs\.from_blocks, or set allow"
    ):
        CONFIG.validate_python(config).make(unknown)
    assert CONFIG.validate_python({**config, "allow_shared": True}).make(unknown).num_structures == 60


def test_inputs_are_those_of_all_blocks() -> None:
    rng = np.random.default_rng(0)
    blocks = [random_block(n, rng=rng) for n in (5, 7)]
    inputs = SplitInputs.from_blocks(iter(blocks), parts=["train"] * 12)
    np.testing.assert_array_equal(inputs.sizes, np.concatenate([block.sizes for block in blocks]))
    np.testing.assert_array_equal(inputs.atomic_numbers, np.concatenate([block.atomic_numbers for block in blocks]))
    last = blocks[1]
    np.testing.assert_array_equal(inputs.hashes[5:], block_hashes(last))
    assert inputs.groups == [*blocks[0].groups, *blocks[1].groups]
    assert inputs.parts == ["train"] * 12
    assert SplitInputs.from_blocks([replace(last, groups=("",) * 7)]).groups is None
    twice = SplitInputs.from_blocks([last, last], parts=["train"] * 7 + ["test"] * 7)
    with pytest.raises(SplitError, match="7 of 'train' are in 'test' too"):
        CONFIG.validate_python({"kind": "official"}).make(twice)
