import json
from dataclasses import replace
from typing import Any

import ase
import numpy as np
import pytest

from huefield.evaluation.report import viewer
from huefield.evaluation.report.selection import Selection, StructureScores, choose_structures
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from tests.evaluation.synthetic import predicted, waters
from tests.predict.helpers import changed


def shown(given: Predictions, indices: list[int] | None = None) -> Any:
    chosen = np.arange(len(given)) if indices is None else np.array(indices)
    return json.loads(viewer.make_viewer(given, Selection(chosen, "")).as_json())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", [0.0, 5.0])
def test_the_data_are_what_chemiscope_itself_writes(cell: float) -> None:
    """Its own Python package makes the same of the same structures and properties."""
    chemiscope = pytest.importorskip("chemiscope")
    given = predicted(waters(4, cell=cell))
    data = shown(given)["dataset"]
    frames = [
        ase.Atoms(s["names"], np.transpose([s["x"], s["y"], s["z"]]), cell=cell * np.eye(3), pbc=cell > 0)
        for s in data["structures"]
    ]
    expected = chemiscope.create_input(
        frames,
        metadata=data["meta"],
        properties=data["properties"],
        environments=chemiscope.all_atomic_environments(frames, cutoff=3.5),
        settings=data["settings"],
    )
    assert data == json.loads(json.dumps(expected))


def test_values_are_those_of_the_chosen_structures() -> None:
    given = predicted(waters(6))
    scores, data = StructureScores(given), shown(given, [1, 4])["dataset"]
    properties = {name: found["values"] for name, found in data["properties"].items()}
    np.testing.assert_allclose(properties["energy error"], scores.energy_error[[1, 4]], rtol=1e-4)
    np.testing.assert_allclose(properties["force RMSE"], scores.force_error[[1, 4]], rtol=1e-4)
    np.testing.assert_allclose(properties["force error (eV/Å)"], scores.atom_error[[3, 4, 5, 12, 13, 14]], rtol=1e-4)
    np.testing.assert_allclose(
        properties["force uncertainty (eV/Å)"], scores.atom_uncertainty[[3, 4, 5, 12, 13, 14]], rtol=1e-4
    )
    assert properties["number"] == [1, 4]
    assert shown(given, [1])["dataset"]["properties"]["number"]["description"] == (
        "of the structure in its file or store, from 0"
    )
    assert properties["atoms"] == [3, 3]
    assert properties["group"] == ["water", "water"]


def test_numbers_are_those_of_the_source_however_large() -> None:
    given = predicted(waters(3))
    block = replace(given.structures, frames=np.array([7, 123_456, 9]))
    data = shown(replace(given, structures=block), [1, 2])["dataset"]
    assert data["properties"]["number"]["values"] == [123_456, 9]


def test_what_was_not_predicted_is_null() -> None:
    given = predicted(waters(2))
    assert given.forces is not None
    mean, variance = given.forces.mean.copy(), given.forces.variance.copy()
    mean[:3], variance[:3] = np.nan, 0.0
    page = shown(changed(given, forces=Marginals(mean, variance)))
    properties = page["dataset"]["properties"]
    for name in ("force uncertainty (rms)", "force RMSE", "largest force uncertainty", "largest force error"):
        assert [value is None for value in properties[name]["values"]] == [True, False]
    for name in ("force uncertainty (eV/Å)", "force error (eV/Å)"):
        assert [value is None for value in properties[name]["values"]] == [True] * 3 + [False] * 3
    assert page["maps"]["forces"]["x"]["scale"] == "log"


def test_the_worst_structure_is_in_front() -> None:
    given = predicted(waters(20))
    assert shown(given)["dataset"]["settings"]["pinned"] == [int(np.argmax(StructureScores(given).force_error))]


def test_molecules_are_turned_and_not_mirrored() -> None:
    given = predicted(waters(5))
    for number, structure in enumerate(shown(given)["dataset"]["structures"]):
        turned = np.transpose([structure[axis] for axis in "xyz"])
        before = given.structures[number].positions
        centred = before - before.mean(0)
        np.testing.assert_allclose(turned @ turned.T, centred @ centred.T, atol=1e-3)
        spread = (turned**2).sum(0)
        assert spread[0] >= spread[1] >= spread[2]


def test_handedness_is_kept() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        positions = rng.standard_normal((4, 3))
        turned = viewer._faced(positions)
        volumes = [np.linalg.det(p[1:] - p[0]) for p in (positions, turned)]
        assert volumes[0] == pytest.approx(volumes[1])


def test_crystals_stay_in_their_cell() -> None:
    given = predicted(waters(1, cell=6.0))
    (structure,) = shown(given)["dataset"]["structures"]
    assert structure["cell"] == (6.0 * np.eye(3)).ravel().tolist()
    np.testing.assert_allclose(structure["x"], given.structures.positions[:, 0], atol=1e-4)


def test_unknown_values_are_null() -> None:
    given = predicted(waters(2))
    block = replace(given.structures, has_energy=np.array([True, False]), has_forces=np.array([True, False]))
    properties = shown(replace(given, structures=block))["dataset"]["properties"]
    assert properties["energy error"]["values"][1] is None
    assert properties["force error (eV/Å)"]["values"][3:] == [None] * 3


def test_what_nobody_predicted_is_not_offered() -> None:
    page = shown(changed(predicted(waters(3)), forces=None))
    assert list(page["maps"]) == ["energies"]
    assert list(page["colorings"]) == ["element"]
    assert not any("force" in name for name in page["dataset"]["properties"])


def test_nothing_to_scatter() -> None:
    given = predicted(waters(3))
    nowhere = np.zeros(3, bool)
    page = shown(replace(given, structures=replace(given.structures, has_energy=nowhere, has_forces=nowhere)))
    assert page["maps"] == {}
    assert "map" not in page["dataset"]["settings"]
    assert list(page["colorings"]) == ["force uncertainty", "element"]


def test_zeros_are_not_put_on_a_logarithmic_scale() -> None:
    maps = shown(predicted(waters(3), scale=0.0))["maps"]
    assert maps["forces"]["x"] == {"property": "force uncertainty (rms)", "scale": "linear"}
    assert shown(predicted(waters(3)))["maps"]["forces"]["x"]["scale"] == "log"


def test_an_outlier_does_not_wash_out_the_colours() -> None:
    given = predicted(waters(200))
    assert given.forces is not None
    variance = given.forces.variance.copy()
    variance[0] = 1e6
    highest = shown(changed(given, forces=replace(given.forces, variance=variance)))["colorings"]["force uncertainty"][
        "max"
    ]
    assert 0.1 < highest < 1.0


def test_five_hundred_structures_make_a_small_page() -> None:
    given = predicted(waters(3000))
    text = viewer.make_viewer(given, choose_structures(given)).as_json()
    assert len(text) < 500_000
