"""Energies of isolated atoms for training: of each data set, from a saved model, given, or fitted to the data."""

from collections.abc import Mapping

from huefield.core.structure import TAG
from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.data.pooled_references import pooled_references
from huefield.data.references import (
    AtomicReferences,
    EnergyChunk,
    FittedReferences,
    GivenReferences,
    ReferenceConfig,
)
from huefield.model.ensemble import Ensemble
from huefield.support.errors import HuefieldError

Energies = Mapping[str, Mapping[int, float]]
"""Energies of isolated atoms [eV] by data set, then by atomic number."""


def references_of(given: ReferenceConfig, main: str, part: Part, saved: Ensemble | None) -> AtomicReferences:
    """References of each data set of the training data, the main one first.

    A data set that a saved model knows has those of the model, since its mean was trained with them subtracted; others
    are fitted relative to it. A data set without energies has those of the main one: no energy is learnt from it.

    Args:
        given: how to make references.
        main: tag of the main data set.
        part: training data.
        saved: model to start from; None for none.
    """
    tags = (main, *(tag for tag in part.datasets if tag != main))
    known = {} if saved is None else _saved(saved, main)
    missing = [tag for tag in tags if tag not in known]
    if not missing:
        return AtomicReferences({tag: known[tag] for tag in tags})
    made = _made(given, tags, part)
    energies = {**_anchored(made, known), **known}
    if main not in energies:
        raise HuefieldError(
            f"no structure of the main data set {main!r} has an energy, so that the model could not predict energies: "
            "choose another one with data.main"
        )
    if forces_only := [tag for tag in missing if tag not in energies]:
        _require_elements(energies[main], main, part, forces_only)
    whole = {tag: energies.get(tag, energies[main]) for tag in tags}
    return AtomicReferences(whole, made.method, tuple(tag for tag in made.underdetermined if tag in missing))


def _saved(saved: Ensemble, main: str) -> dict[str, dict[int, float]]:
    """References of a saved model by data set; a model of one data set has those of the main one."""
    if saved.datasets is None:
        return {main: dict(saved.atom_energies)} if saved.atom_energies else {}
    named = {each.tag: dict(each.atom_energies) for each in saved.datasets.references}
    return {TAG: dict(saved.atom_energies), **named}


def _anchored(made: AtomicReferences, known: Energies) -> Energies:
    """Fitted references moved with those of a data set that a saved model knows: differences between sets stay."""
    anchor = next((tag for tag in made.energies_ev if tag in known), None)
    if anchor is None or made.method != FittedReferences().kind:
        return made.energies_ev
    moved = {z: known[anchor][z] - e for z, e in made.energies_ev[anchor].items() if z in known[anchor]}
    return {tag: {z: e + moved.get(z, 0.0) for z, e in row.items()} for tag, row in made.energies_ev.items()}


def _made(given: ReferenceConfig, tags: tuple[str, ...], part: Part) -> AtomicReferences:
    if not isinstance(given, GivenReferences):
        chunks = (EnergyChunk.from_block(block) for block in part.blocks())
        together = isinstance(given, FittedReferences) and len(tags) > 1
        return pooled_references(chunks) if together else given.make(chunks)
    named = given.energies_ev
    if len(tags) == 1:
        if len(named) != 1:
            raise HuefieldError(f"references must have one data set, but have {list(named)}")
        return AtomicReferences.from_symbols({tags[0]: next(iter(named.values()))})
    if unknown := [tag for tag in named if tag not in tags]:
        raise HuefieldError(f"references have the data set {unknown[0]!r}, but the data have {', '.join(tags)} only")
    labelled = {tag for block in part.blocks() for tag, has in zip(block.tags, block.has_energy, strict=True) if has}
    if lacking := [tag for tag in tags if tag in labelled and tag not in named]:
        raise HuefieldError(
            f"references lack the data set {lacking[0]!r}, which has energies: give those of its elements, too, as in "
            f"references: {{kind: given, energies_ev: {{{lacking[0]}: {{H: -13.6, C: -1029.5}}}}}}"
        )
    return given.make(())


def _require_elements(known: Mapping[int, float], main: str, part: Part, tags: list[str]) -> None:
    for tag in tags:
        have = [symbol(number) for number in known]
        lacking = [name for name in part.of_dataset(tag).elements() if name not in have]
        if lacking:
            raise HuefieldError(
                f"data set {tag!r} has no energies and takes the reference energies of {main!r}, which has none for "
                f"{', '.join(lacking)}: give both with references: {{kind: given}}, or leave these structures out"
            )
