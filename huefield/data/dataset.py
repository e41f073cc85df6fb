"""Labelled structures for training, validation and testing, from wherever a configuration says they are.

A packed store is read as batches need it; files are read into memory, as data that are worth a file fit there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int
from pydantic import Field, PositiveInt, model_validator

from huefield.core.structure import Block, joined
from huefield.data.bundled.sets import DEFAULT_LEVEL_OF_THEORY, bundled
from huefield.data.composition import symbol
from huefield.data.readers.base import UnreadableFileError
from huefield.data.readers.detect import ReaderConfig, read_blocks
from huefield.data.splits.config import SplitConfig, SplitInputs
from huefield.data.store.store import Store, is_store
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

BLOCK = 4096
"""Structures that are looked at together in passes over all."""


Structures = Store | Block
"""Structures that can be taken by their numbers."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some structures of a source: those for training, for example."""

    name: str
    source: Structures
    indices: Int[np.ndarray, " n"]
    files: tuple[str, ...] = ()
    """The file of each structure of the source, where they are of several."""

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
        """Where the structure with this number within the part comes from, for messages."""
        block = self.block(np.array([index]))
        file = self.files[self.indices[index]] if self.files else block.source
        return f"frame {block.frames[0]} of {file}"

    def share(self, numbers: range) -> "Part":
        """Some structures of the part, by their numbers within it."""
        return replace(self, indices=self.indices[numbers.start : numbers.stop])

    def at_most(self, count: int | None) -> "Part":
        """So many of its structures, always the same ones, drawn at random; None for all."""
        if count is None or count >= len(self):
            return self
        drawn = np.random.default_rng(0).permutation(len(self))[:count]
        return replace(self, indices=self.indices[np.sort(drawn)])

    def elements(self) -> tuple[str, ...]:
        """Symbols of the elements in it, by atomic number."""
        found: set[int] = set()
        for block in self.blocks():
            found |= set(np.unique(block.atomic_numbers).tolist())
        return tuple(symbol(number) for number in sorted(found))


Parts = Mapping[str, Part]
"""By name: ``train``, ``validation`` and whatever else a split made, such as ``test``."""


class FileData(FrozenConfig):
    """Structures from files or from a packed store."""

    kind: Literal["files"] = "files"
    train: tuple[Path, ...] = Field(min_length=1, description="files, or one store NAME.hues")
    validation: tuple[Path, ...] = Field(
        (), description="the same for validation, with split: null; empty to split the training data"
    )
    split: SplitConfig | None = Field(None, description="how to split the training data; its parts are named")
    reader: ReaderConfig | None = Field(None, description="how to read files; null to look at each of them")
    limits: dict[str, PositiveInt] = Field(
        {}, description="use so many structures of a part at most, drawn at random, as in {train: 1000, test: 500}"
    )

    @model_validator(mode="after")
    def _one_way_to_validate(self) -> "FileData":
        if not self.validation and self.split is None:
            raise HuefieldError(
                "there is nothing to validate on: name files for validation, or split the training data, as in "
                "split: {kind: random, fractions: {train: 0.9, validation: 0.1}}"
            )
        if self.validation and self.split is not None:
            raise HuefieldError(
                "give files for validation or a split of the training data, not both: with files, set split: null"
            )
        return self

    def load(self) -> Parts:
        """Open or read everything."""
        return {name: part.at_most(self.limits.get(name)) for name, part in self._parts().items()}

    def _parts(self) -> dict[str, Part]:
        whole = open_part("train", self.train, self.reader)
        if self.split is None:
            return {"train": whole, "validation": open_part("validation", self.validation, self.reader)}
        split = self.split.make(SplitInputs.from_blocks(whole.blocks()))
        return {name: replace(whole, name=name, indices=np.asarray(found)) for name, found in split.parts.items()}


class BundledData(FrozenConfig):
    """A data set that comes with huefield."""

    kind: Literal["bundled"] = "bundled"
    level_of_theory: str = Field(DEFAULT_LEVEL_OF_THEORY, description="method that the labels were computed with")
    train_limit: int | None = Field(None, ge=1, description="train on so many structures, drawn at random")
    split_seed: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="deal out train, validation and test_id anew, at random and as large as they are; null for as it "
        "comes",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_old_name(cls, given: Any) -> Any:
        """Take ``level`` of configurations of old runs for ``level_of_theory``."""
        if isinstance(given, dict) and "level" in given:
            return {("level_of_theory" if key == "level" else key): value for key, value in given.items()}
        return given

    def load(self) -> Parts:
        """All parts of it."""
        blocks = bundled(level_of_theory=self.level_of_theory).blocks
        parts = {name: Part(name, block, np.arange(len(block))) for name, block in blocks.items()}
        if self.split_seed is not None:
            parts |= _dealt_anew([parts[name] for name in ALIKE], self.split_seed)
        return {**parts, "train": parts["train"].at_most(self.train_limit)}


ALIKE = ("train", "validation", "test_id")
"""Parts of the bundled data that were drawn from the same molecules and reactions at random."""


def _dealt_anew(parts: Sequence[Part], seed: int) -> dict[str, Part]:
    """The structures of some parts dealt out at random, into parts of the same names and sizes."""
    together = joined([part.block(np.arange(len(part))) for part in parts], "bundled data")
    order = np.random.default_rng(seed).permutation(len(together))
    pieces = np.split(order, np.cumsum([len(part) for part in parts])[:-1])
    return {part.name: Part(part.name, together, np.sort(piece)) for part, piece in zip(parts, pieces, strict=True)}


DataConfig = Annotated[FileData | BundledData, Field(discriminator="kind")]


def open_part(name: str, paths: Iterable[Path], reader: ReaderConfig | None = None) -> Part:
    """All of a store, or the structures of all files in memory.

    Args:
        name: of the part.
        paths: files, or one store.
        reader: how to read files; None to look at each of them.
    """
    paths = list(paths)
    stores = [path for path in paths if is_store(path)]
    if stores and len(paths) > 1:
        raise UnreadableFileError(
            f"{stores[0]} is a store, which cannot be joined with others: convert all sources into one store with "
            "`huefield data convert`"
        )
    if stores:
        store = Store.open(stores[0])
        return Part(name, store, np.arange(len(store)))
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no file or store {path}")
    blocks = [block for path in paths for block in read_blocks(path, reader)]
    files = tuple(block.source for block in blocks for _ in range(len(block)))
    return Part(name, joined(blocks, ", ".join(map(str, paths))), np.arange(len(files)), files)
