"""Training of the demonstration: a correction of GFN2-xTB to ωB97X/6-31G(d), then two kinds of noise from its mean."""

from pathlib import Path

from huefield.baselines.tblite import TbliteBaseline
from huefield.data.dataset import BundledData
from huefield.potentials import PaiNN
from huefield.training import presets
from huefield.training.config import TrainConfig

DATA = BundledData(level_of_theory="wb97x/6-31g(d)")
POTENTIAL = PaiNN.Config(features=32, layers=3, radial_functions=10)
STEPS = (4000, 400, 800)
"""Steps of squared error, β-NLL and NLL."""
RATE, NOISE_RATE = 1e-2, 5e-4


def mean_config(data: BundledData, steps: tuple[int, int, int] = STEPS) -> TrainConfig:
    """Training of the mean with squared errors, which all noise models share."""
    return _config(data, "vanilla", steps, slice(0, 1))


def noise_config(
    kind: presets.NoiseName, mean: Path, data: BundledData, steps: tuple[int, int, int] = STEPS
) -> TrainConfig:
    """Training of a noise model and of the mean with likelihoods, which starts from a model file."""
    return _config(data, kind, steps, slice(1, None)).model_copy(update={"start_from": mean})


def _config(data: BundledData, kind: presets.NoiseName, steps: tuple[int, int, int], stages: slice) -> TrainConfig:
    config = presets.with_care(
        data,
        POTENTIAL,
        presets.three_stages(steps, RATE, NOISE_RATE)[stages],
        noise=presets.noise_of_kind(kind),
        members=3,
        batch_size=8,
        validate_every=max(min(200, min(steps) // 2), 1),
        checkpoint_every=500,
    )
    return config.model_copy(update={"baseline": TbliteBaseline.Config()})
