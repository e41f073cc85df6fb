"""Splits of structures into parts for training, validation and testing.

A :class:`Split` has the indices of the structures of each named part, and records how it was made. The same
configuration in two parts makes a test too easy: :func:`check_disjoint` finds such pairs by their hashes,
:func:`without_shared` removes them. Splits of :mod:`huefield.data.splits.config` are checked already.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Int, Int64, Integer, Key, Shaped, UInt8, UInt64
from pydantic import AfterValidator, Field, StrictInt

from huefield.data.composition import formula_index
from huefield.data.splits.dealing import deal_groups
from huefield.data.splits.duplicates import pairs_across
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes

ANI1X_COUNTS = {"train": 4_449_806, "validation": 244_331, "test": 261_868}
"""Configurations of ANI-1x in each part, in [J23] arXiv:2312.04174v1."""
ANI1X_FRACTIONS = {name: count / sum(ANI1X_COUNTS.values()) for name, count in ANI1X_COUNTS.items()}
SHOWN = 3
"""Pairs of indices that a message shows for each pair of parts."""


class SplitError(HuefieldError):
    """A split cannot be made or used; the message says why."""


def checked_fractions(fractions: Mapping[str, float]) -> dict[str, float]:
    """The fractions; raises unless they are positive and add up to at most 1."""
    if not fractions:
        raise SplitError("a split needs at least one part, such as {'train': 0.9, 'validation': 0.1}")
    for name, fraction in fractions.items():
        if not (math.isfinite(fraction) and fraction > 0):
            raise SplitError(f"the fraction of part {name!r} must be positive, but is {fraction}")
    if sum(fractions.values()) > 1 + 1e-9:
        raise SplitError(
            f"fractions must add up to at most 1, but add up to {sum(fractions.values()):g}: {dict(fractions)}"
        )
    return dict(fractions)


Fractions: TypeAlias = Annotated[dict[str, float], AfterValidator(checked_fractions)]


class SplitOrigin(FrozenConfig):
    """Origin of a split."""

    method: str = Field(description="the maker: random, group, formula, official, file")
    key_data: tuple[int, ...] = Field((), description="words of the random key")
    fractions: dict[str, float] = Field({}, description="requested fractions")
    removed: dict[str, int] = Field({}, description="structures removed from each part because another part has them")


class SplitFile(FrozenConfig):
    """The file of a split."""

    format: Literal["huefield-split"] = "huefield-split"
    version: Literal[1] = 1
    num_structures: int = Field(ge=0)
    origin: SplitOrigin
    parts: dict[str, list[Annotated[StrictInt, Field(ge=0, lt=2**62)]]]


@dataclass(frozen=True, eq=False)
class Split:
    """Named parts of ``num_structures`` structures: indices from 0, in order, in at most one part each."""

    parts: Mapping[str, Int[np.ndarray, " _"]]
    num_structures: int
    origin: SplitOrigin

    def __post_init__(self) -> None:
        if not self.parts:
            raise SplitError("a split needs at least one part, but none is given")
        owners = np.full(self.num_structures, -1, np.int16)
        parts = {name: _checked_part(name, part, owners, list(self.parts)) for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)

    def __getitem__(self, name: str) -> Int64[np.ndarray, " _"]:
        if name not in self.parts:
            raise KeyError(f"the split has no part {name!r}; its parts are {list(self.parts)}")
        return self.parts[name]

    def owners(self, names: Sequence[str]) -> Int64[np.ndarray, " n"]:
        """The part of each structure, as an index into ``names``; −1 for none of them."""
        owners = np.full(self.num_structures, -1)
        for place, name in enumerate(names):
            owners[self[name]] = place
        return owners

    def save(self, path: str | Path) -> None:
        """Write JSON atomically; :func:`huefield.data.splits.files.split_from_file` reads it."""
        parts = {name: part.tolist() for name, part in self.parts.items()}
        file = SplitFile(num_structures=self.num_structures, origin=self.origin, parts=parts)
        write_bytes(Path(path), file.model_dump_json().encode())


def _checked_part(
    name: str, indices: Int[np.ndarray, " _"], owners: Integer[np.ndarray, " n"], names: list[str]
) -> Int64[np.ndarray, " _"]:
    """The sorted indices, after they are entered into ``owners``."""
    if not name:
        raise SplitError("a part has an empty name")
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        raise SplitError(
            f"part {name!r} must be a one-dimensional array of integers, but is {indices.dtype}{indices.shape}"
        )
    part = np.sort(indices.astype(np.int64))
    if not part.size:
        raise SplitError(f"part {name!r} is empty: leave it out, or give it a larger fraction or more structures")
    if part[0] < 0 or part[-1] >= len(owners):
        wrong = int(part[0] if part[0] < 0 else part[-1])
        raise SplitError(f"part {name!r} has index {wrong}, but there are {len(owners)} structures, counted from 0")
    twice = np.flatnonzero(part[1:] == part[:-1])
    if twice.size:
        raise SplitError(f"part {name!r} has index {int(part[twice[0]])} twice")
    taken = np.flatnonzero(owners[part] >= 0)
    if taken.size:
        index = int(part[taken[0]])
        raise SplitError(f"index {index} is in two parts: {names[owners[index]]!r} and {name!r}")
    owners[part] = names.index(name)
    part.flags.writeable = False
    return part


def random_split(n: int, fractions: Mapping[str, float], *, key: Key[Array, ""]) -> Split:
    """Assign n structures at random. Each part has its fraction of them to within one structure."""
    asked = checked_fractions(fractions)
    ends = np.rint(np.cumsum(list(asked.values())) * n).astype(int).clip(max=n)
    pieces = np.split(_generator(key).permutation(n), ends)[: len(asked)]
    origin = SplitOrigin(method="random", key_data=_key_data(key), fractions=asked)
    return Split(dict(zip(asked, pieces, strict=True)), n, origin)


def split_datasets(tags: Sequence[str], split: Callable[[int], Split]) -> Split:
    """Split each data set on its own, so that every part has structures of each.

    Args:
        tags: the data set of each structure.
        split: the split of a number of structures.
    """
    names, number = np.unique(np.asarray(tags, np.str_), return_inverse=True)
    places = [np.flatnonzero(number == i) for i in range(len(names))]
    found = []
    for name, rows in zip(names.tolist(), places, strict=True):
        try:
            found.append(split(len(rows)))
        except SplitError as error:
            raise SplitError(f"data set {name!r} with {len(rows)} structures: {error}") from None
    parts = {
        part: np.concatenate([rows[each[part]] for rows, each in zip(places, found, strict=True)])
        for part in found[0].parts
    }
    return Split(parts, len(tags), found[0].origin)


def group_split(
    groups: Shaped[np.ndarray, " n"] | Sequence[str], fractions: Mapping[str, float], *, key: Key[Array, ""]
) -> Split:
    """Assign whole groups at random: structures of a reaction, a trajectory or a formula stay together.

    The smallest part is filled first, with groups in random order. Then groups are added, removed or exchanged, the
    most helpful step first, until no step brings the part closer to its fraction. The result depends on the names (or
    numbers) of the groups and the key, not on the order of the structures.

    Args:
        groups: the group of each structure, names or numbers.
        fractions: the fraction of all structures for each part.
        key: randomness.
    """
    asked = checked_fractions(fractions)
    labels = np.asarray(groups)
    unnamed = np.flatnonzero(labels == "") if labels.dtype.kind == "U" else np.zeros(0, int)
    if unnamed.size:
        raise SplitError(
            f"{unnamed.size} of {len(labels)} structures have no group (the first is {unnamed[0]}): "
            "set `group` or `config_type` in the data, or split at random or by formula"
        )
    names, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < len(asked):
        raise SplitError(
            f"{len(names)} groups cannot fill {len(asked)} parts {list(asked)}, since groups are never divided: "
            "ask for fewer parts, or split at random"
        )
    order = _generator(key).permutation(len(names))
    owners = np.empty(len(names), np.int64)
    owners[order] = deal_groups(sizes[order], np.array(list(asked.values())) * len(labels))
    origin = SplitOrigin(method="group", key_data=_key_data(key), fractions=asked)
    return Split({name: np.flatnonzero(owners[group] == i) for i, name in enumerate(asked)}, len(labels), origin)


def formula_split(
    sizes: Int[np.ndarray, " n"],
    atomic_numbers: UInt8[np.ndarray, " A"],
    fractions: Mapping[str, float] = ANI1X_FRACTIONS,
    *,
    key: Key[Array, ""],
) -> Split:
    """A :func:`group_split` by formula: no two parts have molecules of the same composition."""
    _, formula = formula_index(sizes, atomic_numbers)
    split = group_split(formula, fractions, key=key)
    return Split(split.parts, split.num_structures, split.origin.model_copy(update={"method": "formula"}))


def official_split(parts: Shaped[np.ndarray, " n"] | Sequence[str], rename: Mapping[str, str] = {}) -> Split:
    """The official split of a data set.

    Args:
        parts: the name of the part of each structure; empty for a structure in no part.
        rename: names to use instead, such as ``{"val": "validation"}``.
    """
    names, part = np.unique(np.asarray(parts, np.str_), return_inverse=True)
    known = [name for name in names.tolist() if name]
    if set(rename) - set(known):
        raise SplitError(f"cannot rename {sorted(set(rename) - set(known))}: the parts are {known}")
    indices = {rename.get(name, name): np.flatnonzero(part == i) for i, name in enumerate(names.tolist()) if name}
    if len(indices) != len(known):
        raise SplitError(f"renaming by {dict(rename)} gives two of the parts {known} one name")
    return Split(indices, len(part), SplitOrigin(method="official"))


def _key_data(key: Key[Array, ""]) -> tuple[int, ...]:
    return tuple(int(word) for word in np.asarray(jax.random.key_data(key)).ravel())


def _generator(key: Key[Array, ""]) -> np.random.Generator:
    """A NumPy generator: fast for millions of structures, and independent of the precision of JAX."""
    return np.random.default_rng(_key_data(key))


def check_disjoint(split: Split, hashes: UInt64[np.ndarray, " n"]) -> None:
    """Raise if a configuration of one part is in another part too.

    Args:
        split: the split.
        hashes: :func:`huefield.data.splits.duplicates.configuration_hashes` of all structures.
    """
    names, owners, lines = list(split.parts), split.owners(list(split.parts)), []
    pairs = pairs_across(hashes, owners)
    parts = owners[pairs]
    for a, b in sorted(set(map(tuple, parts.T.tolist()))):
        here = pairs[:, (parts[0] == a) & (parts[1] == b)].T.tolist()
        shown = ", ".join(f"{i} = {j}" for i, j in here[:SHOWN]) + (", ..." if len(here) > SHOWN else "")
        lines.append(f"{len(here)} of {names[b]!r} are in {names[a]!r} too: {shown}")
    if lines:
        raise SplitError(
            "the same configurations are in different parts:\n"
            + "\n".join(lines)
            + "\nKeep one of each in the data, or set allow_shared in the split to permit them"
        )


def without_shared(split: Split, hashes: UInt64[np.ndarray, " n"], keep_in: Sequence[str]) -> Split:
    """Remove configurations that several parts share from all but one of them.

    Args:
        split: the split.
        hashes: :func:`huefield.data.splits.duplicates.configuration_hashes` of all structures.
        keep_in: all parts in the order in which they keep shared configurations; ``("test", "validation", "train")``
            leaves the test part unchanged.
    """
    if sorted(keep_in) != sorted(split.parts):
        raise SplitError(f"keep_in must name each of the parts {list(split.parts)} once, but is {list(keep_in)}")
    pairs = pairs_across(hashes, split.owners(keep_in))
    parts = {name: np.setdiff1d(part, pairs[1], assume_unique=True) for name, part in split.parts.items()}
    before = split.origin.removed
    removed = {name: before.get(name, 0) + len(split[name]) - len(part) for name, part in parts.items()}
    return Split(parts, split.num_structures, split.origin.model_copy(update={"removed": removed}))
