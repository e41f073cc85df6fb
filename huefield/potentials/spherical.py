r"""Real spherical harmonics up to l = 3, and the products of up to three sets of them that no rotation changes.

Harmonics Y_lm are polynomials of a direction, normalised to Σ_m Y_lm² = 2l + 1. Coefficients A_lm of three degrees
have one invariant product that a reflection does not change either, if l₁ + l₂ + l₃ is even and no degree is larger
than the sum of the other two; otherwise they have none:

    Σ_m₁m₂m₃ C_m₁m₂m₃ A_l₁m₁ A_l₂m₂ A_l₃m₃,    C ∝ ∫ Y_l₁m₁ Y_l₂m₂ Y_l₃m₃ dΩ,    Σ C² = 1.

Degrees (0, l, l) and (0, 0, 0) without their zeros give the products of two sets and of one, for Y_00 = 1.
"""

from functools import cache
from itertools import combinations_with_replacement
from typing import TypeVar

import numpy as np
from jaxtyping import Array, Float

MAX_DEGREE = 3
"""Largest l."""
Numbers = TypeVar("Numbers", bound=Array | np.ndarray)
Degrees = tuple[int, ...]
"""Degrees l of the factors of a product, ascending."""


def harmonics(x: Numbers, y: Numbers, z: Numbers) -> tuple[tuple[Numbers, ...], ...]:
    """Y_lm of directions for l = 0 ... 3, a tuple over m for each l.

    They are homogeneous: for the direction (0, 0, 0) all vanish but Y_00.
    """
    xx, yy, zz = x**2, y**2, z**2
    functions = (
        (xx * 0 + 1,),
        (x, y, z),
        (x * y, y * z, x * z, (xx - yy) / 2, (2 * zz - xx - yy) / 12**0.5),
        (
            *(x * y * z, z * (xx - yy) / 2, z * (2 * zz - 3 * xx - 3 * yy) / 60**0.5),
            *(x * (xx - 3 * yy) / 24**0.5, y * (3 * xx - yy) / 24**0.5),
            *(x * (4 * zz - xx - yy) / 40**0.5, y * (4 * zz - xx - yy) / 40**0.5),
        ),
    )
    factors = (1.0, 3.0**0.5, 15.0**0.5, 105.0**0.5)
    return tuple(tuple(factor * f for f in each) for factor, each in zip(factors, functions, strict=True))


def invariant_products(max_degree: int, order: int) -> tuple[Degrees, ...]:
    """Degrees of all invariant products of at most ``order`` factors (1 to 3), the shortest first."""
    return tuple(
        degrees
        for count in range(1, order + 1)
        for degrees in combinations_with_replacement(range(max_degree + 1), count)
        if sum(degrees) % 2 == 0 and 2 * degrees[-1] <= sum(degrees)
    )


@cache
def coupling(degrees: Degrees) -> Float[np.ndarray, "_ _ _"]:
    """C for three degrees, by a quadrature that is exact for polynomials of degree 9."""
    if tuple(sorted(degrees)) not in invariant_products(MAX_DEGREE, 3):
        raise ValueError(f"harmonics of degrees {degrees} have no invariant product: see invariant_products")
    nodes, weights = np.polynomial.legendre.leggauss(5)
    angles = np.arange(10) * 2 * np.pi / 10
    radius, height = np.sqrt(1 - nodes**2)[:, None], np.repeat(nodes[:, None], len(angles), axis=1)
    values = harmonics(radius * np.cos(angles), radius * np.sin(angles), height)
    integrals = np.einsum("n,ina,jna,kna->ijk", weights, *(np.stack(values[degree]) for degree in degrees))
    return np.where(np.abs(integrals) > 1e-9, integrals, 0.0) / np.linalg.norm(integrals)


@cache
def polynomial(degrees: Degrees) -> tuple[tuple[float, tuple[tuple[int, int], ...]], ...]:
    """The invariant product as a polynomial: coefficients, and the (l, m) of the factors of each term."""
    terms: dict[tuple[tuple[int, int], ...], float] = {}
    table = coupling((*[0] * (3 - len(degrees)), *degrees))
    for place in np.argwhere(table).tolist():
        factors = tuple(sorted(zip(degrees, place[3 - len(degrees) :], strict=True)))
        terms[factors] = terms.get(factors, 0.0) + float(table[tuple(place)])
    return tuple((coefficient, factors) for factors, coefficient in terms.items() if abs(coefficient) > 1e-9)
