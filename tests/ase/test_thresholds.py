"""Limits of the uncertainty above which the calculator warns."""

import pytest

from huefield.ase.thresholds import WarningLimits


@pytest.mark.parametrize(
    ("atoms", "limit"), [(1, 0.2), (10, 0.2), (20, 0.4), (1000, 20.0)], ids=lambda given: str(given)
)
def test_the_limit_of_the_energy_is_that_of_an_atom_beyond_known_sizes(atoms: int, limit: float) -> None:
    """Uncertainties of energies add up: a box of water is not suspicious because it is larger than a cluster."""
    limits = WarningLimits(energy=0.2, source="the validation data", most_atoms=10)
    assert limits.exceeded_by_energy(0.99 * limit, atoms) == ""
    said = limits.exceeded_by_energy(1.01 * limit, atoms)
    assert said == f"the energy is uncertain by {1.01 * limit:.3g} eV, more than the validation data: {limit:.3g} eV"


def test_without_a_known_size_the_limit_is_the_same_for_all() -> None:
    limits = WarningLimits(energy=0.2, source="the validation data")
    assert "more than the validation data: 0.2 eV" in limits.exceeded_by_energy(0.3, 1000)


def test_without_a_limit_nothing_is_too_uncertain() -> None:
    assert WarningLimits(force=0.1, source="the threshold").exceeded_by_energy(1e9, 3) == ""
