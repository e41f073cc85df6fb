"""Rows of the table: the paper's three models and variants that the paper does not have."""

from collections.abc import Sequence
from dataclasses import dataclass

from huefield.noise import ColoredNoise, LocalNoise, LocalWhiteNoise, NoiseConfig, VanillaNoise, WhiteNoise
from huefield.noise.base import LevelReadout
from huefield.support.errors import HuefieldError
from huefield.training.stages import LevelLearns, NLLStage, Stage


@dataclass(frozen=True)
class ModelRow:
    """One row of the table: a noise model and the way it is trained."""

    name: str
    """Name of the row's folder and on the command line."""
    title: str
    """Name in tables and figures."""
    noise: NoiseConfig
    joint: bool = False
    """Whether the last stage maximises the joint likelihood of energy and forces instead of the marginal ones."""
    energy_weight: float = 1.0
    """Weight of the energy term in the likelihood; at 1 it is one of 3N + 1 equal terms."""
    level_learns: LevelLearns = "likelihood"
    """Terms of the likelihood that train ρ, the noise level of the energy."""

    def objectives(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Apply the row's weights and likelihood to the stages."""

        def changed(stage: Stage) -> Stage:
            if not stage.trains_noise:
                return stage
            joint = {"joint": self.joint} if isinstance(stage, NLLStage) else {}
            changes = {"energy_weight": self.energy_weight, "level_learns": self.level_learns}
            return stage.model_copy(update={**changes, **joint})

        return tuple(map(changed, stages))

    @property
    def is_coherent(self) -> bool:
        """Whether the force noise is the derivative of the energy noise."""
        return isinstance(self.noise, ColoredNoise.Config | LocalNoise.Config)


def _colored(readout: LevelReadout = "sum", **choices: object) -> ColoredNoise.Config:
    return ColoredNoise.Config.model_validate({"readout": readout, **choices})


PAPER = (
    ModelRow("vanilla", "vanilla", VanillaNoise.Config()),
    ModelRow("white", "white", WhiteNoise.Config()),
    ModelRow("colored", "colored", _colored()),
)
"""[J23] arXiv:2312.04174v1: the models of its table."""

LOCAL = (
    ModelRow("local", "local", LocalNoise.Config()),
    ModelRow("white-local", "white, local", LocalWhiteNoise.Config()),
)
"""Size-consistent noise; the first is the default of the presets."""

BEYOND = (
    *LOCAL,
    ModelRow("colored-atom", "colored, γ per atom", _colored(gamma="atom")),
    ModelRow("colored-force", "colored, γ = (ω/ρ)², ω per atom", _colored(gamma="force")),
    ModelRow("white-pooled", "white, pooled", WhiteNoise.Config(pooling=True)),
    ModelRow("colored-element", "colored, γ per element", _colored(gamma="element")),
    ModelRow("colored-joint", "colored, joint likelihood", _colored(), joint=True),
    ModelRow("colored-atom-joint", "colored, γ per atom, joint likelihood", _colored(gamma="atom"), joint=True),
    ModelRow(
        "colored-atom-evenly", "colored, γ per atom, ρ learns evenly", _colored(gamma="atom"), level_learns="evenly"
    ),
    ModelRow(
        "colored-atom-by-energies",
        "colored, γ per atom, ρ learns from energies",
        _colored(gamma="atom"),
        level_learns="energies",
    ),
    ModelRow("colored-channels", "colored, γ per atom, 3 channels", _colored(gamma="atom", channels=3)),
    ModelRow("white-energies", "white, energies count 5 times", WhiteNoise.Config(), energy_weight=5),
    ModelRow(
        "colored-atom-energies", "colored, γ per atom, energies count 5 times", _colored(gamma="atom"), energy_weight=5
    ),
)

READOUTS = (
    ModelRow("colored-atom-mean", "colored, γ per atom, ρ from a mean", _colored("mean", gamma="atom")),
    ModelRow("colored-atom-root", "colored, γ per atom, ρ from a sum/√N", _colored("root", gamma="atom")),
    ModelRow("white-mean", "white, ρ from a mean", WhiteNoise.Config(readout="mean")),
)
"""Ways to read ρ from the atoms; they differ only for molecules of different sizes."""

ROWS = {row.name: row for row in (*PAPER, *BEYOND, *READOUTS)}


def all_rows(*, mixed_sizes: bool) -> tuple[ModelRow, ...]:
    """All rows; those about the readout of ρ only for data with molecules of different sizes."""
    return (*PAPER, *BEYOND, *(READOUTS if mixed_sizes else ()))


def rows_named(names: Sequence[str]) -> tuple[ModelRow, ...]:
    """Find rows by name, in the order of the table."""
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise HuefieldError(f"unknown row {unknown[0]!r}; known rows: {', '.join(ROWS)}")
    return tuple(row for name, row in ROWS.items() if name in names)
