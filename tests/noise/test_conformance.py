import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from huefield.core import Graph, Outputs
from huefield.noise import AbstractNoise, ColoredNoise, Covariance, VanillaNoise, WhiteNoise
from huefield.testing import check_noise

CONFIGS = [
    VanillaNoise.Config(),
    WhiteNoise.Config(),
    ColoredNoise.Config(),
    ColoredNoise.Config(gamma="atom"),
]
SLOW_CONFIGS = [
    ColoredNoise.Config(gamma="atom", channels=2, floor_ev=0.005),
    WhiteNoise.Config(pooling=True),
    ColoredNoise.Config(gamma="element"),
    ColoredNoise.Config(channels=3),
    ColoredNoise.Config(gamma="atom", readout="mean"),
    ColoredNoise.Config(gamma="force"),
    ColoredNoise.Config(gamma="force", channels=2),
    WhiteNoise.Config(readout="root"),
    WhiteNoise.Config(energy_floor_ev=0.01, force_floor_ev_per_angstrom=0.2),
]


@pytest.mark.parametrize(
    "config",
    [*CONFIGS, *(pytest.param(config, marks=pytest.mark.slow) for config in SLOW_CONFIGS)],
    ids=lambda c: "-".join(str(v) for v in c.model_dump().values()),
)
def test_noise_model_conforms(config: object) -> None:
    check_noise(config.build(), key=jax.random.key(0))


class BrokenNoise(AbstractNoise):
    """A stranger's model with one fault, chosen by name."""

    inner: ColoredNoise
    fault: str = eqx.field(static=True)
    config: ColoredNoise.Config = eqx.field(static=True, default_factory=ColoredNoise.Config)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        return self.inner.raw_outputs

    def levels(self, raw: jax.Array, graph: Graph) -> jax.Array:
        if self.fault == "no floor":
            return jax.nn.softplus(self.inner.offset[:, None] + graph.partition.sum(raw).T)
        if self.fault == "sum over the batch":
            return self.inner.levels(raw, graph) + 0.1 * jnp.sum(graph.partition.sum(raw))
        return self.inner.levels(raw, graph)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        right = self.inner.covariance(outputs, graph)
        if self.fault == "noise on padding":
            return eqx.tree_at(lambda c: c.diagonal.forces, right, right.diagonal.forces + 0.1)
        if self.fault == "wrong precision":
            return eqx.tree_at(lambda c: c.diagonal.energy, right, right.diagonal.energy.astype(jnp.float16))
        return right

    def initialised(self, energy_rmse: float, force_rmse: float, atoms: float = 1.0) -> "BrokenNoise":
        if self.fault == "not initialised":
            return self
        return BrokenNoise(inner=self.inner.initialised(energy_rmse, force_rmse), fault=self.fault)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("no floor", "not finite"),
        ("sum over the batch", "Not equal to tolerance"),
        ("wrong precision", "came in"),
        ("noise on padding", "padding atoms have the variances"),
        ("not initialised", "Not equal to tolerance"),
    ],
)
def test_the_kit_finds_faults(fault: str, complaint: str) -> None:
    noise = BrokenNoise(inner=ColoredNoise.Config().build(), fault=fault)
    with pytest.raises(AssertionError, match=complaint):
        check_noise(noise, key=jax.random.key(0))


@pytest.mark.slow
def test_the_kit_passes_the_same_model_without_a_fault() -> None:
    check_noise(BrokenNoise(inner=ColoredNoise.Config().build(), fault="none"), key=jax.random.key(0))
