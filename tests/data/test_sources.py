"""Files and stores of several data sets: their tags, weights and readers, and how they are joined."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from huefield.core.structure import TAG
from huefield.data.convert import convert
from huefield.data.dataset import FileData, Part, open_part
from huefield.data.runs import digest, relocated
from huefield.data.sources import DataFile, SourceList, open_files
from huefield.data.splits.splits import SplitError
from huefield.data.store.store import Store
from tests.data.readers.test_transition1x import make
from tests.training.helpers import write_waters

SPLIT = {"kind": "random", "fractions": {"train": 0.7, "validation": 0.3}}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_waters(tmp_path / "a.xyz", 20), write_waters(tmp_path / "b.xyz", 10, seed=1, shift=-3.0)


def configured(*entries: Any, **settings: Any) -> FileData:
    return FileData.model_validate({"train": entries, "split": SPLIT, **settings})


def tagged(files: tuple[Path, Path], **second: Any) -> FileData:
    return configured({"path": files[0], "tag": "pbe"}, {"path": files[1], "tag": "wb97x", **second})


def test_entries_of_old_configurations_stay_paths(files: tuple[Path, Path]) -> None:
    data = configured(str(files[0]), files[1])
    assert data.train == files
    assert data.model_dump(mode="json")["train"] == [str(path) for path in files]
    assert data.datasets == {TAG: 1.0}
    assert FileData.model_validate(data.model_dump(mode="json")) == data


def test_entries_have_a_data_set_a_weight_and_a_reader(files: tuple[Path, Path]) -> None:
    data = tagged(files, weight=0.5, reader={"energy_unit": "eV"})
    assert data.datasets == {"pbe": 1.0, "wb97x": 0.5}
    first, second = data.train_files
    assert first.reader is None
    assert second.reader is not None
    assert second.reader.kind == "ase"
    assert FileData.model_validate(data.model_dump(mode="json")) == data


def test_the_main_data_set_comes_first(files: tuple[Path, Path]) -> None:
    entries = ({"path": files[0], "tag": "pbe"}, {"path": files[1], "tag": "wb97x"})
    assert list(configured(*entries, main="wb97x").datasets) == ["wb97x", "pbe"]
    with pytest.raises(ValueError, match="main is 'b3lyp', but the data sets are pbe, wb97x"):
        configured(*entries, main="b3lyp")


def test_files_of_one_tag_share_a_weight_that_is_stated_once(files: tuple[Path, Path]) -> None:
    both = [{"path": path, "tag": "pbe"} for path in files]
    assert configured({**both[0], "weight": 2.0}, both[1]).datasets == {"pbe": 2.0}
    with pytest.raises(ValueError, match="data set 'pbe' has the weights 2 and 3: a data set has one weight"):
        configured({**both[0], "weight": 2.0}, {**both[1], "weight": 3.0})


@pytest.mark.parametrize("weight", [0, -1.0])
def test_weights_are_positive(files: tuple[Path, Path], weight: float) -> None:
    with pytest.raises(ValueError, match="should be greater than 0"):
        tagged(files, weight=weight)


def test_a_weight_needs_a_tag(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"a\.xyz has a weight but no tag: weights belong to data sets"):
        configured({"path": files[0], "weight": 2.0}, files[1])


@pytest.mark.parametrize("tag", ["", " pbe", "pbe\nd3", "x" * 61])
def test_tags_are_names(files: tuple[Path, Path], tag: str) -> None:
    with pytest.raises(ValueError, match="String should"):
        configured({"path": files[0], "tag": tag})


def test_a_tag_that_stands_for_no_data_set_is_refused(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="the tag 'all' stands for structures of no named data set"):
        configured({"path": files[0], "tag": TAG})


def test_all_files_have_tags_or_none(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"b\.xyz has no tag, but .*a\.xyz has the tag 'pbe': give every file a tag"):
        configured({"path": files[0], "tag": "pbe"}, files[1])
    with pytest.raises(ValueError, match=r"b\.xyz has no tag"):
        FileData.model_validate({"train": [{"path": files[0], "tag": "pbe"}], "validation": [files[1]]})


def test_each_data_set_has_files_for_validation(files: tuple[Path, Path], tmp_path: Path) -> None:
    train = [{"path": files[0], "tag": "pbe"}, {"path": files[1], "tag": "wb97x"}]
    more = write_waters(tmp_path / "c.xyz", 3, seed=2)
    with pytest.raises(ValueError, match="data set 'wb97x' has files for training only"):
        FileData.model_validate({"train": train, "validation": [{"path": more, "tag": "pbe"}]})
    with pytest.raises(ValueError, match="data set 'wb97x' has files for validation only"):
        FileData.model_validate({"train": train[:1], "validation": [{"path": more, "tag": "wb97x"}, train[0]]})


def test_the_same_labels_cannot_be_in_two_data_sets(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"a\.xyz is in the data sets 'pbe' and 'wb97x' with the same labels"):
        configured({"path": files[0], "tag": "pbe"}, {"path": files[0], "tag": "wb97x"})
    other = {"kind": "ase", "energy_keys": ["other_energy"]}
    configured({"path": files[0], "tag": "pbe"}, {"path": files[0], "tag": "wb97x", "reader": other})


def test_geometries_of_two_data_sets_in_two_parts_are_shared_structures(files: tuple[Path, Path]) -> None:
    """Another method's labels of a validation structure say much about it."""
    atoms = read(files[0], ":")
    write(files[1], atoms[::-1], format="extxyz")
    with pytest.raises(SplitError, match="the same configurations are in different parts"):
        tagged(files).load()
    write(files[1], atoms, format="extxyz")  # in the same order both are split alike
    parts = tagged(files).load()
    assert {name: part.datasets for name, part in parts.items()} == {
        "train": {"pbe": 14, "wb97x": 14},
        "validation": {"pbe": 6, "wb97x": 6},
    }


def test_a_random_split_divides_each_data_set_as_if_it_were_alone(files: tuple[Path, Path]) -> None:
    pooled = tagged(files).load()
    for tag, file in zip(("pbe", "wb97x"), files, strict=True):
        alone = configured(file).load()
        for name, part in pooled.items():
            own = part.of_dataset(tag)
            energies = own.block(np.arange(len(own))).energy
            np.testing.assert_array_equal(energies, alone[name].block(np.arange(len(alone[name]))).energy)
    assert pooled["validation"].datasets == {"pbe": 6, "wb97x": 3}
    assert len(pooled["train"].of_dataset("b3lyp")) == 0


def test_a_data_set_too_small_for_the_split_is_named(tmp_path: Path, files: tuple[Path, Path]) -> None:
    one = write_waters(tmp_path / "one.xyz", 1, seed=5)
    with pytest.raises(SplitError, match="data set 'tiny' with 1 structures: part 'validation' is empty"):
        configured({"path": files[0], "tag": "pbe"}, {"path": one, "tag": "tiny"}).load()


def test_stores_and_files_are_joined_in_any_order(files: tuple[Path, Path], tmp_path: Path) -> None:
    store = convert([files[1]], tmp_path / "b.hues").path
    joined, plain = open_part("train", [store, files[0]]), open_part("train", [files[1], files[0]])
    assert isinstance(joined.source, SourceList)
    assert isinstance(joined.source.sources[0], Store)
    order = np.random.default_rng(0).permutation(30)
    a, b = joined.block(order), plain.block(order)
    for name in ("sizes", "atomic_numbers", "positions", "energy", "forces", "frames"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.groups, a.tags) == (b.groups, (TAG,) * 30)
    assert joined.where(3) == f"frame 3 of {store}"
    assert joined.where(12) == f"frame 2 of {files[0]}"
    assert len(joined.block(np.zeros(0, int))) == 0


def test_stores_are_read_only_where_they_are_asked_for(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [convert([file], tmp_path / f"{file.stem}.hues").path for file in files]
    part = open_part("train", stores)
    asked: list[int] = []
    whole = Store.block

    def counted(self: Store, indices: np.ndarray) -> Any:
        asked.append(len(indices))
        return whole(self, indices)

    monkeypatch.setattr(Store, "block", counted)
    part.block(np.array([25, 2, 3]))
    assert sorted(asked) == [1, 2]
    assert part.datasets == {TAG: 30}


def test_structures_of_a_store_have_the_tag_of_their_entry(files: tuple[Path, Path], tmp_path: Path) -> None:
    store = convert([files[1]], tmp_path / "b.hues").path
    data = configured({"path": files[0], "tag": "pbe"}, {"path": store, "tag": "wb97x"})
    source, places = open_files(data.train_files)
    block = source.block(np.array([29, 0]))
    assert block.tags == ("wb97x", "pbe")
    assert [block[0].tag, block[1].tag] == ["wb97x", "pbe"]
    assert places[29] == str(store)
    part = Part("train", source, np.array([29, 0, 1]))
    assert part.datasets == {"pbe": 2, "wb97x": 1}
    np.testing.assert_array_equal(part.of_each_dataset({"pbe": 1.0, "wb97x": 0.5}), [0.5, 1.0, 1.0])


def test_an_official_split_belongs_to_its_own_file(tmp_path: Path) -> None:
    """Formulas of another data set are not looked up in it."""
    first, second = make(tmp_path / "t1x.h5"), tmp_path / "other.xyz"
    frames = [structure for block in FileData(train=(first,), split={"kind": "official"}).load()["train"].blocks()
              for structure in block]  # fmt: skip
    shifted = []
    for each in frames:
        atoms = Atoms(each.atomic_numbers, each.positions + 0.3, info={"group": each.group})
        atoms.calc = SinglePointCalculator(atoms, energy=each.energy, forces=each.forces)
        shifted.append(atoms)
    write(second, shifted, format="extxyz")
    entries = ({"path": first, "tag": "t1x"}, {"path": second, "tag": "other"})
    parts = FileData.model_validate({"train": entries, "split": {"kind": "official"}}).load()
    assert {name: part.datasets for name, part in parts.items()} == {"train": {"t1x": 14}, "validation": {"t1x": 14}}


def test_digests_know_the_data_sets_but_not_of_plain_files(files: tuple[Path, Path]) -> None:
    plain = open_part("train", files)
    one, other = (Part("train", *_opened(files, tags)) for tags in (("pbe", "wb97x"), ("wb97x", "pbe")))
    assert len({digest(plain), digest(one), digest(other)}) == 3


def _opened(files: tuple[Path, Path], tags: tuple[str, str]) -> tuple[Any, np.ndarray]:
    source, _ = open_files([DataFile(path=file, tag=tag) for file, tag in zip(files, tags, strict=True)])
    return source, np.arange(len(source))


def test_structures_kept_by_a_run_are_found_where_it_was_moved_to(tmp_path: Path) -> None:
    (tmp_path / "structures.hues").mkdir()
    entry = {"path": "/gone/structures.hues", "tag": "pbe"}
    moved = relocated(configured(entry), tmp_path)
    assert isinstance(moved, FileData)
    assert moved.train == (DataFile(path=tmp_path / "structures.hues", tag="pbe"),)
