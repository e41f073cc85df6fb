"""Which parts of a model learn from which terms, and the weights of structures."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from huefield.core import Gaussian, Labels
from huefield.model.forcefield import ForceField
from huefield.noise import ColoredNoise, WhiteNoise
from huefield.testing import ProbePotential, probe_graph
from huefield.training import BetaNLLStage, NLLStage, SquaredErrorStage, joint_nll, marginal_nll
from huefield.training.stages import AbstractStage, Stage
from tests.core.helpers import SIZES, random_gaussian

pytestmark = pytest.mark.usefixtures("x64")

RHO, GAMMA = 1, 2
"""Outputs of the potential, after the energy."""


def probed(
    level_learns: str, noise: ColoredNoise.Config | WhiteNoise.Config
) -> tuple[Gaussian, np.ndarray, np.ndarray, np.ndarray]:
    """The distribution, derivatives of each structure's energy and force variances by the outputs' weights, and how
    many force components of each structure were observed."""
    built, graph = noise.build(), probe_graph(key=jax.random.key(1))
    potential = ProbePotential.random(len(built.raw_outputs), key=jax.random.key(0))
    stage = NLLStage.model_validate({"steps": 1, "level_learns": level_learns})
    partition = graph.partition
    observed = np.arange(partition.num_atoms) % 3 > 0
    labels = Labels.from_arrays(
        partition, 3, energy=np.zeros(partition.num_structures), forces=np.zeros(graph.positions.shape),
        forces_mask=observed,
    )  # fmt: skip

    def variances(weights: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Gaussian]:
        changed = ForceField(eqx.tree_at(lambda p: p.readout, potential, weights), built)
        distribution = stage.distribution(changed, graph, labels)
        variance = distribution.variance()
        forces = partition.sum(jnp.sum(variance.forces * observed[:, None], axis=1))
        return (variance.energy, forces), distribution

    (of_energies, of_forces), distribution = jax.jit(jax.jacrev(variances, has_aux=True))(potential.readout)
    components = 3 * np.asarray(partition.sum(jnp.asarray(observed, float)))
    return distribution, np.asarray(of_energies), np.asarray(of_forces), components


@pytest.mark.parametrize("gamma", ["atom", "force"])
def test_the_level_learns_from_forces_as_much_as_it_is_told_to(gamma: str) -> None:
    """Of the derivatives of forces a share reaches ρ, and all of them γ; predictions and energies are as they were."""
    config = ColoredNoise.Config.model_validate({"gamma": gamma})
    usual, of_energies, of_forces, components = probed("likelihood", config)
    assert (np.abs(of_forces[components > 0][:, :, [RHO, GAMMA]]).max(axis=1) > 1e-3).all()
    shares = {"evenly": 1 / np.maximum(components, 1), "energies": np.zeros_like(components)}
    for level_learns, share in shares.items():
        distribution, same, less, _ = probed(level_learns, config)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), distribution, usual)
        np.testing.assert_allclose(same, of_energies, rtol=1e-10)
        np.testing.assert_allclose(less[..., GAMMA], of_forces[..., GAMMA], rtol=1e-10)
        np.testing.assert_allclose(less[..., RHO], share[:, None] * of_forces[..., RHO], rtol=1e-10, atol=1e-12)


def test_white_noise_learns_as_ever() -> None:
    usual, other = probed("likelihood", WhiteNoise.Config()), probed("energies", WhiteNoise.Config())
    for ours, theirs in zip(usual[1:], other[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"joint": True, "level_learns": "evenly"}, "level_learns must be likelihood, but is evenly"),
        ({"joint": True, "energy_weight": 2.0}, "remove energy_weight, force_weight and reduction"),
        ({"reduction": "averages", "level_learns": "evenly"}, "average over force components twice"),
    ],
)
def test_terms_that_there_are_not_cannot_be_weighted(choices: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NLLStage.model_validate({"steps": 1, **choices})


@pytest.mark.parametrize("joint", [False, True])
def test_a_stage_minimises_the_likelihood_with_its_degrees_of_freedom(joint: bool) -> None:
    gaussian = random_gaussian(20)
    draw = gaussian.sample(key=jax.random.key(21))
    labels = Labels.from_arrays(gaussian.partition, 3, energy=draw.energy, forces=draw.forces)
    stage = NLLStage(steps=1, joint=joint, degrees_of_freedom=3.1)
    if joint:
        expected = joint_nll(gaussian, labels, 3.1).mean()
    else:
        terms = marginal_nll(gaussian, labels, 3.1)
        expected = (terms.energy.sum() + terms.forces.sum()) / len(SIZES)
    np.testing.assert_allclose(stage.loss(gaussian, labels, jnp.zeros(())).value, expected, rtol=1e-12)
    np.testing.assert_allclose(stage.criterion(gaussian, labels).value, expected, rtol=1e-12)
    normal = NLLStage(steps=1, joint=joint).loss(gaussian, labels, jnp.zeros(())).value
    assert normal != pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("dof", [2.0, 1e7])
def test_degrees_of_freedom_have_bounds(dof: float) -> None:
    with pytest.raises(ValidationError, match="degrees_of_freedom"):
        NLLStage(steps=1, degrees_of_freedom=dof)


def test_stages_that_learn_noise_have_the_choice() -> None:
    assert BetaNLLStage(steps=1, level_learns="evenly").trains_noise


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "squared_error"},
        {"kind": "nll", "energy_weight": 3.0, "force_weight": 0.5},
        {"kind": "nll", "joint": True},
        {"kind": "nll", "joint": True, "degrees_of_freedom": 4.0},
    ],
)
def test_weights_of_structures_multiply_their_terms(settings: dict[str, object]) -> None:
    """The loss is the weighted sum of the losses of single structures, over the number of structures."""
    stage: AbstractStage = TypeAdapter(Stage).validate_python({"steps": 1, **settings})
    gaussian = random_gaussian(20)
    draw = gaussian.sample(key=jax.random.key(21))
    labels = Labels.from_arrays(gaussian.partition, 3, energy=draw.energy, forces=draw.forces)
    owner = np.asarray(gaussian.partition.structure_index)

    def loss(weight: jax.Array | None, alone: int | None = None) -> float:
        seen = labels if alone is None else only(labels, owner, alone)
        return float(stage.loss(gaussian, replace(seen, weight=weight), jnp.ones(())).value)

    weights = np.linspace(0.2, 3.0, len(SIZES))
    single = np.array([loss(None, alone=structure) for structure in range(len(SIZES))])
    assert loss(None) == pytest.approx(single.mean(), rel=1e-10)
    assert loss(jnp.asarray(weights)) == pytest.approx((weights * single).mean(), rel=1e-10)
    assert loss(jnp.ones(len(SIZES))) == loss(None)


def test_weights_of_structures_multiply_averages() -> None:
    gaussian = random_gaussian(20)
    atoms, count = gaussian.partition.num_atoms, len(SIZES)
    labels = Labels.from_arrays(gaussian.partition, 3, energy=np.zeros(count), forces=np.ones((atoms, 3)))
    stage = SquaredErrorStage(steps=1, reduction="averages")
    weights = np.linspace(0.2, 3.0, count)
    energies = 0.5 * (np.asarray(labels.energy) - np.asarray(gaussian.mean.energy)) ** 2
    forces = 0.5 * (np.asarray(labels.forces) - np.asarray(gaussian.mean.forces)) ** 2
    owner = np.asarray(gaussian.partition.structure_index)
    real = owner < count
    expected = (weights * energies).mean() + (weights[owner[real], None] * forces[real]).mean()
    found = stage.loss(gaussian, replace(labels, weight=jnp.asarray(weights)), jnp.ones(()))
    assert float(found.value) == pytest.approx(expected, rel=1e-10)


def only(labels: Labels, owner: np.ndarray, structure: int) -> Labels:
    """Labels of one structure."""
    mask = np.arange(len(labels.energy)) == structure
    return replace(labels, energy_mask=jnp.asarray(mask), forces_mask=jnp.asarray(owner == structure))
