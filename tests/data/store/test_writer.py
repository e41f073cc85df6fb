import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from huefield.core.structure import BaselineResult, Block
from huefield.data.readers.base import Fault, LeftOut
from huefield.data.store.format import Provenance, ReadingPosition, SourceInfo
from huefield.data.store.store import Store, StoreError
from huefield.data.store.writer import StoreWriter

SOURCES = (SourceInfo(path="a.xyz", bytes=10, modified_ns=5),)
DOUBLE = Provenance(huefield="1", precision="float64", sources=SOURCES)
SINGLE = DOUBLE.model_copy(update={"precision": "float32"})


def random_block(
    n: int,
    *,
    rng: np.random.Generator,
    largest: int = 20,
    labels: tuple[str, ...] = ("energy", "forces", "stress", "cells"),
    source: str = "a.xyz",
) -> Block:
    """Structures of random sizes, some with and some without each of the labels that are named."""
    sizes = rng.integers(1, largest + 1, n)
    atoms = int(sizes.sum())
    has = {name: rng.random(n) < (0.7 if name in labels else 0.0) for name in ("energy", "forces", "stress", "cells")}
    return Block(
        sizes=sizes,
        atomic_numbers=rng.integers(1, 119, atoms).astype(np.uint8),
        positions=rng.normal(size=(atoms, 3)),
        cells=rng.normal(size=(n, 3, 3)) * has["cells"][:, None, None],
        pbc=(rng.random((n, 3)) < 0.5) & has["cells"][:, None],
        energy=rng.normal(size=n) * has["energy"],
        has_energy=has["energy"],
        forces=rng.normal(size=(atoms, 3)) * np.repeat(has["forces"], sizes)[:, None],
        has_forces=has["forces"],
        stress=rng.normal(size=(n, 3, 3)) * has["stress"][:, None, None],
        has_stress=has["stress"],
        groups=tuple(str(g) for g in rng.choice(["", "Ä", "rxn0001", "long " * 9], n)),
        frames=np.cumsum(rng.integers(1, 4, n)),
        source=source,
    )


def written(path: Path, blocks: list[Block], provenance: Provenance = DOUBLE, **options: int) -> Path:
    with StoreWriter(path, provenance, **options) as writer:
        for block in blocks:
            writer.append(block)
        return writer.finish()


def contents(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def some_blocks(seed: int = 0) -> list[Block]:
    """Blocks of which the later ones have labels that the first ones have not."""
    rng, labels = np.random.default_rng(seed), [(), ("energy",), ("energy", "forces"), ("cells", "stress", "energy")]
    return [random_block(50, rng=rng, labels=names, source=f"{i % 3}.xyz") for i, names in enumerate(labels * 3)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    labels=st.lists(st.sets(st.sampled_from(["energy", "forces", "stress", "cells"])), min_size=5, max_size=5),
    single=st.booleans(),
)
def test_random_blocks_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], labels: list[set[str]], single: bool
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [
        random_block(n, rng=rng, labels=tuple(names), source=f"{n}.xyz")
        for n, names in zip(sizes, labels, strict=False)
    ]
    path = tmp_path_factory.mktemp("round") / "trip.hues"
    store = Store.open(written(path, blocks, SINGLE if single else DOUBLE))
    store.verify()
    assert len(store) == sum(sizes)
    got, real = store.block(np.arange(len(store))), np.float32 if single else np.float64
    for name in (
        "sizes",
        "atomic_numbers",
        "cells",
        "pbc",
        "energy",
        "has_energy",
        "has_forces",
        "stress",
        "has_stress",
    ):
        np.testing.assert_array_equal(getattr(got, name), np.concatenate([getattr(b, name) for b in blocks]), name)
    for name in ("positions", "forces"):
        expected = np.concatenate([getattr(b, name) for b in blocks]).astype(real)
        np.testing.assert_array_equal(getattr(got, name), expected)
        assert getattr(got, name).dtype == real
    assert got.groups == sum((b.groups for b in blocks), ())
    origins = [(b.source, frame) for b in blocks for frame in b.frames]
    assert [store.origin(i) for i in range(len(store))] == origins


def test_columns_that_nobody_has_are_not_written(tmp_path: Path) -> None:
    path = written(tmp_path / "bare.hues", [random_block(9, rng=np.random.default_rng(0), labels=("energy",))])
    assert not {f"{name}.bin" for name in ("forces", "cells", "pbc", "stress")} & set(contents(path))
    store = Store.open(path)
    assert store[3].forces is None
    assert store.column("forces").shape == (store.manifest.atoms, 3)
    assert not store.block(np.arange(9)).cells.any()


def test_single_precision_halves_positions_and_forces(tmp_path: Path) -> None:
    block = random_block(40, rng=np.random.default_rng(0))
    double, single = written(tmp_path / "d.hues", [block]), written(tmp_path / "s.hues", [block], SINGLE)
    for name in ("positions.bin", "forces.bin"):
        assert (double / name).stat().st_size == 2 * (single / name).stat().st_size == 24 * block.sizes.sum()
    assert (double / "energy.bin").read_bytes() == (single / "energy.bin").read_bytes()


def test_the_store_does_not_depend_on_how_structures_come_in_blocks(tmp_path: Path) -> None:
    block = random_block(200, rng=np.random.default_rng(5))
    pieces = [block.select((np.arange(200) >= a) & (np.arange(200) < a + 17)) for a in range(0, 200, 17)]
    assert contents(written(tmp_path / "a.hues", [block])) == contents(written(tmp_path / "b.hues", pieces))


@pytest.mark.parametrize("interruptions", [(1,), (4, 7), (1, 2, 3, 4, 5)])
def test_an_interrupted_writer_resumed_gives_the_same_bits(tmp_path: Path, interruptions: tuple[int, ...]) -> None:
    blocks = some_blocks()
    reference = written(tmp_path / "whole.hues", blocks)
    dest, done = tmp_path / "parts.hues", 0
    for stop in interruptions:
        with StoreWriter(dest, DOUBLE) as writer:
            assert writer.structures == 50 * done
            for block in blocks[done:stop]:
                writer.append(block)
        assert not dest.exists()
        done = stop
    assert contents(written(dest, blocks[done:])) == contents(reference)
    assert not (tmp_path / "parts.hues.partial").exists()


def test_what_was_written_behind_the_journal_is_cut_away(tmp_path: Path) -> None:
    """A kill leaves longer files than the journal says, new optional columns, and temporary files."""
    blocks = some_blocks()
    reference = written(tmp_path / "whole.hues", blocks)
    with StoreWriter(tmp_path / "b.hues", DOUBLE) as writer:
        writer.append(blocks[0])
        writer.append(blocks[1])
    partial = tmp_path / "b.hues.partial"
    for file in (*partial.glob("*.bin"), *partial.glob("*.crc"), partial / "faults.txt"):
        with file.open("ab") as opened:
            opened.write(b"torn" * 50_000)
    (partial / "forces.bin").write_bytes(b"torn")
    (partial / "manifest.json").write_bytes(b"torn")
    (partial / ".journal.json.x.json").write_bytes(b"torn")
    assert contents(written(tmp_path / "b.hues", blocks[2:])) == contents(reference)


def test_journals_come_after_so_many_structures(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.hues", DOUBLE, journal_every=100) as writer:
        journal = writer.partial / "journal.json"
        blocks = some_blocks()
        writer.append(blocks[0])
        assert not journal.exists()
        writer.append(blocks[1])
        assert '"structures":100' in journal.read_text()


def test_the_position_counts_what_came_from_the_present_source(tmp_path: Path) -> None:
    blocks, fault = some_blocks(), Fault("b.xyz", 3, "bad\nvery")
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        writer.append(blocks[0], 0)
        writer.note(fault, 1)
        writer.append(blocks[1], 1)
        writer.leave_out(LeftOut("b.xyz", 7, "no label"), 1)
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        assert writer.position == ReadingPosition(source=1, structures=50, faults=1, rules=1)
        writer.note(fault, 1)
        path = writer.finish()
    assert (path / "faults.txt").read_text() == "b.xyz, frame 3: bad very\n" * 2
    assert (Store.open(path).manifest.faults, Store.open(path).manifest.left_out) == (2, 7)
    assert Store.open(path).provenance == DOUBLE


def test_a_store_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    first, second = some_blocks()[:1], some_blocks()[1:3]
    path = written(tmp_path / "a.hues", first)
    with pytest.raises(StoreError, match=r"a.hues exists: choose another name, or pass --overwrite"):
        StoreWriter(path, DOUBLE)
    assert len(Store.open(path)) == 50
    assert len(Store.open(written(path, second, overwrite=True))) == 100
    assert [file.name for file in tmp_path.iterdir()] == ["a.hues"]
    (path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"a.hues holds 'notes.txt', which no conversion wrote: move that file away"):
        StoreWriter(path, DOUBLE, overwrite=True)


def test_what_is_not_a_store_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.hues").mkdir()
    with pytest.raises(StoreError, match=r"thesis.hues is not a huefield store, so it is not overwritten"):
        StoreWriter(tmp_path / "thesis.hues", DOUBLE, overwrite=True)
    (tmp_path / "a.hues.partial").mkdir()
    (tmp_path / "a.hues.partial" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"holds 'thesis.tex', which no conversion wrote"):
        StoreWriter(tmp_path / "a.hues", DOUBLE, resume=False)
    assert (tmp_path / "a.hues.partial" / "thesis.tex").read_text() == "mine"


def test_the_name_of_a_store_ends_in_hues(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.hues, but the destination is .*data: try .*data\.hues"):
        StoreWriter(tmp_path / "data", DOUBLE)


def test_another_conversion_is_not_resumed(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        writer.append(some_blocks()[0])
    with pytest.raises(StoreError, match=r"it differs in precision. Convert as before to resume it, or pass --no-res"):
        StoreWriter(tmp_path / "a.hues", SINGLE)
    with StoreWriter(tmp_path / "a.hues", SINGLE, resume=False) as writer:
        assert writer.structures == 0


def test_a_journal_that_files_do_not_bear_out_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        writer.append(some_blocks()[0])
    os.truncate(tmp_path / "a.hues.partial" / "energy.bin", 8)
    with pytest.raises(StoreError, match=r"energy.bin has 8 bytes, but the journal says 400: start again with --no-r"):
        StoreWriter(tmp_path / "a.hues", DOUBLE)
    (tmp_path / "a.hues.partial" / "journal.json").write_text("{")
    with pytest.raises(StoreError, match=r"cannot be resumed .*: start again with --no-resume"):
        StoreWriter(tmp_path / "a.hues", DOUBLE)


def test_two_writers_of_one_store_are_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        writer.append(some_blocks()[0])
        with pytest.raises(StoreError, match=r"another process is writing .*a.hues.partial"):
            StoreWriter(tmp_path / "a.hues", DOUBLE)
        writer.finish()


@contextmanager
def files_at_most(num_bytes: int) -> Iterator[None]:
    """The system refuses to let files grow beyond this, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [2_000, 40_000, 90_000])
def test_a_full_disk_is_reported_and_resumed_after(tmp_path: Path, limit: int) -> None:
    blocks = some_blocks()
    reference = written(tmp_path / "whole.hues", blocks)
    dest = tmp_path / "a.hues"
    with (
        files_at_most(limit),
        pytest.raises(StoreError, match=r"cannot write .*a\.hues\.partial/\w+\.bin: the file exceeds the size limit"),
    ):
        written(dest, blocks, journal_every=50)
    assert not dest.exists()
    with StoreWriter(dest, DOUBLE) as writer:
        for block in blocks[writer.structures // 50 :]:
            writer.append(block)
        writer.finish()
    assert contents(dest) == contents(reference)


def test_a_writer_that_failed_takes_nothing_more(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.hues", DOUBLE) as writer:
        writer.append(some_blocks()[0])
        with (
            files_at_most(1_000),
            pytest.raises(StoreError, match="Nothing was kept: raise the limit and run the same comm"),
        ):
            writer.journal()
        with pytest.raises(StoreError, match="an earlier write failed; open a new writer"):
            writer.append(some_blocks()[0])
    assert not list(tmp_path.iterdir())


def test_results_of_a_baseline_come_back_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    plain, second = random_block(4, rng=rng), random_block(3, rng=rng)
    first, last = rng.normal(size=(second.sizes[0], 3)), rng.normal(size=(second.sizes[2], 3))
    results = [BaselineResult(-1.5, first, np.eye(3)), None, BaselineResult(2.5, last)]
    store = Store.open(written(tmp_path / "a.hues", [plain, second.with_baseline(results)]))
    found = store.block(np.array([6, 5, 4, 0])).baseline
    assert found is not None
    np.testing.assert_array_equal(found.known, [True, False, True, False])
    np.testing.assert_array_equal(found.has_stress, [False, False, True, False])
    np.testing.assert_array_equal(found.energy, [2.5, 0.0, -1.5, 0.0])
    np.testing.assert_array_equal(found.forces[: len(last)], last)
    assert Store.open(written(tmp_path / "b.hues", [plain])).block(np.array([0])).baseline is None
