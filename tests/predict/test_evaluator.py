"""Structures that an ensemble cannot predict."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core.structure import Structure
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.predict.evaluator import Evaluator
from huefield.support.errors import HuefieldError, NoPredictionError
from tests.potentials.cases import NOISE, crystal, molecule, randomised
from tests.training.helpers import POTENTIAL


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "C", "N", "O"]}, "noise": NOISE}
    )
    return randomised(Ensemble.build(config, 2, key=jax.random.key(0)))


@pytest.fixture(scope="module")
def evaluator(ensemble: Ensemble) -> Evaluator:
    return Evaluator(ensemble)


def moved(structure: Structure, atom: int, position: object) -> Structure:
    positions = structure.positions.copy()
    positions[atom] = position
    return replace(structure, positions=positions)


def slab() -> Structure:
    return replace(crystal(), pbc=np.array([True, True, False]))


EXPLODED = {
    "too close": (moved(molecule(6), 1, molecule(6).positions[0]), "are 0 Å apart"),
    "NaN position": (moved(molecule(6), 1, np.nan), "are NaN or infinite"),
    "infinite position": (moved(molecule(6), 1, np.inf), "are NaN or infinite"),
    "lost atom of a slab": (moved(slab(), 0, [0.0, 0.0, 1e9]), "atoms lost"),
    "collapsed cell": (replace(crystal(), cell=1e-3 * crystal().cell), "are the lattice vectors in Å|Å apart"),
    "NaN cell": (replace(crystal(), cell=np.nan * crystal().cell), "give the cell"),
    "flat cell": (replace(crystal(), cell=crystal().cell[[0, 0, 1]]), "linearly dependent"),
}


@pytest.mark.parametrize("name", EXPLODED)
def test_an_exploded_structure_has_no_prediction(evaluator: Evaluator, name: str) -> None:
    structure, message = EXPLODED[name]
    for ask in (evaluator.mean, evaluator.marginals, evaluator.prediction, evaluator.require_sense):
        with pytest.raises(NoPredictionError, match=message):
            ask(structure)


def test_a_prediction_that_is_not_finite_is_none(ensemble: Ensemble) -> None:
    broken = jax.tree.map(lambda leaf: jnp.nan * leaf if eqx.is_inexact_array(leaf) else leaf, ensemble)
    with pytest.raises(NoPredictionError, match="the prediction is NaN or infinite"):
        Evaluator(broken).mean(molecule(3))


def test_wrong_input_is_no_explosion(evaluator: Evaluator) -> None:
    gold = replace(molecule(3), atomic_numbers=np.full(3, 79, np.uint8))
    for structure, message in ((gold, "contains Au"), (molecule(0), "no atoms")):
        with pytest.raises(HuefieldError, match=message) as caught:
            evaluator.mean(structure)
        assert not isinstance(caught.value, NoPredictionError)
