"""Members at the start of training and at the start of a stage, and the random keys that they depend on."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from huefield.data.batches.prepared import Prepared
from huefield.data.references import AtomicReferences
from huefield.model.ensemble import Ensemble, build_members
from huefield.model.forcefield import ForceField
from huefield.training.config import TrainConfig
from huefield.training.transfer import transferred

OUTLIER = 100.0
"""Force components this many times larger than the median do not count for the scale of energies."""
LARGEST_STRESS_RATIO = 1e3
"""Largest ratio, either way, of stress errors to the noise that follows from that of the forces."""
SMALLEST_INITIAL_NOISE = 1e-4
"""Smallest noise that a stage starts from, [eV] and [eV/Å]."""


def member_key(config: TrainConfig, member: int) -> Key[Array, ""]:
    """The random key of one member, the same whether it is trained alone or with others."""
    return jax.random.fold_in(jax.random.key(config.seed), member)


def order_keys(config: TrainConfig, members: range, stage: int) -> list[Key[Array, ""]]:
    """Random keys for the order of batches in a stage."""
    return [jax.random.fold_in(member_key(config, member), 1 + stage) for member in members]


def initial_ensemble(
    config: TrainConfig, members: range, references: AtomicReferences, data: Prepared, saved: Ensemble | None
) -> Ensemble:
    """The ensemble before training: random weights, or a saved model."""
    if saved is not None:
        taught = _with_strain_rest(transferred(saved, config.model, members), config, data)
        return taught.with_datasets(references.energies_ev)
    keys = jnp.stack([jax.random.fold_in(member_key(config, member), 0) for member in members])
    scale = force_scale(data)
    built = build_members(config.model, keys)
    scaled = eqx.filter_vmap(lambda m: replace(m, potential=m.potential.with_energy_scale(scale)))(built)
    return _with_strain_rest(Ensemble(scaled), config, data).with_datasets(references.energies_ev)


def _with_strain_rest(ensemble: Ensemble, config: TrainConfig, data: Prepared) -> Ensemble:
    """The ensemble with a factor of the rest of stress variances, if stress labels will train it."""
    taught = data.has_stress and any(stage.trains_noise and stage.stress_weight > 0 for stage in config.stages)
    members = ensemble.members
    if not taught or not members.noise.has_variance or members.log_strain_rest is not None:
        return ensemble
    begun = eqx.filter_vmap(lambda member: replace(member, log_strain_rest=jnp.zeros(())))(members)
    return replace(ensemble, members=begun)


def force_scale(data: Prepared) -> float:
    """Root mean square of force components [eV/Å], used as the size of an atom's energy [eV]; 1 without forces.

    Components far above the median (``OUTLIER``) are ignored: a wrong label must not set the scale of all.
    """
    total, count = 0.0, 0
    for block in data.part.blocks():
        kept = np.abs(block.forces[np.repeat(block.has_forces, block.sizes)])
        usual = kept[kept <= OUTLIER * np.median(kept[kept > 0])] if kept.any() else kept
        total, count = total + float((usual**2).sum()), count + usual.size
    return float(np.sqrt(total / count)) if count and total else 1.0


def with_strain_rest(member: ForceField, rzv: Float[Array, ""]) -> ForceField:
    """The member with noise of stresses that matches its errors.

    Args:
        member: the member, whose stress noise is that rest alone: its levels do not yet depend on the structure.
        rzv: standard deviation of its stress errors, in units of its stress noise.
    """
    assert member.log_strain_rest is not None  # noqa: S101 - the caller has checked it
    added = 2 * jnp.log(jnp.clip(rzv, 1 / LARGEST_STRESS_RATIO, LARGEST_STRESS_RATIO))
    return replace(member, log_strain_rest=member.log_strain_rest + jnp.where(jnp.isnan(rzv), 0.0, added))


def with_noise_levels(
    member: ForceField, energy_rmse: Float[Array, ""], force_rmse: Float[Array, ""], atoms: float
) -> ForceField:
    """The member with noise of the size of its errors for structures of so many atoms.

    Noise is at least ``SMALLEST_INITIAL_NOISE``.

    An error is NaN where there are no labels; the other error then takes its place, which makes γ = 1 Å⁻².
    """
    pairs = ((energy_rmse, force_rmse), (force_rmse, energy_rmse))
    levels = [jnp.maximum(jnp.where(jnp.isnan(own), other, own), SMALLEST_INITIAL_NOISE) for own, other in pairs]
    return eqx.tree_at(lambda m: m.noise, member, member.noise.initialised(levels[0], levels[1], atoms))
