import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from typer.testing import CliRunner

from huefield.cli.data import app, parse_reader
from huefield.data.convert import ConversionStoppedError, ConvertProgress, convert
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import BadFrameError, reader_option
from huefield.data.readers.detect import detect
from huefield.data.store.store import Store, StoreError
from tests.data.store.test_writer import contents
from tests.paths import SHARED as DATA

HUEFIELD = Path(sys.executable).with_name("huefield")

KILLED_AND_RESUMED = """
import os, signal, sys
from pathlib import Path
from huefield.data.convert import convert
from huefield.data.store import writer as store_writer

sources, dest = [Path(name) for name in sys.argv[1:-1]], Path(sys.argv[-1])
options = dict(skip_bad=True, journal_every=100)
append, flush = store_writer.ColumnWriter.append, store_writer.ColumnWriter.flush

def killing(count):
    def torn(self, array):
        global calls
        calls += 1
        append(self, array)
        flush(self)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
    return torn

for count in (3, 21, 16, 20):
    child = os.fork()
    if not child:
        calls, store_writer.ColumnWriter.append = 0, killing(count)
        convert(sources, dest, **options)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (count, status)
    assert not dest.exists()
print(convert(sources, dest, **options).resumed)
"""


def frames(count: int, seed: int = 0, *, bad: tuple[int, ...] = ()) -> list[Atoms]:
    """Molecules of one to five atoms on a line; bad ones have two atoms in one place."""
    rng, images = np.random.default_rng(seed), []
    for index in range(count):
        size = int(rng.integers(2, 6))
        positions = np.zeros((size, 3)) if index in bad else np.c_[np.arange(size), rng.normal(size=(size, 2))]
        atoms = Atoms(rng.integers(1, 9, size), positions)
        atoms.calc = SinglePointCalculator(atoms, energy=float(rng.normal()), forces=rng.normal(size=(size, 3)))
        images.append(atoms)
    return images


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files, the first with bad frames; the second has a cell and no forces."""
    folder = tmp_path_factory.mktemp("sources")
    write(folder / "a.xyz", frames(560, bad=(0, 299, 511)))
    periodic = frames(120, seed=1)
    for atoms in periodic:
        energy = atoms.get_potential_energy()
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        atoms.set_cell([9, 8, 7])
        atoms.pbc = (True, False, True)
    write(folder / "b.xyz", periodic)
    return [folder / "a.xyz", folder / "b.xyz"]


@pytest.fixture(scope="module")
def whole(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted without interruption."""
    return convert(sources, tmp_path_factory.mktemp("whole") / "whole.hues", skip_bad=True).path


def stop_after(structures: int) -> tuple[Callable[[ConvertProgress], None], Callable[[], bool]]:
    seen: list[int] = []
    return lambda progress: seen.append(progress.structures), lambda: seen[-1] >= structures


def test_a_store_holds_what_ase_reads(sources: list[Path], whole: Path) -> None:
    images = [atoms for path in sources for atoms in read(path, ":")]
    expected = [atoms for i, atoms in enumerate(images) if i not in (0, 299, 511)]
    store = Store.open(whole)
    assert len(store) == len(expected) == 677
    for index in range(0, 677, 83):
        structure, atoms = store[index], expected[index]
        np.testing.assert_array_equal(structure.atomic_numbers, atoms.numbers)
        np.testing.assert_array_equal(structure.positions, atoms.positions)
        np.testing.assert_array_equal(structure.cell, atoms.cell[:])
        np.testing.assert_array_equal(structure.pbc, atoms.pbc)
        assert structure.energy == atoms.get_potential_energy()
        if index < 557:
            np.testing.assert_array_equal(structure.forces, atoms.get_forces())
        else:
            assert structure.forces is None
    assert store.origin(298) == (str(sources[0]), 300)
    assert store.origin(676) == (str(sources[1]), 119)


def test_provenance_tells_sources_sizes_and_readers(sources: list[Path], whole: Path) -> None:
    provenance = Store.open(whole).provenance
    assert [source.path for source in provenance.sources] == [str(path) for path in sources]
    assert [source.bytes for source in provenance.sources] == [path.stat().st_size for path in sources]
    assert provenance.sources[0].reader is not None
    assert provenance.sources[0].reader["kind"] == "ase"


def test_bad_frames_are_named_or_left_out_and_listed(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    with pytest.raises(BadFrameError, match=r"a.xyz, frame 0: two atoms are closer .* with --skip-bad"):
        convert(sources, tmp_path / "a.hues")
    assert not (tmp_path / "a.hues").exists()
    lines = (whole / "faults.txt").read_text().splitlines()
    assert [line.split(": ")[0].split("frame ")[1] for line in lines] == ["0", "299", "511"]
    assert Store.open(whole).manifest.faults == 3


def test_sources_with_nothing_but_bad_frames_leave_nothing(tmp_path: Path) -> None:
    write(tmp_path / "bad.xyz", frames(3, bad=(0, 1, 2)))
    with pytest.raises(BadFrameError, match=r"no frame can be stored in a.hues: all 3 are bad"):
        convert([tmp_path / "bad.xyz"], tmp_path / "a.hues", skip_bad=True)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.xyz"]
    with pytest.raises(ValueError, match="give at least one file"):
        convert([], tmp_path / "a.hues")


@pytest.mark.parametrize("stops", [(1,), (200, 300), (500, 556)])
def test_a_stopped_conversion_resumed_gives_the_same_bits(
    sources: list[Path], whole: Path, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    dest = tmp_path / "a.hues"
    for stop in stops:
        report, should_stop = stop_after(stop)
        with pytest.raises(ConversionStoppedError, match=r"stopped after \d+ structures, .*same command again to res"):
            convert(sources, dest, skip_bad=True, report=report, should_stop=should_stop)
        assert not dest.exists()
    done = convert(sources, dest, skip_bad=True)
    assert done.resumed >= stops[-1]
    assert (done.structures, done.faults) == (677, 3)
    assert contents(dest) == contents(whole)


def test_a_killed_process_resumed_gives_the_same_bits(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    """Killed four times, each time in the middle of writing a block, so that columns disagree."""
    command = [sys.executable, "-W", "ignore", "-c", KILLED_AND_RESUMED, *sources, tmp_path / "a.hues"]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 509
    assert contents(tmp_path / "a.hues") == contents(whole)


def test_a_bad_frame_can_be_skipped_after_it_stopped_the_conversion(tmp_path: Path) -> None:
    source, dest = tmp_path / "a.xyz", tmp_path / "a.hues"
    write(source, frames(600, bad=(550,)))
    with pytest.raises(BadFrameError, match="frame 550"):
        convert([source], dest)
    done = convert([source], dest, skip_bad=True)
    assert (done.resumed, done.structures, done.faults) == (512, 599, 1)


def test_a_conversion_that_left_frames_out_is_not_resumed_without_saying_so(
    sources: list[Path], tmp_path: Path
) -> None:
    report, should_stop = stop_after(100)
    with pytest.raises(ConversionStoppedError, match="stopped"):
        convert(sources, tmp_path / "a.hues", skip_bad=True, report=report, should_stop=should_stop)
    with pytest.raises(StoreError, match=r"has left out 1 bad frames: resume it with --skip-bad, or start again"):
        convert(sources, tmp_path / "a.hues")


def test_a_conversion_from_before_groups_were_read_by_default_is_resumed_without_groups(tmp_path: Path) -> None:
    images = frames(600)
    for image in images:
        image.info["config_type"] = "line"
    write(tmp_path / "a.xyz", images)
    source, dest = [tmp_path / "a.xyz"], tmp_path / "a.hues"
    old = AseReader.model_validate({**detect(source[0]).model_dump(), "group_key": None})
    with pytest.raises(ConversionStoppedError):
        convert(source, dest, reader=old, should_stop=lambda: True)
    assert convert(source, dest).resumed == 256
    assert set(Store.open(dest).block(np.arange(600)).groups) == {""}
    with pytest.raises(ConversionStoppedError):
        convert(source, tmp_path / "b.hues", reader=old, should_stop=lambda: True)
    with pytest.raises(StoreError, match="it differs in sources"):
        convert(source, tmp_path / "b.hues", reader=old.model_copy(update={"group_key": "config_type"}))


def test_a_source_that_changed_is_not_resumed(tmp_path: Path) -> None:
    source = tmp_path / "a.xyz"
    write(source, frames(600))
    report, should_stop = stop_after(100)
    with pytest.raises(ConversionStoppedError, match="stopped"):
        convert([source], tmp_path / "a.hues", report=report, should_stop=should_stop)
    write(source, frames(601))
    with pytest.raises(StoreError, match="it differs in sources"):
        convert([source], tmp_path / "a.hues")
    assert convert([source], tmp_path / "a.hues", resume=False).structures == 601


def test_stores_can_be_sources(whole: Path, sources: list[Path], tmp_path: Path) -> None:
    done = convert([whole, sources[1]], tmp_path / "both.hues", precision="float32")
    store, part = Store.open(done.path), Store.open(whole)
    assert len(store) == 797
    np.testing.assert_array_equal(store[5].positions, part[5].positions.astype(np.float32))
    assert store[796].energy == part[676].energy
    with pytest.raises(StoreError, match="there is no store at"):
        convert([tmp_path / "none.hues"], tmp_path / "c.hues")


def test_progress_tells_the_rate_of_this_run() -> None:
    assert ConvertProgress("a", 1, 1, structures=500, resumed=300, faults=0, seconds=2.0).rate == 100.0


def test_the_program_converts_and_says_what_it_did(sources: list[Path], tmp_path: Path) -> None:
    arguments = ["convert", *map(str, sources), str(tmp_path / "a.hues"), "--skip-bad", "--precision", "float32"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "677 structures" in result.output
    assert "Bad frames skipped: 3" in result.output
    assert Store.open(tmp_path / "a.hues").manifest.precision == "float32"
    assert CliRunner().invoke(app, ["convert", str(tmp_path / "a.hues")]).exit_code == 2


SIGNALLED = """
import os, sys
from huefield.cli import main
from huefield.data.store.writer import StoreWriter
append, number, blocks = StoreWriter.append, int(sys.argv.pop(1)), []
def signalled(writer, *arguments):
    blocks.append(append(writer, *arguments))
    if len(blocks) == 2:
        os.kill(os.getpid(), number)
StoreWriter.append = signalled
sys.exit(main())
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_stops_the_program_with_word_how_to_resume(
    sources: list[Path], whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The signal comes while the second block is written; before the first one there is nothing to save."""
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), "data", "convert", *map(str, sources)]
    done = subprocess.run([*command, str(tmp_path / "a.hues"), "--skip-bad"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 130, done.stderr
    assert "run the same command again to resume" in done.stderr
    assert json.loads((tmp_path / "a.hues.partial" / "journal.json").read_text())["structures"] > 0
    assert convert(sources, tmp_path / "a.hues", skip_bad=True).resumed > 0
    assert contents(tmp_path / "a.hues") == contents(whole)


def test_a_reader_is_given_by_its_kind_or_as_json() -> None:
    assert parse_reader(None) is None
    assert parse_reader("transition1x").kind == "transition1x"
    assert parse_reader('{"kind": "ase", "energy_unit": "hartree"}').energy_unit == "hartree"
    with pytest.raises(ValueError, match=r"--reader: .*'ase', 'md17', 'ani1x', 'transition1x'"):
        parse_reader("pink")
    with pytest.raises(ValueError, match="--reader is not JSON"):
        parse_reader("{kind: ase}")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no reference data at {DATA}; set HUEFIELD_DATA")
def test_real_files_of_all_kinds_go_into_one_store(tmp_path: Path) -> None:
    paths = [
        DATA / "acac" / "test_dihedral.xyz",
        DATA / "mlearn" / "Si_test.xyz",
        DATA / "transition1x" / "t1x_mini.h5",
    ]
    with pytest.warns(UserWarning, match="there is virial_stress, whose sign, unit and order are not guessed"):
        done = convert(paths, tmp_path / "real.hues")
    store = Store.open(done.path)
    store.verify()
    dihedral, silicon = read(paths[0], ":"), read(paths[1], ":")
    assert not store.column("has_forces")[: len(dihedral)].any()
    np.testing.assert_array_equal(store[len(dihedral)].cell, silicon[0].cell[:])
    assert len(store) > len(dihedral) + len(silicon)
    assert any("rxn" in structure.group for structure in store)


def test_remarks_of_the_readers_are_warnings_and_in_the_result(tmp_path: Path) -> None:
    charged = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]], info={"dft_energy": -31.0, "charge": 1})
    write(tmp_path / "a.xyz", charged, format="extxyz")
    with pytest.warns(UserWarning, match="a charge, which models do not|there is dft_energy") as shown_here:
        done = convert([tmp_path / "a.xyz"], tmp_path / "a.hues")
    assert [str(each.message) for each in shown_here] == [remark.advised(reader_option) for remark in done.remarks]
    assert [remark.kind for remark in done.remarks] == ["electrons", "labels"]
    shown = subprocess.run(
        [HUEFIELD, "data", "convert", tmp_path / "a.xyz", tmp_path / "b.hues"], capture_output=True, text=True
    )
    assert shown.returncode == 0
    assert "warning: " in shown.stderr
    assert "there is dft_energy" in shown.stderr
