"""The closed forms of the colored model against the definition: the kernel, differentiated by JAX."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph, Labels, Outputs, Partition
from huefield.data.toy import ToyProcess, process_covariance, symmetric_root
from huefield.model.forcefield import ForceField
from huefield.noise import ColoredNoise
from huefield.testing import ProbePotential, probe_graph
from huefield.training.likelihoods import joint_nll, marginal_nll, observed_mean, structure_mean

pytestmark = pytest.mark.usefixtures("x64")

Kernel = Callable[[jax.Array, jax.Array], jax.Array]


def dense_from_kernel(kernel: Kernel, r: jax.Array) -> np.ndarray:
    """Covariance of (E, −∂E/∂r) at r: [J23] Eqs. e_cov and force_cov, from nothing but Cov(E(r), E(r'))."""

    @jax.jit
    def dense(r: jax.Array) -> jax.Array:
        cross = -jax.grad(kernel, argnums=1)(r, r)
        forces = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(r, r)
        return jnp.block([[kernel(r, r)[None, None], cross[None]], [cross[:, None], forces]])

    return np.asarray(dense(r))


def member(config: ColoredNoise.Config, seed: int = 0) -> ForceField:
    noise = config.build()
    return ForceField(ProbePotential.random(len(noise.raw_outputs), key=jax.random.key(seed)), noise)


def zero_mean(noise: ColoredNoise, levels: jax.Array, gradients: jax.Array, graph: Graph) -> Gaussian:
    """The distribution of the noise alone, for given levels and their gradients."""
    mean = EnergyForces(jnp.zeros(graph.partition.num_structures), jnp.zeros_like(graph.positions))
    raw = jnp.zeros((graph.partition.num_atoms, 1))
    outputs = Outputs(mean.energy, mean.forces, raw, levels, gradients, energy_of_atoms=raw[:, 0])
    covariance = noise.covariance(outputs, graph)
    return Gaussian(mean, covariance.diagonal, covariance.columns, EnergyForcesStack.empty(mean), graph.partition)


def levels_of(field: ForceField, graph: Graph, structure: int) -> tuple[Callable[[jax.Array], jax.Array], jax.Array]:
    """ρ_c as a function of the flat coordinates of one structure, and these coordinates."""
    rows = graph.partition.atoms_of(structure)
    numbers, partition = graph.atomic_numbers[rows], Partition.from_sizes([len(rows)])

    def levels(flat: jax.Array) -> jax.Array:
        alone = Graph(flat.reshape(-1, 3), numbers, partition)
        return field.noise.levels(field.potential(alone).raw, alone)[:, 0]

    return levels, graph.positions[rows].ravel()


@pytest.mark.parametrize(("channels", "gammas"), [(1, [1.7]), (2, [0.4, 3.1])])
def test_covariance_is_that_of_the_differentiated_kernel(channels: int, gammas: list[float]) -> None:
    field, graph = member(ColoredNoise.Config(channels=channels)), probe_graph(key=jax.random.key(1))
    field = eqx.tree_at(lambda f: f.noise, field, field.noise.with_gamma(jnp.array(gammas)))
    gaussian = eqx.filter_jit(field)(graph)
    for structure in range(graph.partition.num_structures):
        levels, here = levels_of(field, graph, structure)

        def kernel(r: jax.Array, s: jax.Array, levels: Callable[[jax.Array], jax.Array] = levels) -> jax.Array:
            correlation = jnp.exp(-jnp.array(gammas) * jnp.sum((r - s) ** 2) / 2)
            return jnp.sum(correlation * levels(r) * levels(s))

        np.testing.assert_allclose(
            gaussian.covariance(structure), dense_from_kernel(kernel, here), rtol=1e-9, atol=1e-12
        )


def gibbs(length: Callable[[jax.Array], jax.Array]) -> Kernel:
    """A non-stationary kernel of unit variance: each coordinate has a length scale that depends on its value."""

    def correlation(r: jax.Array, s: jax.Array) -> jax.Array:
        a, b = length(r), length(s)
        squares = a**2 + b**2
        return jnp.prod(jnp.sqrt(2 * a * b / squares) * jnp.exp(-((r - s) ** 2) / squares))

    return correlation


def length_scales(r: jax.Array) -> jax.Array:
    return 0.6 + 0.3 * jnp.sin(2.0 * r + jnp.arange(r.size))


def test_zeta_vanishes_for_a_non_stationary_process_of_unit_variance() -> None:
    """[J23] asks for ζ = ∂R(r, r')/∂r' at r' = r beyond the stationary case; unit variance makes it zero."""
    correlation = gibbs(length_scales)
    for key in jax.random.split(jax.random.key(2), 5):
        r = jax.random.normal(key, (6,))
        np.testing.assert_allclose(jax.grad(correlation, argnums=1)(r, r), 0.0, atol=1e-14)
    shifted = jax.grad(correlation, argnums=1)(r, r + 0.1)
    assert np.max(np.abs(shifted)) > 1e-2, "the kernel is flat: the test could not fail"


def test_gamma_of_each_coordinate_is_exact_for_a_non_stationary_process() -> None:
    """With γ_i = ∂²R/∂r_i∂r'_i and no ζ, diag(d) + uuᵀ is the covariance of the process, [J23] Eq. force_var_full."""
    correlation = gibbs(length_scales)
    r = jax.random.normal(jax.random.key(3), (5,))
    curvature = jax.jacfwd(jax.grad(correlation, argnums=0), argnums=1)(r, r)
    gamma = jnp.diag(curvature)
    assert np.ptp(gamma) > 0.5, "γ hardly differs between coordinates: the test could not fail"

    def level(x: jax.Array) -> jax.Array:
        return 0.3 + 0.1 * jnp.sum(jnp.cos(x))

    def kernel(x: jax.Array, y: jax.Array) -> jax.Array:
        return correlation(x, y) * level(x) * level(y)

    u = np.append(level(r), -jax.grad(level)(r))
    closed = np.diag(np.append(0.0, gamma * level(r) ** 2)) + np.outer(u, u)
    np.testing.assert_allclose(closed, dense_from_kernel(kernel, r), atol=1e-13)


def test_atom_gamma_uses_the_atoms_own_value() -> None:
    field, graph = member(ColoredNoise.Config(gamma="atom")), probe_graph(key=jax.random.key(4))
    raw = field.potential(graph).raw
    levels = graph.partition.spread(field.noise.levels(raw, graph)[0])
    gamma = field.noise.gamma(raw[:, 1:], levels[None], graph)[0]
    assert np.ptp(np.asarray(gamma)[np.asarray(graph.partition.atom_mask)]) > 0.1
    expected = jnp.broadcast_to((gamma * levels**2)[:, None], (raw.shape[0], 3))
    np.testing.assert_allclose(field(graph).diagonal.forces, expected, rtol=1e-12)


def test_element_gamma_follows_the_atomic_number() -> None:
    noise = ColoredNoise.Config(gamma="element").build()
    table = jnp.ones((1, 119)).at[0, 8].set(5.0)
    noise = noise.with_gamma(table)
    graph = probe_graph(key=jax.random.key(5))
    atoms = graph.positions.shape[0]
    gamma = noise.gamma(jnp.zeros((atoms, 0)), jnp.ones((1, atoms)), graph)[0]
    np.testing.assert_allclose(gamma, np.where(np.asarray(graph.atomic_numbers) == 8, 5.0, 1.0), rtol=1e-12)


def test_joint_density_factorises_into_energy_and_forces_given_energy() -> None:
    """E ~ N(E_θ, ρ²) and F | E ~ N(F_θ − (∇ρ/ρ)(E − E_θ), γρ² I)."""
    field, graph = member(ColoredNoise.Config()), probe_graph(key=jax.random.key(6))
    field = eqx.tree_at(lambda f: f.noise, field, field.noise.with_gamma(2.5))
    gaussian = eqx.filter_jit(field)(graph)
    draw = gaussian.sample(key=jax.random.key(7))
    labels = Labels.from_arrays(graph.partition, 3, energy=draw.energy, forces=draw.forces)
    rho, gradient = gaussian.aleatoric.energy[0], -gaussian.aleatoric.forces[0]

    def log_normal(x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        return -0.5 * ((x - mean) ** 2 / variance + jnp.log(2 * jnp.pi * variance))

    by_hand = log_normal(draw.energy, gaussian.mean.energy, rho**2)
    slope = graph.partition.spread((draw.energy - gaussian.mean.energy) / rho)[:, None]
    variance = jnp.where(graph.partition.atom_mask, graph.partition.spread(2.5 * rho**2), 1.0)[:, None]
    terms = log_normal(draw.forces, gaussian.mean.forces - gradient * slope, variance)
    by_hand += graph.partition.sum(jnp.where(graph.partition.atom_mask[:, None], terms, 0.0).sum(1))
    np.testing.assert_allclose(gaussian.log_prob(labels), by_hand, rtol=1e-10)


def test_closed_form_matches_monte_carlo_of_a_process_and_its_finite_differences() -> None:
    """E = ρ(x) η(x) with η a real draw; its slope by central differences, so that no formula of ours is used."""
    ell, x0, step, count = 0.7, 0.4, 1e-3, 200_000
    points = np.array([x0 - step, x0, x0 + step])
    covariance = np.exp(-((points[:, None] - points[None, :]) ** 2) / (2 * ell**2))
    rng = np.random.default_rng(0)
    eta = rng.standard_normal((count, 3)) @ symmetric_root(covariance)
    energy = (0.5 + 0.3 * np.sin(3.0 * points)) * eta
    sampled = np.cov(energy[:, 1], -(energy[:, 2] - energy[:, 0]) / (2 * step))

    rho, slope = 0.5 + 0.3 * np.sin(3.0 * x0), 0.9 * np.cos(3.0 * x0)
    noise = ColoredNoise.Config().build().with_gamma(ell**-2)
    graph = Graph(jnp.zeros((1, 1)), jnp.zeros(1, int), Partition.from_sizes([1]))
    gaussian = zero_mean(noise, jnp.array([[rho]]), jnp.array([[[slope]]]), graph)
    dense = gaussian.covariance(0)
    scatter = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / count)
    assert np.all(np.abs(sampled - dense) < 4 * scatter + 1e-5)


@pytest.mark.parametrize("joint", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gamma_estimated_from_many_realisations_recovers_the_length_scale(joint: bool) -> None:
    """Constant ρ: maximum likelihood of γ finds 1/ℓ² within 3 %."""
    process, count = ToyProcess(), 30_000
    root = symmetric_root(process_covariance(np.zeros(1), process.amplitude, process.length_scale))
    draws = np.asarray(jax.random.normal(jax.random.key(8), (count, 2))) @ root
    partition = Partition.from_sizes([1] * count)
    labels = Labels.from_arrays(partition, 1, energy=draws[:, 0], forces=-draws[:, 1:])
    graph = Graph(jnp.zeros((count, 1)), jnp.zeros(count, int), partition)
    noise = ColoredNoise.Config().build()

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(noise: ColoredNoise) -> jax.Array:
        levels = noise.levels(jnp.zeros((count, 1)), graph)
        gaussian = zero_mean(noise, levels, jnp.zeros((1, count, 1)), graph)
        if joint:
            return observed_mean(joint_nll(gaussian, labels), labels, partition).value
        return structure_mean(marginal_nll(gaussian, labels), labels, partition).value

    for _ in range(400):
        _, gradient = loss(noise)
        noise = eqx.apply_updates(noise, jax.tree.map(lambda g: -0.1 * g, gradient))
    assert abs(float(noise.gamma.gamma[0]) * process.length_scale**2 - 1) < 0.03
    rho = float(noise.levels(jnp.zeros((count, 1)), graph)[0, 0])
    assert abs(rho / process.amplitude - 1) < 0.03


class TestGammaByHand:
    def test_replaces_the_trained_value(self) -> None:
        noise = ColoredNoise.Config(channels=2).build().with_gamma(3.5)
        np.testing.assert_allclose(noise.gamma.gamma, [3.5, 3.5])
        np.testing.assert_allclose(noise.with_gamma(jnp.array([1.0, 2.0])).gamma.gamma, [1.0, 2.0])

    @pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf")])
    def test_refuses_what_is_no_inverse_squared_length(self, gamma: float) -> None:
        with pytest.raises(ValueError, match=r"gamma must be positive.*inverse squared length"):
            ColoredNoise.Config().build().with_gamma(gamma)

    def test_refuses_a_wrong_number_of_channels(self) -> None:
        with pytest.raises(ValueError, match=r"gamma must have shape \(2\), but has shape \(3,\)"):
            ColoredNoise.Config(channels=2).build().with_gamma(jnp.ones(3))

    def test_can_be_multiplied_whatever_it_is_made_from(self) -> None:
        for kind in ("global", "element", "atom", "force"):
            noise = ColoredNoise.Config(gamma=kind, channels=2).build().initialised(0.1, 0.4)
            found = noise.with_gamma_times(4.0).gamma.gamma
            np.testing.assert_allclose(found, 4 * noise.gamma.gamma, rtol=1e-6)

    def test_cannot_be_set_where_it_follows_from_the_noise_of_forces(self) -> None:
        with pytest.raises(ValueError, match="with_gamma_times"):
            ColoredNoise.Config(gamma="force").build().with_gamma(16.0)


def test_what_is_watched_are_elements_that_were_trained() -> None:
    noise = ColoredNoise.Config(gamma="element").build().initialised(0.1, 0.4)
    np.testing.assert_allclose(noise.watched()["gamma"], 16.0, rtol=1e-6)
    table = noise.gamma.gamma.at[0, jnp.array([1, 6])].set(jnp.array([4.0, 100.0]))
    np.testing.assert_allclose(noise.with_gamma(table).watched()["gamma"], 20.0, rtol=1e-6)  # √(4 · 100)


@pytest.mark.parametrize("channels", [1, 2])
def test_noise_of_forces_can_be_free_of_that_of_energies(channels: int) -> None:
    """γ_i = (ω_i/ρ)²: the diagonal of forces is Σ_c ω_c,i², whatever ρ is."""
    config = ColoredNoise.Config(gamma="force", channels=channels)
    noise = config.build().initialised(0.3, 0.7)
    potential = ProbePotential.random(len(noise.raw_outputs), key=jax.random.key(0))
    graph = probe_graph(key=jax.random.key(1))
    raw = np.asarray(potential(graph).raw)[:, channels:]
    relative = np.log1p(np.exp(raw + np.log(np.e - 1.0)))
    omega_squared = 0.7**2 / channels * (1e-4 + (1 - 1e-4) * relative) ** 2
    for energy_rmse in (0.3, 3.0):
        gaussian = ForceField(potential, noise.initialised(energy_rmse, 0.7))(graph)
        expected = np.where(graph.partition.atom_mask, omega_squared.sum(1), 0.0)
        np.testing.assert_allclose(gaussian.diagonal.forces[:, 0], expected, rtol=1e-12)
