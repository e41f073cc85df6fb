"""Where structures come from, and which are for what."""

from pathlib import Path

import numpy as np
import pytest

from huefield.data.convert import convert
from huefield.data.dataset import BundledData, FileData, open_part
from huefield.data.splits.splits import SplitError
from tests.data.readers.test_detect import real_file
from tests.data.readers.test_transition1x import make
from tests.training.helpers import write_waters

SPLIT = {"kind": "random", "fractions": {"train": 0.7, "validation": 0.2, "test": 0.1}}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_waters(tmp_path / "a.xyz", 6), write_waters(tmp_path / "b.xyz", 4, seed=1)


def test_files_are_joined_and_every_structure_knows_its_file(files: tuple[Path, Path]) -> None:
    part = open_part("train", files)
    assert len(part) == 10
    assert part.elements() == ("H", "O")
    assert part.where(5) == f"frame 5 of {files[0]}"
    assert part.where(6) == f"frame 0 of {files[1]}"


def test_parts_of_a_split_know_files_too_and_share_nothing(files: tuple[Path, Path]) -> None:
    parts = FileData.model_validate({"train": files, "split": SPLIT}).load()
    assert {name: len(part) for name, part in parts.items()} == {"train": 7, "validation": 2, "test": 1}
    everything = np.concatenate([part.indices for part in parts.values()])
    assert sorted(everything.tolist()) == list(range(10))
    for part in parts.values():
        for row, index in enumerate(part.indices):
            file, frame = (files[0], index) if index < 6 else (files[1], index - 6)
            assert part.where(row) == f"frame {frame} of {file}"
            np.testing.assert_array_equal(part.block(np.array([row])).energy, part.source.energy[[index]])


def test_a_store_is_read_as_the_files_it_was_made_of(files: tuple[Path, Path], tmp_path: Path) -> None:
    store = convert(list(files), tmp_path / "all.hues").path
    whole, joined = open_part("train", [store]), open_part("train", files)
    for a, b in zip(whole.blocks(), joined.blocks(), strict=True):
        np.testing.assert_allclose(a.forces, b.forces, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(a.energy, b.energy, rtol=1e-12)
    assert whole.where(7) == f"frame 7 of {store}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.xyz"):
        FileData(train=(tmp_path / "nowhere.xyz",), validation=(tmp_path / "nowhere.xyz",)).load()


def test_validation_is_named_in_one_way(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="there are no validation data"):
        FileData(train=files)
    with pytest.raises(ValueError, match="not both"):
        FileData.model_validate({"train": files, "validation": files, "split": SPLIT})


def test_bundled_data_can_be_limited_to_the_same_few() -> None:
    few, again, all_of_it = (BundledData(train_limit=n).load() for n in (12, 12, None))
    assert len(few["train"]) == 12 < len(all_of_it["train"])
    np.testing.assert_array_equal(few["train"].indices, again["train"].indices)
    assert len(few["validation"]) == len(all_of_it["validation"])


def test_configurations_of_old_runs_name_the_level_of_theory_level() -> None:
    old, new = (BundledData.model_validate({key: "wb97x/6-31g(d)"}) for key in ("level", "level_of_theory"))
    assert old == new == BundledData(level_of_theory="wb97x/6-31g(d)")
    assert new.model_dump()["level_of_theory"] == "wb97x/6-31g(d)"


def test_files_can_be_limited_to_the_same_few(files: tuple[Path, Path]) -> None:
    limits = {"train": 4, "validation": 7}
    few, again = (FileData(train=files, validation=files, allow_shared=True, limits=limits).load() for _ in range(2))
    assert (len(few["train"]), len(few["validation"])) == (4, 7)
    np.testing.assert_array_equal(few["train"].indices, again["train"].indices)
    assert len(FileData(train=files, split=SPLIT, limits={"train": 100}).load()["train"]) <= 10


def test_validation_structures_that_are_training_structures_are_refused(files: tuple[Path, Path]) -> None:
    message = rf"4 of 4 structures for validation are training structures, too \(frame 0 of {files[1]} = frame 0 of "
    with pytest.raises(SplitError, match=message):
        FileData(train=files, validation=files[1:]).load()
    assert len(FileData(train=files, validation=files[1:], allow_shared=True).load()["validation"]) == 4
    assert len(FileData(train=files[:1], validation=files[1:]).load()["validation"]) == 4


def test_a_few_shared_structures_are_found_in_stores_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.xyz"
    both.write_text(files[0].read_text()[: len(files[0].read_text()) // 6] + files[1].read_text())
    store = convert([both], tmp_path / "both.hues").path
    with pytest.raises(SplitError, match=r"1 of 5 structures for validation .*both\.hues = frame 0 of .*a\.xyz\)"):
        FileData(train=files[:1], validation=(store,)).load()


def test_the_official_split_of_transition1x(tmp_path: Path) -> None:
    parts = FileData(train=(make(tmp_path / "t1x.h5"),), split={"kind": "official"}).load()
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "validation": 14}
    assert {group for block in parts["validation"].blocks() for group in block.groups} == {
        "C2H2O/rxn0001",
        "C2H2O/rxn0002",
    }


def test_stores_carry_the_official_split(tmp_path: Path) -> None:
    """A store of the file, and a store of that store, have the parts of the file."""
    first = convert([make(tmp_path / "t1x.h5")], tmp_path / "t1x.hues").path
    second = convert([first], tmp_path / "again.hues").path
    expected = FileData(train=(tmp_path / "t1x.h5",), split={"kind": "official"}).load()
    for store in (first, second):
        parts = FileData(train=(store,), split={"kind": "official"}).load()
        assert {name: part.indices.tolist() for name, part in parts.items()} == {
            name: part.indices.tolist() for name, part in expected.items()
        }


def test_the_official_split_of_a_real_file() -> None:
    path = real_file("transition1x/t1x_mini.h5")
    parts = FileData(train=(path,), split={"kind": "official"}).load()
    assert set(parts) == {"train", "validation", "test"}
    formulas = [{g.split("/")[0] for b in part.blocks() for g in b.groups} for part in parts.values()]
    assert not formulas[0] & formulas[1]
    assert sum(map(len, parts.values())) == len(open_part("all", [path]))


def test_other_files_have_no_official_split(files: tuple[Path, Path]) -> None:
    with pytest.raises(SplitError, match="split"):
        FileData(train=files, split={"kind": "official"}).load()
