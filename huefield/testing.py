"""Conformance kit: checks that every noise model must pass, ours or your own.

    from huefield.testing import check_noise
    check_noise(MyNoise.Config().build(), key=jax.random.key(0))

Each check raises ``AssertionError`` with the difference it found. Checks run in float32 and float64, on a batch of
structures of different sizes with padding, with a smooth random potential in place of a trained one.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from scipy.stats import multivariate_normal

from huefield.core import EnergyForces, Gaussian, Graph, Labels, Partition
from huefield.model.forcefield import ForceField
from huefield.noise import AbstractNoise
from huefield.potentials import AbstractPotential, AtomOutputs
from huefield.support.config import FrozenConfig
from huefield.training.likelihoods import joint_nll, marginal_nll, structure_mean

SIZES = (3, 1, 5)
RELATIVE = {"float32": 1e-3, "float64": 1e-9}


class ProbePotential(AbstractPotential):
    """A smooth random function of all positions of a structure, to probe noise models with."""

    config: FrozenConfig = eqx.field(static=True, default_factory=FrozenConfig, kw_only=True)
    directions: Float[Array, "H D"]
    phases: Float[Array, " H"]
    readout: Float[Array, "H P"]
    raw_shift: Float[Array, ""]

    @classmethod
    def random(cls, num_raw: int, *, key: Key[Array, ""], raw_shift: float = 0.0) -> "ProbePotential":
        """Random weights; ``raw_shift`` is added to every raw noise output."""
        keys = jax.random.split(key, 3)
        return cls(
            directions=jax.random.normal(keys[0], (16, 3)),
            phases=jax.random.uniform(keys[1], (16,), maxval=2 * np.pi),
            readout=0.3 * jax.random.normal(keys[2], (16, 1 + num_raw)),
            raw_shift=jnp.asarray(raw_shift, float),
        )

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Waves of each position, modulated by the sum of the waves of the structure."""
        waves = jnp.sin(graph.positions @ self.directions.T + self.phases)
        around = graph.partition.spread(graph.partition.sum(waves))
        out = (waves * (1.0 + 0.1 * around)) @ self.readout
        return AtomOutputs(out[:, 0], out[:, 1:] + self.raw_shift)


def probe_graph(*, key: Key[Array, ""]) -> Graph:
    """A batch of structures of ``SIZES`` atoms, with two padding atoms."""
    positions_key, numbers_key = jax.random.split(key)
    index = np.concatenate([np.repeat(np.arange(len(SIZES)), SIZES), [len(SIZES)] * 2])
    numbers = jax.random.choice(numbers_key, jnp.array([1, 6, 7, 8]), (index.size,))
    positions = jax.random.normal(positions_key, (index.size, 3))
    return Graph(positions, numbers, Partition(jnp.asarray(index, jnp.int32), len(SIZES)))


def check_noise(noise: AbstractNoise, *, key: Key[Array, ""]) -> None:
    """Run every check in both precisions."""
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            for check in CHECKS:
                check(cast_floats(noise, dtype), dtype, key=key)


def check_positive_semidefinite(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """No combination of energy and forces has negative variance."""
    gaussian = _distribution(noise, key)
    for structure in range(len(SIZES)):
        dense = gaussian.covariance(structure)
        np.testing.assert_allclose(dense, dense.T, err_msg="the covariance is not symmetric")
        eigenvalues = np.linalg.eigvalsh(dense)
        tolerance = RELATIVE[dtype] * max(abs(eigenvalues).max(), 1e-30)
        assert eigenvalues.min() >= -tolerance, f"structure {structure} has the eigenvalue {eigenvalues.min()}"


def check_marginals(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """The marginal variances are the diagonal of the dense covariance; padding atoms have none."""
    gaussian = _distribution(noise, key)
    padding = np.asarray(gaussian.variance().forces)[~np.asarray(gaussian.partition.atom_mask)]
    assert np.all(padding == 0), f"padding atoms have the variances {padding}"
    for structure in range(len(SIZES)):
        marginal = flatten(gaussian.variance(), gaussian.partition, structure)
        np.testing.assert_allclose(marginal, np.diag(gaussian.covariance(structure)), rtol=RELATIVE[dtype])


def check_samples(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """Samples have the mean and the covariance, within five standard errors."""
    gaussian, count = _distribution(noise, key), 20_000
    draws = eqx.filter_jit(lambda g: g.samples(count, key=key))(gaussian)
    for structure in range(len(SIZES)):
        rows = gaussian.partition.atoms_of(structure)
        energies, forces = np.asarray(draws.energy, float), np.asarray(draws.forces, float)
        table = np.concatenate([energies[:, structure, None], forces[:, rows].reshape(count, -1)], axis=1)
        dense, mean = gaussian.covariance(structure), flatten(gaussian.mean, gaussian.partition, structure)
        scale = np.sqrt(np.outer(np.diag(dense), np.diag(dense)) + dense**2) / np.sqrt(count)
        rounding = 10 * np.finfo(dtype).eps * np.abs(mean).max()
        assert np.all(np.abs(np.cov(table.T, bias=True) - dense) <= 5 * scale + rounding), "covariance of the samples"
        assert np.all(np.abs((table - mean).mean(0)) <= 5 * np.sqrt(np.diag(dense) / count) + rounding), "their mean"


def check_log_prob(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """The log density is that of the dense covariance; a singular covariance raises an error."""
    gaussian = _distribution(noise, key)
    draw = gaussian.sample(key=key)
    labels = Labels.from_arrays(gaussian.partition, 3, energy=draw.energy, forces=draw.forces)
    if np.any(np.asarray(gaussian.diagonal.forces)[np.asarray(gaussian.partition.atom_mask)] == 0):
        try:
            gaussian.log_prob(labels)
        except ValueError:
            return
        raise AssertionError("a singular covariance has no density, but log_prob did not raise")
    got = eqx.filter_jit(Gaussian.log_prob)(gaussian, labels)
    for structure in range(len(SIZES)):
        dense = np.asarray(gaussian.covariance(structure), np.float64)
        mean = flatten(gaussian.mean, gaussian.partition, structure)
        expected = multivariate_normal(mean, dense).logpdf(flatten(draw, gaussian.partition, structure))
        np.testing.assert_allclose(got[structure], expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])


def check_tiny_noise(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """The likelihood and its gradients stay finite for very small noise."""
    graph = probe_graph(key=key)
    draw = _distribution(noise, key).mean
    labels = Labels.from_arrays(graph.partition, 3, energy=draw.energy + 0.1, forces=draw.forces + 0.1)
    if not noise.raw_outputs:
        return

    def loss(member: ForceField) -> Float[Array, ""]:
        gaussian = member(graph)
        return structure_mean(marginal_nll(gaussian, labels), labels, graph.partition).value + jnp.sum(
            joint_nll(gaussian, labels)
        )

    value_and_gradient = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    for shift in (-1e1, -1e3, -1e6):
        potential = ProbePotential.random(len(noise.raw_outputs), key=key, raw_shift=shift)
        value, gradient = value_and_gradient(ForceField(potential, noise))
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradient)))
        assert finite, f"with raw outputs near {shift} in {dtype} the likelihood or its gradient is not finite"


def check_precision(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """All results have the requested precision."""
    for name, leaf in zip(("mean", "diagonal", "columns"), _parts(_distribution(noise, key)), strict=True):
        found = {str(array.dtype) for array in jax.tree.leaves(leaf)}
        assert found == {dtype}, f"{name} came in {found}, not in {dtype}"


def check_batch_is_loop(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """A structure has the same prediction in a batch and alone."""
    graph, member = probe_graph(key=key), eqx.filter_jit(_member(noise, key))
    together = member(graph)
    for structure, size in enumerate(SIZES):
        rows = graph.partition.atoms_of(structure)
        single = Graph(graph.positions[rows], graph.atomic_numbers[rows], Partition.from_sizes([size]))
        alone = member(single)
        for got, expected in (
            (flatten(alone.mean, alone.partition, 0), flatten(together.mean, together.partition, structure)),
            (alone.covariance(0), together.covariance(structure)),
        ):
            np.testing.assert_allclose(got, expected, rtol=10 * RELATIVE[dtype], atol=RELATIVE[dtype])


def check_initialised(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """After ``initialised(e, f)`` and with raw outputs of zero, energies have noise e and forces noise f."""
    if not noise.raw_outputs:
        return
    silent = eqx.tree_at(
        lambda m: m.potential.readout, _member(noise, key), jnp.zeros((16, 1 + len(noise.raw_outputs)))
    )
    graph = probe_graph(key=key)
    variance = eqx.filter_jit(ForceField(silent.potential, noise.initialised(0.02, 0.3)))(graph).variance()
    np.testing.assert_allclose(np.sqrt(variance.energy), 0.02, rtol=1e-3)
    np.testing.assert_allclose(np.sqrt(variance.forces[np.asarray(graph.partition.atom_mask)]), 0.3, rtol=1e-3)


CHECKS: tuple[Callable[..., None], ...] = (
    check_positive_semidefinite,
    check_marginals,
    check_samples,
    check_log_prob,
    check_tiny_noise,
    check_precision,
    check_batch_is_loop,
    check_initialised,
)


def cast_floats(tree: PyTree, dtype: str) -> PyTree:
    """Convert all floating-point arrays of a tree to another precision."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), dtype) if eqx.is_inexact_array(x) else x, tree)


def flatten(values: EnergyForces, partition: Partition, structure: int) -> Float[np.ndarray, " n"]:
    """(E, F_1x, F_1y, ...) of one structure, in the order of :meth:`Gaussian.covariance`."""
    forces = np.asarray(values.forces)[partition.atoms_of(structure)]
    return np.append(np.asarray(values.energy)[structure], forces.ravel())


def _member(noise: AbstractNoise, key: Key[Array, ""]) -> ForceField:
    return ForceField(ProbePotential.random(len(noise.raw_outputs), key=key), noise)


def _distribution(noise: AbstractNoise, key: Key[Array, ""]) -> Gaussian:
    return eqx.filter_jit(_member(noise, key))(probe_graph(key=key))


def _parts(gaussian: Gaussian) -> tuple[PyTree, PyTree, PyTree]:
    return gaussian.mean, gaussian.diagonal, gaussian.columns
