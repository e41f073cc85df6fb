"""Charges and unpaired electrons, which no model here knows about."""

from collections.abc import Iterator, Sequence

from ase import Atoms


def ignored_text(ignored: Sequence[str]) -> str:
    """A sentence about what :func:`ignored_by_models` finds."""
    return (
        f"the atoms have {' and '.join(ignored)}, which the model knows nothing about: it predicts what it was trained "
        "on, whatever they are"
    )


def ignored_by_models(atoms: Atoms) -> Iterator[str]:
    """What the atoms say about their electrons."""
    if atoms.info.get("charge", 0) or ("initial_charges" in atoms.arrays and atoms.get_initial_charges().any()):
        yield "a charge"
    spin = atoms.info.get("spin", 1) not in (0, 1) or atoms.info.get("multiplicity", 1) not in (0, 1)
    if spin or ("initial_magmoms" in atoms.arrays and atoms.get_initial_magnetic_moments().any()):
        yield "unpaired electrons"
