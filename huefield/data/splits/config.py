"""Configuration of splits. No split puts a structure into two parts unnoticed."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
from jaxtyping import Int, Shaped, UInt8, UInt64
from pydantic import Field

from huefield.core.structure import Block
from huefield.data.splits.duplicates import block_hashes
from huefield.data.splits.files import split_from_file
from huefield.data.splits.splits import (
    ANI1X_FRACTIONS,
    Fractions,
    Split,
    SplitError,
    check_disjoint,
    formula_split,
    group_split,
    official_split,
    random_split,
    split_datasets,
)
from huefield.support.config import FrozenConfig


@dataclass(frozen=True, eq=False)
class SplitInputs:
    """Input of a split: n structures and, if the data have them, their groups and parts."""

    sizes: Int[np.ndarray, " n"]
    atomic_numbers: UInt8[np.ndarray, " A"]
    hashes: UInt64[np.ndarray, " n"] | None
    """Configuration hashes; None if they are unknown, in which case shared structures must be allowed."""
    groups: Shaped[np.ndarray, " n"] | Sequence[str] | None = None
    parts: Shaped[np.ndarray, " n"] | Sequence[str] | None = None
    tags: Sequence[str] | None = None
    """The data set of each structure; None if there is only one."""

    @classmethod
    def from_blocks(
        cls, blocks: Iterable[Block], parts: Shaped[np.ndarray, " n"] | Sequence[str] | None = None
    ) -> "SplitInputs":
        """Inputs from all structures, in one pass; ``parts`` are the parts of an official split."""
        sizes, numbers, hashes = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)], [np.zeros(0, np.uint64)]
        groups: list[str] = []
        tags: list[str] = []
        for block in blocks:
            sizes.append(block.sizes)
            numbers.append(block.atomic_numbers)
            hashes.append(block_hashes(block))
            groups += block.groups
            tags += block.tags
        named, several = groups if any(groups) else None, tags if len(set(tags)) > 1 else None
        return cls(np.concatenate(sizes), np.concatenate(numbers), np.concatenate(hashes), named, parts, several)


class AbstractSplit(FrozenConfig):
    """A kind of split, which :meth:`deal` defines."""

    allow_shared: bool = Field(
        False, description="whether a configuration may be in two parts; otherwise that is an error"
    )

    @abstractmethod
    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""

    def make(self, inputs: SplitInputs) -> Split:
        """The split; raises if a configuration is in two parts and that is not allowed."""
        split = self.deal(inputs)
        if self.allow_shared:
            return split
        if inputs.hashes is None:
            raise SplitError(
                "cannot tell whether a configuration is in two parts without hashes: make the inputs with "
                "SplitInputs.from_blocks, or set allow_shared"
            )
        check_disjoint(split, inputs.hashes)
        return split


class RandomSplit(AbstractSplit):
    """Random assignment of structures to parts; of several data sets, each is split in these proportions."""

    kind: Literal["random"] = "random"
    fractions: Fractions
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""
        key = jax.random.key(self.seed)
        if inputs.tags is None:
            return random_split(len(inputs.sizes), self.fractions, key=key)
        return split_datasets(inputs.tags, lambda count: random_split(count, self.fractions, key=key))


class GroupSplit(AbstractSplit):
    """Random assignment of whole groups to parts."""

    kind: Literal["group"] = "group"
    fractions: Fractions
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""
        if inputs.groups is None:
            raise SplitError(
                "the data have no groups (`group` or `config_type` in extended xyz): split at random or by formula"
            )
        return group_split(inputs.groups, self.fractions, key=jax.random.key(self.seed))


class FormulaSplit(AbstractSplit):
    """Random assignment of whole formulas to parts, by default in the proportions of ANI-1x in the paper."""

    kind: Literal["formula"] = "formula"
    fractions: Fractions = ANI1X_FRACTIONS
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""
        return formula_split(inputs.sizes, inputs.atomic_numbers, self.fractions, key=jax.random.key(self.seed))


class OfficialSplit(AbstractSplit):
    """The official split of a data set."""

    kind: Literal["official"] = "official"
    rename: dict[str, str] = Field({}, description="other names for parts")

    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""
        if inputs.parts is None:
            raise SplitError(
                "the data have no official split: choose random, group, formula or file; if they are a store of "
                "Transition1x from an older huefield, convert the HDF5 file again"
            )
        usual = {"val": "validation"} if "val" in set(inputs.parts) else {}  # the name that training looks for
        return official_split(inputs.parts, {**usual, **self.rename})


class FileSplit(AbstractSplit):
    """A split from a file; :func:`huefield.data.splits.files.split_from_file` documents the formats."""

    kind: Literal["file"] = "file"
    path: Path

    def deal(self, inputs: SplitInputs) -> Split:
        """The split, not checked for shared configurations."""
        return split_from_file(self.path, len(inputs.sizes))


SplitConfig = Annotated[
    RandomSplit | GroupSplit | FormulaSplit | OfficialSplit | FileSplit, Field(discriminator="kind")
]
