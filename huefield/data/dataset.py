"""Labelled structures for training, validation and testing, from the files or the data set that a configuration names.

A packed store is read batch by batch; other files are read into memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int
from pydantic import Field, PositiveInt, field_validator, model_validator

from huefield.core.structure import Block, joined
from huefield.data.bundled.sets import DEFAULT_LEVEL_OF_THEORY, bundled
from huefield.data.composition import symbol
from huefield.data.convert import source_info
from huefield.data.readers.base import UnreadableFileError
from huefield.data.readers.detect import OnRemark, ReaderConfig, read_blocks
from huefield.data.splits.config import OfficialSplit, SplitConfig, SplitInputs
from huefield.data.splits.duplicates import block_hashes, pairs_across
from huefield.data.splits.splits import SplitError
from huefield.data.store.store import Store, is_store
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

BLOCK = 4096
"""Structures per block."""
SHOWN = 3
"""Pairs of frames that a message lists."""


@dataclass(frozen=True, eq=False)
class RelativeStructures:
    """The structures of a source with labels less the results of their baseline."""

    source: Store | Block

    def __len__(self) -> int:
        return len(self.source)

    def block(self, indices: Int[np.ndarray, " n"]) -> Block:
        """The structures with these numbers, in this order."""
        return self.source.block(indices).relative_to_baseline()


Structures = Store | Block | RelativeStructures
"""Sources from which structures are taken by their numbers."""


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
    train: tuple[Path, ...] = Field(min_length=1, description="files, or one store NAME.hues")
    validation: tuple[Path, ...] = Field(
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

    @field_validator("reader", mode="before")
    @classmethod
    def _read_through_ase(cls, given: Any) -> Any:
        """Settings of a reader without its kind are those of the reader for most files."""
        return {"kind": "ase", **given} if isinstance(given, dict) else given

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

    def load(self, on_remark: OnRemark = None) -> Parts:
        """Open or read everything; ``on_remark`` receives remarks of the readers."""
        parts = {name: part.at_most(self.limits.get(name)) for name, part in self._parts(on_remark).items()}
        if self.split is None and not self.allow_shared:
            require_disjoint(parts["train"], parts["validation"])
        return parts

    def _parts(self, on_remark: OnRemark) -> dict[str, Part]:
        whole = open_part("train", self.train, self.reader, on_remark)
        if self.split is None:
            return {"train": whole, "validation": open_part("validation", self.validation, self.reader, on_remark)}
        official = self._official_parts(whole) if isinstance(self.split, OfficialSplit) else None
        split = self.split.make(SplitInputs.from_blocks(whole.blocks(), official))
        return {name: replace(whole, name=name, indices=np.asarray(found)) for name, found in split.parts.items()}

    def _official_parts(self, whole: Part) -> list[str] | None:
        """The official part of each structure; None if no file or store has such parts."""
        infos = [source_info(path, self.reader) for path in self.train]
        part_of_formula = {formula: part for each in infos for formula, part in each.official_parts.items()}
        if not part_of_formula:
            return None
        groups = (group for block in whole.blocks() for group in block.groups)
        return [part_of_formula.get(group.partition("/")[0], "") for group in groups]


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
    """All structures of a store, or of files, which are read into memory.

    Args:
        name: name of the part.
        paths: files, or one store.
        reader: how to read files; None to detect the format of each file.
        on_remark: receives remarks of the readers.
    """
    paths = list(paths)
    stores = [path for path in paths if is_store(path)]
    if stores and len(paths) > 1:
        raise UnreadableFileError(
            f"{stores[0]} is a store and cannot be joined with other files: convert all sources into one store with "
            "`huefield data convert`"
        )
    if stores:
        store = Store.open(stores[0])
        return Part(name, store, np.arange(len(store)))
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no file or store {path}")
    blocks = [block for path in paths for block in read_blocks(path, reader, on_remark=on_remark)]
    files = tuple(block.source for block in blocks for _ in range(len(block)))
    return Part(name, joined(blocks, ", ".join(map(str, paths))), np.arange(len(files)), files)
