import numpy as np
import pytest

from huefield.ase.thresholds import Threshold
from huefield.model.typical import SHARES, TypicalUncertainty, deviations, force_deviations

RNG = np.random.default_rng(0)
OWNERS = np.repeat(np.arange(200), RNG.integers(1, 6, 200))
ENERGY = {part: RNG.uniform(0.1, 1.0, 200) for part in ("total", "aleatoric", "epistemic")}
FORCES = {part: RNG.uniform(0.1, 1.0, (len(OWNERS), 3)) for part in ("total", "aleatoric", "epistemic")}


@pytest.fixture(scope="module")
def typical() -> TypicalUncertainty:
    return TypicalUncertainty.of([deviations(ENERGY, FORCES, OWNERS)], "validation data")


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_quantiles_are_those_of_the_data(typical: TypicalUncertainty, part: str) -> None:
    atoms = np.sqrt(FORCES[part].mean(1))
    largest = [atoms[index == OWNERS].max() for index in range(200)]
    mean = [atoms[index == OWNERS].mean() for index in range(200)]
    for measure, values in {"energy": np.sqrt(ENERGY[part]), "atom": atoms, "max": largest, "mean": mean}.items():
        for share in SHARES:
            assert typical.quantile(share, measure, part) == pytest.approx(np.quantile(values, share))


def test_between_kept_shares_quantiles_rise(typical: TypicalUncertainty) -> None:
    found = [typical.quantile(share, "max") for share in np.linspace(0, 1, 57)]
    assert (np.diff(found) >= 0).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        typical.quantile(1.01, "max")


def test_it_comes_back_from_json_and_can_be_a_key(typical: TypicalUncertainty) -> None:
    again = TypicalUncertainty.model_validate_json(typical.model_dump_json())
    assert again == typical
    assert hash(again) == hash(typical)


def test_nothing_is_not_typical() -> None:
    none = {part: np.zeros(0) for part in ENERGY}
    with pytest.raises(ValueError, match="no structures"):
        TypicalUncertainty.of(
            [deviations(none, {part: np.zeros((0, 3)) for part in ENERGY}, np.zeros(0, int))], "nothing"
        )


def test_blocks_have_the_quantiles_of_all_their_structures(typical: TypicalUncertainty) -> None:
    blocks = []
    for first, end in ((0, 70), (70, 200)):
        atoms = (first <= OWNERS) & (end > OWNERS)
        energy = {part: values[first:end] for part, values in ENERGY.items()}
        forces = {part: values[atoms] for part, values in FORCES.items()}
        blocks.append(deviations(energy, forces, OWNERS[atoms] - first))
    assert TypicalUncertainty.of(blocks, "validation data") == typical


def test_a_deviation_of_a_force_does_not_depend_on_the_frame() -> None:
    factor = RNG.normal(size=(3, 3))
    covariance = factor @ factor.T
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    variances = np.stack([np.diag(covariance), np.diag(turn.T @ covariance @ turn)])
    assert np.ptp(force_deviations(variances)) < 1e-12


def test_thresholds_are_numbers_or_shares(typical: TypicalUncertainty) -> None:
    assert Threshold.parse("0.3").limit(None, "max", "total") == 0.3
    assert Threshold.parse(0.25).limit(typical, "atom", "epistemic") == 0.25
    share = Threshold.parse(" 99.9% ")
    assert share.limit(typical, "max", "epistemic") == typical.quantile(0.999, "max", "epistemic")
    assert (str(share), str(Threshold.parse("0.3"))) == ("99.9%", "0.3")


@pytest.mark.parametrize(
    ("given", "message"),
    [("much", "a number in eV/Å such as 0.3"), ("101%", "between 0% and 100%"), ("-1", "above 0"), ("nan", "above 0")],
)
def test_what_is_no_threshold(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Threshold.parse(given)


def test_a_share_of_data_that_nobody_has_looked_at() -> None:
    with pytest.raises(ValueError, match="huefield calibrate MODEL DATA"):
        Threshold.parse("99%").limit(None, "max", "total")
