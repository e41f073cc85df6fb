import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import EnergyForces, EnergyForcesStack, Graph, Labels, Partition
from tests.core.helpers import SIZES, padded_partition

EMPTY_IN_THE_MIDDLE = [2, 0, 3]


class TestPartition:
    def test_from_sizes_counts_every_structure_also_one_without_atoms(self) -> None:
        partition = Partition.from_sizes(EMPTY_IN_THE_MIDDLE)
        assert (partition.num_structures, partition.num_atoms) == (3, 5)
        np.testing.assert_array_equal(partition.structure_index, [0, 0, 2, 2, 2])
        assert np.all(partition.atom_mask)

    def test_last_structure_may_have_no_atoms(self) -> None:
        partition = Partition.from_sizes([1, 0])
        np.testing.assert_array_equal(partition.sum(jnp.array([5.0])), [5.0, 0.0])

    def test_batch_of_nothing_has_no_structures_and_no_atoms(self) -> None:
        partition = Partition.from_sizes([])
        assert (partition.num_structures, partition.num_atoms) == (0, 0)
        assert partition.sum(jnp.zeros((0, 3))).shape == (0, 3)

    def test_negative_size_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            Partition.from_sizes([2, -1])

    def test_sum_is_a_loop_over_structures(self, precision: str) -> None:
        partition = padded_partition()
        values = jnp.asarray(np.random.default_rng(0).normal(size=(partition.num_atoms, 3, 2)), float)
        got = jax.jit(Partition.sum)(partition, values)
        assert got.dtype == precision
        expected = [np.asarray(values)[partition.atoms_of(s)].sum(0) for s in range(len(SIZES))]
        np.testing.assert_allclose(got, expected, rtol=1e-6)

    def test_sum_over_a_structure_without_atoms_is_zero(self) -> None:
        partition = Partition.from_sizes(EMPTY_IN_THE_MIDDLE)
        np.testing.assert_array_equal(partition.sum(jnp.arange(1.0, 6.0)), [3.0, 0.0, 12.0])

    def test_nothing_on_padding_atoms_enters_a_sum(self) -> None:
        partition = padded_partition(padding=2)
        values = jnp.where(partition.atom_mask, 1.0, jnp.nan)
        np.testing.assert_array_equal(partition.sum(values), SIZES)

    def test_spread_gives_each_atom_the_value_of_its_structure_and_padding_zero(self) -> None:
        partition = padded_partition(padding=2)
        per_structure = jnp.array([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0]])
        got = jax.jit(Partition.spread)(partition, per_structure)
        expected = np.concatenate([np.repeat(per_structure, SIZES, axis=0), np.zeros((2, 2))])
        np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
    def test_spread_keeps_the_type(self, dtype: str) -> None:
        partition = padded_partition(padding=1)
        got = partition.spread(jnp.ones(3, dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, [1] * sum(SIZES) + [0])

    def test_spread_is_the_transpose_of_sum(self) -> None:
        partition = padded_partition()
        matrix = np.asarray(partition.sum(jnp.eye(partition.num_atoms)))
        transpose = np.asarray(partition.spread(jnp.eye(partition.num_structures)))
        np.testing.assert_array_equal(matrix.T, transpose)
        assert matrix.sum() == sum(SIZES)

    def test_atom_mask_is_false_for_padding_only(self) -> None:
        np.testing.assert_array_equal(padded_partition(padding=2).atom_mask, [True] * sum(SIZES) + [False] * 2)

    def test_atoms_of_are_the_rows_of_a_structure(self) -> None:
        partition = padded_partition(padding=2)
        rows = [partition.atoms_of(s).tolist() for s in range(len(SIZES))]
        assert rows == [[0, 1, 2], [3], [4, 5, 6, 7]]

    def test_atoms_need_not_be_sorted_by_structure(self) -> None:
        partition = Partition(jnp.array([1, 0, 2, 1, 0]), 2)
        assert [partition.atoms_of(s).tolist() for s in range(2)] == [[1, 4], [0, 3]]
        np.testing.assert_array_equal(partition.sum(jnp.array([1.0, 10.0, 100.0, 2.0, 20.0])), [30.0, 3.0])

    def test_structure_without_atoms_has_no_rows(self) -> None:
        assert Partition.from_sizes(EMPTY_IN_THE_MIDDLE).atoms_of(1).tolist() == []

    @pytest.mark.parametrize("structure", [-1, 3])
    def test_atoms_of_a_structure_that_is_not_there_is_an_error(self, structure: int) -> None:
        with pytest.raises(IndexError, match=rf"structure {structure} is out of range: the batch has 3"):
            padded_partition().atoms_of(structure)


class TestLabels:
    partition = padded_partition(padding=2)
    energy = np.array([-1.5, 2.0, 0.25])
    forces = np.arange(30.0).reshape(10, 3)

    def test_all_that_is_given_is_observed_but_padding(self, precision: str) -> None:
        labels = Labels.from_arrays(self.partition, 3, energy=self.energy, forces=self.forces)
        assert {str(labels.energy.dtype), str(labels.forces.dtype)} == {precision}
        np.testing.assert_array_equal(labels.energy, self.energy)
        np.testing.assert_array_equal(labels.energy_mask, [True] * 3)
        np.testing.assert_array_equal(labels.forces_mask, [True] * 8 + [False] * 2)
        np.testing.assert_array_equal(labels.forces[:8], self.forces[:8])
        np.testing.assert_array_equal(labels.forces[8:], 0.0)

    def test_nothing_given_is_nothing_observed(self) -> None:
        labels = Labels.from_arrays(self.partition, 3)
        assert labels.forces.shape == (10, 3)
        for array in jax.tree.leaves(labels):
            assert not np.any(array)

    def test_energies_alone_leave_the_forces_unobserved(self) -> None:
        labels = Labels.from_arrays(self.partition, 3, energy=[1, 2, 3])
        assert np.all(labels.energy_mask)
        assert not np.any(labels.forces_mask)
        assert jnp.issubdtype(labels.energy.dtype, jnp.floating)

    def test_what_a_mask_excludes_is_zero(self) -> None:
        mask = [True] * 4 + [False] * 6
        labels = Labels.from_arrays(self.partition, 3, forces=self.forces, forces_mask=mask)
        np.testing.assert_array_equal(labels.forces_mask, mask)
        np.testing.assert_array_equal(labels.forces[:4], self.forces[:4])
        np.testing.assert_array_equal(labels.forces[4:], 0.0)

    def test_mask_cannot_make_padding_observed(self) -> None:
        labels = Labels.from_arrays(self.partition, 3, forces=self.forces, forces_mask=np.ones(10))
        np.testing.assert_array_equal(labels.forces_mask, [True] * 8 + [False] * 2)

    def test_nan_under_a_false_mask_or_on_padding_is_fine(self) -> None:
        energy, forces = self.energy.copy(), self.forces.copy()
        energy[1] = forces[2, 0] = np.nan
        forces[9] = np.inf
        labels = Labels.from_arrays(
            self.partition,
            3,
            energy=energy,
            forces=forces,
            energy_mask=[True, False, True],
            forces_mask=[a != 2 for a in range(10)],
        )
        np.testing.assert_array_equal(labels.energy, [-1.5, 0.0, 0.25])
        assert np.isfinite(labels.forces).all()
        np.testing.assert_array_equal(labels.forces[2], 0.0)

    def test_nan_energy_is_named_with_its_place(self) -> None:
        message = r"energy labels must be finite, but is nan at index 1 \(1 of 3 .*mark missing ones with energy_mask"
        with pytest.raises(ValueError, match=message):
            Labels.from_arrays(self.partition, 3, energy=[1.0, np.nan, 2.0])

    def test_infinite_force_is_named_with_its_place(self) -> None:
        forces = self.forces.copy()
        forces[4, 2] = forces[6, 0] = -np.inf
        message = r"forces labels must be finite, but is -inf at index \(4, 2\) \(2 of 30 .*with forces_mask"
        with pytest.raises(ValueError, match=message):
            Labels.from_arrays(self.partition, 3, forces=forces)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ({"energy": np.zeros(4)}, r"energy labels must have shape \(3\), but has shape \(4,\)"),
            ({"energy": np.zeros((3, 1))}, r"energy labels must have shape \(3\), but has shape \(3, 1\)"),
            ({"energy": 1.0}, r"energy labels must have shape \(3\), but has shape \(\)"),
            ({"forces": np.zeros((8, 3))}, r"forces labels must have shape \(10, 3\), but has shape \(8, 3\)"),
            ({"forces": np.zeros((10, 2))}, r"forces labels must have shape \(10, 3\), but has shape \(10, 2\)"),
            ({"forces": np.zeros(30)}, r"forces labels must have shape \(10, 3\), but has shape \(30,\)"),
        ],
    )
    def test_wrong_shape_is_named_with_both_shapes(self, labels: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Labels.from_arrays(self.partition, 3, **labels)

    @pytest.mark.parametrize(
        ("masks", "message"),
        [
            ({"energy_mask": [True, False]}, r"energy mask must have shape \(3\), but has shape \(2,\)"),
            ({"forces_mask": np.ones(8)}, r"forces mask must have shape \(10\), but has shape \(8,\)"),
            ({"forces_mask": np.ones((10, 3))}, r"forces mask must have shape \(10\), but has shape \(10, 3\)"),
        ],
    )
    def test_mask_of_wrong_length_is_named_with_both_shapes(self, masks: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Labels.from_arrays(self.partition, 3, energy=self.energy, forces=self.forces, **masks)

    @pytest.mark.parametrize(
        ("masks", "message"),
        [
            ({"energy_mask": [True, False, True]}, r"energy_mask says that 2 labels were observed, but energy is None"),
            ({"forces_mask": [True] + [False] * 9}, r"forces_mask says that 1 labels .*, but forces is None"),
        ],
    )
    def test_mask_without_values_is_an_error(self, masks: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Labels.from_arrays(self.partition, 3, **masks)

    def test_mask_of_nothing_without_values_is_fine(self) -> None:
        labels = Labels.from_arrays(self.partition, 3, energy_mask=[False] * 3, forces_mask=[False] * 10)
        assert eqx.tree_equal(labels, Labels.from_arrays(self.partition, 3))


class TestGraph:
    partition = Partition.from_sizes([2, 1])

    def test_keeps_what_it_is_given(self) -> None:
        positions, numbers = jnp.arange(9.0).reshape(3, 3), jnp.array([1, 6, 8])
        graph = Graph(positions, numbers, self.partition)
        np.testing.assert_array_equal(graph.positions, positions)
        np.testing.assert_array_equal(graph.atomic_numbers, numbers)

    def test_more_positions_than_atoms_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"positions must have shape \(3, any\), but has shape \(4, 3\)"):
            Graph(jnp.zeros((4, 3)), jnp.ones(4, int), self.partition)

    @pytest.mark.usefixtures("as_users_run")
    def test_positions_without_coordinates_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"positions must have shape \(3, any\), but has shape \(3,\)"):
            Graph(jnp.zeros(3), jnp.ones(3, int), self.partition)

    @pytest.mark.usefixtures("as_users_run")
    def test_fewer_atomic_numbers_than_atoms_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"atomic_numbers must have shape \(3\), but has shape \(2,\)"):
            Graph(jnp.zeros((3, 3)), jnp.ones(2, int), self.partition)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_position_that_is_no_number_is_named_with_its_place(self, bad: float) -> None:
        positions = jnp.zeros((3, 3)).at[1, 2].set(bad)
        with pytest.raises(ValueError, match=rf"positions must be finite, but is {bad} at index \(1, 2\)"):
            Graph(positions, jnp.ones(3, int), self.partition)

    def test_can_be_built_in_compiled_code_where_values_are_not_known(self) -> None:
        build = jax.jit(lambda positions: Graph(positions, jnp.ones(3, int), self.partition).positions)
        np.testing.assert_array_equal(build(jnp.ones((3, 3))), 1.0)


class TestEnergyForcesStack:
    first = EnergyForcesStack(jnp.arange(6.0).reshape(2, 3), jnp.arange(24.0).reshape(2, 4, 3))
    second = EnergyForcesStack(jnp.full((1, 3), -1.0), jnp.full((1, 4, 3), -2.0))

    def test_concatenation_is_the_first_followed_by_the_second(self) -> None:
        both = EnergyForcesStack.concatenate(self.first, self.second)
        assert len(both) == 3
        for index, expected in enumerate([self.first[0], self.first[1], self.second[0]]):
            assert eqx.tree_equal(both[index], expected)

    def test_empty_has_the_sizes_and_precision_of_its_example(self, precision: str) -> None:
        empty = EnergyForcesStack.empty(EnergyForces(jnp.ones(3), jnp.ones((4, 2))))
        assert len(empty) == 0
        assert (empty.energy.shape, empty.forces.shape) == ((0, 3), (0, 4, 2))
        assert {str(empty.energy.dtype), str(empty.forces.dtype)} == {precision}


def test_a_stack_ends_when_it_is_iterated_over() -> None:
    stack = EnergyForcesStack(jnp.arange(6.0).reshape(2, 3), jnp.zeros((2, 4, 3)))
    assert [float(entry.energy[0]) for entry in stack] == [0.0, 3.0]
    assert float(stack[-1].energy[0]) == 3.0
    with pytest.raises(IndexError, match="entry 2 is out of range: the stack has 2"):
        stack[2]


class TestIndices:
    def test_an_atom_of_no_structure_is_refused(self) -> None:
        with pytest.raises(ValueError, match="structure_index must be between 0 and 2, but is -1 at index 1"):
            Partition(jnp.array([0, -1, 1]), 2)
        with pytest.raises(ValueError, match="structure_index must be between 0 and 2, but is 3 at index 0"):
            Partition(jnp.array([3]), 2)

    def test_an_element_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ValueError, match="atomic_numbers must be between 0 and 118, but is 200 at index 0"):
            Graph(jnp.zeros((1, 3)), jnp.array([200]), Partition.from_sizes([1]))
