"""What a model file keeps of its baseline: the configuration, and probes by which another baseline is noticed.

A model file never names code to run: a calculator that is not built into huefield is given again by whoever uses the
model. The probes, a few structures with the results of the baseline in training, show whether it is the same one.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from pydantic import Field

from huefield.baselines.base import AbstractBaseline, BaselineError
from huefield.baselines.columns import ColumnsBaseline
from huefield.baselines.kinds import BaselineConfig, BaselineLike, as_baseline, built
from huefield.core.structure import BaselineResult, Block, Structure
from huefield.data.composition import hill_formula
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

PROBES = 3
MOST_PROBE_ATOMS = 100
"""Larger structures are no probes, unless there are no smaller ones."""
SAME_EV_PER_ATOM, SAME_EV_PER_ANGSTROM, SAME_SHARE = 1e-4, 5e-3, 1e-6
"""Energies of a probe may differ by 0.1 meV per atom and by a share that single precision loses; forces by 5 meV/Å."""
IMPLAUSIBLE_EV_PER_ATOM, IMPLAUSIBLE_SCATTER = 0.5, 10.0
"""Columns are doubted beyond the larger of two limits: an energy per atom, and a multiple of the training scatter."""

Triple = tuple[float, float, float]


class Probe(FrozenConfig):
    """A structure with the results of the baseline in training."""

    atomic_numbers: tuple[int, ...]
    positions: tuple[Triple, ...]
    cell: tuple[Triple, Triple, Triple]
    pbc: tuple[bool, bool, bool]
    energy: float = Field(allow_inf_nan=False)
    forces: tuple[Triple, ...]

    @classmethod
    def of(cls, structure: Structure) -> "Probe":
        """A probe from a structure with results of the baseline."""
        result = structure.baseline
        assert result is not None  # noqa: S101 - the caller selects such structures
        return cls.model_validate(
            {
                "atomic_numbers": structure.atomic_numbers.tolist(),
                "positions": structure.positions.tolist(),
                "cell": structure.cell.tolist(),
                "pbc": structure.pbc.tolist(),
                "energy": result.energy,
                "forces": result.forces.tolist(),
            }
        )

    @property
    def structure(self) -> Structure:
        """The structure without results."""
        return Structure(
            np.array(self.atomic_numbers, np.uint8),
            np.array(self.positions, float).reshape(-1, 3),
            np.array(self.cell, float),
            np.array(self.pbc, bool),
        )

    @property
    def result(self) -> BaselineResult:
        """The results in training."""
        return BaselineResult(self.energy, np.array(self.forces, float).reshape(-1, 3))


class BaselineRecord(FrozenConfig):
    """The baseline of a model."""

    config: BaselineConfig
    version: str = Field("", description="program and version in training")
    probes: tuple[Probe, ...] = Field((), description="structures with the results of the baseline in training")
    levels: tuple[tuple[int, float], ...] = Field(
        (), description="atomic numbers with an energy for each, fitted to the results in training [eV]"
    )
    scatter: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="root mean square of what the levels leave, per atom [eV]"
    )

    @property
    def title(self) -> str:
        """Name for tables and messages."""
        return self.config.title

    def require_same(self, baseline: AbstractBaseline) -> None:
        """Raise unless a baseline gives the results of the probes."""
        for probe in self.probes:
            structure = probe.structure
            try:
                found = baseline.compute(structure)
            except BaselineError as error:
                raise HuefieldError(
                    f"the model corrects {self._in_training()}, but the given baseline fails for a structure of its "
                    f"training data ({_formula(structure)}): {error}"
                ) from error
            if difference := differing(found, probe.result):
                raise HuefieldError(
                    f"the model corrects {self._in_training()}, but the given baseline"
                    f"{f' ({baseline.version})' if baseline.version else ''} is another one: for "
                    f"{_formula(structure)} of the training data, {difference}. Give the baseline that the model was "
                    "trained with, with the same settings"
                )

    def conflict(self, other: "BaselineRecord") -> str:
        """How two records differ; empty if they may be of one baseline."""
        if self.config != other.config:
            return f"{self.title} and {other.title}"
        theirs = {(probe.atomic_numbers, probe.positions, probe.cell): probe for probe in other.probes}
        for probe in self.probes:
            same = theirs.get((probe.atomic_numbers, probe.positions, probe.cell))
            if same is not None and (difference := differing(same.result, probe.result)):
                return f"for {_formula(probe.structure)} of the training data, {difference}"
        return ""

    def doubt(self, block: Block) -> str:
        """Why results that come with structures may be those of another baseline; empty if nothing says so.

        Total energies of two methods usually differ by more than bonds do. This finds such columns, and no others.
        """
        known_levels = dict(self.levels)
        levels = np.array([known_levels.get(int(z), np.nan) for z in block.atomic_numbers])
        if block.baseline is None or not len(block):
            return ""
        away = np.abs(block.baseline.energy - np.add.reduceat(levels, block.starts[:-1])) / block.sizes
        known = away[np.isfinite(away)]
        off = float(np.median(known)) if len(known) else 0.0
        if off <= max(IMPLAUSIBLE_EV_PER_ATOM, IMPLAUSIBLE_SCATTER * self.scatter):
            return ""
        return (
            f"the model corrects {self._in_training()}, but the columns of {block.source} may hold another baseline: "
            f"their energies are {off:.2f} eV per atom away from those in training, which scatter by "
            f"{self.scatter:.2f} eV"
        )

    def _in_training(self) -> str:
        return self.title + (f" ({self.version})" if self.version else "")


def differing(found: BaselineResult, expected: BaselineResult) -> str:
    """How two results for one structure differ; empty if they agree."""
    tolerance = SAME_EV_PER_ATOM * len(expected.forces) + SAME_SHARE * abs(expected.energy)
    if not abs(found.energy - expected.energy) <= tolerance:  # NaN differs
        return f"its energy is {found.energy:.6g} instead of {expected.energy:.6g} eV"
    error = _largest(found.forces - expected.forces)
    return "" if error <= SAME_EV_PER_ANGSTROM else f"a force differs by {error:.3g} eV/Å"


def _formula(structure: Structure) -> str:
    return hill_formula(Counter(structure.atomic_numbers.tolist()))


def _largest(values: Float[np.ndarray, "N 3"]) -> float:
    return float(np.abs(values).max(initial=0.0))


def record_of(config: BaselineConfig, version: str, structures: Sequence[Structure]) -> BaselineRecord:
    """The record of a baseline, with some of the structures as probes: small, middle and large ones.

    Args:
        config: its configuration.
        version: program and version.
        structures: structures with results of the baseline.
    """
    known = sorted((s for s in structures if s.baseline is not None), key=len)
    usual = [s for s in known if len(s) <= MOST_PROBE_ATOMS] or known[:1]
    places = sorted(set(np.linspace(0, len(usual) - 1, min(PROBES, len(usual))).round().astype(int).tolist()))
    probes = tuple(Probe.of(usual[place]) for place in places)
    levels, scatter = _levels(known)
    return BaselineRecord(config=config, version=version, probes=probes, levels=levels, scatter=scatter)


def _levels(structures: Sequence[Structure]) -> tuple[tuple[tuple[int, float], ...], float]:
    """Energies for each element that fit results best, and what they leave per atom; none if formulas allow several."""
    if not structures:
        return (), 0.0
    elements = sorted({int(z) for s in structures for z in s.atomic_numbers})
    counts = np.array([[(s.atomic_numbers == z).sum() for z in elements] for s in structures], float)
    energies = np.array([s.baseline.energy for s in structures if s.baseline is not None])
    sizes = counts.sum(1)
    if np.linalg.matrix_rank(counts / sizes[:, None]) < len(elements):
        return (), 0.0
    # Energies per atom, so that large structures do not decide.
    fitted = np.linalg.lstsq(counts / sizes[:, None], energies / sizes)[0]
    left = energies / sizes - counts @ fitted / sizes
    return tuple(zip(elements, fitted.tolist(), strict=True)), float(np.sqrt((left**2).mean()))


def open_baseline(record: BaselineRecord | None, given: BaselineLike | None = None) -> AbstractBaseline | None:
    """The baseline to use with a model, compared with its probes; None for a model without a baseline.

    Args:
        record: of the model.
        given: an ASE calculator or a baseline; None for a built-in one.
    """
    if record is None:
        if given is not None:
            raise HuefieldError("the model corrects no baseline: use it without one")
        return None
    if isinstance(given, ColumnsBaseline):
        return given
    found = built(record.config) if given is None else as_baseline(given)
    if found is None:
        return ColumnsBaseline(record.title)
    if not isinstance(found, ColumnsBaseline):
        record.require_same(found)
    return found
