import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from huefield.core.structure import BaselineResult, Block, row_ranges
from huefield.data.store.format import COLUMNS, manifest_digest
from huefield.data.store.store import Store, StoreError
from tests.data.store.test_writer import random_block, written


@pytest.fixture(scope="module")
def block() -> Block:
    rng = np.random.default_rng(1)
    block = random_block(300, rng=rng, largest=90)
    return block.with_baseline([BaselineResult(rng.normal(), rng.normal(size=(size, 3))) for size in block.sizes])


@pytest.fixture(scope="module")
def original(block: Block, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("stores") / "original.hues", [block])


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "copy.hues"))


def flip(file: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[byte] ^= 1 << bit
    file.write_bytes(content)


def rewrite_manifest(path: Path, **changes: object) -> None:
    content = json.loads((path / "manifest.json").read_text())
    del content["sha256"]
    content |= changes
    (path / "manifest.json").write_text(json.dumps(content | {"sha256": manifest_digest(content)}))


def test_single_structures_are_those_that_were_written(original: Path, block: Block) -> None:
    store = Store.open(original)
    for index in (0, 7, 299, -1):
        got, expected = store[index], block[index % 300]
        for name in ("atomic_numbers", "positions", "cell", "pbc", "energy", "forces", "stress", "group"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
        assert store.origin(index) == (block.source, block.frames[index])


def test_a_gathered_block_is_the_structures_one_by_one_in_any_order(original: Path, block: Block) -> None:
    store = Store.open(original)
    indices = np.random.default_rng(2).integers(0, 300, 64)
    gathered = store.block(indices)
    assert gathered.source == str(original)
    np.testing.assert_array_equal(gathered.frames, indices)
    for structure, index in zip(gathered, indices, strict=True):
        np.testing.assert_array_equal(structure.positions, block[int(index)].positions)
        assert structure.energy == block[int(index)].energy
        assert structure.group == block[int(index)].group
    assert len(store.block(np.zeros(0, int))) == 0


def test_columns_are_read_only_views_of_everything(original: Path, block: Block) -> None:
    store = Store.open(original)
    np.testing.assert_array_equal(store.column("starts"), block.starts)
    np.testing.assert_array_equal(store.column("energy"), block.energy)
    np.testing.assert_array_equal(store.column("positions"), block.positions)
    np.testing.assert_array_equal(store.column("has_energy"), block.has_energy)
    np.testing.assert_array_equal(store.column("has_forces"), block.has_forces)
    np.testing.assert_array_equal(store.column("has_stress"), block.has_stress)
    with pytest.raises(ValueError, match="read-only"):
        store.column("energy")[0] = 1.0
    with pytest.raises(KeyError, match="no column 'velocities'; there are starts"):
        store.column("velocities")


def test_iterating_gives_all_structures_in_order(original: Path, block: Block) -> None:
    store = Store.open(original)
    assert [s.energy for s in store] == [s.energy for s in block]
    assert [len(b) for b in store.blocks(128)] == [128, 128, 44]


def test_a_pickled_store_opens_the_same_folder(original: Path) -> None:
    store = pickle.loads(pickle.dumps(Store.open(original)))  # noqa: S301
    assert store.path == original
    assert len(store) == 300


@pytest.mark.parametrize("index", [300, -301])
def test_an_index_out_of_range_is_refused(original: Path, index: int) -> None:
    with pytest.raises(IndexError, match=rf"structure {index} is out of range: .*original.hues has 300"):
        Store.open(original)[index]


def test_opening_reads_no_column(path: Path) -> None:
    for file in path.glob("*.bin"):
        flip(file, 0)
    assert len(Store.open(path)) == 300


@pytest.fixture(scope="module")
def mended(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that may be damaged by those who mend it afterwards."""
    return Path(shutil.copytree(original, tmp_path_factory.mktemp("stores") / "mended.hues"))


@pytest.mark.parametrize("name", COLUMNS)
def test_one_flipped_bit_anywhere_is_noticed(mended: Path, name: str) -> None:
    for suffix, place in ((".bin", 0.0), (".bin", 0.5), (".bin", 0.999), (".crc", 0.0), (".crc", 0.999)):
        file = mended / (name + suffix)
        byte = int(place * file.stat().st_size)
        flip(file, byte, bit=5)
        store = Store.open(mended)
        with pytest.raises(StoreError, match=rf"{name}\{suffix} is damaged.*copy the store again or convert"):
            store.verify()
        flip(file, byte, bit=5)
    Store.open(mended).verify()


@pytest.mark.parametrize(
    "name", [name for name in COLUMNS if name not in ("source", "frame", "source_names", "source_starts")]
)
def test_a_flipped_bit_is_noticed_when_its_structure_is_read(path: Path, name: str) -> None:
    flip(path / f"{name}.bin", 0)
    with pytest.raises(StoreError, match=rf"{name}.bin is damaged between bytes 0 and"):
        Store.open(path)[0]


def test_the_damage_names_the_structures_it_hits_and_leaves_the_others_readable(path: Path, block: Block) -> None:
    chunk_starts = 65_536 // 24  # atoms in the first chunk of positions
    first_hit = int(np.searchsorted(block.starts, chunk_starts, "right")) - 1
    flip(path / "positions.bin", 65_536 + 10)
    store = Store.open(path)
    np.testing.assert_array_equal(store[first_hit - 1].positions, block[first_hit - 1].positions)
    with pytest.raises(StoreError, match=rf"bytes 65536 and 131072 \(structures {first_hit} to \d+\)"):
        store[first_hit + 1]


def test_a_flipped_bit_in_manifest_or_provenance_is_noticed(path: Path) -> None:
    flip(path / "provenance.json", 20)
    with pytest.raises(StoreError, match=r"provenance.json is damaged"):
        Store.open(path).verify()
    for byte in range(0, (path / "manifest.json").stat().st_size, 97):
        flip(path / "manifest.json", byte)
        with pytest.raises(StoreError, match=r"manifest\.json|format"):
            Store.open(path)
        flip(path / "manifest.json", byte)


def test_a_truncated_file_is_noticed_on_opening(path: Path) -> None:
    file = path / "forces.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"forces.bin has \d+ bytes instead of \d+: it was truncated"):
        Store.open(path)


def test_a_missing_file_is_noticed_on_opening(path: Path) -> None:
    (path / "energy.crc").unlink()
    with pytest.raises(StoreError, match=r"energy.crc is missing; copy the store again"):
        Store.open(path)


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        Store.open(tmp_path / "nothing.hues")
    (tmp_path / "a.hues").touch()
    with pytest.raises(StoreError, match=r"a\.hues is a file, but a store is a folder: make one with"):
        Store.open(tmp_path / "a.hues")
    with pytest.raises(StoreError, match=r"is not a huefield store: it has no manifest.json"):
        Store.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "zarr"}')
    with pytest.raises(StoreError, match=r"the format in manifest.json is 'zarr', not 'huefield-store'"):
        Store.open(tmp_path)
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(StoreError, match=r"the format in manifest.json is 'list'"):
        Store.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format')
    with pytest.raises(StoreError, match=r"manifest.json is damaged"):
        Store.open(tmp_path)


def test_an_unfinished_conversion_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "a.hues.partial").mkdir()
    with pytest.raises(StoreError, match=r"an unfinished conversion is at .*a.hues.partial"):
        Store.open(tmp_path / "a.hues")


def test_a_store_of_a_newer_version_says_what_to_do(path: Path) -> None:
    rewrite_manifest(path, version=2)
    with pytest.raises(StoreError, match=r"version 2 of the format, this huefield reads version 1; use the huefield"):
        Store.open(path)


def test_a_manifest_that_describes_another_layout_is_refused(path: Path) -> None:
    columns = json.loads((path / "manifest.json").read_text())["columns"]
    rewrite_manifest(path, columns=columns | {"energy": columns["energy"] | {"dtype": "<f4"}})
    with pytest.raises(StoreError, match=r"column energy is <f4 \(\), not <f8 \(\)"):
        Store.open(path)
    rewrite_manifest(path, columns=columns | {"../energy": columns["energy"]})
    with pytest.raises(StoreError, match=r"unknown column '../energy'"):
        Store.open(path)
    rewrite_manifest(path, columns=columns, atoms=-1)
    with pytest.raises(StoreError, match=r"atoms: Input should be greater than or equal to 0"):
        Store.open(path)


def test_row_ranges_are_the_concatenated_ranges() -> None:
    rng = np.random.default_rng(3)
    first = rng.integers(0, 50, 20)
    stop = first + rng.integers(0, 6, 20)
    expected = [i for a, b in zip(first, stop, strict=True) for i in range(a, b)]
    np.testing.assert_array_equal(row_ranges(first, stop), expected)


def test_reading_everything_keeps_little_of_the_files_mapped(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays are right after their pages were given back many times."""
    monkeypatch.setattr("huefield.data.store.columns.RESIDENT_BYTES", 100_000)
    store, order = Store.open(original), np.random.default_rng(4).permutation(300)
    untouched = Store.open(original).block(np.arange(300))
    for index in order[:100]:
        np.testing.assert_array_equal(store[int(index)].forces, untouched[int(index)].forces)
