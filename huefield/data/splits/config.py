"""Splits by configuration: which kind, and what it needs. None lets a configuration into two parts unnoticed."""

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
)
from huefield.support.config import FrozenConfig


@dataclass(frozen=True, eq=False)
class SplitInputs:
    """What splits are made from: n structures and, where the data have them, groups and parts."""

    sizes: Int[np.ndarray, " n"]
    atomic_numbers: UInt8[np.ndarray, " A"]
    hashes: UInt64[np.ndarray, " n"] | None
    """Of the configurations; None if they are not known, and then shared ones must be allowed."""
    groups: Shaped[np.ndarray, " n"] | Sequence[str] | None = None
    parts: Shaped[np.ndarray, " n"] | Sequence[str] | None = None

    @classmethod
    def from_blocks(
        cls, blocks: Iterable[Block], parts: Shaped[np.ndarray, " n"] | Sequence[str] | None = None
    ) -> "SplitInputs":
        """Of all structures of the blocks, which are looked at once; ``parts`` are those that the data came with."""
        sizes, numbers, hashes = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)], [np.zeros(0, np.uint64)]
        groups: list[str] = []
        for block in blocks:
            sizes.append(block.sizes)
            numbers.append(block.atomic_numbers)
            hashes.append(block_hashes(block))
            groups += block.groups
        named = groups if any(groups) else None
        return cls(np.concatenate(sizes), np.concatenate(numbers), np.concatenate(hashes), named, parts)


class AbstractSplit(FrozenConfig):
    """A way to split; :meth:`deal` is what differs."""

    allow_shared: bool = Field(False, description="whether a configuration may be in two parts; else it is an error")

    @abstractmethod
    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""

    def make(self, inputs: SplitInputs) -> Split:
        """The split of these structures, checked for configurations in two parts unless those are allowed."""
        split = self.deal(inputs)
        if self.allow_shared:
            return split
        if inputs.hashes is None:
            raise SplitError(
                "cannot tell whether a configuration is in two parts, as there are no hashes: make the inputs with "
                "SplitInputs.from_blocks, or say allow_shared"
            )
        check_disjoint(split, inputs.hashes)
        return split


class RandomSplit(AbstractSplit):
    """Structures dealt out at random."""

    kind: Literal["random"] = "random"
    fractions: Fractions
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""
        return random_split(len(inputs.sizes), self.fractions, key=jax.random.key(self.seed))


class GroupSplit(AbstractSplit):
    """Whole groups dealt out at random."""

    kind: Literal["group"] = "group"
    fractions: Fractions
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""
        if inputs.groups is None:
            raise SplitError("the data name no groups: split at random or by formula")
        return group_split(inputs.groups, self.fractions, key=jax.random.key(self.seed))


class FormulaSplit(AbstractSplit):
    """Whole formulas dealt out at random, in the proportions of ANI-1x where none are given."""

    kind: Literal["formula"] = "formula"
    fractions: Fractions = ANI1X_FRACTIONS
    seed: int = Field(0, ge=0, lt=2**31)

    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""
        return formula_split(inputs.sizes, inputs.atomic_numbers, self.fractions, key=jax.random.key(self.seed))


class OfficialSplit(AbstractSplit):
    """The split that the data came with."""

    kind: Literal["official"] = "official"
    rename: dict[str, str] = Field({}, description="other names for parts")

    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""
        if inputs.parts is None:
            raise SplitError("the data came without a split of their own: choose random, group, formula or file")
        usual = {"val": "validation"} if "val" in set(inputs.parts) else {}  # the name that training looks for
        return official_split(inputs.parts, {**usual, **self.rename})


class FileSplit(AbstractSplit):
    """A split from a file; :func:`huefield.data.splits.files.split_from_file` says how it may be written."""

    kind: Literal["file"] = "file"
    path: Path

    def deal(self, inputs: SplitInputs) -> Split:
        """The split of these structures, not checked."""
        return split_from_file(self.path, len(inputs.sizes))


SplitConfig = Annotated[
    RandomSplit | GroupSplit | FormulaSplit | OfficialSplit | FileSplit, Field(discriminator="kind")
]
