"""PaiNN: symmetries, derivatives, smoothness, additivity and degenerate structures, and a naive implementation.

With random weights everywhere (many arrays start at zero, where tests would see nothing), and briefly trained.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Array, PyTree
from pydantic import ValidationError

from huefield import modelfile
from huefield.core import Graph, pairwise
from huefield.core.structure import Structure
from huefield.data.batching import Batch, BatchShape, make_batch
from huefield.data.bundled import load_bundled
from huefield.forcefield import Ensemble, ForceField
from huefield.noise import ColoredNoise
from huefield.potentials import PaiNN, differentiate, painn
from huefield.potentials.painn import NORM_SOFTENING, Message
from huefield.testing import cast_floats
from huefield.training.likelihoods import marginal_nll, structure_mean

CUTOFF = 3.0
SHAPE = BatchShape(3, 24, 40)
"""One for nearly all tests, so that they share compiled programs."""
CONFIG = PaiNN.Config(elements=("H", "C", "N", "O"), features=8, layers=2, radial_functions=6, cutoff_angstrom=CUTOFF)
NOISE = ColoredNoise.Config(gamma="atom")
VECTORS = 2
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
OPEN = np.zeros((3, 3)), np.zeros(3, bool)
CELL = np.array([[2.4, 0.0, 0.0], [0.8, 2.7, 0.0], [-0.5, 0.6, 2.9]])
"""Skewed, and shorter than the cutoff."""
PERIODIC = CELL, np.ones(3, bool)


class Values(NamedTuple):
    """All that a potential with noise says about a batch."""

    energy: Array
    levels: Array
    raw: Array
    forces: Array
    level_gradients: Array
    vectors: Array

    def of_atoms(self, rows: np.ndarray, structure: int = 0) -> "Values":
        """Of one structure."""
        return Values(
            *(self.energy[structure], self.levels[:, structure], self.raw[rows]),
            *(self.forces[rows], self.level_gradients[:, rows], self.vectors[rows]),
        )

    def turned(self, matrix: np.ndarray) -> "Values":
        """With rows r of vectors replaced by r M."""
        forces, gradients, vectors = (np.asarray(x) @ matrix for x in (self.forces, self.level_gradients, self.vectors))
        return self._replace(forces=forces, level_gradients=gradients, vectors=vectors)


def values(member: ForceField, graph: Graph) -> Values:
    out = differentiate(member.potential, member.noise.levels, graph)
    assert out.vectors is not None
    return Values(out.energy, out.levels, out.raw, -out.energy_gradient, out.level_gradients, out.vectors)


evaluate = eqx.filter_jit(values)
atom_energies = eqx.filter_jit(lambda member, graph: member.potential(graph).energy)


@cache
def untrained() -> ForceField:
    """In float64, and the same in both precisions."""
    with jax.enable_x64(True):
        noise = NOISE.build()
        return ForceField(CONFIG.build(len(noise.raw_outputs), VECTORS, key=jax.random.key(0)), noise)


def randomised(tree: PyTree, seed: int = 0) -> PyTree:
    """With random numbers added to every array."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + jnp.asarray(0.1 * rng.normal(size=x.shape), x.dtype) if eqx.is_inexact_array(x) else x, tree
    )


@cache
def training() -> tuple[ForceField, np.ndarray]:
    """A force field, and the losses on the way: forty steps on a few bundled molecules.

    The vector readout, which no loss sees, is made random before.
    """
    with jax.enable_x64(True):
        block = load_bundled("train").select(load_bundled("train").sizes <= 5)
        structures = [block[i] for i in range(0, len(block), len(block) // 8)][:8]
        offset = np.array([s.energy for s in structures])
        batch = make_batch(structures, CUTOFF, [], energy_offset=offset)
        readout = randomised(untrained().potential.readout, 5)
        start = eqx.tree_at(
            lambda m: (m.potential.readout.gates, m.potential.readout.vectors),
            untrained(),
            (readout.gates, readout.vectors),
        )
        return _fitted(start, batch)


@eqx.filter_jit
def _fitted(start: ForceField, batch: Batch) -> tuple[ForceField, Array]:
    optimiser = optax.adam(1e-2)
    weights, static = eqx.partition(start, eqx.is_inexact_array)

    def step(state: PyTree, _: None) -> tuple[PyTree, Array]:
        def loss(w: PyTree) -> Array:
            terms = marginal_nll(eqx.combine(w, static)(batch.graph), batch.labels)
            return structure_mean(terms, batch.labels, batch.graph.partition).value

        value, gradient = jax.value_and_grad(loss)(state[0])
        updates, memory = optimiser.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), memory), value

    (weights, _), losses = jax.lax.scan(step, (weights, optimiser.init(weights)), length=40)
    return eqx.combine(weights, static), losses


@pytest.fixture(params=["float64", "float32"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both precisions."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture(params=["random", "trained"])
def member64(request: pytest.FixtureRequest) -> ForceField:
    """In float64, whatever the test runs in."""
    with jax.enable_x64(True):
        return randomised(untrained()) if request.param == "random" else training()[0]


@pytest.fixture
def member(member64: ForceField, precision: str) -> ForceField:
    """In both precisions."""
    return cast_floats(member64, precision)


def molecule(atoms: int = 6, seed: int = 0) -> Structure:
    """A chain of atoms 1.0 to 1.4 Å apart, some of them out of each other's reach."""
    rng = np.random.default_rng(seed)
    positions = np.zeros((atoms, 3))
    for i in range(1, atoms):
        while True:
            step = rng.normal(size=3) * [1.0, 1.0, 0.7] + [0.5, 0, 0]
            positions[i] = positions[i - 1] + rng.uniform(1.0, 1.4) * step / np.linalg.norm(step)
            if np.linalg.norm(positions[:i] - positions[i], axis=1).min() > 0.9:
                break
    return Structure(rng.choice([1, 6, 7, 8], atoms).astype(np.uint8), positions)


def crystal() -> Structure:
    """Three different atoms."""
    fractional = np.array([[0.1, 0.1, 0.05], [0.55, 0.6, 0.3], [0.2, 0.45, 0.7]])
    return Structure(np.array([6, 1, 8], np.uint8), fractional @ CELL, *PERIODIC)


def atom(number: int = 8) -> Structure:
    return Structure(np.array([number], np.uint8), np.zeros((1, 3)))


def graph_of(*structures: Structure, shape: BatchShape = SHAPE, cutoff: float = CUTOFF) -> Graph:
    graph = make_batch(list(structures), cutoff, [shape]).graph
    assert graph.neighbours is not None
    assert graph.neighbours.index.shape == (shape.atoms, shape.slots), "the shape does not hold the batch"
    return graph


def moved(graph: Graph, positions: Array) -> Graph:
    return eqx.tree_at(lambda g: g.positions, graph, positions)


def alone(member: ForceField, structure: Structure) -> Values:
    """The values of one structure."""
    return evaluate(member, graph_of(structure)).of_atoms(np.arange(len(structure)))


def assert_close(got: Values, expected: Values, tolerance: float) -> None:
    """Relative to the largest entry of each array, or to one if all are smaller."""
    for name, one, other in zip(Values._fields, got, expected, strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        limit = tolerance * max(1.0, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=name)


def orthogonal(determinant: int, seed: int = 3) -> np.ndarray:
    matrix = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return matrix * np.array([1, 1, determinant * np.sign(np.linalg.det(matrix))])


def test_the_values_that_the_tests_look_at_are_not_small(member64: ForceField, x64: None) -> None:
    """Nor so large that tolerances mean nothing."""
    for structure in (molecule(), crystal()):
        for name, array in zip(Values._fields, alone(member64, structure), strict=True):
            assert 0.005 < np.abs(array).max() < 300, name
            assert np.ptp(array) > 0 or np.size(array) == 1, name


def test_training_has_changed_the_model() -> None:
    losses = np.asarray(training()[1])
    assert losses[-5:].mean() < losses[0] - 1
    assert np.isfinite(losses).all()


class TestSymmetry:
    @pytest.mark.parametrize("determinant", [1, -1])
    @pytest.mark.parametrize("structure", [molecule(), crystal()], ids=["molecule", "crystal"])
    def test_rotations_and_reflections(
        self, member: ForceField, precision: str, structure: Structure, determinant: int
    ) -> None:
        matrix = orthogonal(determinant)
        turned = Structure(
            structure.atomic_numbers, structure.positions @ matrix, structure.cell @ matrix, structure.pbc
        )
        assert_close(alone(member, turned), alone(member, structure).turned(matrix), TOLERANCE[precision])

    def test_translation(self, member: ForceField, precision: str) -> None:
        graph = graph_of(molecule(), crystal())
        shifted = moved(graph, graph.positions + jnp.array([0.7, -1.3, 2.1]))
        assert_close(evaluate(member, shifted), evaluate(member, graph), TOLERANCE[precision])

    @pytest.mark.parametrize("structure", [molecule(), crystal()], ids=["molecule", "crystal"])
    def test_permutation(self, member: ForceField, precision: str, structure: Structure) -> None:
        order = np.roll(np.random.default_rng(0).permutation(len(structure)), 1)
        assert (order != np.arange(len(structure))).any()
        shuffled = Structure(structure.atomic_numbers[order], structure.positions[order], structure.cell, structure.pbc)
        got = evaluate(member, graph_of(shuffled)).of_atoms(np.argsort(order))
        assert_close(got, alone(member, structure), TOLERANCE[precision])


def differences(function: Callable[[float], np.ndarray | Array], step: float) -> np.ndarray:
    """dy/dx at x = 0 of numbers y, from four points."""
    ends = {n: np.asarray(function(n * step)) for n in (-2, -1, 1, 2)}
    return (8 * (ends[1] - ends[-1]) - (ends[2] - ends[-2])) / (12 * step)


@pytest.mark.usefixtures("x64")
class TestDerivatives:
    @pytest.mark.parametrize("structure", [molecule(), crystal()], ids=["molecule", "crystal"])
    def test_forces_and_noise_gradients_are_those_of_finite_differences(
        self, member64: ForceField, structure: Structure
    ) -> None:
        graph, count = graph_of(structure), len(structure)

        def along(amount: float) -> Values:
            return evaluate(member64, moved(graph, graph.positions.at[row, axis].add(amount)))

        exact = evaluate(member64, graph)
        expected = {"forces": np.zeros((count, 3)), "level_gradients": np.zeros((1, count, 3))}
        for row, axis in np.ndindex(count, 3):
            slope = differences(lambda x: np.r_[along(x).energy[0], along(x).levels[:, 0]], 1e-3)
            expected["forces"][row, axis], expected["level_gradients"][:, row, axis] = -slope[0], slope[1]
        for name, found in expected.items():
            got = getattr(exact, name)[..., :count, :]
            np.testing.assert_allclose(got, found, rtol=1e-6, atol=1e-7 * np.abs(found).max(), err_msg=name)

    def test_parameter_gradients_of_a_loss_on_gradients_are_those_of_finite_differences(
        self, member64: ForceField
    ) -> None:
        graph = graph_of(molecule(), crystal())
        weights, static = eqx.partition(member64, eqx.is_inexact_array)
        value, gradient = loss_and_gradient(weights, static, graph)
        assert np.isfinite(value)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            direction = jax.tree.map(lambda w, rng=rng: jnp.asarray(rng.normal(size=w.shape)), weights)

            def along(amount: float, direction: PyTree = direction) -> Array:
                ahead = jax.tree.map(lambda w, v: w + amount * v, weights, direction)
                return loss_and_gradient(ahead, static, graph)[0]

            slope = differences(along, 1e-4)
            expected = sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
            np.testing.assert_allclose(slope, expected, rtol=1e-6)

    def test_the_gradient_reaches_every_parameter(self, member64: ForceField) -> None:
        weights, static = eqx.partition(member64, eqx.is_inexact_array)
        _, gradient = loss_and_gradient(weights, static, graph_of(molecule(), crystal()))
        silent = [
            jax.tree_util.keystr(path)
            for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)
            if np.abs(leaf).max() < 1e-8
        ]
        assert silent == []


def loss(weights: PyTree, static: PyTree, graph: Graph) -> Array:
    """Of everything, quadratic and not."""
    member = eqx.combine(weights, static)
    out = differentiate(member.potential, member.noise.levels, graph)
    inside = graph.partition.atom_mask[:, None]
    force_var = jnp.where(inside, member.noise.covariance(out, graph).diagonal.forces, 1.0)
    scalars = jnp.sum(out.energy**2) + jnp.sum(jnp.sin(out.levels)) + jnp.sum(jnp.log(force_var))
    gradients = jnp.sum(jnp.sin(out.energy_gradient) + out.energy_gradient**2) + jnp.sum(out.level_gradients**2)
    return scalars + gradients + jnp.sum(jnp.where(inside[..., None], out.vectors, 0.0) ** 2)


loss_and_gradient = eqx.filter_jit(jax.value_and_grad(loss))


@eqx.filter_jit
def hessians(member: ForceField, graph: Graph) -> tuple[Array, Array]:
    """Derivatives of the forces and noise gradients of the first four atoms by their positions."""

    def gradients(positions: Array) -> tuple[Array, Array]:
        fixed = graph.positions[4:]
        out = values(member, moved(graph, jnp.concatenate([positions, fixed])))
        return out.forces[:4], out.level_gradients[0, :4]

    return jax.jacrev(gradients)(graph.positions[:4])


@pytest.mark.usefixtures("x64")
class TestCutoff:
    @staticmethod
    def crossing(offset: float) -> Graph:
        """Four atoms; the distance of the first and the last is the cutoff and the offset."""
        positions = np.array([[0.0, 0, 0], [1.1, 0.3, 0], [1.7, 1.4, 0.2], [2.4, 1.5, 1.0]])
        positions[3] *= (CUTOFF + offset) / np.linalg.norm(positions[3])
        return graph_of(Structure(np.array([6, 1, 7, 8], np.uint8), positions))

    def test_nothing_jumps(self, member64: ForceField) -> None:
        inside, outside = (self.crossing(offset) for offset in (-1e-9, 1e-9))
        assert int(inside.neighbours.mask.sum()) == int(outside.neighbours.mask.sum()) + 2
        got, expected = (evaluate(member64, graph) for graph in (inside, outside))
        for name, one, other in zip(Values._fields, got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-8 * max(1.0, np.abs(other).max()), err_msg=name)

    def test_second_derivatives_do_not_jump(self, member64: ForceField) -> None:
        inside, outside = (hessians(member64, self.crossing(offset)) for offset in (-1e-9, 1e-9))
        for one, other in zip(inside, outside, strict=True):
            assert np.abs(one).max() > 0.01
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(1.0, np.abs(other).max()))
            symmetric = np.asarray(one).reshape(12, 12)
            np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-9 * max(1.0, np.abs(symmetric).max()))

    def test_a_graph_of_a_smaller_cutoff_is_refused(self, member64: ForceField) -> None:
        graph = graph_of(molecule(), cutoff=CUTOFF - 0.1)
        with pytest.raises(ValueError, match=r"neighbours within 2\.9 Å, but the potential looks 3 Å far"):
            member64.potential(graph)

    def test_a_graph_without_neighbours_is_refused(self, member64: ForceField) -> None:
        graph = graph_of(molecule())
        with pytest.raises(ValueError, match="no neighbours"):
            member64.potential(Graph(graph.positions, graph.atomic_numbers, graph.partition))

    def test_a_graph_of_a_larger_cutoff_gives_the_same(self, member64: ForceField) -> None:
        larger = graph_of(molecule(), crystal(), cutoff=CUTOFF + 0.6, shape=BatchShape(3, 24, 60))
        exact = graph_of(molecule(), crystal())
        assert larger.neighbours.mask.sum() > exact.neighbours.mask.sum()
        assert_close(evaluate(member64, larger), evaluate(member64, exact), 1e-12)


class TestAdditivity:
    def test_distant_molecules_do_not_see_each_other(self, member: ForceField, precision: str) -> None:
        first, second = molecule(6, 0), molecule(5, 1)
        both = Structure(
            np.concatenate([first.atomic_numbers, second.atomic_numbers]),
            np.concatenate([first.positions, second.positions + np.array([40.0, 0, 0])]),
        )
        together = evaluate(member, graph_of(both))
        singles = [alone(member, s) for s in (first, second)]
        np.testing.assert_allclose(together.energy[0], sum(s.energy for s in singles), rtol=TOLERANCE[precision])
        for name in ("raw", "forces", "vectors"):
            expected = np.concatenate([getattr(s, name) for s in singles])
            limit = TOLERANCE[precision] * max(1, np.abs(expected).max())
            np.testing.assert_allclose(getattr(together, name)[:11], expected, atol=limit, err_msg=name)

    @pytest.mark.parametrize("repeats", [(2, 1, 1), (2, 2, 2)])
    def test_supercells(self, member: ForceField, precision: str, repeats: tuple[int, int, int]) -> None:
        cell = crystal()
        offsets = np.array(list(np.ndindex(*repeats))) @ CELL
        large = Structure(
            np.tile(cell.atomic_numbers, len(offsets)),
            np.concatenate([cell.positions + offset for offset in offsets]),
            CELL * np.array(repeats)[:, None],
            cell.pbc,
        )
        small, many = alone(member, cell), evaluate(member, graph_of(large))
        energies = [atom_energies(member, graph_of(s))[: len(s)] for s in (cell, large)]
        np.testing.assert_allclose(energies[1], np.tile(energies[0], len(offsets)), atol=TOLERANCE[precision])
        for name in ("raw", "forces", "vectors"):
            expected = np.concatenate([getattr(small, name)] * len(offsets))
            limit = TOLERANCE[precision] * max(1, np.abs(expected).max())
            np.testing.assert_allclose(getattr(many, name)[: 3 * len(offsets)], expected, atol=limit, err_msg=name)
        np.testing.assert_allclose(many.energy[0], len(offsets) * small.energy, rtol=TOLERANCE[precision])

    def test_wrapped_unwrapped_and_shifted_atoms(self, member: ForceField, precision: str) -> None:
        cell = crystal()
        expected = alone(member, cell)
        for shifts in ([[0, 0, 0], [1, 0, 0], [0, -2, 1]], [[3, 3, 3]] * 3, [[0, 0, 1], [0, 0, 0], [-5, 4, 2]]):
            away = Structure(cell.atomic_numbers, cell.positions + np.array(shifts) @ CELL, *PERIODIC)
            assert_close(alone(member, away), expected, TOLERANCE[precision])

    def test_a_structure_in_a_batch_is_as_alone(self, member: ForceField, precision: str) -> None:
        self.check_batch(member, SHAPE, TOLERANCE[precision])

    def test_padding_does_not_matter(self, member64: ForceField, x64: None) -> None:
        self.check_batch(member64, BatchShape(5, 37, 50), TOLERANCE["float64"])

    @staticmethod
    def check_batch(member: ForceField, shape: BatchShape, tolerance: float) -> None:
        structures, first = [molecule(), crystal(), molecule(7, 2)], 0
        together = evaluate(member, graph_of(*structures, shape=shape))
        for index, structure in enumerate(structures):
            rows = np.arange(first, first + len(structure))
            assert_close(together.of_atoms(rows, index), alone(member, structure), tolerance)
            first += len(structure)
        assert np.all(together.forces[first:] == 0)
        assert np.all(together.level_gradients[:, first:] == 0)
        assert all(np.isfinite(array).all() for array in together)


class TestDegenerateStructures:
    STRUCTURES = (
        ("an isolated atom", atom()),
        ("an atom in a small cell", Structure(np.array([6], np.uint8), np.zeros((1, 3)), *PERIODIC)),
        ("two atoms in one place", Structure(np.array([6, 6], np.uint8), np.ones((2, 3)))),
        (
            "two of three atoms in one place",
            Structure(np.array([6, 1, 8], np.uint8), np.array([[0.0, 0, 0], [1, 0.5, 0], [0, 0, 0]])),
        ),
    )

    @pytest.mark.parametrize("structure", [s for _, s in STRUCTURES], ids=[name for name, _ in STRUCTURES])
    def test_values_and_parameter_gradients_are_finite(
        self, member: ForceField, precision: str, structure: Structure
    ) -> None:
        graph = graph_of(structure)
        assert all(np.isfinite(array).all() for array in evaluate(member, graph))
        weights, static = eqx.partition(member, eqx.is_inexact_array)
        value, gradient = loss_and_gradient(weights, static, graph)
        bad = [
            jax.tree_util.keystr(path)
            for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)
            if not np.isfinite(leaf).all()
        ]
        assert bad == []
        assert np.isfinite(value)

    def test_an_isolated_atom_feels_no_force(self, member64: ForceField, x64: None) -> None:
        assert np.all(alone(member64, atom()).forces == 0)

    def test_an_atom_sees_its_own_images(self, member64: ForceField, x64: None) -> None:
        """No force by symmetry, but another energy than alone."""
        periodic = alone(member64, self.STRUCTURES[1][1])
        assert abs(periodic.energy - alone(member64, atom(6)).energy) > 1e-4
        np.testing.assert_allclose(periodic.forces, 0, atol=1e-9)


class TestElements:
    def test_a_strange_element_is_named(self) -> None:
        potential = untrained().potential
        potential.require_fit(graph_of(molecule(), crystal()))
        with pytest.raises(ValueError, match=r"contain F, S, but the potential was built for H, C, N, O: leave"):
            potential.require_fit(graph_of(atom(16), atom(9), molecule()))

    def test_a_strange_element_has_no_energy_rather_than_a_wrong_one(self, member: ForceField, precision: str) -> None:
        dimer = Structure(np.array([6, 9], np.uint8), np.array([[0.0, 0, 0], [1.3, 0, 0]]))
        assert np.isnan(evaluate(member, graph_of(dimer)).energy[0])
        assert np.isnan(evaluate(member, graph_of(atom(9))).energy[0])

    def test_elements_differ(self, member64: ForceField, x64: None) -> None:
        energies = [float(alone(member64, atom(z)).energy) for z in (1, 6, 7, 8)]
        assert np.abs(np.diff(sorted(energies))).min() > 1e-4

    def test_unknown_elements_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="'Hh' is no element; write symbols such as 'H'"):
            PaiNN.Config(elements=("H", "Hh"))
        with pytest.raises(ValidationError, match="'X' is no element"):
            PaiNN.Config(elements=("X",))
        with pytest.raises(ValueError, match="name them"):
            PaiNN.Config(elements=()).build(0, key=jax.random.key(0))

    def test_elements_are_sorted_and_unique(self) -> None:
        assert PaiNN.Config(elements=("O", "H", "C", "O")).elements == ("H", "C", "O")
        assert PaiNN.Config(elements=("O", "H")) == PaiNN.Config(elements=("H", "O", "H"))

    def test_an_unknown_key_is_refused_and_the_known_ones_are_listed(self) -> None:
        with pytest.raises(ValidationError, match=r"(?s)feature.*elements.*features.*layers.*radial_functions.*cutoff"):
            PaiNN.Config(elements=("H",), feature=3)  # type: ignore[call-arg]


class TestFirstLayer:
    @pytest.mark.parametrize(("count", "special"), [(painn.MANY_ELEMENTS - 1, True), (painn.MANY_ELEMENTS, False)])
    def test_few_elements_take_the_short_way(self, count: int, special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        used = []
        original = Message.from_elements
        monkeypatch.setattr(Message, "from_elements", lambda *x: used.append(1) or original(*x))
        config = CONFIG.model_copy(update={"elements": ("H", "C", "N", "O", "F", "Si", "P", "S")[:count], "layers": 1})
        jax.eval_shape(config.build(0, key=jax.random.key(0)), graph_of(molecule()))
        assert bool(used) == special

    @pytest.mark.usefixtures("x64")
    def test_the_message_from_elements_is_the_general_one(self, member64: ForceField) -> None:
        potential, graph = member64.potential, graph_of(molecule(), crystal())
        pairs, elements = potential._pairs(graph), potential._one_hot(graph.atomic_numbers)
        scalars = elements @ potential.embedding
        zero = jnp.zeros_like(scalars)
        message: Message = potential.messages[0]
        special = eqx.filter_jit(message.from_elements)(potential.embedding, elements, pairs)
        general = eqx.filter_jit(message)(scalars, (zero, zero, zero), pairs)
        for one, other in zip(jax.tree.leaves(special), jax.tree.leaves(general), strict=True):
            assert np.abs(other).max() > 1e-3
            np.testing.assert_allclose(one, other, atol=1e-12 * max(1.0, np.abs(other).max()))

    @pytest.mark.usefixtures("x64")
    def test_both_ways_have_the_same_derivatives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        member, graph = randomised(untrained()), graph_of(molecule(), crystal())
        short = evaluate(member, graph)
        monkeypatch.setattr(painn, "MANY_ELEMENTS", 0)
        monkeypatch.delattr(Message, "from_elements")
        assert_close(eqx.filter_jit(lambda m, g: values(m, g))(member, graph), short, 1e-12)

    @pytest.mark.usefixtures("x64")
    def test_both_ways_agree_for_many_elements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = CONFIG.model_copy(update={"elements": ("H", "C", "N", "O", "F", "Si", "P", "S")})
        assert len(config.elements) >= painn.MANY_ELEMENTS
        potential = randomised(config.build(2, VECTORS, key=jax.random.key(1)))
        structure = molecule()
        other = Structure(np.array([1, 16, 9, 15, 14, 8], np.uint8), structure.positions)
        graph = graph_of(other, crystal())
        general = eqx.filter_jit(lambda p, g: p(g))(potential, graph)
        monkeypatch.setattr(painn, "MANY_ELEMENTS", 100)
        short = eqx.filter_jit(lambda p, g: p(g))(potential, graph)
        for one, two in zip(jax.tree.leaves(short), jax.tree.leaves(general), strict=True):
            assert np.isfinite(two).all()
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-12 * max(1.0, np.abs(two).max()))
        energy, raw, _ = naive(potential, other)
        np.testing.assert_allclose(general.energy[:6], energy, rtol=0, atol=1e-10)
        np.testing.assert_allclose(general.raw[:6], raw, rtol=0, atol=1e-10)


def naive(potential: PaiNN, structure: Structure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Energies, raw outputs and vectors of the atoms, [S21] Eqs. (7) to (10) pair by pair."""

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def linear(layer: PyTree, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(layer.weight) + (0 if layer.bias is None else np.asarray(layer.bias))

    config, count = potential.config, len(structure)
    cutoff, kinds = config.cutoff_angstrom, [config.elements.index(_symbol(z)) for z in structure.atomic_numbers]
    reach = range(-3, 4) if structure.pbc.any() else range(1)
    images = [np.array(n) @ structure.cell for n in np.stack(np.meshgrid(reach, reach, reach), -1).reshape(-1, 3)]
    pairs = []
    for i in range(count):
        for j in range(count):
            for image in images:
                vector = structure.positions[j] + image - structure.positions[i]
                r = np.sqrt(vector @ vector)
                if (i != j or image.any()) and r < cutoff:
                    x = r / cutoff
                    sines = [
                        np.sqrt(2 / cutoff) * np.sin(n * np.pi * x) / r for n in range(1, config.radial_functions + 1)
                    ]
                    basis = np.array([*sines, 1.0]) * (1 - 10 * x**3 + 15 * x**4 - 6 * x**5)
                    pairs.append((i, j, vector / r, basis))

    s = np.array([np.asarray(potential.embedding)[z] for z in kinds])
    v = np.zeros((count, 3, config.features))
    for message, update in zip(potential.messages, potential.updates, strict=True):
        w = [np.asarray(f) for f in message.filters]
        ds, dv = np.zeros_like(s), np.zeros_like(v)
        for i, j, direction, basis in pairs:
            hidden = silu(linear(message.hidden, s[j]))
            ds[i] += linear(message.scalar, hidden) * (basis @ w[0])
            for axis in range(3):
                dv[i, axis] += linear(message.direction, hidden) * (basis @ w[1]) * direction[axis]
                if message.vector is not None:
                    dv[i, axis] += v[j, axis] * linear(message.vector, hidden) * (basis @ w[2])
        s, v = s + ds, v + dv
        for i in range(count):
            left, right = v[i] @ np.asarray(update.left.weight), v[i] @ np.asarray(update.right.weight)
            norm = np.sqrt((right**2).sum(0) + NORM_SOFTENING**2)
            hidden = silu(linear(update.from_scalars, s[i]) + linear(update.from_norms, norm))
            s[i] = s[i] + linear(update.scalar, hidden) + linear(update.product, hidden) * (left * right).sum(0)
            if update.vector is not None:
                v[i] = v[i] + linear(update.vector, hidden) * left
    read = potential.readout
    hidden = silu(linear(read.hidden, s))
    scale, shift = (np.asarray(x)[kinds] for x in (potential.scale_ev, potential.shift_ev))
    vectors = np.swapaxes(v @ np.asarray(read.vectors.weight), 1, 2) * linear(read.gates, hidden)[..., None]
    return linear(read.energy, hidden)[:, 0] * scale + shift, linear(read.raw, hidden), vectors


def _symbol(number: int) -> str:
    return next(symbol for symbol, z in number_of_symbol.items() if z == number)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("structure", [molecule(), crystal(), atom()], ids=["molecule", "crystal", "atom"])
def test_outputs_are_those_of_a_naive_implementation(member64: ForceField, structure: Structure) -> None:
    got = alone(member64, structure)
    energy, raw, vectors = naive(member64.potential, structure)
    per_atom = atom_energies(member64, graph_of(structure))[: len(structure)]
    for one, other in ((per_atom, energy), (got.raw, raw), (got.vectors, vectors)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * max(1.0, np.abs(other).max()))


@pytest.mark.usefixtures("x64")
def test_blocks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    member, graph = randomised(untrained()), graph_of(molecule(), crystal())
    whole = evaluate(member, graph)
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    assert_close(eqx.filter_jit(lambda m, g: values(m, g))(member, graph), whole, 1e-12)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_atom_outputs_are_differentiated_without_a_scatter(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left are the sums over the atoms of a structure, outside of the potential."""
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    graph = graph_of(molecule(), crystal())
    potential, static = eqx.partition(cast_floats(untrained().potential, "float32"), eqx.is_inexact_array)

    def scalar(weights: PyTree, positions: Array) -> Array:
        atoms = eqx.combine(weights, static)(moved(graph, positions))
        return jnp.sum(atoms.energy**2) + jnp.sum(atoms.raw**2) + jnp.sum(atoms.vectors**2)

    def of_gradient(weights: PyTree, positions: Array) -> Array:
        return jnp.sum(jax.grad(scalar, argnums=1)(weights, positions) ** 2)

    function = (scalar, jax.grad(scalar, argnums=(0, 1)), jax.grad(of_gradient, argnums=(0, 1)))[order]
    traced = jax.jit(function).trace(potential, graph.positions)
    assert "scan" in str(traced.jaxpr)
    assert "scatter" not in str(traced.jaxpr)
    assert "scatter" not in traced.lower().as_text()


def test_before_training_there_is_no_noise_and_no_vector(precision: str) -> None:
    potential = CONFIG.build(3, VECTORS, key=jax.random.key(2))
    atoms = eqx.filter_jit(potential)(graph_of(molecule(), crystal()))
    assert atoms.raw.shape == (SHAPE.atoms, 3)
    assert atoms.vectors.shape == (SHAPE.atoms, VECTORS, 3)
    assert atoms.energy.dtype == atoms.raw.dtype == atoms.vectors.dtype == precision
    np.testing.assert_array_equal(atoms.raw, 0)
    np.testing.assert_array_equal(atoms.vectors, 0)
    assert np.abs(atoms.energy[:9]).min() > 0


def ensemble() -> Ensemble:
    """Two random members."""
    config = ForceField.Config(potential=CONFIG, noise=NOISE)
    return Ensemble.from_members([randomised(config.build(key=jax.random.key(m)), m) for m in range(2)])


def test_a_model_file_keeps_the_predictions(tmp_path: Path) -> None:
    model, graph = ensemble(), graph_of(molecule(), crystal())
    modelfile.save(model, tmp_path / "model.huefield")
    loaded = modelfile.load(tmp_path / "model.huefield")
    assert loaded.members.potential.config == CONFIG
    before, after = model.predict(graph), loaded.predict(graph)
    assert np.abs(before.energy[:2]).min() > 1e-3
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("x64")
def test_members_side_by_side_are_those_one_after_the_other() -> None:
    members, graph = [randomised(untrained(), seed) for seed in range(2)], graph_of(molecule(), crystal())
    stacked = Ensemble.from_members(members).members
    together = eqx.filter_jit(eqx.filter_vmap(values, in_axes=(eqx.if_array(0), None)))(stacked, graph)
    singles = [evaluate(member, graph) for member in members]
    assert abs(singles[0].energy[0] - singles[1].energy[0]) > 1e-2
    for index, single in enumerate(singles):
        assert_close(Values(*(array[index] for array in together)), single, 1e-10)
