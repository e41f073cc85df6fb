"""PaiNN: the first layer, a naive implementation, blocks of pairs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree

from huefield.core import pairwise
from huefield.core.structure import Structure
from huefield.model.forcefield import ForceField
from huefield.potentials import PaiNN, painn
from huefield.potentials.painn import NORM_SOFTENING, Message, PairFeatures
from tests.potentials.cases import (
    CONFIG,
    SHAPE,
    alone,
    assert_close,
    atom,
    atom_energies,
    crystal,
    evaluate,
    graph_of,
    molecule,
    pairs_of,
    randomised,
    silu,
    untrained,
    values,
)


@pytest.fixture
def kind() -> str:
    return "painn"


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
        pairs, elements = PairFeatures.of(graph, CONFIG), potential.one_hot(graph)
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

    def linear(layer: PyTree, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(layer.weight) + (0 if layer.bias is None else np.asarray(layer.bias))

    config, count = potential.config, len(structure)
    kinds, pairs = pairs_of(structure, config)
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


@pytest.mark.usefixtures("x64")
def test_blocks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    member, graph = randomised(untrained()), graph_of(molecule(), crystal())
    whole = evaluate(member, graph)
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 5 * SHAPE.slots)
    assert_close(eqx.filter_jit(lambda m, g: values(m, g))(member, graph), whole, 1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("structure", [molecule(), crystal(), atom()], ids=["molecule", "crystal", "atom"])
def test_outputs_are_those_of_a_naive_implementation(member64: ForceField, structure: Structure) -> None:
    got = alone(member64, structure)
    energy, raw = naive(member64.potential, structure)
    per_atom = atom_energies(member64, graph_of(structure))[: len(structure)]
    for one, other in ((per_atom, energy), (got.raw, raw)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * max(1.0, np.abs(other).max()))
