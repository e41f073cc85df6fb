import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from huefield.data.splits.dealing import deal_groups


@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=9),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.3, 0.3), (0.98,), (1.0,), (0.1, 0.9)]),
)
@settings(deadline=None, max_examples=50)
def test_no_single_step_brings_the_first_filled_part_nearer_to_its_share(
    sizes: list[int], fractions: tuple[float, ...]
) -> None:
    targets = np.array(fractions) * sum(sizes)
    owners = deal_groups(np.array(sizes), targets)
    assert set(range(len(fractions))) <= set(owners.tolist()) <= {-1, *range(len(fractions))}
    if sum(fractions) > 0.999:
        assert owners.min() >= 0
    if len(fractions) == 1 and fractions[0] == 1.0:
        return
    first = int(np.argmin(targets))  # fills before all others
    inside = [g for g in range(len(sizes)) if owners[g] == first]
    outside = [g for g in range(len(sizes)) if owners[g] != first]
    missed = abs(targets[first] - sum(sizes[g] for g in inside))
    at_most = len(sizes) - (len(fractions) - 1)
    for out, into in itertools.product([*inside, None], [*outside, None]):
        others = {*inside, into} - {out, None}
        if 1 <= len(others) <= at_most:
            assert abs(targets[first] - sum(sizes[g] for g in others)) >= missed - 1e-9


def test_a_group_is_left_out_again_where_an_exchange_made_it_superfluous() -> None:
    assert deal_groups(np.array([1, 5, 9]), np.array([9.2])).tolist() == [-1, -1, 0]


def test_shares_are_exact_where_groups_allow() -> None:
    rng = np.random.default_rng(1)
    sizes = np.append(rng.integers(1, 2000, 3000), 1)
    targets = np.rint(np.array([0.9, 0.05, 0.05]) * sizes.sum())
    targets[0] = sizes.sum() - targets[1:].sum()
    owners = deal_groups(sizes, targets)
    np.testing.assert_array_equal(np.bincount(owners, weights=sizes), targets)


def test_a_group_that_is_too_large_is_passed_over_and_the_next_ones_are_taken() -> None:
    owners = deal_groups(np.array([880, *[10] * 10, 20, 100]), np.array([1000.0, 100.0]))
    assert owners.tolist() == [0, *[1] * 10, 0, 0]


def test_small_parts_get_groups_of_all_sizes() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 1000, 4000)
    owners = deal_groups(sizes, np.array([0.9, 0.1]) * sizes.sum())
    np.testing.assert_allclose(sizes[owners == 1].mean(), sizes.mean(), rtol=4 / np.sqrt(3 * 400))
