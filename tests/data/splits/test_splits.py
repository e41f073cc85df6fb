import pickle

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from huefield.data.composition import formulas
from huefield.data.splits import splits
from huefield.data.splits.dealing import deal_groups
from huefield.data.splits.splits import (
    Split,
    SplitError,
    SplitOrigin,
    formula_split,
    group_split,
    official_split,
    random_split,
)
from tests.paths import SHARED

KEY = jax.random.key(0)
THREE = {"train": 0.8, "validation": 0.1, "test": 0.1}
HAND = SplitOrigin(method="by hand")


def by_hand(num_structures: int, **parts: list[int]) -> Split:
    return Split({name: np.array(part, np.int64) for name, part in parts.items()}, num_structures, HAND)


def as_lists(split: Split) -> dict[str, list[int]]:
    return {name: part.tolist() for name, part in split.parts.items()}


# The value object.


def test_parts_are_in_order_fixed_and_their_own() -> None:
    given_indices = np.array([4, 0, 2], np.int32)
    split = Split({"train": given_indices}, 5, HAND)
    given_indices[:] = 1
    assert split["train"].tolist() == [0, 2, 4]
    assert split["train"].dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        split["train"][0] = 3


def test_owners_are_places_in_the_names_asked_for() -> None:
    split = by_hand(5, train=[0, 3], test=[1])
    assert split.owners(["test", "train"]).tolist() == [1, 0, -1, 1, -1]
    assert split.owners(["test"]).tolist() == [-1, 0, -1, -1, -1]


def test_a_split_can_be_sent_to_another_process() -> None:
    split = random_split(10, THREE, key=KEY)
    assert as_lists(pickle.loads(pickle.dumps(split))) == as_lists(split)  # noqa: S301


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "needs at least one part, but none is given"),
        ({"train": [0], "test": []}, "part 'test' is empty: leave it out, or give it a larger fraction"),
        ({"train": [0, 5]}, "part 'train' has index 5, but there are 5 structures, counted from 0"),
        ({"train": [0, -1]}, "part 'train' has index -1, but there are 5 structures"),
        ({"train": [3, 1, 3]}, "part 'train' has index 3 twice"),
        ({"train": [0, 1], "test": [2], "validation": [4, 1]}, "index 1 is in two parts: 'train' and 'validation'"),
        ({"": [0]}, "a part has an empty name"),
    ],
)
def test_wrong_parts_are_errors(parts: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SplitError, match=message):
        Split({name: np.array(part, np.int64) for name, part in parts.items()}, 5, HAND)


@pytest.mark.parametrize("indices", [np.array([0.0, 1.0]), np.array([[0, 1]]), np.array([True, False])])
def test_indices_must_be_whole_numbers_in_a_row(indices: np.ndarray, as_users_run: None) -> None:
    with pytest.raises(
        SplitError, match=r"part 'train' must be a one-dimensional array of integers, but is (float|int|bool)"
    ):
        Split({"train": indices}, 5, HAND)


def test_an_unknown_part_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no part 'val'; its parts are \['train', 'test'\]"):
        by_hand(3, train=[0], test=[1])["val"]


# Random.


@given(
    st.integers(10, 500), st.sampled_from([THREE, {"a": 0.5}, {"a": 0.35, "b": 0.65}, {"a": 0.1, "b": 0.1, "c": 0.3}])
)
@settings(deadline=None, max_examples=30)
def test_random_parts_have_their_fractions_to_within_one_structure(n: int, fractions: dict[str, float]) -> None:
    split = random_split(n, fractions, key=KEY)
    for name, fraction in fractions.items():
        assert abs(len(split[name]) - fraction * n) <= 1
    if fractions is THREE:
        assert sum(len(part) for part in split.parts.values()) == n


def test_random_splits_are_those_of_their_keys(precision: str) -> None:
    first = as_lists(random_split(1000, THREE, key=jax.random.key(1)))
    assert first["test"][:3] == [5, 14, 20]  # fixed, whatever the precision
    assert first != as_lists(random_split(1000, THREE, key=jax.random.key(2)))


def test_each_structure_is_in_a_random_part_with_the_chance_of_its_fraction() -> None:
    draws = 200
    hits = sum(random_split(20, {"a": 0.3}, key=key).owners(["a"]) + 1 for key in jax.random.split(KEY, draws))
    np.testing.assert_allclose(hits / draws, 0.3, atol=4.5 * np.sqrt(0.3 * 0.7 / draws))


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ({"train": 0.9, "test": 0.2}, r"must add up to at most 1, but add up to 1.1: \{'train': 0.9, 'test': 0.2\}"),
        ({"train": 0.9, "test": 0.0}, "fraction of part 'test' must be positive, but is 0.0"),
        ({"train": float("nan")}, "fraction of part 'train' must be positive, but is nan"),
        ({}, "at least one part, such as"),
    ],
)
def test_wrong_fractions_are_errors(fractions: dict[str, float], message: str) -> None:
    with pytest.raises(SplitError, match=message):
        random_split(100, fractions, key=KEY)
    with pytest.raises(SplitError, match=message):
        group_split(np.arange(100), fractions, key=KEY)


def test_too_few_structures_for_a_part_are_an_error() -> None:
    with pytest.raises(SplitError, match="part 'validation' is empty"):
        random_split(4, {"train": 0.9, "validation": 0.02}, key=KEY)


# Groups and formulas.


@given(st.lists(st.sampled_from("abcdefghij"), min_size=30, max_size=80), st.integers(0, 5))
@settings(deadline=None, max_examples=30)
def test_groups_are_never_divided_and_all_structures_are_dealt_out(groups: list[str], seed: int) -> None:
    groups = [*"abc", *groups]
    split = group_split(groups, THREE, key=jax.random.key(seed))
    owners = split.owners(list(THREE))
    assert owners.min() == 0
    assert all(len({owners[i] for i, g in enumerate(groups) if g == name}) == 1 for name in set(groups))


def test_group_splits_depend_on_names_and_key_not_on_the_order_of_structures() -> None:
    rng = np.random.default_rng(0)
    groups = np.array([f"rxn{i:04d}" for i in rng.integers(0, 60, 900)])
    shuffled = rng.permutation(900)
    first = group_split(groups, THREE, key=KEY).owners(list(THREE))
    np.testing.assert_array_equal(group_split(groups[shuffled], THREE, key=KEY).owners(list(THREE)), first[shuffled])
    split = group_split(np.unique(groups, return_inverse=True)[1], THREE, key=KEY)
    np.testing.assert_array_equal(split.owners(list(THREE)), first)
    assert not np.array_equal(group_split(groups, THREE, key=jax.random.key(1)).owners(list(THREE)), first)


def test_as_many_groups_as_parts_are_one_each() -> None:
    split = group_split(["b", "a", "c", "c"], {"x": 0.98, "y": 0.01, "z": 0.01}, key=KEY)
    assert as_lists(split)["x"] == [2, 3]
    assert sorted(as_lists(split)["y"] + as_lists(split)["z"]) == [0, 1]


def test_parts_that_leave_a_rest_get_their_fraction_only() -> None:
    split = group_split(np.repeat(np.arange(100), 10), {"train": 0.2, "test": 0.1}, key=KEY)
    assert [len(part) for part in split.parts.values()] == [200, 100]
    assert split.origin == SplitOrigin(method="group", key_data=(0, 0), fractions={"train": 0.2, "test": 0.1})


def test_fewer_groups_than_parts_are_an_error() -> None:
    with pytest.raises(SplitError, match=r"2 groups cannot fill 3 parts \['train', 'validation', 'test'\]"):
        group_split(["a", "b", "a"], THREE, key=KEY)


def test_structures_without_a_group_are_an_error() -> None:
    with pytest.raises(SplitError, match=r"2 of 4 structures have no group \(the first is 1\)"):
        group_split(["a", "", "b", ""], {"train": 1.0}, key=KEY)


def test_proportions_of_ani1x_are_those_of_the_paper() -> None:
    assert sum(splits.ANI1X_COUNTS.values()) == 4_956_005
    np.testing.assert_allclose(list(splits.ANI1X_FRACTIONS.values()), [0.89786, 0.04930, 0.05284], atol=5e-6)
    # groups of about the sizes that formulas of ANI-1x have: the counts of the paper come out
    sizes = np.rint(1000 * np.random.default_rng(0).lognormal(0, 1, 2999)).astype(int) + 1
    sizes = np.append(sizes, 4_956_005 - sizes.sum())
    owners = deal_groups(sizes, np.array(list(splits.ANI1X_COUNTS.values()), float))
    assert np.bincount(owners, weights=sizes).tolist() == list(splits.ANI1X_COUNTS.values())


def random_molecules(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n)
    return sizes, rng.choice(np.array([1, 6, 8], np.uint8), sizes.sum())


def test_formula_split_is_a_group_split_by_the_names_of_formulas() -> None:
    sizes, numbers = random_molecules(500, 0)
    split = formula_split(sizes, numbers, THREE, key=KEY)
    assert as_lists(split) == as_lists(group_split(formulas(sizes, numbers), THREE, key=KEY))
    assert split.origin.method == "formula"
    assert formula_split(sizes, numbers, key=KEY).origin.fractions == splits.ANI1X_FRACTIONS


@pytest.mark.skipif(not (SHARED / "ani1x").exists(), reason="needs ani1x of the shared data")
def test_ani1x_is_split_by_formula_in_the_proportions_of_the_paper() -> None:
    import ase.io

    atoms = ase.io.read(SHARED / "ani1x" / "ani1x_800.xyz", ":")
    sizes = np.array([len(a) for a in atoms])
    split = formula_split(sizes, np.concatenate([a.numbers for a in atoms]).astype(np.uint8), key=KEY)
    names = {part: {atoms[i].get_chemical_formula() for i in split[part]} for part in split.parts}
    assert sum(len(found) for found in names.values()) == len({a.get_chemical_formula() for a in atoms})
    for part, fraction in splits.ANI1X_FRACTIONS.items():
        assert abs(len(split[part]) - fraction * len(atoms)) <= 1


# Official.


def test_official_parts_are_those_of_the_labels() -> None:
    split = official_split(["val", "train", "", "train", "test"], {"val": "validation"})
    assert as_lists(split) == {"test": [4], "train": [1, 3], "validation": [0]}
    assert (split.num_structures, split.origin) == (5, SplitOrigin(method="official"))


def test_renaming_wrongly_is_an_error() -> None:
    with pytest.raises(SplitError, match=r"cannot rename \['valid'\]: the parts are \['train', 'val'\]"):
        official_split(["train", "val"], {"valid": "validation"})
    with pytest.raises(SplitError, match=r"gives two of the parts .* one name"):
        official_split(["train", "val"], {"val": "train"})


# The same configuration in two parts.

HASHES = np.array([7, 7, 8, 2**64 - 1, 8, 7, 1, 8, 8, 8, 7], np.uint64)


def test_parts_without_shared_configurations_pass() -> None:
    splits.check_disjoint(by_hand(11, train=[0, 1, 5], validation=[2, 4], test=[3, 6]), HASHES)


def test_shared_configurations_are_named_with_parts_and_indices() -> None:
    with pytest.raises(SplitError, match="same configurations are in different parts") as caught:
        splits.check_disjoint(by_hand(11, train=[0, 1, 2], validation=[3, 5], test=[4, 6, 7, 8, 9]), HASHES)
    assert str(caught.value).splitlines()[1:] == [
        "1 of 'validation' are in 'train' too: 0 = 5",
        "4 of 'test' are in 'train' too: 2 = 4, 2 = 7, 2 = 8, ...",
        "Keep one of each in the data, or set allow_shared in the split to permit them",
    ]


def test_removal_that_leaves_nothing_of_a_part_is_an_error() -> None:
    with pytest.raises(SplitError, match="part 'train' is empty"):
        splits.without_shared(by_hand(11, train=[0, 1], test=[5]), HASHES, ("test", "train"))


def test_shared_configurations_stay_in_the_part_that_comes_first() -> None:
    split = by_hand(11, train=[0, 1, 2, 6], validation=[3, 5], test=[4, 7])
    spared = splits.without_shared(split, HASHES, ("test", "validation", "train"))
    assert as_lists(spared) == {"train": [6], "validation": [3, 5], "test": [4, 7]}
    assert spared.origin.removed == {"train": 3, "validation": 0, "test": 0}
    kept = splits.without_shared(by_hand(11, train=[0, 1, 2], validation=[3, 5]), HASHES, ("train", "validation"))
    assert as_lists(kept) == {"train": [0, 1, 2], "validation": [3]}
    splits.check_disjoint(spared, HASHES)


def test_the_order_of_parts_must_be_complete() -> None:
    with pytest.raises(SplitError, match=r"each of the parts \['train', 'test'\] once, but is \['test'\]"):
        splits.without_shared(by_hand(11, train=[0], test=[1]), HASHES, ["test"])


def test_hashes_must_be_those_of_all_structures(as_users_run: None) -> None:
    with pytest.raises(ValueError, match=r"hashes must have shape \(11\), but has shape \(3,\)"):
        splits.check_disjoint(by_hand(11, train=[0], test=[1]), HASHES[:3])
