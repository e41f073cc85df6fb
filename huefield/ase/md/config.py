"""What a run of molecular dynamics is."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from huefield.ase.thresholds import Threshold
from huefield.model.typical import PartOfUncertainty
from huefield.predict.evaluator import Precision
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

EnsembleName = Literal["nve", "nvt", "npt"]
ForceMeasure = Literal["max", "mean", "atom"]
MAY_CHANGE = ("steps", "measure", "part", "threshold", "on_threshold", "save_every", "refuse_above")
"""What a run may be gone on with in another way: none of these moves an atom."""


class MDConfig(FrozenConfig):
    """A run of molecular dynamics."""

    steps: int = Field(ge=1, description="to take in all")
    ensemble: EnsembleName = Field(
        "nvt",
        description="nve: velocity Verlet; nvt: Langevin with a fixed centre of mass; npt: Langevin-Hoover with BAOAB "
        "splitting, which scales the cell and keeps its shape",
    )
    temperature_kelvin: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of drawn velocities and of the thermostat"
    )
    timestep_fs: float = Field(0.5, gt=0, allow_inf_nan=False)
    friction_per_fs: float = Field(0.01, gt=0, allow_inf_nan=False, description="of nvt and npt")
    pressure_bar: float = Field(1.0, allow_inf_nan=False, description="of npt")
    barostat_fs: float = Field(1000.0, gt=0, allow_inf_nan=False, description="time scale of the volume in npt")
    draw_velocities: bool = Field(False, description="even if the start has some")
    seed: int = Field(0, ge=0, lt=2**31, description="of velocities and thermostat")
    precision: Precision = Field("float32", description="of the model; positions and velocities are always float64")
    every: int = Field(10, ge=1, description="steps between two frames of the trajectory")
    uncertainty_every: int = Field(10, ge=0, description="steps between two looks at the uncertainty; 0 for none")
    measure: ForceMeasure = Field(
        "max",
        description="what the threshold is for: the largest or mean uncertainty of a structure's forces, shares being "
        "those of structures; or that of each atom, shares being those of atoms",
    )
    part: PartOfUncertainty = Field("total", description="of the uncertainty that the threshold is for")
    threshold: str | None = Field(None, description="eV/Å such as 0.3, or a share of the validation data such as 99.9%")
    on_threshold: Literal["stop", "save"] = Field("stop", description="what to do with a structure beyond it")
    save_every: int = Field(100, ge=1, description="steps between two structures that are saved, at least")
    refuse_above: str | None = Field(
        None, description="uncertainty of an exploded structure; None for a multiple of the threshold"
    )
    checkpoint_every: int = Field(100, ge=1, description="steps between two states that the run can go on from")

    @field_validator("threshold", "refuse_above", mode="before")
    @classmethod
    def _readable(cls, given: object) -> object:
        return given if given is None else str(Threshold.parse(given if isinstance(given, float | int) else str(given)))

    @model_validator(mode="after")
    def _fits_together(self) -> "MDConfig":
        if self.temperature_kelvin is None and self.ensemble != "nve":
            raise HuefieldError(
                f"{self.ensemble} keeps a temperature: say which with temperature_kelvin (--temperature)"
            )
        asked = [name for name in ("threshold", "refuse_above") if getattr(self, name) is not None]
        if not self.uncertainty_every and asked:
            raise HuefieldError(
                f"{' and '.join(asked)} cannot be watched where uncertainty_every is 0: give a number of steps"
            )
        return self
