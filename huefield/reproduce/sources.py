"""The data sets of the table: what is trained on for each seed, and what is tested on."""

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
from huefield.training.job import require_usable

LARGE_ATOMS = 20
"""Molecules of ANI-1x with more atoms are kept for the test on larger ones."""
DIGESTED = 2**20
"""Bytes at each end of a file by which it is told from others."""
FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SECONDS_TO_LOOK_AGAIN = 1.0
"""Whether another process has packed the data."""
FEWEST = 20
"""Structures of a file of one's own: two for validation and two for the test."""


@dataclass(frozen=True)
class Test:
    """Structures that no model was trained on."""

    part: str
    """Its name in results."""
    title: str


class AbstractSource(ABC):
    """A data set."""

    name: str
    title: str
    mixed_sizes: bool
    """Whether molecules differ much in size."""
    batch_size: int
    """Of the small setting."""
    tests: tuple[Test, ...]
    """The first one is like the training data."""

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """What must be done once before anything is trained on the splits of some seeds: nothing, for most."""
        return

    @abstractmethod
    def data(self, seed: int, folder: Path) -> BundledData | FileData:
        """What is trained on; a file that says so may be written into the folder."""

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """The structures of each test, given all parts of the training data."""
        return {test.part: parts[test.part] for test in self.tests}


class Bundled(AbstractSource):
    """What comes with huefield: many small molecules and reactions, GFN2-xTB."""

    name, title, mixed_sizes, batch_size = "bundled", "bundled data", True, 8
    tests = (
        Test("test_id", "as in training"),
        Test("test_reactions", "unseen reactions"),
        Test("test_hot", "dynamics at 1500 and 2000 K"),
    )

    def data(self, seed: int, folder: Path) -> BundledData:
        """Seed 0 is the split that it comes with."""
        return BundledData(split_seed=seed or None)


class AcAc(AbstractSource):
    """Acetylacetone at 300 K; BOTNet-datasets, PBE."""

    name, title, mixed_sizes, batch_size = "acac", "AcAc", False, 4
    tests = (
        Test("test_300K", "300 K"),
        Test("test_600K", "600 K"),
        Test("test_dihedral", "rotation, energies only"),
        Test("test_H_transfer", "hydrogen transfer, energies only"),
    )
    files = ("test_MD_300K", "train_600K", "test_dihedral", "test_H_transfer")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """See that all files are there."""
        for name in ("train_300K", *self.files):
            _there(self.folder / f"{name}.xyz")

    def data(self, seed: int, folder: Path) -> FileData:
        """450 structures for training and 50 for validation."""
        split = RandomSplit(fractions={"train": 0.9, "validation": 0.1}, seed=seed)
        return FileData(train=(_there(self.folder / "train_300K.xyz"),), split=split)

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """From files of their own."""
        names = zip(self.tests, self.files, strict=True)
        return {test.part: open_part(test.part, [_there(self.folder / f"{name}.xyz")]) for test, name in names}


class SmallANI1x(AbstractSource):
    """Some hundred structures of ANI-1x; whole formulas are kept for the tests."""

    name, title, mixed_sizes, batch_size = "ani1x", "ANI-1x, 798 structures", True, 4
    tests = (Test("test", "unseen formulas"), Test("test_larger", f"unseen formulas of more than {LARGE_ATOMS} atoms"))

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """See that the file is there."""
        _there(self.path)

    def data(self, seed: int, folder: Path) -> FileData:
        """Formulas are dealt out by the seed, but for the large ones."""
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
    """A file or store of the user's, split at random."""

    mixed_sizes, batch_size = True, 4
    tests = (Test("test", "as in training"),)

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.title = path, f"{path.stem}-{digest(path)}", path.name

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """See that it can be read and split and has forces, before folders are made."""
        part = open_part("all", [_there(self.path)])
        if len(part) < FEWEST:
            raise HuefieldError(
                f"{self.path} has {len(part)} structures, but a table needs at least {FEWEST}, better hundreds"
            )
        if not any(block.has_forces.any() for block in part.blocks()):
            raise HuefieldError(
                f"no structure of {self.path} has forces, which half of the table is about: are they named otherwise?"
            )
        for seed in range(seeds):
            try:
                require_usable(self.data(seed, self.path.parent).load())
            except SplitError as fault:
                raise HuefieldError(f"{self.path} cannot be split into parts, seed {seed}: {fault}") from fault

    def data(self, seed: int, folder: Path) -> FileData:
        """Eight tenths for training."""
        return FileData(train=(_there(self.path),), split=RandomSplit(fractions=FRACTIONS, seed=seed))


FEW = {"train": 3000, "validation": 300, "test": 1000}
"""Structures of each part of a published file that a pair of cores uses at most."""


class PublishedANI1x(AbstractSource):
    """ANI-1x as it is published: one HDF5 file. It has no split; formulas are dealt out, as many as in the paper."""

    title, mixed_sizes, batch_size = "ANI-1x", True, 4
    tests = (Test("test", "unseen formulas"),)

    def __init__(self, path: Path, out: Path, limits: dict[str, int]) -> None:
        self.path, self.limits, self.name = path, limits, f"ani1x-{digest(path)}"
        self.store = out / self.name / "data" / "ani1x.hues"

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Pack the file."""
        _pack(self.path, self.store, Ani1xReader(), report, should_stop)

    def data(self, seed: int, folder: Path) -> FileData:
        """The proportions are the paper's."""
        return FileData(train=(self.store,), split=FormulaSplit(seed=seed), limits=self.limits)


class PublishedTransition1x(AbstractSource):
    """Transition1x as it is published: one HDF5 file, with its own split by formula."""

    title, mixed_sizes, batch_size = "Transition1x", True, 4
    tests = (Test("test", "unseen formulas"),)

    def __init__(self, path: Path, out: Path, limits: dict[str, int]) -> None:
        self.path, self.limits, self.name = path, limits, f"transition1x-{digest(path)}"
        folder = out / self.name / "data"
        self.stores = {split: folder / f"transition1x-{split}.hues" for split in ("train", "val", "test")}

    def prepare(self, seeds: int, report: Callable[[ConvertProgress], None], should_stop: Callable[[], bool]) -> None:
        """Pack the file, a store for each part of its split."""
        for split, store in self.stores.items():
            reader = Transition1xReader.model_validate({"split": split})
            _pack(self.path, store, reader, report, should_stop)

    def data(self, seed: int, folder: Path) -> FileData:
        """The same for every seed, as the split is."""
        return FileData(train=(self.stores["train"],), validation=(self.stores["val"],), limits=self.limits)

    def test_parts(self, parts: Parts) -> dict[str, Part]:
        """From a store of its own."""
        return {"test": open_part("test", [self.stores["test"]]).at_most(self.limits.get("test"))}


def _pack(
    path: Path,
    store: Path,
    reader: Ani1xReader | Transition1xReader,
    report: Callable[[ConvertProgress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Convert, or go on converting, or wait for a process that does; nothing where it is done."""
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
    """Where public data sets are: $HUEFIELD_DATA, or a folder named data."""
    return Path(os.environ.get("HUEFIELD_DATA", "data")).resolve()


SMALL: dict[str, Callable[[], AbstractSource]] = {
    "bundled": Bundled,
    "acac": lambda: AcAc(data_folder() / "acac"),
    "ani1x": lambda: SmallANI1x(data_folder() / "ani1x" / "ani1x_800.xyz"),
}
"""Data sets for a pair of cores, by their names."""
PUBLISHED = {"ani1x": PublishedANI1x, "transition1x": PublishedTransition1x}
"""Those of the paper, as they are published."""


def source_of(name: str, file: Path | None, out: Path, limits: dict[str, int]) -> AbstractSource:
    """A data set by its name, or a file of one's own by its path.

    Args:
        name: of :data:`SMALL` or :data:`PUBLISHED`, or the path of a file.
        file: the published HDF5 file.
        out: folder of the table; packed data go there.
        limits: how many structures of each part of a published file are used; none for the paper's size.
    """
    if file is not None:
        if name not in PUBLISHED:
            raise HuefieldError(
                f"--file is for the published files of {' and '.join(PUBLISHED)}; name yours with --data"
            )
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}: --file is the HDF5 file of {name}, as it is published")
        return PUBLISHED[name](file, out, limits)
    if name in PUBLISHED and (name not in SMALL or not limits):
        raise HuefieldError(f"where is the published HDF5 file of {name}? Name it with --file")
    return source_named(name)


def source_named(name: str) -> AbstractSource:
    """A small data set by its name, or a file of one's own by its path."""
    if name in SMALL:
        return SMALL[name]()
    if Path(name).exists():
        return OwnData(Path(name).resolve())
    with_file = ", ".join(other for other in PUBLISHED if other not in SMALL)
    raise HuefieldError(
        f"there is no data set and no file {name!r}: name a file, or {', '.join(SMALL)} or {with_file} (with --file)"
    )


def digest(path: Path) -> str:
    """Some letters that tell files with one name apart, from the size and both ends of a file or a store's manifest."""
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
            f"there is no {path}: say where the data sets are with the environment variable HUEFIELD_DATA (without it, "
            "they are looked for in a folder named data)"
        )
    return path
