"""An ensemble that is asked about one structure after another, as engines of dynamics and optimisers do.

Means alone and whole distributions are programs of their own, as who wants no uncertainty should not pay for it.
Neighbours are kept with a skin (:mod:`huefield.data.batches.moving`), and shapes leave room for more, so that dynamics
seldom compile again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Array, Float, Int

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph
from huefield.core.lowrank import safe_sqrt
from huefield.core.structure import Structure
from huefield.data.batches.moving import MovingGraph
from huefield.data.batches.neighbours import neighbour_pairs
from huefield.data.composition import symbol
from huefield.model.differences import EnergyCovariance
from huefield.model.forcefield import Ensemble
from huefield.support.errors import HuefieldError, NoPredictionError

SKIN_ANGSTROM = 0.2
"""A larger one is searched less often, but has pairs that give nothing. A step of water takes 45, 39, 40 and 50 ms with
skins of 0, 0.2, 0.4 and 0.8 Å for 192 atoms, and 295, 301, 346 and 385 ms for 1536 (benchmarks/md)."""
TOO_CLOSE_ANGSTROM = 0.1
"""No two atoms are closer in anything real."""

Precision = Literal["float32", "float64"]


@dataclass(frozen=True, eq=False)
class Values:
    """Of one structure: [eV], [eV/Å] and [eV/Å³]."""

    energy: float
    forces: Float[np.ndarray, "N 3"]
    stress: Float[np.ndarray, "3 3"] | None
    """None unless asked for."""


@dataclass(frozen=True, eq=False)
class Uncertain:
    """Means, their standard deviations, and the means of the members; all calibrated."""

    mean: Values
    total: Values
    aleatoric: Values
    epistemic: Values
    members: tuple[Values, ...]


class Evaluator:
    """One structure after the other through an ensemble."""

    def __init__(
        self, ensemble: Ensemble, *, precision: Precision | None = None, skin_angstrom: float = SKIN_ANGSTROM
    ) -> None:
        config = ensemble.members.potential.atomic_config
        self.elements = config.elements
        self._known = np.isin(np.arange(256), [number_of_symbol[element] for element in config.elements])
        self._skin_angstrom = skin_angstrom
        self._moving = MovingGraph(config.cutoff_angstrom, skin_angstrom)
        self.ensemble = in_precision(ensemble, precision) if precision else ensemble
        arrays, self._static = eqx.partition(self.ensemble, eqx.is_array)
        self._parameters, self._layout = jax.tree.flatten(arrays)
        self._dtype = np.result_type(*(leaf.dtype for leaf in self._parameters if eqx.is_inexact_array(leaf)))
        self._atom_energies = np.full(256, np.nan if ensemble.atom_energies else 0.0)
        for number, energy in ensemble.atom_energies:
            self._atom_energies[number] = energy
        self._graph: Graph | None = None
        self._mean = self._compiled(_mean)
        self._uncertain = self._compiled(_uncertain)
        self._joint = self._compiled(lambda ensemble, graph, strain: ensemble.joint(graph, strain=strain)[0])

    @property
    def searches(self) -> int:
        """How often neighbours were searched."""
        return self._moving.searches

    @property
    def compilations(self) -> int:
        """How many programs were compiled."""
        return sum(program._cache_size() for program in (self._mean, self._uncertain, self._joint))

    @property
    def precision(self) -> str:
        """Of the parameters."""
        return self._dtype.name

    def sibling(self) -> "Evaluator":
        """Another one with the same compiled programs, for a structure of its own."""
        other = object.__new__(Evaluator)
        other.__dict__.update(self.__dict__, _moving=self._moving.sibling())
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: without what is compiled, which it compiles anew."""
        arrays, static = eqx.partition(self.ensemble, eqx.is_array)
        return _rebuilt, (jax.tree.map(np.asarray, arrays), static, self.precision, self._skin_angstrom)

    def mean(self, structure: Structure, *, stress: bool = False) -> Values:
        """Mean energy and forces."""
        (mean,) = self._values(self._run(self._mean, structure, stress), structure, of_energies=1)
        return mean

    def uncertain(self, structure: Structure, *, stress: bool = False) -> Uncertain:
        """Means with standard deviations, and the members' means."""
        found = self._run(self._uncertain, structure, stress)
        members = found.energy.shape[0] - 3
        *means, total, aleatoric, epistemic = self._values(found, structure, of_energies=members)
        return Uncertain(means[0], total, aleatoric, epistemic, tuple(means[1:]))

    def distribution(self, structure: Structure) -> Gaussian:
        """The joint distribution of energy and forces; its energy is without those of single atoms."""
        return self._run(self._joint, structure, False)

    def energy_covariance(self, structures: Sequence[Structure], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors."""
        for structure in structures:
            self.require_sense(structure)
        with jax.enable_x64(self._dtype == np.float64):
            return self.ensemble.energy_covariance(structures, match=match)

    def atom_energies(self, structure: Structure) -> float:
        """What its atoms have as energy on their own."""
        energy = float(self._atom_energies[structure.atomic_numbers].sum())
        # A method of the ensemble takes a third of a millisecond to be looked up: its message alone is wanted.
        return energy if np.isfinite(energy) else float(self.ensemble.energies_of_atoms(structure.atomic_numbers).sum())

    def require_sense(self, structure: Structure) -> None:
        """Raise unless the model can say something about a structure."""
        self._require_sense(structure)
        _require_apart(structure)

    def _run(self, program: Callable[..., Any], structure: Structure, stress: bool) -> Any:
        """What a program says of a structure."""
        self._require_sense(structure)
        with jax.enable_x64(self._dtype == np.float64):
            moved = self._moving.at(structure)
            if moved.graph is not self._graph:
                self._graph, self._flat = moved.graph, jax.tree.flatten(moved.graph)
            leaves, layout = self._flat
            positions = moved.positions.astype(self._dtype)
            cells = None if moved.cells is None else moved.cells.astype(self._dtype)
            found, shortest = program(self._parameters, leaves, positions, cells, layout, stress)
        if float(shortest) < TOO_CLOSE_ANGSTROM:
            _require_apart(structure)
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(found)):
            raise NoPredictionError(
                "the prediction is NaN or infinite: the structure is far from all training data, or the model is broken"
            )
        return found

    def _compiled(self, function: Callable[[Ensemble, Graph, bool], Any]) -> Any:
        """A program of parameters and structure, which says too how close two atoms are.

        Leaves in lists take JAX's fast way into a compiled program; modules would be flattened in Python at each call.
        """

        def program(
            parameters: list[Array],
            leaves: list[Array],
            positions: Float[Array, "N 3"],
            cells: Float[Array, "1 3 3"] | None,
            layout: Any,
            strain: bool,
        ) -> tuple[Any, Float[Array, ""]]:
            ensemble = eqx.combine(jax.tree.unflatten(self._layout, parameters), self._static)
            graph = eqx.tree_at(lambda g: g.positions, jax.tree.unflatten(layout, leaves), positions)
            if cells is not None:
                graph = eqx.tree_at(lambda g: g.cells, graph, cells)
            shortest = jnp.sqrt(jnp.min(jnp.sum(graph.vectors() ** 2, axis=-1), initial=jnp.inf))
            return function(ensemble, graph, strain), shortest

        return jax.jit(program, static_argnums=(4, 5))

    def _require_sense(self, structure: Structure) -> None:
        if not len(structure):
            raise HuefieldError("there are no atoms: give a structure with one at least")
        strange = ~self._known[structure.atomic_numbers]
        if strange.any():
            names = ", ".join(symbol(number) for number in np.unique(structure.atomic_numbers[strange]).tolist())
            raise HuefieldError(
                f"the structure contains {names} ({named_atoms(structure, np.flatnonzero(strange))}), but the model "
                f"was trained for {', '.join(self.elements)} only: train one with these elements"
            )
        bad = np.flatnonzero(~np.isfinite(structure.positions).all(1))
        if bad.size:
            raise NoPredictionError(f"positions of {named_atoms(structure, bad)} are NaN or infinite")

    def _values(self, found: EnergyForcesStack, structure: Structure, *, of_energies: int) -> list[Values]:
        """Each entry in double precision; the first ones with the energies of single atoms, as deviations have none."""
        energies = np.array(found.energy, float)[:, 0]
        energies[:of_energies] += self.atom_energies(structure)
        forces = np.array(found.forces, float)
        stress = None if found.strain is None else np.array(found.strain, float)[:, 0] / _volume(structure)
        rows = enumerate(energies.tolist())
        return [Values(energy, forces[row], None if stress is None else stress[row]) for row, energy in rows]


def _rebuilt(arrays: Ensemble, static: Ensemble, precision: Precision, skin_angstrom: float) -> Evaluator:
    with jax.enable_x64(precision == "float64"):
        ensemble = eqx.combine(jax.tree.map(jnp.asarray, arrays), static)
    return Evaluator(ensemble, precision=precision, skin_angstrom=skin_angstrom)


def in_precision(ensemble: Ensemble, precision: Precision) -> Ensemble:
    """The ensemble with all its parameters in this precision."""
    with jax.enable_x64(precision == "float64"):
        return jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf), precision) if eqx.is_inexact_array(leaf) else leaf, ensemble
        )


def named_atoms(structure: Structure, atoms: Int[np.ndarray, " n"], most: int = 5) -> str:
    """Atoms by element and number, for messages; not too many of them."""
    names = [f"{symbol(int(structure.atomic_numbers[atom]))}{atom}" for atom in atoms[:most]]
    return ", ".join(names) + (f" and {len(atoms) - most} more" if len(atoms) > most else "")


def _require_apart(structure: Structure) -> None:
    pairs = neighbour_pairs(structure, TOO_CLOSE_ANGSTROM)
    if not len(pairs):
        return
    vectors = structure.positions[pairs.second] + pairs.shifts @ structure.cell - structure.positions[pairs.first]
    distances = np.linalg.norm(vectors, axis=1)
    closest = int(distances.argmin())
    raise NoPredictionError(
        f"atoms {pairs.first[closest]} and {pairs.second[closest]} are {distances[closest]:.2g} Å apart, which no "
        "model can predict: correct the structure"
    )


def _mean(ensemble: Ensemble, graph: Graph, strain: bool) -> EnergyForcesStack:
    return _stacked([ensemble.mean(graph, strain=strain)])


def _uncertain(ensemble: Ensemble, graph: Graph, strain: bool) -> EnergyForcesStack:
    """The mean; the members' means; total, aleatoric and epistemic standard deviations."""
    distribution, members = ensemble.joint(graph, strain=strain)
    variances = (distribution.variance(), distribution.aleatoric_variance(), distribution.epistemic_variance())
    deviations = [jax.tree.map(safe_sqrt, variance) for variance in variances]
    means = EnergyForcesStack.concatenate(_stacked([distribution.mean]), members)
    return EnergyForcesStack.concatenate(means, _stacked(deviations))


def _stacked(entries: Sequence[EnergyForces]) -> EnergyForcesStack:
    return EnergyForcesStack.stacked(jax.tree.map(lambda *leaves: jnp.stack(leaves), *entries))


def _volume(structure: Structure) -> float:
    return float(abs(np.linalg.det(structure.cell)))
