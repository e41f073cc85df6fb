"""The rows of the table: the paper's three models, and those that go beyond it."""

from collections.abc import Sequence
from dataclasses import dataclass

from huefield.noise import ColoredNoise, NoiseConfig, VanillaNoise, WhiteNoise
from huefield.noise.base import LevelReadout
from huefield.support.errors import HuefieldError
from huefield.training.stages import LevelLearns, NLLStage, Stage


@dataclass(frozen=True)
class Row:
    """A way to model noise and to train it."""

    name: str
    """Of its folder and on the command line."""
    title: str
    """In tables and figures."""
    noise: NoiseConfig
    joint: bool = False
    """Whether the last stage maximises the joint likelihood of energy and forces, not the marginals'."""
    energy_weight: float = 1.0
    """How often energies count in likelihoods. The likelihood proper has one of them and 3N components of forces."""

    level_learns: LevelLearns = "likelihood"
    """What teaches ρ."""

    def objectives(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The stages with the likelihoods of the row."""

        def changed(stage: Stage) -> Stage:
            if not stage.trains_noise:
                return stage
            joint = {"joint": self.joint} if isinstance(stage, NLLStage) else {}
            changes = {"energy_weight": self.energy_weight, "level_learns": self.level_learns}
            return stage.model_copy(update={**changes, **joint})

        return tuple(map(changed, stages))

    @property
    def is_coherent(self) -> bool:
        """Whether the noise of forces is the derivative of that of energies."""
        return isinstance(self.noise, ColoredNoise.Config)


def _colored(readout: LevelReadout = "sum", **choices: object) -> ColoredNoise.Config:
    return ColoredNoise.Config.model_validate({"readout": readout, **choices})


PAPER = (
    Row("vanilla", "vanilla", VanillaNoise.Config()),
    Row("white", "white", WhiteNoise.Config()),
    Row("colored", "colored", _colored()),
)
"""[J23] arXiv:2312.04174v1: the models of its table."""

BEYOND = (
    Row("colored-atom", "colored, γ per atom", _colored(gamma="atom")),
    Row("colored-force", "colored, γ = (ω/ρ)², ω per atom", _colored(gamma="force")),
    Row("white-pooled", "white, pooled", WhiteNoise.Config(pooling=True)),
    Row("colored-element", "colored, γ per element", _colored(gamma="element")),
    Row("colored-joint", "colored, joint likelihood", _colored(), joint=True),
    Row("colored-atom-joint", "colored, γ per atom, joint likelihood", _colored(gamma="atom"), joint=True),
    Row("colored-atom-evenly", "colored, γ per atom, ρ learns evenly", _colored(gamma="atom"), level_learns="evenly"),
    Row(
        "colored-atom-by-energies",
        "colored, γ per atom, ρ learns from energies",
        _colored(gamma="atom"),
        level_learns="energies",
    ),
    Row("colored-channels", "colored, γ per atom, 3 channels", _colored(gamma="atom", channels=3)),
    Row("white-energies", "white, energies count 5 times", WhiteNoise.Config(), energy_weight=5),
    Row(
        "colored-atom-energies", "colored, γ per atom, energies count 5 times", _colored(gamma="atom"), energy_weight=5
    ),
)

READOUTS = (
    Row("colored-atom-mean", "colored, γ per atom, ρ from a mean", _colored("mean", gamma="atom")),
    Row("colored-atom-root", "colored, γ per atom, ρ from a sum/√N", _colored("root", gamma="atom")),
    Row("white-mean", "white, ρ from a mean", WhiteNoise.Config(readout="mean")),
)
"""How ρ is read from the atoms, which matters where molecules differ in size."""

ROWS = {row.name: row for row in (*PAPER, *BEYOND, *READOUTS)}


def all_rows(*, mixed_sizes: bool) -> tuple[Row, ...]:
    """Every row that says something about data whose molecules differ in size, or do not."""
    return (*PAPER, *BEYOND, *(READOUTS if mixed_sizes else ()))


def rows_named(names: Sequence[str]) -> tuple[Row, ...]:
    """The rows with these names, in the order of the table."""
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise HuefieldError(f"there is no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return tuple(row for name, row in ROWS.items() if name in names)
