"""Fit how noise grows with the distance to the training data, when the networks are trained."""

from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from huefield.core.types import Graph
from huefield.data.batches.prepared import Prepared
from huefield.data.batches.shapes import GrowingShapes
from huefield.data.dataset import Part, Parts
from huefield.model.ensemble import Ensemble, map_members
from huefield.model.forcefield import ForceField
from huefield.noise.novelty import Novelty
from huefield.potentials.base import AtomicConfig
from huefield.predict.batches import batches_of
from huefield.predict.elements import KnownElements

MOST_ATOMS = 100_000
"""Atoms of the training data, and of the validation data, whose features are computed, about."""
FEW = 100
"""Structures from which the usual number of atoms is estimated."""


def with_novelty(ensemble: Ensemble, parts: Parts) -> Ensemble:
    """The ensemble with noise that grows with the distance to its training data; unchanged if its noise cannot grow.

    Args:
        ensemble: trained members.
        parts: ``train`` and ``validation``, and perhaps others.
    """
    if not ensemble.members.noise.grows or not isinstance(ensemble.members.potential.config, AtomicConfig):
        return ensemble
    plain = replace(ensemble, members=replace(ensemble.members, novelty=None))
    with ensemble.own_precision():
        numbers, features = _features(plain, parts["train"])
        others, of_others = _features(plain, KnownElements(plain).part(parts["validation"]))
        if features is None or of_others is None:
            return ensemble
        fitted = [Novelty.fitted(numbers, *given) for given in _by_member(features, others, of_others)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves).astype(ensemble.precision), *fitted)
    return replace(plain, members=replace(plain.members, novelty=stacked))


def _by_member(
    features: Float[np.ndarray, "M n F"], others: Int[np.ndarray, " v"], of_others: Float[np.ndarray, "M v F"]
) -> Iterator[tuple[Float[np.ndarray, "n F"], Int[np.ndarray, " v"], Float[np.ndarray, "v F"]]]:
    """Features of training atoms, numbers and features of validation atoms, for each member."""
    for trained, validated in zip(features, of_others, strict=True):
        yield trained.astype(float), others, validated.astype(float)


def _features(ensemble: Ensemble, part: Part) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "M n F"] | None]:
    """Atomic numbers, and features of the atoms for each member; None if the potential has no features."""
    few = part.at_most(FEW)
    size = float(few.block(np.arange(len(few))).sizes.mean()) if len(few) else 1.0
    some = part.at_most(max(1, int(MOST_ATOMS / size)))
    cutoff = ensemble.members.potential.atomic_config.cutoff_angstrom
    numbers, found, shapes = [np.zeros(0, int)], [], GrowingShapes()
    for block in some.blocks():
        prepared = Prepared.of(Part(part.name, block, np.arange(len(block))), cutoff, ensemble.isolated_energies_of)
        for indices, batch in batches_of(prepared, shapes):
            features = _of_members(ensemble, batch.graph)
            if features is None:
                return numbers[0], None
            real = int(prepared.sizes[indices].sum())
            found.append(np.asarray(features)[:, :real])
            numbers.append(np.asarray(batch.graph.atomic_numbers)[:real].astype(int))
    return np.concatenate(numbers), np.concatenate(found, axis=1)


@eqx.filter_jit
def _of_members(ensemble: Ensemble, graph: Graph) -> Float[Array, "M A F"] | None:
    def of_member(member: ForceField) -> Float[Array, "A F"] | None:
        return member.potential(graph).features

    return map_members(of_member, ensemble.members, ensemble.strategy)
