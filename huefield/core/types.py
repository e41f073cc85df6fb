"""Value objects that all other modules share.

Shapes, everywhere in huefield: S structures, A atoms (of all structures of a batch together), D coordinates
of an atom (3; the one-dimensional toy has 1), M members, C noise channels, R columns of a covariance factor,
O raw noise outputs.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from huefield.core.neighbours import Neighbours
from huefield.core.structure import DEPENDENT, MAX_ATOMIC_NUMBER
from huefield.support.checks import require_finite, require_shape, require_within


class Partition(eqx.Module):
    """The structure of each atom of a batch.

    A padding atom has the index ``num_structures``: it enters no sum, and gets zero when values are spread to atoms.
    """

    structure_index: Int[Array, " A"]
    num_structures: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require_within("structure_index", self.structure_index, 0, self.num_structures)

    @classmethod
    def from_sizes(cls, sizes: list[int]) -> "Partition":
        """Partition of a batch whose structures have ``sizes`` atoms and follow one another."""
        return cls(jnp.asarray(np.repeat(np.arange(len(sizes)), sizes), dtype=jnp.int32), len(sizes))

    @property
    def num_atoms(self) -> int:
        """Rows in per-atom arrays, padding included."""
        return self.structure_index.shape[0]

    @property
    def atom_mask(self) -> Bool[Array, " A"]:
        """False for padding atoms."""
        return self.structure_index < self.num_structures

    def sum(self, per_atom: Shaped[Array, " A *rest"]) -> Shaped[Array, " S *rest"]:
        """Sum over the atoms of each structure."""
        return jax.ops.segment_sum(per_atom, self.structure_index, num_segments=self.num_structures)

    def spread(self, per_structure: Shaped[Array, " S *rest"]) -> Shaped[Array, " A *rest"]:
        """Give each atom the value of its structure."""
        return per_structure.at[self.structure_index].get(mode="fill", fill_value=0)

    def atoms_of(self, structure: int) -> Int[np.ndarray, " N"]:
        """Rows of the atoms of one structure (outside of compiled code only)."""
        if not 0 <= structure < self.num_structures:
            raise IndexError(f"structure {structure} is out of range: the batch has {self.num_structures}")
        return np.flatnonzero(np.asarray(self.structure_index) == structure)


class Graph(eqx.Module):
    """A batch of structures: the input of a potential."""

    positions: Float[Array, "A D"]
    atomic_numbers: Int[Array, " A"]
    partition: Partition
    neighbours: Neighbours | None = None
    """Neighbours within a cutoff; None for potentials that need none."""
    cells: Float[Array, "S 3 3"] | None = None
    """Lattice vectors as rows, zeros for structures without a cell; None if no structure has one."""

    def __check_init__(self) -> None:
        num_atoms = self.partition.num_atoms
        require_shape("positions", self.positions, (num_atoms, None))
        require_shape("atomic_numbers", self.atomic_numbers, (num_atoms,))
        require_finite("positions", self.positions)
        require_within("atomic_numbers", self.atomic_numbers, 0, MAX_ATOMIC_NUMBER)
        if self.neighbours is not None:
            require_shape("index of neighbours", self.neighbours.index, (num_atoms, None))
        if self.cells is not None:
            require_shape("cells", self.cells, (self.partition.num_structures, 3, 3))

    def strained(self, strain: Float[Array, "S 3 3"]) -> "Graph":
        """All positions and lattice vectors r turned into r + r ε, with the symmetric part of the strain."""
        symmetric = 0.5 * (strain + jnp.swapaxes(strain, 1, 2))
        moved = self.positions + jnp.einsum("ax,axy->ay", self.positions, self.partition.spread(symmetric))
        cells = None if self.cells is None else self.cells + self.cells @ symmetric
        return eqx.tree_at(lambda g: (g.positions, g.cells), self, (moved, cells), is_leaf=lambda x: x is None)

    def volumes(self) -> Float[Array, " S"]:
        """Volume of each cell [Å³]; zero for a structure that has no stress, as :func:`cell_volumes` says."""
        if self.cells is None:
            return jnp.zeros(self.partition.num_structures, self.positions.dtype)
        volumes = jnp.abs(jnp.linalg.det(self.cells))
        return jnp.where(volumes > DEPENDENT * jnp.prod(jnp.linalg.norm(self.cells, axis=-1), axis=-1), volumes, 0.0)

    def vectors(self) -> Float[Array, "A K 3"]:
        """Vectors from each atom to its neighbours [Å]; empty slots: see :meth:`Neighbours.vectors`."""
        if self.neighbours is None:
            raise ValueError("the graph has no neighbours, which this potential needs: build it with make_batch")
        return self.neighbours.vectors(
            self.positions, None if self.cells is None else self.partition.spread(self.cells)
        )


class EnergyForces(eqx.Module):
    """One number per observed quantity, y = (E, F): a mean, a variance, a sample or an error."""

    energy: Float[Array, " S"]
    forces: Float[Array, "A D"]
    strain: Float[Array, "S 3 3"] | None = None
    """∂E/∂ε, the derivative with respect to a symmetric strain [eV]: stress times volume. None unless asked for."""


class EnergyForcesStack(eqx.Module):
    """Several :class:`EnergyForces` on a leading axis: columns of a factor, samples or members."""

    energy: Float[Array, "R S"]
    forces: Float[Array, "R A D"]
    strain: Float[Array, "R S 3 3"] | None = None

    def __len__(self) -> int:
        return self.energy.shape[0]

    def __getitem__(self, index: int) -> EnergyForces:
        if not -len(self) <= index < len(self):
            raise IndexError(f"entry {index} is out of range: the stack has {len(self)}")
        strain = None if self.strain is None else self.strain[index]
        return EnergyForces(self.energy[index], self.forces[index], strain)

    def times(self, factors: EnergyForces) -> "EnergyForcesStack":
        """Each entry times the same factors."""
        strain = None if self.strain is None or factors.strain is None else self.strain * factors.strain
        return EnergyForcesStack(self.energy * factors.energy, self.forces * factors.forces, strain)

    @classmethod
    def empty(cls, like: EnergyForces) -> "EnergyForcesStack":
        """A stack without entries, with the sizes of ``like``."""
        return cls.stacked(jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), like))

    @classmethod
    def stacked(cls, leading: EnergyForces) -> "EnergyForcesStack":
        """From an :class:`EnergyForces` whose arrays have the leading axis already."""
        return cls(leading.energy, leading.forces, leading.strain)

    @classmethod
    def concatenate(cls, first: "EnergyForcesStack", second: "EnergyForcesStack") -> "EnergyForcesStack":
        """``first`` followed by ``second``."""
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, second)


class Scaling(eqx.Module):
    """Factors on the variances of a distribution, one for each of the three parts of its covariance."""

    columns: EnergyForces
    """Of the aleatoric columns."""
    diagonal: EnergyForces
    spread: EnergyForces
    """Of the epistemic columns, the deviations of the members."""

    @classmethod
    def of_all(cls, factors: EnergyForces) -> "Scaling":
        """The same factors for all parts."""
        return cls(factors, factors, factors)


class Labels(eqx.Module):
    """Observed energies, forces and stresses; missing values are masked and enter no sum.

    Units: eV and eV/Å. Masked entries hold zeros.
    """

    energy: Float[Array, " S"]
    forces: Float[Array, "A D"]
    energy_mask: Bool[Array, " S"]
    forces_mask: Bool[Array, " A"]
    strain: Float[Array, "S 3 3"] | None = None
    """∂E/∂ε [eV], the stress times the volume, symmetric; None where no stress is known, so that none is computed."""
    strain_mask: Bool[Array, " S"] | None = None
    """Structures whose stress was observed; None together with ``strain``."""
    weight: Float[Array, " S"] | None = None
    """Factor on all terms of a structure in a loss; None for ones."""

    def __check_init__(self) -> None:
        if (self.strain is None) != (self.strain_mask is None):
            raise ValueError("labels have a strain derivative together with its mask, or neither of them")

    def without_strain(self) -> "Labels":
        """The same energies and forces without stresses."""
        return replace(self, strain=None, strain_mask=None)

    @classmethod
    def from_arrays(
        cls,
        partition: Partition,
        dimension: int,
        *,
        energy: ArrayLike | None = None,
        forces: ArrayLike | None = None,
        energy_mask: ArrayLike | None = None,
        forces_mask: ArrayLike | None = None,
        strain: ArrayLike | None = None,
        strain_mask: ArrayLike | None = None,
    ) -> "Labels":
        """Check labels and mark what is missing.

        Args:
            partition: the batch that the labels belong to.
            dimension: coordinates per atom, D.
            energy: energies; None if none was observed.
            forces: forces on all atoms; None if none was observed.
            energy_mask: which energies were observed; None for all that are given.
            forces_mask: on which atoms the force was observed; None for all that are given.
            strain: strain derivatives ∂E/∂ε [eV], 3 × 3 and symmetric; None if no stress was observed.
            strain_mask: which of them were observed; None for all that are given.
        """
        structures = partition.num_structures
        sizes = {"energy": (structures,), "forces": (partition.num_atoms, dimension), "strain": (structures, 3, 3)}
        atom_mask = np.asarray(partition.atom_mask)
        values, masks = {}, {}
        for name, given, mask in (
            ("energy", energy, energy_mask),
            ("forces", forces, forces_mask),
            ("strain", strain, strain_mask),
        ):
            shape = sizes[name]
            array = np.zeros(shape) if given is None else np.asarray(given)
            require_shape(f"{name} labels", array, shape)
            present = np.full(shape[0], given is not None) if mask is None else np.asarray(mask, dtype=bool)
            require_shape(f"{name} mask", present, shape[:1])
            if given is None and present.any():
                raise ValueError(f"{name}_mask says that {int(present.sum())} labels were observed, but {name} is None")
            masks[name] = present & atom_mask if name == "forces" else present
            values[name] = np.where(masks[name].reshape(-1, *[1] * (array.ndim - 1)), array, 0.0)
            require_finite(f"{name} labels", values[name], hint=f"mark missing ones with {name}_mask")
        dtype = jnp.result_type(float)
        return cls(
            jnp.asarray(values["energy"], dtype),
            jnp.asarray(values["forces"], dtype),
            jnp.asarray(masks["energy"]),
            jnp.asarray(masks["forces"]),
            None if strain is None else jnp.asarray(values["strain"], dtype),
            None if strain is None else jnp.asarray(masks["strain"]),
        )


class Outputs(eqx.Module):
    """Outputs of a potential for a batch with their gradients: the mean energy and the noise levels ρ_c."""

    energy: Float[Array, " S"]
    energy_gradient: Float[Array, "A D"]
    raw: Float[Array, "A O"]
    """Noise outputs of each atom before any transformation."""
    levels: Float[Array, "C S"]
    level_gradients: Float[Array, "C A D"]
    energy_of_atoms: Float[Array, " A"]
    """Contribution of each atom to the energy. Totals for users are summed from these in double precision."""
    energy_strain: Float[Array, "S 3 3"] | None = None
    """∂E/∂ε; None unless asked for."""
    level_strains: Float[Array, "C S 3 3"] | None = None

    @property
    def mean(self) -> EnergyForces:
        """Energies, forces and strain derivatives."""
        return EnergyForces(self.energy, -self.energy_gradient, self.energy_strain)
