"""The statistical ensembles of molecular dynamics: everything that distinguishes nve, nvt and npt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from ase import Atoms, units
from ase.constraints import FixCom
from ase.md.langevin import Langevin
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.verlet import VelocityVerlet

if TYPE_CHECKING:
    from huefield.ase.md.config import MDConfig

EnsembleName = Literal["nve", "nvt", "npt"]
Integrator = VelocityVerlet | Langevin | LangevinBAOAB


@dataclass(frozen=True)
class Engine:
    """One statistical ensemble."""

    integrator: Callable[[Atoms, "MDConfig"], Integrator]
    """ASE's integrator for atoms with a calculator."""
    thermostat: bool
    """Whether a temperature is imposed; otherwise the total energy is conserved."""
    barostat: bool = False
    """Whether a pressure is imposed, which needs stresses and a periodic cell."""
    centre_moves: bool = False
    """Whether the centre of mass moves."""
    rotates: bool = True
    """Whether a molecule rotates as a whole."""
    state: tuple[str, ...] = ()
    """Attributes of the integrator that the next step depends on, beside the atoms."""


def _velocity_verlet(atoms: Atoms, config: "MDConfig") -> Integrator:
    return VelocityVerlet(atoms, config.timestep_fs * units.fs)


def _langevin(atoms: Atoms, config: "MDConfig") -> Integrator:
    if not atoms.constraints:
        atoms.set_constraint(FixCom())
    return Langevin(
        atoms,
        config.timestep_fs * units.fs,
        temperature_K=config.temperature_kelvin,
        friction=config.friction_per_fs / units.fs,
        fixcm=False,
    )


def _langevin_hoover(atoms: Atoms, config: "MDConfig") -> Integrator:
    kelvin, period = config.temperature_kelvin, config.barostat_fs * units.fs
    assert kelvin is not None  # noqa: S101 - the configuration requires it
    return LangevinBAOAB(
        atoms,
        config.timestep_fs * units.fs,
        temperature_K=kelvin,
        externalstress=-config.pressure_bar * units.bar,
        hydrostatic=True,
        T_tau=1 / (config.friction_per_fs / units.fs),
        P_tau=period,
        P_mass=barostat_mass(len(atoms), kelvin, period),
        rng=np.random.default_rng([config.seed, 0]),
    )


def barostat_mass(num_atoms: int, kelvin: float, period: float) -> float:
    """W = (3N + 3) k_B T τ², Martyna, Tobias and Klein, J. Chem. Phys. 101, 4177 (1994)."""
    return (3 * num_atoms + 3) * units.kB * kelvin * period**2


ENGINES: dict[EnsembleName, Engine] = {
    "nve": Engine(_velocity_verlet, thermostat=False, rotates=False),
    "nvt": Engine(_langevin, thermostat=True),
    "npt": Engine(
        _langevin_hoover,
        thermostat=True,
        barostat=True,
        centre_moves=True,
        state=("p_eps", "force_eps", "accel"),
    ),
}
