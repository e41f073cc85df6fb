"""Files and stores of a data configuration, each with its data set, and several of them as one source of structures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import Discriminator, Field, field_validator
from pydantic import Tag as Choice

from huefield.core.structure import TAG, Block, joined
from huefield.data.readers.detect import OnRemark, ReaderConfig, read_blocks
from huefield.data.store.store import Store, is_store
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError


def read_through_ase(given: Any) -> Any:
    """Settings of a reader without its kind are those of the reader for most files."""
    return {"kind": "ase", **given} if isinstance(given, dict) else given


class DataFile(FrozenConfig):
    """A file or store, and the data set that its structures belong to."""

    path: Path = Field(description="file, or store NAME.hues")
    tag: str | None = Field(
        None,
        min_length=1,
        max_length=60,
        pattern=r"^\S(.*\S)?$",
        description="name of the data set: files of one tag share reference energies and a weight",
    )
    weight: float | None = Field(
        None, gt=0, le=1e9, description="factor on all terms of the data set in the loss; null for 1"
    )
    reader: ReaderConfig | None = Field(None, description="how to read the file; null for the reader of the data")

    _read_through_ase = field_validator("reader", mode="before")(read_through_ase)

    @field_validator("tag")
    @classmethod
    def _is_no_word_of_ours(cls, tag: str | None) -> str | None:
        if tag == TAG:
            raise HuefieldError(f"the tag {TAG!r} stands for structures of no named data set: choose another name")
        return tag

    @property
    def dataset(self) -> str:
        """Its data set; ``TAG`` if it has no tag."""
        return self.tag or TAG


def _choice(given: Any) -> str:
    return "entry" if isinstance(given, dict | DataFile) else "path"


FileEntry = Annotated[
    Annotated[Path, Choice("path")] | Annotated[DataFile, Choice("entry")],
    Discriminator(_choice),
]
"""A path, or a path with its data set."""


def require_tags(train: Sequence[DataFile], validation: Sequence[DataFile] = ()) -> None:
    """Raise unless all files have tags or none has, and files of one tag agree on everything that belongs to it."""
    files = (*train, *validation)
    named = next((file for file in files if file.tag is not None), None)
    bare = next((file for file in files if file.tag is None), None)
    if named is not None and bare is not None:
        raise HuefieldError(
            f"{bare.path} has no tag, but {named.path} has the tag {named.tag!r}: give every file a tag, also those "
            "for validation, or none"
        )
    weighted = next((file for file in files if file.weight is not None), None)
    if named is None and weighted is not None:
        raise HuefieldError(f"{weighted.path} has a weight but no tag: weights belong to data sets, give it a tag")
    weights: dict[str, float] = {}
    for file in files:
        if file.weight is not None and weights.setdefault(file.dataset, file.weight) != file.weight:
            raise HuefieldError(
                f"data set {file.dataset!r} has the weights {weights[file.dataset]:g} and {file.weight:g}: a data set "
                "has one weight, which need not be repeated for each of its files"
            )
    _require_one_tag_for_labels(files)
    lacking = sorted({file.dataset for file in train} ^ {file.dataset for file in validation}) if validation else []
    if lacking:
        raise HuefieldError(
            f"data set {lacking[0]!r} has files for {'training' if _has(train, lacking[0]) else 'validation'} only: "
            "name files of each data set for both, or split the training data"
        )


def _has(files: Sequence[DataFile], tag: str) -> bool:
    return any(file.dataset == tag for file in files)


def _require_one_tag_for_labels(files: Sequence[DataFile]) -> None:
    """Raise if the same labels are in two data sets; another reader may take other labels from the same file."""
    seen: dict[tuple[Path, str], str] = {}
    for file in files:
        labels = (file.path.resolve(), "" if file.reader is None else file.reader.model_dump_json())
        if seen.setdefault(labels, file.dataset) != file.dataset:
            raise HuefieldError(
                f"{file.path} is in the data sets {seen[labels]!r} and {file.dataset!r} with the same labels: leave "
                "one out, or read other labels with a reader of its own"
            )


@dataclass(frozen=True, eq=False)
class SourceList:
    """Stores, and files in memory, one after the other; all structures of one source belong to one data set."""

    sources: tuple[Store | Block, ...]
    tags: tuple[str, ...]
    """The data set of each source."""

    @cached_property
    def _ends(self) -> Int[np.ndarray, " k"]:
        return np.cumsum([len(source) for source in self.sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def owners(self, indices: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The number of the source of each structure."""
        return np.searchsorted(self._ends, indices, side="right")

    def block(self, indices: Int[np.ndarray, " m"]) -> Block:
        """The structures with these numbers, in this order; only these are read from stores."""
        owners = self.owners(indices)
        parts, rows = [], []
        for number in np.unique(owners) if len(indices) else [0]:
            here = np.flatnonzero(owners == number)
            source = self.sources[number]
            part = source.block(indices[here] - (self._ends[number] - len(source)))
            parts.append(replace(part, tags=(self.tags[number],) * len(part)))
            rows.append(here)
        if len(parts) == 1:
            return parts[0]
        whole = joined(parts, ", ".join(part.source for part in parts))
        return whole.block(np.argsort(np.concatenate(rows)))


@dataclass(frozen=True, eq=False)
class RelativeStructures:
    """The structures of a source with labels less the results of their baseline."""

    source: Store | Block | SourceList

    def __len__(self) -> int:
        return len(self.source)

    def block(self, indices: Int[np.ndarray, " n"]) -> Block:
        """The structures with these numbers, in this order."""
        return self.source.block(indices).relative_to_baseline()


Structures = Store | Block | SourceList | RelativeStructures
"""Sources from which structures are taken by their numbers."""


def tag_numbers(source: Structures, indices: Int[np.ndarray, " m"]) -> tuple[tuple[str, ...], Int[np.ndarray, " m"]]:
    """Names of the data sets of a source, and the number of the data set of each of some structures."""
    if isinstance(source, RelativeStructures):
        return tag_numbers(source.source, indices)
    if isinstance(source, Store):
        return (TAG,), np.zeros(len(indices), np.int64)
    names = tuple(dict.fromkeys(source.tags))
    numbers = np.array([names.index(tag) for tag in source.tags], np.int64)
    return names, numbers[source.owners(indices) if isinstance(source, SourceList) else indices]


def open_files(files: Sequence[DataFile], on_remark: OnRemark = None) -> tuple[Structures, tuple[str, ...]]:
    """The structures of stores and files, and the file of each structure if there are several sources.

    Stores are read batch by batch; other files are read into memory.

    Args:
        files: stores and files.
        on_remark: receives remarks of the readers.
    """
    for file in files:
        if not is_store(file.path) and not file.path.exists():
            raise FileNotFoundError(f"there is no file or store {file.path}")
    stores = [is_store(file.path) for file in files]
    plain = all(file.tag is None for file in files)
    if plain and stores == [True]:
        return Store.open(files[0].path), ()
    if plain and not any(stores):
        blocks = [block for file in files for block in read_blocks(file.path, file.reader, on_remark=on_remark)]
        return joined(blocks, ", ".join(str(file.path) for file in files)), _files_of(blocks)
    sources: list[Store | Block] = []
    places: list[str] = []
    for file, packed in zip(files, stores, strict=True):
        if packed:
            store = Store.open(file.path)
            sources.append(store)
            places += [str(file.path)] * len(store)
        else:
            blocks = list(read_blocks(file.path, file.reader, on_remark=on_remark))
            sources.append(joined(blocks, str(file.path)))
            places += _files_of(blocks)
    return SourceList(tuple(sources), tuple(file.dataset for file in files)), tuple(places)


def _files_of(blocks: Sequence[Block]) -> tuple[str, ...]:
    return tuple(block.source for block in blocks for _ in range(len(block)))
