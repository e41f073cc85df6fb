"""Steps of molecular dynamics whose state can be saved and restored to the last bit.

Langevin dynamics draws the random numbers of step n from a generator with the seed (seed, n). They are therefore the
same whether or not a run was interrupted before.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.md.verlet import VelocityVerlet

from huefield.ase.calculator import Calculator
from huefield.ase.md.config import MDConfig

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class State:
    """Everything that future steps depend on."""

    step: int
    tensors: Tensors
    """Positions, momenta and cell in ASE's units, and the state of the integrator."""

    @classmethod
    def of(cls, atoms: Atoms, step: int = 0) -> "State":
        """State of atoms without that of an integrator."""
        cell = np.array(atoms.cell, float)
        return cls(step, {"positions": atoms.get_positions(), "momenta": atoms.get_momenta(), "cell": cell})


class Dynamics:
    """Moving atoms, advanced one step at a time."""

    def __init__(self, start: Atoms, state: State, config: MDConfig, calculator: Calculator) -> None:
        """Continue from a state.

        Args:
            start: elements, masses, periodic directions and constraints.
            state: positions, momenta and cell of these atoms.
            config: settings of the run.
            calculator: called once per step.
        """
        self.config, self.calculator, self.step = config, calculator, state.step
        self.atoms = start.copy()
        self.atoms.set_cell(state.tensors["cell"])
        self.atoms.set_positions(state.tensors["positions"], apply_constraint=False)
        self.atoms.set_momenta(state.tensors["momenta"], apply_constraint=False)
        self.atoms.calc = calculator
        self._choose_uncertainty(state.step)
        if config.engine.barostat:
            self.atoms.get_stress()  # from now on the calculator computes it together with the forces
        self.atoms.get_forces()
        self._integrator = config.engine.integrator(self.atoms, config)
        for name in config.engine.state:
            if name in state.tensors:
                value = state.tensors[name]
                setattr(self._integrator, name, value if value.ndim else float(value))

    def advance(self) -> None:
        """Take one step. Raises ``NoPredictionError`` if the model cannot predict the new structure."""
        self.step += 1
        self._choose_uncertainty(self.step)
        if not isinstance(self._integrator, VelocityVerlet):
            self._integrator.rng = np.random.default_rng([self.config.seed, self.step])
        with np.errstate(over="ignore", invalid="ignore"):  # explosions are reported as errors
            self._integrator.step()  # type: ignore[no-untyped-call]

    def state(self) -> State:
        """State from which another object continues in the same way."""
        state = State.of(self.atoms, self.step)
        remembered = {name: np.array(getattr(self._integrator, name)) for name in self.config.engine.state}
        return State(self.step, {**state.tensors, **remembered})

    @property
    def results(self) -> dict[str, Any]:
        """Results of the calculator for the current positions."""
        return self.calculator.results

    def _choose_uncertainty(self, step: int) -> None:
        every = self.config.uncertainty_every
        self.calculator.uncertainty = "always" if every and step % every == 0 else "on_request"
