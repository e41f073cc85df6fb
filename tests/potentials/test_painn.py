"""PaiNN: elements, the first layer, a naive implementation, padding, files."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Array, PyTree
from pydantic import ValidationError

from huefield.core import pairwise
from huefield.core.structure import Structure
from huefield.model import modelfile
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.potentials import PaiNN, painn
from huefield.potentials.painn import NORM_SOFTENING, Message
from huefield.testing import cast_floats
from tests.potentials.painn_cases import (
    CONFIG,
    NOISE,
    SHAPE,
    Values,
    alone,
    assert_close,
    atom,
    atom_energies,
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


def test_training_has_changed_the_model() -> None:
    losses = np.asarray(training()[1])
    assert losses[-5:].mean() < losses[0] - 1
    assert np.isfinite(losses).all()


class TestElements:
    def test_a_strange_element_is_named(self) -> None:
        potential = untrained().potential
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

    def test_unknown_elements_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="'Hh' is no element; write symbols such as 'H'"):
            PaiNN.Config(elements=("H", "Hh"))
        with pytest.raises(ValidationError, match="'X' is no element"):
            PaiNN.Config(elements=("X",))
        with pytest.raises(ValueError, match="name them"):
            PaiNN.Config(elements=()).build(0, key=jax.random.key(0))

    def test_elements_are_sorted_and_unique(self) -> None:
        assert PaiNN.Config(elements=("O", "H", "C", "O")).elements == ("H", "C", "O")
        assert PaiNN.Config(elements=("O", "H")) == PaiNN.Config(elements=("H", "O", "H"))

    def test_an_unknown_key_is_refused_and_the_known_ones_are_listed(self) -> None:
        with pytest.raises(ValidationError, match=r"(?s)feature.*elements.*features.*layers.*radial_functions.*cutoff"):
            PaiNN.Config(elements=("H",), feature=3)  # type: ignore[call-arg]


class TestFirstLayer:
    @pytest.mark.parametrize(("count", "special"), [(painn.MANY_ELEMENTS - 1, True), (painn.MANY_ELEMENTS, False)])
    def test_few_elements_take_the_short_way(self, count: int, special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        used = []
        original = Message.from_elements
        monkeypatch.setattr(Message, "from_elements", lambda *x: used.append(1) or original(*x))
        config = CONFIG.model_copy(update={"elements": ("H", "C", "N", "O", "F", "Si", "P", "S")[:count], "layers": 1})
        jax.eval_shape(config.build(0, key=jax.random.key(0)), graph_of(molecule()))
        assert bool(used) == special

    @pytest.mark.usefixtures("x64")
    def test_the_message_from_elements_is_the_general_one(self, member64: ForceField) -> None:
        potential, graph = member64.potential, graph_of(molecule(), crystal())
        pairs, elements = potential._pairs(graph), potential._one_hot(graph.atomic_numbers)
        scalars = elements @ potential.embedding
        zero = jnp.zeros_like(scalars)
        message: Message = potential.messages[0]
        special = eqx.filter_jit(message.from_elements)(potential.embedding, elements, pairs)
        general = eqx.filter_jit(message)(scalars, (zero, zero, zero), pairs)
        for one, other in zip(jax.tree.leaves(special), jax.tree.leaves(general), strict=True):
            assert np.abs(other).max() > 1e-3
            np.testing.assert_allclose(one, other, atol=1e-12 * max(1.0, np.abs(other).max()))

    @pytest.mark.usefixtures("x64")
    def test_both_ways_have_the_same_derivatives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        member, graph = randomised(untrained()), graph_of(molecule(), crystal())
        short = evaluate(member, graph)
        monkeypatch.setattr(painn, "MANY_ELEMENTS", 0)
        monkeypatch.delattr(Message, "from_elements")
        assert_close(eqx.filter_jit(lambda m, g: values(m, g))(member, graph), short, 1e-12)

    @pytest.mark.usefixtures("x64")
    def test_both_ways_agree_for_many_elements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = CONFIG.model_copy(update={"elements": ("H", "C", "N", "O", "F", "Si", "P", "S")})
        assert len(config.elements) >= painn.MANY_ELEMENTS
        potential = randomised(config.build(2, key=jax.random.key(1)))
        structure = molecule()
        other = Structure(np.array([1, 16, 9, 15, 14, 8], np.uint8), structure.positions)
        graph = graph_of(other, crystal())
        general = eqx.filter_jit(lambda p, g: p(g))(potential, graph)
        monkeypatch.setattr(painn, "MANY_ELEMENTS", 100)
        short = eqx.filter_jit(lambda p, g: p(g))(potential, graph)
        for one, two in zip(jax.tree.leaves(short), jax.tree.leaves(general), strict=True):
            assert np.isfinite(two).all()
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-12 * max(1.0, np.abs(two).max()))
        energy, raw = naive(potential, other)
        np.testing.assert_allclose(general.energy[:6], energy, rtol=0, atol=1e-10)
        np.testing.assert_allclose(general.raw[:6], raw, rtol=0, atol=1e-10)


def naive(potential: PaiNN, structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Energies and raw outputs of the atoms, [S21] Eqs. (7) to (10) pair by pair."""

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def linear(layer: PyTree, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(layer.weight) + (0 if layer.bias is None else np.asarray(layer.bias))

    config, count = potential.config, len(structure)
    cutoff, kinds = config.cutoff_angstrom, [config.elements.index(_symbol(z)) for z in structure.atomic_numbers]
    reach = range(-3, 4) if structure.pbc.any() else range(1)
    images = [np.array(n) @ structure.cell for n in np.stack(np.meshgrid(reach, reach, reach), -1).reshape(-1, 3)]
    pairs = []
    for i in range(count):
        for j in range(count):
            for image in images:
                vector = structure.positions[j] + image - structure.positions[i]
                r = np.sqrt(vector @ vector)
                if (i != j or image.any()) and r < cutoff:
                    x = r / cutoff
                    sines = [
                        np.sqrt(2 / cutoff) * np.sin(n * np.pi * x) / r for n in range(1, config.radial_functions + 1)
                    ]
                    basis = np.array([*sines, 1.0]) * (1 - 10 * x**3 + 15 * x**4 - 6 * x**5)
                    pairs.append((i, j, vector / r, basis))

    s = np.array([np.asarray(potential.embedding)[z] for z in kinds])
    v = np.zeros((count, 3, config.features))
    for message, update in zip(potential.messages, potential.updates, strict=True):
        w = [np.asarray(f) for f in message.filters]
        ds, dv = np.zeros_like(s), np.zeros_like(v)
        for i, j, direction, basis in pairs:
            hidden = silu(linear(message.hidden, s[j]))
            ds[i] += linear(message.scalar, hidden) * (basis @ w[0])
            for axis in range(3):
                dv[i, axis] += linear(message.direction, hidden) * (basis @ w[1]) * direction[axis]
                if message.vector is not None:
                    dv[i, axis] += v[j, axis] * linear(message.vector, hidden) * (basis @ w[2])
        s, v = s + ds, v + dv
        for i in range(count):
            left, right = v[i] @ np.asarray(update.left.weight), v[i] @ np.asarray(update.right.weight)
            norm = np.sqrt((right**2).sum(0) + NORM_SOFTENING**2)
            hidden = silu(linear(update.from_scalars, s[i]) + linear(update.from_norms, norm))
            s[i] = s[i] + linear(update.scalar, hidden) + linear(update.product, hidden) * (left * right).sum(0)
            if update.vector is not None:
                v[i] = v[i] + linear(update.vector, hidden) * left
    read = potential.readout
    hidden = silu(linear(read.hidden, s))
    scale, shift = (np.asarray(x)[kinds] for x in (potential.scale_ev, potential.shift_ev))
    return linear(read.energy, hidden)[:, 0] * scale + shift, linear(read.raw, hidden)


def _symbol(number: int) -> str:
    return next(symbol for symbol, z in number_of_symbol.items() if z == number)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("structure", [molecule(), crystal(), atom()], ids=["molecule", "crystal", "atom"])
def test_outputs_are_those_of_a_naive_implementation(member64: ForceField, structure: Structure) -> None:
    got = alone(member64, structure)
    energy, raw = naive(member64.potential, structure)
    per_atom = atom_energies(member64, graph_of(structure))[: len(structure)]
    for one, other in ((per_atom, energy), (got.raw, raw)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * max(1.0, np.abs(other).max()))


@pytest.mark.usefixtures("x64")
def test_blocks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    member, graph = randomised(untrained()), graph_of(molecule(), crystal())
    whole = evaluate(member, graph)
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    assert_close(eqx.filter_jit(lambda m, g: values(m, g))(member, graph), whole, 1e-12)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_atom_outputs_are_differentiated_without_a_scatter(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left are the sums over the atoms of a structure, outside of the potential."""
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    graph = graph_of(molecule(), crystal())
    potential, static = eqx.partition(cast_floats(untrained().potential, "float32"), eqx.is_inexact_array)

    def scalar(weights: PyTree, positions: Array) -> Array:
        atoms = eqx.combine(weights, static)(moved(graph, positions))
        return jnp.sum(atoms.energy**2) + jnp.sum(atoms.raw**2)

    def of_gradient(weights: PyTree, positions: Array) -> Array:
        return jnp.sum(jax.grad(scalar, argnums=1)(weights, positions) ** 2)

    function = (scalar, jax.grad(scalar, argnums=(0, 1)), jax.grad(of_gradient, argnums=(0, 1)))[order]
    traced = jax.jit(function).trace(potential, graph.positions)
    assert "scan" in str(traced.jaxpr)
    assert "scatter" not in str(traced.jaxpr)
    assert "scatter" not in traced.lower().as_text()


def test_before_training_there_is_no_noise(precision: str) -> None:
    potential = CONFIG.build(3, key=jax.random.key(2))
    atoms = eqx.filter_jit(potential)(graph_of(molecule(), crystal()))
    assert atoms.raw.shape == (SHAPE.atoms, 3)
    assert atoms.energy.dtype == atoms.raw.dtype == precision
    np.testing.assert_array_equal(atoms.raw, 0)
    assert np.abs(atoms.energy[:9]).min() > 0


def ensemble() -> Ensemble:
    """Two random members."""
    config = ForceField.Config(potential=CONFIG, noise=NOISE)
    return Ensemble.from_members([randomised(config.build(key=jax.random.key(m)), m) for m in range(2)])


def test_a_model_file_keeps_the_predictions(tmp_path: Path) -> None:
    model, graph = ensemble(), graph_of(molecule(), crystal())
    modelfile.save(model, tmp_path / "model.huefield")
    loaded = modelfile.load(tmp_path / "model.huefield")
    assert loaded.members.potential.config == CONFIG
    before, after = model.predict(graph), loaded.predict(graph)
    assert np.abs(before.energy[:2]).min() > 1e-3
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("x64")
def test_members_side_by_side_are_those_one_after_the_other() -> None:
    members, graph = [randomised(untrained(), seed) for seed in range(2)], graph_of(molecule(), crystal())
    stacked = Ensemble.from_members(members).members
    together = eqx.filter_jit(eqx.filter_vmap(values, in_axes=(eqx.if_array(0), None)))(stacked, graph)
    singles = [evaluate(member, graph) for member in members]
    assert abs(singles[0].energy[0] - singles[1].energy[0]) > 1e-2
    for index, single in enumerate(singles):
        assert_close(Values(*(array[index] for array in together)), single, 1e-10)
