"""Records of a step: a row of the log, a frame of the trajectory, a structure to label."""

from dataclasses import dataclass
from typing import Any

from ase import Atoms, units

from huefield.ase.md.config import MDConfig
from huefield.ase.md.frames import Entries, predicted, structure_text, with_uncertainty
from huefield.ase.md.watch import Deviations, atoms_above, measured, name_of_part

COLUMNS = ("step", "time_fs", "potential_energy", "kinetic_energy", "total_energy", "temperature_kelvin")
BAROSTAT_COLUMNS = ("pressure_bar", "volume_angstrom3")
UNCERTAINTY_COLUMNS = (
    *with_uncertainty("energy"),
    *(f"{name}_{measure}" for name in with_uncertainty("forces") for measure in ("max", "mean")),
)


def log_columns(config: MDConfig) -> tuple[str, ...]:
    """Columns of the log of a run."""
    barostat = BAROSTAT_COLUMNS if config.engine.barostat else ()
    return (*COLUMNS, *barostat, *(UNCERTAINTY_COLUMNS if config.uncertainty_every else ()))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A structure of a run and its prediction."""

    step: int
    time_fs: float
    atoms: Atoms
    temperature_kelvin: float
    results: dict[str, Any]
    """Results of the calculator."""
    deviations: Deviations
    """Standard deviations of the forces; empty if they were not computed."""

    def values(self) -> dict[str, float]:
        """Values for the log; unknown ones are left out."""
        potential, kinetic = self.results["energy"], self.atoms.get_kinetic_energy()
        known = (potential, kinetic, potential + kinetic, self.temperature_kelvin)
        values = dict(zip(COLUMNS, (self.step, self.time_fs, *known), strict=True))
        values |= predicted(self.results, with_uncertainty("energy"))
        for part, found in self.deviations.items():
            name = name_of_part(part)
            values |= {f"{name}_max": measured(found, "max"), f"{name}_mean": measured(found, "mean")}
        if "stress" in self.results:
            values |= dict(zip(BAROSTAT_COLUMNS, (pressure_bar(self.atoms), self.atoms.get_volume()), strict=True))
        return values

    def frame(self) -> str:
        """Frame of the trajectory, with the prediction."""
        names = ("energy", *with_uncertainty("energy"), "stress", *with_uncertainty("stress"))
        columns = {"momenta": self.atoms.get_momenta()}
        columns |= predicted(self.results, ("forces", *with_uncertainty("forces")))
        return structure_text(self.atoms, {**self._when(), **predicted(self.results, names)}, columns)

    def uncertain_frame(self, config: MDConfig, threshold: float) -> str:
        """Frame to be labelled, without energy and forces, which might be taken for labels."""
        chosen = self.deviations[config.part]
        entries: Entries = {
            **self._when(),
            **predicted(self.results, with_uncertainty("energy")),
            "measure": f"{config.measure} {config.part}",
            "measured": measured(chosen, config.measure),
            "threshold": threshold,
            "uncertain_atoms": " ".join(map(str, atoms_above(chosen, threshold).tolist())),
        }
        return structure_text(self.atoms, entries, predicted(self.results, with_uncertainty("forces")))

    def _when(self) -> Entries:
        return {"step": self.step, "time_fs": self.time_fs}


def temperature_kelvin(atoms: Atoms, freedom: int) -> float:
    """2 E_kin / (k_B × degrees of freedom); 0 if no atom can move."""
    return 2 * atoms.get_kinetic_energy() / (units.kB * freedom) if freedom else 0.0


def pressure_bar(atoms: Atoms) -> float:
    """Pressure, including the kinetic part."""
    stress = atoms.get_stress(voigt=False, include_ideal_gas=True)
    return float(-stress.trace() / 3 / units.bar)
