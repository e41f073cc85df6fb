"""Spherical harmonics and invariant products: norms, rotations, and the number of products."""

from itertools import product as all_of

import numpy as np
import pytest

from huefield.potentials.spherical import MAX_DEGREE, Degrees, coupling, harmonics, invariant_products, polynomial
from tests.potentials.cases import orthogonal


def directions(count: int = 6) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(3, count))
    return vectors / np.linalg.norm(vectors, axis=0)


def test_squares_sum_to_the_number_of_harmonics() -> None:
    for degree, each in enumerate(harmonics(*directions())):
        assert len(each) == 2 * degree + 1
        np.testing.assert_allclose(sum(y**2 for y in each), 2 * degree + 1, rtol=1e-14)


def test_products_of_two_directions_are_legendre_polynomials() -> None:
    """The addition theorem: Σ_m Y_lm(n) Y_lm(n') = (2l + 1) P_l(n · n')."""
    points = directions()
    for degree, each in enumerate(harmonics(*points)):
        rows = np.stack(each)
        expected = (2 * degree + 1) * np.polynomial.legendre.Legendre.basis(degree)(points.T @ points)
        np.testing.assert_allclose(rows.T @ rows, expected, atol=1e-13)


def test_only_the_first_harmonic_is_left_without_a_direction() -> None:
    for degree, each in enumerate(harmonics(*np.zeros((3, 1)))):
        np.testing.assert_array_equal(np.stack(each), float(degree == 0))


def test_products_are_counted_right() -> None:
    assert invariant_products(3, 1) == ((0,),)
    assert invariant_products(1, 2) == ((0,), (0, 0), (1, 1))
    third = [degrees for degrees in invariant_products(3, 3) if len(degrees) == 3]
    assert third == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 1, 2), (1, 2, 3), (2, 2, 2), (2, 3, 3)]


def value(degrees: Degrees, points: np.ndarray) -> float:
    """The product for A_lm = Σ_n Y_lm(n)."""
    sums = [[y.sum() for y in each] for each in harmonics(*points)]
    return sum(c * np.prod([sums[degree][m] for degree, m in factors]) for c, factors in polynomial(degrees))


@pytest.mark.parametrize("determinant", [1, -1])
def test_products_do_not_change_under_rotations_and_reflections(determinant: int) -> None:
    points = directions()
    for degrees in invariant_products(MAX_DEGREE, 3):
        expected = value(degrees, points)
        assert abs(expected) > 1e-3
        np.testing.assert_allclose(value(degrees, orthogonal(determinant) @ points), expected, rtol=1e-11)


def test_couplings_have_norm_one_and_are_those_of_products_only() -> None:
    known = {degrees for degrees in invariant_products(MAX_DEGREE, 3) if len(degrees) == 3}
    for degrees in known:
        np.testing.assert_allclose(np.linalg.norm(coupling(degrees)), 1.0)
    for degrees in all_of(range(MAX_DEGREE + 1), repeat=3):
        if tuple(sorted(degrees)) not in known:
            with pytest.raises(ValueError, match="have no invariant product"):
                coupling(degrees)


def test_products_of_one_and_two_are_written_out() -> None:
    assert polynomial((0,)) == ((1.0, ((0, 0),)),)
    terms = {factors: c for c, factors in polynomial((1, 1))}
    assert sorted(terms) == [((1, m), (1, m)) for m in range(3)]
    np.testing.assert_allclose(list(terms.values()), 3**-0.5)
