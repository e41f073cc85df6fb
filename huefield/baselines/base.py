"""The interface of a baseline: a calculator whose errors a model learns.

E = E₀(r) + E_θ(r) and F = F₀ − ∂E_θ/∂r, where E₀ and F₀ are results of the baseline and E_θ is the correction that
huefield trains, with its noise and its members. The baseline has no noise of its own.
"""

from abc import ABC, abstractmethod

from huefield.core.structure import BaselineResult, Structure
from huefield.support.errors import NoPredictionError


class BaselineError(NoPredictionError):
    """A baseline has no result for a structure; the message says which baseline, and why."""


class AbstractBaseline(ABC):
    """Computes energies, forces and, for periodic structures, stresses. Units: eV, Å."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name for tables and messages, such as ``GFN2-xTB``."""

    @property
    def version(self) -> str:
        """Program and version; empty if unknown."""
        return ""

    @property
    def worker_command(self) -> tuple[str, ...] | None:
        """Command of a process that computes the same (:mod:`huefield.baselines.process`); None if there is none."""
        return None

    @property
    def identity(self) -> str:
        """Text that tells baselines and their settings apart, by which kept results are found again."""
        return self.title

    @property
    def usual_workers(self) -> int:
        """Number of processes to compute many structures with, unless a user says another."""
        return 1

    def compute(self, structure: Structure) -> BaselineResult:
        """The results for a structure; raises a :class:`BaselineError` if there are none."""
        found = self._computed(structure)
        if not found.is_finite:
            raise BaselineError(f"{self.title} gives an energy, force or stress that is NaN or infinite")
        return found

    def close(self) -> None:  # noqa: B027 - most baselines hold nothing
        """Give back what the baseline holds, such as a process; it can be used again afterwards."""

    @abstractmethod
    def _computed(self, structure: Structure) -> BaselineResult:
        """The results as the program gives them."""
