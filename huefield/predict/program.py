"""The compiled step of every prediction, and its completion on the host.

One structure after another (:mod:`huefield.predict.evaluator`) and batches (:mod:`huefield.predict.batches`) both
compile :func:`variances` and complete its output with :func:`marginals`.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Integer

from huefield.core import EnergyForces, EnergyForcesStack, Graph, Labels, Scaling
from huefield.core.tails import joint_log_density
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import Tails
from huefield.predict.marginals import EnergyForcesMarginals, Marginals, PartFactors


class VarianceOutput(NamedTuple):
    """Means and variances of a batch, calibrated, on the device and with padding."""

    mean: EnergyForces
    aleatoric_var: EnergyForces
    epistemic_var: EnergyForces
    diagonal_var: EnergyForces
    """Part of the aleatoric variances."""
    members: EnergyForcesStack | None
    """None unless asked for."""
    scaling: Scaling | None
    """Calibrated over predicted variances; None without a calibration."""
    energy_of_atoms: Float[Array, "M A"]
    """Contributions of the atoms to the energy of each member."""
    joint_nll: Float[Array, " S"] | None
    """None without labels or without a noise model."""
    joint_quadratic: Float[Array, " S"] | None
    joint_count: Float[Array, " S"] | None


def variances(
    ensemble: Ensemble, graph: Graph, labels: Labels | None = None, *, stress: bool = False, members: bool = False
) -> VarianceOutput:
    """Means and variances of a batch. To be compiled.

    Args:
        ensemble: the model.
        graph: the structures.
        labels: observed values for the joint likelihood, energies relative to isolated atoms; None for no likelihood.
        stress: whether to predict stresses too. Observed ones are part of the likelihood then.
        members: whether to keep the mean of each member.
    """
    output = ensemble.joint(graph, strain=stress)
    distribution = output.distribution
    joint: tuple[Float[Array, " S"] | None, ...] = (None, None, None)
    if labels is not None and ensemble.members.noise.has_variance:
        terms = distribution.density_terms(labels if stress else labels.without_strain())
        joint = (-joint_log_density(*terms, ensemble.tails.joint), terms.quadratic, terms.size)
    return VarianceOutput(
        distribution.mean,
        distribution.aleatoric_variance(),
        distribution.epistemic_variance(),
        distribution.diagonal,
        output.members if members else None,
        output.scaling,
        output.energy_of_atoms,
        *joint,
    )


def marginals(
    output: VarianceOutput,
    owners: Integer[np.ndarray, " A"],
    isolated_ev: Float[np.ndarray, " n"],
    volumes: Float[np.ndarray, " n"],
    tails: Tails,
) -> EnergyForcesMarginals:
    """Marginals on the host in double precision, without padding, with total energies.

    Args:
        output: of :func:`variances`.
        owners: the structure of each atom, without padding.
        isolated_ev: energy of the isolated atoms of each structure.
        volumes: of the cells [Å³]; structures with zero have no stress.
        tails: of the errors.
    """
    count, atoms = len(isolated_ev), len(owners)
    energy = _quantity(output, "energy", np.ones(count))
    of_atoms = np.asarray(output.energy_of_atoms)[:, :atoms]
    energies = Ensemble.total_energies(
        of_atoms, owners, isolated_ev, None if energy.factors is None else energy.factors.spread
    )
    per_volume = np.divide(1.0, volumes, out=np.full(count, np.nan), where=volumes > 0)[:, None, None]
    return EnergyForcesMarginals(
        replace(energy, mean=energies.mean(0), members=None if output.members is None else energies, dof=tails.energy),
        replace(_quantity(output, "forces", np.ones((atoms, 1))), dof=tails.forces),
        None if output.mean.strain is None else replace(_quantity(output, "strain", per_volume), dof=tails.stress),
        *(None if found is None else np.asarray(found, float)[:count] for found in output[-3:]),
    )


def _quantity(output: VarianceOutput, name: str, unit: Float[np.ndarray, " n *d"]) -> Marginals:
    """Marginals of one quantity times a unit; a NaN unit (stress without a cell) gives NaN with zero variances."""
    rows, variance_unit = len(unit), np.nan_to_num(unit**2)
    mean, noise, spread, diagonal = (np.asarray(getattr(part, name), float)[:rows] for part in output[:4])
    members = None if output.members is None else np.asarray(getattr(output.members, name), float)[:, :rows] * unit
    noise, spread, diagonal = noise * variance_unit, spread * variance_unit, diagonal * variance_unit
    return Marginals(mean * unit, noise + spread, noise, spread, members, diagonal, _factors(output, name, rows))


def _factors(output: VarianceOutput, name: str, rows: int) -> PartFactors | None:
    if output.scaling is None:
        return None
    parts = (output.scaling.columns, output.scaling.diagonal, output.scaling.spread)
    return PartFactors(*(np.asarray(getattr(part, name), float)[:rows] for part in parts))
