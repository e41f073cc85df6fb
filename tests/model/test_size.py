"""Warnings of error bars that do not hold for large structures."""

import jax
import pytest

from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.size import size_remark
from huefield.model.typical import NOTHING, PartQuantiles, TypicalUncertainty
from huefield.noise import ColoredNoise, LocalNoise, LocalWhiteNoise, NoiseConfig, VanillaNoise, WhiteNoise
from huefield.potentials import MLPPotential


def ensemble(noise: NoiseConfig, most_atoms: int | None) -> Ensemble:
    config = ForceField.Config(potential=MLPPotential.Config(width=2, depth=1), noise=noise)
    none = PartQuantiles(total=NOTHING, aleatoric=NOTHING, epistemic=NOTHING)
    typical = TypicalUncertainty(
        source="validation data", structures=3, most_atoms=most_atoms, energy=none, atom=none, max=none, mean=none
    )
    return Ensemble.build(config, 1, key=jax.random.key(0)).with_typical(typical)


@pytest.mark.parametrize(("noise", "kind"), [(ColoredNoise.Config(), "colored"), (WhiteNoise.Config(), "white")])
def test_noise_that_vanishes_is_told_of_beyond_known_sizes(noise: NoiseConfig, kind: str) -> None:
    model = ensemble(noise, 10)
    assert size_remark(model, 10) == ""
    said = size_remark(model, 11)
    assert said.startswith(
        f"error bars for 11 atoms may be far too small: the noise model {kind} of this model, which "
    )
    assert "validated up to 10 atoms" in said
    assert said.endswith("Train with the noise model local, which does not")


def test_nothing_is_known_of_the_size() -> None:
    for model in (ensemble(ColoredNoise.Config(), None), ensemble(ColoredNoise.Config(), 5).with_typical(None)):
        assert "whose size at training is not known" in size_remark(model, 1)


@pytest.mark.parametrize("noise", [LocalNoise.Config(), LocalWhiteNoise.Config(), VanillaNoise.Config()])
@pytest.mark.parametrize("most_atoms", [3, None])
def test_size_consistent_noise_holds_for_all_sizes(noise: NoiseConfig, most_atoms: int | None) -> None:
    assert size_remark(ensemble(noise, most_atoms), 10_000) == ""
