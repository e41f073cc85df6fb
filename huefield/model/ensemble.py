"""An ensemble: M force fields of one architecture on a leading array axis.

[J23] arXiv:2312.04174v1, appendix "Epistemic Uncertainty".
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key, PyTree

from huefield.baselines.records import BaselineRecord
from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph, Scaling, mixture
from huefield.core.lowrank import safe_sqrt
from huefield.core.structure import TAG, Block, Precision, Structure, pack
from huefield.data.batches.batching import make_batch
from huefield.data.batches.neighbours import most_neighbours
from huefield.data.batches.shapes import GrowingShapes, grouped
from huefield.model.datasets import DatasetReferences, Datasets, atom_energies, energy_table
from huefield.model.differences import EnergyCovariance, EnergyDifference, EnergyTerms
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import AbstractJointCalibration, EnergyForcesCalibration, Tails
from huefield.model.prediction import Prediction
from huefield.model.typical import TypicalUncertainty
from huefield.noise import AbstractNoise
from huefield.support.checks import require_finite
from huefield.support.errors import HuefieldError

T = TypeVar("T")
Strategy = Literal["auto", "vmap", "loop"]
"""Members side by side (``vmap``), or one after the other (``loop``); ``auto`` is ``loop`` on CPUs, which is faster for
molecules there, and ``vmap`` elsewhere."""


class MeanOutput(NamedTuple):
    """The compiled mean prediction of a batch."""

    mean: EnergyForces
    energy_of_atoms: Float[Array, "M A"]
    """Contributions of the atoms to the energy of each member."""


class JointOutput(NamedTuple):
    """The compiled joint prediction of a batch, calibrated."""

    distribution: Gaussian
    members: EnergyForcesStack
    """Mean of each member."""
    scaling: Scaling | None
    """Calibrated over predicted variances; None without a calibration."""
    energy_of_atoms: Float[Array, "M A"]
    """Contributions of the atoms to the energy of each member, not calibrated."""


class Ensemble(eqx.Module):
    """M members of one architecture; every array of ``members`` has a leading axis M."""

    members: ForceField
    strategy: Strategy = eqx.field(static=True, default="auto")
    atom_energies: tuple[tuple[int, float], ...] = eqx.field(static=True, default=())
    """Atomic number and energy of the isolated atom [eV] of each element; members predict energies relative to it."""
    calibration: AbstractJointCalibration | None = eqx.field(static=True, default=None)
    """Calibration of the joint distribution; None if uncalibrated."""
    typical: TypicalUncertainty | None = eqx.field(static=True, default=None)
    """Quantiles of calibrated uncertainties of data like the training data; None where they are not known."""
    datasets: Datasets | None = eqx.field(static=True, default=None)
    """Data sets with energies of isolated atoms of their own; ``atom_energies`` are those of the chosen one. None for a
    model of one data set."""
    baseline: BaselineRecord | None = eqx.field(static=True, default=None)
    """The calculator whose errors the members predict; None for members that predict energies themselves."""

    def __check_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise HuefieldError(f"strategy must be one of {get_args(Strategy)}, but is {self.strategy!r}")

    @classmethod
    def from_members(cls, members: Sequence[ForceField], *, strategy: Strategy = "auto") -> "Ensemble":
        """Put together members that were trained separately."""
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
    def precision(self) -> Precision:
        """Floating-point type of the parameters."""
        types = [leaf.dtype for leaf in jax.tree.leaves(eqx.filter(self.members, eqx.is_inexact_array))]
        return "float64" if np.float64 in types else "float32"

    def own_precision(self) -> AbstractContextManager[None]:
        """A context in which this thread computes in the precision of the parameters."""
        return jax.enable_x64(self.precision == "float64")

    def in_precision(self, precision: Precision) -> "Ensemble":
        """The ensemble with its parameters in this precision."""
        with jax.enable_x64(precision == "float64"):
            return jax.tree.map(
                lambda leaf: jnp.asarray(np.asarray(leaf), precision) if eqx.is_inexact_array(leaf) else leaf, self
            )

    @property
    def num_members(self) -> int:
        """Number of members M."""
        return jax.tree.leaves(eqx.filter(self.members, eqx.is_array))[0].shape[0]

    def member(self, index: int) -> ForceField:
        """One member."""
        if not -self.num_members <= index < self.num_members:
            raise IndexError(f"member {index} is out of range: the ensemble has {self.num_members}")
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, self.members)

    @property
    def noise_kind(self) -> str:
        """Kind of the noise model, as in configurations."""
        return str(getattr(self.members.noise.config, "kind", type(self.members.noise).__name__))

    @property
    def tails(self) -> Tails:
        """Tails of the errors, from the calibration; normal without one."""
        return Tails() if self.calibration is None else self.calibration.tails

    def map_noise(self, change: Callable[[AbstractNoise], AbstractNoise]) -> "Ensemble":
        """The ensemble with each member's noise model changed, as in ``map_noise(lambda n: n.with_gamma(4.0))``."""
        with self.own_precision():
            noise = eqx.filter_vmap(change)(self.members.noise)
        return eqx.tree_at(lambda e: e.members.noise, self, noise)

    def with_atom_energies(self, energies_ev: Mapping[int, float]) -> "Ensemble":
        """The ensemble with energies of isolated atoms, by atomic number, which are added to the members' energies."""
        require_finite("energies of isolated atoms", np.array(list(energies_ev.values()), float))
        return replace(self, atom_energies=atom_energies(energies_ev), datasets=None)

    def with_datasets(self, energies_ev: Mapping[str, Mapping[int, float]]) -> "Ensemble":
        """The ensemble with energies of isolated atoms of each data set, by tag; the first one is chosen."""
        for tag, energies in energies_ev.items():
            require_finite(f"energies of isolated atoms of {tag!r}", np.array(list(energies.values()), float))
        first, *others = energies_ev
        alone = self.with_atom_energies(energies_ev[first])
        if not others:
            return alone
        found = (DatasetReferences(tag=tag, atom_energies=atom_energies(e)) for tag, e in energies_ev.items())
        return replace(alone, datasets=Datasets(chosen=first, references=tuple(found)))

    def with_dataset(self, tag: str) -> "Ensemble":
        """The ensemble with total energies as in this data set, one of those that it was trained on."""
        if self.datasets is None:
            raise HuefieldError(
                f"the model was trained on one data set, and {tag!r} cannot be chosen: leave the data set out"
            )
        datasets = self.datasets.choosing(tag)
        return replace(self, atom_energies=datasets.energies(), datasets=datasets)

    def with_baseline(self, baseline: BaselineRecord | None) -> "Ensemble":
        """The ensemble as a correction of a baseline."""
        return replace(self, baseline=baseline)

    def with_calibration(self, calibration: AbstractJointCalibration | None) -> "Ensemble":
        """The ensemble with calibrated variances; None removes a calibration.

        Quantiles of the old uncertainties no longer apply and are dropped.
        """
        if calibration is not None:
            calibration.require_fit(self.noise_kind)
        return replace(self, calibration=calibration, typical=None)

    @property
    def noise_grows(self) -> bool:
        """Whether noise grows with the distance to the training data."""
        return self.members.novelty is not None

    def without_growth(self) -> "Ensemble":
        """The ensemble without the growth of its noise, for structures that are known to be like those of training.

        The calibration stays. Quantiles of uncertainties of validation data are dropped: the largest are those of
        structures where noise has grown. A model whose noise does not grow is returned as it is.
        """
        if not self.noise_grows:
            return self
        return replace(self, members=replace(self.members, novelty=None), typical=None)

    def with_typical(self, typical: TypicalUncertainty | None) -> "Ensemble":
        """The ensemble with quantiles of its uncertainties of data like the training data."""
        return replace(self, typical=typical)

    def __call__(self, graph: Graph, *, strain: bool = False) -> Gaussian:
        """The moment-matched mixture of the members' distributions, calibrated."""
        return self.joint(graph, strain=strain).distribution

    def mean(self, graph: Graph, *, strain: bool = False) -> MeanOutput:
        """The mean of :meth:`__call__` without the work that only its covariance needs. May be compiled."""

        def of_member(member: ForceField) -> MeanOutput:
            outputs = member.mean_outputs(graph, strain=strain)
            return MeanOutput(outputs.mean, outputs.energy_of_atoms)

        means, of_atoms = map_members(of_member, self.members, self.strategy)
        return MeanOutput(jax.tree.map(lambda x: jnp.mean(x, axis=0), means), of_atoms)

    def joint(self, graph: Graph, *, strain: bool = False) -> JointOutput:
        """The distribution and the mean of each member. May be compiled."""

        def of_member(member: ForceField) -> tuple[Gaussian, Float[Array, " A"]]:
            outputs = member.outputs(graph, strain=strain)
            return member.distribution(outputs, graph), outputs.energy_of_atoms

        members, of_atoms = map_members(of_member, self.members, self.strategy)
        distribution, means = mixture(members), EnergyForcesStack.stacked(members.mean)
        if self.calibration is None:
            return JointOutput(distribution, means, None, of_atoms)
        scaling = self.calibration.scaling(distribution)
        mean = EnergyForcesStack.stacked(jax.tree.map(lambda x: x[None], distribution.mean))
        spread = jax.tree.map(jnp.subtract, means, mean).times(jax.tree.map(safe_sqrt, scaling.spread))
        return JointOutput(distribution.scaled(scaling), jax.tree.map(jnp.add, mean, spread), scaling, of_atoms)

    def predict(self, graph: Graph, *, stress: bool = False) -> Prediction:
        """The joint distribution of a batch, in one compiled program.

        Raises ``ValueError`` if a number in it is NaN or infinite.

        Args:
            graph: the structures.
            stress: whether to predict the stress too; every structure needs a periodic cell then.
        """
        if self.baseline is not None:
            raise HuefieldError(
                f"the model corrects {self.baseline.title}, which cannot be computed from a graph: use "
                "huefield.Calculator, huefield.predict or `huefield predict`"
            )
        self.members.potential.require_fit(graph)
        count = graph.partition.num_structures
        volumes = np.asarray(graph.volumes(), np.float64)
        flat = np.setdiff1d(np.asarray(graph.partition.structure_index), [*np.flatnonzero(volumes > 0), count])
        if stress and flat.size:
            raise HuefieldError(f"structure {flat[0]} has no periodic cell and so no stress: predict without stress")
        with self.own_precision():
            output = compiled_joint(self, graph, stress)
            output.distribution.__check_init__()
        return self.prediction(output, graph, volumes)

    def prediction(self, output: JointOutput, graph: Graph, volumes: Float[np.ndarray, " S"]) -> Prediction:
        """The output of :meth:`joint` with total energies."""
        factor = None if output.scaling is None else np.asarray(output.scaling.spread.energy, float)
        energies = self.total_energies(
            np.asarray(output.energy_of_atoms),
            np.asarray(graph.partition.structure_index),
            self.isolated_energies_in(graph),
            factor,
        )
        calibration = self.calibration or EnergyForcesCalibration()
        cells = np.zeros((len(volumes), 3, 3)) if graph.cells is None else np.asarray(graph.cells)
        periodic = np.asarray(cells.any((1, 2)))
        return Prediction(
            output.distribution, output.members, energies, volumes, graph.positions, periodic, calibration
        )

    @staticmethod
    def total_energies(
        energy_of_atoms: Float[np.ndarray, "M A"],
        owners: Integer[np.ndarray, " A"],
        isolated_ev: Float[np.ndarray, " S"],
        factor: Float[np.ndarray, " S"] | None = None,
    ) -> Float[np.ndarray, "M S"]:
        """Total energy of each member [eV]: atoms are summed in double precision, as single precision loses meV.

        Args:
            energy_of_atoms: contributions of the atoms.
            owners: the structure of each atom; S for padding atoms.
            isolated_ev: energy of the isolated atoms of each structure.
            factor: of calibration, on the variance between members.
        """
        count = len(isolated_ev)
        energies = np.stack([np.bincount(owners, row, count + 1)[:count] for row in energy_of_atoms])
        if factor is not None:
            mean = energies.mean(0)
            energies = mean + np.sqrt(factor) * (energies - mean)
        return isolated_ev + energies

    def isolated_energies(self, numbers: Integer[np.ndarray, " A"], tag: str = TAG) -> Float[np.ndarray, " A"]:
        """Energy of the isolated atom [eV] for each of these atomic numbers; zeros where the ensemble has none.

        Args:
            numbers: atomic numbers.
            tag: data set of the structure; ``TAG`` for the chosen one.
        """
        known = self.atom_energies if self.datasets is None else self.datasets.energies(tag)
        if not known:
            return np.zeros(len(numbers))
        found = energy_table(known)[numbers]
        if np.isnan(found).any():
            place = "" if self.datasets is None else f" in data set {self.datasets.chosen if tag == TAG else tag!r}"
            raise HuefieldError(
                f"there is no energy of the isolated atom of atomic number {numbers[np.isnan(found)].min()}{place}, "
                f"only of {[number for number, _ in known]}: give it with with_atom_energies"
            )
        return found

    def isolated_energies_of(self, block: Block) -> Float[np.ndarray, " n"]:
        """Energy of the isolated atoms of each structure [eV], in the data set of the structure."""
        tags = set(block.tags) if self.datasets is not None else {TAG}
        energies = np.zeros(len(block.atomic_numbers))
        for tag in tags:
            atoms = slice(None) if len(tags) == 1 else (np.array(block.tags) == tag)[block.owners]
            energies[atoms] = self.isolated_energies(block.atomic_numbers[atoms], tag)
        return np.bincount(block.owners, energies, len(block))

    def isolated_energies_in(self, graph: Graph) -> Float[np.ndarray, " S"]:
        """Energy of the isolated atoms of each structure [eV]."""
        index, count = np.asarray(graph.partition.structure_index), graph.partition.num_structures
        real = index < count
        energies = self.isolated_energies(np.asarray(graph.atomic_numbers)[real])
        return np.bincount(index[real], weights=energies, minlength=count)

    def energy_covariance(self, structures: Sequence[Structure], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors, calibrated.

        Args:
            structures: images of a path, conformers, reactant and product.
            match: whether like atoms may be exchanged to bring structures closer.
        """
        return self.energy_terms(structures).covariance(match=match)

    def energy_difference(self, a: Structure, b: Structure, *, match: bool = True) -> EnergyDifference:
        """E(b) − E(a), in which common errors cancel; arguments as of :meth:`energy_covariance`."""
        return self.energy_covariance([a, b], match=match).difference(0, 1)

    def energy_terms(
        self, structures: Sequence[Structure], report: Callable[[int, int], None] = lambda done, total: None
    ) -> EnergyTerms:
        """The terms from which covariances of energies are computed, for structures of any atoms.

        Args:
            structures: in any order.
            report: called with the number of structures done and the number of all.
        """
        require_structures(structures)
        self._require_baseline(structures)
        cutoff_angstrom = self.members.potential.atomic_config.cutoff_angstrom
        block = pack(list(structures), np.arange(len(structures)), "structures")
        neighbours, shapes, parts = most_neighbours(block, cutoff_angstrom), GrowingShapes(), []
        for indices in grouped(block.sizes, np.arange(len(block))):
            shape = shapes.fitting(int(block.sizes[indices].sum()), int(neighbours[indices].max()))
            some = [structures[index] for index in indices]
            with self.own_precision():
                parts.append(self._terms(some, make_batch(some, cutoff_angstrom, (shape,)).graph))
            report(int(indices[-1]) + 1, len(structures))
        return EnergyTerms.joined(parts)

    def _require_baseline(self, structures: Sequence[Structure]) -> None:
        if self.baseline is not None and any(structure.baseline is None for structure in structures):
            raise HuefieldError(
                f"the model corrects {self.baseline.title}, whose results for these structures are missing: compare "
                "energies with huefield.Calculator, which computes them"
            )

    def _terms(self, structures: Sequence[Structure], graph: Graph) -> EnergyTerms:
        self.members.potential.require_fit(graph)
        # In double precision from here on, as sums over members of nearly equal numbers follow.
        found = jax.device_get(_compiled_terms(self, graph))
        of_atoms, white_var, levels, inverse_lengths = (np.asarray(each, float) for each in found)
        index = np.asarray(graph.partition.structure_index)
        offset = np.zeros(graph.partition.num_structures)
        offset[: len(structures)] = self.isolated_energies_of(pack(list(structures), np.arange(len(structures)), ""))
        if self.baseline is not None:
            offset[: len(structures)] += [s.baseline.energy for s in structures if s.baseline is not None]
        energy = self.total_energies(of_atoms, index, offset)
        calibration = self.calibration or EnergyForcesCalibration()
        variance = np.mean(white_var + (levels**2).sum(1), axis=0) + energy.var(0)
        ends, count = np.cumsum([len(s) for s in structures]), len(structures)
        return EnergyTerms(
            structures=tuple(structures),
            members=energy[:, :count],
            white_var=white_var[:, :count],
            levels=levels[..., :count],
            inverse_lengths=tuple(np.split(inverse_lengths[..., : ends[-1]], ends[:-1], axis=-1)),
            factors=np.stack(calibration.energy_scaling(variance[:count])),
            calibration=calibration,
        )


@eqx.filter_jit
def build_members(config: ForceField.Config, keys: Key[Array, " M"]) -> ForceField:
    """Members with random weights, one for each key, on a leading axis."""
    return eqx.filter_vmap(lambda key: config.build(key=key))(keys)


@eqx.filter_jit
def compiled_joint(ensemble: Ensemble, graph: Graph, strain: bool) -> JointOutput:
    """:meth:`Ensemble.joint`, compiled once for each shape of a graph."""
    return ensemble.joint(graph, strain=strain)


@eqx.filter_jit
def _compiled_terms(ensemble: Ensemble, graph: Graph) -> tuple[Array, Array, Array, Array]:
    """For each member: energies of atoms, variances of white energy noise, ρ and γ."""

    def of_member(member: ForceField) -> tuple[Array, Array, Array, Array]:
        outputs = member.outputs(graph)
        covariance = member.noise.covariance(outputs, graph)
        lengths = member.noise.inverse_lengths(outputs, graph)
        return outputs.energy_of_atoms, covariance.diagonal.energy, covariance.columns.energy, lengths

    return map_members(of_member, ensemble.members, ensemble.strategy)


def require_structures(given: Sequence[object]) -> None:
    """Raise for anything that is not a structure of huefield, such as ASE atoms."""
    other = next((each for each in given if not isinstance(each, Structure)), None)
    if other is not None:
        raise TypeError(
            f"energies of structures of huefield are compared, but one is of {type(other).__name__}: for atoms of ASE "
            "use energy_difference and energy_covariance of huefield.Calculator"
        )


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
