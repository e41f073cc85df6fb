"""Reference energies of several data sets, fitted together."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from huefield.core.structure import Structure, pack
from huefield.data.dataset import FileData
from huefield.data.pooled_references import (
    WIDTHS_EV,
    FormulaMeans,
    difference,
    pooled_references,
    restricted_likelihood,
    scatter_of,
)
from huefield.data.references import EnergyChunk, fitted_references
from huefield.support.errors import HuefieldError
from tests.paths import SHARED

ELEMENTS = (1, 6, 8)
TRUE = {1: -13.6, 6: -1029.5, 8: -2042.0}


def sets_of(
    counts: dict[str, int], shift: dict[int, float], *, scatter: float = 0.0, copies: int = 3, seed: int = 0
) -> list[EnergyChunk]:
    """Molecules whose energies are those of their atoms and of their bonds, at random; a shift in all but the first."""
    rng = np.random.default_rng(seed)
    chunks = []
    for number, (tag, formulas) in enumerate(counts.items()):
        structures = []
        for _ in range(formulas):
            h, c, o = rng.integers(2, 12), rng.integers(1, 7), rng.integers(0, 4)
            numbers = np.array([1] * h + [6] * c + [8] * o, np.uint8)
            atoms = sum(TRUE[int(z)] + (shift.get(int(z), 0.0) if number else 0.0) for z in numbers)
            energy = atoms + scatter * rng.normal()
            structures += [Structure(numbers, np.zeros((len(numbers), 3)), energy=float(energy), tag=tag)] * copies
        chunks.append(EnergyChunk.from_block(pack(structures, np.arange(len(structures)), tag)))
    return chunks


def shifts(chunks: list[EnergyChunk], fit: object = pooled_references) -> np.ndarray:
    found = fit(chunks).energies_ev  # type: ignore[operator]
    return np.array([found["b"][z] - found["a"][z] for z in ELEMENTS])


def test_energies_without_scatter_are_found_exactly() -> None:
    shift = {1: 0.5, 6: -3.0, 8: 400.0}
    found = pooled_references(sets_of({"a": 30, "b": 20}, shift))
    assert found.energies_ev["a"] == pytest.approx(TRUE, abs=1e-5)
    assert found.energies_ev["b"] == pytest.approx({z: e + shift[z] for z, e in TRUE.items()}, abs=1e-5)
    assert (found.method, found.underdetermined) == ("least_squares", ())


def test_bond_energies_are_not_taken_for_differences_of_methods() -> None:
    """A difference of 0.02 eV per atom is below the scatter of bond energies, which fits of each set alone take."""
    shift = {6: 0.02, 8: 0.02}
    errors: dict[str, list[float]] = {"alone": [], "together": []}
    for seed in range(10):
        chunks = sets_of({"a": 300, "b": 40}, shift, scatter=2.0, seed=seed)
        for name, fit in (("alone", fitted_references), ("together", pooled_references)):
            errors[name] += (shifts(chunks, fit) - [shift.get(z, 0.0) for z in ELEMENTS]).tolist()
    alone, together = (float(np.sqrt(np.mean(np.square(each)))) for each in errors.values())
    assert together < 0.03
    assert alone > 3 * together


@pytest.mark.parametrize("size", [6.0, 1600.0])
def test_large_differences_are_taken_whole(size: float) -> None:
    """Another functional, or pseudopotentials."""
    shift = {1: 0.0, 6: 0.6 * size, 8: size}
    chunks = sets_of({"a": 300, "b": 40}, shift, scatter=2.0)
    np.testing.assert_allclose(shifts(chunks), [shift[z] for z in ELEMENTS], atol=0.5)


def test_one_formula_moves_all_of_its_elements_together() -> None:
    """Without a fit of the others, a single formula would give each element an energy that has no meaning."""
    one = Structure(
        np.array([6, 8, 1, 1], np.uint8), np.zeros((4, 3)), energy=sum(TRUE[z] for z in (6, 8, 1, 1)) + 12.0
    )
    single = EnergyChunk.from_block(pack([one] * 5, np.arange(5), "b"), "b")
    found = pooled_references([*sets_of({"a": 50}, {}, scatter=1.0), single])
    delta = {z: found.energies_ev["b"][z] - found.energies_ev["a"][z] for z in ELEMENTS}
    assert delta[6] == pytest.approx(delta[8])
    assert delta[1] == pytest.approx(2 * delta[6])
    assert 2 * delta[1] + delta[6] + delta[8] == pytest.approx(12.0, abs=3.0)
    assert found.underdetermined == ("b",)


def test_structures_of_one_formula_count_once_for_differences() -> None:
    few, many = (sets_of({"a": 50, "b": 20}, {8: 3.0}, scatter=1.0, copies=copies) for copies in (1, 40))
    np.testing.assert_allclose(shifts(few), shifts(many), atol=1e-9)


def test_the_order_and_the_pieces_of_the_data_do_not_matter() -> None:
    chunks = sets_of({"a": 30, "b": 40}, {8: 3.0}, scatter=1.0)
    np.testing.assert_allclose(shifts(chunks), shifts(chunks[::-1]), atol=1e-9)
    both = [each.of(tag) for each in chunks for tag in ("a", "b")]
    np.testing.assert_allclose(shifts(chunks), shifts([each for each in both if len(each.sizes)]), atol=1e-9)


def test_a_data_set_has_references_of_its_own_elements_only() -> None:
    atom = Structure(np.array([17, 1], np.uint8), np.zeros((2, 3)), energy=-12500.0)
    chlorine = EnergyChunk.from_block(pack([atom], np.arange(1), "b"), "b")
    found = pooled_references([*sets_of({"a": 30}, {}), chlorine])
    assert set(found.energies_ev["a"]) == set(ELEMENTS)
    assert set(found.energies_ev["b"]) == {1, 17}


def test_the_width_of_the_prior_maximises_the_restricted_likelihood() -> None:
    """With ε integrated out by a flat prior so wide that its own width only adds a constant."""
    rng = np.random.default_rng(3)
    rows, energy = rng.integers(1, 9, (14, 2)).astype(float), rng.normal(size=14)
    own = rows * (np.arange(14) >= 8)[:, None]
    wide, scatter = 300.0, 0.7

    def dense(width: float) -> float:
        covariance = scatter**2 * np.eye(14) + width**2 * own @ own.T + wide**2 * rows @ rows.T
        return float(multivariate_normal(np.zeros(14), covariance).logpdf(energy))

    widths = (0.01, 0.3, 5.0)
    ours = [restricted_likelihood(rows, own, energy, scatter, width) for width in widths]
    np.testing.assert_allclose(np.diff(ours), np.diff([dense(width) for width in widths]), rtol=1e-4)


def test_the_difference_is_the_mean_of_its_posterior() -> None:
    rng = np.random.default_rng(4)
    compositions = [rng.integers(1, 9, (n, 2)).astype(float) for n in (9, 6)]
    sets = [
        FormulaMeans(rows, rows @ [1.0, 2.0] + rng.normal(size=len(rows)) + shift, np.ones(len(rows)))
        for rows, shift in zip(compositions, (0.0, 3.0), strict=True)
    ]
    found, energies = difference(sets[0], sets[1]), [each.energy for each in sets]
    rows, own = np.concatenate(compositions), np.concatenate([0 * compositions[0], compositions[1]])
    scatter = scatter_of(*sets)
    width = max(WIDTHS_EV, key=lambda s: restricted_likelihood(rows, own, np.concatenate(energies), scatter, s))
    covariance = scatter**2 * np.eye(15) + width**2 * own @ own.T + 1e8 * rows @ rows.T
    expected = width**2 * own.T @ np.linalg.solve(covariance, np.concatenate(energies))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_without_energies_there_is_nothing_to_fit() -> None:
    nothing = EnergyChunk.from_block(pack([Structure(np.array([1], np.uint8), np.zeros((1, 3)))], np.arange(1), "a"))
    with pytest.raises(HuefieldError, match="no structure has an energy"):
        pooled_references([nothing])


@pytest.mark.skipif(not (SHARED / "ani1x").exists(), reason="needs ani1x and 3bpa of the shared data")
def test_real_sets_of_nearly_one_level_differ_by_little() -> None:
    """ANI-1x and 3BPA: ωB97X/6-31G(d) with Cartesian and spherical d functions, about 0.13 eV for a molecule."""
    files = {"ani1x": SHARED / "ani1x" / "ani1x_800.xyz", "3bpa": SHARED / "3bpa" / "train_300K.xyz"}
    entries = [{"path": path, "tag": tag} for tag, path in files.items()]
    split = {"kind": "random", "fractions": {"train": 1.0}}
    part = FileData.model_validate({"train": entries, "split": split}).load()["train"]
    chunks = [EnergyChunk.from_block(block) for block in part.blocks()]
    found = {fit: fit(chunks).energies_ev for fit in (pooled_references, fitted_references)}
    gaps = {fit: max(abs(row["3bpa"][z] - row["ani1x"][z]) for z in row["3bpa"]) for fit, row in found.items()}
    assert gaps[pooled_references] < 0.2 < 100.0 < gaps[fitted_references]
