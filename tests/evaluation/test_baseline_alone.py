from dataclasses import replace

import numpy as np
import pytest

from huefield.core.structure import BaselineResult, Block, Structure, pack
from huefield.evaluation.baseline_alone import baseline_alone, baselines_alone
from huefield.evaluation.report.tables import markdown_table
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions


def predicted(block: Block, baseline: str | None) -> Predictions:
    energy, forces = Marginals(block.energy, np.ones(len(block))), Marginals(block.forces, np.ones_like(block.forces))
    return Predictions("model", block, EnergyForcesMarginals(energy, forces), baseline=baseline)


def test_errors_are_free_of_energies_of_the_elements() -> None:
    rng = np.random.default_rng(0)
    structures, results, errors, force_errors = [], [], [], []
    for count in (2, 3, 4, 5, 6, 7, 8, 9):
        numbers = np.array([6] * (count // 2) + [1] * count, np.uint8)
        force_error = rng.normal(size=(len(numbers), 3))
        structures.append(Structure(numbers, rng.normal(size=(len(numbers), 3)), energy=-7.0, forces=force_error))
        errors.append(rng.normal())
        force_errors.append(force_error)
        shift = 10.0 * (numbers == 6).sum() + 3.0 * (numbers == 1).sum()
        results.append(BaselineResult(-7.0 - shift - errors[-1], np.zeros((len(numbers), 3))))
    block = pack(structures, np.arange(8), "some").with_baseline(results)
    found = baselines_alone([predicted(block, "GFN1-xTB"), predicted(block, "GFN1-xTB")])
    counts = np.array([[(s.atomic_numbers == z).sum() for z in (1, 6)] for s in structures], float)
    rest = np.array(errors) - counts @ np.linalg.lstsq(counts, np.array(errors))[0]
    assert [each.name for each in found] == ["GFN1-xTB alone"]
    assert found[0].energy is not None
    assert found[0].forces is not None
    assert found[0].energy.mae == pytest.approx(np.abs(rest).mean())
    assert found[0].energy.rmse == pytest.approx(np.sqrt((rest**2).mean()))
    assert found[0].forces.rmse == pytest.approx(np.sqrt((np.concatenate(force_errors) ** 2).mean()))
    row = markdown_table(found).splitlines()[-1]
    assert row.startswith("| GFN1-xTB alone |")
    assert row.count("–") == 10  # no NLL, RZV, ENCE, CV and RMV of either quantity


def test_energies_of_elements_are_those_of_each_data_set() -> None:
    """Two data sets at the same geometries whose levels differ: each is fitted by itself."""
    rng = np.random.default_rng(1)
    structures, results = [], []
    for tag, level in (("a", 5.0), ("b", -3.0)):
        for count in range(1, 6):
            numbers = np.array([1] * count, np.uint8)
            found = Structure(numbers, rng.normal(size=(count, 3)), energy=level * count, forces=np.zeros((count, 3)))
            structures.append(replace(found, tag=tag))
            results.append(BaselineResult(0.0, np.zeros((count, 3))))
    block = pack(structures, np.arange(10), "two").with_baseline(results)
    (found_errors,) = baselines_alone([predicted(block, "any")])
    assert found_errors.energy is not None
    assert found_errors.energy.mae == pytest.approx(0.0, abs=1e-9)


def test_predictions_without_a_baseline_have_no_such_row() -> None:
    bare = Structure(np.array([1], np.uint8), np.zeros((1, 3)))
    block = pack([bare, bare], np.arange(2), "some")
    assert baseline_alone(predicted(block, None)) is None
    unlabelled = block.with_baseline([BaselineResult(0.0, np.zeros((1, 3)))] * 2)
    (found,) = baselines_alone([predicted(unlabelled, "any")])
    assert found.energy is None
    assert found.forces is None
