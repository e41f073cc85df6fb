"""Checks that every noise model must pass.

Checks run in float32 and float64, on a batch of structures of different sizes with padding, with a smooth random
potential in place of a trained one. Models that claim to be size-consistent or coherent are held to it.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from scipy.stats import multivariate_normal

from huefield.core import Gaussian, Graph, Labels, Partition, Structure
from huefield.model.forcefield import ForceField
from huefield.noise import AbstractNoise
from huefield.testing.distant import (
    COPIES,
    Predict,
    check_coherence,
    check_distant_atoms,
    check_distant_copies,
    check_distant_parts,
)
from huefield.testing.probes import (
    SIZES,
    LocalProbe,
    ProbePotential,
    cast_floats,
    flatten,
    graph_of,
    probe_graph,
    probe_molecules,
    shapes_of_copies,
)
from huefield.training.likelihoods import joint_nll, marginal_nll, structure_mean

RELATIVE = {"float32": 1e-3, "float64": 1e-9}


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
    """After ``initialised(e, f, atoms)`` and with raw outputs of zero, energies have noise e and forces noise f."""
    if not noise.raw_outputs:
        return
    silent = eqx.tree_at(
        lambda m: m.potential.readout, _member(noise, key), jnp.zeros((16, 1 + len(noise.raw_outputs)))
    )
    graph = probe_graph(key=key)
    for structure, size in enumerate(SIZES):
        member = ForceField(silent.potential, noise.initialised(0.02, 0.3, size))
        variance = eqx.filter_jit(member)(graph).variance()
        np.testing.assert_allclose(np.sqrt(variance.energy[structure]), 0.02, rtol=1e-3)
    np.testing.assert_allclose(np.sqrt(variance.forces[np.asarray(graph.partition.atom_mask)]), 0.3, rtol=1e-3)


def check_size_consistency(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """Distant copies and distant other molecules change no force noise; variances of energies add up.

    No variance of distant atoms is below what the single atoms have.
    """
    if not noise.is_size_consistent:
        return
    relative = 1e-5 if dtype == "float64" else RELATIVE[dtype]
    predict, molecules = _local_prediction(noise, key), probe_molecules(key=key)
    check_distant_copies(predict, molecules[0], relative)
    check_distant_parts(predict, *molecules, relative)
    check_distant_atoms(predict, molecules[0], relative)


def check_coherent(noise: AbstractNoise, dtype: str, *, key: Key[Array, ""]) -> None:
    """Cov(E, F) = −½ ∂Var(E); in double precision only, as finite differences need it."""
    if noise.is_coherent and dtype == "float64":
        check_coherence(_local_prediction(noise, key), probe_molecules(key=key)[0], 1e-5)


def _local_prediction(noise: AbstractNoise, key: Key[Array, ""]) -> Predict:
    dtype = str(jnp.result_type(float))
    member = eqx.filter_jit(ForceField(cast_floats(LocalProbe.random(len(noise.raw_outputs), key=key), dtype), noise))
    shapes = shapes_of_copies(probe_molecules(key=key), max(COPIES))

    def predict(structures: Sequence[Structure]) -> Gaussian:
        return member(graph_of(structures, shapes=shapes))

    return predict


CHECKS: tuple[Callable[..., None], ...] = (
    check_positive_semidefinite,
    check_marginals,
    check_samples,
    check_log_prob,
    check_tiny_noise,
    check_precision,
    check_batch_is_loop,
    check_initialised,
    check_size_consistency,
    check_coherent,
)


def _member(noise: AbstractNoise, key: Key[Array, ""]) -> ForceField:
    return ForceField(ProbePotential.random(len(noise.raw_outputs), key=key), noise)


def _distribution(noise: AbstractNoise, key: Key[Array, ""]) -> Gaussian:
    return eqx.filter_jit(_member(noise, key))(probe_graph(key=key))


def _parts(gaussian: Gaussian) -> tuple[PyTree, PyTree, PyTree]:
    return gaussian.mean, gaussian.diagonal, gaussian.columns
