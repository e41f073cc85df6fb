r"""Error bars of other methods, from the means of the same ensemble: members alone, and last-layer rigidity.

[B24] F. Bigi, S. Chong, M. Ceriotti, F. Grasselli, arXiv:2403.02251.

Last-layer prediction rigidity (LLPR): with the energy E = w·Φ, where Φ are the sums over atoms of the values of the
last hidden layer, the variances are

    Var(E) ∝ Φᵀ (G + ς² 1)⁻¹ Φ,     Var(F) ∝ ∂Φᵀ (G + ς² 1)⁻¹ ∂Φ,     G = Σ_n (Φ_n Φ_nᵀ + ∂Φ_n ∂Φ_nᵀ)        [B24]

over the training structures n. The ridge ς² has the best likelihood on validation data; as elsewhere, one factor for
energies and one for forces is fitted to them. Φ is that of the first member of the ensemble, means are those of all.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

RIDGES = 10.0 ** np.arange(-9.0, 0.0)
"""ς² relative to the mean eigenvalue of G."""


def with_variances(predictions: Any, energy: Any, forces: Any) -> Any:
    """The predictions with other variances; None for quantities that are not predicted."""
    from huefield.predict.marginals import EnergyForcesMarginals, Marginals

    of_energy, of_forces = (
        None if found is None or variance is None else Marginals(found.mean, variance)
        for found, variance in ((predictions.energy, energy), (predictions.forces, forces))
    )
    return replace(predictions, marginals=EnergyForcesMarginals(of_energy, of_forces))


def members_alone(predictions: Any) -> Any:
    """The variance between members as the only one, as ensembles without a noise model have."""
    return with_variances(
        predictions, *(found and found.epistemic_var for found in (predictions.energy, predictions.forces))
    )


class LastLayer:
    """LLPR of a PaiNN, fitted to training and validation data."""

    def __init__(self, ensemble: Any, training: Any, validation: Any) -> None:
        """Fit it.

        Args:
            ensemble: the first of its members is used.
            training: block of training structures.
            validation: predictions of validation structures.
        """
        self.ensemble = ensemble
        self.rigidity = sum(each.T @ each for each in self._rows(training))
        rows = self._rows(validation.structures)
        _, self.ridge, self.factors = min(self._fitted(validation, rows, ridge) for ridge in RIDGES)

    def __call__(self, predictions: Any) -> Any:
        """The predictions with these variances."""
        variances = self._variances(self._rows(predictions.structures), self.ridge)
        return with_variances(predictions, *variances).calibrated(self.factors)

    def _fitted(self, validation: Any, rows: Any, ridge: float) -> tuple[float, float, Any]:
        """NLL on validation data with the best factors, the ridge, and these factors."""
        from huefield.evaluation.fits import fit_calibration
        from huefield.evaluation.slices import summarise

        found = with_variances(validation, *self._variances(rows, ridge))
        factors = fit_calibration(found, "scale").calibration
        scores = summarise(found.calibrated(factors))
        return sum(each.nll for each in (scores.energy, scores.forces) if each is not None), ridge, factors

    def _variances(self, rows: Any, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Variances of energies [n] and of force components [A, 3], up to a factor."""
        size = len(self.rigidity)
        inverse = np.linalg.inv(self.rigidity + ridge * np.trace(self.rigidity) / size * np.eye(size))
        energies, forces = (np.einsum("nh,hk,nk->n", each, inverse, each) for each in rows)
        return energies, forces.reshape(-1, 3)

    def _rows(self, block: Any) -> tuple[np.ndarray, np.ndarray]:
        """Φ [n, H] and −∂Φ [3A, H] of all structures."""
        from huefield.data.batches.prepared import Prepared
        from huefield.data.batches.shapes import GrowingShapes
        from huefield.data.dataset import Part
        from huefield.predict.batches import batches_of

        cutoff = self.ensemble.members.potential.atomic_config.cutoff_angstrom
        part, member = Part("llpr", block, np.arange(len(block))), self.ensemble.member(0)
        prepared = Prepared.of(part, cutoff, self.ensemble.isolated_energies_of)
        energies: dict[int, np.ndarray] = {}
        forces: dict[int, np.ndarray] = {}
        for indices, batch in batches_of(prepared, GrowingShapes()):
            of_energies, of_forces = (np.asarray(each, float) for each in _layer(member, batch.graph))
            ends = np.cumsum(prepared.sizes[indices])
            energies |= dict(zip(indices, of_energies[: len(indices)], strict=True))
            forces |= dict(zip(indices, np.split(of_forces[: ends[-1]], ends[:-1]), strict=True))
        order = range(len(block))
        whole = np.concatenate([forces[n] for n in order])
        return np.stack([energies[n] for n in order]), whole.reshape(-1, whole.shape[-1])


@eqx.filter_jit
def _layer(member: Any, graph: Any) -> Any:
    """Φ of the structures [S, H], and −∂Φ [A, 3, H]."""

    def layer(positions: Any) -> Any:
        found = _last_layer(member.potential, eqx.tree_at(lambda g: g.positions, graph, positions))
        return jnp.sum(found, axis=0), graph.partition.sum(found)

    gradient, energies = jax.jacrev(layer, has_aux=True)(graph.positions)
    return energies, -jnp.moveaxis(gradient, 0, -1)


def _last_layer(potential: Any, graph: Any) -> Any:
    """Values of the last hidden layer, [A, H], in units of the energy; zero for padding atoms."""
    hidden = jax.nn.silu(potential.readout.hidden(potential(graph).features))
    scale = potential.one_hot(graph) @ potential.scale_ev
    return jnp.where(graph.partition.atom_mask[:, None], hidden * scale[:, None], 0.0)
