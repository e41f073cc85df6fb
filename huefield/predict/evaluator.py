"""Predictions of one structure after another, for molecular dynamics and optimisers.

Means alone and whole distributions are separate programs, because means are cheaper. Neighbours are
kept with a skin (:mod:`huefield.data.batches.moving`), and shapes leave room for more neighbours, so that dynamics
seldom compile again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from huefield.baselines import BaselineLike, TbliteBaseline, open_baseline
from huefield.core import Graph
from huefield.core.structure import BaselineColumns, BaselineResult, Precision, Structure, cell_volumes, stress_volumes
from huefield.data.batches.moving import MovingGraph
from huefield.data.batches.neighbours import neighbour_pairs
from huefield.data.composition import symbol
from huefield.model.differences import EnergyCovariance
from huefield.model.ensemble import Ensemble, JointOutput, MeanOutput
from huefield.model.prediction import Prediction
from huefield.predict.elements import KnownElements
from huefield.predict.marginals import EnergyForcesMarginals, Means
from huefield.predict.program import VarianceOutput, marginals, variances
from huefield.support.errors import HuefieldError, NoPredictionError

SKIN_ANGSTROM = 0.2
"""A larger skin needs fewer searches, but has more pairs beyond the cutoff. A step of water takes 45, 39, 40 and 50 ms
with skins of 0, 0.2, 0.4 and 0.8 Å for 192 atoms, and 295, 301, 346 and 385 ms for 1536 (benchmarks/md)."""
TOO_CLOSE_ANGSTROM = 0.1
"""Atoms closer than this have no physical meaning."""


class Evaluator:
    """Predicts one structure after another."""

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        baseline: BaselineLike | None = None,
        precision: Precision | None = None,
        skin_angstrom: float = SKIN_ANGSTROM,
    ) -> None:
        """Prepare an ensemble.

        Args:
            ensemble: the model.
            baseline: the calculator that the model corrects; None for a built-in one, or for none.
            precision: of the computation; None for that of the parameters.
            skin_angstrom: distance beyond the cutoff within which neighbours are searched, so as to search less often.
        """
        self._elements = KnownElements(ensemble)
        self.baseline = open_baseline(ensemble.baseline, baseline)
        self._skin_angstrom = skin_angstrom
        self._moving = MovingGraph(ensemble.members.potential.atomic_config.cutoff_angstrom, skin_angstrom)
        self.ensemble = ensemble.in_precision(precision) if precision else ensemble
        arrays, self._static = eqx.partition(self.ensemble, eqx.is_array)
        self._parameters, self._layout = jax.tree.flatten(arrays)
        self.precision: Precision = self.ensemble.precision
        self._graph: Graph | None = None
        self._result: tuple[bytes, BaselineResult] | None = None
        self._summed = b"", np.zeros(1)
        self._mean = self._compiled(_mean)
        self._variances = self._compiled(_variances)
        self._joint = self._compiled(_joint)

    @property
    def searches(self) -> int:
        """Number of neighbour searches so far."""
        return self._moving.searches

    @property
    def compilations(self) -> int:
        """Number of compiled programs."""
        return sum(program._cache_size() for program in (self._mean, self._variances, self._joint))

    def sibling(self) -> "Evaluator":
        """Another evaluator with the same compiled programs, for a structure of its own."""
        other = object.__new__(Evaluator)
        other.__dict__.update(self.__dict__, _moving=self._moving.sibling())
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which compiles its own programs."""
        arrays, static = eqx.partition(self.ensemble, eqx.is_array)
        given = None if isinstance(self.baseline, TbliteBaseline) else self.baseline
        return _rebuilt, (jax.tree.map(np.asarray, arrays), static, self.precision, self._skin_angstrom, given)

    def with_result(self, structure: Structure) -> Structure:
        """The structure with the result of the baseline that the model corrects."""
        if self.baseline is None or structure.baseline is not None:
            return structure
        self._require_sense(structure)
        parts = (structure.atomic_numbers, structure.positions, structure.cell, structure.pbc)
        key = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        if self._result is None or self._result[0] != key:
            self._result = key, self.baseline.compute(structure)
        return replace(structure, baseline=self._result[1])

    def has_stress(self, structure: Structure) -> bool:
        """Whether a structure has a stress: in a periodic cell, and of the baseline, too, if there is one."""
        if not stress_volumes(structure.cell, structure.pbc):
            return False
        found = self.with_result(structure).baseline
        return self.baseline is None or (found is not None and found.stress is not None)

    def mean(self, structure: Structure, *, stress: bool = False) -> Means:
        """Means without variances."""
        structure = self.with_result(structure)
        output: MeanOutput = self._run(self._mean, structure, stress)
        owners, isolated = np.zeros(len(structure), np.int64), self._isolated(structure)
        energies = Ensemble.total_energies(np.asarray(output.energy_of_atoms), owners, isolated)
        strain = output.mean.strain
        per_volume = None if strain is None else np.asarray(strain, float) / cell_volumes(structure.cell)
        found = Means(energies.mean(0), np.array(output.mean.forces, float), per_volume)
        return found if structure.baseline is None else found.plus(structure.baseline)

    def marginals(self, structure: Structure, *, stress: bool = False) -> EnergyForcesMarginals:
        """Means with variances, and the mean of each member."""
        structure = self.with_result(structure)
        output: VarianceOutput = self._run(self._variances, structure, stress)
        owners, isolated = np.zeros(len(structure), np.int64), self._isolated(structure)
        volumes = stress_volumes(structure.cell, structure.pbc)[None]
        found = marginals(output, owners, isolated, volumes, self.ensemble.tails)
        if structure.baseline is None:
            return found
        return found.plus(BaselineColumns.of([structure.baseline], [len(structure)]))

    def prediction(self, structure: Structure) -> Prediction:
        """The joint distribution of energy and forces."""
        output: JointOutput = self._run(self._joint, structure, False)
        volumes = stress_volumes(structure.cell, structure.pbc)[None]
        with self.ensemble.own_precision():
            moved = self._moving.at(structure)
            graph = eqx.tree_at(lambda g: g.positions, moved.graph, jnp.asarray(moved.positions, self.precision))
        found = self.ensemble.prediction(output, graph, volumes)
        result = self.with_result(structure).baseline
        return found if result is None else found.plus(result)

    def energy_covariance(self, structures: Sequence[Structure], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors."""
        for structure in structures:
            self.require_sense(structure)
        return self.ensemble.energy_covariance(list(map(self.with_result, structures)), match=match)

    def require_sense(self, structure: Structure) -> None:
        """Raise unless the model can predict a structure: it knows the elements, and atoms are not too close."""
        self._require_sense(structure)
        _require_apart(structure)

    def _run(self, program: Callable[..., Any], structure: Structure, stress: bool) -> Any:
        """The output of a program for a structure."""
        self._require_sense(structure)
        # Methods of the ensemble, an Equinox module, take a third of a millisecond to be looked up.
        with jax.enable_x64(self.precision == "float64"):
            moved = self._moving.at(structure)
            if moved.graph is not self._graph:
                self._graph, self._flat = moved.graph, jax.tree.flatten(moved.graph)
            leaves, layout = self._flat
            positions = moved.positions.astype(self.precision)
            cells = None if moved.cells is None else moved.cells.astype(self.precision)
            found, shortest = program(self._parameters, leaves, positions, cells, layout, stress)
        if float(shortest) < TOO_CLOSE_ANGSTROM:
            _require_apart(structure)
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(found)):
            raise NoPredictionError(
                "the prediction is NaN or infinite: the structure is far from all training data, or the model is broken"
            )
        return found

    def _compiled(self, function: Callable[[Ensemble, Graph, bool], Any]) -> Any:
        """A program of parameters and structure, which also returns the shortest distance between two atoms.

        Lists of leaves are passed to a compiled program fast; modules would be flattened in Python at each call.
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
            raise HuefieldError("the structure has no atoms: give at least one")
        unknown = self._elements.unknown(structure.atomic_numbers, structure.tag)
        if unknown.any():
            complaint = self._elements.complaint(structure.atomic_numbers[unknown].tolist())
            raise HuefieldError(
                f"the structure contains {complaint}: train one with these elements, or remove "
                f"{named_atoms(structure, np.flatnonzero(unknown))}"
            )
        bad = np.flatnonzero(~np.isfinite(structure.positions).all(1))
        if bad.size:
            raise NoPredictionError(f"positions of {named_atoms(structure, bad)} are NaN or infinite")

    def _isolated(self, structure: Structure) -> Float[np.ndarray, " 1"]:
        """Energy of the isolated atoms [eV]; composition changes seldom, so that the sum is kept."""
        atoms = structure.atomic_numbers.tobytes() + structure.tag.encode()
        if atoms != self._summed[0]:
            energies = self.ensemble.isolated_energies(structure.atomic_numbers, structure.tag)
            self._summed = atoms, energies.sum(keepdims=True)
        return self._summed[1]


def _rebuilt(
    arrays: Ensemble, static: Ensemble, precision: Precision, skin_angstrom: float, baseline: BaselineLike | None = None
) -> Evaluator:
    with jax.enable_x64(precision == "float64"):
        ensemble = eqx.combine(jax.tree.map(jnp.asarray, arrays), static)
    return Evaluator(ensemble, baseline=baseline, precision=precision, skin_angstrom=skin_angstrom)


def named_atoms(structure: Structure, atoms: Int[np.ndarray, " n"], most: int = 5) -> str:
    """The first atoms of a list by element and number, for messages."""
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


def _mean(ensemble: Ensemble, graph: Graph, strain: bool) -> MeanOutput:
    return ensemble.mean(graph, strain=strain)


def _variances(ensemble: Ensemble, graph: Graph, strain: bool) -> VarianceOutput:
    return variances(ensemble, graph, stress=strain, members=True)


def _joint(ensemble: Ensemble, graph: Graph, strain: bool) -> JointOutput:
    return ensemble.joint(graph, strain=strain)
