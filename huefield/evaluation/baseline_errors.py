"""Errors of a baseline alone, to show beside those of the model that corrects it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from huefield.core.structure import Block
from huefield.predict.predictions import linear_in_composition


@dataclass(frozen=True)
class BaselineErrors:
    """Mean absolute and root mean square errors of a baseline; None for quantities without labels.

    Total energies of different methods differ by an energy for each element, which is fitted by least squares
    and subtracted.
    """

    energy_mae: float | None
    energy_rmse: float | None
    forces_mae: float | None
    forces_rmse: float | None

    @classmethod
    def of(cls, block: Block) -> "BaselineErrors | None":
        """Errors for labelled structures; None unless all of them have results of a baseline."""
        if block.baseline is None or not len(block) or not block.baseline.known.all():
            return None
        learnt = block.relative_to_baseline()
        labelled = learnt.select(learnt.has_energy)
        # With as few structures as elements the fit would be exact, and say nothing.
        enough = len(labelled) > len(np.unique(labelled.atomic_numbers))
        energy = labelled.energy - linear_in_composition(labelled, labelled.energy) if enough else np.zeros(0)
        return cls(*_mae_and_rmse(energy), *_mae_and_rmse(learnt.forces[learnt.has_forces[learnt.owners]]))

    def __str__(self) -> str:
        """One line for people."""
        parts = []
        if self.energy_mae is not None:
            parts.append(
                f"energies MAE {self.energy_mae:.4f}, RMSE {self.energy_rmse:.4f} eV (after a fit of one energy per "
                "element)"
            )
        if self.forces_mae is not None:
            parts.append(f"forces MAE {self.forces_mae:.4f}, RMSE {self.forces_rmse:.4f} eV/Å")
        return f"Errors of the baseline alone: {'; '.join(parts)}"


def _mae_and_rmse(error: Float[np.ndarray, "*n"]) -> tuple[float | None, float | None]:
    if not error.size:
        return None, None
    return float(np.abs(error).mean()), float(np.sqrt((error**2).mean()))
