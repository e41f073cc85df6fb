import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from huefield.core import Graph, Outputs
from huefield.noise import (
    AbstractNoise,
    ColoredNoise,
    Covariance,
    LocalNoise,
    LocalWhiteNoise,
    VanillaNoise,
    WhiteNoise,
)
from huefield.testing import cast_floats, check_noise
from huefield.testing.distant import check_distant_atoms
from huefield.testing.noise import _local_prediction, check_coherent, check_size_consistency
from huefield.testing.probes import probe_molecules

CONFIGS = [
    VanillaNoise.Config(),
    WhiteNoise.Config(),
    ColoredNoise.Config(),
    ColoredNoise.Config(gamma="atom"),
    LocalNoise.Config(),
    LocalWhiteNoise.Config(),
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


class UnevenNoise(AbstractNoise):
    """Local noise with one fault that shows only with distant atoms or in derivatives."""

    inner: LocalNoise
    fault: str = eqx.field(static=True)
    config: LocalNoise.Config = eqx.field(static=True, default_factory=LocalNoise.Config)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        return self.inner.raw_outputs

    @property
    def is_size_consistent(self) -> bool:
        return True

    @property
    def is_coherent(self) -> bool:
        return True

    def levels(self, raw: jax.Array, graph: Graph) -> jax.Array:
        right = self.inner.levels(raw, graph)
        sizes = graph.partition.sum(jnp.ones_like(raw[:, 0]))
        if self.fault == "sum inside the softplus":
            return 1e-3 + jax.nn.softplus(self.inner.offset - graph.partition.sum(jnp.abs(raw[:, 0])))[None]
        if self.fault == "mean over atoms":
            return right / jnp.maximum(sizes, 1.0)
        if self.fault == "grows faster than the size":
            return right * sizes
        if self.fault == "nitrogen cancels the others":
            sign = jnp.where(graph.atomic_numbers == 7, -2.0, 1.0)
            return 1e-6 + jnp.abs(graph.partition.sum(sign * self.inner.atom_levels(raw, graph)))[None]
        return right

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        right, partition = self.inner.covariance(outputs, graph), graph.partition
        forces, column = right.diagonal.forces, right.columns.forces
        if self.fault == "force noise from the whole structure":
            level = partition.spread(outputs.levels[0])[:, None]
            return eqx.tree_at(lambda c: c.diagonal.forces, right, forces * 0.1 * level**2)
        if self.fault == "force noise from the mean of the structure":
            mean = partition.spread(partition.sum(forces) / partition.sum(jnp.ones_like(forces)))
            return eqx.tree_at(lambda c: c.diagonal.forces, right, mean)
        if self.fault == "root of the sum of squares":
            squares = partition.sum(self.inner.atom_levels(outputs.raw, graph) ** 2)
            return eqx.tree_at(lambda c: c.columns.energy, right, jnp.sqrt(squares)[None])
        if self.fault == "sign of the column":
            return eqx.tree_at(lambda c: c.columns.forces, right, -column)
        if self.fault == "no column for forces":
            return eqx.tree_at(lambda c: c.columns.forces, right, jnp.zeros_like(column))
        if self.fault == "white noise that changes with the positions":
            white = partition.sum(0.1 * self.inner.atom_levels(outputs.raw, graph) ** 2)
            return eqx.tree_at(lambda c: c.diagonal.energy, right, white)
        if self.fault == "energies and forces scaled separately":
            return eqx.tree_at(lambda c: c.columns.energy, right, 1.3 * right.columns.energy)
        return right

    def initialised(self, energy_rmse: float, force_rmse: float, atoms: float = 1.0) -> "UnevenNoise":
        return UnevenNoise(inner=self.inner.initialised(energy_rmse, force_rmse, atoms), fault=self.fault)


DISTANT = "distant copies|distant molecule|distant molecules"


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("sum inside the softplus", DISTANT),
        ("mean over atoms", DISTANT),
        ("grows faster than the size", DISTANT),
        ("force noise from the whole structure", DISTANT),
        ("force noise from the mean of the structure", DISTANT),
        ("nitrogen cancels the others", "energy noise .* of 5 distant atoms is below the sum of what the single atoms"),
        ("root of the sum of squares", "not the derivative"),
        ("sign of the column", "not the derivative"),
        ("no column for forces", "not the derivative"),
        ("white noise that changes with the positions", "not the derivative"),
        ("energies and forces scaled separately", "not the derivative"),
    ],
)
def test_the_kit_finds_noise_that_is_not_size_consistent_or_not_coherent(fault: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_distant_and_derivatives(UnevenNoise(inner=LocalNoise.Config().build(), fault=fault))


def test_the_kit_passes_local_noise_without_such_a_fault() -> None:
    check_distant_and_derivatives(UnevenNoise(inner=LocalNoise.Config().build(), fault="none"))


def test_less_force_noise_beside_distant_atoms_is_found() -> None:
    """By the check of single atoms alone, which have no neighbours."""
    noise = UnevenNoise(inner=LocalNoise.Config().build(), fault="force noise from the mean of the structure")
    with jax.enable_x64(True):
        predict = _local_prediction(cast_floats(noise, "float64"), jax.random.key(0))
        with pytest.raises(AssertionError, match="beside distant atoms is below what it has alone"):
            check_distant_atoms(predict, probe_molecules(key=jax.random.key(0))[0], 1e-5)


def check_distant_and_derivatives(noise: AbstractNoise) -> None:
    with jax.enable_x64(True):
        for check in (check_size_consistency, check_coherent):
            check(cast_floats(noise, "float64"), "float64", key=jax.random.key(0))
