"""A force field is a potential with a noise model; an ensemble is M of them on one more array axis.

[J23] arXiv:2312.04174v1, appendix "Epistemic Uncertainty".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key, PyTree

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph, Outputs, Partition, mixture
from huefield.core.lowrank import safe_sqrt
from huefield.core.structure import Structure, pack
from huefield.data.batches.batching import BatchShape, choose_shapes, make_batch
from huefield.data.batches.neighbours import most_neighbours
from huefield.model.differences import EnergyCovariance, EnergyDifference, EnergyTerms
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.model.prediction import Prediction
from huefield.model.typical import TypicalUncertainty
from huefield.noise import AbstractNoise, NoiseConfig
from huefield.noise.base import Covariance
from huefield.potentials import AbstractPotential, PotentialConfig, differentiate
from huefield.support.checks import require_finite
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

T = TypeVar("T")
STRUCTURES_AT_ONCE = 32
"""Whose energies are predicted together."""
Strategy = Literal["auto", "vmap", "loop"]
"""Members side by side (``vmap``), or one after the other (``loop``); ``auto`` is ``loop`` on CPUs, which is faster for
molecules there, and ``vmap`` elsewhere."""


class ForceField(eqx.Module):
    """One member: a batch of structures in, the joint Gaussian of energies and forces out."""

    class Config(FrozenConfig):
        """What to build a member from."""

        potential: PotentialConfig
        noise: NoiseConfig

        def build(self, *, key: Key[Array, ""]) -> "ForceField":
            """A member with random weights."""
            noise = self.noise.build()
            return ForceField(self.potential.build(len(noise.raw_outputs), len(noise.raw_vectors), key=key), noise)

    potential: AbstractPotential
    noise: AbstractNoise

    def __call__(self, graph: Graph, *, strain: bool = False) -> Gaussian:
        """The distribution that this member predicts: mean (E_θ, −∂E_θ/∂r) and the covariance of its noise model.

        Args:
            graph: the structures.
            strain: whether to include ∂E/∂ε, which is the stress times the volume.
        """
        outputs = self.outputs(graph, strain=strain)
        covariance = self.noise.covariance(outputs, graph)
        if strain and covariance.diagonal.strain is None:
            raise HuefieldError(
                f"{type(self.noise).__name__} says nothing about the strain derivative: ask without stress"
            )
        return _distribution(outputs, covariance, graph)

    def as_taught(self, graph: Graph, share: Float[Array, " S"]) -> Gaussian:
        """The same distribution, but of gradients of its forces only a share reaches the noise levels ρ and ∂ρ/∂r.

        Args:
            graph: the structures.
            share: for each of them, 0 for nothing and 1 for everything.
        """
        outputs = self.outputs(graph)

        def part(x: Array, share: Array) -> Array:
            fixed = jax.lax.stop_gradient(x)
            return fixed + share * (x - fixed)

        levels = part(outputs.levels, share)
        gradients = part(outputs.level_gradients, graph.partition.spread(share)[:, None])
        of_forces = eqx.tree_at(lambda o: (o.levels, o.level_gradients), outputs, (levels, gradients))
        whole, less = (self.noise.covariance(each, graph) for each in (outputs, of_forces))
        diagonal, columns = (
            eqx.tree_at(lambda part: part.forces, ours, theirs.forces)
            for ours, theirs in ((whole.diagonal, less.diagonal), (whole.columns, less.columns))
        )
        return _distribution(outputs, Covariance(diagonal, columns), graph)

    def outputs(self, graph: Graph, *, strain: bool = False) -> Outputs:
        """Energies and noise levels with their gradients: what the distribution is made of."""
        return differentiate(self.potential, self._levels, graph, strain=strain)

    def mean(self, graph: Graph, *, strain: bool = False) -> EnergyForces:
        """The mean of :meth:`__call__` alone, for half of the work: noise levels are not differentiated."""

        def no_levels(raw: Float[Array, "A O"], partition: Partition) -> Float[Array, "0 S"]:
            return jnp.zeros((0, partition.num_structures), raw.dtype)

        outputs = differentiate(self.potential, no_levels, graph, strain=strain)
        return EnergyForces(outputs.energy, -outputs.energy_gradient, outputs.energy_strain)

    def _levels(self, raw: Float[Array, "A O"], partition: Partition) -> Float[Array, "C S"]:
        needed = self.noise.raw_outputs
        if raw.shape[1] != len(needed):
            raise HuefieldError(
                f"{type(self.potential).__name__} gives {raw.shape[1]} raw outputs, but {type(self.noise).__name__} "
                f"needs {len(needed)}: {', '.join(needed)}"
            )
        return self.noise.levels(raw, partition)


class Ensemble(eqx.Module):
    """M members of one architecture; every array of ``members`` has a leading axis M."""

    members: ForceField
    strategy: Strategy = eqx.field(static=True, default="auto")
    atom_energies: tuple[tuple[int, float], ...] = eqx.field(static=True, default=())
    """Atomic number and reference energy [eV] of each element, which the members' energies are without."""
    calibration: EnergyForcesCalibration | None = eqx.field(static=True, default=None)
    """Of the distribution that all members predict together; None to leave it as it is."""
    typical: TypicalUncertainty | None = eqx.field(static=True, default=None)
    """Of data like those it was trained on, calibrated as the ensemble is; None where nobody has looked."""

    def __check_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise HuefieldError(f"strategy must be one of {get_args(Strategy)}, but is {self.strategy!r}")

    @classmethod
    def from_members(cls, members: Sequence[ForceField], *, strategy: Strategy = "auto") -> "Ensemble":
        """Put members together that were trained apart."""
        if not members:
            raise HuefieldError("an ensemble needs at least one member, but got none")
        arrays = [eqx.filter(member, eqx.is_array) for member in members]
        layouts = [jax.tree.structure(member) for member in arrays]
        different = [index for index, layout in enumerate(layouts) if layout != layouts[0]]  # type: ignore[operator]
        if different:
            raise HuefieldError(f"members must be alike, but {different} differ from member 0 in their architecture")
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        return cls(eqx.combine(stacked, members[0]), strategy)

    @classmethod
    def build(
        cls,
        config: ForceField.Config,
        num_members: int,
        *,
        key: Key[Array, ""],
        strategy: Strategy = "auto",
    ) -> "Ensemble":
        """An ensemble whose members differ in their random weights."""
        if num_members != int(num_members) or num_members < 1:
            raise HuefieldError(f"an ensemble has a whole number of members from 1, but num_members is {num_members}")
        keys = jax.vmap(lambda m: jax.random.fold_in(key, m))(jnp.arange(num_members))
        return cls(build_members(config, keys), strategy)

    @property
    def num_members(self) -> int:
        """M."""
        return jax.tree.leaves(eqx.filter(self.members, eqx.is_array))[0].shape[0]

    def member(self, index: int) -> ForceField:
        """One member."""
        if not -self.num_members <= index < self.num_members:
            raise IndexError(f"member {index} is out of range: the ensemble has {self.num_members}")
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, self.members)

    def map_noise(self, change: Callable[[AbstractNoise], AbstractNoise]) -> "Ensemble":
        """The ensemble with each member's noise model changed, as in ``map_noise(lambda n: n.with_gamma(4.0))``."""
        noise = eqx.filter_vmap(change)(self.members.noise)
        return eqx.tree_at(lambda e: e.members.noise, self, noise)

    def __call__(self, graph: Graph) -> Gaussian:
        """The moment-matched mixture of the members' distributions, calibrated."""
        return self.calibrated_distribution(graph)[0]

    def calibrated_distribution(self, graph: Graph, *, strain: bool = False) -> tuple[Gaussian, EnergyForces | None]:
        """The same, and the factors that its variances were multiplied by; None where there is no calibration."""
        return self._calibrated(mixture(self._member_distributions(graph, strain)))

    def mean(self, graph: Graph, *, strain: bool = False) -> EnergyForces:
        """The mean of :meth:`__call__` alone, without what is needed for its covariance only."""
        means = map_members(lambda member: member.mean(graph, strain=strain), self.members, self.strategy)
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), means)

    def with_atom_energies(self, energies_ev: Mapping[int, float]) -> "Ensemble":
        """The ensemble with energies of single atoms, by atomic number, that are added to what the members say."""
        require_finite("energies of atoms", np.array(list(energies_ev.values()), float))
        pairs = tuple(sorted((int(number), float(energy)) for number, energy in energies_ev.items()))
        return Ensemble(self.members, self.strategy, pairs, self.calibration, self.typical)

    def with_calibration(self, calibration: EnergyForcesCalibration | None) -> "Ensemble":
        """The ensemble with its variances calibrated from now on, or, without a calibration, as its members say.

        What was typical of its uncertainty is so no longer, and forgotten.
        """
        return Ensemble(self.members, self.strategy, self.atom_energies, calibration)

    def with_typical(self, typical: TypicalUncertainty | None) -> "Ensemble":
        """The ensemble that knows how uncertain it is about data like those it was trained on."""
        return Ensemble(self.members, self.strategy, self.atom_energies, self.calibration, typical)

    def predict(self, graph: Graph, *, stress: bool = False) -> Prediction:
        """Mean, noise and members' spread of energies and forces, in one compiled program.

        Raises ``ValueError`` where any of it is not a finite number.

        Args:
            graph: the structures.
            stress: whether to predict the stress too; every structure needs a cell then.
        """
        self.members.potential.require_fit(graph)
        volumes = np.asarray(graph.volumes(), np.float64)
        flat = np.setdiff1d(np.asarray(graph.partition.structure_index), np.flatnonzero(volumes > 0))
        if stress and (flat < graph.partition.num_structures).any():
            raise HuefieldError(
                f"structure {flat[0]} has no stress, for it has no cell with a volume; predict without it"
            )
        distribution, members = _compiled_joint(self, graph, stress)
        distribution.__check_init__()
        calibration = self.calibration or EnergyForcesCalibration()
        return Prediction(distribution, members, self._atom_energies(graph), volumes, calibration)

    def energy_covariance(self, structures: Sequence[Structure], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors, calibrated.

        Args:
            structures: images of a path, conformers, reactant and product.
            match: whether like atoms may be exchanged to bring structures closer.
        """
        return self.energy_terms(structures).covariance(match=match)

    def energy_difference(self, a: Structure, b: Structure, *, match: bool = True) -> EnergyDifference:
        """E(b) − E(a), in which errors cancel that both have in common; arguments as of :meth:`energy_covariance`."""
        return self.energy_covariance([a, b], match=match).difference(0, 1)

    def energy_terms(
        self, structures: Sequence[Structure], report: Callable[[int, int], None] = lambda done, total: None
    ) -> EnergyTerms:
        """What covariances of energies are made of, for structures of any atoms.

        Args:
            structures: in any order.
            report: is told how many of them are predicted, and of how many.
        """
        require_structures(structures)
        cutoff_angstrom = self.members.potential.atomic_config.cutoff_angstrom
        shapes = _shapes_for(structures, cutoff_angstrom) if structures else ()
        parts = []
        for at in range(0, len(structures), STRUCTURES_AT_ONCE):
            some = structures[at : at + STRUCTURES_AT_ONCE]
            parts.append(self._terms(some, make_batch(some, cutoff_angstrom, shapes).graph))
            report(at + len(some), len(structures))
        return EnergyTerms.joined(parts)

    def _terms(self, structures: Sequence[Structure], graph: Graph) -> EnergyTerms:
        self.members.potential.require_fit(graph)
        # In double precision from here on, as sums over members of nearly equal numbers follow.
        found = jax.device_get(_compiled_terms(self, graph))
        energy, white_var, levels, inverse_lengths = (np.asarray(each, float) for each in found)
        calibration = self.calibration or EnergyForcesCalibration()
        variance = np.mean(white_var + (levels**2).sum(1), axis=0) + energy.var(0)
        ends, count = np.cumsum([len(s) for s in structures]), len(structures)
        return EnergyTerms(
            structures=tuple(structures),
            members=(energy + self._atom_energies(graph))[:, :count],
            white_var=white_var[:, :count],
            levels=levels[..., :count],
            inverse_lengths=tuple(np.split(inverse_lengths[..., : ends[-1]], ends[:-1], axis=-1)),
            factors=calibration.energy_factors(variance[:count]),
            calibration=calibration,
        )

    def _atom_energies(self, graph: Graph) -> Float[np.ndarray, " S"]:
        """Sum over the atoms of each structure, in double precision."""
        partition = graph.partition
        real = np.asarray(partition.atom_mask)
        energies = self.energies_of_atoms(np.asarray(graph.atomic_numbers)[real])
        index = np.asarray(partition.structure_index)[real]
        return np.bincount(index, weights=energies, minlength=partition.num_structures)

    def energies_of_atoms(self, numbers: Integer[np.ndarray, " A"]) -> Float[np.ndarray, " A"]:
        """What atoms with these atomic numbers have as energy on their own, [eV] in double precision."""
        known = dict(self.atom_energies)
        missing = sorted(set(numbers.tolist()) - set(known)) if known else []
        if missing:
            raise HuefieldError(
                f"there is no energy of a single atom of atomic number {missing[0]}, only of {sorted(known)}: "
                "give it with with_atom_energies"
            )
        return np.array([known.get(number, 0.0) for number in numbers.tolist()])

    def joint(self, graph: Graph, *, strain: bool = False) -> tuple[Gaussian, EnergyForcesStack]:
        """The distribution, and the mean of each member, both calibrated."""
        members = self._member_distributions(graph, strain)
        distribution, factors = self._calibrated(mixture(members))
        if factors is None:
            return distribution, EnergyForcesStack.stacked(members.mean)
        deviations = EnergyForcesStack.stacked(jax.tree.map(jnp.subtract, members.mean, distribution.mean))
        spread = deviations.times(jax.tree.map(safe_sqrt, factors))
        mean = EnergyForcesStack.stacked(jax.tree.map(lambda x: x[None], distribution.mean))
        return distribution, jax.tree.map(jnp.add, mean, spread)

    def _calibrated(self, distribution: Gaussian) -> tuple[Gaussian, EnergyForces | None]:
        """The distribution with its calibrated variances, and the factors that they have changed by."""
        if self.calibration is None:
            return distribution, None
        factors = self.calibration.factors(distribution)
        return distribution.scaled(factors), factors

    def _member_distributions(self, graph: Graph, strain: bool = False) -> Gaussian:
        """The distribution of each member; its arrays have a leading axis M, which only ``mixture`` understands."""
        return map_members(lambda member: member(graph, strain=strain), self.members, self.strategy)


def _distribution(outputs: Outputs, covariance: Covariance, graph: Graph) -> Gaussian:
    mean = EnergyForces(outputs.energy, -outputs.energy_gradient, outputs.energy_strain)
    return Gaussian(mean, covariance.diagonal, covariance.columns, EnergyForcesStack.empty(mean), graph.partition)


@eqx.filter_jit
def build_members(config: ForceField.Config, keys: Key[Array, " M"]) -> ForceField:
    """Members with random weights, one for each key, on a leading axis."""
    return eqx.filter_vmap(lambda key: config.build(key=key))(keys)


@eqx.filter_jit
def _compiled_joint(ensemble: Ensemble, graph: Graph, strain: bool) -> tuple[Gaussian, EnergyForcesStack]:
    return ensemble.joint(graph, strain=strain)


@eqx.filter_jit
def _compiled_terms(ensemble: Ensemble, graph: Graph) -> tuple[Array, Array, Array, Array]:
    """Of each member: energies, their variances that are new at every structure, ρ and γ."""

    def of_member(member: ForceField) -> tuple[Array, Array, Array, Array]:
        outputs = member.outputs(graph)
        covariance = member.noise.covariance(outputs, graph)
        lengths = member.noise.inverse_lengths(outputs, graph)
        return outputs.energy, covariance.diagonal.energy, covariance.columns.energy, lengths

    return map_members(of_member, ensemble.members, ensemble.strategy)


def require_structures(given: Sequence[object]) -> None:
    """Raise for what is no structure of huefield, such as atoms of ASE."""
    other = next((each for each in given if not isinstance(each, Structure)), None)
    if other is not None:
        raise TypeError(
            f"energies of structures of huefield are compared, but one is of {type(other).__name__}: for atoms of ASE "
            "use energy_difference and energy_covariance of huefield.Calculator"
        )


def _shapes_for(structures: Sequence[Structure], cutoff_angstrom: float) -> tuple[BatchShape, ...]:
    """Few, as each is compiled for."""
    block = pack(list(structures), np.arange(len(structures)), "structures")
    neighbours, one_bucket = most_neighbours(block, cutoff_angstrom), np.zeros(len(block), np.int64)
    return choose_shapes(block.sizes, neighbours, one_bucket, min(len(block), STRUCTURES_AT_ONCE))


def map_members(function: Callable[[PyTree], T], members: PyTree, strategy: Strategy) -> T:
    """Apply a function to each member of a stacked tree: the one place where members are mapped over."""
    if strategy == "vmap" or (strategy == "auto" and jax.default_backend() != "cpu"):
        return eqx.filter_vmap(function)(members)
    arrays, static = eqx.partition(members, eqx.is_array)
    results_static: list[PyTree] = []

    def one(leaves: PyTree) -> PyTree:
        result, result_static = eqx.partition(function(eqx.combine(leaves, static)), eqx.is_array)
        results_static.append(result_static)
        return result

    results = jax.lax.map(one, arrays)
    return eqx.combine(results, results_static[-1])
