"""Means and variances of batches, in one compiled program, and of all structures, put together from batches.

Shapes: n rows, which are structures or atoms; M members; d components of a row.
"""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from huefield.core.structure import Block, row_ranges
from huefield.data.batches.batching import Batch
from huefield.model.forcefield import Ensemble
from huefield.predict.predictions import Marginals, MemberMeans, Predictions
from huefield.support.errors import HuefieldError

ROUNDING = 1e-5
"""Deviations of a force component relative to the largest force of its structure that single precision makes."""


Numbers = Array | np.ndarray
"""On the device or on the host."""


class Moments(eqx.Module):
    """Of one quantity. In every array the rows come first."""

    mean: Float[Numbers, " n *d"]
    aleatoric_var: Float[Numbers, " n *d"]
    epistemic_var: Float[Numbers, " n *d"]
    factor: Float[Numbers, " n *d"] | None
    """By which calibration has multiplied the variances; None in a model without one."""
    members: Float[Numbers, " n M *d"] | None
    """None unless asked for."""

    def marginals(self) -> Marginals:
        """As the model says."""
        noise, spread = np.asarray(self.aleatoric_var), np.asarray(self.epistemic_var)
        return Marginals(np.asarray(self.mean), noise + spread, noise, spread)

    def uncalibrated(self) -> Marginals:
        """As the model would say without its calibration."""
        factor = 1.0 if self.factor is None else np.asarray(self.factor)
        noise, spread = np.asarray(self.aleatoric_var) / factor, np.asarray(self.epistemic_var) / factor
        return Marginals(np.asarray(self.mean), noise + spread, noise, spread)

    def finite(self) -> Bool[np.ndarray, " n"]:
        """Which rows are finite numbers throughout."""
        return np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in jax.tree.leaves(self)], axis=0)


class StructureMoments(eqx.Module):
    """Of a batch with its padding on the device, or of many structures in double precision on the host."""

    energy: Moments
    forces: Moments
    stress: Moments | None
    """None unless asked for; without a meaning for structures that are not periodic in three directions."""
    joint_nll: Float[Numbers, " S"] | None
    """None in a model without noise."""

    @property
    def of_structures(self) -> tuple[Moments | Numbers | None, ...]:
        """What has structures as rows; all else has atoms."""
        return self.energy, self.stress, self.joint_nll

    def room(self, structures: int, atoms: int) -> "StructureMoments":
        """Arrays of the same kind for other numbers of structures and atoms."""
        return self._mapped(lambda x: _unfilled(x, structures), lambda x: _unfilled(x, atoms))

    def select(self, keep: Bool[np.ndarray, " n"], owners: Int[np.ndarray, " A"]) -> "StructureMoments":
        """The structures that the mask keeps."""
        return self._mapped(lambda x: x[keep], lambda x: x[keep[owners]])

    def finite(self, owners: Int[np.ndarray, " A"]) -> Bool[np.ndarray, " n"]:
        """Structures whose predictions are finite numbers throughout."""
        good = self.energy.finite() if self.stress is None else self.energy.finite() & self.stress.finite()
        return good & (np.bincount(owners, ~self.forces.finite(), len(good)) == 0)

    def with_offsets(self, offsets_ev: Float[np.ndarray, " n"]) -> "StructureMoments":
        """With energies of single atoms added to each energy."""
        shifted = eqx.tree_at(lambda m: m.energy.mean, self, self.energy.mean + offsets_ev)
        if self.energy.members is None:
            return shifted
        return eqx.tree_at(lambda m: m.energy.members, shifted, self.energy.members + offsets_ev[:, None])

    def without_rounding(self, owners: Int[np.ndarray, " A"]) -> "StructureMoments":
        """With variances of zero for components that vanish by symmetry, where members differ by rounding alone."""
        largest = np.zeros(len(self.energy.mean))
        np.maximum.at(largest, owners, np.abs(self.forces.mean).max(1))
        before = self.forces.uncalibrated()
        vanishing = np.sqrt(before.variance) < ROUNDING * largest[owners, None]
        spread = np.where((before.aleatoric_var == 0) & vanishing, 0.0, self.forces.epistemic_var)
        return eqx.tree_at(lambda m: m.forces.epistemic_var, self, spread)

    def predictions(self, name: str, block: Block) -> Predictions:
        """Beside what was observed."""
        known = np.nan if self.joint_nll is None else np.asarray(self.joint_nll)
        joint = np.where(block.has_energy & block.has_forces, known, np.nan)
        return Predictions(
            name,
            block,
            self.energy.marginals(),
            self.forces.marginals(),
            joint if np.isfinite(joint).any() else None,
            stress=None if self.stress is None else _of_crystals(self.stress, block),
            members=self._members(),
        )

    def uncalibrated(self, name: str, block: Block) -> Predictions | None:
        """The same without the calibration of the model; None for a model that has none."""
        if self.energy.factor is None:
            return None
        return Predictions(name, block, self.energy.uncalibrated(), self.forces.uncalibrated())

    def _mapped(self, of_structures: Callable[[Any], Any], of_atoms: Callable[[Any], Any]) -> "StructureMoments":
        """With arrays that functions make of those with structures and of those with atoms as rows."""
        energy, stress, joint_nll = (jax.tree.map(of_structures, part) for part in self.of_structures)
        parts = (energy, jax.tree.map(of_atoms, self.forces), stress, joint_nll)
        return jax.tree.unflatten(jax.tree.structure(self), jax.tree.leaves(parts))

    def _members(self) -> MemberMeans | None:
        if self.energy.members is None or self.forces.members is None:
            return None
        return MemberMeans(*(np.moveaxis(np.asarray(x), 1, 0) for x in (self.energy.members, self.forces.members)))


@eqx.filter_jit
def batch_moments(ensemble: Ensemble, batch: Batch, *, stress: bool = False, members: bool = False) -> StructureMoments:
    """What an ensemble says about a batch, calibrated.

    Args:
        ensemble: the model.
        batch: structures with their labels, less the energies of single atoms.
        stress: whether to predict stresses too.
        members: whether to tell what each member says.
    """
    graph = batch.graph
    distribution, factors = ensemble.calibrated_distribution(graph, strain=stress)
    noise, spread = distribution.aleatoric_variance(), distribution.epistemic_variance()
    root = jnp.sqrt(jnp.asarray(ensemble.num_members, graph.positions.dtype))

    def of(quantity: str, members: bool) -> Moments:
        mean, aleatoric, epistemic = (getattr(part, quantity) for part in (distribution.mean, noise, spread))
        # The columns of the epistemic part are (mean of a member − mean)/√M, calibrated.
        told = mean + root * getattr(distribution.epistemic, quantity) if members else None
        return Moments(
            mean,
            aleatoric,
            epistemic,
            None if factors is None else getattr(factors, quantity),
            None if told is None else jnp.moveaxis(told, 0, 1),
        )

    return StructureMoments(
        of("energy", members),
        of("forces", members),
        _per_volume(of("strain", False), graph.volumes()) if stress else None,
        -distribution.log_prob(batch.labels) if ensemble.members.noise.has_variance else None,
    )


def collected(
    batches: Iterable[tuple[Int[np.ndarray, " m"], StructureMoments]], sizes: Int[np.ndarray, " n"]
) -> StructureMoments:
    """Moments of all structures from those of batches.

    Args:
        batches: numbers of structures, with their moments.
        sizes: atoms of each structure.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    room: StructureMoments | None = None
    for indices, found in batches:
        room = found.room(len(sizes), int(starts[-1])) if room is None else room
        _fill(room.of_structures, indices, found.of_structures)
        _fill(room.forces, row_ranges(starts[indices], starts[indices + 1]), found.forces)
    if room is None:
        raise HuefieldError("there is nothing to predict: no structure was given")
    return room


def _per_volume(strain: Moments, volumes: Float[Array, " S"]) -> Moments:
    """Stresses from derivatives with respect to strain; structures without a volume keep the latter."""
    volume = jnp.where(volumes > 0, volumes, 1.0)[:, None, None]
    noise, spread = strain.aleatoric_var / volume**2, strain.epistemic_var / volume**2
    return Moments(strain.mean / volume, noise, spread, strain.factor, None)


def _of_crystals(stress: Moments, block: Block) -> Marginals | None:
    """Stresses of the structures that are periodic in three directions; NaN, as if not predicted, for the others."""
    crystals = np.asarray(block.pbc.all(1))[:, None, None]
    if not crystals.any():
        return None
    noise, spread = (np.where(crystals, var, 0.0) for var in (stress.aleatoric_var, stress.epistemic_var))
    return Marginals(np.where(crystals, stress.mean, np.nan), noise + spread, noise, spread)


def _unfilled(like: Any, rows: int) -> Float[np.ndarray, " n *d"]:
    return np.full((rows, *like.shape[1:]), np.nan)


def _fill(room: Any, rows: Int[np.ndarray, " m"], part: Any) -> None:
    """Put a batch without its padding to its place."""
    for target, values in zip(jax.tree.leaves(room), jax.tree.leaves(part), strict=True):
        target[rows] = values[: len(rows)]
