"""Data sets of the table: training and validation data for each seed, and test sets."""

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from huefield.data.convert import ConversionStoppedError, ConvertProgress, convert
from huefield.data.dataset import BundledData, FileData, Part, Parts, open_part
from huefield.data.readers.ani1x import Ani1xReader
from huefield.data.readers.transition1x import Transition1xReader
from huefield.data.splits.config import FileSplit, FormulaSplit, RandomSplit, SplitInputs
from huefield.data.splits.splits import SplitError
from huefield.support.errors import HuefieldError
from huefield.support.files import FolderInUseError, alone_in, write_bytes
from huefield.training.datachecks import require_trainable

LARGE_ATOMS = 20
"""Molecules of ANI-1x with more atoms are held out for the test on larger molecules."""
DIGESTED = 2**20
"""Bytes at each end of a file that go into its digest."""
FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SECONDS_TO_LOOK_AGAIN = 1.0
"""Time between two checks whether another process has packed the data."""
FEWEST = 20
"""Fewest structures of a user's file: two for validation and two for the test."""


@dataclass(frozen=True)
class TestSet:
    """A set of structures that no model was trained on."""

    part: str
    """Part of the data, and name in results."""
    title: str


class AbstractSource(ABC):
    """A data set."""

    name: str
    title: str
    mixed_sizes: bool
    """Whether the molecules differ much in size."""
    batch_size: int
    """Batch size of :class:`~huefield.reproduce.plan.MiniSize`."""
    tests: tuple[TestSet, ...]
    """Test sets; the first has the distribution of the training data."""

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Check or convert files before the first training; most data sets need nothing."""
        return

    @abstractmethod
    def data(self, seed: int, folder: Path) -> BundledData | FileData:
        """Training and validation data of a seed; a split file may be written into the folder."""

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """Structures of each test set, given all parts of the data."""
        return {test.part: parts[test.part] for test in self.tests}


class Bundled(AbstractSource):
    """Bundled data: many small molecules and reactions, GFN2-xTB."""

    name, title, mixed_sizes, batch_size = "bundled", "bundled data", True, 8
    tests = (
        TestSet("test_id", "as in training"),
        TestSet("test_reactions", "unseen reactions"),
        TestSet("test_hot", "dynamics at 1500 and 2000 K"),
    )

    def data(self, seed: int, folder: Path) -> BundledData:
        """Seed 0 is the official split; other seeds split anew."""
        return BundledData(split_seed=seed or None)


class AcAc(AbstractSource):
    """Acetylacetone at 300 K; BOTNet-datasets, PBE."""

    name, title, mixed_sizes, batch_size = "acac", "AcAc", False, 4
    tests = (
        TestSet("test_300K", "300 K"),
        TestSet("test_600K", "600 K"),
        TestSet("test_dihedral", "rotation, energies only"),
        TestSet("test_H_transfer", "hydrogen transfer, energies only"),
    )
    files = ("test_MD_300K", "train_600K", "test_dihedral", "test_H_transfer")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Require that all files exist."""
        for name in ("train_300K", *self.files):
            _there(self.folder / f"{name}.xyz")

    def data(self, seed: int, folder: Path) -> FileData:
        """450 structures for training and 50 for validation."""
        split = RandomSplit(fractions={"train": 0.9, "validation": 0.1}, seed=seed)
        return FileData(train=(_there(self.folder / "train_300K.xyz"),), split=split)

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """Read the test sets from files of their own."""
        names = zip(self.tests, self.files, strict=True)
        return {test.part: open_part(test.part, [_there(self.folder / f"{name}.xyz")]) for test, name in names}


class SmallANI1x(AbstractSource):
    """Some hundred structures of ANI-1x; the tests have formulas that training does not have."""

    name, title, mixed_sizes, batch_size = "ani1x", "ANI-1x, 798 structures", True, 4
    tests = (
        TestSet("test", "unseen formulas"),
        TestSet("test_larger", f"unseen formulas of more than {LARGE_ATOMS} atoms"),
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Require that the file exists."""
        _there(self.path)

    def data(self, seed: int, folder: Path) -> FileData:
        """Split by formula; all large molecules go to the test."""
        whole = open_part("all", [_there(self.path)])
        sizes = np.concatenate([block.sizes for block in whole.blocks()])
        small, large = np.flatnonzero(sizes <= LARGE_ATOMS), np.flatnonzero(sizes > LARGE_ATOMS)
        few = Part("small", whole.source, whole.indices[small])
        dealt = FormulaSplit(fractions=FRACTIONS, seed=seed).make(SplitInputs.from_blocks(few.blocks()))
        parts = {name: small[indices].tolist() for name, indices in dealt.parts.items()}
        path = folder / "split-of-formulas.json"
        write_bytes(path, (json.dumps({**parts, "test_larger": large.tolist()}) + "\n").encode())
        return FileData(train=(self.path,), split=FileSplit(path=path))


class OwnData(AbstractSource):
    """A file or store of the user, split at random."""

    mixed_sizes, batch_size = True, 4
    tests = (TestSet("test", "as in training"),)

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.title = path, f"{path.stem}-{digest(path)}", path.name

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Require that the file can be read and split and has forces, before folders are made."""
        part = open_part("all", [_there(self.path)])
        if len(part) < FEWEST:
            raise HuefieldError(
                f"{self.path} has {len(part)} structures, but a table needs at least {FEWEST}, better hundreds"
            )
        if not any(block.has_forces.any() for block in part.blocks()):
            raise HuefieldError(
                f"no structure of {self.path} has forces, which the table needs: are they under another name?"
            )
        for seed in range(seeds):
            try:
                require_trainable(self.data(seed, self.path.parent).load())
            except SplitError as fault:
                raise HuefieldError(f"{self.path} cannot be split into parts, seed {seed}: {fault}") from fault

    def data(self, seed: int, folder: Path) -> FileData:
        """Split at random: eight tenths for training."""
        return FileData(train=(_there(self.path),), split=RandomSplit(fractions=FRACTIONS, seed=seed))


FEW = {"train": 3000, "validation": 300, "test": 1000}
"""Most structures of each part of a published file with ``--size mini``."""


class PublishedANI1x(AbstractSource):
    """ANI-1x as published: one HDF5 file without a split; it is split by formula in the paper's proportions."""

    title, mixed_sizes, batch_size = "ANI-1x", True, 4
    tests = (TestSet("test", "unseen formulas"),)

    def __init__(self, path: Path, out: Path, limits: dict[str, int]) -> None:
        self.path, self.limits, self.name = path, limits, f"ani1x-{digest(path)}"
        self.store = out / self.name / "data" / "ani1x.hues"

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Convert the file to a store."""
        _pack(self.path, self.store, Ani1xReader(), report, should_stop)

    def data(self, seed: int, folder: Path) -> FileData:
        """Split by formula in the paper's proportions."""
        return FileData(train=(self.store,), split=FormulaSplit(seed=seed), limits=self.limits)


class PublishedTransition1x(AbstractSource):
    """Transition1x as published: one HDF5 file with an official split by formula."""

    title, mixed_sizes, batch_size = "Transition1x", True, 4
    tests = (TestSet("test", "unseen formulas"),)

    def __init__(self, path: Path, out: Path, limits: dict[str, int]) -> None:
        self.path, self.limits, self.name = path, limits, f"transition1x-{digest(path)}"
        folder = out / self.name / "data"
        self.stores = {split: folder / f"transition1x-{split}.hues" for split in ("train", "val", "test")}

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Convert the file to one store for each part of its split."""
        for split, store in self.stores.items():
            reader = Transition1xReader.model_validate({"split": split})
            _pack(self.path, store, reader, report, should_stop)

    def data(self, seed: int, folder: Path) -> FileData:
        """The official split, whatever the seed."""
        return FileData(train=(self.stores["train"],), validation=(self.stores["val"],), limits=self.limits)

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """Read the test set from its store."""
        return {"test": open_part("test", [self.stores["test"]]).at_most(self.limits.get("test"))}


def _pack(
    path: Path,
    store: Path,
    reader: Ani1xReader | Transition1xReader,
    report: Callable[[ConvertProgress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Convert a file unless the store exists; resume, or wait for another process that converts it."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with _alone_once_others_are_done(store.parent, should_stop):
        if not store.exists():
            convert([path], store, reader=reader, precision="float32", report=report, should_stop=should_stop)


@contextmanager
def _alone_once_others_are_done(folder: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(alone_in(folder))
                break
            except FolderInUseError:
                if should_stop():
                    raise ConversionStoppedError(f"stopped while another process packs data into {folder}") from None
                time.sleep(SECONDS_TO_LOOK_AGAIN)
        yield


def data_folder() -> Path:
    """Folder of public data sets: $HUEFIELD_DATA, or ``data``."""
    return Path(os.environ.get("HUEFIELD_DATA", "data")).resolve()


SMALL: dict[str, Callable[[], AbstractSource]] = {
    "bundled": Bundled,
    "acac": lambda: AcAc(data_folder() / "acac"),
    "ani1x": lambda: SmallANI1x(data_folder() / "ani1x" / "ani1x_800.xyz"),
}
"""Data sets for ``--size mini`` by name."""
PUBLISHED = {"ani1x": PublishedANI1x, "transition1x": PublishedTransition1x}
"""The paper's data sets, read from the published files."""


def source_of(name: str, file: Path | None, out: Path, limits: dict[str, int]) -> AbstractSource:
    """Find a data set by name, or a user's file by path.

    Args:
        name: a key of :data:`SMALL` or :data:`PUBLISHED`, or the path of a file.
        file: the published HDF5 file.
        out: folder of the table; converted data go there.
        limits: most structures of each part of a published file; empty for the paper's size.
    """
    if file is not None:
        if name not in PUBLISHED:
            raise HuefieldError(
                f"--file is for the published files of {' and '.join(PUBLISHED)}; give your own file with --data"
            )
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}: --file must be the published HDF5 file of {name}")
        return PUBLISHED[name](file, out, limits)
    if name in PUBLISHED and (name not in SMALL or not limits):
        raise HuefieldError(f"{name} needs its published HDF5 file: give it with --file")
    return source_named(name)


def source_named(name: str) -> AbstractSource:
    """Find a small data set by name, or a user's file by path."""
    if name in SMALL:
        return SMALL[name]()
    if Path(name).exists():
        return OwnData(Path(name).resolve())
    with_file = ", ".join(other for other in PUBLISHED if other not in SMALL)
    raise HuefieldError(
        f"there is no data set or file {name!r}: give a file, or one of {', '.join(SMALL)}, {with_file} (with --file)"
    )


def digest(path: Path) -> str:
    """Short digest of the size and both ends of a file (or of a store's manifest), to tell files of one name apart."""
    path = path / "manifest.json" if path.is_dir() else path
    with path.open("rb") as file:
        ends = file.read(DIGESTED)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - DIGESTED, 0))
        ends += file.read(DIGESTED)
    return hashlib.sha256(ends + str(size).encode()).hexdigest()[:6]


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}: set the environment variable HUEFIELD_DATA to the folder of the data sets (without "
            "it, they are expected in a folder named data)"
        )
    return path
