"""The paper's table made anew, in small."""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.io import write
from typer.testing import CliRunner

from huefield.apps.cli.main import app
from huefield.apps.reproduce import work
from huefield.apps.reproduce.commands import written_commands
from huefield.apps.reproduce.figures import reliability_figure, rows_figure
from huefield.apps.reproduce.plan import Job, MiniSize, PaperSize, planned
from huefield.apps.reproduce.published import METRICS, PUBLISHED
from huefield.apps.reproduce.report import compared, write_table
from huefield.apps.reproduce.rows import PAPER, ROWS, all_rows, rows_named
from huefield.apps.reproduce.sources import FEW, Bundled, OwnData, SmallANI1x, digest, source_named, source_of
from huefield.apps.reproduce.table import (
    Estimate,
    Table,
    comparison_table,
    deviation,
    paper_table,
    require_comparable,
    titles_of_tests,
)
from huefield.apps.reproduce.work import RESULT, settings_of, work_through
from huefield.core.files import alone_in
from huefield.potentials import PaiNN
from huefield.training import TrainingDivergedError, TrainingStoppedError
from huefield.training.config import parse_config
from tests.data.test_transition1x import make as make_transition1x
from tests.training.helpers import write_waters

TINY = MiniSize(
    PaiNN.Config(features=8, layers=1, radial_functions=6, cutoff_angstrom=3.0), (12, 4, 6), members=2, validate_every=6
)


@contextlib.contextmanager
def quietly(what: str) -> Iterator[Any]:
    yield lambda event: None


def unheard(text: str) -> None:
    raise AssertionError(f"nothing was to be said, but {text!r} was")


def fabricated(values: dict[str, list[float]], metric: str = "nll") -> Table:
    """Rows with one metric of energies and forces for each seed."""
    tests = {
        row: {
            seed: {
                "seed": seed,
                "tests": {
                    "test": {
                        "none": {"energy": {metric: value}, "forces": {metric: 2 * value}, "joint_nll": 10 * value}
                    }
                },
            }
            for seed, value in enumerate(found)
        }
        for row, found in values.items()
    }
    return Table("x", "data", {"test": "as in training"}, tests)


class TestRows:
    def test_names_are_found_in_the_order_of_the_table(self) -> None:
        assert [row.name for row in rows_named(["colored", "vanilla"])] == ["vanilla", "colored"]

    def test_a_row_that_is_not_there_is_an_error_that_lists_all(self) -> None:
        with pytest.raises(ValueError, match="no row 'beige'; there are vanilla, white, colored, colored-atom"):
            rows_named(["beige"])

    def test_readouts_are_for_molecules_of_different_sizes(self) -> None:
        assert all_rows(mixed_sizes=True) == tuple(ROWS.values())
        assert {row.name for row in ROWS.values()} - {row.name for row in all_rows(mixed_sizes=False)} == {
            "colored-atom-mean", "colored-atom-root", "white-mean"
        }  # fmt: skip

    def test_the_rows_of_the_paper_are_its_own(self) -> None:
        assert {row.row for row in PUBLISHED} == {row.name for row in PAPER}
        assert ROWS["colored"].noise.model_dump()["gamma"] == "global"


class TestEstimate:
    def test_the_margin_is_that_of_student(self) -> None:
        found = Estimate.of([1.0, 2.0, 3.0])
        assert found.mean == 2.0
        assert found.margin == pytest.approx(4.302653 / np.sqrt(3))  # t of 2 degrees of freedom, standard deviation 1
        assert found.text(2) == "2.00 ± 2.48"

    def test_of_one_seed_there_is_no_margin(self) -> None:
        found = Estimate.of([1.5])
        assert found.mean == 1.5
        assert isnan(found.margin)
        assert found.text(1) == "1.5"

    def test_what_is_unknown_is_a_dash(self) -> None:
        assert Estimate.of([1.0, nan]).text(2) == Estimate.of([]).text(2) == "–"


class TestTable:
    def test_differences_are_taken_seed_by_seed(self) -> None:
        table = fabricated({"white": [1.0, 5.0, 9.0], "colored": [1.5, 5.5, 9.5]})
        found = table.estimate("colored", "test", "forces", "nll", less="white")
        assert found.mean == pytest.approx(1.0)
        assert found.margin == pytest.approx(0.0, abs=1e-12)
        assert table.estimate("colored", "test", "forces", "nll").margin > 1

    def test_seeds_that_only_one_row_has_do_not_count(self) -> None:
        table = fabricated({"white": [1.0, 2.0], "colored": [3.0]})
        assert table.estimate("colored", "test", "energy", "nll", less="white").mean == 2.0

    def test_a_row_that_failed_has_no_numbers(self) -> None:
        table = fabricated({"white": [1.0], "colored": [2.0]})
        table.results["colored"][0] = {"seed": 0, "failed": "diverged"}
        assert "| colored (0 of 1 seeds) | – |" in paper_table(table)
        assert table.failures() == ["colored, seed 0, failed and is left out: diverged"]
        assert table.as_dict()["rows"]["colored"] == {"0": {"seed": 0, "failed": "diverged"}}

    def test_the_papers_own_rows_stand_below(self) -> None:
        text = paper_table(fabricated({"white": [1.0]}))
        line = next(line for line in text.splitlines() if "paper, ANI-1x: colored" in line)
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        assert cells[:7] == ["0.012", "0.026", "−2.56", "0.42", "0.56", "0.97", "0.048"]
        assert len(cells) == 2 * len(METRICS)

    def test_the_comparison_has_the_joint_likelihood(self) -> None:
        text = comparison_table(fabricated({"white": [1.0], "colored": [0.5]}), "test")
        assert "| colored | −0.500 | – | −1.000 | – | – | – | 5.00 |" in text

    def test_what_is_saved_comes_back(self, tmp_path: Path) -> None:
        table = fabricated({"white": [1.0, 5.0]})
        table.save(tmp_path / "t.json")
        assert Table.load(tmp_path / "t.json") == table

    def test_rows_with_fewer_seeds_say_so(self) -> None:
        text = paper_table(fabricated({"white": [1.0, 2.0], "colored": [3.0]}))
        assert "| colored (1 of 2 seeds) |" in text
        assert "| white |" in text

    def test_remarks_on_calibrations_are_said_once(self) -> None:
        table = fabricated({"white": [1.0, 2.0], "colored": [3.0]})
        for row in table.rows:
            table.results[row][0]["remarks"] = {"isotonic": ["energies: too few"]}
        table.results["white"][1]["remarks"] = {"scale": ["at its bound"]}
        assert table.remarks() == ["isotonic: energies: too few (all rows)", "one factor: at its bound (white)"]

    def test_the_largest_deviation_is_named(self) -> None:
        one, other = (fabricated({"white": [1.0, 2.0], "colored": [3.0, x]}, "rmse") for x in (4.0, 5.0))
        assert deviation(one, one).largest == 0.0
        found = deviation(one, other)
        assert found.largest == pytest.approx(0.2)
        assert found.where.startswith("colored, seed 1, test")
        assert found.missing == ()

    def test_likelihoods_near_zero_deviate_by_their_difference(self) -> None:
        one, other = (fabricated({"white": [x]}) for x in (0.01, 0.03))
        assert deviation(one, other).largest == pytest.approx(0.04)  # that of forces

    def test_what_was_not_compared_is_listed(self) -> None:
        one, other = fabricated({"white": [1.0, 2.0], "colored": [3.0]}), fabricated({"white": [1.0]})
        one.results["colored"][0] = {"seed": 0, "failed": "diverged"}
        comparison = compared(one, other)
        assert comparison.agrees
        assert comparison.text.endswith("Not compared: white, seed 1; colored, seed 0")

    def test_tables_without_a_common_row_cannot_be_compared(self) -> None:
        with pytest.raises(ValueError, match="nothing in common"):
            deviation(fabricated({"white": [1.0]}), fabricated({"colored": [1.0]}))

    def test_tables_of_different_data_cannot_be_compared(self) -> None:
        other = fabricated({"white": [1.0]})
        with pytest.raises(ValueError, match="results of data cannot be compared with those of AcAc"):
            deviation(fabricated({"white": [1.0]}), Table("acac", "AcAc", other.tests, other.results))

    def test_what_cannot_be_compared_is_said_beforehand(self) -> None:
        with pytest.raises(ValueError, match="results of bundled data cannot be compared with those of data"):
            require_comparable(Bundled(), [("white", 0)], fabricated({"white": [1.0]}))
        ours = Table("bundled", "bundled data", titles_of_tests(Bundled()), fabricated({"white": [1.0]}).results)
        require_comparable(Bundled(), [("colored", 0), ("white", 0)], ours)
        with pytest.raises(ValueError, match="no row and seed in common"):
            require_comparable(Bundled(), [("white", 1), ("colored", 0)], ours)

    @pytest.mark.parametrize("content", ["3\nwater\n", "[]", '{"rows": {}}'])
    def test_a_file_without_results_is_named(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "other").write_text(content)
        with pytest.raises(ValueError, match="other has no results of a table"):
            Table.load(tmp_path / "other")


class TestFigures:
    def test_a_table_of_vanilla_alone_can_be_drawn(self) -> None:
        assert rows_figure(fabricated({"vanilla": [1.0, 2.0]})) is not None

    def test_rows_are_drawn_relative_to_white_noise_of_the_same_seed(self) -> None:
        figure = rows_figure(fabricated({"white": [1.0, 2.0], "colored": [1.1, 2.3]}))
        assert figure is not None
        drawn = [np.asarray(line.get_xdata(), float) for line in figure.axes[0].lines]
        assert any(len(x) == 2 and np.allclose(x, [0.1, 0.3]) for x in drawn)

    def test_diagrams_without_points_say_so(self) -> None:
        table = fabricated({"white": [1.0]})
        scores = table.results["white"][0]["tests"]["test"]["none"]
        scores["forces"]["reliability"] = {"rmv": [0.1, 0.2], "rmse": [0.1, 0.3]}
        scores["energy"]["reliability"] = {"rmv": [], "rmse": []}
        figure = reliability_figure(table)
        assert figure is not None
        above, below = ([text.get_text() for text in ax.texts] for ax in figure.axes)
        assert above == ["too few for a diagram"]
        assert below == ["ENCE –\nRZV –"]


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
        with pytest.raises(ValueError, match="no data set and no file 'nosuch'"):
            source_named("nosuch")
        monkeypatch.setenv("HUEFIELD_DATA", str(tmp_path))
        with pytest.raises(FileNotFoundError, match="HUEFIELD_DATA"):
            source_named("acac").prepare(1, lambda progress: None, lambda: False)
        with pytest.raises(FileNotFoundError, match="HUEFIELD_DATA"):
            source_named("ani1x").prepare(1, lambda progress: None, lambda: False)
        with pytest.raises(FileNotFoundError, match="--file is the HDF5 file of ani1x"):
            source_of("ani1x", tmp_path / "x.h5", tmp_path, FEW)
        with pytest.raises(ValueError, match="published HDF5 file of transition1x"):
            source_of("transition1x", None, tmp_path, FEW)
        with pytest.raises(ValueError, match="--file is for the published files of ani1x and transition1x"):
            source_of("bundled", tmp_path / "x.h5", tmp_path, FEW)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OwnData]:
    """A row on waters, trained for some steps."""
    folder = tmp_path_factory.mktemp("reproduce")
    source = OwnData(write_waters(folder / "water.xyz", 40))
    work_through([Job(source, 0, ROWS["colored-atom-joint"])], TINY, folder / "out", quietly, unheard)
    return folder / "out", source


@pytest.mark.slow
class TestWork:
    def test_results_have_all_calibrations(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        found = json.loads((out / source.name / "seed-0" / "colored-atom-joint" / RESULT).read_text())
        assert {"none", "scale", "gamma"} <= set(found["tests"]["test"])
        assert set(found["tests"]) == {"validation", "test"}
        assert found["tests"]["test"]["none"]["joint_nll"] is not None
        plain, gamma = (found["tests"]["validation"][method] for method in ("none", "gamma"))
        assert plain["energy"] == gamma["energy"]  # γ is about forces alone
        assert gamma["forces"]["nll"] <= plain["forces"]["nll"] + 1e-5  # and was fitted here

    def test_rows_start_from_one_mean(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        folder = out / source.name / "seed-0"
        assert (folder / "mean" / "model.safetensors").exists()
        config = parse_config((folder / "colored-atom-joint" / "run" / "config.yaml").read_text(), "config")
        assert config.start_from == folder / "mean" / "model.safetensors"
        for row in ROWS.values():
            stages = TINY.config(Job(source, 0, row), out).stages
            assert sum(stage.steps for stage in stages) == 10
            assert [getattr(stage, "joint", False) for stage in stages][-1] == row.joint

    def test_the_page_has_our_rows_and_the_papers(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        made = write_table(source, out, TINY.about)
        page = made.files[0].read_text()
        for text in (
            TINY.about,
            "colored, γ per atom, joint likelihood",
            "Transition1x: white",
            "Before and after calibration",
        ):
            assert text in page
        assert page.count("data:image/png") == sum(path.suffix == ".png" for path in made.files) >= 1
        assert compared(made.table, Table.load(made.files[1])).agrees

    def test_what_is_done_is_not_done_again(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        told = []

        @contextlib.contextmanager
        def showing(what: str) -> Iterator[Any]:
            told.append(what)
            yield lambda event: None

        work_through([Job(source, 0, ROWS["colored-atom-joint"])], TINY, out, showing, unheard)
        assert told == []

    def test_what_was_done_with_other_settings_is_not_taken(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        longer = dataclasses.replace(TINY, steps=(13, 4, 6))
        with pytest.raises(ValueError, match="made with other settings"):
            work_through([Job(source, 0, ROWS["colored-atom-joint"])], longer, out, quietly, unheard)

    def test_a_row_that_another_process_is_at_work_with_is_waited_for(
        self, done: tuple[Path, OwnData], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, source = done
        job, told, finished = Job(source, 0, ROWS["white"]), list[str](), (out / source.name).rglob(RESULT)
        result = json.loads(next(finished).read_text())
        job.folder(out).mkdir(parents=True)
        with contextlib.ExitStack() as other:
            other.enter_context(alone_in(job.folder(out)))

            def end_of_the_other(should_stop: object) -> None:
                found = {**result, "row": "white", "settings": settings_of(job, TINY, out)}
                (job.folder(out) / RESULT).write_text(json.dumps(found))
                other.close()

            monkeypatch.setattr(work, "_wait", end_of_the_other)
            work_through([job], TINY, out, quietly, told.append)
        assert told == ["another process is at work with white, seed 0: waiting for it"]

    def test_who_waits_can_be_stopped(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        job = Job(source, 1, ROWS["white"])
        job.folder(out).mkdir(parents=True)
        with alone_in(job.folder(out)), pytest.raises(TrainingStoppedError, match="waiting for other"):
            work_through([job], TINY, out, quietly, lambda text: None, lambda: True)

    def test_a_row_that_diverges_is_told_and_kept(self, done: tuple[Path, OwnData], tmp_path: Path) -> None:
        _, source = done
        job, told = Job(source, 0, ROWS["white"]), list[str]()

        class Diverging(MiniSize):
            def train(self, *args: object) -> None:
                raise TrainingDivergedError("the loss of frame 3 is not finite")

        work_through([job], Diverging(TINY.potential), tmp_path, quietly, told.append)
        assert "frame 3" in told[0]
        assert f"remove {job.folder(tmp_path)} to try it again" in told[0]
        assert Table.collected(source, tmp_path).seeds("white") == []

    def test_stopped_and_started_again_gives_the_same(self, done: tuple[Path, OwnData], tmp_path: Path) -> None:
        out, source = done
        job, asked = Job(source, 0, ROWS["colored-atom-joint"]), iter(range(1000))
        with pytest.raises(TrainingStoppedError):
            work_through([job], TINY, tmp_path, quietly, unheard, lambda: next(asked) >= 15)
        assert (tmp_path / source.name / "seed-0" / "mean" / "model.safetensors").exists()
        work_through([job], TINY, tmp_path, quietly, unheard)
        ours, theirs = (json.loads((job.folder(f) / RESULT).read_text())["tests"] for f in (tmp_path, out))
        assert ours == theirs


class TestPaperSize:
    def test_it_is_the_papers_to_the_letter(self, tmp_path: Path) -> None:
        for row in PAPER:
            config = PaperSize().config(Job(OwnData(write_waters(tmp_path / "w.xyz", 20)), 0, row), tmp_path)
            assert sum(stage.steps for stage in config.stages) == 7_000_000
            assert (config.batch_size, config.members) == (64, 5)
            assert (config.model.potential.features, config.model.potential.layers) == (256, 3)
            assert config.stages[0].learning_rate == 1e-4
        assert "mean nothing" in PaperSize(dry_run=True).about
        assert "mean nothing" not in PaperSize().about

    def test_official_files_are_packed_by_their_own_split(self, tmp_path: Path) -> None:
        file = make_transition1x(tmp_path / "t1x.h5")
        with h5py.File(file, "a") as opened:
            opened.require_group("test")["CHO"] = h5py.SoftLink("/data/C2H2O")
        for limits, counts in (({}, (14, 14, 14)), ({"train": 9, "validation": 5, "test": 3}, (9, 5, 3))):
            source = source_of("transition1x", file, tmp_path, limits)  # 14 = 2 × (5 + both ends)
            source.prepare(1, lambda progress: None, lambda: False)
            parts = source.data(0, tmp_path).load()
            found = (len(parts["train"]), len(parts["validation"]), len(source.test_parts(parts)["test"]))
            assert found == counts

    def test_commands_come_with_configurations_and_a_script(self, tmp_path: Path) -> None:
        path = write_waters(tmp_path / "w.xyz", 20)
        plan = planned(str(path), paper_size=True, out=tmp_path)
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
        plan = planned(str(write_waters(tmp_path / "w.xyz", 20)), paper_size=True, out=tmp_path / "my out")
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


def test_what_is_there_more_than_once_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    once = write_waters(tmp_path / "w.xyz", 20).read_text()
    (tmp_path / "twice.xyz").write_text(once + once)
    with pytest.raises(ValueError, match=r"(?s)twice.xyz cannot be split into parts, seed 0.*Leave one of each"):
        OwnData(tmp_path / "twice.xyz").prepare(1, lambda progress: None, lambda: False)


def test_a_file_needs_forces_and_some_structures(tmp_path: Path) -> None:
    waters = write_waters(tmp_path / "w.xyz", 20)
    bare = tmp_path / "bare.xyz"
    bare.write_text(waters.read_text().replace("forces:R:3", "push:R:3"))
    with pytest.raises(ValueError, match=r"no structure of .*bare.xyz has forces"):
        OwnData(bare).prepare(1, lambda progress: None, lambda: False)
    with pytest.raises(ValueError, match="has 3 structures, but a table needs at least 20"):
        OwnData(write_waters(tmp_path / "few.xyz", 3)).prepare(1, lambda progress: None, lambda: False)


def test_kept_results_are_of_the_settings_of_today(tmp_path: Path) -> None:
    """Or ``huefield reproduce`` would refuse them, and the table could not be made again."""
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduction" / "bundled.json"
    if not kept.exists():
        pytest.skip("results are not part of the package")
    table = Table.load(kept)
    jobs = [Job(Bundled(), seed, ROWS[row]) for row in table.rows for seed in table.seeds(row)]
    other = [
        job.title
        for job in jobs
        if table.results[job.row.name][job.seed]["settings"] != settings_of(job, MiniSize(), tmp_path)
    ]
    assert len(jobs) > 15
    assert other == []


def test_the_page_names_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
    assert [name for name in ROWS if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nosuch"), "no data set and no file 'nosuch'"),
        (("--only", "beige"), "there is no row 'beige'"),
        (("--dry-run",), "--dry-run is for --size paper"),
        (("--commands",), "--commands is for --size paper"),
        (("--size", "paper", "--data", "ani1x"), "Name it with --file"),
        (("--size", "paper"), "say which data with --data"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
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
