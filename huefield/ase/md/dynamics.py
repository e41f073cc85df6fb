"""Engines of ASE whose state can be put into a file and taken out again, to the last bit.

Langevin dynamics draw the random numbers of step n from a generator with the seed (seed, n). Thus they are the same
whether a run was interrupted before or not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.constraints import FixCom
from ase.md.langevin import Langevin
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.verlet import VelocityVerlet

from huefield.ase.calculator import Calculator
from huefield.ase.md.config import MDConfig

Tensors = dict[str, np.ndarray]
Engine = VelocityVerlet | Langevin | LangevinBAOAB
BAROSTAT = ("p_eps", "force_eps", "accel")
"""What LangevinBAOAB remembers from one step to the next, beside the atoms."""


@dataclass(frozen=True, eq=False)
class State:
    """All that the steps to come depend on."""

    step: int
    tensors: Tensors
    """Positions, momenta and cell in ASE's units, and what an engine remembers."""

    @classmethod
    def of(cls, atoms: Atoms, step: int = 0) -> "State":
        """Of atoms that no engine has moved yet."""
        cell = np.array(atoms.cell, float)
        return cls(step, {"positions": atoms.get_positions(), "momenta": atoms.get_momenta(), "cell": cell})


class Dynamics:
    """Atoms on their way, one step after the other."""

    def __init__(self, start: Atoms, state: State, config: MDConfig, calculator: Calculator) -> None:
        """Go on from a state.

        Args:
            start: gives elements, masses, periodic directions and what is held fast.
            state: of such atoms.
            config: of the run.
            calculator: is asked once for each step.
        """
        self.config, self.calculator, self.step = config, calculator, state.step
        self.atoms = start.copy()
        self.atoms.set_cell(state.tensors["cell"])
        self.atoms.set_positions(state.tensors["positions"], apply_constraint=False)
        self.atoms.set_momenta(state.tensors["momenta"], apply_constraint=False)
        self.atoms.calc = calculator
        self._ask_at(state.step)
        if config.ensemble == "npt":
            self.atoms.get_stress()  # from now on with the forces
        self.atoms.get_forces()
        self._engine = _engine(self.atoms, config)
        for name in BAROSTAT:
            if name in state.tensors:
                value = state.tensors[name]
                setattr(self._engine, name, value if value.ndim else float(value))

    def advance(self) -> None:
        """Take one step. A structure that the model can say nothing about raises ``ValueError``."""
        self.step += 1
        self._ask_at(self.step)
        if not isinstance(self._engine, VelocityVerlet):
            self._engine.rng = np.random.default_rng([self.config.seed, self.step])
        with np.errstate(over="ignore", invalid="ignore"):  # explosions are told of in words
            self._engine.step()  # type: ignore[no-untyped-call]

    def state(self) -> State:
        """From which a new one goes on as this one would."""
        state = State.of(self.atoms, self.step)
        remembered = BAROSTAT if self.config.ensemble == "npt" else ()
        return State(
            self.step, {**state.tensors, **{name: np.array(getattr(self._engine, name)) for name in remembered}}
        )

    @property
    def results(self) -> dict[str, Any]:
        """What the calculator says of the atoms as they are."""
        return self.calculator.results

    def _ask_at(self, step: int) -> None:
        every = self.config.uncertainty_every
        self.calculator.uncertainty = "always" if every and step % every == 0 else "on_request"


def _engine(atoms: Atoms, config: MDConfig) -> Engine:
    timestep, kelvin = config.timestep_fs * units.fs, config.temperature_kelvin
    if config.ensemble == "nve":
        return VelocityVerlet(atoms, timestep)
    friction = config.friction_per_fs / units.fs
    if config.ensemble == "nvt":
        if not atoms.constraints:
            atoms.set_constraint(FixCom())
        return Langevin(atoms, timestep, temperature_K=kelvin, friction=friction, fixcm=False)
    assert kelvin is not None  # noqa: S101 - the configuration has seen to it
    period = config.barostat_fs * units.fs
    return LangevinBAOAB(
        atoms,
        timestep,
        temperature_K=kelvin,
        externalstress=-config.pressure_bar * units.bar,
        hydrostatic=True,
        T_tau=1 / friction,
        P_tau=period,
        P_mass=barostat_mass(len(atoms), kelvin, period),
        rng=np.random.default_rng([config.seed, 0]),
    )


def barostat_mass(num_atoms: int, kelvin: float, period: float) -> float:
    """W = (3N + 3) k_B T τ², as Martyna, Tobias and Klein have it, J. Chem. Phys. 101, 4177 (1994)."""
    return (3 * num_atoms + 3) * units.kB * kelvin * period**2
