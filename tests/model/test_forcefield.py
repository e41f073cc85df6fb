import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield import Ensemble, ForceField
from huefield.core import Graph
from huefield.testing import ProbePotential, probe_graph

pytestmark = pytest.mark.usefixtures("x64")


def config(noise: dict[str, object] | None = None) -> ForceField.Config:
    potential = {"kind": "mlp", "dimension": 3, "width": 6, "depth": 1}
    return ForceField.Config.model_validate({"potential": potential, "noise": noise or {"kind": "colored"}})


@pytest.fixture
def graph() -> Graph:
    return probe_graph(key=jax.random.key(0))


@pytest.mark.parametrize("strategy", ["vmap", "loop", "auto"])
def test_ensemble_variances_are_the_papers(strategy: str, graph: Graph) -> None:
    """[J23] Eqs. energy_mean_var_full and force_var_colored_full, written out from the members' own outputs."""
    ensemble = Ensemble.build(config(), 4, key=jax.random.key(1), strategy=strategy)
    prediction = ensemble.predict(graph)
    members = [eqx.filter_jit(ensemble.member(m))(graph) for m in range(4)]
    energies, forces = (np.stack([getattr(m.mean, name) for m in members]) for name in ("energy", "forces"))
    rho = np.stack([m.aleatoric.energy[0] for m in members])
    slope = np.stack([m.aleatoric.forces[0] for m in members])
    gamma = np.asarray(ensemble.members.noise.gamma.gamma)[:, 0]
    rho_on_atoms = np.stack([graph.partition.spread(jnp.asarray(r)) for r in rho])

    np.testing.assert_allclose(prediction.energy, energies.mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.forces, forces.mean(0), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(prediction.energy_uncertainty_aleatoric**2, (rho**2).mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.energy_uncertainty_epistemic**2, energies.var(0), rtol=1e-9)
    aleatoric = ((gamma[:, None] * rho_on_atoms**2)[..., None] + slope**2).mean(0)
    np.testing.assert_allclose(prediction.forces_uncertainty_aleatoric**2, aleatoric, rtol=1e-10)
    np.testing.assert_allclose(prediction.forces_uncertainty_epistemic**2, forces.var(0), rtol=1e-8, atol=1e-16)
    np.testing.assert_allclose(prediction.forces_uncertainty**2, aleatoric + forces.var(0), rtol=1e-10)
    np.testing.assert_allclose(prediction.energy_ensemble, energies, rtol=1e-12)
    np.testing.assert_allclose(prediction.forces_ensemble, forces, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(prediction.energy_uncertainty**2, (rho**2).mean(0) + energies.var(0), rtol=1e-10)


def test_one_member_has_no_epistemic_part(graph: Graph) -> None:
    prediction = Ensemble.build(config(), 1, key=jax.random.key(2)).predict(graph)
    assert np.all(prediction.energy_uncertainty_epistemic == 0)
    assert np.all(prediction.forces_uncertainty_epistemic == 0)


def test_vanilla_has_no_aleatoric_part(graph: Graph) -> None:
    prediction = Ensemble.build(config({"kind": "vanilla"}), 3, key=jax.random.key(3)).predict(graph)
    assert np.all(prediction.forces_uncertainty_aleatoric == 0)
    assert np.all(prediction.energy_uncertainty_epistemic > 0)


def test_forces_are_minus_the_gradient_of_the_energy(graph: Graph) -> None:
    ensemble = Ensemble.build(config(), 2, key=jax.random.key(4))

    def total(positions: jax.Array) -> jax.Array:
        return ensemble(Graph(positions, graph.atomic_numbers, graph.partition)).mean.energy.sum()

    np.testing.assert_allclose(
        ensemble.predict(graph).forces, -jax.grad(total)(graph.positions), rtol=1e-10, atol=1e-14
    )


def test_members_put_together_are_the_members_taken_apart(graph: Graph) -> None:
    ensemble = Ensemble.build(config(), 3, key=jax.random.key(5))
    again = Ensemble.from_members([ensemble.member(m) for m in range(3)])
    assert eqx.tree_equal(ensemble, again)
    assert again.num_members == 3


def test_members_differ(graph: Graph) -> None:
    ensemble = Ensemble.build(config(), 3, key=jax.random.key(6))
    energies = ensemble.predict(graph).energy_ensemble
    assert len(np.unique(np.asarray(energies)[:, 0])) == 3


def test_gamma_is_set_by_hand_in_every_member(graph: Graph) -> None:
    ensemble = Ensemble.build(config({"kind": "colored", "channels": 2}), 3, key=jax.random.key(7))
    changed = ensemble.map_noise(lambda noise: noise.with_gamma(jnp.array([2.0, 5.0])))
    np.testing.assert_allclose(changed.members.noise.gamma.gamma, np.tile([2.0, 5.0], (3, 1)))
    assert eqx.tree_equal(changed.members.potential, ensemble.members.potential)


def test_member_k_does_not_depend_on_how_many_there_are() -> None:
    few, many = (Ensemble.build(config(), m, key=jax.random.key(8)) for m in (2, 5))
    assert eqx.tree_equal(few.member(1), many.member(1))


class TestBadInput:
    def test_a_model_that_is_not_a_number_is_not_certain_of_it(self, graph: Graph) -> None:
        good = Ensemble.build(config(), 2, key=jax.random.key(0))
        offset = good.members.noise.offset.at[1].set(jnp.nan)
        bad = eqx.tree_at(lambda e: e.members.noise.offset, good, offset)
        with pytest.raises(ValueError, match=r"forces must be finite, but is nan"):
            bad.predict(graph)

    @pytest.mark.usefixtures("as_users_run")
    def test_unknown_strategy(self) -> None:
        good = Ensemble.build(config(), 2, key=jax.random.key(0))
        with pytest.raises(ValueError, match=r"strategy must be one of .*'vmap'.*, but is 'banana'"):
            Ensemble(good.members, "banana")

    def test_no_members(self) -> None:
        with pytest.raises(ValueError, match="at least one member, but got none"):
            Ensemble.from_members([])
        with pytest.raises(ValueError, match="whole number of members from 1, but num_members is 0"):
            Ensemble.build(config(), 0, key=jax.random.key(0))

    def test_members_of_different_architecture(self) -> None:
        one = config().build(key=jax.random.key(0))
        other = config({"kind": "white"}).build(key=jax.random.key(1))
        with pytest.raises(ValueError, match=r"must be alike, but \[1\] differ from member 0"):
            Ensemble.from_members([one, other, one])

    def test_member_out_of_range(self) -> None:
        ensemble = Ensemble.build(config(), 2, key=jax.random.key(0))
        with pytest.raises(IndexError, match="member 2 is out of range: the ensemble has 2"):
            ensemble.member(2)

    def test_nan_positions(self, graph: Graph) -> None:
        with pytest.raises(ValueError, match=r"positions must be finite, but is nan at index \(3, 1\)"):
            Graph(graph.positions.at[3, 1].set(jnp.nan), graph.atomic_numbers, graph.partition)

    def test_wrong_number_of_raw_outputs_is_noticed(self, graph: Graph) -> None:
        noise = config({"kind": "white"}).build(key=jax.random.key(0)).noise
        with pytest.raises(ValueError, match=r"gives 1 raw outputs.*needs 2: energy_noise, force_noise"):
            ForceField(ProbePotential.random(1, key=jax.random.key(0)), noise)(graph)
