"""All potentials of atoms: elements, sizes, files, no scatters, members side by side."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree
from pydantic import ValidationError

from huefield.core import pairwise
from huefield.core.structure import Structure
from huefield.model import modelfile
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.testing import cast_floats
from tests.potentials.cases import (
    CONFIGS,
    NOISE,
    SHAPE,
    Values,
    alone,
    assert_close,
    atom,
    crystal,
    evaluate,
    graph_of,
    molecule,
    moved,
    randomised,
    training,
    untrained,
    values,
)


def test_the_values_that_the_tests_look_at_are_not_small(member64: ForceField, x64: None) -> None:
    """Nor so large that tolerances mean nothing."""
    for structure in (molecule(), crystal()):
        for name, array in zip(Values._fields, alone(member64, structure), strict=True):
            assert 0.005 < np.abs(array).max() < 300, name
            assert np.ptp(array) > 0 or np.size(array) == 1, name


def test_training_has_changed_the_model(kind: str) -> None:
    losses = np.asarray(training(kind)[1])
    assert losses[-5:].mean() < losses[0] - 1
    assert np.isfinite(losses).all()


class TestElements:
    def test_a_strange_element_is_named(self, kind: str) -> None:
        potential = untrained(kind).potential
        potential.require_fit(graph_of(molecule(), crystal()))
        with pytest.raises(ValueError, match=r"contain F, S, but the potential was built for H, C, N, O: leave"):
            potential.require_fit(graph_of(atom(16), atom(9), molecule()))

    def test_a_strange_element_has_no_energy_rather_than_a_wrong_one(self, member: ForceField, precision: str) -> None:
        dimer = Structure(np.array([6, 9], np.uint8), np.array([[0.0, 0, 0], [1.3, 0, 0]]))
        assert np.isnan(evaluate(member, graph_of(dimer)).energy[0])
        assert np.isnan(evaluate(member, graph_of(atom(9))).energy[0])

    def test_elements_differ(self, member64: ForceField, x64: None) -> None:
        energies = [float(alone(member64, atom(z)).energy) for z in (1, 6, 7, 8)]
        assert np.abs(np.diff(sorted(energies))).min() > 1e-4

    def test_unknown_elements_are_refused(self, kind: str) -> None:
        config = type(CONFIGS[kind])
        with pytest.raises(ValidationError, match="'Hh' is no element; write symbols such as 'H'"):
            config(elements=("H", "Hh"))
        with pytest.raises(ValidationError, match="'X' is no element"):
            config(elements=("X",))
        with pytest.raises(ValueError, match="name them"):
            config(elements=()).build(0, key=jax.random.key(0))

    def test_elements_are_sorted_and_unique(self, kind: str) -> None:
        config = type(CONFIGS[kind])
        assert config(elements=("O", "H", "C", "O")).elements == ("H", "C", "O")
        assert config(elements=("O", "H")) == config(elements=("H", "O", "H"))

    def test_elements_of_the_data_must_be_known(self, kind: str) -> None:
        config = type(CONFIGS[kind])
        assert config().for_elements(("O", "H")).elements == ("H", "O")
        with pytest.raises(ValueError, match="the data have N, O, but the potential is for H, C: name all elements"):
            config(elements=("H", "C")).for_elements(("H", "N", "O"))

    def test_an_unknown_key_is_refused_and_the_known_ones_are_listed(self, kind: str) -> None:
        with pytest.raises(ValidationError, match=r"(?s)feature.*elements.*cutoff.*layers.*radial_functions"):
            type(CONFIGS[kind])(elements=("H",), feature=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_atom_outputs_are_differentiated_without_a_scatter(
    order: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left are the sums over the atoms of a structure, outside of the potential."""
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    graph = graph_of(molecule(), crystal())
    potential, static = eqx.partition(cast_floats(untrained(kind).potential, "float32"), eqx.is_inexact_array)

    def scalar(weights: PyTree, positions: Array) -> Array:
        atoms = eqx.combine(weights, static)(moved(graph, positions))
        return jnp.sum(atoms.energy**2) + jnp.sum(atoms.raw**2)

    def of_gradient(weights: PyTree, positions: Array) -> Array:
        return jnp.sum(jax.grad(scalar, argnums=1)(weights, positions) ** 2)

    function = (scalar, jax.grad(scalar, argnums=(0, 1)), jax.grad(of_gradient, argnums=(0, 1)))[order]
    traced = jax.jit(function).trace(potential, graph.positions)
    assert kind != "painn" or "scan" in str(traced.jaxpr)
    assert "scatter" not in str(traced.jaxpr)
    assert "scatter" not in traced.lower().as_text()


def test_before_training_there_is_no_noise(kind: str, precision: str) -> None:
    potential = CONFIGS[kind].build(3, key=jax.random.key(2))
    atoms = eqx.filter_jit(potential)(graph_of(molecule(), crystal()))
    assert atoms.raw.shape == (SHAPE.atoms, 3)
    assert atoms.energy.dtype == atoms.raw.dtype == precision
    np.testing.assert_array_equal(atoms.raw, 0)
    assert np.abs(atoms.energy[:9]).min() > 0


def ensemble(kind: str) -> Ensemble:
    """Two random members."""
    config = ForceField.Config(potential=CONFIGS[kind], noise=NOISE)
    return Ensemble.from_members([randomised(config.build(key=jax.random.key(m)), m) for m in range(2)])


def test_a_model_file_keeps_the_predictions(kind: str, tmp_path: Path) -> None:
    model, graph = ensemble(kind), graph_of(molecule(), crystal())
    modelfile.save(model, tmp_path / "model.huefield")
    loaded = modelfile.load(tmp_path / "model.huefield")
    assert loaded.members.potential.config == CONFIGS[kind]
    before, after = model.predict(graph), loaded.predict(graph)
    assert np.abs(before.energy[:2]).min() > 1e-3
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("x64")
def test_members_side_by_side_are_those_one_after_the_other(kind: str) -> None:
    members, graph = [randomised(untrained(kind), seed) for seed in range(2)], graph_of(molecule(), crystal())
    stacked = Ensemble.from_members(members).members
    together = eqx.filter_jit(eqx.filter_vmap(values, in_axes=(eqx.if_array(0), None)))(stacked, graph)
    singles = [evaluate(member, graph) for member in members]
    assert abs(singles[0].energy[0] - singles[1].energy[0]) > 1e-2
    for index, single in enumerate(singles):
        assert_close(Values(*(array[index] for array in together)), single, 1e-10)
