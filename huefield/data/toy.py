r"""The one-dimensional problem of the paper's section "Toy Example": energies and slopes with correlated noise.

[J23] arXiv:2312.04174v1. The mean is y(x) = x + 0.3 sin 2πx + 0.1 sin 4πx; the noise is one draw of a Gaussian process
with the kernel k(a, b) = α² (exp(−(a − b)²/2ℓ²) + 10⁻⁴ δ(a − b)). Energies and their derivatives are drawn jointly from
the smooth part; the δ part is independent noise on each observed energy. The δ part has no
derivative, so observed forces do not contain it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike
from pydantic import Field

from huefield.core import Graph, Labels, Partition
from huefield.support.checks import require_shape
from huefield.support.config import FrozenConfig


class ToyProcess(FrozenConfig):
    """The Gaussian process and its observations, with the paper's values as defaults."""

    amplitude: float = Field(0.2, gt=0, description="α, standard deviation of the noise")
    length_scale: float = Field(0.5, gt=0, description="ℓ, length scale of the noise")
    nugget: float = Field(1e-4, ge=0, description="variance of the independent part relative to α²")
    num_train: int = Field(20, ge=1, le=10_000, description="training points, uniform between low and high")
    low: float = Field(-1.0, description="start of the training interval")
    high: float = Field(1.0, description="end of the training interval")


class ToyCurve(eqx.Module):
    """Energies and forces at points x."""

    x: Float[np.ndarray, " n"]
    energy: Float[np.ndarray, " n"]
    forces: Float[np.ndarray, " n"]


class ToyData(eqx.Module):
    """The noise-free function, one noisy realisation, and the training points at which it was observed."""

    truth: ToyCurve
    realisation: ToyCurve
    train: ToyCurve


def mean_energy(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """y(x) = x + 0.3 sin 2πx + 0.1 sin 4πx."""
    return x + 0.3 * np.sin(2 * np.pi * x) + 0.1 * np.sin(4 * np.pi * x)


def mean_force(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """−dy/dx."""
    return -(1.0 + 0.6 * np.pi * np.cos(2 * np.pi * x) + 0.4 * np.pi * np.cos(4 * np.pi * x))


def process_covariance(
    x: Float[np.ndarray, " n"], amplitude: float, length_scale: float
) -> Float[np.ndarray, "2*n 2*n"]:
    """Covariance of (η(x), dη/dx(x)) for the smooth part of the kernel, k = α² exp(−(a − b)²/2ℓ²).

    In blocks: [[k, ∂k/∂b], [∂k/∂a, ∂²k/∂a∂b]].
    """
    difference = x[:, None] - x[None, :]
    scale2 = length_scale**2
    k = amplitude**2 * np.exp(-(difference**2) / (2 * scale2))
    first = k * difference / scale2
    second = k * (1 / scale2 - difference**2 / scale2**2)
    return np.block([[k, first], [first.T, second]])


def symmetric_root(covariance: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The positive semi-definite square root: unique, so that a seed gives the same draw with any linear algebra."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def draw_toy(process: ToyProcess, grid: Float[np.ndarray, " n"], *, key: Key[Array, ""]) -> ToyData:
    """Draw training points and one realisation of the noise, there and on the grid."""
    points_key, noise_key, nugget_key = jax.random.split(key, 3)
    with jax.enable_x64(True):
        train = jax.random.uniform(points_key, (process.num_train,), jnp.float64, process.low, process.high)
        white = jax.random.normal(noise_key, (2 * (process.num_train + grid.size),), jnp.float64)
        nugget = jax.random.normal(nugget_key, (process.num_train,), jnp.float64)
    points = np.concatenate([np.sort(np.asarray(train)), grid])
    root = symmetric_root(process_covariance(points, process.amplitude, process.length_scale))
    noise, slope = np.split(root @ np.asarray(white), 2)
    energy, forces = mean_energy(points) + noise, mean_force(points) - slope
    n = process.num_train
    observed = energy[:n] + process.amplitude * process.nugget**0.5 * np.asarray(nugget)
    return ToyData(
        truth=ToyCurve(grid, mean_energy(grid), mean_force(grid)),
        realisation=ToyCurve(grid, energy[n:], forces[n:]),
        train=ToyCurve(points[:n], observed, forces[:n]),
    )


def toy_graph(x: ArrayLike) -> Graph:
    """Each of the points x as a structure of one site with one coordinate."""
    points = np.asarray(x)
    require_shape("x", points, (None,))
    positions = jnp.asarray(points, jnp.result_type(float))[:, None]
    return Graph(positions, jnp.zeros(points.size, jnp.int32), Partition.from_sizes([1] * points.size))


def toy_labels(curve: ToyCurve) -> Labels:
    """The energies and forces of a curve as labels of :func:`toy_graph`."""
    partition = Partition.from_sizes([1] * curve.x.size)
    return Labels.from_arrays(partition, 1, energy=curve.energy, forces=curve.forces[:, None])
