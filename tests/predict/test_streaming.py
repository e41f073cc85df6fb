"""Structures that come block by block are predicted as they come, in few shapes."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from huefield.core.structure import Block
from huefield.data.dataset import Part
from huefield.data.readers.base import BadFrameError, Fault
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.predict import predict_blocks, predict_part
from huefield.predict.batches import CHUNK_ATOMS, CHUNK_STRUCTURES, chunks_of
from tests.evaluation.synthetic import waters
from tests.training.helpers import POTENTIAL

BLOCK = 500


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "colored"}}
    )
    return Ensemble.build(config, 2, key=jax.random.key(0)).with_atom_energies({1: -1.5, 8: -2000.25})


def blocks(count: int, taken: list[int]) -> Iterator[Block]:
    for number in range(count):
        taken.append(number)
        block = waters(BLOCK, seed=number)
        yield replace(block, frames=block.frames + number * BLOCK)


def test_blocks_are_taken_as_they_are_needed(ensemble: Ensemble) -> None:
    """Of a source without an end; what was predicted is that of the whole, in its order."""
    taken: list[int] = []
    told: list[int] = []
    found = predict_blocks(ensemble, blocks(10**9, taken), "mine", report=told.append)
    first, second = next(found), next(found)
    found.close()  # type: ignore[attr-defined]
    per_chunk = -(-CHUNK_STRUCTURES // BLOCK)
    assert len(taken) <= 5 * per_chunk
    assert (len(first), len(second), told[-1]) == (per_chunk * BLOCK,) * 2 + (2 * per_chunk * BLOCK,)
    assert second.structures.frames.tolist() == list(range(per_chunk * BLOCK, 2 * per_chunk * BLOCK))
    some = first.structures.block(np.arange(100, 140))
    expected = predict_part(ensemble, Part("some", some, np.arange(40)), "mine")
    np.testing.assert_allclose(first.energy.mean[100:140], expected.energy.mean, atol=1e-4)
    np.testing.assert_allclose(first.forces.mean[300:420], expected.forces.mean, atol=1e-5)
    np.testing.assert_allclose(first.forces.epistemic_var[300:420], expected.forces.epistemic_var, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(first.joint_nll[100:140], expected.joint_nll, rtol=1e-4)


def strange(block: Block, *indices: int) -> Block:
    numbers = block.atomic_numbers.copy()
    numbers[block.starts[list(indices)]] = 16
    return replace(block, atomic_numbers=numbers)


def test_unknown_elements_are_told_or_refused(ensemble: Ensemble) -> None:
    given = strange(waters(600), 3, 7)
    with pytest.raises(
        BadFrameError, match="synthetic, frame 3: it contains S, but the model was trained for H, O only"
    ):
        list(predict_blocks(ensemble, [given]))
    told: list[Fault] = []
    (found,) = predict_blocks(ensemble, [given, strange(waters(1), 0)], on_fault=told.append)
    assert [fault.frame for fault in told] == [3, 7, 0]
    assert found.structures.frames.tolist() == [n for n in range(600) if n not in (3, 7)]


def test_chunks_are_the_same_structures() -> None:
    given = [waters(10), waters(3 * CHUNK_STRUCTURES, seed=1), waters(30_000, seed=2)]
    found = list(chunks_of(given))
    for name in ("positions", "energy", "frames"):
        expected = np.concatenate([getattr(block, name) for block in given])
        np.testing.assert_array_equal(np.concatenate([getattr(block, name) for block in found]), expected)
    assert max(block.sizes.sum() for block in found) <= 2 * CHUNK_ATOMS
    assert min(map(len, found[:-1])) >= CHUNK_STRUCTURES
