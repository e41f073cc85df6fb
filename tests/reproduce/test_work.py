"""Rows that are really trained, stopped, resumed and waited for."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from huefield.potentials import PaiNN
from huefield.reproduce import work
from huefield.reproduce.plan import Job, MiniSize
from huefield.reproduce.report import compared, write_table
from huefield.reproduce.rows import ROWS
from huefield.reproduce.settings import settings_of
from huefield.reproduce.sources import OwnData
from huefield.reproduce.table import Table
from huefield.reproduce.work import RESULT, run_jobs
from huefield.support.files import alone_in
from huefield.training import TrainingDivergedError, TrainingStoppedError
from huefield.training.config import parse_config
from tests.training.helpers import write_waters

TINY = MiniSize(
    PaiNN.Config(features=8, layers=1, radial_functions=6, cutoff_angstrom=3.0), (12, 4, 6), members=2, validate_every=6
)


@contextlib.contextmanager
def quietly(what: str) -> Iterator[Any]:
    yield lambda event: None


def unheard(text: str) -> None:
    raise AssertionError(f"nothing was to be said, but {text!r} was")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OwnData]:
    """A row on waters, trained for some steps."""
    folder = tmp_path_factory.mktemp("reproduce")
    source = OwnData(write_waters(folder / "water.xyz", 40))
    run_jobs([Job(source, 0, ROWS["colored-atom-joint"])], TINY, folder / "out", quietly, unheard)
    return folder / "out", source


@pytest.mark.slow
class TestWork:
    def test_results_have_all_calibrations(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        found = json.loads((out / source.name / "seed-0" / "colored-atom-joint" / RESULT).read_text())
        assert {"none", "scale", "gamma"} <= set(found["tests"]["test"])
        assert set(found["tests"]) == {"validation", "test"}
        assert found["tests"]["test"]["none"]["joint_nll"] is not None
        assert set(found["data_digests"]) == {"train", "validation"}
        assert len(found["mean_digest"]) == 64
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
        made = write_table(source, TINY, out)
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

        run_jobs([Job(source, 0, ROWS["colored-atom-joint"])], TINY, out, showing, unheard)
        assert told == []

    def test_what_was_done_with_other_settings_is_not_taken(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        longer = dataclasses.replace(TINY, steps=(13, 4, 6))
        with pytest.raises(ValueError, match="made with other settings"):
            run_jobs([Job(source, 0, ROWS["colored-atom-joint"])], longer, out, quietly, unheard)

    def test_a_mean_of_other_settings_is_not_started_from(self, done: tuple[Path, OwnData], tmp_path: Path) -> None:
        out, source = done
        shutil.copytree(out / source.name / "seed-0" / "mean", tmp_path / source.name / "seed-0" / "mean")
        longer = dataclasses.replace(TINY, steps=(13, 4, 6))
        with pytest.raises(ValueError, match=r"other settings or data \(stages.0.steps: was 12, is 13\)"):
            run_jobs([Job(source, 0, ROWS["white"])], longer, tmp_path, quietly, unheard)

    def test_results_of_other_settings_are_left_out_and_named(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        table = Table.collected(source, dataclasses.replace(TINY, members=3), out)
        assert table.rows == []
        assert "joint likelihood, seed 0, has other settings and is ignored" in table.warnings()[0]

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
            run_jobs([job], TINY, out, quietly, told.append)
        assert told == ["waiting for another process, which works on white, seed 0"]

    def test_who_waits_for_a_mean_says_so_once(
        self, done: tuple[Path, OwnData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, source = done
        job, told, shown, waits = Job(source, 0, ROWS["white"]), list[str](), list[str](), iter(range(3))
        mean = job.shared(tmp_path) / "mean"
        mean.mkdir(parents=True)

        @contextlib.contextmanager
        def showing(what: str) -> Iterator[Any]:
            shown.append(what)
            yield lambda event: None

        def three_times(should_stop: object) -> None:
            if next(waits, None) is None:
                raise TrainingStoppedError("enough")

        monkeypatch.setattr(work, "_wait", three_times)
        with alone_in(mean), pytest.raises(TrainingStoppedError, match="enough"):
            run_jobs([job], TINY, tmp_path, showing, told.append)
        assert (len(told), shown) == (1, [])

    def test_who_waits_can_be_stopped(self, done: tuple[Path, OwnData]) -> None:
        out, source = done
        job = Job(source, 1, ROWS["white"])
        job.folder(out).mkdir(parents=True)
        with alone_in(job.folder(out)), pytest.raises(TrainingStoppedError, match="waiting for other"):
            run_jobs([job], TINY, out, quietly, lambda text: None, lambda: True)

    def test_a_row_that_diverges_is_told_and_kept(self, done: tuple[Path, OwnData], tmp_path: Path) -> None:
        _, source = done
        job, told = Job(source, 0, ROWS["white"]), list[str]()

        class Diverging(MiniSize):
            def train(self, *args: object) -> None:
                raise TrainingDivergedError("the loss of frame 3 is not finite")

        run_jobs([job], Diverging(TINY.potential), tmp_path, quietly, told.append)
        assert "frame 3" in told[0]
        assert f"remove {job.folder(tmp_path)} to try again" in told[0]
        assert Table.collected(source, Diverging(TINY.potential), tmp_path).seeds("white") == []

    def test_stopped_and_started_again_gives_the_same(self, done: tuple[Path, OwnData], tmp_path: Path) -> None:
        out, source = done
        job, asked, saved = Job(source, 0, ROWS["colored-atom-joint"]), iter(range(1000)), list[bool]()
        with pytest.raises(TrainingStoppedError):
            run_jobs([job], TINY, tmp_path, quietly, unheard, lambda: next(asked) >= 15, lambda: saved.append(True))
        assert saved
        assert (tmp_path / source.name / "seed-0" / "mean" / "model.safetensors").exists()
        run_jobs([job], TINY, tmp_path, quietly, unheard)
        ours, theirs = (json.loads((job.folder(f) / RESULT).read_text())["tests"] for f in (tmp_path, out))
        assert ours == theirs
