"""What runs of molecular dynamics are made of: starts, thresholds, frames and figures."""

import errno
import io
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.constraints import FixAtoms
from ase.io import read

from huefield.ase.calculator import Calculator
from huefield.ase.md import MDConfig, draw_md
from huefield.ase.md.dynamics import Dynamics, State
from huefield.ase.md.engines import barostat_mass
from huefield.ase.md.figure import read_log
from huefield.ase.md.folder import Folder
from huefield.ase.md.frames import predicted, structure_text, table_row
from huefield.ase.md.start import degrees_of_freedom, drawn_momenta, prepared, without
from huefield.ase.md.watch import Limits, Watch, atoms_above, deviations_in, isolated, measured
from huefield.core.rigid import rigid_motions
from huefield.model.ensemble import Ensemble
from huefield.model.typical import TypicalUncertainty, deviations
from tests.ase.md.test_run import ensemble
from tests.pictures import require_readable


def config(**changes: Any) -> MDConfig:
    return MDConfig.model_validate({"steps": 10, "temperature_kelvin": 300.0, **changes})


# --- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps\n.*greater than or equal to 1"),
        ({"timestep_fs": 0.0}, "timestep_fs\n.*greater than 0"),
        ({"temperature_kelvin": float("nan")}, "temperature_kelvin\n"),
        ({"temperature_kelvin": None}, r"nvt needs a temperature: set temperature_kelvin \(--temperature\)"),
        ({"threshold": "much"}, "such as 99.9%, not 'much'"),
        ({"threshold": "0.3", "uncertainty_every": 0}, "threshold has no effect with uncertainty_every 0"),
        ({"treshold": "0.3"}, "is not a known key; known are steps, temperature_kelvin"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_thresholds_are_normalised() -> None:
    assert config(threshold=0.3).threshold == "0.3"
    assert config(threshold=0.123456789).threshold == "0.123456789"
    assert config(threshold="99.99999%").threshold == "99.99999%"
    assert config(threshold=" 99.9% ").threshold == "99.9%"


# --- starts


def test_overall_motion_is_removed_from_momenta() -> None:
    atoms = molecule("CH3CH2OH")
    masses = atoms.get_masses()
    motions = rigid_motions(atoms.positions, masses, with_rotations=True)
    drawn = drawn_momenta(masses, 300.0, seed=1)
    atoms.set_momenta(without(motions, drawn, masses))
    np.testing.assert_allclose(atoms.get_momenta().sum(0), 0, atol=1e-12)
    np.testing.assert_allclose(atoms.get_angular_momentum(), 0, atol=1e-12)
    np.testing.assert_allclose(without(motions, atoms.get_momenta(), masses), atoms.get_momenta(), atol=1e-12)


def test_drawn_momenta_have_the_temperature() -> None:
    masses = np.tile([1.0, 16.0], 5000)
    momenta = drawn_momenta(masses, 300.0, seed=0)
    for mass in (1.0, 16.0):
        energies = momenta[masses == mass] ** 2 / (2 * mass)
        assert energies.mean() == pytest.approx(units.kB * 300 / 2, rel=0.03)
    assert np.abs(momenta - drawn_momenta(masses, 300.0, seed=1)).max() > 0.1


@pytest.mark.parametrize(("kind", "freedom"), [("nve", 3), ("nvt", 6)])
def test_degrees_of_freedom_of_molecules(kind: str, freedom: int) -> None:
    atoms = molecule("H2O")
    assert degrees_of_freedom(atoms, config(ensemble=kind)) == freedom
    atoms.set_constraint(FixAtoms([0]))
    assert degrees_of_freedom(atoms, config(ensemble=kind)) == 6


def test_degrees_of_freedom_of_crystals() -> None:
    crystal = bulk("Cu", cubic=True)
    assert [degrees_of_freedom(crystal, config(ensemble=kind)) for kind in ("nve", "nvt", "npt")] == [9, 9, 12]


def test_velocities_of_the_start_are_kept_by_default() -> None:
    atoms = molecule("H2O")
    atoms.set_momenta(atoms.positions - atoms.get_center_of_mass())
    kept, drawn = prepared(atoms, config()), prepared(atoms, config(draw_velocities=True))
    stretch = np.sum(kept.get_momenta() * atoms.get_momenta())
    assert stretch > 0.5 * np.sum(atoms.get_momenta() ** 2)
    assert np.abs(kept.get_momenta() - drawn.get_momenta()).max() > 0.1
    atoms.set_momenta(np.zeros((3, 3)))
    assert prepared(atoms, config()).get_momenta().any()
    assert not atoms.get_momenta().any(), "the start is not ours to change"


def test_fixed_atoms_do_not_move() -> None:
    atoms = molecule("H2O")
    atoms.set_constraint(FixAtoms([0]))
    momenta = prepared(atoms, config()).get_momenta()
    assert not momenta[0].any()
    assert momenta[1:].any()


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        (Atoms("H"), {}, "needs at least two atoms, but the start has 1"),
        (molecule("H2O"), {"ensemble": "nve", "temperature_kelvin": None}, "has no velocities: set temperature_kelvin"),
        (molecule("H2O"), {"ensemble": "npt"}, r"pbc is \[False, False, False\] and the volume 0 Å³"),
        (Atoms("OH", [[0, 0, 0], [1, 0, 0]], masses=[16, 0]), {}, "has no mass"),
        (Atoms("OH", [[0, 0, 0], [1, 0, 0]], momenta=np.full((2, 3), np.nan)), {}, "velocity of the start is NaN"),
        (Atoms("CuCu", [[0, 0, 0], [2, 2, 2]], cell=[4, 4, 4], pbc=True, constraint=FixAtoms([0])),
         {"ensemble": "npt"}, "npt does not support constraints"),
    ],
)  # fmt: skip
def test_invalid_starts_are_refused(start: Atoms, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(start, config(**changes))


# --- engines


class NoForces(Calculator):
    """Atoms that know nothing of each other."""

    def __init__(self) -> None:
        AseCalculator.__init__(self)

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)) -> None:
        AseCalculator.calculate(self, atoms, properties, system_changes)
        forces = np.zeros((len(self.atoms), 3))
        self.results = {"energy": 0.0, "free_energy": 0.0, "forces": forces, "stress": np.zeros(6)}


def gas(settings: MDConfig) -> Dynamics:
    """Cold at first."""
    start = bulk("Cu", cubic=True).repeat(2)
    start.set_momenta(drawn_momenta(start.get_masses(), 30.0, seed=1))
    return Dynamics(start, State.of(start), settings, NoForces())


def test_the_thermostat_has_its_temperature() -> None:
    settings = config(steps=1500, timestep_fs=1.0, friction_per_fs=0.05)
    dynamics, found = gas(settings), []
    for step in range(settings.steps):
        dynamics.advance()
        if step >= 100:
            kinetic = dynamics.atoms.get_kinetic_energy()
            found.append(2 * kinetic / units.kB / degrees_of_freedom(dynamics.atoms, settings))
    assert np.mean(found) == pytest.approx(300, rel=0.05)
    assert np.std(found) == pytest.approx(300 * np.sqrt(2 / 93), rel=0.3)


@pytest.mark.parametrize("sign", [1, -1])
def test_pressure_shrinks_and_tension_stretches(sign: int) -> None:
    dynamics = gas(config(steps=40, ensemble="npt", pressure_bar=sign * 2e4, barostat_fs=50.0))
    before = dynamics.atoms.get_volume()
    for _ in range(40):
        dynamics.advance()
    assert sign * (before - dynamics.atoms.get_volume()) > 0.002 * before


# --- thresholds


@pytest.fixture(scope="module")
def knowing() -> Ensemble:
    """A model that knows what is typical: structures of two atoms, with uncertainties up to 2 and up to 1 eV/Å."""
    owners = np.repeat(np.arange(100), 2)
    of_atoms = np.linspace(0.01, 1.0, 100)[owners] * np.tile([1.0, 2.0], 100)
    variance = np.repeat(of_atoms[:, None] ** 2, 3, 1)
    parts = ("total", "aleatoric", "epistemic")
    found = deviations(dict.fromkeys(parts, np.ones(100)), dict.fromkeys(parts, variance), owners)
    typical = TypicalUncertainty.of([found], "validation data")
    return ensemble().with_typical(typical)


@pytest.mark.parametrize(
    ("changes", "threshold", "refuse_above"),
    [
        ({"threshold": "0.3"}, 0.3, 3.0),
        ({"threshold": "0.3", "refuse_above": "0.5"}, 0.3, 0.5),
        ({"threshold": "100%"}, 2.0, 20.0),
        ({"threshold": "100%", "measure": "mean"}, 1.5, 15.0),
        ({"threshold": "50%", "measure": "max"}, 1.01, 10.1),
        ({}, None, 20.0),
        ({"uncertainty_every": 0}, None, None),
    ],
)
def test_limits(
    knowing: Ensemble, changes: dict[str, Any], threshold: float | None, refuse_above: float | None
) -> None:
    found = Limits.of(config(**changes), knowing)
    assert found.threshold == (threshold if threshold is None else pytest.approx(threshold, rel=0.02))
    assert found.refuse_above == (refuse_above if refuse_above is None else pytest.approx(refuse_above, rel=0.02))


def test_limits_of_atoms_are_below_those_of_structures(knowing: Ensemble) -> None:
    of_atoms, of_structures = (
        Limits.of(config(threshold="90%", measure=measure), knowing).threshold for measure in ("atom", "max")
    )
    assert 0 < of_atoms < 0.9 * of_structures


def test_thresholds_without_effect_are_refused(knowing: Ensemble) -> None:
    with pytest.raises(ValueError, match=r"refuse_above \(0\.2 eV/Å\) is not above the threshold \(0\.3 eV/Å\)"):
        Limits.of(config(threshold="0.3", refuse_above="0.2"), knowing)
    with pytest.raises(ValueError, match="no noise model: its aleatoric uncertainty is zero"):
        Limits.of(config(threshold="0.3", part="aleatoric"), knowing)
    single = Ensemble(jax.tree.map(lambda leaf: leaf[:1], ensemble().members))
    with pytest.raises(ValueError, match="only one member: its epistemic uncertainty is zero"):
        Limits.of(config(threshold="0.3", part="epistemic"), single)
    with pytest.raises(
        ValueError, match="does not know the uncertainties of its validation data, which a threshold of 99% needs"
    ):
        Limits.of(config(threshold="99%"), ensemble())
    assert Limits.of(config(), ensemble()).refuse_above == 10.0


def test_atoms_are_named_by_their_uncertainty() -> None:
    results = {"forces_uncertainty": np.diag([0.3, 3.0, 0.9]), "forces_uncertainty_epistemic": np.eye(3)}
    found = deviations_in(results)
    np.testing.assert_allclose(found["total"], np.array([0.3, 3.0, 0.9]) / np.sqrt(3))
    assert set(found) == {"total", "epistemic"}
    assert measured(found["total"], "max") == measured(found["total"], "atom") == pytest.approx(3 / np.sqrt(3))
    assert measured(found["total"], "mean") == pytest.approx(1.4 / np.sqrt(3))
    assert atoms_above(found["total"], 0.4).tolist() == [1, 2]
    assert atoms_above(found["total"], 40).tolist() == [1]
    watch = Watch(molecule("H2O"), config(), Limits(1.0, None), 3.0, 300.0)
    assert watch.uncertain(molecule("H2O"), found) == (
        "the uncertainty of forces is 1.73 eV/Å, above 1 eV/Å, most of all on H1"
    )
    assert not watch.uncertain(molecule("H2O"), {})
    watch = Watch(molecule("H2O"), config(measure="mean", part="epistemic"), Limits(0.5, 0.6), 3.0, 300.0)
    assert "the mean epistemic uncertainty of forces is 0.577" in watch.uncertain(molecule("H2O"), found)
    assert not watch.exploded(molecule("H2O"), found)
    low = Watch(molecule("H2O"), config(), Limits(0.1, 1.0), 3.0, 300.0).exploded(molecule("H2O"), found)
    assert "(refuse_above is 1 eV/Å, 10 times the threshold unless set; the threshold is 0.1 eV/Å)" in low
    assert watch.too_hot(5001.0) == "the temperature is 5001 K, above 5000 K"
    assert not watch.too_hot(4999.0)
    assert watch.too_hot(float("nan"))


def test_atoms_isolated_at_the_start_may_stay_isolated() -> None:
    far = Atoms("OHH", [[0, 0, 0], [1, 0, 0], [9, 0, 0]])
    near = Atoms("OHH", [[0, 0, 0], [1, 0, 0], [2, 0, 0]])
    assert isolated(far, 3.0).tolist() == [False, False, True]
    assert (
        Watch(near, config(), Limits(None, None), 3.0, 300.0)
        .exploded(far, {})
        .startswith("H2 left: no other atom is within the cutoff of 3 Å")
    )
    assert not Watch(far, config(), Limits(None, None), 3.0, 300.0).exploded(far, {})
    periodic = Atoms("H", cell=[2.5, 9, 9], pbc=True)
    assert not isolated(periodic, 3.0).any()


# --- frames and rows


def test_ase_reads_frames_as_they_were_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    atoms = Atoms("CuO", rng.normal(size=(2, 3)), cell=rng.normal(size=(3, 3)), pbc=(True, False, True))
    columns = {name: rng.normal(size=(2, 3)) for name in ("momenta", "forces", "forces_uncertainty")}
    stress = rng.normal(size=6)
    entries = {"step": 7, "energy": -9391.123456789, "atoms": "1 0", **predicted({"stress": stress}, ("stress",))}
    (tmp_path / "a.xyz").write_text(structure_text(atoms, entries, columns))
    found = read(tmp_path / "a.xyz")
    np.testing.assert_allclose(found.positions, atoms.positions, rtol=1e-11)
    np.testing.assert_allclose(found.cell[:], atoms.cell[:], rtol=1e-11)
    assert found.pbc.tolist() == [True, False, True]
    np.testing.assert_allclose(found.get_momenta(), columns["momenta"], rtol=1e-11)
    np.testing.assert_allclose(found.get_forces(), columns["forces"], rtol=1e-11)
    np.testing.assert_allclose(found.arrays["forces_uncertainty"], columns["forces_uncertainty"], rtol=1e-11)
    np.testing.assert_allclose(found.get_stress(), stress, rtol=1e-11)
    assert found.get_potential_energy() == pytest.approx(-9391.123456789, abs=1e-8)
    assert found.info["step"] == 7
    assert found.info["atoms"].tolist() == [1, 0]


def test_stress_uncertainties_have_six_components() -> None:
    results = {"stress": np.arange(6.0), "stress_uncertainty": np.arange(6.0), "energy": 1.0}
    found = predicted(results, ("stress", "stress_uncertainty", "stress_uncertainty_epistemic"))
    assert found["stress"].tolist() == [[0, 5, 4], [5, 1, 3], [4, 3, 2]]
    assert found["stress_uncertainty"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(found) == {"stress", "stress_uncertainty"}


class Full(io.FileIO):
    """On a disk that takes a few bytes yet."""

    def write(self, content: Any) -> int:
        if self.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(content[:5])


def test_a_full_disk_is_reported_with_advice(tmp_path: Path) -> None:
    start = molecule("H2O")
    folder = Folder(tmp_path, config(), ensemble(), start)
    folder.resume(folder.begin(State.of(start)))
    folder._files["log.csv"].close()
    with Full(tmp_path / "log.csv", "w") as file:
        folder._files["log.csv"] = file
        said = r"cannot write .*log\.csv: the disk is full.* up to its last checkpoint: make room and repeat"
        with pytest.raises(OSError, match=said):
            folder.append("log.csv", "step,time_fs\n")
        assert (tmp_path / "log.csv").read_text() == "step,"
        folder.close()


def test_rows_without_a_value_come_back_as_nan(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,a\n" + table_row({"step": 0, "a": None}, ("step", "a")) + "5,0.25\n10,0.")
    log = read_log(path)
    assert log["step"].tolist() == [0, 5]
    assert np.isnan(log["a"][0])
    assert log["a"][1] == 0.25


def test_the_mass_of_the_barostat() -> None:
    assert barostat_mass(9, 300.0, 2.0) == pytest.approx(30 * units.kB * 300 * 4)


# --- figures


def log_of(count: int) -> dict[str, np.ndarray]:
    time_fs = 5.0 * np.arange(count)
    names = [f"forces_uncertainty{part}_{m}" for part in ("", "_aleatoric", "_epistemic") for m in ("max", "mean")]
    uncertain = {name: np.where(np.arange(count) % 2, np.nan, 0.1 + 0.01 * np.arange(count)) for name in names}
    return {
        "time_fs": time_fs,
        "temperature_kelvin": np.full(count, 300.0),
        "total_energy": np.linspace(-5, -4.9, count),
        "forces_uncertainty_aleatoric_max": np.zeros(count),
        **{name: values for name, values in uncertain.items() if "aleatoric" not in name},
    }


def test_the_figure_shows_limits_and_available_quantities() -> None:
    figure = draw_md(log_of(40), config(threshold="0.3"), Limits(0.3, 3.0))
    top, middle, bottom = figure.axes
    assert [text.get_text() for text in top.get_legend().get_texts()] == [
        "total",
        "epistemic",
        "threshold 0.3",
        "exploded above 3",
    ]
    total, dots = top.lines[:2]
    assert np.isfinite(total.get_ydata()).all()
    assert (dots.get_ydata() > 0.3).all()
    assert len(dots.get_ydata()) == np.sum(log_of(40)["forces_uncertainty_max"] > 0.3) > 3
    assert middle.get_ylim()[0] == 0
    assert bottom.lines[0].get_ydata()[-1] == pytest.approx(100.0)  # meV
    require_readable(figure)
    plain = require_readable(draw_md(log_of(1), config(uncertainty_every=0), Limits(None, None)))
    assert len(plain.axes) == 2
    pressed = {**log_of(9), "volume_angstrom3": np.ones(9)}
    assert len(require_readable(draw_md(pressed, config(ensemble="npt"), Limits(None, 10.0))).axes) == 4


def test_the_figure_is_readable_when_no_structure_is_above_the_threshold() -> None:
    """The usual run. An empty line outside of the layout once squeezed all panels to a hair."""
    top, *_ = require_readable(draw_md(log_of(40), config(threshold="9"), Limits(9.0, 90.0))).axes
    assert top.get_position().height > 0.3
