r"""Polynomials of many arrays, number by number, whose derivatives of every order are again written out as polynomials.

For P(x) = Σ_t c_t Π_f x_f and a seed s of its value, the derivative with respect to x_v is the polynomial s ∂P/∂x_v of
(x, s). Plain reverse differentiation gives the same numbers by chains of products and sums that share their parts,
which XLA computes again and again.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Variable = tuple[int, int]
"""The number of a group of variables, and of a variable in it."""
Polynomial = tuple[tuple[float, tuple[Variable, ...]], ...]
"""Terms: a coefficient, and the factors in ascending order."""
Arrays = tuple[Float[Array, "*n"], ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def evaluate(polynomials: tuple[Polynomial, ...], groups: tuple[Arrays, ...]) -> Arrays:
    """The values of polynomials of the same variables.

    Args:
        polynomials: to be evaluated.
        groups: variables. Derivatives with respect to a group are computed together, and only if something needs them.
    """
    # Without the barrier, XLA computes the polynomials anew for everything that uses their values.
    return jax.lax.optimization_barrier(tuple(_value(polynomial, groups) for polynomial in polynomials))


def _value(polynomial: Polynomial, groups: tuple[Arrays, ...]) -> Float[Array, "*n"]:
    """Terms with the same first factor are summed before they are multiplied by it."""
    total = jnp.full_like(groups[0][0], sum(coefficient for coefficient, factors in polynomial if not factors))
    rest: dict[Variable, list[tuple[float, tuple[Variable, ...]]]] = {}
    for coefficient, factors in polynomial:
        if factors:
            rest.setdefault(factors[0], []).append((coefficient, factors[1:]))
    for (group, index), terms in rest.items():
        total = total + groups[group][index] * _value(tuple(terms), groups)
    return total


@cache
def gradient(polynomials: tuple[Polynomial, ...], variables: tuple[Variable, ...]) -> tuple[Polynomial, ...]:
    """The derivatives of the sum of polynomials with respect to variables."""
    derivatives: dict[Variable, list[tuple[float, tuple[Variable, ...]]]] = {variable: [] for variable in variables}
    for coefficient, factors in (term for polynomial in polynomials for term in polynomial):
        for variable in sorted(set(factors) & derivatives.keys()):
            place = factors.index(variable)
            rest = factors[:place] + factors[place + 1 :]
            derivatives[variable].append((coefficient * factors.count(variable), rest))
    return tuple(tuple(terms) for terms in derivatives.values())


def variables_of(group: int, count: int) -> tuple[Variable, ...]:
    """All variables of a group."""
    return tuple((group, index) for index in range(count))


def _forward(polynomials: tuple[Polynomial, ...], groups: tuple[Arrays, ...]) -> tuple[Arrays, tuple[Arrays, ...]]:
    return evaluate(polynomials, groups), groups


def _backward(
    polynomials: tuple[Polynomial, ...], groups: tuple[Arrays, ...], seeds: Arrays
) -> tuple[tuple[Arrays, ...]]:
    times_seeds = tuple(
        tuple((coefficient, (*factors, (len(groups), output))) for coefficient, factors in polynomial)
        for output, polynomial in enumerate(polynomials)
    )
    return (
        tuple(
            evaluate(gradient(times_seeds, variables_of(number, len(group))), (*groups, seeds))
            for number, group in enumerate(groups)
        ),
    )


evaluate.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def evaluate_once(polynomial: Polynomial, weights: Arrays, variables: Arrays) -> Float[Array, "*n"]:
    """The value of one polynomial of ``weights`` (group 0) and ``variables`` (group 1).

    Its derivatives with respect to the variables are computed along with it and serve all passes back, one for the
    energy and one for each noise level.
    """
    return evaluate((polynomial,), (weights, variables))[0]


def _once_forward(
    polynomial: Polynomial, weights: Arrays, variables: Arrays
) -> tuple[Float[Array, "*n"], tuple[Arrays, Arrays, Arrays]]:
    slopes = gradient((polynomial,), variables_of(1, len(variables)))
    value, *derivatives = evaluate((polynomial, *slopes), (weights, variables))
    return value, (weights, variables, tuple(derivatives))


def _once_backward(
    polynomial: Polynomial, kept: tuple[Arrays, Arrays, Arrays], seed: Float[Array, "*n"]
) -> tuple[Arrays, Arrays]:
    weights, variables, derivatives = kept
    by_weight = evaluate(gradient((polynomial,), variables_of(0, len(weights))), (weights, variables))
    return tuple(seed * each for each in by_weight), tuple(seed * each for each in derivatives)


evaluate_once.defvjp(_once_forward, _once_backward)
