"""A file of structures in, a file of predictions out."""

from contextlib import nullcontext
from pathlib import Path

import ase.io
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.stress import full_3x3_to_voigt_6_stress
from scipy import stats
from typer.testing import CliRunner

import huefield
from huefield.cli.main import app
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.data.convert import convert
from huefield.data.dataset import open_part
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import BadFrameError
from huefield.evaluation.slices import summarise
from huefield.model.calibration import ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration, EnergyForcesCalibration, Tails
from huefield.model.typical import NOTHING, PartQuantiles, TypicalUncertainty
from huefield.noise import ColoredNoise
from huefield.predict import predict_part, read_predictions
from huefield.predict.file import predict_file
from tests.training.helpers import POTENTIAL, waters, write_waters

PARTS = ("", "_aleatoric", "_epistemic")
COLORED = ColoredNoise.Config()


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "local"}}
    )
    built = Ensemble.build(config, 3, key=jax.random.key(0)).with_atom_energies({1: -1.5, 8: -2000.25})
    scale = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=9.0))
    return built.with_calibration(scale)


@pytest.fixture(scope="module")
def folder(ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a file of molecules and crystals in no order."""
    made = tmp_path_factory.mktemp("predict")
    huefield.save(ensemble, made / "mine.safetensors")
    ase.io.write(made / "mixed.xyz", mixed(), format="extxyz")
    return made


def mixed() -> list[Atoms]:
    frames = waters(9)
    for index in (1, 4):
        crystal = frames[index].copy()
        crystal.set_cell([4.0, 4.5, 5.0 + index])
        crystal.pbc = True
        frames[index] = crystal
    frames[5] = Atoms("H2", [[0, 0, 0], [0.2, 0.7, 0.1]])
    frames[6].set_cell([50.0, 50.0, 50.0])
    return frames


def run(*arguments: object, fails: bool = False) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert (result.exit_code != 0) == fails, result.output
    return result.output if not fails else f"{result.output}{result.exception}"


@pytest.fixture(scope="module")
def predicted(folder: Path) -> Path:
    said = run("predict", folder / "mine.safetensors", folder / "mixed.xyz", folder / "out.extxyz", "--members")
    assert f"Wrote {folder / 'out.extxyz'}: 9 structures, 2 with stress\n" in said
    return folder / "out.extxyz"


def test_a_model_in_memory_and_paths_as_text(ensemble: Ensemble, folder: Path, predicted: Path, tmp_path: Path) -> None:
    done = predict_file(ensemble, str(folder / "mixed.xyz"), str(tmp_path / "out.xyz"))
    assert (done.structures, done.with_stress) == (9, 2)
    found, expected = (ase.io.read(path, 0).get_forces() for path in (done.path, predicted))
    np.testing.assert_allclose(found, expected)


def test_a_model_file_in_double_precision(ensemble: Ensemble, folder: Path, predicted: Path, tmp_path: Path) -> None:
    huefield.save(ensemble.in_precision("float64"), tmp_path / "double.safetensors")
    run("predict", tmp_path / "double.safetensors", folder / "mixed.xyz", tmp_path / "out.extxyz")
    found, single = (ase.io.read(path, 0).get_forces() for path in (tmp_path / "out.extxyz", predicted))
    np.testing.assert_allclose(found, single, rtol=1e-4, atol=1e-5)


def test_every_structure_has_what_the_model_says_of_it_alone(ensemble: Ensemble, predicted: Path) -> None:
    for number, (given, atoms) in enumerate(zip(mixed(), ase.io.read(predicted, ":"), strict=True)):
        crystal, results = bool(given.pbc.all()), atoms.calc.results
        batch = make_batch([AseReader().convert(given)], 3.0, [BatchShape(1, 8, 8)])
        expected = ensemble.predict(batch.graph, stress=crystal)
        rows = slice(len(given))
        np.testing.assert_allclose(atoms.positions, given.positions, atol=1e-7)
        assert atoms.info["frame"] == number
        assert results["energy"] == pytest.approx(expected.energy[0], abs=1e-4)
        np.testing.assert_allclose(results["forces"], expected.forces[rows], atol=1e-5)
        np.testing.assert_allclose(atoms.info["energy_ensemble"], expected.energy_ensemble[:, 0], atol=1e-4)
        members = atoms.arrays["forces_ensemble"].reshape(len(atoms), -1, 3).swapaxes(0, 1)
        np.testing.assert_allclose(members, expected.forces_ensemble[:, rows], atol=1e-4)
        for part in PARTS:
            energy = float(getattr(expected, f"energy_uncertainty{part}")[0])
            forces = getattr(expected, f"forces_uncertainty{part}")[rows]
            assert atoms.info[f"energy_uncertainty{part}"] == pytest.approx(energy, rel=1e-3)
            np.testing.assert_allclose(atoms.arrays[f"forces_uncertainty{part}"], forces, rtol=1e-2, atol=1e-5)
            assert (f"stress_uncertainty{part}" in atoms.info) == crystal
            if crystal:
                stress = full_3x3_to_voigt_6_stress(getattr(expected, f"stress_uncertainty{part}")[0])
                np.testing.assert_allclose(atoms.info[f"stress_uncertainty{part}"], stress, rtol=1e-2, atol=1e-7)
        assert ("stress" in results) == crystal
        if crystal:
            np.testing.assert_allclose(results["stress"], full_3x3_to_voigt_6_stress(expected.stress[0]), atol=1e-6)


def test_what_was_predicted_can_be_judged(folder: Path, predicted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the labels of the file, which were copied, or by the file itself."""
    for options in ({}, {"reference": folder / "mixed.xyz"}):
        found = read_predictions(predicted, **options)
        labelled = [atoms.calc.get_potential_energy() for atoms in mixed() if atoms.calc]
        assert found.observed_energies().target.tolist() == pytest.approx(labelled, abs=1e-7)
    monkeypatch.setattr("huefield.evaluation.evaluate.save_figures", lambda *_, **__: [])
    out = folder / "new" / "folder"
    said = run("evaluate", "--predictions", predicted, "--reference", folder / "mixed.xyz", "--out", out)
    assert "| mine |" in said
    assert (out / "report.html").is_file()


def test_metrics_of_a_file_are_those_of_the_model(ensemble: Ensemble, tmp_path: Path) -> None:
    """Tails included: a coherent calibration has a ν for energies and another for forces."""
    tails = Tails(energy=3.5, forces=4.5, joint=6.0)
    model = ensemble.with_calibration(CoherentCalibration(noise=40.0, force_diagonal=9.0, spread=20.0, tails=tails))
    source = write_waters(tmp_path / "waters.xyz", 40)
    direct = summarise(predict_part(model, open_part("waters", [source]), "model"))
    predict_file(model, source, tmp_path / "out.extxyz")
    read = summarise(read_predictions(tmp_path / "out.extxyz"))
    for name in ("energy", "forces"):
        found, expected = getattr(read, name), getattr(direct, name)
        assert found.dof == expected.dof == getattr(tails, name)
        for metric in ("nll", "crps", "rzv", "rmse"):
            assert getattr(found, metric) == pytest.approx(getattr(expected, metric), rel=1e-6), metric
        assert found.coverage == expected.coverage
    assert read.joint_nll == pytest.approx(direct.joint_nll, rel=1e-6)


def test_stresses_have_tails_of_forces_or_their_own(ensemble: Ensemble, folder: Path, tmp_path: Path) -> None:
    model = ensemble.with_calibration(CoherentCalibration(tails=Tails(energy=3.5, forces=4.5)))
    predict_file(model, folder / "mixed.xyz", tmp_path / "out.extxyz")
    frames = ase.io.read(tmp_path / "out.extxyz", ":")
    assert [atoms.info.get("stress_dof") for atoms in frames] == [4.5 if all(a.pbc) else None for a in frames]
    crystal = make_batch([AseReader().convert(mixed()[1])], 3.0, [BatchShape(1, 8, 8)])
    found = model.predict(crystal.graph, stress=True)
    width = stats.t.ppf(0.95, 4.5) * np.sqrt(2.5 / 4.5)
    np.testing.assert_allclose(found.stress_half_width(0.9), width * found.stress_uncertainty, rtol=1e-6)
    own = model.with_calibration(CoherentCalibration(tails=Tails(forces=4.5, observed_stress=3.0)))
    found = own.predict(crystal.graph, stress=True)
    width = stats.t.ppf(0.95, 3.0) * np.sqrt(1 / 3)
    np.testing.assert_allclose(found.stress_half_width(0.9), width * found.stress_uncertainty, rtol=1e-6)


@pytest.mark.parametrize("key", ["group", "config_type"])
def test_groups_are_kept(folder: Path, tmp_path: Path, key: str) -> None:
    frames = waters(3)
    for index in (0, 2):
        frames[index].info[key] = f"run {index}"
    ase.io.write(tmp_path / "in.xyz", frames, format="extxyz")
    predict_file(folder / "mine.safetensors", tmp_path / "in.xyz", tmp_path / "out.xyz")
    assert [atoms.info.get("group") for atoms in ase.io.read(tmp_path / "out.xyz", ":")] == ["run 0", None, "run 2"]


def test_a_charge_is_told_of(folder: Path, tmp_path: Path) -> None:
    frames = waters(4)
    for index in (1, 2):
        frames[index].info["charge"] = 1
    ase.io.write(tmp_path / "in.xyz", frames, format="extxyz")
    with pytest.warns(
        UserWarning, match=r"in\.xyz, frame 1: the atoms have a charge, which models do not take"
    ) as told:
        predict_file(folder / "mine.safetensors", tmp_path / "in.xyz", tmp_path / "out.xyz")
    assert len(told) == 1


def test_colored_noise_warns_once_of_sizes_it_was_not_validated_for(
    ensemble: Ensemble, folder: Path, tmp_path: Path
) -> None:
    """Local noise, that of the other tests, does not warn."""
    config = ForceField.Config.model_validate({"potential": ensemble.members.potential.config, "noise": COLORED})
    colored = Ensemble.build(config, 1, key=jax.random.key(0)).with_atom_energies({1: -1.5, 8: -2000.25})
    with pytest.warns(UserWarning, match="error bars for 3 atoms .* whose size at training is not known") as told:
        predict_file(colored, folder / "mixed.xyz", tmp_path / "unknown.xyz", stress=False)
    assert len(told) == 1
    for most, warns in ((2, True), (3, False)):
        none = PartQuantiles(total=NOTHING, aleatoric=NOTHING, epistemic=NOTHING)
        typical = TypicalUncertainty(
            source="data", structures=1, most_atoms=most, energy=none, atom=none, max=none, mean=none
        )
        expected = pytest.warns(UserWarning, match="validated up to 2 atoms") if warns else nullcontext()
        with expected:
            predict_file(colored.with_typical(typical), folder / "mixed.xyz", tmp_path / f"{most}.xyz", stress=False)


def test_stresses_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    done = predict_file(folder / "mine.safetensors", folder / "mixed.xyz", tmp_path / "out.xyz", stress=False)
    assert done.with_stress == 0
    text = (tmp_path / "out.xyz").read_text()
    assert "stress" not in text
    assert "ensemble" not in text


def test_a_store_is_predicted_like_its_file(folder: Path, predicted: Path, tmp_path: Path) -> None:
    convert([folder / "mixed.xyz"], tmp_path / "mixed.hues")
    told: list[tuple[int, int | None]] = []
    predict_file(
        folder / "mine.safetensors",
        tmp_path / "mixed.hues",
        tmp_path / "out.xyz",
        members=True,
        report=lambda done, total: told.append((done, total)),
    )
    assert told == [(9, 9)]
    assert (tmp_path / "out.xyz").read_text() == predicted.read_text()


def with_sulphur(path: Path, *indices: int) -> Path:
    frames = mixed()
    for index in indices:
        frames[index].numbers[0] = 16
    ase.io.write(path, frames, format="extxyz")
    return path


def test_what_the_model_cannot_do_is_an_error_or_left_out(folder: Path, tmp_path: Path) -> None:
    model, source, out = folder / "mine.safetensors", with_sulphur(tmp_path / "s.xyz", 2, 7), tmp_path / "new" / "o.xyz"
    said = run("predict", model, source, out, fails=True)
    assert f"{source}, frame 2: it contains S, but the model was trained for H, O only" in said
    assert "Leave such structures out with --skip-bad" in said
    assert not out.parent.exists()
    said = run("predict", model, source, out, "--skip-bad", "--members")
    assert f"Wrote {out}: 7 structures" in said
    assert (
        f"skipped 2: it contains S, but the model was trained for H, O only (the first is frame 2 of {source})" in said
    )
    assert [atoms.info["frame"] for atoms in ase.io.iread(out)] == [0, 1, 3, 4, 5, 6, 8]
    found = read_predictions(out, reference=source)
    assert found.structures.frames.tolist() == [0, 1, 3, 4, 5, 6, 8]


def test_a_file_of_which_nothing_can_be_predicted(folder: Path, tmp_path: Path) -> None:
    source = with_sulphur(tmp_path / "s.xyz", *range(9))
    with pytest.raises(
        BadFrameError, match=r"s.xyz has no structure that can be predicted: .*frame 0: it contains S.*\(9\)"
    ):
        predict_file(folder / "mine.safetensors", source, tmp_path / "o.xyz", skip_bad=True)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        ("no.xyz", "o.xyz", "there is no file or store no.xyz"),
        ("in.xyz", "in.xyz", "in.xyz would be overwritten with its predictions"),
        ("in.xyz", "old.xyz", "old.xyz exists: choose another name, or replace it with --overwrite"),
        ("in.xyz", "o.traj", "written as extended xyz: call them NAME.extxyz or NAME.xyz, not o.traj"),
        ("in.xyz", "folder.xyz", "folder.xyz is a folder: name a file in it"),
    ],
)
def test_files_that_will_not_do_are_named(
    folder: Path, source: str, out: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in.xyz", "old.xyz"):
        Path(name).write_text("before")
    Path("folder.xyz").mkdir()
    assert message in run("predict", folder / "mine.safetensors", source, out, fails=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in.xyz", "old.xyz", "folder.xyz"}
    assert Path("old.xyz").read_text() == "before"


def test_a_damaged_end_leaves_the_file_that_was_there(folder: Path, predicted: Path, tmp_path: Path) -> None:
    text = (folder / "mixed.xyz").read_text()
    (tmp_path / "cut.xyz").write_text(text[:-40])
    (tmp_path / "out.xyz").write_text("before")
    model, source = folder / "mine.safetensors", tmp_path / "cut.xyz"
    with pytest.raises(BadFrameError, match=r"cut.xyz, frame 8: the file is truncated"):
        predict_file(model, source, tmp_path / "out.xyz", overwrite=True)
    assert (tmp_path / "out.xyz").read_text() == "before"
    done = predict_file(model, source, tmp_path / "out.xyz", overwrite=True, skip_bad=True, members=True)
    assert (done.structures, [each.count for each in done.skipped]) == (8, [1])
    assert {path.name for path in tmp_path.iterdir()} == {"cut.xyz", "out.xyz"}


def test_an_interruption_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    def interrupted(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "new" / "out.xyz"
    with pytest.raises(KeyboardInterrupt):
        predict_file(folder / "mine.safetensors", folder / "mixed.xyz", out, members=True, report=interrupted)
    assert not list(tmp_path.iterdir())
