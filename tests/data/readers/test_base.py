from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from huefield.core.structure import Block
from huefield.core.units import ENERGY_UNITS_EV, LENGTH_UNITS_ANGSTROM
from huefield.data.readers.base import (
    Conformations,
    EnergyUnit,
    Fault,
    LengthUnit,
    Units,
    UnreadableFileError,
    naming,
    row_slices,
)
from tests.data.readers.test_checks import WATER


def conformations(**changes: object) -> Conformations:
    fields = {
        "source": "set.h5:/H2O", "atomic_numbers": np.array([8, 1, 1]), "positions": np.array([WATER.positions] * 2),
        "energy": np.array([1.0, 2.0]), "forces": np.ones((2, 3, 3)), "rows": np.array([4, 7]), "group": "H2O",
    }  # fmt: skip
    return Conformations(**{**fields, **changes})  # type: ignore[arg-type]


def test_conformations_are_structures_of_the_same_atoms() -> None:
    (block,) = conformations().frames()
    assert isinstance(block, Block)
    assert [(s.energy, s.group, s.atomic_numbers.tolist()) for s in block] == [
        (e, "H2O", [8, 1, 1]) for e in (1.0, 2.0)
    ]
    np.testing.assert_array_equal(block[1].positions, WATER.positions)
    np.testing.assert_array_equal(block.frames, [4, 7])
    (without,) = conformations(forces=None).frames()
    assert isinstance(without, Block)
    assert not without.has_forces.any()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"atomic_numbers": np.array([8, 1, 257])}, r"unknown element: atomic numbers \[257\]"),
        ({"atomic_numbers": np.array([8.5, 1, 1])}, r"unknown element: atomic numbers \[8.5\]"),
        ({"atomic_numbers": np.array([8, 1, -1])}, r"unknown element: atomic numbers \[-1\]"),
        ({"atomic_numbers": np.array(["O", "H", "H"])}, "atomic numbers must be numbers"),
        ({"forces": np.ones((2, 2, 3))}, r"forces must have shape \(2, 3, 3\), but has shape \(2, 2, 3\)"),
        ({"energy": np.ones(3)}, r"energy must have shape \(2\), but has shape \(3,\)"),
        ({"positions": np.ones((2, 9))}, r"positions must have shape \(2, 3, 3\), but has shape \(2, 9\)"),
    ],
)
def test_arrays_that_do_not_fit_are_a_fault_of_each_row(changes: dict[str, object], reason: str) -> None:
    faults = list(conformations(**changes).frames())
    assert [fault.frame for fault in faults if isinstance(fault, Fault)] == [4, 7]
    with pytest.raises(ValueError, match=rf"set.h5:/H2O, frame 7: {reason}"):
        raise ValueError(str(faults[1]))


def test_slices_of_rows_cover_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huefield.data.readers.base.MAX_ROWS", 3)
    for length in (0, 1, 3, 7):
        pieces = [np.arange(length)[rows] for rows in row_slices(length)]
        assert np.concatenate([np.arange(0), *pieces]).tolist() == list(range(length))
        assert all(rows.stop - rows.start <= 3 for rows in row_slices(length))


def test_unit_names_are_those_of_the_tables() -> None:
    assert get_args(EnergyUnit) == tuple(ENERGY_UNITS_EV)
    assert get_args(LengthUnit) == tuple(LENGTH_UNITS_ANGSTROM)


def test_units_of_forces_and_stress_follow_from_energy_and_length() -> None:
    units = Units.named("hartree", "bohr")
    assert units.force == pytest.approx(51.422067476, rel=1e-9)  # atomic unit of force, CODATA 2018, in eV/Å
    assert units.stress * 160.21766340 == pytest.approx(29421.015697, rel=1e-9)  # of pressure, in GPa


def test_errors_of_libraries_name_the_file_and_ours_pass_as_they_are() -> None:
    with (
        pytest.raises(UnreadableFileError, match=r"some.h5 cannot be read; .* \(RuntimeError: bad object\)"),
        naming(Path("some.h5")),
    ):
        raise RuntimeError("bad object")
    with pytest.raises(UnreadableFileError, match=r"^ours$"), naming(Path("some.h5")):
        raise UnreadableFileError("ours")
