import numpy as np
import pytest

from huefield.core.structure import BaselineResult, Structure, pack
from huefield.evaluation.baseline_errors import BaselineErrors


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
    found = BaselineErrors.of(block)
    counts = np.array([[(s.atomic_numbers == z).sum() for z in (1, 6)] for s in structures], float)
    rest = np.array(errors) - counts @ np.linalg.lstsq(counts, np.array(errors))[0]
    assert found is not None
    assert found.energy_mae == pytest.approx(np.abs(rest).mean())
    assert found.energy_rmse == pytest.approx(np.sqrt((rest**2).mean()))
    assert found.forces_rmse == pytest.approx(np.sqrt((np.concatenate(force_errors) ** 2).mean()))
    assert "Errors of the baseline alone: energies MAE" in str(found)


def test_structures_without_results_or_labels_have_no_errors() -> None:
    bare = Structure(np.array([1], np.uint8), np.zeros((1, 3)))
    block = pack([bare, bare], np.arange(2), "some")
    assert BaselineErrors.of(block) is None
    assert BaselineErrors.of(block.with_baseline([BaselineResult(0.0, np.zeros((1, 3))), None])) is None
    unlabelled = BaselineErrors.of(block.with_baseline([BaselineResult(0.0, np.zeros((1, 3)))] * 2))
    assert unlabelled == BaselineErrors(None, None, None, None)
