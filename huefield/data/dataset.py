"""Labelled structures for training, validation and testing, from the files or the data set that a configuration names.

Packed stores are read batch by batch; other files are read into memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field, PositiveInt, field_validator, model_validator

from huefield.core.structure import TAG, Block, joined
from huefield.data.bundled.sets import DEFAULT_LEVEL_OF_THEORY, bundled
from huefield.data.composition import symbol
from huefield.data.convert import source_info
from huefield.data.readers.detect import OnRemark, ReaderConfig
from huefield.data.sources import (
    DataFile,
    FileEntry,
    RelativeStructures,
    SourceList,
    Structures,
    open_files,
    read_through_ase,
    require_tags,
    tag_numbers,
)
from huefield.data.splits.config import OfficialSplit, SplitConfig, SplitInputs
from huefield.data.splits.duplicates import block_hashes, pairs_across
from huefield.data.splits.splits import SplitError
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

BLOCK = 4096
"""Structures per block."""
SHOWN = 3
"""Pairs of frames that a message lists."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some structures of a source: those for training, for example."""

    name: str
    source: Structures
    indices: Int[np.ndarray, " n"]
    files: tuple[str, ...] = ()
    """The file of each structure of the source, if there are several files."""

    def __len__(self) -> int:
        return len(self.indices)

    def block(self, indices: Int[np.ndarray, " m"]) -> Block:
        """The structures with these numbers within the part, in this order."""
        return self.source.block(self.indices[indices])

    def blocks(self) -> Iterator[Block]:
        """All structures, many at a time."""
        for first in range(0, len(self), BLOCK):
            yield self.block(np.arange(first, min(first + BLOCK, len(self))))

    def where(self, index: int) -> str:
        """Frame and file of the structure with this number within the part, for messages."""
        block = self.block(np.array([index]))
        file = self.files[self.indices[index]] if self.files else block.source
        return f"frame {block.frames[0]} of {file}"

    def share(self, numbers: range) -> "Part":
        """Some structures of the part, by their numbers within it."""
        return replace(self, indices=self.indices[numbers.start : numbers.stop])

    @cached_property
    def _tags(self) -> tuple[tuple[str, ...], Int[np.ndarray, " n"]]:
        return tag_numbers(self.source, self.indices)

    @property
    def datasets(self) -> dict[str, int]:
        """Number of structures of each data set that it has, in the order of the source."""
        names, numbers = self._tags
        counts = np.bincount(numbers, minlength=len(names)).tolist()
        return {name: count for name, count in zip(names, counts, strict=True) if count}

    def of_each_dataset(self, values: Mapping[str, float]) -> Float[np.ndarray, " n"]:
        """The value of the data set of each structure."""
        names, numbers = self._tags
        return np.array([values.get(name, np.nan) for name in names])[numbers]

    def of_dataset(self, tag: str) -> "Part":
        """Its structures of one data set, none if it has no such set."""
        names, numbers = self._tags
        return replace(self, indices=self.indices[numbers == (names.index(tag) if tag in names else -1)])

    def at_most(self, count: int | None) -> "Part":
        """At most ``count`` of its structures, drawn at random, always the same ones; None for all."""
        if count is None or count >= len(self):
            return self
        drawn = np.random.default_rng(0).permutation(len(self))[:count]
        return replace(self, indices=self.indices[np.sort(drawn)])

    def relative_to_baseline(self) -> "Part":
        """The same structures with labels less the results of their baseline."""
        if isinstance(self.source, RelativeStructures):
            return self
        return replace(self, source=RelativeStructures(self.source))

    def elements(self) -> tuple[str, ...]:
        """Symbols of its elements, by atomic number."""
        found: set[int] = set()
        for block in self.blocks():
            found |= set(np.unique(block.atomic_numbers).tolist())
        return tuple(symbol(number) for number in sorted(found))


Parts = Mapping[str, Part]
"""Parts by name: ``train``, ``validation`` and others that a split made, such as ``test``."""


class FileData(FrozenConfig):
    """Structures from files or from a packed store."""

    kind: Literal["files"] = "files"
    train: tuple[FileEntry, ...] = Field(
        min_length=1,
        description="files or stores NAME.hues, as paths, or with the data set that each belongs to, as in "
        "[{path: a.xyz, tag: pbe}, {path: b.hues, tag: wb97x, weight: 0.5}]",
    )
    validation: tuple[FileEntry, ...] = Field(
        (), description="files for validation, with split: null; empty to split the training data"
    )
    allow_shared: bool = Field(
        False, description="whether files for validation may have configurations of the training data"
    )
    allow_labels: bool = Field(
        False, description="whether to train on labels that cannot be right, such as energies in other units than eV"
    )
    split: SplitConfig | None = Field(None, description="how to split the training data into named parts")
    reader: ReaderConfig | None = Field(None, description="how to read files; null to detect the format of each file")
    limits: dict[str, PositiveInt] = Field(
        {}, description="largest number of structures of a part, drawn at random, as in {train: 1000, test: 500}"
    )
    main: str | None = Field(
        None, description="tag of the data set whose energies the model predicts by default; null for the first one"
    )

    _read_through_ase = field_validator("reader", mode="before")(read_through_ase)

    @model_validator(mode="after")
    def _one_way_to_validate(self) -> "FileData":
        if not self.validation and self.split is None:
            raise HuefieldError(
                "there are no validation data: name files for validation, or split the training data, as in "
                "split: {kind: random, fractions: {train: 0.9, validation: 0.1}}"
            )
        if self.validation and self.split is not None:
            raise HuefieldError(
                "name files for validation or a split of the training data, not both: with files, set split: null"
            )
        return self

    @model_validator(mode="after")
    def _tags_make_sense(self) -> "FileData":
        require_tags(self.train_files, self.validation_files)
        tags = dict.fromkeys(file.dataset for file in self.train_files)
        if self.main not in (None, *tags):
            raise HuefieldError(f"main is {self.main!r}, but the data sets are {', '.join(tags)}")
        return self

    @property
    def train_files(self) -> tuple[DataFile, ...]:
        """Files for training, each with its data set and reader."""
        return tuple(self._entry(each) for each in self.train)

    @property
    def validation_files(self) -> tuple[DataFile, ...]:
        """Files for validation, each with its data set and reader."""
        return tuple(self._entry(each) for each in self.validation)

    @property
    def datasets(self) -> dict[str, float]:
        """The weight of each data set; the first one is the main one."""
        files = (*self.train_files, *self.validation_files)
        stated = {file.dataset: file.weight for file in files if file.weight is not None}
        tags = dict.fromkeys([self.main or files[0].dataset, *(file.dataset for file in files)])
        return {tag: stated.get(tag, 1.0) for tag in tags}

    def _entry(self, given: Path | DataFile) -> DataFile:
        file = given if isinstance(given, DataFile) else DataFile(path=given)
        return file if file.reader is not None else file.model_copy(update={"reader": self.reader})

    def load(self, on_remark: OnRemark = None) -> Parts:
        """Open or read everything; ``on_remark`` receives remarks of the readers."""
        parts = {name: part.at_most(self.limits.get(name)) for name, part in self._parts(on_remark).items()}
        if self.split is None and not self.allow_shared:
            require_disjoint(parts["train"], parts["validation"])
        return parts

    def _parts(self, on_remark: OnRemark) -> dict[str, Part]:
        whole = _part_of("train", self.train_files, on_remark)
        if self.split is None:
            return {"train": whole, "validation": _part_of("validation", self.validation_files, on_remark)}
        official = self._official_parts(whole) if isinstance(self.split, OfficialSplit) else None
        split = self.split.make(SplitInputs.from_blocks(whole.blocks(), official))
        return {name: replace(whole, name=name, indices=np.asarray(found)) for name, found in split.parts.items()}

    def _official_parts(self, whole: Part) -> list[str] | None:
        """The official part of each structure; None if no file or store has such parts."""
        found = [source_info(file.path, file.reader).official_parts for file in self.train_files]
        if not any(found):
            return None
        groups = (group for block in whole.blocks() for group in block.groups)
        if isinstance(whole.source, SourceList):
            owners = whole.source.owners(whole.indices)
        else:
            found, owners = [{k: v for each in found for k, v in each.items()}], np.zeros(len(whole), np.int64)
        return [found[owner].get(group.partition("/")[0], "") for group, owner in zip(groups, owners, strict=True)]


class BundledData(FrozenConfig):
    """The data set that comes with huefield."""

    kind: Literal["bundled"] = "bundled"
    level_of_theory: str = Field(DEFAULT_LEVEL_OF_THEORY, description="method that the labels were computed with")
    train_limit: int | None = Field(None, ge=1, description="largest number of training structures, drawn at random")
    split_seed: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="seed of another random split into train, validation and test_id of the same sizes; null for the "
        "split that the data come with",
    )

    @property
    def datasets(self) -> dict[str, float]:
        """The weight of its only data set."""
        return {TAG: 1.0}

    @model_validator(mode="before")
    @classmethod
    def _accept_old_name(cls, given: Any) -> Any:
        """Take ``level`` of configurations of old runs for ``level_of_theory``."""
        if isinstance(given, dict) and "level" in given:
            return {("level_of_theory" if key == "level" else key): value for key, value in given.items()}
        return given

    def load(self, on_remark: OnRemark = None) -> Parts:
        """All parts of it; there are no remarks."""
        blocks = bundled(level_of_theory=self.level_of_theory).blocks
        parts = {name: Part(name, block, np.arange(len(block))) for name, block in blocks.items()}
        if self.split_seed is not None:
            parts |= _dealt_anew([parts[name] for name in ALIKE], self.split_seed)
        return {**parts, "train": parts["train"].at_most(self.train_limit)}


ALIKE = ("train", "validation", "test_id")
"""Parts of the bundled data that have the same molecules and reactions."""


def _dealt_anew(parts: Sequence[Part], seed: int) -> dict[str, Part]:
    """The structures of some parts, split at random into parts of the same names and sizes."""
    together = joined([part.block(np.arange(len(part))) for part in parts], "bundled data")
    order = np.random.default_rng(seed).permutation(len(together))
    pieces = np.split(order, np.cumsum([len(part) for part in parts])[:-1])
    return {part.name: Part(part.name, together, np.sort(piece)) for part, piece in zip(parts, pieces, strict=True)}


DataConfig = Annotated[FileData | BundledData, Field(discriminator="kind")]


def require_disjoint(train: Part, validation: Part) -> None:
    """Raise if structures for validation are training structures, too: their errors would say nothing."""
    hashes = np.concatenate([block_hashes(block) for part in (train, validation) for block in part.blocks()])
    pairs = pairs_across(hashes, np.repeat([0, 1], [len(train), len(validation)]))
    if not pairs.size:
        return
    shown = [f"{validation.where(j - len(train))} = {train.where(i)}" for i, j in pairs.T[:SHOWN].tolist()]
    raise SplitError(
        f"{pairs.shape[1]} of {len(validation)} structures for validation are training structures, too "
        f"({', '.join(shown)}{', ...' if pairs.shape[1] > SHOWN else ''}): remove them from one of the files, split "
        "one file instead, or set data: {allow_shared: true}"
    )


def open_part(name: str, paths: Iterable[Path], reader: ReaderConfig | None = None, on_remark: OnRemark = None) -> Part:
    """All structures of stores and files; files are read into memory.

    Args:
        name: name of the part.
        paths: files or stores.
        reader: how to read files; None to detect the format of each file.
        on_remark: receives remarks of the readers.
    """
    return _part_of(name, [DataFile(path=path, reader=reader) for path in paths], on_remark)


def _part_of(name: str, files: Sequence[DataFile], on_remark: OnRemark) -> Part:
    source, places = open_files(files, on_remark)
    return Part(name, source, np.arange(len(source)), places)
