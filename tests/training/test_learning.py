"""Training of corrections: the data that networks learn, and whole runs."""

from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT

import huefield
from huefield import HuefieldError
from huefield.baselines import AseBaseline, ColumnsBaseline, TbliteBaseline
from huefield.baselines.files import write_baseline
from huefield.data.dataset import Part, open_part
from huefield.training import TrainConfig, assemble, train
from huefield.training.config import parse_config, to_yaml
from huefield.training.learning import RESULTS, learning_data
from tests.training.helpers import config_for, write_waters

SPLIT = {"kind": "random", "fractions": {"train": 0.7, "validation": 0.3}}


class Springs(AseCalculator):
    """The springs of the molecules, but too weak by a fifth: a baseline that has most of the physics."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 - a list in ASE

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def calculate(self, atoms: Atoms, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        energy, forces = 0.0, np.zeros((3, 3))
        for i, j, rest, stiff in ((0, 1, 0.96, 16.0), (0, 2, 0.96, 16.0), (1, 2, 1.5, 4.0)):
            vector = atoms.positions[j] - atoms.positions[i]
            length = float(np.linalg.norm(vector))
            energy += 0.5 * stiff * (length - rest) ** 2
            forces[i] += stiff * (length - rest) * vector / length
            forces[j] -= stiff * (length - rest) * vector / length
        self.results = {"energy": self.factor * energy, "forces": self.factor * forces}


def parts_of(path: Path) -> dict[str, Part]:
    whole = open_part("all", [path])
    return {"train": whole, "validation": whole.share(range(5))}


@pytest.fixture
def waters(tmp_path: Path) -> Path:
    return write_waters(tmp_path / "waters.xyz")


def test_networks_learn_labels_less_the_baseline(waters: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = AseBaseline.Config(name="springs")
    data = learning_data(parts_of(waters), config, tmp_path, given=Springs(), report=said.append)
    learnt, labels = (part.block(np.arange(20)) for part in (data.learnt("train"), open_part("all", [waters])))
    expected = [AseBaseline(Springs()).compute(structure) for structure in labels]
    np.testing.assert_allclose(learnt.energy, labels.energy - [each.energy for each in expected])
    np.testing.assert_allclose(learnt.forces, labels.forces - np.concatenate([each.forces for each in expected]))
    np.testing.assert_array_equal(data.parts["train"].block(np.arange(20)).energy, labels.energy)
    assert data.record is not None
    assert data.record.title == "springs"
    assert len(data.record.probes) == 3
    ratio = np.sqrt((learnt.forces**2).mean() / (labels.forces**2).mean())
    assert ratio == pytest.approx(0.2, rel=1e-6)
    assert said[-1].startswith("springs is the baseline: forces are ")
    assert "little" not in said[-1]


def test_a_baseline_that_explains_little_is_told(waters: Path, tmp_path: Path) -> None:
    said: list[str] = []
    learning_data(parts_of(waters), AseBaseline.Config(), tmp_path, given=EMT(), report=said.append)
    assert said[-1].endswith("warning: it explains little of them")


def test_results_are_kept_in_the_folder_of_the_run(waters: Path, tmp_path: Path) -> None:
    config = AseBaseline.Config(name="springs")
    learning_data(parts_of(waters), config, tmp_path, given=Springs())
    assert (tmp_path / RESULTS).read_text().count("\n") == 21

    calls = []

    class Counted(Springs):
        def calculate(self, *args: Any, **options: Any) -> None:
            calls.append(1)
            super().calculate(*args, **options)

    learning_data(parts_of(waters), config, tmp_path, given=AseBaseline(Counted(), "Springs"))
    assert len(calls) == 1  # one result is compared with those of the file
    with pytest.raises(HuefieldError, match="results of another baseline than Springs"):
        learning_data(parts_of(waters), config, tmp_path, given=AseBaseline(EMT(), "Springs"))


def test_failures_are_listed_or_left_out(waters: Path, tmp_path: Path) -> None:
    class Failing(Springs):
        def calculate(self, atoms: Atoms, *args: Any, **options: Any) -> None:
            super().calculate(atoms, *args, **options)
            if abs(atoms.positions[0, 0]) > 0.1:
                raise RuntimeError("SCF not converged")

    bad = [i for i, atoms in enumerate(ase.io.read(waters, ":")) if abs(atoms.positions[0, 0]) > 0.1]
    assert 0 < len(bad) < 10
    good = next(index for index in range(20) if index not in bad)
    whole = open_part("all", [waters])
    parts = {"train": whole, "validation": whole.share(range(good, good + 1))}
    with pytest.raises(
        HuefieldError, match=rf"no result for {len(bad)} structures .*frame {bad[0]}: .*SCF not converg"
    ):
        learning_data(parts, AseBaseline.Config(), tmp_path, given=Failing())
    said: list[str] = []
    data = learning_data(parts, AseBaseline.Config(), tmp_path, given=Failing(), skip_bad=True, report=said.append)
    assert len(data.parts["train"]) == 20 - len(bad)
    assert any("without a result are left out" in line for line in said)


def test_columns_are_taken_from_the_file(waters: Path, tmp_path: Path) -> None:
    columns = tmp_path / "columns.extxyz"
    write_baseline(waters, columns, AseBaseline(Springs()))
    data = learning_data(parts_of(columns), ColumnsBaseline.Config(name="springs"), tmp_path)
    expected = learning_data(parts_of(waters), AseBaseline.Config(), tmp_path, given=Springs())
    found, wanted = (each.learnt("train").block(np.arange(20)) for each in (data, expected))
    np.testing.assert_allclose(found.forces, wanted.forces, atol=1e-12)
    with pytest.raises(HuefieldError, match="the columns of the baseline: no result for 20 structures"):
        learning_data(parts_of(waters), ColumnsBaseline.Config(), tmp_path)


def test_a_calculator_of_python_has_to_be_given(waters: Path, tmp_path: Path) -> None:
    with pytest.raises(HuefieldError, match=r"huefield.train\(..., baseline=calc\)"):
        learning_data(parts_of(waters), AseBaseline.Config(), tmp_path)


def test_a_run_on_a_baseline_resumes_calibrates_and_predicts(waters: Path, tmp_path: Path) -> None:
    config = config_for(waters, model={"potential": config_for(waters).model.potential, "noise": {"kind": "local"}})
    trained = train(config, tmp_path / "run", baseline=Springs())
    direct = train(config, tmp_path / "direct")
    assert trained.ensemble.baseline is not None
    assert trained.scores["validation"].forces.rmse < 0.5 * direct.scores["validation"].forces.rmse
    again = train(config, tmp_path / "run", baseline=Springs())
    assert again.scores == trained.scores
    atoms = ase.io.read(waters, 0)
    with pytest.raises(HuefieldError, match="corrects Springs"):
        huefield.Calculator(trained, baseline=EMT())
    error = huefield.Calculator(trained, baseline=Springs()).get_property("forces", atoms) - atoms.get_forces()
    assert np.abs(error).max() < np.abs(atoms.get_forces()).max()
    with pytest.raises(HuefieldError, match="corrects Springs, but this run no baseline"):
        train(config, tmp_path / "next", start_from=str(trained.model))
    stiffer = Springs(1.1)
    with pytest.raises(HuefieldError, match=r"corrects Springs, but the given baseline is another one"):
        train(config, tmp_path / "next", start_from=str(trained.model), baseline=stiffer)
    calibrated = huefield.calibrate(trained)
    assert calibrated.ensemble.baseline == trained.ensemble.baseline
    both = huefield.evaluate([trained, calibrated], waters, baseline=Springs(), resamples=0)
    assert [each.name for each in both.baselines] == ["Springs alone"]
    assert any("after a fit of one energy for each element" in remark for remark in both.remarks)


@pytest.mark.slow
def test_members_trained_alone_are_assembled(waters: Path, tmp_path: Path) -> None:
    config = config_for(waters)
    for member in range(2):
        train(config, tmp_path / "run", member=member, baseline=Springs())
    made = assemble(tmp_path / "run", baseline=Springs())
    together = train(config, tmp_path / "together", baseline=Springs())
    assert made.ensemble.baseline == together.ensemble.baseline
    assert made.scores["validation"].forces.rmse == pytest.approx(together.scores["validation"].forces.rmse, rel=1e-3)


@pytest.mark.slow
def test_without_correction_only_the_noise_is_learnt(waters: Path, tmp_path: Path) -> None:
    config = config_for(waters)
    trained = train(config, tmp_path / "run", baseline=Springs(), correction="none")
    recorded = parse_config((tmp_path / "run" / "config.yaml").read_text(), "config.yaml")
    assert recorded.model.correction == "none"
    assert [stage.kind for stage in recorded.stages] == ["beta_nll"]
    assert huefield.load(trained.model).members.correction == "none"
    calculator = huefield.Calculator(trained, baseline=Springs())
    for atoms in ase.io.read(waters, ":3"):
        assert calculator.get_property("forces_uncertainty_epistemic", atoms).max() == 0
        assert calculator.get_property("forces_uncertainty", atoms).min() > 0
        forces = calculator.get_property("forces", atoms)
        atoms.calc = Springs()
        np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correction": "none"}, "keeps the mean of a baseline, but there is none"),
        (
            {"correction": "none", "baseline": {"kind": "tblite"}, "noise": "vanilla"},
            "with vanilla noise would train nothing",
        ),
        ({"baseline": {"kind": "dft"}}, "baseline"),
        (
            {"baseline": {"kind": "tblite"}, "references": {"kind": "given", "energies_ev": {"all": {"H": -13.6}}}},
            "with a baseline its errors are learnt",
        ),
        ({"baseline": {"kind": "tblite", "method": "PM6"}}, "GFN2-xTB"),
    ],
)
def test_impossible_baselines_are_refused(waters: Path, changes: dict[str, Any], message: str) -> None:
    content = config_for(waters).model_dump(mode="json")
    content["model"]["noise"] = {"kind": changes.pop("noise", "colored")}
    with pytest.raises(ValueError, match=message):
        TrainConfig.model_validate({**content, **changes})


def test_configurations_keep_their_baseline(waters: Path) -> None:
    config = config_for(waters, baseline={"kind": "tblite", "method": "GFN1-xTB"})
    assert parse_config(to_yaml(config), "yaml").baseline == TbliteBaseline.Config(method="GFN1-xTB")
    assert "correction" not in to_yaml(config)
