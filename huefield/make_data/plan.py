"""Sampling plan of a data set: molecules, reactions, numbers of configurations, and splits."""

from typing import TypeVar

import numpy as np
from jaxtyping import UInt8
from pydantic import Field

from huefield.make_data.molecules import Molecule, equilibrium_molecules
from huefield.make_data.reactions import Reaction, elementary_reactions
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

SPLITS = ("train", "validation", "test_id", "test_reactions", "test_hot", "test_larger", "test_paths")
"""Training, validation and test data of one distribution; unseen reactions; the same molecules at high temperature;
larger molecules and reactions; the images of converged bands, in their order."""
ALWAYS = SPLITS[:5]
"""Splits of every data set; the others are there if the plan asks for them."""

Item = TypeVar("Item", Molecule, Reaction)


class SamplingPlan(FrozenConfig):
    """Counts, temperatures and limits."""

    molecules: tuple[str, ...] | None = Field(None, description="names of the molecules; all known ones if None")
    reactions: tuple[str, ...] | None = Field(None, description="names of the reactions; all known ones if None")
    modes_per_molecule: int = Field(45, ge=0, description="normal mode displacements of a molecule")
    dynamics_per_molecule: int = Field(15, ge=0, description="frames of dynamics of a molecule")
    dynamics_k: float = Field(500.0, gt=0, description="temperature of the dynamics")
    hot_per_molecule: int = Field(8, ge=0, description="frames of hot dynamics of a molecule, over all temperatures")
    hot_k: tuple[float, ...] = Field((1500.0, 2000.0), description="temperatures of the hot dynamics")
    frames_per_reaction: int = Field(85, ge=0, description="most band images of a reaction")
    frames_per_held_out_reaction: int = Field(120, ge=0, description="most band images of a reaction kept for the test")
    validation_share: float = Field(0.08, ge=0, lt=1, description="share of the distribution used for validation")
    test_share: float = Field(0.12, ge=0, lt=1, description="share of the distribution used for its test")
    closest_angstrom: float = Field(0.005, ge=0, description="configurations closer than this are duplicates")
    closest_on_path_angstrom: float = Field(0.01, ge=0, description="the same among the band images of a reaction")
    whole_paths: bool = Field(False, description="keep all images of the converged bands for a test")
    max_heavy_atoms: int | None = Field(
        None, ge=1, description="molecules and reactions with more atoms heavier than hydrogen are kept for a test"
    )
    fewer_above: int | None = Field(
        None,
        ge=1,
        description="molecules and reactions with more such atoms have fewer configurations",
    )
    share_of_larger: float = Field(0.2, gt=0, le=1, description="factor on the numbers of configurations of those")
    largest_force: float = Field(30.0, gt=0, description="frames with a larger force in eV/Å are dropped")

    def scaled(self, scale: float) -> "SamplingPlan":
        """Multiply all counts and round; positive counts stay positive."""
        counts = [name for name in type(self).model_fields if "_per_" in name]
        values = {name: getattr(self, name) for name in counts}
        return self.model_copy(update={name: max(round(scale * n), 1) if n else 0 for name, n in values.items()})

    def is_larger(self, numbers: UInt8[np.ndarray, " N"]) -> bool:
        """Whether a molecule has more heavy atoms than those that are trained on."""
        return _exceeds(numbers, self.max_heavy_atoms)

    def of_unit(self, numbers: UInt8[np.ndarray, " N"]) -> "SamplingPlan":
        """The plan with the counts of a molecule or reaction of these atoms."""
        return self.scaled(self.share_of_larger) if _exceeds(numbers, self.fewer_above) else self

    def dynamics_runs(self) -> list[tuple[float, int]]:
        """Temperature and number of frames of each trajectory of a molecule, the hot ones last."""
        hot = range(self.hot_per_molecule)
        runs = [(kelvin, len(hot[start :: len(self.hot_k)])) for start, kelvin in enumerate(self.hot_k)]
        return [run for run in [(self.dynamics_k, self.dynamics_per_molecule), *runs] if run[1]]

    def chosen_molecules(self) -> list[Molecule]:
        """The molecules of the plan."""
        return _chosen(equilibrium_molecules(), self.molecules, "molecule")

    def chosen_reactions(self) -> list[Reaction]:
        """The reactions of the plan."""
        return _chosen(elementary_reactions(), self.reactions, "reaction")


PLAN = SamplingPlan()
"""Plan of the bundled data set."""


def _exceeds(numbers: UInt8[np.ndarray, " N"], heavy_atoms: int | None) -> bool:
    """Whether there are more atoms heavier than hydrogen; None for no limit."""
    return heavy_atoms is not None and int((numbers > 1).sum()) > heavy_atoms


def _chosen(available: list[Item], names: tuple[str, ...] | None, what: str) -> list[Item]:
    known = [item.name for item in available]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise HuefieldError(f"unknown {what} {unknown[0]!r}; known are {', '.join(known)}")
    return [item for item in available if names is None or item.name in names]
