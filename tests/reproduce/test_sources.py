"""Data of a table, the paper's size, and what is refused before anything is trained."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.io import write
from typer.testing import CliRunner

from huefield.cli.main import app
from huefield.data.convert import ConversionStoppedError
from huefield.reproduce import sources
from huefield.reproduce.commands import written_commands
from huefield.reproduce.plan import Job, PaperSize, plan_table
from huefield.reproduce.rows import PAPER
from huefield.reproduce.sources import FEW, Bundled, OwnData, SmallANI1x, digest, source_named, source_of
from huefield.support.files import alone_in
from huefield.training.config import parse_config
from tests.data.readers.test_transition1x import make as make_transition1x
from tests.training.helpers import write_waters


class TestSources:
    def test_each_seed_of_the_bundled_data_is_a_split_of_its_own(self, tmp_path: Path) -> None:
        first, second = (Bundled().data(seed, tmp_path).load() for seed in (0, 1))
        assert {name: len(part) for name, part in first.items()} == {name: len(part) for name, part in second.items()}
        energies = [
            {name: part.block(np.arange(len(part))).energy for name, part in p.items()} for p in (first, second)
        ]
        alike = ("train", "validation", "test_id")
        assert not np.array_equal(*(np.sort(e["test_id"]) for e in energies))
        pooled = [np.sort(np.concatenate([e[name] for name in alike])) for e in energies]
        np.testing.assert_array_equal(*pooled)  # dealt out anew: nothing lost, nothing twice
        np.testing.assert_array_equal(*(e["test_hot"] for e in energies))

    def test_formulas_and_large_molecules_of_ani1x_are_kept_apart(self, tmp_path: Path) -> None:
        rng, frames = np.random.default_rng(0), []
        for carbons in range(1, 12):
            for _ in range(3):
                atoms = Atoms(f"C{carbons}H{carbons + 2}", rng.uniform(0, 12, (2 * carbons + 2, 3)))
                atoms.info["REF_energy"] = float(-carbons)
                frames.append(atoms)
        write(tmp_path / "ani.xyz", frames, format="extxyz")
        parts = SmallANI1x(tmp_path / "ani.xyz").data(0, tmp_path).load()
        sizes = {name: set(part.block(np.arange(len(part))).sizes.tolist()) for name, part in parts.items()}
        assert sizes["test_larger"] == {22, 24}
        small = [sizes[name] for name in ("train", "validation", "test")]
        assert set.union(*small) == {4, 6, 8, 10, 12, 14, 16, 18, 20}
        assert sum(map(len, small)) == 9  # one size is one formula here

    def test_a_data_set_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no data set or file 'nosuch'"):
            source_named("nosuch")
        monkeypatch.setenv("HUEFIELD_DATA", str(tmp_path))
        with pytest.raises(FileNotFoundError, match="HUEFIELD_DATA"):
            source_named("acac").prepare(1, lambda progress: None, lambda: False)
        with pytest.raises(FileNotFoundError, match="HUEFIELD_DATA"):
            source_named("ani1x").prepare(1, lambda progress: None, lambda: False)
        with pytest.raises(FileNotFoundError, match="--file must be the published HDF5 file of ani1x"):
            source_of("ani1x", tmp_path / "x.h5", tmp_path, FEW)
        with pytest.raises(ValueError, match="transition1x needs its published HDF5 file"):
            source_of("transition1x", None, tmp_path, FEW)
        with pytest.raises(ValueError, match="--file is for the published files of ani1x and transition1x"):
            source_of("bundled", tmp_path / "x.h5", tmp_path, FEW)


class TestPaperSize:
    def test_it_is_the_papers(self, tmp_path: Path) -> None:
        """[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training"."""
        for row in PAPER:
            config = PaperSize().config(Job(OwnData(write_waters(tmp_path / "w.xyz", 20)), 0, row), tmp_path)
            noiseless = row.name == "vanilla"
            assert [stage.steps / 1e6 for stage in config.stages] == ([7] if noiseless else [2, 1, 4])
            assert [stage.kind for stage in config.stages] == ["squared_error", "beta_nll", "nll"][
                : 1 if noiseless else 3
            ]
            assert (config.batch_size, config.members, config.optimiser.clip_norm) == (64, 5, None)
            potential = config.model.potential
            assert (potential.features, potential.layers, potential.cutoff_angstrom) == (256, 3, 5.0)
            step = 0
            for stage in config.stages:
                assert stage.learning_rate == pytest.approx(1e-4 * 0.96 ** (step / 1e5))
                step += stage.steps
                assert stage.learning_rate * stage.decay == pytest.approx(1e-4 * 0.96 ** (step / 1e5))
        assert "mean nothing" in PaperSize(dry_run=True).about
        assert "mean nothing" not in PaperSize().about

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """In the layout of Transition1x, with all parts of its split."""
        path = make_transition1x(tmp_path / "t1x.h5")
        with h5py.File(path, "a") as opened:
            opened.require_group("test")["CHO"] = h5py.SoftLink("/data/C2H2O")
        return path

    def test_official_files_are_packed_by_their_own_split(self, file: Path, tmp_path: Path) -> None:
        for limits, counts in (({}, (14, 14, 14)), ({"train": 9, "validation": 5, "test": 3}, (9, 5, 3))):
            source = source_of("transition1x", file, tmp_path, limits)  # 14 = 2 × (5 + both ends)
            source.prepare(1, lambda progress: None, lambda: False)
            parts = source.data(0, tmp_path).load()
            found = (len(parts["train"]), len(parts["validation"]), len(source.test_parts(parts)["test"]))
            assert found == counts

    def test_a_file_that_another_process_packs_is_waited_for(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = source_of("transition1x", file, tmp_path, {})
        folder = tmp_path / source.name / "data"
        folder.mkdir(parents=True)
        with ExitStack() as other:
            other.enter_context(alone_in(folder))
            with pytest.raises(ConversionStoppedError, match="another process packs"):
                source.prepare(1, lambda progress: None, lambda: True)
            waited = []
            monkeypatch.setattr(sources.time, "sleep", lambda seconds: (waited.append(seconds), other.close()))
            source.prepare(1, lambda progress: None, lambda: False)
        assert len(waited) == 1
        assert len(source.data(0, tmp_path).load()["train"]) == 14

    def test_commands_come_with_configurations_and_a_script(self, tmp_path: Path) -> None:
        path = write_waters(tmp_path / "w.xyz", 20)
        plan = plan_table(str(path), paper_size=True, out=tmp_path)
        text = written_commands(plan, "huefield reproduce table --size paper")
        assert "  huefield reproduce table --size paper\n" in text
        for job in plan.jobs:
            folder = job.folder(plan.out)
            assert f"huefield train {folder / 'config.yaml'} --out {folder / 'run'}\n" in text
            assert parse_config((folder / "config.yaml").read_text(), "config").model.noise == job.row.noise
        script = plan.folder / "members.sh"
        assert f"sbatch {script}" in text
        assert "--array=0-14" in script.read_text()

    def test_the_script_trains_each_member_of_each_row_and_queues_again_what_was_stopped(self, tmp_path: Path) -> None:
        plan = plan_table(str(write_waters(tmp_path / "w.xyz", 20)), paper_size=True, out=tmp_path / "my out")
        assert f"sbatch '{plan.folder / 'members.sh'}'" in written_commands(plan, "")
        for name, body in (("srun", 'echo "$@"; exit 130'), ("scontrol", 'echo "$@"')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        called = []
        for task in range(15):
            env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "7"}
            command = ["/bin/bash", plan.folder / "members.sh"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 130, done.stderr
            called += done.stdout.splitlines()
        folders = [job.folder(plan.out) for job in plan.jobs]
        assert called[::2] == [
            f"huefield train {folder}/config.yaml --out {folder}/run --member {member}"
            for folder in folders
            for member in range(5)
        ]
        assert called[1::2] == [f"requeue 7_{task}" for task in range(15)]


def test_files_with_one_name_do_not_share_a_folder(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    paths = [write_waters(tmp_path / name / "bundled.xyz", count) for name, count in (("a", 20), ("b", 21))]
    names = [OwnData(path).name for path in paths]
    assert len({*names, Bundled().name}) == 3
    assert names[0] == OwnData(paths[0]).name


def test_duplicates_are_refused_before_training(tmp_path: Path) -> None:
    once = write_waters(tmp_path / "w.xyz", 20).read_text()
    (tmp_path / "twice.xyz").write_text(once + once)
    with pytest.raises(ValueError, match=r"(?s)twice.xyz cannot be split into parts, seed 0.*Keep one of each"):
        OwnData(tmp_path / "twice.xyz").prepare(1, lambda progress: None, lambda: False)


def test_a_file_needs_forces_and_some_structures(tmp_path: Path) -> None:
    waters = write_waters(tmp_path / "w.xyz", 20)
    bare = tmp_path / "bare.xyz"
    bare.write_text(waters.read_text().replace("forces:R:3", "push:R:3"))
    with pytest.raises(ValueError, match=r"no structure of .*bare.xyz has forces"):
        OwnData(bare).prepare(1, lambda progress: None, lambda: False)
    with pytest.raises(ValueError, match="has 3 structures, but a table needs at least 20"):
        OwnData(write_waters(tmp_path / "few.xyz", 3)).prepare(1, lambda progress: None, lambda: False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nosuch"), "no data set or file 'nosuch'"),
        (("--only", "beige"), "unknown row 'beige'"),
        (("--dry-run",), "--dry-run needs --size paper"),
        (("--commands",), "--commands needs --size paper"),
        (("--size", "paper", "--data", "ani1x"), "give it with --file"),
        (("--size", "paper"), "--size paper needs --data"),
    ],
)
def test_wrong_arguments_give_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(
            app, ["reproduce", "table", *arguments, "--out", str(tmp_path / "out")], catch_exceptions=False
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty"), ("3\n\nO 0 0 0\nH 1 0 0\n", "frame 0"), ("not a structure at all\n", "frame 0|cannot")],
    ids=["empty", "cut off", "no structures"],
)
def test_files_that_cannot_be_read_leave_nothing_behind(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.xyz").write_text(content)
    arguments = ["--data", str(tmp_path / "mine.xyz"), "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, ["reproduce", "table", *arguments], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.xyz"]


@pytest.mark.parametrize(("flags", "folder"), [((), "paper"), (("--dry-run",), "dry-run")])
def test_runs_of_different_sizes_do_not_share_a_folder(flags: tuple[str, ...], folder: str, tmp_path: Path) -> None:
    """Or a result of one would be taken for that of the other."""
    path = write_waters(tmp_path / "w.xyz", 20)
    arguments = ["--size", "paper", "--data", str(path), "--out", str(tmp_path / "out"), "--commands", *flags]
    CliRunner().invoke(app, ["reproduce", "table", *arguments], catch_exceptions=False)
    assert [each.name for each in (tmp_path / "out").iterdir()] == [folder]
    config = parse_config(
        (tmp_path / "out" / folder / f"w-{digest(path)}" / "seed-0" / "white" / "config.yaml").read_text(), "config"
    )
    assert sum(stage.steps for stage in config.stages) == (6 if flags else 7_000_000)
