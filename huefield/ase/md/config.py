"""Settings of molecular dynamics."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from huefield.ase.md.engines import ENGINES, Engine, EnsembleName
from huefield.ase.thresholds import Threshold
from huefield.core.structure import Precision
from huefield.model.typical import PartOfUncertainty
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

ForceMeasure = Literal["max", "mean", "atom"]
MAY_CHANGE = ("steps", "measure", "part", "threshold", "on_threshold", "save_every", "refuse_above")
"""Settings that may change when a run is resumed: none of them moves an atom."""


class MDConfig(FrozenConfig):
    """Settings of a molecular dynamics run. ``huefield md`` has an option for each of them."""

    steps: int = Field(ge=1, le=10**12, description="Total number of steps.")
    temperature_kelvin: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Temperature of the thermostat and of newly drawn velocities."
    )
    ensemble: EnsembleName = Field(
        "nvt",
        description="nve: velocity Verlet; nvt: Langevin with a fixed centre of mass; npt: Langevin-Hoover (ASE's "
        "LangevinBAOAB), which scales the cell and keeps its shape.",
    )
    timestep_fs: float = Field(0.5, gt=0, allow_inf_nan=False, description="Time step.")
    friction_per_fs: float = Field(0.01, gt=0, allow_inf_nan=False, description="Friction of nvt and npt.")
    pressure_bar: float = Field(1.0, allow_inf_nan=False, description="Pressure of npt.")
    barostat_fs: float = Field(1000.0, gt=0, allow_inf_nan=False, description="Time scale of the volume in npt.")
    draw_velocities: bool = Field(False, description="Draw new velocities even if the start has some.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the velocities and of the thermostat.")
    precision: Precision = Field(
        "float32", description="Precision of the model; positions and velocities are always float64."
    )
    every: int = Field(10, ge=1, le=10**12, description="Steps between two frames of the trajectory.")
    uncertainty_every: int = Field(
        10, ge=0, le=10**12, description="Steps between two evaluations of the uncertainty; 0 for none."
    )
    threshold: str | None = Field(
        None,
        description="Largest acceptable uncertainty of forces: eV/Å such as 0.3, or a share of the validation data "
        "such as 99.9%.",
    )
    on_threshold: Literal["stop", "save"] = Field(
        "stop",
        description="Action above the threshold: stop (exit code 3), or save the structure for labelling and continue.",
    )
    save_every: int = Field(100, ge=1, le=10**12, description="Smallest number of steps between two saved structures.")
    measure: ForceMeasure = Field(
        "max",
        description="Uncertainty to compare with the threshold: the largest (max) or the mean of all atoms, with "
        "shares of structures; or that of each atom, with shares of atoms.",
    )
    part: PartOfUncertainty = Field("total", description="Part of the uncertainty to compare with the threshold.")
    refuse_above: str | None = Field(
        None,
        description="Uncertainty above which a structure counts as exploded (exit code 4). If not given: ten times the "
        "threshold, or without one ten times the largest uncertainty of the validation data (10 eV/Å if the model "
        "does not know it).",
    )
    checkpoint_every: int = Field(100, ge=1, le=10**12, description="Steps between two checkpoints.")

    @property
    def engine(self) -> Engine:
        """Properties of the chosen ensemble."""
        return ENGINES[self.ensemble]

    @field_validator("threshold", "refuse_above", mode="before")
    @classmethod
    def _readable(cls, given: object) -> object:
        return given if given is None else str(Threshold.parse(given if isinstance(given, float | int) else str(given)))

    @model_validator(mode="after")
    def _fits_together(self) -> "MDConfig":
        if self.temperature_kelvin is None and self.engine.thermostat:
            raise HuefieldError(f"{self.ensemble} needs a temperature: set temperature_kelvin (--temperature)")
        asked = [name for name in ("threshold", "refuse_above") if getattr(self, name) is not None]
        if not self.uncertainty_every and asked:
            raise HuefieldError(
                f"{' and '.join(asked)} has no effect with uncertainty_every 0: set uncertainty_every to a number of "
                "steps"
            )
        return self
