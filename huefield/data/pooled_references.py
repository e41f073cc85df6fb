r"""Reference energies of several data sets, fitted together so that one energy surface serves all of them.

A fit of each set alone, min_ε Σ_s (E_s − Σ_z n_sz ε_z)², also puts the mean bond energy of the set into ε. Sets of
different molecules then disagree by tenths of an eV per atom although their methods agree, and no network can serve
both. Here a set t has ε_t = ε + δ_t, and differences have a prior whose width s_t is estimated from the data:

    Ē_tf = Σ_z n_fz (ε_z + δ_tz) + e_tf,   e ~ N(0, σ²),   δ_tz ~ N(0, s_t²),   δ = 0 for the set of most formulas,

where Ē_tf is the mean energy of formula f in set t: structures of one formula share their bonds, and count once. σ is
the residual of separate fits, and s_t maximises the restricted likelihood (that of the data with ε integrated out).
Differences as small as the scatter of bond energies are taken only as far as formulas show them; those of another
functional or of pseudopotentials, many eV, are taken whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float

from huefield.core.structure import MAX_ATOMIC_NUMBER
from huefield.data.composition import element_counts
from huefield.data.references import AtomicReferences, EnergyChunk
from huefield.support.errors import HuefieldError

NUMBERS = tuple(range(1, MAX_ATOMIC_NUMBER + 1))
WIDTHS_EV = np.logspace(-3, 6, 91)
"""Widths of the prior that are tried."""
SMALLEST_SCATTER_EV = 1e-3
"""Smallest σ: energies of formulas that fit better say nothing more."""


@dataclass(frozen=True, eq=False)
class FormulaMeans:
    """The formulas of a data set with the mean energies of their structures."""

    counts: Float[np.ndarray, "f Z"]
    """Atoms of each element."""
    energy: Float[np.ndarray, " f"]
    structures: Float[np.ndarray, " f"]
    """Number of structures."""

    def of_elements(self, present: Bool[np.ndarray, " Z"]) -> "FormulaMeans":
        """With columns of some elements only."""
        return replace(self, counts=self.counts[:, present])


@dataclass
class _Sums:
    """Sums of energies over the structures of each formula of a data set."""

    found: dict[bytes, tuple[float, int]] = field(default_factory=dict)

    def see(self, chunk: EnergyChunk) -> None:
        counts = element_counts(chunk.sizes, chunk.atomic_numbers, NUMBERS)
        rows, index = np.unique(counts, axis=0, return_inverse=True)
        totals, numbers = np.bincount(index.ravel(), chunk.energy), np.bincount(index.ravel())
        for row, total, number in zip(rows, totals.tolist(), numbers.tolist(), strict=True):
            before = self.found.get(row.tobytes(), (0.0, 0))
            self.found[row.tobytes()] = before[0] + total, before[1] + number

    def means(self) -> FormulaMeans:
        counts = np.array([np.frombuffer(key, np.int32) for key in self.found], float)
        totals, numbers = np.array(list(self.found.values()), float).T
        return FormulaMeans(counts, totals / numbers, numbers)


def pooled_references(chunks: Iterable[EnergyChunk]) -> AtomicReferences:
    """Energies of the elements in each data set, in one pass over the structures."""
    sums: dict[str, _Sums] = {}
    for chunk in chunks:
        for tag in np.unique(chunk.tags[chunk.has_energy]).tolist():
            sums.setdefault(tag, _Sums()).see(chunk.of(tag))
    if not sums:
        raise HuefieldError("cannot fit reference energies: no structure has an energy")
    means = {tag: sums[tag].means() for tag in sorted(sums)}
    present = np.any([each.counts.any(0) for each in means.values()], axis=0)
    means = {tag: each.of_elements(present) for tag, each in means.items()}
    base = max(means.values(), key=lambda each: len(each.energy))
    nothing = np.zeros(int(present.sum()))
    shifts = {tag: nothing if each is base else difference(base, each) for tag, each in means.items()}
    common = _common(list(means.values()), list(shifts.values()))
    elements = np.array(NUMBERS)[present]
    energies = {}
    for tag, each in means.items():
        own = np.flatnonzero(each.counts.any(0))
        energies[tag] = dict(zip(elements[own].tolist(), (common + shifts[tag])[own].tolist(), strict=True))
    loose = tuple(tag for tag, each in means.items() if np.linalg.matrix_rank(each.counts) < len(energies[tag]))
    return AtomicReferences(energies, "least_squares", loose)


def _common(sets: Sequence[FormulaMeans], shifts: Sequence[Float[np.ndarray, " Z"]]) -> Float[np.ndarray, " Z"]:
    """ε, by least squares over all structures; a row for each formula is enough."""
    rows, rest = [], []
    for each, shift in zip(sets, shifts, strict=True):
        root = np.sqrt(each.structures)
        rows.append(root[:, None] * each.counts)
        rest.append(root * (each.energy - each.counts @ shift))
    return np.asarray(np.linalg.lstsq(np.concatenate(rows), np.concatenate(rest), rcond=None)[0])


def difference(first: FormulaMeans, second: FormulaMeans) -> Float[np.ndarray, " Z"]:
    """δ of a second data set relative to a first one, [eV]."""
    rows, energy = np.concatenate([first.counts, second.counts]), np.concatenate([first.energy, second.energy])
    own = np.concatenate([np.zeros_like(first.counts), second.counts])
    scatter = max(scatter_of(first, second), SMALLEST_SCATTER_EV)
    # Relative to a fit, so that rounding of energies of 10⁵ eV does not matter.
    energy = energy - rows @ np.linalg.lstsq(rows, energy, rcond=None)[0]
    width = max(WIDTHS_EV, key=lambda s: restricted_likelihood(rows, own, energy, scatter, s))
    elements = rows.shape[1]
    prior = np.concatenate([np.zeros((elements, elements)), scatter / width * np.eye(elements)], axis=1)
    system = np.concatenate([np.concatenate([rows, own], axis=1), prior])
    found = np.linalg.lstsq(system, np.concatenate([energy, np.zeros(elements)]), rcond=None)[0]
    return np.asarray(found[elements:])


def scatter_of(*sets: FormulaMeans) -> float:
    """σ: root mean square residual of fits of each set alone [eV]; zero if they have no residual."""
    squares, freedom = 0.0, 0
    for each in sets:
        fitted, _, rank, _ = np.linalg.lstsq(each.counts, each.energy, rcond=None)
        squares += float(((each.energy - each.counts @ fitted) ** 2).sum())
        freedom += len(each.energy) - int(rank)
    return float(np.sqrt(squares / freedom)) if freedom else 0.0


def restricted_likelihood(
    rows: Float[np.ndarray, "f Z"],
    own: Float[np.ndarray, "f Z"],
    energy: Float[np.ndarray, " f"],
    scatter: float,
    width: float,
) -> float:
    """Logarithm of the density of the energies with ε integrated out, V = σ² + s² Z Zᵀ, up to a constant."""
    basis, singular, _ = np.linalg.svd(own, full_matrices=False)
    growth = (width / scatter * singular) ** 2
    share = growth / (1.0 + growth)

    def whitened(values: np.ndarray) -> np.ndarray:
        """V⁻¹ times the values."""
        return (values - (basis * share) @ (basis.T @ values)) / scatter**2

    information = rows.T @ whitened(rows)
    mean = np.linalg.lstsq(information, rows.T @ whitened(energy), rcond=None)[0]
    rest = energy - rows @ mean
    spectrum = np.linalg.eigvalsh(information)
    known = spectrum[spectrum > spectrum.max() * 1e-12]
    return -0.5 * float(rest @ whitened(rest) + np.log1p(growth).sum() + np.log(known).sum())
