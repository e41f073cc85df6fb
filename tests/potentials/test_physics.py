"""All potentials of atoms: symmetries, derivatives, smoothness, additivity and degenerate structures."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

from huefield.core import Graph
from huefield.core.structure import Structure
from huefield.data.batches.batching import BatchShape
from huefield.model.forcefield import ForceField
from huefield.potentials import differentiate
from tests.potentials.cases import (
    CELL,
    CUTOFF,
    PERIODIC,
    SHAPE,
    TOLERANCE,
    Values,
    alone,
    assert_close,
    atom,
    atom_energies,
    crystal,
    evaluate,
    graph_of,
    molecule,
    moved,
    orthogonal,
    values,
)


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

    @pytest.mark.slow
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
    return scalars + gradients


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
        inside, outside = (self.crossing(offset) for offset in (-1e-10, 1e-10))
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
        with pytest.raises(ValueError, match=r"neighbours within 2\.9 Å, but the cutoff of the potential is 3 Å"):
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
        for name in ("raw", "forces"):
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
        for name in ("raw", "forces"):
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
